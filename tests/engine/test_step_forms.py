"""How the engine uses the self-check of recorded steps: once, saved, and never again where it crashed the program."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden import wording

from localspec.choosing.measure import MeasurementCache
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.engine import trials
from localspec.engine import trials as module
from localspec.engine.engine import Engine
from localspec.engine.trials import STEP_FORM, RecordingWatch, TrialResult, settle_step_form
from localspec.events import Reporter
from localspec.machine.hardware import NvidiaDriver
from localspec.models.registry import resolve
from localspec.store.store import Store

SUBJECT = "a model on cuda:0"
ANOTHER = trials._process(os.getppid())
KEPT = f"{SUBJECT} · driver 580.65"


class GPU:
    """A simulated GPU, and the results of a model on it."""

    def __init__(self, store: Store | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = "cuda:0"
        monkeypatch.setattr(trials, "nvidia_driver", lambda: NvidiaDriver("580.65"))
        self.notices: list[str] = []
        self.forms: list[str] = []
        self.checks = 0
        self.finds: Callable[[], tuple[str, str | None]] = lambda: ("captured", None)
        self.trouble: str | None = None
        self.draft_trouble: str | None = None
        self.store, self.target = store, SimpleNamespace()
        monkeypatch.setattr(module, "find_step_form", self._check)
        monkeypatch.setattr(module, "use_step_form", lambda target, form: self.forms.append(form))
        monkeypatch.setattr(module, "recording_troubles", lambda target: (self.trouble, self.draft_trouble))

    def _check(self, target: Any) -> tuple[str, str | None]:
        self.checks += 1
        return self.finds()

    def load(self) -> RecordingWatch:
        target: Any = self.target
        cache = MeasurementCache(self.store, Reporter(self.notices.append))
        settle_step_form(self.device, target, cache, SUBJECT)
        return RecordingWatch(self.device, target, cache, SUBJECT)


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GPU]:
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        yield GPU(store, monkeypatch)


def test_it_is_checked_once_and_silent_where_all_is_well(gpu: GPU) -> None:
    gpu.load()
    gpu.load()
    assert gpu.checks == 1 and gpu.forms == ["captured"] * 2 and gpu.notices == []


def test_why_steps_are_not_recorded_is_reported_each_time(gpu: GPU) -> None:
    gpu.finds = lambda: ("static", "the results of 5 rows after 3 tokens differ from those of unrecorded steps")
    gpu.load()
    gpu.load()
    assert gpu.checks == 1 and gpu.forms == ["static"] * 2
    assert gpu.notices == [wording("steps_recorded_gpu_slower_results")] * 2


def kept_while_it_was_tried(gpu: GPU) -> Any:
    """Return the store's entry while the check runs."""
    assert gpu.store is not None
    seen: list[Any] = []
    gpu.finds = lambda: seen.append(gpu.store.measurements.recall(STEP_FORM.name, KEPT)) or ("captured", None)  # type: ignore[union-attr,func-returns-value]
    gpu.load()
    gpu.checks, gpu.forms = 0, []
    return seen[0]


def left_by(gpu: GPU, kept: Any, **changed: Any) -> None:
    """Write the entry of a process that no longer exists."""
    changed = {"tried_by": f"{os.getpid()} 1.0", **changed}
    gpu.store.measurements.remember(STEP_FORM.name, KEPT, {**kept, **changed})  # type: ignore[union-attr]


def test_a_check_that_ended_the_program_twice_is_not_tried_again(gpu: GPU) -> None:
    """A single crash may be a user who closed a window."""
    kept = kept_while_it_was_tried(gpu)
    left_by(gpu, kept)
    assert kept_while_it_was_tried(gpu) == {**kept, "ended": 1}
    left_by(gpu, kept, ended=1)
    gpu.load()
    assert gpu.checks == 0 and gpu.forms == ["eager"]
    assert gpu.notices == [wording("steps_recorded_gpu_slower_program")]


def test_what_this_process_could_not_keep_is_not_waited_for(gpu: GPU) -> None:
    gpu.store.measurements.remember(STEP_FORM.name, KEPT, kept_while_it_was_tried(gpu))  # type: ignore[union-attr]
    gpu.load()
    assert gpu.checks == 1 and gpu.forms == ["captured"] and gpu.notices == []


def test_who_began_at_the_same_moment_keeps_its_mark(gpu: GPU) -> None:
    """Otherwise the reason for that process's end would be lost."""
    kept = {"outcome": "eager", "why": "ended", "tried_by": "1 1.0"}
    gpu.finds = lambda: left_by(gpu, kept, tried_by="1 1.0") or ("captured", None)  # type: ignore[func-returns-value]
    gpu.load()
    assert gpu.forms == ["captured"]
    assert gpu.store.measurements.recall(STEP_FORM.name, KEPT) == kept  # type: ignore[union-attr]


