"""A subset of the target's layers as drafter: no text changes, each forward pays, and the probe measures acceptance."""

from collections.abc import Callable, Sequence

import pytest
import torch
from drafting import prefilled
from each import each
from session_replies import reply
from tiny_models import END, FAMILIES, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.measuring import MeasuringProgress, finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters import layers as layer_probe
from localspec.drafters.layers import Layers
from localspec.models.s3d_prediction import MeasuredLayers

Make = Callable[[str], Tiny]
LLAMA, QWEN3, PHI3 = FAMILIES[0], FAMILIES[3], FAMILIES[4]
GREEDY = Sampling()


def layers(target, kept: Sequence[int] = (0, 2), fixed: bool = True, share: float = 0.5) -> Layers:
    return Layers(target, MeasuredLayers(tuple(kept), (share, 0.1)), fixed)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, top_k=128, seed=3), Sampling(0.7, top_k=8, seed=4)])
def test_with_all_layers_every_draft_is_accepted_whole(tiny, sampling, monkeypatch):
    """Then each row of the draft is one of plain decoding, with the same position and noise."""
    target = tiny(QWEN3).target
    monkeypatch.setattr(target, "stop_tokens", frozenset())
    session = Session(target, layers(target, (0, 1, 2)), Budget(40))  # room for all that four forwards propose
    _, statistics = reply(session, prompt_ids(23, seed=23), 21, sampling)
    assert statistics.acceptance_length == 5


def test_a_draft_leaves_the_cache_as_it_was(tiny: Make) -> None:
    """The target's logits after a draft have the same bits as without one, also where a draft fails."""
    target, text = tiny(QWEN3).target, prompt_ids(40, seed=2)
    tree = DraftTree([text[-1], 9, 8, 7], [-1, 0, 0, 1])
    said = []
    for drafts in range(3):
        kept, drafter = prefilled(target, text), layers(target)
        if drafts == 2:
            drafter._next = lambda *_: 1 / 0  # type: ignore[method-assign]
            with pytest.raises(ZeroDivisionError):
                drafter.draft(Context(text, kept, 8, GREEDY))
        elif drafts:
            assert drafter.draft(Context(text, kept, 8, GREEDY)).size == 9
        assert kept.length == len(text) - 1
        said.append(torch.as_tensor(target.forward(tree, kept).logits.rows).clone())
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def test_a_draft_continues_from_its_likeliest_token(tiny: Make) -> None:
    """The chain is the greedy text of the kept layers, each with the target's own keys and values of the text."""
    target, text = tiny(QWEN3).target, prompt_ids(30, seed=3)
    tree = layers(target, (0, 2)).draft(Context(text, prefilled(target, text), 40, GREEDY))
    chain, node = [], 0
    while tree.siblings[node]:
        node = tree.siblings[node][0]
        chain.append(tree.tokens[node])
    assert len(chain) == 4
    model, kept = target.compute.target, prefilled(target, text)
    states = model.read_rows(model.embed([text[-1], *chain[:-1]]), kept, (0, 2))
    assert torch.as_tensor(model.head(states)).argmax(-1).tolist() == chain


def test_without_nodes_there_is_no_work_and_at_the_end_of_the_context_drafts_are_short(tiny: Make) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter, kept = layers(target), prefilled(target, text)
    assert max(drafter.draft(Context(text, kept, 40, GREEDY)).depth) == 4
    drafter._next = None  # type: ignore[assignment, method-assign]
    assert drafter.draft(Context(text, kept, 0, GREEDY)).size == 1
    drafter, context = layers(target), target.context
    try:
        target.context = 11
        assert max(drafter.draft(Context(text, kept, 40, GREEDY)).depth) == 2
        target.context = 9
        assert drafter.draft(Context(text, kept, 8, GREEDY)).size == 1
    finally:
        target.context = context


