"""How the engine uses the trial of our own kernels, on a simulated GPU."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from golden import wording
from machines import flat
from measured_at_once import at_once

from localspec.choosing import measure
from localspec.choosing.choose import choose
from localspec.choosing.measure import COSTS, MeasurementCache, Measurements, with_kernels
from localspec.config import Settings
from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import finished
from localspec.engine import trials
from localspec.engine.model_profile import EXACTNESS, ModelProfile
from localspec.engine.trials import KERNELS, LIBRARIES, OWN, TrialResult, settle_kernels
from localspec.events import Reporter
from localspec.machine.hardware import NvidiaDriver
from localspec.models.registry import resolve
from localspec.nn import kernel_checks as of_torch
from localspec.store.store import Store

DEVICE = "cuda:0"
CARD = torch.device(DEVICE)


class Process:
    """One start of the program after the other, with the same store."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.notices, self.trials = store, list[str](), 0
        self.finds: Callable[[], str | None] = lambda: None
        self.cache = MeasurementCache(store, Reporter(self.notices.append))
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(trials, "nvidia_driver", lambda: NvidiaDriver("580.65"))
        for module in (trials, measure):
            monkeypatch.setattr(module, "versions", lambda device: f"a {device}")
        monkeypatch.setattr(of_torch, "not_for", lambda device: None)
        monkeypatch.setattr(of_torch, "_wrong", self._try)
        self.starts()

    def _try(self, device: torch.device) -> str | None:
        self.trials += 1
        return self.finds()

    def starts(self) -> None:
        self._monkeypatch.setattr(trials, "_settled", {})
        self._monkeypatch.setattr(of_torch, "_settled", {})
        of_torch.trouble.cache_clear()

    def loads(self) -> str | None:
        """Start and load a model; return why its layers do without our kernels."""
        self.starts()
        settle_kernels(DEVICE, self.cache)
        return of_torch.trouble(CARD)

    @property
    def subject(self) -> str:
        return with_kernels("a model", DEVICE, self.cache)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        yield Process(store, monkeypatch)
    of_torch.trouble.cache_clear()


def test_they_are_tried_once_and_nothing_is_reported_where_they_are_right(process: Process) -> None:
    assert process.loads() is None and process.loads() is None
    assert process.trials == 1 and process.notices == []
    assert process.subject == "a model"


def test_where_they_are_wrong_that_is_kept_and_said_by_every_process_once(process: Process) -> None:
    process.finds = lambda: "the result of a norm is wrong"
    for start in range(1, 3):
        assert process.loads() == wording("norm_what_should")
        settle_kernels(DEVICE, process.cache)  # for another model
        assert process.trials == 1
        assert process.notices == start * [wording("localspec_s_own_kernels_used_gpu")]


def test_what_libraries_compute_is_measured_for_itself(process: Process) -> None:
    process.finds = lambda: wording("there_is_no_compiler")
    assert process.subject == "a model"  # nothing is known
    process.loads()
    assert process.subject == wording("a_model_by_libraries")
    process.starts()
    assert process.subject == wording("a_model_by_libraries")  # before any model is loaded, as the policy asks
    assert with_kernels("a model", "cpu", process.cache) == "a model"


def test_a_trial_that_ended_the_program_is_not_repeated(process: Process) -> None:
    kept: list[object] = []

    def look() -> None:
        kept.append(process.store.measurements.recall(KERNELS.name, trials._subject(DEVICE)))

    process.finds = look
    process.loads()
    assert kept[0]["tried_by"].startswith(f"{os.getpid()} ")  # type: ignore[index]
    ended = {**kept[0], "tried_by": f"{os.getpid()} 1.0", "ended": 1}  # type: ignore[dict-item]
    process.store.measurements.remember(KERNELS.name, trials._subject(DEVICE), ended)
    assert process.loads() == trials.ENDED and process.trials == 1
    assert process.subject == wording("a_model_by_libraries")


def test_memory_that_was_short_promises_nothing_and_is_looked_for_again(process: Process) -> None:
    def full() -> str | None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    process.finds = full
    assert process.loads() == wording("there_memory_try_them_now")
    assert process.subject == wording("a_model_by_libraries")
    process.finds = lambda: None
    assert process.loads() is None and process.trials == 2 and process.subject == "a model"


