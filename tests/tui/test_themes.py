"""Colours: light or dark as the terminal is, or a chosen theme, which is saved."""

import pytest
from golden import wording
from textual.color import Color
from textual.command import CommandPalette
from textual.theme import BUILTIN_THEMES
from tui.scripted_engine import until

from localspec.config import Settings, load
from localspec.errors import UsageMistake
from localspec.paths import Paths
from localspec_tui import messages
from localspec_tui.themes import DARK, LIGHT
from localspec_tui.widgets.keys_panel import KeysFooter
from localspec_tui.widgets.prompt import Prompt


def config_file(tmp_path):
    return Paths(tmp_path).config_file


def test_both_of_auto_are_there():
    assert BUILTIN_THEMES[DARK].dark and not BUILTIN_THEMES[LIGHT].dark


@pytest.mark.parametrize(("ground", "theme"), [("15;0", DARK), ("0;15", LIGHT)])
async def test_what_the_environment_says_is_believed_until_the_terminal_answers(chat, monkeypatch, ground, theme):
    chat()  # forgets the variable
    monkeypatch.setenv("COLORFGBG", ground)
    async with chat().opened() as (talk, pilot):
        assert talk.app.theme == theme
        for light, after in ((True, LIGHT), (False, DARK)):
            talk.app.post_message(messages.BackgroundKnown(light))
            await until(pilot, lambda after=after: talk.app.theme == after)


def test_a_theme_that_there_is_not_is_refused_with_the_nearest(chat, tmp_path):
    config_file(tmp_path).parent.mkdir()
    config_file(tmp_path).write_text('theme = "dracla"')
    with pytest.raises(UsageMistake, match="theme = 'dracla' in .*config.toml names no theme .did you mean 'dracula'"):
        chat(settings=load(Paths(tmp_path), {}))


async def test_what_is_chosen_in_the_palette_is_kept(chat, tmp_path):
    file = config_file(tmp_path)
    file.parent.mkdir()
    file.write_text("# mine\nseed = 3 # three\n")
    talk = chat(settings=load(Paths(tmp_path), {}))

    async def choose(pilot, words):
        await pilot.press("ctrl+p", *"other colours")
        await until(pilot, lambda: "Choose other colours" in talk.screen_text())
        await pilot.press("enter")
        await until(pilot, lambda: "Search for a colour theme" in talk.screen_text())
        await pilot.press(*words)
        await until(pilot, lambda: isinstance(talk.app.screen, CommandPalette) and words in talk.screen_text())
        await pilot.press("enter")

    async with talk.playing() as pilot:
        await choose(pilot, "gruvbox")
        await until(pilot, lambda: talk.app.theme == "gruvbox")
        await until(pilot, lambda: "Saved in" in talk.screen_text())
        assert file.read_text() == '# mine\nseed = 3 # three\ntheme = "gruvbox"\n'
        await choose(pilot, "auto")
        await until(pilot, lambda: talk.app.theme == DARK)
        await until(pilot, lambda: '"auto"' in file.read_text())
        assert load(Paths(tmp_path), {}).theme == "auto"


@pytest.mark.parametrize(
    ("settings", "text", "message"),
    [
        (Settings(origins={"theme": "LOCALSPEC_THEME"}), "", wording("localspec_theme_decides_next")),
        (Settings(), "theme = [broken", "Not saved:"),
    ],
)
async def test_a_theme_that_is_not_saved_is_reported(chat, tmp_path, settings, text, message):
    file = config_file(tmp_path)
    file.parent.mkdir()
    file.write_text(text)
    async with chat(settings=settings).opened() as (talk, pilot):
        talk.app.choose_theme("nord")
        await until(pilot, lambda: any(message in told.message for told in talk.app.toasts))
        assert talk.app.theme == "nord"


def brightness(color: Color) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def least_contrast(talk, row) -> float:
    """Return the lowest contrast of the words in a row of the screen."""
    ratios = []
    for segment in talk.app.screen._compositor.render_strips()[row]:
        style = segment.style
        if segment.text.strip(" ▏❯") and not style.reverse:  # except the cursor and lines
            pair = (brightness(Color.from_rich_color(color)) for color in (style.color, style.bgcolor))
            dark, light = sorted(pair)
            ratios.append((light + 0.05) / (dark + 0.05))
    return min(ratios)


async def test_in_every_theme_the_footer_and_the_placeholder_can_be_read(chat):
    async with chat().opened() as (talk, pilot):
        themes = talk.app.available_themes
        assert set(themes) >= {*BUILTIN_THEMES}
        for name in themes:
            talk.app.theme = name
            await pilot.pause()
            footer, prompt = talk.app.screen.query_one(KeysFooter).region.y, talk.app.screen.query_one(Prompt).region.y
            await until(pilot, lambda: "Send" in talk.screen_text() and "Say something" in talk.screen_text())
            if name.startswith("ansi"):  # the terminal decides on these colours
                words = next(
                    one for one in talk.app.screen._compositor.render_strips()[prompt] if "ay something" in one.text
                )
                assert words.style.dim, name
            else:
                assert least_contrast(talk, footer) >= 4.5, name
                assert least_contrast(talk, prompt) >= 3, name


async def test_themes_are_shown_while_one_moves_through_their_list(chat, tmp_path):
    async with chat(settings=Settings(theme="nord")).opened() as (talk, pilot):
        await pilot.press("ctrl+p", *"colours", "enter")
        await until(pilot, lambda: "auto: matches" in talk.screen_text())
        talk.app.post_message(messages.BackgroundKnown(True))
        await pilot.pause()
        assert talk.app.theme == "nord", "which was chosen, whatever the terminal says"
        seen = set()
        for _ in range(4):
            await pilot.press("down")
            await pilot.pause()
            seen.add(talk.app.theme)
        assert len(seen) > 2
        await pilot.press("escape")
        await until(pilot, lambda: talk.app.theme == "nord")
        assert not config_file(tmp_path).exists()
