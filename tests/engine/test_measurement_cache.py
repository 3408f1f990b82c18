"""The one rule of measuring: recalled, else what a busy moment gave while it is still busy, else measured and kept."""

from types import SimpleNamespace

import pytest
from golden import wording

from localspec.engine import measurement_cache
from localspec.engine.measurement_cache import MeasurementCache, Quantity
from localspec.events import Reporter
from localspec.machine.hardware import physical_cores
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


LENGTH = Quantity("length", _whole, int)


class Machine:
    """Stands for how many cores other programs leave idle, look by look; the last number stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cores = [physical_cores()]
        monkeypatch.setattr(measurement_cache, "IdleCores", lambda: self.look)
        monkeypatch.setattr(measurement_cache, "LOOK_SECONDS", 0.0)

    def look(self) -> int:
        return self.cores.pop(0) if len(self.cores) > 1 else self.cores[0]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def ask(store: Store | None, value: int = 5) -> tuple[int, list[str]]:
    """What a new cache says, and what it reported while it measured."""
    progress: list[str] = []
    cache = MeasurementCache(store, Reporter(pytest.fail, progress.append))
    return cache.get_or_measure(LENGTH, "a table", "how long a table is", lambda cores: value), progress


def test_what_was_measured_in_an_idle_moment_is_recalled(machine: Machine, store: Store) -> None:
    assert ask(store) == (5, ["measuring how long a table is, once"])
    assert ask(store, 6) == (5, [])
    assert store.measurements.recall("length", "a table") == 5
    assert ask(None, 6)[0] == 6, "without a store nothing is recalled"


def test_what_a_busy_moment_gave_serves_until_the_machine_is_idle(machine: Machine, store: Store) -> None:
    machine.cores = [physical_cores() - 1]
    assert [ask(store, 5)[0], ask(store, 6)[0]] == [5, 5]
    assert (
        store.measurements.recall("length", "a table") is None
        and store.measurements.recall(wording("length_of_a_busy_moment"), "a table") == 5
    )
    machine.cores = [physical_cores()]
    assert [ask(store, 7)[0], ask(store, 8)[0]] == [7, 7]
    machine.cores = [physical_cores() - 1]
    assert ask(store, 9)[0] == 7, "what an idle moment gave stays"


@pytest.mark.parametrize("busy", [0, 1], ids=["before it", "after it"])
def test_a_measurement_beside_which_other_programs_worked_counts_as_busy(machine: Machine, store: Store, busy) -> None:
    machine.cores = [physical_cores(), physical_cores()]
    machine.cores[busy] -= 1
    ask(store)
    assert (
        store.measurements.recall("length", "a table") is None
        and store.measurements.recall(wording("length_of_a_busy_moment"), "a table") == 5
    )


def test_what_is_only_recalled_may_be_of_a_busy_moment(machine: Machine, store: Store) -> None:
    cache = MeasurementCache(store)
    assert cache.recall_either(LENGTH, "a table") is None
    cache.remember(LENGTH.when_busy, "a table", 5)
    assert cache.recall(LENGTH, "a table") is None and cache.recall_either(LENGTH, "a table") == 5
    cache.remember(LENGTH, "a table", 6)
    assert cache.recall_either(LENGTH, "a table") == 6, "an idle moment says more"


@pytest.mark.parametrize(("passed", "slept"), [(0.0, 0.3), (0.2, 0.1), (5.0, 0.0)])
def test_other_programs_are_watched_for_a_while_before_the_machine_counts_as_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch, passed: float, slept: float
) -> None:
    """Others work all the time, which a look shows only once the kernel has counted for a while."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(measurement_cache, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(measurement_cache, "IdleCores", lambda: lambda: physical_cores() - (now[0] > 100.05))
    store.measurements.remember(wording("length_of_a_busy_moment"), "a table", 5)
    cache = MeasurementCache(store)
    now[0] += passed
    assert cache.get_or_measure(LENGTH, "a table", "", lambda _: 6) == 5
    assert now[0] == pytest.approx(100 + passed + slept)


def test_it_is_measured_with_the_cores_that_are_idle(machine: Machine) -> None:
    machine.cores, given = [3], []
    MeasurementCache(None).get_or_measure(LENGTH, "a table", "", lambda cores: given.append(cores) or 5)
    assert given == [3]


def test_a_value_of_another_form_is_measured_anew(machine: Machine, store: Store) -> None:
    store.measurements.remember("length", "a table", "long")
    store.measurements.remember(wording("length_of_a_busy_moment"), "a table", {"length": 5})
    assert ask(store, 6)[0] == 6 and store.measurements.recall("length", "a table") == 6


def test_what_fails_is_raised_and_not_kept(machine: Machine, store: Store) -> None:
    def fail(cores: int) -> int:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError):
        MeasurementCache(store).get_or_measure(LENGTH, "a table", "how long a table is", fail)
    assert ask(store, 6)[0] == 6


def test_trouble_with_the_store_is_reported_unless_it_is_not_worth_it(store: Store, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise StoreTrouble("The disk is full.")

    notices: list[str] = []
    cache = MeasurementCache(store, Reporter(notices.append))
    monkeypatch.setattr(store.measurements, "remember", full)
    cache.remember(LENGTH, "a table", 5, silent=True)
    assert notices == []
    cache.remember(LENGTH, "a table", 5)
    assert notices == [wording("the_disk_is_full")]


def test_a_store_that_can_only_be_read_is_not_written(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(Store, "read_only", True)
    monkeypatch.setattr(store.measurements, "remember", pytest.fail)
    MeasurementCache(store).remember(LENGTH, "a table", 5)
