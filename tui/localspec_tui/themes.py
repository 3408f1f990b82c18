"""The colours of the chat: the theme in the settings, or one that matches the terminal's background."""

from collections.abc import Callable
from functools import partial

from textual.theme import BUILTIN_THEMES, ThemeProvider

from localspec import environment
from localspec.config import PREFIX, Settings, keep_setting, nearest
from localspec.errors import LocalspecError, UsageMistake
from localspec.paths import Paths

AUTO = "auto"
LIGHT, DARK = "textual-light", "textual-dark"


def check(settings: Settings) -> None:
    """Raise UsageMistake if no theme has the name in `settings`."""
    if settings.theme != AUTO and settings.theme not in BUILTIN_THEMES:
        guess = nearest(settings.theme, [AUTO, *BUILTIN_THEMES])
        raise UsageMistake(
            f"{settings.shown('theme')} names no theme{guess}. Correct or remove it. To see all themes, press "
            "Ctrl+P in the chat and run “Choose other colours”."
        )


def shown(theme: str, light: bool | None) -> str:
    """Return the theme for a setting. `light` says whether the terminal's background is light, if known."""
    return theme if theme != AUTO else LIGHT if light else DARK


def keep(theme: str, origin: str) -> str:
    """Save the theme in config.toml. Return a sentence for the user. `origin` is the source of the present setting."""
    file = Paths(environment.home()).config_file
    try:
        keep_setting(file, "theme", theme)
    except LocalspecError as error:
        return f"Not saved: {error}"
    if origin.startswith(PREFIX):
        return f"Saved, but {origin} decides the theme at the next start. Unset that variable to use the saved theme."
    return f"Saved in {file}."


class Themes(ThemeProvider):
    """A provider of the themes among which the user chooses in the palette."""

    @property
    def commands(self) -> list[tuple[str, Callable[[], None]]]:
        choose: Callable[[str], None] = getattr(self.app, "choose_theme")  # noqa: B009  # of whatever application
        automatic = f"{AUTO}: matches the terminal's background"
        names = {automatic: AUTO, **{name: name for name in sorted(self.app.available_themes)}}
        return [(line, partial(choose, name)) for line, name in names.items()]
