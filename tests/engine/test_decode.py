"""One step: what the drafter is told is what the stock model computes."""

from collections.abc import Callable

import pytest
import torch
from doubles import Witness, path_to
from tiny_models import Tiny, prompt_ids, stock_logits

from localspec.drafters.base import Context, Step
from localspec.engine.decode import decode_step, prefill_step
from localspec.engine.sampling import Sampling
from localspec.engine.tree import DraftTree

Make = Callable[[str], Tiny]


class Fixed(Witness):
    """Proposes the tree that it is given, and keeps the steps it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.next, self.steps, self.contexts = DraftTree((0,), (-1,)), [], []

    def observe(self, step: Step) -> None:
        super().observe(step)
        self.steps.append(step)

    def tree(self, context: Context) -> DraftTree:
        self.contexts.append(context)
        return self.next


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, seed=9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["qwen3-grouped-mixed-window-wide-heads", "phi3-grouped-window-partial-rotary"])
def test_a_step_reports_states_picks_and_rows_of_the_accepted_path(tiny: Make, name: str, sampling: Sampling) -> None:
    model, prompt, drafter = tiny(name), prompt_ids(14, seed=8), Fixed()
    cache = model.target.cache(64)

    def states(text: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model.stock.model(torch.tensor([text])).last_hidden_state[0]

    def pick(text: list[int]) -> int:
        return sampling.pick(stock_logits(model.stock, text)[-1], len(text))

    step = prefill_step(model.target, cache, drafter, prompt, sampling, last=True)
    root = pick(prompt)
    assert step.committed == [*prompt, root]
    assert step.tree is None
    assert torch.allclose(step.hidden, states(prompt), atol=1e-5)

    text = [*prompt, root]
    one = pick(text)
    two = pick([*text, one])
    bonus = pick([*text, one, two])
    # Node 2 and node 5 are right; a wrong sibling stands before each, and a probe that would be right below node 5.
    tokens = [root, (one + 1) % 320, one, 7, (two + 1) % 320, two, bonus]
    parents = [-1, 0, 0, 1, 2, 2, 5]
    drafter.next = DraftTree(tokens, parents, probe=[False] * 6 + [True])
    step = decode_step(model.target, cache, drafter, text, 6, sampling)
    assert step.path == [0, 2, 5]
    assert step.committed == [one, two, bonus]
    assert cache.length == len(text) + 2
    assert torch.allclose(step.hidden, states([*text, one, two])[-3:], atol=1e-5)
    for node in range(7):  # at every node, rejected ones and probes too
        path = [tokens[at] for at in path_to(drafter.next, node)]
        assert step.best[node] == int(stock_logits(model.stock, prompt + path)[-1].argmax())
    context = drafter.contexts[-1]
    assert (context.root, context.nodes, context.sampling) == (root, 6, sampling)


def test_a_chunk_that_is_not_the_last_commits_its_own_tokens_only(tiny: Make) -> None:
    model, prompt, drafter = tiny("llama-grouped-dynamic"), prompt_ids(10), Fixed()
    cache = model.target.cache(32)
    step = prefill_step(model.target, cache, drafter, prompt[:6], Sampling(), last=False)
    assert step.committed == prompt[:6]
    step = prefill_step(model.target, cache, drafter, prompt[6:], Sampling(), last=True)
    assert step.committed == [*prompt[6:], int(stock_logits(model.stock, prompt)[-1].argmax())]
    assert cache.length == 10
