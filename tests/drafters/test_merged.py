"""Several drafters at once: one tree, no text changed, correct states, and none that costs more than it saves."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from drafting import drafting, torch_form
from scripted_drafters import RandomBranches
from session_replies import reply
from tiny_models import FAMILIES, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.layers import Layers
from localspec.drafters.merged import LATEST, PATIENCE, SOONEST, Merged
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.models.drafter_kinds import MERGED
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.training.trainable import make_drafter

Make = Callable[[str], Tiny]
LLAMA, QWEN3 = FAMILIES[0], FAMILIES[3]
GREEDY = Sampling()
OPTIONS: dict[str, dict[str, object]] = {"s3d": {"kept": "0,2"}, "parallelspec": {"form": "eagle"}}


def part(kind: str, target: Any) -> Drafter:
    """Return an untrained drafter."""
    if kind == "layers":
        return Layers(target, MeasuredLayers((0, 2), (0.5, 0.1)), fixed=True)
    torch.manual_seed(len(kind))
    made: Drafter = drafting(make_drafter(kind, torch_form(target), OPTIONS.get(kind, {})), target)
    return made


def merged(names: str, target: Any) -> Drafter:
    """Return the drafter that `--drafter` makes from these names."""
    both = Merged([part(kind, target) for kind in names.split("+") if kind != "phrases"])
    pool = PhrasePool(target.special_tokens)
    return WithPhrases(both, pool, anywhere=True) if names.endswith("phrases") else both


# How drafts are merged does not depend on the model, and each drafter meets every family in its own tests.
TOGETHER = ["medusa+s3d", "s3d+semi+phrases", "layers+medusa+s3d", "parallelspec+s3d+semi+phrases"]


class Noted:
    """A drafter that records its trees by the length of the text."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.nbytes, self.target_layers, self.trees = inner, inner.nbytes, inner.target_layers, {}

    def observe(self, step: Step) -> None:
        self.inner.observe(step)

    def rewind(self, length: int) -> None:
        self.inner.rewind(length)

    def draft(self, context: Context) -> DraftTree:
        tree = self.inner.draft(context)
        self.trees[len(context.committed)] = [*tree.tokens], [*tree.parents]
        return tree


