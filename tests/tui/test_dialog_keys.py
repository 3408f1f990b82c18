"""Keys in dialogs act in the order of typing, also if all of them arrive at once."""

from textual import events
from textual.widgets import Input
from tui.scripted_engine import back, talked, until


def burst(pilot, text: str) -> None:
    for key in [*text, "ctrl+s"]:
        pilot.app.post_message(events.Key({" ": "space"}.get(key, key), key if len(key) == 1 else None))


def test_a_system_prompt_is_saved_with_the_letters_before_ctrl_s(chat):
    talk = chat(["Yes."])

    async def story(pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "System prompt:" in talk.screen_text())
        burst(pilot, "be brief" * 20)
        await until(pilot, back(talk))
        await talked(talk, pilot, "Hi")

    talk.play(story)
    assert talk.engine.asked[0][0] == {"role": "system", "content": "be brief" * 20}


def test_sampling_is_saved_with_the_digits_before_ctrl_s(chat):
    talk = chat(["Yes."])

    async def story(pilot):
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(talk.app.focused, Input))
        burst(pilot, "0." + "123456789")
        await until(pilot, back(talk))
        await talked(talk, pilot, "Hi")

    talk.play(story)
    assert talk.engine.asked_with[0][0].temperature == 0.123456789
