"""What the engines' one thread does when it cannot go on: nobody waits for ever."""

import threading
from queue import Queue
from types import SimpleNamespace

import pytest

from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.machine.memory import broken_for_good
from localspec.serving.room import EngineRoom, Ticket

STICKY = RuntimeError("CUDA error: an illegal memory access was encountered")


class Models:
    """Engines that answer nothing but trouble."""

    names: tuple[str, ...] = ()

    def __init__(self, resting: Exception | None = None, answering: Exception | None = None) -> None:
        self.resting, self.answering, self.asked = resting, answering, threading.Event()

    def rest(self) -> None:
        if self.resting and self.asked.is_set():
            raise self.resting

    def get(self, name: object) -> None:
        self.asked.set()
        raise self.answering or LocalspecError("This one is refused.")


def asked_of(models: Models, count: int) -> tuple[EngineRoom, list[Exception], threading.Event]:
    """Asks so many times before anybody answers; what each was told, and whether the server was ended."""
    ended, told = threading.Event(), Queue[Exception]()
    room = EngineRoom(Settings(), lambda _: models, end=ended.set)
    for number in range(count):
        room.ask(Ticket(SimpleNamespace(model=None), str(number), 0, told.put))
    room.start()
    answers = [told.get(timeout=30) for _ in range(count)]
    return room, answers, ended


@pytest.mark.parametrize("models", [Models(resting=STICKY), Models(answering=STICKY)])
def test_who_waits_is_told_when_the_engines_fail_and_the_server_ends(models: Models, capfd) -> None:
    room, answers, ended = asked_of(models, 3)
    assert ended.wait(30)
    why = f"The engines have failed ({STICKY}); start the server again."
    assert [str(answer) for answer in answers[1:]] == [why, why] and room.trouble == why
    with pytest.raises(LocalspecError, match="illegal memory access"):
        room.ask(Ticket(SimpleNamespace(model=None), "late", 0, pytest.fail))
    assert "Traceback" in capfd.readouterr().err


def test_trouble_of_one_request_ends_no_other(capfd) -> None:
    room, answers, ended = asked_of(Models(answering=ZeroDivisionError("of one")), 3)
    assert [str(answer) for answer in answers] == ["of one"] * 3
    assert room.close() and not ended.is_set() and not room.trouble and "of one" in capfd.readouterr().err


def test_what_is_broken_for_good() -> None:
    assert broken_for_good(STICKY)
    passing = (RuntimeError("CUDA out of memory"), RuntimeError("CUDA error: out of memory"), ValueError("CUDA error"))
    assert not any(map(broken_for_good, passing))
