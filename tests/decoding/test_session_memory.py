"""A reply that runs out of memory continues with less, token for token the same, or ends and leaves a valid session."""

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from each import each
from golden import matching, wording
from scripted_drafters import Breaking, OffChain, Oracle
from session_replies import reply
from slow_cases import covering
from tiny_models import Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import SMALL_CHUNK, Limits, Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import DoesNotFit
from localspec.events import Prefill
from localspec.nn.cache import KVCache
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
Full = Callable[[int, int], bool]  # (calls so far, this one included; rows of this one): whether memory runs out
NODES, NAME, COUNT = 8, "qwen3-grouped-mixed-window-wide-heads", 30
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


class Short:
    """A target that runs out of memory when `full` says so; `rows` records each forward."""

    def __init__(self, target: Target, full: Full, error: Exception = ERRORS[0]) -> None:
        self.target, self.full, self.error = copy.copy(target), full, error
        self.target.stop_tokens = frozenset()
        self.rows: list[int] = []
        self.target.forward = self._forward

    def _forward(self, tree: DraftTree, *more: Any, **named: Any) -> Any:
        self.rows.append(tree.size)
        if self.full(len(self.rows), tree.size):
            raise self.error
        return Target.forward(self.target, tree, *more, **named)


def never(calls: int, rows: int) -> bool:
    return False


def drafters(target: Target, text: Sequence[int]) -> list[Drafter]:
    return [Oracle(text), OffChain(text), WithPhrases(Oracle(text), PhrasePool(target.special_tokens))]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "call", "drafter"), covering(ERRORS, [3, 2, 5], [2, 0, 1]), ids=str)
def test_a_step_that_does_not_fit_is_taken_without_a_tree_and_so_are_later_ones(tiny, error, call, drafter):
    model, prompt = tiny(NAME), prompt_ids(20, seed=1)
    text = stock_reply(model.stock, prompt, COUNT, stops=())
    short = Short(model.target, lambda calls, rows: calls == call, error)
    session = Session(short.target, drafters(short.target, prompt + text)[drafter], Budget(NODES))
    ids, statistics = reply(session, prompt, COUNT)
    assert ids == text
    assert short.rows[call - 1] > 1 and set(short.rows[call:]) == {1}, "the tree was there, and none came after it"
    assert statistics.off_reason is not None and "memory" in statistics.off_reason
    short.full, before = never, len(short.rows)
    again, statistics = reply(session, prompt, COUNT)
    assert (again, statistics.off_reason) == (text, None)
    assert max(short.rows[before + 1 :]) > 1, "the next reply tries trees again"


def test_speculation_that_was_paused_does_not_come_back_after_memory_ran_out() -> None:
    class Free:
        def at(self, rows: int, context: int) -> float:
            return 1.0

    budget, tree = Budget(NODES, Free()), DraftTree.chain([1, 2])
    budget.stop("memory ran out")
    for _ in range(2000):
        budget.prune(tree.subtree([0]), 10)
        assert (budget.nodes, budget.off_reason) == (0, wording("memory_ran_out"))
    budget.begin()
    assert (budget.nodes, budget.off_reason) == (NODES, None)


@pytest.mark.slow
@each("temperature", [0.0, 1.0])
def test_where_no_tree_ever_fits_the_text_is_that_of_plain_decoding(tiny: Make, temperature: float) -> None:
    model, prompt = tiny(NAME), prompt_ids(20, seed=2)
    sampling = Sampling(temperature=temperature, seed=7)
    plain = Short(model.target, never)
    text, _ = reply(Session(plain.target, Autoregressive(), Budget(0)), prompt, COUNT, sampling)
    short = Short(model.target, lambda calls, rows: calls > 1 and rows > 1)
    session = Session(short.target, Oracle(prompt + text), Budget(NODES))
    assert reply(session, prompt, COUNT, sampling)[0] == text


@pytest.mark.slow
@each("method", ["observe before", "observe behind", "draft"])
@each("call", [1, 2, 3])
def test_a_drafter_whose_memory_runs_out_costs_no_token(tiny: Make, method: str, call: int) -> None:
    """The oracle asserts that it observes each committed token once, and the end of the cache."""
    model, prompt = tiny(NAME), prompt_ids(20, seed=3)
    text = stock_reply(model.stock, prompt, COUNT, stops=())
    short = Short(model.target, never)
    session = Session(
        short.target, Breaking(prompt + text, method=method, call=call, error=MemoryError()), Budget(NODES)
    )
    assert reply(session, prompt, COUNT)[0] == text
    assert reply(session, prompt, COUNT)[0] == text


@pytest.mark.slow
@pytest.mark.parametrize("call", [2, 4])
def test_a_step_that_never_fits_ends_the_reply_and_leaves_the_session_whole(tiny: Make, call: int) -> None:
    model, first = tiny(NAME), prompt_ids(20, seed=4)
    answer = stock_reply(model.stock, first, 6, stops=())
    second = [*first, *answer, 7, 8, 9]
    text = stock_reply(model.stock, second, COUNT, stops=())
    short = Short(model.target, never)
    session = Session(short.target, Oracle(first + answer, second + text), Budget(NODES))
    assert reply(session, first, 6)[0] == answer
    begun = len(short.rows)
    short.full = lambda calls, rows: calls - begun >= call
    with pytest.raises(DoesNotFit, match=f"{matching('memory_of_cpu')}.*--context.*--quantize") as raised:
        list(session.generate(second, Sampling(), Limits(max_tokens=COUNT)))
    assert raised.value.exit_code == 4
    assert len(short.rows) - begun == call + 1, "tried once more, and no more"
    assert session.tokens[: len(second)] == second, "the turns before are kept"
    assert session.tokens == (second + text)[: len(session.tokens)] and session.statistics is not None
    assert session.cache.length == len(session.tokens) - 1
    short.full = never
    ids, statistics = reply(session, second, COUNT)
    assert ids == text
    assert statistics.reused_tokens == len(second) - 1


