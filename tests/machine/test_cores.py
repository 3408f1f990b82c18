"""The number of cores, and how many of them other programs leave idle."""

import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
from each import each

from localspec.engine import engine
from localspec.machine import hardware
from localspec.machine.hardware import IdleCores, OthersLoad


class Host:
    """A machine whose CPUs other programs keep busy, as the kernel reports it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory) -> None:
        self._monkeypatch, self._file = monkeypatch, directory / "stat"
        self._now, self._own, self._busy = 100.0, 0.0, {}
        monkeypatch.setattr(hardware, "_STATISTICS", self._file)
        monkeypatch.setattr(hardware, "CONTAINER", directory)
        monkeypatch.setattr(hardware._Allowed, "cores", None)
        monkeypatch.setattr(hardware, "time", SimpleNamespace(monotonic=lambda: self._now))
        monkeypatch.setattr(hardware.os, "sysconf", lambda name: 100)

    def has(self, allowed: set[int], processors: set[int], cores: int | None = None) -> "Host":
        """Set the processors, those that this process may run on, and the number of cores."""
        self._monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda process: allowed, raising=False)
        self._monkeypatch.setattr(hardware.psutil, "cpu_count", lambda logical: cores)
        for cached in (hardware._cores_here, hardware._allowed_cores, hardware.logical_cores):
            cached.cache_clear()
        self._busy = dict.fromkeys(sorted(processors), 0.0)
        self.passes(0.0, {})
        return self

    def passes(self, seconds: float, busy: dict[int, float], own: float = 0.0) -> None:
        """Let time pass in which CPUs are busy, this process for `own` seconds of it."""
        self._now, self._own = self._now + seconds, self._own + own
        process = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=self._own, system=0.0))
        self._monkeypatch.setattr(hardware.psutil, "Process", lambda: process)
        lines = ["cpu  999999 0 0 0 0 0 0 0 0 0"]
        for number in self._busy:
            self._busy[number] += busy.get(number, 0.0)
            ticks = round(self._busy[number] * 100)
            idle = round(self._now * 100)
            lines.append(f"cpu{number} {ticks // 2} 0 {ticks - ticks // 2} {idle} {idle} 0 0 0 {ticks // 2} 0")
        self._file.write_text("\n".join([*lines, "intr 1 2 3", "ctxt 5", ""]))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path):
    yield Host(monkeypatch, tmp_path)
    monkeypatch.undo()
    for cached in (hardware._cores_here, hardware._allowed_cores, hardware.logical_cores):
        cached.cache_clear()


def test_a_busy_machine_leaves_fewer_cores_but_always_one(host: Host) -> None:
    host.has({0, 1, 2, 3}, {0, 1, 2, 3})
    idle = IdleCores()
    host.passes(10, {0: 10, 1: 10}, own=10)
    assert idle() == 3, "one core's worth of somebody else's work"
    host.passes(10, dict.fromkeys(range(4), 10), own=10)
    assert idle() == 1, "three cores' worth leave one"
    host.passes(10, {0: 0.5}, own=0.5)
    assert idle() == 4, "our own work is ours"
    host.passes(10, {0: 10, 1: 10})
    assert idle() == 2, "two cores' worth of somebody else's work"
    host.passes(0.01, {})
    assert idle() == 2, "too short a time to tell: as before"
    host.passes(10, dict.fromkeys(range(4), 10))
    assert idle() == 1, "there is always one"


def test_cpus_that_we_may_not_run_on_do_not_count(host: Host) -> None:
    """A container is pinned to a few CPUs, whose numbers have gaps, on a busy host."""
    host.has({40, 41, 60, 61}, {*range(32), *range(40, 72)}, cores=32)
    idle, others = IdleCores(), OthersLoad()
    host.passes(10, dict.fromkeys([*range(20), 42, 43], 10))
    assert (hardware.physical_cores(), idle(), others()) == (4, 4, 0)
    host.passes(10, {60: 10})
    assert (idle(), others()) == (3, 0.5)


@each(
    "files, cores",
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": ""}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_a_container_has_the_cores_whose_time_it_is_given(host: Host, files: dict[str, str], cores) -> None:
    container = hardware.CONTAINER
    (container / "cpu").mkdir(exist_ok=True)
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"):
        (container / name).unlink(missing_ok=True)
        if name in files:
            (container / name).write_text(files[name])
    host.has({*range(64)}, {*range(64)}, cores=64)
    idle = IdleCores()
    assert (hardware.physical_cores(), hardware.logical_cores()) == (cores, cores)
    host.passes(10, dict.fromkeys(range(20), 10))
    assert idle() == min(cores, 44), "the others leave more than it is given the time of"


def test_fewer_threads_than_there_are_cores_need_no_more_idle_ones(host: Host) -> None:
    host.has({0, 1, 2, 3}, {0, 1, 2, 3})
    hardware.limit_cores(2)
    idle = IdleCores()
    host.passes(10, {0: 10, 1: 10})
    assert idle() == 2
    host.passes(10, {0: 10, 1: 10, 2: 10})
    assert idle() == 1


def test_an_engine_does_not_go_by_a_look_of_a_moment(host: Host) -> None:
    """Our own helper that starts, or a terminal that draws, takes half a core for this time."""
    host.has({0, 1}, {0, 1})
    idle = IdleCores(engine.LOOK)
    host.passes(0.06, {0: 0.06, 1: 0.03}, own=0.05)
    assert idle() == 2
    host.passes(1.94, {0: 1.94, 1: 0.5}, own=0.5)
    assert idle() == 1


def test_a_look_that_is_held_is_not_repeated(host: Host) -> None:
    host.has({0, 1, 2, 3}, {0, 1, 2, 3})
    idle = IdleCores()
    host.passes(10, {0: 10})
    idle.hold()
    host.passes(10, dict.fromkeys(range(4), 10))
    assert (idle(), idle()) == (3, 3), "whatever other programs begin meanwhile"
    idle.hold()
    assert idle() == 1


def test_what_other_programs_kept_busy_on_average(host: Host) -> None:
    host.has({0, 1, 2}, {0, 1, 2})
    others = OthersLoad()
    host.passes(10, {0: 10, 1: 10, 2: 10}, own=15)
    assert others() == 1.5 and others.slowdown() == 2


def test_other_programs_slow_work_down_only_by_the_cores_that_it_could_have(host: Host) -> None:
    host.has({0, 1}, {0, 1})
    others = OthersLoad()
    assert others.slowdown() == 1
    host.passes(10, {0: 10, 1: 10})
    assert others.slowdown() == pytest.approx(10)
    (hardware.CONTAINER / "cpu.max").write_text("200000 100000\n")
    host.has({*range(64)}, {*range(64)}, cores=64)
    others = OthersLoad()
    host.passes(10, dict.fromkeys(range(20), 10))
    assert others.slowdown() == 1, "44 cores are left, and a container's quota is two"


def test_where_a_process_cannot_be_pinned_all_cpus_count(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.has({0}, {0})
    monkeypatch.setattr(hardware.sys, "platform", "darwin")
    Times = namedtuple("Times", "user idle")  # noqa: PYI024 -- as psutil gives them
    readings = iter([Times(3.0, 50.0), Times(23.0, 70.0)])
    monkeypatch.setattr(hardware.psutil, "cpu_times", lambda: next(readings))
    others = OthersLoad()
    host.passes(10, {})
    assert others() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it in this way")
def test_this_kernel_lists_its_cpus() -> None:
    first = hardware._busy_seconds()
    assert 0 < first <= hardware._busy_seconds()


@pytest.mark.parametrize(("load", "cores", "times"), [(0.3, 2, 1.0), (2.5, 2, 2.0), (8.5, 2, 5.0), (8.5, 16, 1.5)])
def test_other_programs_slow_this_one_down_by_their_number(monkeypatch, load: float, cores: int, times: float) -> None:
    monkeypatch.setattr(hardware.psutil, "getloadavg", lambda: (load, 0.0, 99.0))
    monkeypatch.setattr(hardware, "physical_cores", lambda: cores)
    assert hardware.slowdown() == times
