"""The buffer between the engine's thread and the screen."""

import threading
import time

import pytest
from each import each

from localspec.chat.figures import Figures
from localspec.events import Prefill, Text
from localspec_tui.messages import FIGURES_SECONDS, ReplyBuffer


class Counting:
    """Figures that count how often they were requested."""

    def __init__(self) -> None:
        self.asked = 0

    def figures(self) -> Figures:
        self.asked += 1
        return Figures(tokens=self.asked)


def text(said: str) -> Text:
    return Text(said, (1,), ("target",), 0.1, 1)


def test_text_is_taken_once_and_in_order():
    buffer, live = ReplyBuffer(), Counting()
    for said in ("a", "b"):
        buffer.put(text(said), live)
    assert buffer.take() == "ab"
    assert buffer.take() == ""
    buffer.put(text("c"), live)
    assert buffer.take() == "c"


def test_what_was_thought_is_taken_apart():
    buffer, live = ReplyBuffer(), Counting()
    for said, reasoning in (("", "so"), ("", " it is"), ("Yes", "")):
        buffer.put(Text(said, (1,), ("target",), 0.1, 1, (), reasoning, len(reasoning) > 0), live)
    assert (buffer.take_thoughts(), buffer.take()) == ("so it is", "Yes")
    assert (buffer.take_thoughts(), buffer.take()) == ("", "")
    buffer.put(Text("", (1,), ("target",), 0.1, 1, (), "left"), live)
    buffer.begin()
    assert buffer.take_thoughts() == ""


def test_figures_are_made_as_often_as_they_are_looked_at(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    buffer, live = ReplyBuffer(), Counting()
    for _ in range(50):
        buffer.put(text("x"), live)
    assert (live.asked, buffer.figures) == (1, Figures(tokens=1))
    now[0] += 1.5 * FIGURES_SECONDS
    buffer.put(text("x"), live)
    assert buffer.figures == Figures(tokens=2)
    buffer.end(live)
    assert buffer.figures == Figures(tokens=3)


@each("done, figures", [(512, Figures(tokens=1)), (2048, None)])
def test_only_an_unfinished_reading_is_shown(done, figures):
    buffer = ReplyBuffer()
    buffer.put(Prefill(done, 2048), Counting())
    assert buffer.figures == figures


def test_a_new_reply_begins_with_nothing():
    buffer, live = ReplyBuffer(), Counting()
    buffer.put(text("left"), live)
    buffer.begin()
    assert (buffer.take(), buffer.figures) == ("", None)


@pytest.mark.slow
def test_nothing_is_lost_between_two_threads():
    buffer, live, taken = ReplyBuffer(), Counting(), []
    numbers = [f"{number} " for number in range(20_000)]
    thread = threading.Thread(target=lambda: [buffer.put(text(number), live) for number in numbers])
    thread.start()
    while thread.is_alive():
        taken.append(buffer.take())
    taken.append(buffer.take())
    assert "".join(taken) == "".join(numbers)
