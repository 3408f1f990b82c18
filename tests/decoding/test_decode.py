"""One step: what the drafter observes is what the stock model computes."""

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from scripted_drafters import Witness, path_to
from tiny_models import Tiny, prompt_ids, stock_logits

from localspec.decoding.budget import Budget
from localspec.decoding.decode import decode_step, prefill_step
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError
from localspec.nn.logits import TorchLogits

Make = Callable[[str], Tiny]


class Fixed(Witness):
    """A drafter that proposes a given tree, and records the steps that it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.next, self.steps, self.contexts = DraftTree((0,), (-1,)), [], []

    def observe(self, step: Step) -> None:
        super().observe(step)
        self.steps.append(step)

    def tree(self, context: Context) -> DraftTree:
        self.contexts.append(context)
        return self.next


@pytest.mark.slow
@each("sampling", [Sampling(), Sampling(1.2, seed=9)])
@each("name", ["qwen3-grouped-mixed-window-wide-heads", "phi3-grouped-window-partial-rotary"])
def test_a_step_reports_states_picks_and_rows_of_the_accepted_path(tiny: Make, name: str, sampling: Sampling) -> None:
    model, prompt, drafter = tiny(name), prompt_ids(14, seed=8), Fixed()
    cache = model.target.cache(64)

    def states(text: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model.stock.model(torch.tensor([text])).last_hidden_state[0]

    def pick(text: list[int]) -> int:
        return TorchLogits(stock_logits(model.stock, text)[-1:]).picks([len(text)], sampling)[0]

    step = prefill_step(model.target, cache, drafter, prompt, sampling, last=True)
    root = pick(prompt)
    assert step.committed == [*prompt, root]
    assert step.tree is None
    assert torch.allclose(step.hidden.rows, states(prompt), atol=1e-5)

    text = [*prompt, root]
    one = pick(text)
    two = pick([*text, one])
    bonus = pick([*text, one, two])
    # Node 2 and node 5 are right; a wrong sibling precedes each, and below node 5 is a probe that would be right.
    tokens = [root, (one + 1) % 320, one, 7, (two + 1) % 320, two, bonus]
    parents = [-1, 0, 0, 1, 2, 2, 5]
    drafter.next = DraftTree(tokens, parents, probe=[False] * 6 + [True])
    step = decode_step(model.target, cache, drafter, text, Budget(6), sampling)
    assert step.path == [0, 2, 5]
    assert step.committed == [one, two, bonus]
    assert cache.length == len(text) + 2
    assert torch.allclose(step.hidden.rows, states([*text, one, two])[-3:], atol=1e-5)
    for node in range(7):  # at every node, even rejected ones and probes
        path = [tokens[at] for at in path_to(drafter.next, node)]
        assert step.greedy_picks[node] == int(stock_logits(model.stock, prompt + path)[-1].argmax())
    context = drafter.contexts[-1]
    assert (context.root, context.nodes, context.sampling) == (root, 6, sampling)


class Halving(Budget):
    """A budget that keeps the first half of the nodes, and records its calls."""

    nodes = 5

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.asked, self.whole, self.observed = [], [], []

    def prune(self, tree: DraftTree, context: int) -> DraftTree:
        self.asked.append((tree, context))
        return tree.subtree(range((tree.size + 1) // 2))

    def take_whole(self, tree: DraftTree, context: int) -> DraftTree:
        self.whole.append((tree, context))
        return tree

    def observe(self, step: Step, overhead: float = 0.0) -> None:
        self.observed.append(step)


def test_what_the_budget_leaves_of_a_draft_is_verified_and_both_observe_it(tiny: Make) -> None:
    model, prompt, drafter = tiny("llama-grouped-dynamic"), prompt_ids(14, seed=8), Fixed()
    cache, budget = model.target.cache(64), Halving(9)
    text = prefill_step(model.target, cache, drafter, prompt, Sampling(), last=True).committed
    coming: list[int] = []
    for _ in range(6):
        coming.append(int(stock_logits(model.stock, [*text, *coming])[-1].argmax()))
    drafter.next = DraftTree.chain([text[-1], *coming[:5]])
    step = decode_step(model.target, cache, drafter, text, budget, Sampling())
    assert budget.asked == [(drafter.next, len(prompt))]
    assert drafter.contexts[-1].nodes == 5, "what the budget allows now, not the most it ever will"
    assert list(step.committed) == coming[:3], "two of the nodes, and the token after them"
    assert step.tree is not None
    assert step.tree.size == len(step.greedy_picks) == 3
    assert drafter.steps[-1] is budget.observed[-1]
    assert drafter.steps[-1].tree is step.tree


def test_no_node_that_was_sampled_is_left_out_by_the_rule_rejection(tiny: Make) -> None:
    model, prompt, drafter = tiny("llama-grouped-dynamic"), prompt_ids(14, seed=8), Fixed()
    cache, budget, sampling = model.target.cache(64), Halving(9), Sampling(1.0, rule="rejection", seed=2)
    text = prefill_step(model.target, cache, drafter, prompt, sampling, last=True).committed
    drafter.next = DraftTree.chain([text[-1], 5, 6, 7])
    step = decode_step(model.target, cache, drafter, text, budget, sampling)
    assert budget.asked == [] and budget.whole == [(drafter.next, len(prompt))] and step.tree is drafter.next


def test_nan_is_reported_at_the_end_of_the_prompt(tiny, monkeypatch):
    target, prompt = tiny("llama-grouped-dynamic").target, prompt_ids(14, seed=8)
    output = SimpleNamespace(logits=NumpyLogits(np.full((1, 320), np.nan, np.float32)), hidden=None)
    monkeypatch.setattr(type(target), "forward", lambda *_, **__: output)
    with pytest.raises(LocalspecError, match=matching("model_s_answer_number")):
        prefill_step(target, target.cache(64), Fixed(), prompt, Sampling(), last=True)


def test_drafting_and_verification_are_timed_apart(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the drafter, the budget and the target move."""
    model, prompt, clock = tiny("llama-grouped-dynamic"), prompt_ids(14, seed=8), [0.0]

    def after(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            clock[0] += seconds
            return function(*given, **named)

        return timed

    monkeypatch.setattr("localspec.decoding.decode.time.perf_counter", lambda: clock[0])
    target, drafter, budget, cache = copy.copy(model.target), Fixed(), Budget(3), model.target.cache(64)
    target.forward = after(7.0, target.forward)
    drafter.draft, drafter.observe = after(5.0, drafter.draft), after(100.0, drafter.observe)
    budget.prune, budget.observe = after(1000.0, budget.prune), after(10000.0, budget.observe)
    step = prefill_step(target, cache, drafter, prompt, Sampling(), last=True)
    assert (step.draft_seconds, step.verify_seconds) == (0.0, 0.0)
    drafter.next = DraftTree.chain([step.committed[-1], 5])
    step = decode_step(target, cache, drafter, step.committed, budget, Sampling())
    assert step.learn_seconds == 10100.0
    assert (step.draft_seconds, step.verify_seconds) == (1005.0, 7.0), "to choose what is verified belongs to the draft"


def test_what_a_forward_prepares_once_is_no_time_of_its_step(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt, clock = tiny("llama-grouped-dynamic"), prompt_ids(14, seed=8), [0.0]
    monkeypatch.setattr("localspec.decoding.decode.time.perf_counter", lambda: clock[0])
    target, drafter, cache = copy.copy(model.target), Fixed(), model.target.cache(64)
    forward = target.forward

    def prepared(*given: Any, **named: Any) -> Any:
        clock[0] += 7.0
        return replace(forward(*given, **named), once_seconds=3.0)

    target.forward = prepared
    step = prefill_step(target, cache, drafter, prompt, Sampling(), last=True)
    drafter.next = DraftTree.chain([step.committed[-1], 5])
    assert decode_step(target, cache, drafter, step.committed, Budget(3), Sampling()).verify_seconds == 4.0


def test_a_chunk_that_is_not_the_last_commits_its_own_tokens_only(tiny: Make) -> None:
    model, prompt, drafter = tiny("llama-grouped-dynamic"), prompt_ids(10), Fixed()
    cache = model.target.cache(32)
    step = prefill_step(model.target, cache, drafter, prompt[:6], Sampling(), last=False)
    assert step.committed == prompt[:6]
    step = prefill_step(model.target, cache, drafter, prompt[6:], Sampling(), last=True)
    assert step.committed == [*prompt[6:], int(stock_logits(model.stock, prompt)[-1].argmax())]
    assert cache.length == 10
