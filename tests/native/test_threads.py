"""The pool: it shares work, sleeps, ends, and survives a fork and a busy machine."""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from clocks import PATIENCE, until
from each import each
from native.engine import Pool, linear

from localspec.machine.library import library
from localspec.weights.matrices import PackedMatrix

WEIGHTS = PackedMatrix.pack(np.random.default_rng(0).standard_normal((640, 512)).astype(np.float32), "int8", 64)
INPUTS = np.random.default_rng(1).standard_normal((20, 512)).astype(np.float32)


def test_idle_threads_use_no_time():
    pools = [Pool(4) for _ in range(3)]
    for pool in pools:
        linear(WEIGHTS, INPUTS, pool=pool)

    def quiet() -> bool:  # on a busy machine, it takes a while until they sleep
        before = time.process_time()
        time.sleep(0.2)
        return time.process_time() - before < 0.01

    until(quiet)


def test_a_pool_ends_its_threads():
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    if sys.platform != "linux":
        pytest.skip("threads are counted in /proc")
    before = threads()
    pools = [Pool(5) for _ in range(4)]
    ours = threads() - before
    assert len(ours) == 16
    want = linear(WEIGHTS, INPUTS, pool=pools[0])
    assert np.array_equal(want, linear(WEIGHTS, INPUTS, pool=pools[3]))
    del pools
    until(lambda: not ours & threads())  # a thread that was joined may still be listed


def begun(count: int) -> tuple[Pool, list[int]]:
    """Return a pool of `count` threads, and the clocks of all but the caller's: the nanoseconds that each computed."""
    before = set(os.listdir("/proc/self/task"))
    pool = Pool(count)
    others = set(os.listdir("/proc/self/task")) - before
    assert len(others) == count - 1
    return pool, [~int(thread) << 3 | 6 for thread in sorted(others, key=int)]  # as pthread_getcpuclockid has them


def shares(pool: Pool, clocks: list[int], want: np.ndarray) -> list[float]:
    """Return, for a hundred products, the work of each other thread as a share of the caller's."""
    own, others = time.thread_time_ns(), [time.clock_gettime_ns(clock) for clock in clocks]
    for _ in range(100):
        assert np.array_equal(linear(WEIGHTS, INPUTS, pool=pool), want)
    own = time.thread_time_ns() - own
    return [(time.clock_gettime_ns(clock) - before) / own for clock, before in zip(clocks, others, strict=True)]


# If two threads share a core with other programs, the waiting thread does a tenth of the caller's work.
SOME, NEXT_TO_NOTHING = 0.03, 0.003


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the clocks of other threads are read")
@each("count", [2, 3])
def test_a_thread_rests_while_its_core_is_lent_and_no_bit_changes(count):
    want = linear(WEIGHTS, INPUTS)
    pool, clocks = begun(count)
    until(lambda: min(shares(pool, clocks, want)) > SOME)
    library().ls_pool_lend(pool.handle, 1)
    # It finishes the work that it has begun. It wakes with the others, and sleeps again.
    until(lambda: shares(pool, clocks, want)[-1] < (NEXT_TO_NOTHING if count == 2 else SOME / 2))
    library().ls_pool_lend(pool.handle, 0)
    until(lambda: min(shares(pool, clocks, want)) > SOME)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the clocks of other threads are read")
@each("count", [2, 4])
def test_all_compute_again_however_often_a_core_was_lent(count):
    want, alone, stop = linear(WEIGHTS, INPUTS), Pool(1), threading.Event()
    pool, clocks = begun(count)
    library().ls_pool_lend(alone.handle, 1)  # the caller never sleeps
    assert np.array_equal(linear(WEIGHTS, INPUTS, pool=alone), want)

    def lend_and_take_back() -> None:
        for number in itertools.count():
            library().ls_pool_lend(pool.handle, number % 2)
            if stop.is_set():
                break
        library().ls_pool_lend(pool.handle, 0)

    other = threading.Thread(target=lend_and_take_back)
    other.start()
    try:
        for number in range(300):
            assert np.array_equal(linear(WEIGHTS, INPUTS, pool=pool), want)
            if number % 50 == 0:
                time.sleep(0.001)  # long enough for all of them to fall asleep
    finally:
        stop.set()
        other.join()
    until(lambda: min(shares(pool, clocks, want)) > SOME)


def test_more_threads_than_cores_and_than_work():
    want = linear(WEIGHTS, INPUTS)
    pool = Pool(64)
    for _ in range(50):
        assert np.array_equal(linear(WEIGHTS, INPUTS, pool=pool), want)


def _in_a_child(pool: Pool, answers: "multiprocessing.SimpleQueue[bytes]") -> None:
    answers.put(linear(WEIGHTS, INPUTS, pool=pool).tobytes())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_alone():
    pool = Pool(3)
    want = linear(WEIGHTS, INPUTS, pool=pool)
    time.sleep(0.01)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(pool, answers))
    child.start()
    child.join(PATIENCE)  # the answer fits in a pipe, and a dead child would never answer
    assert child.exitcode == 0 and answers.get() == want.tobytes()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_child_that_was_forked_while_another_thread_computes_waits_for_nobody(threads):
    pool, many, stop = Pool(threads), np.tile(INPUTS, (50, 1)), threading.Event()
    want = linear(WEIGHTS, INPUTS, pool=pool)

    def compute() -> None:
        while not stop.is_set():
            linear(WEIGHTS, many, pool=pool)

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        for _ in range(5):
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(PATIENCE)  # ends a child that waits
                right = np.array_equal(linear(WEIGHTS, INPUTS, pool=pool), want)
                again = np.array_equal(linear(WEIGHTS, many, pool=pool)[-20:], want)
                os._exit(0 if right and again else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        busy.join()
    assert np.array_equal(linear(WEIGHTS, INPUTS, pool=pool), want)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_ends_no_threads_of_its_parent():
    pool = Pool(3)
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)  # ends a child that waits for them
        pool.__del__()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_two_pools_at_once_on_every_core():
    """Each has as many threads as there are cores: they take turns, and neither waits for a thread that gets no turn."""
    want = linear(WEIGHTS, INPUTS).tobytes()
    wrong: list[int] = []

    def work() -> None:
        pool = Pool(2 * (os.cpu_count() or 1))
        for number in range(50):
            if linear(WEIGHTS, INPUTS, pool=pool).tobytes() != want:
                wrong.append(number)

    several = [threading.Thread(target=work) for _ in range(3)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join(PATIENCE)
    assert not wrong and not any(thread.is_alive() for thread in several)