def test_what_is_still_of_use_is_kept_as_if_it_were_new(gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.load()
    for number in range(150):
        gpu.store.measurements.remember("something", str(number), 1)  # type: ignore[union-attr]
    gpu.load()
    for number in range(150):
        gpu.store.measurements.remember("something else", str(number), 1)  # type: ignore[union-attr]
    gpu.load()
    assert gpu.checks == 1


def test_while_another_process_looks_nobody_else_does(gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "PATIENCE", 0.0)
    left_by(gpu, kept_while_it_was_tried(gpu), tried_by=ANOTHER)
    gpu.load()
    assert gpu.checks == 0 and gpu.forms == ["eager"]
    assert gpu.notices == [wording("steps_recorded_gpu_slower_another")]


@pytest.mark.parametrize("passing", [False, True], ids=["found", "given up"])
def test_what_another_process_finds_is_waited_for(gpu: GPU, monkeypatch: pytest.MonkeyPatch, passing: bool) -> None:
    def come_to_an_end(seconds: float) -> None:
        gpu.store.measurements.remember(STEP_FORM.name, KEPT, asdict(TrialResult("static", "why", passing)))  # type: ignore[union-attr]

    left_by(gpu, kept_while_it_was_tried(gpu), tried_by=ANOTHER)
    monkeypatch.setattr(trials.time, "sleep", come_to_an_end)
    gpu.load()
    assert (gpu.checks, gpu.forms) == ((1, ["captured"]) if passing else (0, ["static"]))


def test_ctrl_c_is_no_reason_not_to_look_again(gpu: GPU) -> None:
    def interrupted() -> tuple[str, str | None]:
        raise KeyboardInterrupt

    gpu.finds = interrupted
    with pytest.raises(KeyboardInterrupt):
        gpu.load()
    gpu.finds = lambda: ("captured", None)
    gpu.load()
    assert gpu.checks == 2 and gpu.forms == ["captured"] and gpu.notices == []


def test_with_another_driver_it_is_inspected_again(gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.finds = lambda: ("static", "CUDA error: unknown")
    gpu.load()
    monkeypatch.setattr(trials, "nvidia_driver", lambda: NvidiaDriver("600.1"))
    gpu.load()
    assert gpu.checks == 2


def test_memory_that_was_short_is_looked_for_again(gpu: GPU) -> None:
    def full() -> tuple[str, str | None]:
        raise MemoryError

    gpu.finds = full
    gpu.load()
    assert gpu.notices == [wording("steps_recorded_gpu_slower_there")]
    gpu.finds = lambda: ("captured", None)
    gpu.load()
    assert gpu.checks == 2 and gpu.forms == ["eager", "captured"] and len(gpu.notices) == 1


def test_without_a_store_it_is_checked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPU(None, monkeypatch)
    gpu.load()
    gpu.load()
    assert gpu.checks == 2 and gpu.forms == ["captured"] * 2


def test_elsewhere_there_is_nothing_to_check(gpu: GPU) -> None:
    gpu.device = "cpu"
    gpu.trouble = "nobody asks"
    gpu.load().look()
    assert gpu.checks == 0 and gpu.forms == [] and gpu.notices == []


@pytest.mark.parametrize(
    ("part", "said", "form"),
    [
        ("trouble", wording("steps_recorded_any_more_slower"), "static"),
        ("draft_trouble", wording("what_drafter_computes_recorded"), "captured"),
    ],
)
def test_trouble_in_a_reply_is_reported_once_and_only_that_of_steps_is_kept(
    gpu: GPU, part: str, said: str, form: str
) -> None:
    watch = gpu.load()
    watch.look()
    setattr(gpu, part, "CUDA error: invalid argument")
    watch.look()
    watch.look()
    assert gpu.notices == [said]
    gpu.load()
    assert gpu.checks == 1 and gpu.forms[-1] == form


@pytest.mark.parametrize(
    "value", [{}, {"outcome": "quick"}, {"outcome": "static", "why": 3}, "captured", {"outcome": "static", "who": 1}]
)
def test_what_else_stands_in_the_store_is_checked_again(gpu: GPU, value: Any) -> None:
    gpu.store.measurements.remember(STEP_FORM.name, KEPT, value)  # type: ignore[union-attr]
    gpu.load()
    assert gpu.checks == 1 and gpu.forms == ["captured"]


def test_what_was_found_is_read_as_it_was_kept() -> None:
    for found in (TrialResult("captured"), TrialResult("static", "why")):
        assert STEP_FORM.parse(STEP_FORM.to_json(found)) == found


@pytest.mark.slow
def test_an_engine_settles_and_watches_its_model_and_the_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[str] = []
    looked: list[str] = []

    def settle(device: str, target: Any, cache: MeasurementCache, subject: str) -> None:
        settled.append(subject)

    monkeypatch.setattr("localspec.engine.engine.settle_step_form", settle)
    monkeypatch.setattr("localspec.engine.loading.settle_step_form", settle)
    monkeypatch.setattr(RecordingWatch, "look", lambda self: looked.append(self._subject))
    engine = Engine.open(Settings(drafter="draft_model", temperature=0.0), resolve("demo"))
    assert len(set(settled)) == 2 and settled[0] == engine.profile.subject
    list(engine.chat([{"role": "user", "content": "Hi"}], engine.sampling(Settings(temperature=0.0)), Limits(4)))
    assert looked == settled
