"""The measurements that an engine makes of its model on this machine, and when it repeats them."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import matching, wording
from measured_at_once import at_once

import localspec
from localspec.choosing import measure
from localspec.choosing.choice import Choice, LoadSpec
from localspec.choosing.choose import choose
from localspec.choosing.cost import Estimate, ForwardCosts
from localspec.choosing.measure import REPLIES
from localspec.choosing.plans import AUTO_NODES
from localspec.config import Settings
from localspec.decoding.exactness import Exactness
from localspec.decoding.limits import Limits
from localspec.decoding.measuring import MeasuringProgress
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.ouroboros_tuning import starting
from localspec.engine import assemble, model_profile
from localspec.engine import engine as engine_module
from localspec.engine.engine import Engine
from localspec.errors import UsageMistake
from localspec.events import TUNING, Done, Reporter
from localspec.machine import hardware, machine
from localspec.models.registry import TargetCard
from localspec.serving.loaded import reconsidered
from localspec.store.database import StoreTrouble

CARD = TargetCard("demo", Path(localspec.__file__).parent / "demo", None, "")
COSTS = ForwardCosts((1, 2, 64), (256,), ((1.0, 1.1, 5.0),))


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """Return the list of measurements, in order; both kinds are simulated, and no other program runs.

    The CPU is simulated too, because the choice before any measurement depends on its speed.
    """
    done: list[str] = []

    def exactness(choice: LoadSpec, target: object, widest: int) -> Exactness:
        done.append(f"exactness {widest}")
        exact = choice.exact
        return Exactness(bitwise=exact, widest=widest, multiple=4 if exact else 1, largest=0.0 if exact else 0.25)

    def costs(target: object) -> ForwardCosts:
        done.append("costs")
        return COSTS

    monkeypatch.setattr(model_profile, "checking_exactness", at_once(exactness))
    monkeypatch.setattr(model_profile, "timing_forwards", at_once(costs))
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: hardware.physical_cores())
    device = machine._device
    like = {"bandwidth": 15e9, "cores": 2, "capability": "avx2"}
    monkeypatch.setattr(machine, "_device", lambda *found: replace(device(*found), **like))
    return done


@pytest.fixture
def no_small_model(monkeypatch) -> None:
    """Let no small model draft, because the acceptance of a published pair would be expected of it."""
    monkeypatch.setattr("localspec.models.model.default_draft", lambda card, cards: (None, ""))


def measured_engine(choice: Choice, **more: Any) -> Engine:
    """Return an engine with all measurements done."""
    return Engine(choice, measured=True, **more)


def choice(**settings) -> Choice:
    return choose(CARD, Settings(**{"drafter": "phrases"} | settings))


@pytest.mark.slow
def test_what_was_measured_once_is_not_measured_again(measured, store):
    for _ in range(2):
        engine = measured_engine(choice(), store=store)
        assert engine.costs == COSTS and not engine.exactness.bitwise
    assert measured == [f"exactness {AUTO_NODES + 1}", "costs"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_small_model")
def test_nothing_is_measured_before_the_first_reply(measured, store, tmp_path):
    """The first reply drafts by estimates; the measurements after it are used from then on."""
    shutil.copytree(CARD.path, tmp_path / "bare", ignore=shutil.ignore_patterns("drafters"))
    bare = replace(CARD, path=tmp_path / "bare")
    engine = Engine.open(Settings(temperature=0.0), bare, store=store)
    assert engine.choice.drafter == "phrases"
    *_, done = engine.chat([{"role": "user", "content": "Who are you?"}], Sampling(), Limits(20))
    assert measured == []
    assert isinstance(engine.costs, Estimate)
    assert engine.exactness.word("exact") == engine.exactness.label("exact") == "unchecked"
    stages = list(engine.measure())
    assert measured == [f"exactness {AUTO_NODES + 1}", "costs"]
    assert stages[0] == wording("checking_drafts_leave_text")
    assert wording("timing_model_once_1_1_about_1_s") in stages
    assert engine.costs == COSTS
    assert engine.exactness.word("exact") == "numerical"
    *_, again = engine.chat([{"role": "user", "content": "Who are you?"}], Sampling(), Limits(20))
    assert again.statistics.token_ids == done.statistics.token_ids
    assert list(engine.measure()) == [], "once is enough"
    assert list(Engine.open(Settings(temperature=0.0), bare, store=store).measure()) == []


@pytest.mark.slow
def test_measuring_continues_where_it_was_paused(measured, store, monkeypatch):
    def in_steps(target):
        for step in range(4):
            measured.append(f"step {step}")
            yield MeasuringProgress(step + 1, 4, (step + 1) / 4)
        return COSTS

    monkeypatch.setattr(model_profile, "timing_forwards", in_steps)
    engine = Engine(choice(), store=store)
    for stage in engine.measure():
        if "timing" in stage and "2 of 4" in stage:
            break
    for _ in engine.chat([{"role": "user", "content": "a"}], Sampling(), Limits(3)):
        pass
    assert isinstance(engine.costs, Estimate), "half a measurement does not count"
    for _ in engine.measure():
        pass
    assert measured == [f"exactness {AUTO_NODES + 1}", *(f"step {step}" for step in range(4))]
    assert engine.costs == COSTS


@pytest.mark.slow
def test_what_cannot_be_measured_costs_a_sentence(measured, store, monkeypatch):
    def fail(*_: object) -> ForwardCosts:
        raise MemoryError("no room")

    monkeypatch.setattr(model_profile, "timing_forwards", at_once(fail))
    told: list[str] = []
    engine = Engine(choice(), store=store, reporter=Reporter(told.append))
    for _ in engine.measure():
        pass
    assert told == ["timing this model failed (no room); estimates are used."]
    assert isinstance(engine.costs, Estimate)


@pytest.mark.slow
def test_exact_checks_first_and_fills_rows_up_to_what_was_found(measured, store):
    for _ in range(2):
        engine = Engine(choice(exact=True), store=store)
        assert engine.exactness.word("exact") == "bitwise" and engine.target.row_multiple == 4
    assert measured == [f"exactness {AUTO_NODES + 1}"]


@pytest.mark.slow
def test_another_precision_form_or_context_is_measured_by_itself(measured, store):
    for other in ({}, {"dtype": "bf16"}, {"quantize": "int4"}, {"exact": True}, {"context": 512}):
        measured.clear()
        engine = measured_engine(choice(**other), store=store)
        assert measured == [f"exactness {AUTO_NODES + 1}", "costs"], other
        assert engine.target.row_multiple == (4 if "exact" in other else 1)


@pytest.mark.slow
def test_another_torch_or_processor_is_measured_by_itself(measured, store, monkeypatch):
    measured_engine(choice(), store=store)
    monkeypatch.setattr(measure, "versions", lambda device: "another")
    measured_engine(choice(), store=store)
    assert len(measured) == 4


@pytest.mark.slow
def test_a_wider_tree_than_was_tried_is_tried(measured, store):
    for nodes in (8, AUTO_NODES, 40, 20):
        measured_engine(choice(exact=True, draft_max=nodes), store=store)
    assert measured == [f"exactness {AUTO_NODES + 1}", "exactness 41"]


@pytest.mark.slow
def test_a_number_of_nodes_needs_no_costs_and_plain_decoding_neither(measured):
    for settings in ({"draft_max": 8}, {"drafter": "none"}):
        assert measured_engine(choice(**settings)).costs is None
    assert "costs" not in measured


@pytest.mark.slow
@pytest.mark.usefixtures("no_small_model")
def test_a_long_running_engine_chooses_its_drafter_again_on_a_quiet_machine(measured, store, monkeypatch):
    """Measured next to busy programs only phrases were tried; measured later, on a quiet machine, more drafters are."""
    cores, costs = hardware.physical_cores(), {"now": ForwardCosts((1, 2, 64), (256,), ((1e-2, 9e-2, 9e-1),))}
    timed = at_once(lambda target: measured.append("costs") or costs["now"])
    monkeypatch.setattr(model_profile, "timing_forwards", timed)
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: cores - 1 or 2)
    settings = Settings(drafter="auto", temperature=0.0)
    measured_engine(choice(), store=store)  # the cost of a row is known, as if from a busy moment
    engine = Engine.open(settings, CARD, store=store)
    assert engine.choice.drafter == "phrases", "which cost nothing until they match"
    assert reconsidered(engine, settings, store, Reporter()) is engine, "as long as it is busy"
    costs["now"] = COSTS
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: cores)
    assert reconsidered(engine, Settings(drafter="none"), store, Reporter()) is engine, "somebody named it"
    measured.clear()
    found = reconsidered(engine, settings, store, Reporter())
    assert measured == ["costs"]
    assert (
        found.choice.drafter not in ("none", "phrases")
        and found.target is engine.target
        and found.saved_phrases is not None
    )
    *_, done = found.chat([{"role": "user", "content": "Who are you?"}], found.sampling(settings), Limits(5))
    assert isinstance(done, Done)
    assert reconsidered(found, settings, store, Reporter()) is found


@pytest.mark.slow
@pytest.mark.usefixtures("no_small_model")
def test_a_long_life_says_how_fast_it_is_by_what_is_known_now(measured, store, monkeypatch, tmp_path):
    shutil.copytree(CARD.path, tmp_path / "bare", ignore=shutil.ignore_patterns("drafters"))
    bare, settings, cores = (
        replace(CARD, path=tmp_path / "bare"),
        Settings(temperature=0.0),
        hardware.physical_cores(),
    )
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: cores - 1 or 2)
    engine = Engine.open(settings, bare, store=store)
    assert list(engine.measure()) and engine.costs == COSTS, "what a busy moment gave serves this process"
    assert reconsidered(engine, settings, store, Reporter()) is engine and engine.profile.untimed
    promised = engine.choice.tokens_per_second
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: cores)
    slow = ForwardCosts((1, 2, 64), (256,), ((9.0, 9.9, 45.0),))
    monkeypatch.setattr(model_profile, "timing_forwards", at_once(lambda target: slow))
    assert reconsidered(engine, settings, store, Reporter()) is engine
    assert engine.costs == slow and not engine.profile.untimed, "and does not outlive it"
    assert engine.choice.tokens_per_second < 0.2 < promised


@pytest.mark.slow
def test_a_search_begins_with_the_phrases_of_earlier_sessions(measured, store, tmp_path, monkeypatch):
    """A reply begins with them as well; otherwise phrases would seem less useful than they are."""
    shutil.copytree(CARD.path, tmp_path / "pair", ignore=shutil.ignore_patterns("drafters"))
    choice = choose(replace(CARD, path=tmp_path / "pair"), Settings(drafter="ouroboros"))
    readers, own = [], assemble.pool_of
    monkeypatch.setattr(assemble, "pool_of", lambda *given: readers.append(given[3]) or own(*given))
    searched = at_once(lambda build, *_: build(Hyperparameters()) and Hyperparameters())
    monkeypatch.setattr(assemble, "searching", searched)
    engine = Engine(choice, store=store, tune=True)
    assert readers and all(reader == engine.saved_phrases.read for reader in readers)
    readers.clear()
    Engine(choice, store=store, phrases="off", tune=True)
    assert readers and not any(readers)


@pytest.mark.slow
def test_a_pair_is_tuned_after_its_first_reply_while_nobody_waits(measured, store, tmp_path, monkeypatch):
    """The tuning is limited in count and time; its result is used from then on, also later, and changes no text."""
    shutil.copytree(CARD.path, tmp_path / "pair", ignore=shutil.ignore_patterns("drafters"))
    choice = choose(replace(CARD, path=tmp_path / "pair"), Settings(drafter="ouroboros"))
    found, searched = Hyperparameters(3, 0, 5, 1), []

    def searching(build, workload, names):
        searched.append(names)
        for done in range(4):
            yield MeasuringProgress(done, 4, (done + 0.5) / 4)
        return found

    def said(engine):
        *_, done = engine.chat([{"role": "user", "content": "Who are you?"}], Sampling(), Limits(30))
        return done.statistics.token_ids

    monkeypatch.setattr(assemble, "searching", searching)
    monkeypatch.setattr("localspec.engine.model_profile.duration", lambda seconds: "3 s")
    engine = Engine(choice, store=store)
    usual, text = engine.hyperparameters, said(engine)
    assert usual == starting(engine.draft_model.costs) and not searched
    for stage in engine.measure():
        if stage == f"{TUNING}: 1 of 4, about 3 s left":
            break
    assert said(engine) == text and engine.hyperparameters == usual, "half a search finds nothing"
    assert [*engine.measure()][-1] == f"{TUNING}: 3 of 4, about 3 s left"
    assert engine.hyperparameters == found != usual and engine.session.drafter.inner.length == 3
    assert engine.pool.tokens == engine.session.tokens, "it knows the text that was said before"
    assert said(engine) == text and [*engine.measure()] == []
    later = Engine(choice, store=store)
    assert later.hyperparameters == found and [*later.measure()] == [] and len(searched) == 1


@pytest.mark.slow
def test_what_waits_for_measurements_does_not_wait_for_a_search(measured, store, tmp_path, monkeypatch):
    shutil.copytree(CARD.path, tmp_path / "pair", ignore=shutil.ignore_patterns("drafters"))
    choice = choose(replace(CARD, path=tmp_path / "pair"), Settings(drafter="ouroboros"))
    monkeypatch.setattr(assemble, "searching", lambda *_: pytest.fail("it was searched"))
    engine = Engine(choice, store=store)
    assert [*engine.measure(tune=False)]
    assert [*measured_engine(choice, store=store).measure()] == []
    assert [*Engine(choice, store=None).measure()], "what cannot be kept is not searched"


@pytest.mark.slow
def test_a_search_that_was_requested_shows_count_and_time(measured, store, tmp_path, monkeypatch):
    shutil.copytree(CARD.path, tmp_path / "pair", ignore=shutil.ignore_patterns("drafters"))
    choice = choose(replace(CARD, path=tmp_path / "pair"), Settings(drafter="ouroboros"))
    monkeypatch.setattr(assemble, "QUESTIONS", assemble.QUESTIONS[:1])
    monkeypatch.setattr(assemble, "REPLY", 4)
    shown: list[str] = []
    engine = Engine(choice, store=store, tune=True, reporter=Reporter(pytest.fail, shown.append))
    pattern = re.compile(re.escape(TUNING) + r": (\d+) of (\d+), about \S+ \S+ left")
    counts = [tuple(map(int, match.groups())) for stage in shown if (match := pattern.fullmatch(stage))]
    totals = {total for _, total in counts}
    assert counts == sorted(counts) and min(totals) > 8, "all values of four parameters, but for those of windows"
    assert {done for done, _ in counts} == {*range(max(totals))}
    assert engine.profile.recall(assemble._hyperparameters(choice, engine.draft_model)) == engine.hyperparameters


def test_nonsense_in_the_store_is_measured_again(measured, store, monkeypatch):
    kept = {"bitwise": 1, "widest": 99, "multiple": 1, "largest": 0}
    monkeypatch.setattr(store.measurements, "recall", lambda name, subject: kept)
    assert measured_engine(choice(), store=store).costs == COSTS
    assert len(measured) == 2


@pytest.mark.slow
def test_replies_are_kept_as_one_average_however_they_were_decoded(measured, store):
    engine = Engine(choice(), store=store)
    tokens = [0.0]
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=1), Sampling(temperature=0.7, seed=1, rule="typical")):
        for _ in engine.chat([{"role": "user", "content": "Who are you?"}], sampling, Limits(6)):
            pass
        kept = engine.profile.cache.recall(REPLIES, engine.profile.replies_subject)
        assert [*kept] == ["phrases"] and kept["phrases"][0] > tokens[-1]
        tokens.append(kept["phrases"][0])


@pytest.mark.slow
def test_drafts_that_lost_time_in_earlier_replies_are_doubted(measured, store):
    def engine(tokens: float, nodes: float) -> Engine:
        profile = Engine(choice(), store=store).profile
        sums = [tokens, 200.0, 200.0 * nodes, 0.5, 10.0, 0.5, 1.0, 1.0, 3.0]
        profile.cache.remember(REPLIES, profile.replies_subject, {"phrases": sums})
        return Engine(choice(), store=store)

    assert not Engine(choice(), store=store).profile.was_slower("phrases", COSTS), "nothing is known"
    for tokens, nodes, lost in ((202.0, 1.0, True), (202.0, 0.1, True), (400.0, 1.0, False), (400.0, 40.0, True)):
        found = engine(tokens, nodes)
        assert found.profile.was_slower("phrases", COSTS) is lost, (tokens, nodes)
        assert found.profile.was_slower("lookahead", COSTS) is False


@pytest.mark.slow
def test_a_reply_that_repeats_itself_does_not_count(measured, store, monkeypatch):
    engine = Engine(choice(), store=store)
    for loops, count in ((False, 1), (True, 1), (False, 2)):
        monkeypatch.setattr(engine_module, "goes_round", lambda text, loops=loops: text != "" and loops)
        for _ in engine.chat([{"role": "user", "content": "Who are you?"}], Sampling(), Limits(6)):
            pass
        kept = engine.profile.cache.recall(REPLIES, engine.profile.replies_subject)
        assert kept["phrases"][-1] == count


@pytest.mark.slow
def test_a_store_that_cannot_be_written_costs_a_sentence(measured, store, monkeypatch):
    def full(*_: object) -> None:
        raise StoreTrouble("The disk is full: make room.")

    told: list[str] = []
    monkeypatch.setattr(store.measurements, "remember", full)
    assert measured_engine(choice(), store=store, reporter=Reporter(told.append)).costs == COSTS
    assert told == [wording("disk_full_make_room")] * 2


@pytest.mark.slow
def test_exact_is_refused_where_it_cannot_be_had(monkeypatch):
    found = Exactness(False, AUTO_NODES + 1, 16, 1e-3)
    monkeypatch.setattr(model_profile, "checking_exactness", at_once(lambda *_: found))
    with pytest.raises(UsageMistake, match=f"{matching('demo_cannot_be_exact_bit_for')}.* 1.0e-03 .*--exact"):
        Engine(choice(exact=True, draft_max=8, dtype="fp32"))


@pytest.mark.slow
def test_engines_that_share_a_target_take_turns(measured):
    first = Engine(choice(draft_max=8))
    plain = Engine(replace(first.choice, drafter="none", nodes=0), share_with=first)
    assert plain.target is first.target
    replies = []
    for engine in (first, plain, first):
        *_, done = engine.chat(
            [{"role": "user", "content": "Who are you?"}], engine.sampling(Settings(temperature=0.0))
        )
        assert isinstance(done, Done)
        replies.append(done.statistics.token_ids)
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.slow
def test_the_gap_is_that_of_the_logits(measured):
    engine, tokens = Engine(choice(draft_max=8)), [5, 300, 301, 302]
    output = engine.target.forward(DraftTree.chain(tokens), engine.target.cache(4))
    logits = output.logits.numpy()[-1]
    *_, second, best = logits.argsort().tolist()
    assert engine.gap(tokens, best, second) == pytest.approx(float(logits[best] - logits[second]), abs=1e-4)
    assert engine.gap(tokens, second, best) == pytest.approx(-engine.gap(tokens, best, second))


@pytest.mark.slow
def test_engines_that_take_turns_compute_with_as_many_threads(measured, monkeypatch):
    """Otherwise each engine would count idle cores at another moment, and the runs would not be comparable."""
    looks = []
    monkeypatch.setattr(hardware.IdleCores, "__call__", lambda self: looks.append(self) or 1)
    plain = Engine(choice(drafter="none"))
    for engine in (plain, Engine(choice(draft_max=4), share_with=plain), Engine(choice(drafter="none"))):
        for _ in engine.chat([{"role": "user", "content": "a"}], Sampling(), Limits(1)):
            pass
    assert looks[0] is looks[1] and looks[2] is not looks[0]
