"""Sizes that come faster than a screen is laid out."""

import asyncio

import pytest
from textual import events
from textual.screen import Screen
from tui.scripted_engine import talked

ENOUGH = 60  # layouts, for two sizes


@pytest.mark.parametrize("opened", ["", "ctrl+t"])
async def test_two_sizes_that_wait_for_a_screen_are_not_laid_out_in_turns_forever(chat, models, monkeypatch, opened):
    models("one", "two")
    talk = chat(["Well."])
    layouts: list[tuple[int, int]] = []
    lay_out = Screen._refresh_layout

    def counted(screen, *given, **named):
        if len(layouts) < 3 * ENOUGH:  # otherwise a failing test would never end
            layouts.append(screen.size)
            lay_out(screen, *given, **named)

    async with talk.playing() as pilot:
        await talked(talk, pilot, "Hi")
        if opened:
            await pilot.press(opened)
            await pilot.pause(0.1)
        screen, gate = talk.app.screen, asyncio.Event()
        monkeypatch.setattr(Screen, "_refresh_layout", counted)
        for one in talk.app.screen_stack:
            one.call_later(gate.wait)  # it is busy
        for size in ((60, 12), (140, 40)):
            talk.app.post_message(events.Resize.from_dimensions(size, None))
            await asyncio.sleep(0.05)  # as long as the application waits for another one
            for one in talk.app.screen_stack:
                one.call_later(lambda: None)
        gate.set()
        await asyncio.sleep(0.3)
        assert screen.size == (140, 40)
        assert not screen.has_class("-narrow")
        assert len(layouts) < ENOUGH
