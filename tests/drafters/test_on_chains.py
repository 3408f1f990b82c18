"""Trained drafters for a target that reads only chains (Qwen3.5): they learn, draft chains, and change no token."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distributions import assert_drawn_from
from drafters import test_eagle3
from drafting import drafting, perturbed, session_of, torch_form, train, watched
from golden import matching
from scripted_drafters import OffChain
from session_replies import assert_plain, reply
from six_words import PROMPT, drawn, joint_chances, six_words_qwen35
from slow_cases import covering
from tiny_models import RECURRENT, VOCABULARY, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import kind_of, kinds
from localspec.training.trainable import Batch, TrainableDrafter, make_drafter
from localspec.training.verdict import NODES, measure_generated

Make = Callable[..., Tiny]
SHARED = next(iter(RECURRENT))
SMALL = json.dumps({
    "model_type": "llama", "pard_token": 317, "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 2,
})  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {"heads": 4}),
    "medusa, static": ("medusa", {"heads": 4, "tree": "static"}),
    "semi": ("semi", {"depth": 4}),
    "semi, lstm": ("semi", {"depth": 4, "recent": "lstm", "shared": False}),
    "eagle3": ("eagle3", {"depth": 4}),
    "parallelspec": ("parallelspec", {"masks": 3}),
    "parallelspec, eagle": ("parallelspec", {"masks": 3, "form": "eagle", "correction": 0, "layers": 2}),
    "parallelspec, model": ("parallelspec", {"masks": 3, "form": "model", "config": SMALL}),
}
SAMPLING = {"drawn": Sampling(0.9, seed=7), "top-p": Sampling(0.8, top_p=0.95, seed=3)}


def untrained(target: Any, form: str) -> TrainableDrafter:
    """Return the same for each call."""
    torch.manual_seed(0)
    kind, options = FORMS[form]
    return make_drafter(kind, torch_form(target), options)


def batch_of(drafter: TrainableDrafter, texts: Sequence[Sequence[int]], prompt: int, distill: bool = False) -> Batch:
    """Return texts of one length, as the loop reads them; tokens after the first `prompt` ones count in the loss."""
    tokens = torch.tensor(texts)
    counts = torch.ones_like(tokens, dtype=torch.bool)
    counts[:, :prompt] = False
    positions, inner = torch.arange(tokens.shape[1]), dict[int, Any].fromkeys(drafter.reads_inner)
    with torch.no_grad():
        causal = positions[:, None] >= positions
        hidden = drafter.target.transformer(tokens, positions, causal, inner=inner)
    joined = torch.cat([inner[place] for place in drafter.reads_inner], -1) if inner else None
    return Batch(tokens, counts, hidden, distill, inner=joined)


def trained(target: Any, form: str, text: Sequence[int], prompt: int, steps: int = 60) -> TrainableDrafter:
    """Return the drafter after training on one text."""
    drafter = untrained(target, form)
    return train(drafter, batch_of(drafter, [text], prompt), steps)


def on_chains(target: Any, nodes: int, drafter: Any) -> Session:
    return session_of(target, drafter, Budget(nodes, branches=target.branches))


def test_every_trained_kind_except_s3d_drafts_chains() -> None:
    assert {kind for kind, _ in FORMS.values()} == {kind for kind in kinds("weights") if kind_of(kind).on_chains}
    assert {kind for kind in kinds("weights") if not kind_of(kind).on_chains} == {"s3d"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [(SHARED, "semi"), *covering(RECURRENT, reversed(FORMS), fast=0)])
def test_every_draft_is_a_chain_and_the_text_the_stock_models(tiny: Make, name: str, form: str) -> None:
    model, prompt = tiny(name), prompt_ids(12, seed=23)
    text = stock_reply(model.stock, prompt, 24)
    for weights in (untrained(model.target, form), perturbed(untrained(model.target, form), 0.3)):
        drafter = drafting(weights, model.target)
        seen = watched(drafter)
        ids, statistics = reply(on_chains(model.target, 8, drafter), prompt, 24)
        assert ids == text and statistics.drafted > 20
        static = form.endswith("static")  # a tree by its shape, of which the budget takes a path
        assert static or all([*tree.parents] == [*range(-1, tree.size - 1)] for _, tree in seen)
        assert max(tree.size for _, tree in seen) == (9 if static else 5)
        if form == "eagle3":
            for committed, tree in (seen[0], seen[3], seen[-1]):
                for node in range(1, tree.size):
                    said = test_eagle3.plain_loop(model, weights, committed, tree.tokens[1:node]).softmax(-1)
                    assert said[tree.tokens[node]] >= said.max() * 0.999


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), covering(RECURRENT, FORMS))
def test_trained_on_a_text_it_foresees_it_and_every_text_is_plain_decodings(tiny: Make, name: str, form: str) -> None:
    model, prompt, other = tiny(name), prompt_ids(23, seed=23), prompt_ids(12, seed=9)
    learnt = stock_reply(model.stock, prompt, 30)
    drafter = drafting(trained(model.target, form, [*prompt, *learnt], 23), model.target)
    for nodes in (1, 3, 8):
        ids, statistics = reply(on_chains(model.target, nodes, drafter), prompt, 30)
        assert ids == learnt and statistics.acceptance_length > 1 + 0.6 * min(nodes, 4), nodes
    assert reply(on_chains(model.target, 8, drafter), other, 30)[0] == stock_reply(model.stock, other, 30)
    for asked, sampling in ((prompt, "drawn"), (other, "top-p")):
        assert_plain(model.target, on_chains(model.target, 8, drafter), asked, 30, SAMPLING[sampling])


@pytest.mark.slow
def test_labels_of_either_kind_give_every_part_a_gradient(tiny: Make) -> None:
    """The loss of a text is the same in a batch with others as in a batch of one."""
    target, texts = tiny(SHARED).target, [prompt_ids(14, seed=seed) for seed in (1, 2)]
    for form in ("medusa", "semi", "eagle3", "parallelspec"):
        for distill in (False, True):
            drafter = perturbed(untrained(target, form), 0.1)
            alone = [drafter.loss(batch_of(drafter, [text], 5, distill)) for text in texts]
            both = drafter.loss(batch_of(drafter, texts, 5, distill))
            both.loss.backward()
            learning = [one for one in drafter.parameters() if one.numel()]
            assert all(one.grad is not None and one.grad.any() for one in learning), form
            parts = [one.depth_losses[0].loss.detach() for one in alone]
            assert float(both.depth_losses[0].loss.detach()) == pytest.approx(float(sum(parts)), rel=1e-4), form


def test_a_layer_begins_as_the_last_that_attends(tiny: Make) -> None:
    """Norms are copied as they multiply, without gates where the layer has none."""
    target = torch_form(tiny(SHARED).target)
    config, layers = target.transformer.config, target.transformer.layers
    assert config.attending == [2] and config.num_layers == 5
    eagle, parallel = untrained(target, "eagle3").tensors(), untrained(target, "parallelspec").model.layers[0]
    heads, dim, qkv = config.num_heads, config.head_dim, layers[2].qkv_proj.weight
    queries = qkv[: 2 * heads * dim].view(heads, 2, dim, -1)[:, 0].flatten(0, 1)
    assert torch.equal(eagle["qkv.weight"][:, 48:], torch.cat([queries, qkv[2 * heads * dim :]]))
    assert torch.equal(eagle["o.weight"], layers[2].o_proj.weight)
    assert torch.equal(eagle["norm"], target.transformer.norm + 1)
    assert torch.equal(eagle["feature_norm"], layers[2].input_layernorm + 1)
    assert torch.equal(parallel.qkv_proj.weight, qkv)
    assert torch.equal(parallel.input_layernorm, layers[2].input_layernorm)


def test_what_would_train_the_model_along_is_refused(tiny: Make) -> None:
    target = torch_form(tiny(SHARED).target)
    for kind, options in (("medusa", {"joint": True}), ("semi", {"joint": True}), ("semi", {"first": 0.5})):
        with pytest.raises(UsageMistake, match=f"recurrent.*{matching('leave_out')}"):
            make_drafter(kind, target, options)


class KnowingOffChain(OffChain):
    """A drafter that ranks the first of two siblings, which is wrong, below the second."""

    def tree(self, context: Context) -> DraftTree:
        tree = super().tree(context)
        return replace(tree, source=["oracle"] * tree.size, chance=[1.0, *[0.1, 0.8] * (tree.size // 2)])


@pytest.mark.slow
def test_what_it_brings_on_text_is_measured_by_the_path_that_promises_most(tiny, monkeypatch):
    """Measured on the likeliest path; of a tree whose path is not taken, otherwise only first children are read."""
    monkeypatch.setattr("localspec.training.verdict.REPLY_TOKENS", 12)
    model, prompt = tiny(SHARED), prompt_ids(9)
    text = [*prompt, *stock_reply(model.stock, prompt, 20)]
    drafter: Any = KnowingOffChain(text)
    found = measure_generated(torch_form(model.target), drafter, [prompt], 1)
    assert found["length"] > 1.5 and found["nodes"] == NODES


def assert_drawn_as_said(trees: Sequence[DraftTree]) -> None:
    """At each depth of chains every token came about as often as the logits say that they were drawn from."""
    for node in range(1, max(tree.size for tree in trees)):
        deep = [tree for tree in trees if tree.size > node]
        said = torch.stack([torch.as_tensor(tree.draft_logits.rows[node]) for tree in deep]).double().softmax(-1)
        came = torch.bincount(torch.tensor([tree.tokens[node] for tree in deep]), minlength=said.shape[1])
        spread = (said * (1 - said)).sum(0).sqrt()
        assert ((came - said.sum(0)).abs() < 4 * spread + 4).all(), node  # 4 more, for tokens that hardly ever come


def assert_drawn_by_rejection(tmp_path: Path, own_read: Callable[[Path], Tiny], form: str) -> None:
    """Three tokens have the stock model's joint distribution, and drafts the one that they say."""
    letters = six_words_qwen35(tmp_path, own_read)
    text = [*PROMPT, *stock_reply(letters.stock, PROMPT, 12)]
    session = on_chains(letters.target, 5, trained(letters.target, form, text, len(PROMPT), steps=20))
    seen, sampling = watched(session.drafter), Sampling(1.0, rule="rejection")
    found = drawn(session, PROMPT, sampling, 500)
    assert found.accepted > 50 and all([*tree.parents] == [*range(-1, tree.size - 1)] for _, tree in seen)
    assert_drawn_from(joint_chances(letters.stock, PROMPT, sampling), found.counts)
    assert_drawn_as_said([tree for _, tree in seen])
