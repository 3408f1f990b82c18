"""Steps in static shapes, and their recordings: the same bits as steps computed operation by operation."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from each import each
from scripted_drafters import random_tree
from slow_cases import covering
from tiny_models import FAMILIES, RECURRENT, Tiny, prompt_ids
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from localspec.choosing.choice import StepForm
from localspec.choosing.fit import BUCKET, MOST_CHAINED, STATIC_ROWS
from localspec.decoding.compute import LowRank
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.nn.cache import KVCache
from localspec.nn.static_forward import MOST_RECORDINGS, StaticForward, visible_slots
from localspec.nn.step_logits import Contenders, StepLogits
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
PADDED = 8  # rows that six nodes are filled up to


def loaded(tiny: Make, name: str, form: StepForm = "eager", exact: bool = False) -> Target:
    target = Target.load(tiny(name).path, exact=exact)
    target.use_step_form(form)
    return target


def filled(target: Target, length: int, slots: int | None = None) -> KVCache:
    """Return a cache with random numbers everywhere, of which the first `length` slots count as committed."""
    cache = target.cache(slots or length + 80)
    cache.fill(torch.Generator().manual_seed(length))
    cache.assume(length)
    return cache


def parts(target: Target, tree: DraftTree, cache: KVCache, inner: Sequence[int] = ()) -> list[torch.Tensor]:
    output = target.forward(tree, cache, inner=inner)
    states = [] if output.inner is None else [output.inner.rows]
    return [output.logits.take(range(tree.size)).rows, output.hidden.rows, *states, cache.rows(range(tree.size))]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exact"), covering(FAMILIES, [False, True]))
def test_trees_have_the_bits_of_the_eager_form(tiny, recorded, name, exact):
    """At several lengths with one recording: a Python number inside it would stay that of the first length."""
    eager = loaded(tiny, name, exact=exact)
    eager.row_multiple = PADDED  # it pads the rows in the same way
    inner = [0, len(eager.transformer.layers)]
    for form in ("static", "captured"):
        target, before = loaded(tiny, name, form, exact), None
        for length in (1, 150, 40):
            tree = random_tree(7, nodes=5, seed=length, vocabulary=target.vocab_size)
            cache = before = filled(target, length, 256) if before is None else before
            cache.fill(torch.Generator().manual_seed(length))
            cache.assume(length)
            ours = parts(target, tree, cache, inner)
            theirs = parts(eager, tree, filled(eager, length, 256), inner)
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)), (form, length)
    assert (recorded.made, recorded.played) == (1, 1 + 3)


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
@each("form", ["static", "captured"])
def test_drafts_through_some_layers_have_the_bits_of_the_eager_form(tiny, form):
    name = FAMILIES[0]
    target, eager = loaded(tiny, name, form), loaded(tiny, name)
    adapters = None
    for length in (3, 90):
        caches = filled(target, length), filled(eager, length)
        states = []
        for model, cache in zip((target, eager), caches, strict=True):
            embeddings = model.compute.target.embed(prompt_ids(4, seed=length))
            states.append(model.compute.target.read_rows(embeddings, cache, (0, 2), adapters))
        assert torch.equal(*states)
        assert torch.equal(caches[0].rows(range(4)), caches[1].rows(range(4)))


@pytest.mark.usefixtures("recorded")
def test_states_of_a_draft_stay_when_the_next_one_is_played(tiny):
    target = loaded(tiny, FAMILIES[0], "captured")
    model, cache = target.compute.target, filled(target, 9)
    first = model.read_rows(model.embed([5, 6]), cache)
    kept = first.clone()
    model.read_rows(model.embed([7, 8]), cache)
    assert torch.equal(first, kept)


@pytest.mark.usefixtures("recorded")
def test_nan_of_an_earlier_draft_reaches_no_later_one(tiny):
    """Three rows are filled up to four: the fourth of a draft before may have been anything."""
    target, eager = loaded(tiny, FAMILIES[0], "captured"), loaded(tiny, FAMILIES[0])
    model, cache = target.compute.target, filled(target, 9)
    model.read_rows(model.embed([5, 6, 7, 8]) * float("nan"), cache)
    model.forget_rows(cache, 4, range(3))
    other = eager.compute.target
    rows = [one.read_rows(one.embed([5, 6, 7, 0])[:3], at) for one, at in ((model, cache), (other, filled(eager, 9)))]
    assert rows[0].isfinite().all()
    torch.testing.assert_close(*rows)


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
@each("sampling", [Sampling(), Sampling(0.8, seed=3)])
def test_of_a_short_prompt_the_last_row_is_answered(tiny, sampling):
    target, eager = loaded(tiny, FAMILIES[0], "captured"), loaded(tiny, FAMILIES[0])
    eager.row_multiple = PADDED
    chain = DraftTree.chain(prompt_ids(6))
    for length in (0, 30):
        ours, whole = (one.forward(chain, filled(one, length), last=one is target) for one in (target, eager))
        assert len(ours.logits) == 1 and len(ours.hidden) == 6
        assert (ours.logits.numpy() == whole.logits.numpy()[5:]).all()
        assert ours.logits.picks([length + 6], sampling)[0] == whole.logits.picks([length + 6] * 6, sampling)[5]
        assert ours.logits.argmax() == whole.logits.argmax()[5:] and ours.logits.finite() and ours.hidden.finite()


@pytest.mark.usefixtures("recorded")
def test_states_of_a_prompt_stay_when_the_next_step_is_played(tiny):
    """A drafter may hold them as they are."""
    target = loaded(tiny, FAMILIES[0], "captured")
    cache = filled(target, 9)
    first = target.forward(DraftTree.chain([5, 6]), cache, last=True, inner=[1])
    held = [first.hidden.rows.clone(), first.inner.rows.clone()]  # type: ignore[union-attr]
    target.forward(DraftTree.chain([7, 8]), cache, inner=[1])
    assert torch.equal(first.hidden.rows, held[0]) and torch.equal(first.inner.rows, held[1])  # type: ignore[union-attr]


@pytest.mark.slow
@each("name", FAMILIES[:2])
@each("size", [1, 2, 3, 9, 64])
def test_rows_are_filled_up_to_a_power_of_two_and_given_back_as_they_were(tiny, size, name):
    target, eager = loaded(tiny, name, "static"), loaded(tiny, name)
    eager.row_multiple = next(rows for rows in STATIC_ROWS if rows >= size)
    tree = random_tree(7, nodes=size - 1, seed=size, deep=0.9)
    both = [parts(one, tree, filled(one, 30)) for one in (target, eager)]
    assert all(len(one) == tree.size for one in both[0])
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


def test_rows_are_filled_up_to_what_exactness_asks_for(tiny):
    target = loaded(tiny, FAMILIES[0], "static")
    target.row_multiple = 16
    cache = filled(target, 20, 600)
    slots = cache.slots_of(0).clone()
    target.forward(DraftTree.chain([5]), cache)
    changed = (cache.slots_of(0) != slots).any(-1).any(0).any(0).nonzero().flatten().tolist()
    assert changed == list(range(20, 36))


def test_what_has_no_static_shape_is_read_as_before(tiny):
    target = loaded(tiny, FAMILIES[0], "static")
    cache = target.cache(200)
    assert not StaticForward.can_read(cache, STATIC_ROWS[-1] + 1) and StaticForward.can_read(cache, STATIC_ROWS[-1])
    eager = loaded(tiny, FAMILIES[0])
    chain = DraftTree.chain(prompt_ids(70))
    both = [parts(one, chain, filled(one, 10)) for one in (target, eager)]
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


def test_after_states_few_rows_have_a_static_shape(tiny):
    target = loaded(tiny, next(iter(RECURRENT)), "static")
    cache = target.cache(200)
    assert StaticForward.can_read(cache, MOST_CHAINED) and not StaticForward.can_read(cache, MOST_CHAINED + 1)
    for rows in (1, MOST_CHAINED, MOST_CHAINED + 1, 60):
        logits = target.forward(DraftTree.chain(range(rows)), cache).logits
        assert isinstance(logits, StepLogits) is (rows <= MOST_CHAINED) and logits.finite()


def test_a_text_grows_through_few_shapes():
    cache = KVCache([(1, 1)], 40_000, torch.float32, "cpu")
    seen: dict[int, int] = {}
    for length in range(0, 32_768, 64):
        cache.assume(length)
        visible = visible_slots(cache, 16)
        assert length + 16 <= visible <= max(BUCKET, 1.25 * (length + 16 + BUCKET)) and visible % BUCKET == 0
        seen[visible] = length
    assert len(seen) < 32
    cache.assume(40_000 - 16)
    assert visible_slots(cache, 16) <= cache.capacity


def test_recordings_end_with_the_slots_that_they_are_of(tiny, recorded):
    target = loaded(tiny, FAMILIES[0], "captured")
    eager = loaded(tiny, FAMILIES[0])
    cache, theirs = filled(target, 10, 200), filled(eager, 10, 200)
    for one, at in ((target, cache), (eager, theirs)):
        for length in (10, 300):
            at.reserve(length + 20)
            at.assume(length)
            output = one.forward(DraftTree.chain([5]), at)
        if one is target:
            ours = output.logits.numpy().copy()
    assert recorded.made == 2 and len(cache.recordings) == 1
    torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(output.logits.numpy()))


@pytest.mark.slow
def test_only_this_many_recordings_are_kept(tiny, recorded):
    target = loaded(tiny, FAMILIES[0], "captured")
    model, cache = target.compute.target, filled(target, 10, 200)
    every = [(*layers,) for layers in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])]
    for rows in (1, 2, 4):
        for layers in every:
            model.read_rows(model.embed([5] * rows), cache, layers)
        model.read_rows(model.embed([5]), cache, every[1])
    assert recorded.made == 21 and len(cache.recordings) == MOST_RECORDINGS
    model.read_rows(model.embed([5, 5]), cache, every[0])
    assert recorded.made == 21, "the latest are kept"
    model.read_rows(model.embed([5]), cache, every[1])
    assert recorded.made == 21, "this one was played lately, though it was among the first"
    model.read_rows(model.embed([5]), cache, every[0])
    assert recorded.made == 22, "the first one had gone"


def test_what_must_wait_cannot_be_recorded(tiny, recorded, monkeypatch):
    target = loaded(tiny, FAMILIES[0], "captured")
    head = target.transformer.head
    monkeypatch.setattr(target.transformer, "head", lambda states: head(states) * float(states.amax().isfinite()))
    found = target.forward(DraftTree.chain([5]), filled(target, 10)).logits.numpy()
    assert recorded.made == 1 and "not permitted" in str(target.step_trouble)
    plain = loaded(tiny, FAMILIES[0], "static")
    assert (found == plain.forward(DraftTree.chain([5]), filled(plain, 10)).logits.numpy()).all()
    target.forward(DraftTree.chain([5, 6]), filled(target, 10))
    assert recorded.made == 1, "it is not tried again and again"


def test_where_there_is_no_memory_for_a_recording_a_step_does_without(tiny, recorded, monkeypatch):
    target, full = loaded(tiny, FAMILIES[0], "captured"), False
    cache = filled(target, 10)
    head = target.transformer.head

    def short(states: torch.Tensor) -> torch.Tensor:
        if full and any(isinstance(mode, TorchDispatchMode) for mode in _get_current_dispatch_mode_stack()):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return head(states)

    monkeypatch.setattr(target.transformer, "head", short)
    target.forward(DraftTree.chain([5]), cache)
    full = True
    assert target.forward(DraftTree.chain([5, 6]), cache).logits.finite()
    assert not cache.recordings and target.step_trouble is None and recorded.played == 2
    full, made = False, recorded.made
    target.forward(DraftTree.chain([5, 6]), cache)
    assert recorded.made == made, "what did not fit is not tried again and again"
    target.forward(DraftTree.chain([5]), cache)
    assert recorded.made > made and len(cache.recordings) == 1


@each("sampling, looks", [(Sampling(), 1), (Sampling(1.0, top_p=0.9, seed=4), 1), (Sampling(0.8, seed=3), 3)])
def test_one_look_brings_all_that_a_step_asks_for(tiny, monkeypatch, sampling, looks):
    """Except noise for a whole vocabulary, which is made only for the requested rows."""
    target, copies = loaded(tiny, FAMILIES[0], "static"), 0
    cpu = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal copies
        copies += 1
        return cpu(tensor)

    output = target.forward(random_tree(7, nodes=5, seed=1), filled(target, 30))
    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    picks = output.logits.picks([30] * 6, sampling)
    likeliest = output.logits.argmax()
    ours = [picks[row] for row in (0, 4)]
    assert output.hidden.finite() and output.hidden.take([0, 2]).finite()
    assert output.logits.finite() and copies == looks
    monkeypatch.undo()
    eager = loaded(tiny, FAMILIES[0])
    eager.row_multiple = PADDED
    plain = eager.forward(random_tree(7, nodes=5, seed=1), filled(eager, 30))
    theirs = plain.logits.picks([30] * 6, sampling)
    assert ours == [theirs[row] for row in (0, 4)]
    assert [picks[row] for row in range(6)] == [theirs[row] for row in range(6)]
    assert likeliest == plain.logits.argmax()


@pytest.mark.slow
def test_finding_the_pick_of_a_row_is_recorded(tiny, recorded):
    target, eager = loaded(tiny, FAMILIES[0], "captured"), loaded(tiny, FAMILIES[0])
    eager.row_multiple = PADDED
    tree = random_tree(7, nodes=5, seed=1)
    for sampling, anew in (
        (Sampling(0.8, seed=3), True), (Sampling(0.8, seed=4), False), (Sampling(0.8, min_p=0.3, seed=4), True),
        (Sampling(1.3, min_p=0.3, seed=4), True), (Sampling(1.3, min_p=0.02, seed=4), True),
    ):  # fmt: skip
        ours, theirs = (
            one.forward(tree, filled(one, 30)).logits.picks([30, 31, 31, 32, 33, 34], sampling)
            for one in (target, eager)
        )
        made = recorded.made
        assert [ours[row] for row in range(6)] == [theirs[row] for row in range(6)]
        assert recorded.made == made + anew
        static = target.compute.target.static
        assert static is not None and len(static._finders) == 1, "who samples otherwise seldom goes back"
    assert target.step_trouble is None


@pytest.mark.slow
def test_a_pick_that_is_not_certain_is_that_of_its_own_position(tiny, monkeypatch):
    target, eager = loaded(tiny, FAMILIES[0], "static"), loaded(tiny, FAMILIES[0])
    eager.row_multiple = PADDED
    monkeypatch.setattr(Contenders, "pick", lambda *given: None)
    tree = random_tree(7, nodes=5, seed=1)
    for sampling in (Sampling(0.9, seed=3), Sampling(0.9, top_p=0.8, seed=3)):
        ours, theirs = (
            one.forward(tree, filled(one, 30)).logits.picks([30, 31, 31, 32, 33, 34], sampling)
            for one in (target, eager)
        )
        assert [ours[row] for row in range(6)] == [theirs[row] for row in range(6)]


def test_nan_logits_are_reported_even_if_states_are_finite(tiny, monkeypatch):
    target = loaded(tiny, FAMILIES[0], "static")
    head = target.transformer.head
    monkeypatch.setattr(
        target.transformer, "head", lambda states: head(states).index_fill(1, torch.tensor([7]), float("inf"))
    )
    output = target.forward(DraftTree.chain([5, 6]), filled(target, 30))
    assert not output.logits.finite() and output.hidden.finite()


@pytest.mark.slow
def test_there_is_room_for_the_rows_that_are_filled_up(tiny):
    target, eager = loaded(tiny, FAMILIES[0], "static"), loaded(tiny, FAMILIES[0])
    eager.row_multiple = PADDED
    for length in (247, 248, 251, 255):
        tree = DraftTree.chain([5, 6, 7, 8, 9][: 256 - length])
        both = [parts(one, tree, filled(one, length, 256)) for one in (target, eager)]
        torch.testing.assert_close(*both)


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
def test_forwards_of_as_many_rows_share_no_results_that_differ_in_kind(tiny):
    target, eager = loaded(tiny, FAMILIES[0], "captured"), loaded(tiny, FAMILIES[0])
    at, theirs = filled(target, 30), filled(eager, 30)
    for _ in range(2):
        for inner in ([], [1], [0, 2], []):
            both = [
                parts(one, DraftTree([5, 6], [-1, 0]), cache, inner) for one, cache in ((target, at), (eager, theirs))
            ]
            torch.testing.assert_close(*both)
        for layers in ((0,), (1, 2)):
            drafts = [
                one.compute.target.read_rows(one.compute.target.embed([5, 6]), cache, layers)
                for one, cache in ((target, at), (eager, theirs))
            ]
            torch.testing.assert_close(*drafts)


@pytest.mark.slow
@pytest.mark.usefixtures("recorded")
def test_each_drafts_adapters_are_those_that_it_brings(tiny):
    target, eager = loaded(tiny, FAMILIES[0], "captured"), loaded(tiny, FAMILIES[0])
    width = target.compute.target.sizes.hidden_size
    chance = np.random.default_rng(0)
    out = target.transformer.layers[0].o_proj.shape
    lows = [
        LowRank(*(chance.normal(size=size).astype(np.float32) for size in ((2, out[1]), (out[0], 2))), 1.0)
        for _ in range(2)
    ]
    at, theirs, made = filled(target, 30), filled(eager, 30), []
    for low in (lows[0], lows[1], None, lows[0]):
        drafts = []
        for one, cache in ((target, at), (eager, theirs)):
            model = one.compute.target
            adapters = None if low is None else model.adapters({0: {"o_proj": low}})
            drafts.append(model.read_rows(model.embed([5, 6]), cache, (0, 1), adapters))
        torch.testing.assert_close(*drafts)
        made.append(drafts[0])
    assert width and not torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_the_time_of_a_recording_is_reported(tiny, recorded):
    target = loaded(tiny, FAMILIES[0], "captured")
    cache = filled(target, 10)
    first, second = (target.forward(DraftTree.chain([5]), cache).once_seconds for _ in range(2))
    assert first > 0.0 == second and recorded.made == 1


def test_nan_states_are_reported_row_by_row(tiny, monkeypatch):
    target = loaded(tiny, FAMILIES[0], "static")
    norm = target.transformer.norm
    forward = target.transformer.forward

    def damaged(*given: object, **named: object) -> torch.Tensor:
        hidden: torch.Tensor = forward(*given, **named)
        return hidden.index_fill(1, torch.tensor([2]), float("nan"))

    assert norm is not None
    monkeypatch.setattr(target.transformer, "forward", damaged)
    hidden = target.forward(DraftTree.chain([5, 6, 7]), filled(target, 30)).hidden
    assert not hidden.finite() and hidden.take([0, 1]).finite() and not hidden.take([1, 2]).finite()
    assert hidden.take([0, 2]).take([0]).finite() and not hidden.take([0, 2]).take([1]).finite()


def test_rows_that_would_be_filled_up_beyond_what_states_take_are_read_as_they_are(tiny):
    eager, target = (loaded(tiny, next(iter(RECURRENT)), form) for form in ("eager", "static"))
    logits = []
    for one in (eager, target):
        one.row_multiple, cache = 2 * MOST_CHAINED, one.cache(100)
        for tokens in ([5, 6, 7], [8]):
            logits.append(one.forward(DraftTree.chain(tokens), cache).logits.numpy())
            cache.keep(range(len(tokens)))
    assert (logits[0] == logits[2]).all() and (logits[1] == logits[3]).all()
