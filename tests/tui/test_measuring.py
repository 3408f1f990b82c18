"""Missing measurements of a model are made after its first reply, while no reply is running."""

import threading
from collections.abc import Iterator

from clocks import PATIENCE
from each import each
from tui.scripted_engine import ScriptedEngine, say, until

from localspec.engine.model_profile import CHECKING, PROBING, TIMING_DRAFT
from localspec_tui import loading

TIMING = "timing this model (once): 3 of 8, about 6 s left"


class Unmeasured:
    """Stages of a measurement that takes them one by one, each when its gate is open."""

    def __init__(self, engine: ScriptedEngine, stages: int) -> None:
        self.gates = [threading.Event() for _ in range(stages)]
        self.taken, self.replies = 0, engine.asked
        self.before = -1  # replies that were requested before it began
        engine.measure = self.measure  # type: ignore[attr-defined]

    def measure(self) -> Iterator[str]:
        while self.taken < len(self.gates):
            self.before = len(self.replies) if self.before < 0 else self.before
            yield TIMING
            assert self.gates[self.taken].wait(PATIENCE), "nobody opened the gate"
            self.taken += 1


async def test_after_the_first_reply_it_is_shown_how_far_measuring_is(chat):
    talk = chat(["Hello."])
    measured = Unmeasured(talk.engine, 2)
    async with talk.playing() as pilot:
        await pilot.pause()
        assert measured.before == -1, "nothing is measured before the first reply"
        await say(pilot, "Hi")
        await until(pilot, lambda: f"{TIMING} · esc skips" in talk.screen_text())
        assert "40 tok/s" in talk.live, "the figures of the reply stay"
        for gate in measured.gates:
            gate.set()
        await until(pilot, lambda: TIMING not in talk.screen_text())
        assert (measured.before, measured.taken) == (1, 2)


async def test_in_a_narrow_terminal_the_key_that_skips_it_stays(chat):
    talk = chat(["Hello."])
    measured = Unmeasured(talk.engine, 1)
    async with talk.playing(size=(40, 20)) as pilot:
        await say(pilot, "Hi")
        await until(pilot, lambda: "… · esc skips" in talk.screen_text())
        measured.gates[0].set()


@each("what", [CHECKING, TIMING_DRAFT, PROBING])
def test_count_time_and_key_fit_into_eighty_columns(what):
    assert len(f" {what}: 25 of 25, about 12 s left · esc skips ") <= 80


async def test_a_prompt_interrupts_it_and_it_continues_afterwards(chat):
    talk = chat(["Hello."], ["Again."])
    measured = Unmeasured(talk.engine, 2)
    async with talk.playing() as pilot:
        await say(pilot, "Hi")
        await until(pilot, lambda: TIMING in talk.screen_text())
        await say(pilot, "Once more")
        measured.gates[0].set()  # the current step
        await until(pilot, lambda: talk.replies() == ["Hello.", "Again."])
        assert measured.taken == 1
        measured.gates[1].set()
        await until(pilot, lambda: measured.taken == 2)


async def test_escape_skips_it(chat, monkeypatch):
    monkeypatch.setattr(loading, "SHOWN_SECONDS", 0.0)
    talk = chat(["Hello."], ["Again."])
    measured = Unmeasured(talk.engine, 3)
    async with talk.playing() as pilot:
        await say(pilot, "Hi")
        await until(pilot, lambda: TIMING in talk.screen_text())
        await pilot.press("escape")
        measured.gates[0].set()
        await until(pilot, lambda: TIMING not in talk.screen_text())
        await say(pilot, "Once more")
        await until(pilot, lambda: talk.replies() == ["Hello.", "Again."])
        await until(pilot, talk.idle)
        assert measured.taken == 1, "it stays skipped"


def test_leaving_does_not_wait_for_it(chat):
    talk = chat(["Hello."])
    measured = Unmeasured(talk.engine, 2)

    async def story(pilot):
        await say(pilot, "Hi")
        await until(pilot, lambda: TIMING in talk.screen_text())

    talk.play(story, then=measured.gates[0].set)
    assert measured.taken == 1
