"""When the thread of the engines ends, no request waits for it forever."""

import threading
from queue import Queue
from types import SimpleNamespace

import pytest
from clocks import PATIENCE
from golden import matching

from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.machine import memory
from localspec.serving import room
from localspec.serving.client_request import ClientRequest
from localspec.serving.room import EngineRoom, Ticket

ASKED = ClientRequest("demo", [{"role": "user", "content": "Hi"}], None, {})


class Models:
    """Models whose calls run a scripted action each, once there is a request."""

    loaded = ()

    def __init__(self, rest=lambda client_waits: None, get=lambda name: None):
        self.rest, self.get = rest, get


def ended(models: Models, requests: int) -> tuple[EngineRoom, list[object]]:
    """Return the room after `requests` requests that came before it started, and what was delivered to each."""
    over, delivered = threading.Event(), [Queue() for _ in range(requests)]
    found = EngineRoom(Settings(), lambda _: models, end=over.set)
    for number, box in enumerate(delivered):
        found.ask(Ticket(ASKED, str(number), 1, box.put))
    found.start()
    assert over.wait(PATIENCE)
    found.join(PATIENCE)
    assert not found.is_alive()
    return found, [box.get(timeout=PATIENCE) for box in delivered]


def fails(*_):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with…")


def test_if_the_thread_ends_all_waiting_clients_are_notified_and_the_server_ends(capfd):
    found, delivered = ended(Models(rest=fails), 2)
    assert {(type(one), str(one)) for one in delivered} == {(LocalspecError, found.failure)}
    assert "(RuntimeError: CUDA error: an illegal memory access was encountered)" in found.failure
    with pytest.raises(LocalspecError, match=matching("cannot_go_on")):
        found.ask(Ticket(ASKED, "late", 1, pytest.fail))
    assert found.close() and "Traceback" in capfd.readouterr().err


def test_so_is_who_was_being_answered_where_the_gpu_is_lost_or_a_library_panics(capfd, monkeypatch):
    class Panic(BaseException):
        pass

    def panics(_):
        raise Panic

    for get, lost in ((fails, True), (panics, False)):
        monkeypatch.setattr(room, "is_lost", lambda lost=lost: lost)
        found, delivered = ended(Models(get=get), 2)
        assert {str(one) for one in delivered} == {found.failure}


def test_an_internal_error_that_leaves_the_gpu_usable_ends_only_one_request(capfd):
    box = Queue()
    found = EngineRoom(Settings(), lambda _: Models(get=fails), end=lambda: pytest.fail("the server was ended"))
    for client in "ab":
        found.ask(Ticket(ASKED, client, 1, box.put))
    found.start()
    assert [type(box.get(timeout=PATIENCE)) for _ in "ab"] == [RuntimeError, RuntimeError]
    assert found.close() and found.failure is None
    with pytest.raises(LocalspecError, match=matching("being_stopped")):
        found.ask(Ticket(ASKED, "late", 1, pytest.fail))


def test_a_gpu_is_lost_where_it_cannot_even_be_waited_for(monkeypatch):
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: None)
    monkeypatch.setitem(memory.sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert not memory.is_lost()
    cuda.synchronize = fails
    assert memory.is_lost()
    cuda.is_initialized = lambda: False
    assert not memory.is_lost(), "nothing was computed there"