def test_other_kernels_are_tried_again(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.loads()
    monkeypatch.setattr("localspec.nn.cuda_kernels.digest", lambda: "others")
    process.loads()
    assert process.trials == 2


def test_where_nobody_expects_them_nothing_is_tried_or_said(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_torch, "not_for", lambda device: wording("they_need_card_compute_capability"))
    assert process.loads() == wording("they_need_card_compute_capability")
    settle_kernels("cpu", process.cache)
    assert process.trials == 0 and process.notices == [] and process.subject == "a model"


def test_an_engine_settles_them_before_its_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.engine import engine

    class Loads(Exception):
        pass

    def load(*_: object) -> None:
        raise Loads(*settled)

    settled: list[str] = []
    monkeypatch.setattr(engine, "settle_kernels", lambda device, cache: settled.append(device))
    monkeypatch.setattr(engine, "load_target", load)
    with pytest.raises(Loads, match="cpu"):
        engine.Engine.open(Settings(drafter="none"), resolve("demo"))


@pytest.mark.parametrize("device", [DEVICE, "cpu"])
def test_all_that_is_measured_of_a_model_and_a_device_says_what_computed_it(
    process: Process, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """No promise of --exact, no form of steps and no seconds are taken over."""
    monkeypatch.setattr(measure, "versions", lambda device: f"a {device}")
    choice = replace(choose(resolve("demo"), Settings(drafter="none")), device=device)
    known = Measurements(process.cache)

    def measured() -> tuple[bool, bool]:
        of_model = known.of(choice.target, device, choice.dtype, choice.quantize)
        profile = ModelProfile.of(choice, process.cache)
        return profile.recall(EXACTNESS) is not None, of_model.costs is not None

    process.loads()
    profile = ModelProfile.of(choice, process.cache)
    profile.remember(EXACTNESS, Exactness(True, 9))
    profile.remember(COSTS, flat(0.05))
    assert measured() == (True, True)
    monkeypatch.setattr("localspec.nn.cuda_kernels.digest", lambda: "others, which are wrong")
    process.finds = lambda: "the result of a norm is wrong"
    process.loads()
    assert measured() == ((False, False) if device == DEVICE else (True, True))


def test_another_card_or_torch_is_tried_again(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.loads()
    monkeypatch.setattr(trials, "versions", lambda device: f"another {device}")
    process.loads()
    monkeypatch.setattr(trials, "nvidia_driver", lambda: NvidiaDriver("600.1"))
    process.loads()
    assert process.trials == 3


def test_what_was_found_counts_though_layers_have_asked_before(process: Process) -> None:
    assert of_torch.trouble(CARD) is None and process.trials == 1
    process.finds = lambda: wording("there_is_no_compiler")
    settle_kernels(DEVICE, process.cache)
    assert of_torch.trouble(CARD) == wording("there_is_no_compiler")


def test_exactness_is_of_rows_that_fill_up_or_not(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(choice: object, target: SimpleNamespace, widest: int) -> Exactness:
        measured.append(target.step_form)
        return Exactness(target.step_form == "captured", widest)

    monkeypatch.setattr("localspec.engine.model_profile.checking_exactness", at_once(measure))
    choice = choose(resolve("demo"), Settings(drafter="none"))
    profile = ModelProfile.of(choice, process.cache)
    for form in ("captured", "static", "eager", "captured", "eager"):
        target: Any = SimpleNamespace(step_form=form, row_multiple=1)
        found = profile.exactness(target, 9) or finished(profile.checking(choice, target, 9))
        assert found.bitwise == (form != "eager")
    assert measured == ["captured", "eager"]


def test_verdicts_are_read_as_they_were_kept() -> None:
    for found in (TrialResult(OWN), TrialResult(LIBRARIES, "why")):
        assert KERNELS.parse(KERNELS.to_json(found)) == found
    for odd in (
        TrialResult("captured"),
        TrialResult(OWN, "why"),
        TrialResult(LIBRARIES),
        TrialResult(LIBRARIES, "why", passing=True),
    ):
        assert KERNELS.parse(KERNELS.to_json(odd)) is None
    assert KERNELS.parse({"outcome": OWN, "passing": []}) is None