def test_infinite_numbers_give_no_draft(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter, kept = layers(target), prefilled(target, text)
    head = drafter.compute.target.head
    monkeypatch.setattr(drafter.compute.target, "head", lambda states: head(states) * float("inf"), raising=False)
    assert drafter.draft(Context(text, kept, 8, GREEDY)).size == 1


def test_a_draft_continues_only_as_long_as_another_forward_pays(tiny: Make) -> None:
    """With a chance of about one at each token, and a price that the third token no longer reaches."""
    target, text = tiny(LLAMA).target, prompt_ids(9)
    for price, agreement, forwards in ((0.0, 0.5, 8), (0.99, 0.5, 1), (0.2, 0.5, 2)):
        drafter, kept = layers(target, fixed=False), prefilled(target, text)
        drafter.calibration.chances = lambda found, *_: [(token, 0.5) for token, _ in found[:1]]  # type: ignore[method-assign]
        drafter._price, drafter._agreement = price, agreement
        assert max(drafter.draft(Context(text, kept, 8, GREEDY)).depth) == forwards


def test_what_is_learned_is_what_its_own_confidence_was_worth(tiny: Make) -> None:
    """The raw confidence is recorded, in its own order; recording calibrated chances would feed a calibration with itself."""
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter, kept = layers(target), prefilled(target, text)
    said = drafter._next(Context(text, kept, 8, GREEDY), text[-1], 0)
    kept.truncate(len(text) - 1)
    (_, sure), (second, less) = said[:2]
    chances = dict.fromkeys((token for token, _ in said), 0.01) | {second: 0.9}
    drafter.calibration.chances = lambda found, *_: sorted(  # type: ignore[method-assign]
        ((token, chances.get(token, 0.5)) for token, _ in found), key=lambda one: -one[1]
    )
    judged: list[tuple[float, int, int, bool]] = []
    drafter.calibration.judge = lambda *judgement: judged.append((*judgement[:3], judgement[4]))  # type: ignore[method-assign]
    tree = drafter.draft(Context(text, kept, 8, GREEDY))
    assert tree.tokens[1] == second and tree.chance is not None and tree.chance[1] == 0.9
    before = drafter._agreement
    drafter.observe(Step([second, END], NumpyHidden(torch.zeros(2, 4).numpy()), tree, [0], [1], 0.1, 1.0))
    assert judged[:2] == [(sure, 1, 0, False), (less, 1, 1, True)]
    assert {depth for _, depth, _, _ in judged} == {1, 2}, "its chain went on from the token that was likeliest"
    assert drafter._agreement != before and not drafter._levels and not drafter._chain


def test_the_price_of_a_forward_follows_the_seconds_it_sees(tiny: Make) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter, kept = layers(target, fixed=False), prefilled(target, text)
    tree = drafter.draft(Context(text, kept, 8, GREEDY))
    drafter._draft_seconds.clear()
    drafter._draft_seconds.append(0.3)
    drafter.observe(Step([1, 2], NumpyHidden(torch.zeros(2, 4).numpy()), tree, [0], [1], 0.6, 1.0))
    assert drafter._price == pytest.approx(0.3 / 0.8)
    drafter._draft_seconds.append(0.3)
    drafter._step_seconds.clear()
    drafter.observe(Step([1], NumpyHidden(torch.zeros(1, 4).numpy()), tree, [0], [1], 5.0, 1.0))
    assert drafter._price == pytest.approx(0.3), "a token costs no more than plain decoding takes for it"


@pytest.mark.slow
def test_the_probe_measures_what_drafts(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one token at once, agreement is how often the drafter's candidate of that rank is the next token."""
    model = tiny(QWEN3)
    prompt = prompt_ids(12, seed=5)
    said = stock_reply(model.stock, prompt, 20, stops=())
    monkeypatch.setattr(layer_probe, "ROWS", 1)
    for kept in ((0, 2), (1,), (0, 1, 2)):
        (found,) = finished(layer_probe.agreeing(model.target, [(prompt, said)], [kept]))
        hits = [0] * layer_probe.RANKS
        for place in range(1, len(said)):
            text = [*prompt, *said[:place]]
            tree = layers(model.target, kept).draft(Context(text, prefilled(model.target, text), 4, GREEDY))
            first = [tree.tokens[node] for node in tree.siblings[0]]
            if said[place] in first:
                hits[first.index(said[place])] += 1
        seen = [round(share * (len(said) - 1)) for share in found.shares]
        assert seen[0] == hits[0]
        assert kept != (0, 1, 2) or found.agreement == 1
        assert sum(seen) >= sum(hits), "a tree of four nodes may leave out a later rank"


def test_rows_that_are_read_at_once_are_a_draft_that_was_right_so_far(tiny: Make) -> None:
    model, prompt = tiny(QWEN3), prompt_ids(12, seed=5)
    said = stock_reply(model.stock, prompt, 9, stops=())
    (found,) = finished(layer_probe.agreeing(model.target, [(prompt, said)], [(0, 2)]))
    rows = model.target.compute.target
    states = rows.read_rows(rows.embed(said[:8]), prefilled(model.target, [*prompt, said[0]]), (0, 2))
    right = torch.as_tensor(rows.head(states)).argmax(-1) == torch.tensor(said[1:])
    assert found.agreement == pytest.approx(float(right.double().mean()), abs=1e-4)


class Scripted:
    """A scripted target: a function of the layers that are kept gives their score."""

    def __init__(self, count: int, worth: Callable[[tuple[int, ...]], float]) -> None:
        self.compute = type("C", (), {"target": type("T", (), {"sizes": type("S", (), {"num_layers": count})})})
        self.worth, self.asked = worth, []

    def agreeing(self, target, replies, subsets):
        self.asked += subsets
        for _ in subsets:
            yield MeasuringProgress(1, 1, 1.0)
        return [MeasuredLayers(tuple(kept), (self.worth(tuple(kept)),)) for kept in subsets]


def test_the_probe_removes_what_matters_least_and_of_equals_the_inner_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    indifferent = Scripted(8, lambda kept: 0.5)
    monkeypatch.setattr(layer_probe, "agreeing", indifferent.agreeing)
    done: list[float] = []
    assert [one.layers for one in layer_probe.probe(indifferent, [], done.append)] == [
        (0, 1, 2, 3, 5, 6, 7), (0, 1, 2, 5, 6, 7), (0, 1, 2, 6, 7), (0, 1, 6, 7), (0, 1, 7), (0, 7),
    ]  # fmt: skip
    assert done == sorted(done)
    assert done[-1] == 1
    even = Scripted(8, lambda kept: sum(layer % 2 == 0 for layer in kept) / 10)
    monkeypatch.setattr(layer_probe, "agreeing", even.agreeing)
    assert layer_probe.probe(even, [])[3].layers == (0, 2, 4, 6)


def test_a_deep_model_is_probed_in_the_order_of_what_mattered_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's worth is its number: once all were tried, the few worst are tried again and no other."""
    deep = Scripted(32, lambda kept: sum(kept) / 1000)
    monkeypatch.setattr(layer_probe, "agreeing", deep.agreeing)
    found = layer_probe.probe(deep, [])
    assert [len(one.layers) for one in found] == [*range(31, 7, -1)]
    assert found[-1].layers == tuple(range(24, 32))
    assert len(deep.asked) == 33 + 7 * 23


@each("count", [2, 8, 28, 30, 64, 126])
def test_a_probe_keeps_within_its_bound(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep a model is; and it still finds layers for each step down to a quarter of them."""
    scripted, texts = Scripted(count, lambda kept: sum(kept) / 10000), [([1], list(range(25)))] * 16

    def agreeing(target, replies, subsets):
        scripted.asked += [None] * (len(subsets) * layer_probe.reads_in(replies))
        for number in range(len(subsets) * layer_probe.reads_in(replies)):
            yield MeasuringProgress(number, number + 1, 0.5)
        return [MeasuredLayers(tuple(kept), (scripted.worth(tuple(kept)),)) for kept in subsets]

    monkeypatch.setattr(layer_probe, "agreeing", agreeing)
    steps = layer_probe.probing_layers(scripted, texts, most=600)
    shares = []
    while True:
        try:
            shares.append(next(steps).share)
        except StopIteration as end:
            found = end.value
            break
    assert len(scripted.asked) <= 600
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=0.1)
    kept = [len(one.layers) for one in found]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == max(1, count // 4)
