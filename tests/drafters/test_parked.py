"""Parked texts: a reply after one equals the reply of a session that reads the whole text again, with every drafter."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
import torch
from drafters.test_dflash import made as dflash
from drafters.test_dspark import made as dspark
from drafters.test_step_forms import WITH_WEIGHTS
from drafters.test_step_forms import target_of as captured
from drafting import drafting, perturbed, torch_form
from gpu_models import mtp
from native_models import native_target
from session_replies import reply
from slow_cases import cases
from tiny_models import FAMILIES, RECURRENT, VOCABULARY, Tiny, prompt_ids

from localspec.choosing.cost import ForwardCosts
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter, Step
from localspec.decoding.limits import Limits
from localspec.decoding.parked import Parked
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.merged import Merged
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.native.cache import NativeCache
from localspec.training.trainable import make_drafter

Make = Callable[..., Tiny]
LLAMA, WINDOW, RECURRING = FAMILIES[0], FAMILIES[1], next(iter(RECURRENT))
ON_CHAINS = ("none", "phrases", "draft model", "eagle3", "mtp", "parallelspec, eagle", "parallelspec, model")
KINDS = ("none", "phrases", "lookahead", "draft model", "merged", "dflash", "dspark", *WITH_WEIGHTS)
COSTS = ForwardCosts((1, 64), (0,), ((0.001, 0.064),))  # a millisecond a token
SAID = 8  # tokens of a reply
HOT = Sampling(0.9, seed=7)


def parked(budget: int = 2**30, copying: float = 1e12) -> Parked:
    return Parked(lambda held: budget, COSTS, copying)


def plain(target: Any, prompt: Sequence[int], sampling: Sampling | None = None) -> list[int]:
    """Return the text of a session that reads everything."""
    return reply(Session(target, Autoregressive(), Budget(0)), prompt, SAID, sampling)[0]


def target_of(model: Tiny, engine: str) -> Any:
    return model.target if engine == "torch" else native_target(model.path, model.stock)


def drafter_for(kind: str, target: Any, model: Tiny, path: Any) -> Drafter:
    if kind == "none":
        return Autoregressive()
    pool = PhrasePool(target.special_tokens)
    if kind == "phrases":
        return WithPhrases(Autoregressive(), pool)
    if kind == "lookahead":
        return WithPhrases(Lookahead(pool, target.special_tokens, 4, 3), pool)
    if kind == "draft model":  # the target itself, which is right, with phrases
        inner = WithPhrases(Autoregressive(), pool, read_only=True)
        return WithPhrases(DraftModel(target, VOCABULARY, inner, Budget(4, branches=target.branches)), pool)
    if kind == "dflash":
        return dflash(Tiny(model.path, model.stock, target), path)[0]
    if kind == "dspark":
        return dspark(Tiny(model.path, model.stock, target), path)[0]
    if kind == "mtp":
        return mtp(target)
    if kind == "merged":
        return Merged([drafter_for(one, target, model, path) for one in ("eagle3", "parallelspec, model")])
    torch.manual_seed(0)
    name, options = WITH_WEIGHTS[kind]
    return drafting(perturbed(make_drafter(name, torch_form(target), options), 0.1), target)


def texts(rounds: int, families: int = 3) -> Iterator[list[int]]:
    """Return prompts of conversations in turns with a common beginning; each one continues or branches."""
    chance, start = random.Random(4), prompt_ids(20, seed=99)
    so_far = [[*start, *prompt_ids(9, seed=number)] for number in range(families)]
    for turn in range(rounds):
        number = chance.randrange(families)
        text = so_far[number]
        if chance.random() < 0.3:  # another branch
            text = text[: chance.randrange(20, len(text))]
        so_far[number] = [*text, *prompt_ids(7, seed=1000 + turn)]
        yield so_far[number]


CASES = [(LLAMA, kind, "native") for kind in KINDS]
CASES += [(RECURRING, kind, "native") for kind in ON_CHAINS]
CASES += [(RECURRING, "draft model", "torch"), (WINDOW, "phrases", "torch"), (LLAMA, "eagle3", "torch")]

FAST = ((LLAMA, "phrases", "native"), (LLAMA, "draft model", "native"), (RECURRING, "mtp", "native"))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(CASES, FAST))
def test_replies_in_turns_are_those_of_sessions_that_read_everything(tiny, tmp_path, case):
    name, kind, engine = case
    model = tiny(name)
    target = target_of(model, engine)
    nodes = 0 if kind == "none" else 6
    one_text = target.cache(80).nbytes
    turns = [(prompt, HOT if number % 2 else Sampling()) for number, prompt in enumerate(texts(11))]
    fresh = [plain(target, prompt, sampling) for prompt, sampling in turns]
    for budget, copying in ((2**30, 1e12), (2**30, 1.0), (3 * one_text, 1e12), (1, 1e12)):
        drafter = drafter_for(kind, target, model, tmp_path / f"{budget} {copying}")
        session = Session(target, drafter, Budget(nodes, branches=target.branches), None, parked(budget, copying))
        assert session.parked is not None
        saved = 0
        for number, (prompt, sampling) in enumerate(turns):
            said, statistics = reply(session, prompt, SAID, sampling)
            assert said == fresh[number], (number, budget, copying)
            saved += statistics.reused_tokens
            assert session.parked.nbytes <= budget
            if nodes and number > 4 and target.branches:
                assert statistics.drafted or kind in ("phrases", "lookahead", "semi", "semi, lstm")
        assert saved > 0 if budget > 1 else True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (LLAMA, "none"),
        *(pytest.param(LLAMA, kind, marks=pytest.mark.slow) for kind in ("eagle3", "draft model")),
        pytest.param(RECURRING, "mtp", marks=pytest.mark.slow),
    ],
)
def test_a_cache_with_recordings_stays_where_it_is_and_texts_are_copied(tiny, tmp_path, recorded, name, kind):
    target = captured(tiny, name, "captured")
    model = Tiny(tiny(name).path, tiny(name).stock, target)
    nodes = 0 if kind == "none" else 6
    drafter = drafter_for(kind, target, model, tmp_path)
    session = Session(target, drafter, Budget(nodes, branches=target.branches), None, parked())
    reused, live = 0, None
    for number, prompt in enumerate(texts(10)):
        said, statistics = reply(session, prompt, SAID)
        assert said == plain(tiny(name).target, prompt), number
        reused += statistics.reused_tokens
        assert live in (None, session.cache), "it was recorded once"
        live = session.cache if session.cache.pinned else None
    assert reused > 100 and live is not None


def test_a_draft_model_follows_its_text_and_reads_it_once(tiny: Make) -> None:
    model = tiny(LLAMA)
    target = target_of(model, "native")
    drafter = DraftModel(target, VOCABULARY, Autoregressive(), Budget(0), length=4)
    session = Session(target, drafter, Budget(4), None, parked())
    one, other = prompt_ids(60, seed=1), prompt_ids(60, seed=2)
    said = {seed: reply(session, text, SAID)[0] for seed, text in enumerate((one, other))}
    read = sum(rows * count for rows, count in drafter.forwards.items())
    again = [*one, *said[0], *prompt_ids(3, seed=5)]
    _, statistics = reply(session, again, SAID)
    assert statistics.reused_tokens >= len(one) + SAID - 1 and statistics.accepted >= SAID - 2
    assert sum(rows * count for rows, count in drafter.forwards.items()) - read < 3 * SAID  # 60 would be all of it


def test_a_reply_that_was_stopped_or_failed_leaves_texts_that_can_be_continued(tiny: Make) -> None:
    model = tiny(LLAMA)
    target = target_of(model, "native")

    class Fails(Autoregressive):
        at = -1

        def observe(self, step: Step) -> None:
            self.at -= 1
            if self.at == 0:
                raise ZeroDivisionError

    drafter = Fails()
    session = Session(target, WithPhrases(drafter, PhrasePool()), Budget(6), None, parked())
    one, other = prompt_ids(40, seed=1), prompt_ids(300, seed=2)
    abandoned = []
    for at in (1, 2, 3, 4):
        for text in (one, other):
            drafter.at = at
            with suppress(ZeroDivisionError):
                list(session.generate(text, Sampling(), Limits(SAID)))
            drafter.at = -1
            events = session.generate(text[:30], Sampling(), Limits(SAID))
            list(islice(events, at))  # stopped in the prompt, or after a few tokens
            if at % 2:
                events.close()
            else:
                abandoned.append(events)  # closed after other replies began
            for prompt in (one, other, [*one, 5, 6]):
                assert reply(session, prompt, SAID)[0] == plain(target, prompt)
    for events in abandoned:
        events.close()
    assert reply(session, one, SAID)[0] == plain(target, one)


@pytest.mark.parametrize("where", ["copy", "fresh", "grow"])
def test_where_memory_runs_out_parked_texts_go_and_the_reply_is_the_same(tiny, monkeypatch, where):
    model = tiny(LLAMA)
    target = target_of(model, "native")
    session = Session(target, WithPhrases(Autoregressive(), PhrasePool()), Budget(6), None, parked())
    assert session.parked is not None
    one, other = prompt_ids(40, seed=1), prompt_ids(40, seed=2)
    for text in (one, other, one):
        reply(session, text, SAID)
    assert len(session.parked) == 2
    cache, raised = type(session.cache), []

    def short(*arguments: Any, **named: Any) -> Any:
        if raised:
            return usual(*arguments, **named)
        raised.append(True)
        raise MemoryError("There is no memory.")

    owner, method = {"copy": (cache, "copy"), "fresh": (target.model, "cache"), "grow": (cache, "reserve")}[where]
    usual = getattr(owner, method)
    monkeypatch.setattr(owner, method, short)
    prompt = [*one[:30], *prompt_ids(30, seed=7)]
    found = reply(session, prompt, SAID)[0]
    assert raised and found == plain(target, prompt)
    assert not len(session.parked)


def test_texts_in_turns_are_read_once_and_the_least_valuable_goes_first(tiny: Make) -> None:
    target = target_of(tiny(LLAMA), "native")

    def read(budget: int, prompts: Sequence[Sequence[int]]) -> list[int]:
        session = Session(target, Autoregressive(), Budget(0), None, parked(budget))
        return [reply(session, prompt, 1)[1].reused_tokens for prompt in prompts]

    long, short, third = prompt_ids(90, seed=1), prompt_ids(17, seed=2), prompt_ids(60, seed=3)
    assert read(2**30, [long, short, third, long, short, third])[3:] == [89, 16, 59]
    assert read(0, [long, short, third, long, short, third])[3:] == [0, 0, 0]
    # A text of 17 tokens takes the memory of 32. It is dropped before one of 60, though that one was parked earlier.
    room = target.cache(112).nbytes + target.cache(64).nbytes
    assert read(room, [long, short, third, short[:1], long])[4] == 89
    # A text that is the beginning of another is dropped first.
    branch = [*long[:70], *prompt_ids(20, seed=4)]
    assert read(3 * target.cache(96).nbytes, [long, branch, third, prompt_ids(90, seed=5), long])[4] >= 69


def test_a_text_that_nobody_continues_goes_at_last_however_long_it_is(tiny: Make) -> None:
    target = target_of(tiny(LLAMA), "native")
    session = Session(
        target, Autoregressive(), Budget(0), None, parked(target.cache(112).nbytes + target.cache(64).nbytes)
    )
    assert session.parked is not None
    long, kept = prompt_ids(96, seed=1), []
    reply(session, long, 1)
    for number in range(12):
        reply(session, prompt_ids(50, seed=100 + number), 1)
        kept.append(any(list(text.tokens[:96]) == long for text in session.parked._texts))
    assert kept[2] and not kept[-1]


def test_a_beginning_is_copied_where_that_is_cheaper_than_reading_it_and_its_text_stays(tiny: Make) -> None:
    target = target_of(tiny(LLAMA), "native")
    one = prompt_ids(200, seed=1)
    # Without copies the beginning is cut off where the rest of that text is short, and read where it is long.
    for shared, copying, reused in ((100, 1e12, [100, 199]), (100, 1.0, [100, 100]), (20, 1.0, [0, 199])):
        branch = [*one[:shared], *prompt_ids(20, seed=2)]
        session = Session(target, Autoregressive(), Budget(0), None, parked(copying=copying))
        reply(session, one, 1)
        found = [reply(session, prompt, 1)[1].reused_tokens for prompt in (branch, one)]
        assert found == reused
    session = Session(target, Autoregressive(), Budget(0), None, parked(copying=1.0))  # a short rest is cut off
    reply(session, one, 1)
    assert reply(session, [*one[:199], 7, 8, 9], 1)[1].reused_tokens == 199
    assert session.parked is not None and not len(session.parked)


def test_what_never_comes_again_is_soon_cut_off_and_not_copied(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat template that drops thoughts does this: each prompt continues the previous prompt, not its reply."""
    target = target_of(tiny(LLAMA), "native")
    token = target.cache(64).nbytes / 64
    session = Session(target, Autoregressive(), Budget(0), None, parked(copying=token * 60 / 0.001))
    copies, copy = [], NativeCache.copy
    monkeypatch.setattr(NativeCache, "copy", lambda *given: copies.append(1) or copy(*given))
    prompt = prompt_ids(40, seed=1)
    for turn in range(30):
        _, statistics = reply(session, prompt, SAID)
        assert not turn or statistics.reused_tokens >= len(prompt) - 6
        prompt = [*prompt, *prompt_ids(5, seed=turn)]
    assert 1 <= len(copies) <= 8


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_text_with_states_is_continued_from_the_nearest_state(tiny: Make, engine: str) -> None:
    target = target_of(tiny(RECURRING), engine)
    session = Session(target, Autoregressive(), Budget(0), None, parked())
    chance, long = random.Random(2), prompt_ids(60, seed=1)
    while len(long) < 440:  # a little at a time, so that there are states between
        long += reply(session, long, SAID)[0] + prompt_ids(9, seed=len(long))
    reused = []
    for turn in range(12):
        prompt = [*long[: chance.randrange(20, 440)], *prompt_ids(9, seed=2000 + turn)]
        said, statistics = reply(session, prompt, SAID)
        assert said == plain(target, prompt)
        reused.append(statistics.reused_tokens / (len(prompt) - 9))
    assert max(reused) < 1.05 and sum(reused) > 3, "some of it is read again, for no state is near, and not all"
