"""What lies between the engine's thread and the screen."""

import threading
import time

import pytest

from localspec.events import Prefill, Text
from localspec_tui.reply_outlet import FIGURES_SECONDS, ReplyOutlet


class Counting:
    """Figures that say how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def parts(self) -> list[str]:
        self.asked += 1
        return [f"{self.asked}."]


def text(said: str) -> Text:
    return Text(said, (1,), ("target",), 0.1, 1)


def test_text_is_taken_once_and_in_order():
    outlet, live = ReplyOutlet(), Counting()
    for said in ("a", "b"):
        outlet.put(text(said), live)
    assert outlet.take() == "ab"
    assert outlet.take() == ""
    outlet.put(text("c"), live)
    assert outlet.take() == "c"


def test_figures_are_made_as_often_as_they_are_looked_at(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    outlet, live = ReplyOutlet(), Counting()
    for _ in range(50):
        outlet.put(text("x"), live)
    assert (live.asked, outlet.figures) == (1, ("1.",))
    now[0] += 1.5 * FIGURES_SECONDS
    outlet.put(text("x"), live)
    assert outlet.figures == ("2.",)
    outlet.end(live)
    assert outlet.figures == ("3.",)


@pytest.mark.parametrize(("done", "figures"), [(512, ("reading 512 of 2,048 tokens",)), (2048, ())])
def test_only_what_is_still_being_read_is_told(done, figures):
    outlet = ReplyOutlet()
    outlet.put(Prefill(done, 2048), Counting())
    assert outlet.figures == figures


def test_a_new_reply_begins_with_nothing():
    outlet, live = ReplyOutlet(), Counting()
    outlet.put(text("left"), live)
    outlet.begin()
    assert (outlet.take(), outlet.figures) == ("", ())


def test_nothing_is_lost_between_two_threads():
    outlet, live, taken = ReplyOutlet(), Counting(), []
    numbers = [f"{number} " for number in range(20_000)]
    thread = threading.Thread(target=lambda: [outlet.put(text(number), live) for number in numbers])
    thread.start()
    while thread.is_alive():
        taken.append(outlet.take())
    taken.append(outlet.take())
    assert "".join(taken) == "".join(numbers)