def test_another_error_is_not_taken_for_it(tiny: Make) -> None:
    short = Short(tiny(NAME).target, lambda calls, rows: calls == 3, RuntimeError("a bug"))
    session = Session(short.target, Autoregressive(), Budget(0))
    with pytest.raises(RuntimeError, match="a bug"):
        list(session.generate(prompt_ids(20), Sampling(), Limits(max_tokens=COUNT)))
    assert len(short.rows) == 3


@pytest.mark.slow
def test_what_the_error_held_is_free_when_the_step_is_tried_again(tiny: Make) -> None:
    model, prompt = tiny(NAME), prompt_ids(20, seed=5)
    held: list[weakref.ref[torch.Tensor]] = []

    def full(calls: int, rows: int) -> bool:
        large = torch.zeros(3)
        if calls == 3:
            held.append(weakref.ref(large))
            raise MemoryError
        if calls == 4:
            assert held[0]() is None, "the frames of the error are still there"
        return False

    text, _ = reply(Session(Short(model.target, full).target, Autoregressive(), Budget(0)), prompt, COUNT)
    assert len(held) == 1 and text == stock_reply(model.stock, prompt, COUNT, stops=())


@pytest.mark.slow
def test_a_prompt_is_read_in_smaller_chunks_where_large_ones_do_not_fit(tiny: Make) -> None:
    model, prompt = tiny(NAME), prompt_ids(300, seed=6)
    short = Short(model.target, lambda calls, rows: rows > SMALL_CHUNK)
    text = stock_reply(model.stock, prompt, 12, stops=())
    session = Session(short.target, Oracle(prompt + text), Budget(NODES))
    *events, done = session.generate(prompt, Sampling(), Limits(max_tokens=12))
    assert list(done.statistics.token_ids) == text
    assert short.rows[:4] == [300, SMALL_CHUNK, SMALL_CHUNK, 300 - 2 * SMALL_CHUNK]
    progress = [event.done for event in events if isinstance(event, Prefill)]
    assert progress == [0, SMALL_CHUNK, 2 * SMALL_CHUNK, 300]
    assert done.statistics.off_reason is None, "drafts may still fit"


@pytest.mark.slow
@pytest.mark.parametrize("fits", [0, 1])
def test_a_prompt_that_does_not_fit_leaves_what_was_read_and_the_turns_before(tiny: Make, fits: int) -> None:
    model, first = tiny(NAME), prompt_ids(20, seed=7)
    answer = stock_reply(model.stock, first, 6, stops=())
    second = [*first, *answer, *prompt_ids(200, seed=8)]
    short = Short(model.target, never)
    session = Session(short.target, Oracle(first + answer), Budget(NODES))
    assert reply(session, first, 6)[0] == answer
    begun = len(short.rows)
    short.full = lambda calls, rows: rows > SMALL_CHUNK or calls - begun > 1 + fits
    with pytest.raises(DoesNotFit, match=rf"{len(second)} tokens"):
        list(session.generate(second, Sampling(), Limits(max_tokens=COUNT)))
    assert session.tokens == second[: 25 + fits * SMALL_CHUNK], "the last token of a reply was never in the cache"
    short.full = never
    assert reply(session, second, 12)[0] == stock_reply(model.stock, second, 12, stops=())


def test_a_cache_without_spare_grows_by_what_is_needed() -> None:
    def grown(**named: bool) -> int:
        cache = KVCache([(1, 4)], 1024, torch.float32, torch.device("cpu"))
        cache.reserve(1025, **named)
        return cache.capacity

    assert (grown(), grown(spare=False)) == (1536, 1280)


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 2])
def test_a_cache_that_cannot_grow_at_first_or_not_at_all(tiny, monkeypatch, failures):
    model, prompt = tiny(NAME), prompt_ids(240, seed=9)
    text = stock_reply(model.stock, prompt, COUNT, stops=())
    short = Short(model.target, never)
    session, spares = Session(short.target, Oracle(prompt + text), Budget(NODES)), []
    reserve = KVCache.reserve

    def limited(cache: KVCache, slots: int, spare: bool = True) -> None:
        if slots > cache.capacity > 0:
            spares.append(spare)
            if len(spares) <= failures:
                raise ERRORS[0]
        reserve(cache, slots, spare)

    monkeypatch.setattr(KVCache, "reserve", limited)
    if failures == 1:
        assert reply(session, prompt, COUNT)[0] == text
    else:
        with pytest.raises(DoesNotFit):
            list(session.generate(prompt, Sampling(), Limits(max_tokens=COUNT)))
        assert reply(session, prompt, COUNT)[0] == text
    assert spares[:2] == [True, False]
