"""A pull as a generator: its events in order, and nothing is fetched before the user agrees."""

import sys
from bisect import bisect_left
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli.hub_commands import NUMBERS, blobs, common_cache, home_with_cache, repository, variables
from golden import matching, wording
from hub_server import model_repository, served

from localspec.choosing.fetching import fit
from localspec.choosing.measure import NoMeasurements
from localspec.errors import DoesNotFit, NotHere, UsageMistake
from localspec.events import Reporter
from localspec.machine.machine import Device, Machine
from localspec.models.registry import resolve
from localspec.models.shape import Shape
from localspec.pulling import pull as pulling
from localspec.pulling.pull import (
    AboutToFetch,
    AlreadyHere,
    DrafterToTrain,
    Fetched,
    Installed,
    Planned,
    PullEvent,
    PullOptions,
    already_here,
    pull,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = home_with_cache(tmp_path, monkeypatch)
    with served(org__name=repository(tmp_path / "model")) as hub:
        for name, value in {**variables(home, hub), "LOCALSPEC_HOME": str(home)}.items():
            monkeypatch.setenv(name, value)
        yield home


def events(name: str = "org/name", drafter: str | None = None, force: bool = False, **watched: Any):
    downloaded = watched.pop("downloaded", lambda done, total: None)
    return pull(name, PullOptions(drafter, force), Reporter(**{"notice": pytest.fail, **watched}), downloaded)


def kinds(found: list[PullEvent]) -> list[type]:
    return [type(event) for event in found]


@pytest.mark.slow
def test_events_from_the_plan_to_the_directory(home):
    stages, bytes_here = [], []
    found = list(events(progress=stages.append, downloaded=lambda *how_far: bytes_here.append(how_far)))
    planned, about, fetched, installed = found
    assert kinds(found) == [Planned, AboutToFetch, Fetched, Installed]
    assert planned.fits is True and planned.plan.fetch_bytes == about.bytes == planned.plan.bytes > 4 * NUMBERS
    assert fetched.notices == () and (installed.path / "model.safetensors").exists()
    assert stages == [wording("looking_at_this_machine"), f"asking {stages[-1].split()[1]} about org/name"]
    assert bytes_here[-1] == (about.bytes, about.bytes) and bytes_here == sorted(bytes_here)
    assert kinds(list(events())) == [Planned, Fetched, Installed], "there is nothing to agree to: it is only compared"


def test_who_closes_it_before_it_fetches_has_fetched_nothing(home):
    pulled = events()
    assert kinds([next(pulled), next(pulled)]) == [Planned, AboutToFetch]
    pulled.close()
    assert not common_cache(home).exists() or blobs(home) == {}


@pytest.mark.slow
def test_what_does_not_fit_is_refused_after_its_plan(home, monkeypatch):
    small = Machine((Device("cpu", "a CPU", 10**9, 600 * 10**6 + 1000, ("fp32",)),), 1)
    monkeypatch.setattr("localspec.pulling.pull.this_machine", lambda: small)
    pulled = events()
    assert next(pulled).fits is False
    with pytest.raises(DoesNotFit, match="--force"):
        next(pulled)
    assert kinds([event for event, _ in zip(events(force=True), range(2), strict=False)]) == [Planned, AboutToFetch]


@pytest.mark.slow
def test_a_requested_drafter_needs_room_in_addition_to_its_model(home, tmp_path, monkeypatch):
    (home / "config").mkdir(mode=0o700)
    entries = """
        [mine]
        repo = "org/name"
        draft = "small"
        drafters = [{ kind = "draft_model" }]
        [small]
        repo = "org/small"
    """
    (home / "config" / "models.toml").write_text(entries)

    def cpu(free: int) -> Machine:
        return Machine((Device("cpu", "a CPU", 10**9, free, ("fp32",)),), 1)

    def fits(drafter: str, free: int) -> bool:
        monkeypatch.setattr("localspec.pulling.pull.this_machine", lambda: cpu(free))
        return next(events("mine", drafter)).fits

    large, small = model_repository(resolve("demo").path), repository(tmp_path / "small")
    with served(org__name=large, org__small=small) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        (model,) = next(events("mine", "none")).plan.parts
        sizes = range(0, 10**9, 10**5)
        enough = sizes[
            bisect_left(
                sizes,
                True,
                key=lambda free: fit("mine", Shape.of(model.config), model.weights, cpu(free), NoMeasurements())[0],
            )
        ]
        assert fits("none", enough) is True and fits("draft_model", enough) is False
        assert fits("draft_model", enough + 4 * NUMBERS + 10**5) is True


def test_what_is_here_or_cannot_be_meant_is_not_looked_for(home):
    (nothing,) = events("demo")
    assert nothing == AlreadyHere(wording("nothing_fetched"))
    with pytest.raises(UsageMistake, match=matching("drafter_medusa_has_no_effect")):
        next(events(drafter="medusa"))
    with pytest.raises(NotHere, match="dmeo"):
        next(events("dmeo"))
    assert not common_cache(home).exists()


@pytest.mark.slow
def test_during_a_chat_nothing_is_measured_or_packed(home, monkeypatch):
    """The model would otherwise be packed, and its entry about drafters would be a reason to measure."""
    (home / "config").mkdir(mode=0o700)
    (home / "config" / "models.toml").write_text('[mine]\nrepo = "org/name"\ndrafters = [{ kind = "medusa" }]\n')
    monkeypatch.setattr("localspec.choosing.measure.memory_bandwidth", lambda *_: pytest.fail("it was measured"))
    with served(org__name=model_repository(resolve("demo").path)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        stages: list[str] = []
        reporter = Reporter(pytest.fail, stages.append)
        found = list(pull("mine", PullOptions(quiet=True), reporter, lambda done, total: None))
    assert kinds(found) == [Planned, AboutToFetch, Fetched, Installed] and found[0].packing is None
    assert not [stage for stage in stages if "packing" in stage or "training" in stage]
    assert not (home / "cache" / "packed").exists() and resolve("mine").here


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-4-26b-a4b-it", "smollm2-135m", "org/name"])
def test_the_original_of_something_without_a_smaller_form_is_refused(name, fresh_home):
    with pytest.raises(UsageMistake, match=f"--original has no effect with {'a repository' if '/' in name else name}"):
        already_here(name, PullOptions(original=True))
    assert already_here("qwen3-8b", PullOptions(original=True)) is None


def test_the_drafter_that_is_worth_training_is_announced_unless_the_target_does_not_fit(monkeypatch):
    def announced(kind: str | None, outlook: Any) -> list[DrafterToTrain]:
        monkeypatch.setattr(pulling, "to_make", lambda card: kind)
        monkeypatch.setitem(sys.modules, "localspec.training.estimate", SimpleNamespace(outlook=outlook))
        return [*pulling._drafter_to_train("demo", Machine((), 1), Reporter())]

    def too_large(*_: object) -> None:
        raise DoesNotFit("x")

    [found] = announced("s3d", lambda *_: (2.5, 1000))
    assert (found.kind, found.hours, found.memory) == ("s3d", 2.5, 1000)
    assert announced("s3d", too_large) == [] and announced(None, too_large) == []