@pytest.mark.slow
def test_each_drafts_the_same_as_by_itself(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without other drafters, the cache, the states and the target's cache of each are the same."""
    monkeypatch.setattr(Calibration, "judge", lambda *_: None)  # otherwise what it learns depends on the steps
    target, prompt = tiny(QWEN3).target, prompt_ids(12, seed=3)
    kinds = ("layers", "medusa", "parallelspec", "s3d", "semi")
    beside, alone = ([Noted(part(kind, target)) for kind in kinds] for _ in range(2))
    reply(Session(target, Merged(beside), Budget(8)), prompt, 30)
    for one, other in zip(alone, beside, strict=True):
        reply(Session(target, one, Budget(8)), prompt, 30)
        both = one.trees.keys() & other.trees
        assert len(both) > 5
        assert [one.trees[at] for at in both] == [other.trees[at] for at in both]


class Says:
    """A drafter that proposes the same tree each time, and takes a while."""

    nbytes, target_layers = 7, ()

    def __init__(self, tree: DraftTree) -> None:
        self.tree, self.asked, self.observed, self.length = tree, [], 0, -1

    def observe(self, step: Step) -> None:
        self.observed += 1

    def rewind(self, length: int) -> None:
        self.length = length

    def draft(self, context: Context) -> DraftTree:
        self.asked.append(context.nodes)
        return self.tree if context.nodes else DraftTree((context.root,), (-1,))


def tree(text: str, chances: Sequence[float] | None, source: str) -> DraftTree:
    """Return a chain, and further children of the root after commas."""
    tokens, parents = [0], [-1]
    for branch in text.split(","):
        parent = 0
        for letter in branch:
            tokens.append(ord(letter))
            parents.append(parent)
            parent = len(tokens) - 1
    return DraftTree(tokens, parents, [source] * len(tokens), chance=chances and [1.0, *chances])


A, B = tree("xy,v", [0.5, 0.4, 0.1], "a"), tree("xz,w", [0.6, 0.5, 0.2], "b")


def asked(nodes: int = 8, token_seconds: float | None = None, sampling: Sampling = GREEDY) -> Context:
    cache: Any = None  # which is not used here
    return Context([5, 0], cache, nodes, sampling, token_seconds)


def stepped(*committed: int, draft: float = 0.0, verify: float = 1.0) -> Step:
    hidden = NumpyHidden(torch.zeros(1, 4).numpy())
    return Step(committed, hidden, DraftTree((0,), (-1,)), [0], [committed[0]], draft, verify)


def shown(found: DraftTree) -> dict[str, tuple[str, float]]:
    """Return path -> (source, chance)."""
    assert found.source and found.chance
    paths = [""]
    for node in range(1, found.size):
        paths.append(paths[found.parents[node]] + chr(found.tokens[node]))
    rows = list(zip(paths, found.source, found.chance, strict=True))[1:]
    return {path: (source, pytest.approx(chance)) for path, source, chance in rows}


def test_equal_tokens_below_one_parent_are_one_node() -> None:
    both = Merged([Says(A), Says(B)])
    found = both.draft(asked())
    assert found.tokens[0] == 0 and both.nbytes == 14
    assert shown(found) == {
        "x": ("a+b", 1 - 0.5 * 0.4), "xy": ("a", 0.4), "xz": ("b", 0.5), "v": ("a", 0.1), "w": ("b", 0.2),
    }  # fmt: skip
    assert [chr(token) for token in found.tokens[1:3]] == ["x", "z"], "the likeliest chain comes first"


def test_the_likeliest_nodes_of_all_are_taken() -> None:
    assert set(shown(Merged([Says(A), Says(B)]).draft(asked(3)))) == {"x", "xz", "xy"}
    alone = Merged([Says(A), Says(B)]).draft(asked(0))
    assert alone.size == 1


def test_drafts_without_chances_are_weighed_by_rank() -> None:
    found = shown(Merged([Says(tree("x,y", None, "a")), Says(tree("z", [0.4], "b"))]).draft(asked()))
    assert found == {"x": ("a", 0.5), "y": ("a", 0.25), "z": ("b", 0.4)}


def test_chances_are_learned_by_who_agreed() -> None:
    both = Merged([Says(tree("x", [0.5], "a")), Says(tree("x,y", [0.5, 0.5], "b"))])
    for _ in range(60):
        both.draft(asked())
        both.observe(stepped(ord("x"), 3))
    found = both.draft(asked())
    assert found.chance and found.chance[1] > 0.95 and found.chance[2] < 0.05
    sampled = both.draft(asked(sampling=Sampling(1.0)))
    assert sampled.chance and sampled.chance[1] == 0.75, "what holds of greedy text says nothing of sampled text"


def test_what_was_rewound_is_not_judged() -> None:
    both = Merged([Says(A), Says(B)])
    both.draft(asked())
    both.rewind(1)
    both.observe(stepped(ord("x")))
    assert both.calibration.as_json() == []
    assert [drafter.length for drafter in both.drafters] == [1, 1]  # type: ignore[attr-defined]


def test_what_cannot_be_merged_is_not() -> None:
    probing = DraftTree((0, 1), (-1, 0), probe=(False, True))
    with pytest.raises(AssertionError, match="probe"):
        Merged([Says(A), Says(probing)]).draft(asked())
    with pytest.raises(AssertionError, match="distribution"):
        Merged([Says(A), Says(B)]).draft(asked(sampling=Sampling(1.0, rule="rejection")))


def test_whoever_of_the_most_that_are_merged_agree_has_a_place_of_its_own_in_calibration() -> None:
    agreed, calibration = range(1, 1 << MERGED), Calibration()
    for number in agreed:
        for _ in range(50):
            calibration.judge(0.5, number, 0, True, right=number == agreed[-1])
    found = [calibration.chance(0.5, number, 0, True) for number in agreed]
    assert max(found[:-1]) < 0.1 and found[-1] > 0.9


@pytest.mark.slow
def test_random_trees_give_random_trees_and_the_same_text(tiny: Make) -> None:
    target, prompt = tiny(QWEN3).target, prompt_ids(23, seed=23)
    text = stock_reply(tiny(QWEN3).stock, prompt, 40)
    for seed in range(4):
        several = [RandomBranches(prompt + text, seed=10 * seed + one, probes=0) for one in range(3)]
        ids, statistics = reply(Session(target, Merged(several), Budget(12)), prompt, 40)
        assert ids == text
        assert statistics.acceptance_length > 1.3


def test_one_that_brings_less_than_it_takes_rests_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Says(tree("x", [0.9], "a")), Says(tree("x", [0.9], "b"))
    both = Merged([good, bad])
    now = [0.0]
    monkeypatch.setattr("localspec.drafters.merged.time.perf_counter", lambda: now[0])

    def slowly(context: Context) -> DraftTree:
        now[0] += 0.2
        return Says.draft(bad, context)

    monkeypatch.setattr(bad, "draft", slowly)
    steps = PATIENCE + SOONEST + PATIENCE + 2 * SOONEST + 2
    for _ in range(steps):
        both.draft(asked(token_seconds=1.0))
        both.observe(stepped(ord("x"), 3))
    asked_for = "".join("d" if nodes else "." for nodes in bad.asked)
    again = "d" * PATIENCE + "." * SOONEST + "d" * PATIENCE + "." * 2 * SOONEST + "d" * PATIENCE
    assert asked_for == again[: len(asked_for)]
    assert bad.observed == good.observed == steps, "who rests still sees the text"
    assert all(good.asked), "where both draft the same it adds nothing, but it takes no time"
    assert LATEST > 2 * SOONEST


def test_of_two_that_always_agree_one_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither proposes anything that the other does not, so if both were judged in this way, both would pause."""
    now, both = [0.0], Merged([Says(tree("x", [0.9], "a")), Says(tree("x", [0.9], "b"))])
    monkeypatch.setattr("localspec.drafters.merged.time.perf_counter", lambda: now[0])
    for one in both.drafters:

        def slowly(context: Context, one: Any = one) -> DraftTree:
            now[0] += 0.2
            return Says.draft(one, context)

        monkeypatch.setattr(one, "draft", slowly)
    for _ in range(10 * PATIENCE):
        both.draft(asked(token_seconds=1.0))
        both.observe(stepped(ord("x"), 3))
    drafting = [sum(map(bool, nodes)) for nodes in zip(*(one.asked for one in both.drafters), strict=True)]  # type: ignore[attr-defined]
    assert min(drafting) == 1 and drafting.count(1) > 5 * PATIENCE


def test_one_that_brings_enough_does_not_rest_and_a_fixed_experiment_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("localspec.drafters.merged.time.perf_counter", lambda: now[0])
    for token_seconds, brings in ((1.0, True), (None, False)):
        needed = Says(tree("x" if brings else "q", [0.9], "b"))
        both = Merged([Says(tree("v", [0.9], "a")), needed])

        def slowly(context: Context, needed: Says = needed) -> DraftTree:
            now[0] += 0.2
            return Says.draft(needed, context)

        monkeypatch.setattr(needed, "draft", slowly)
        for _ in range(3 * PATIENCE):
            both.draft(asked(token_seconds=token_seconds))
            both.observe(stepped(ord("x"), 3))
        assert all(needed.asked)
