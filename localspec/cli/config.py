"""`localspec config`: shows the settings and where each value comes from."""

import json
from typing import Annotated, Any

import typer

from localspec import environment
from localspec.cli.console import folded, width
from localspec.config import NAMES, load
from localspec.models.present import present_model
from localspec.paths import Paths
from localspec.text import one_line

app = typer.Typer()
VALUES = 24  # columns for a value


@app.command()
def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """Show the settings and where each value comes from. A dash means that a setting is not set."""
    settings = load()
    if settings.origins["theme"] != "default" or settings.keymap:
        from localspec_tui import keymap, themes  # slow to import

        themes.check(settings)
        keymap.effective(settings)
    values = {name: getattr(settings, name) for name in NAMES}
    present = present_model(settings, Paths(environment.home()))
    if as_json:
        entries: dict[str, dict[str, Any]]
        entries = {name: {"value": value, "origin": settings.origins[name]} for name, value in values.items()}
        entries["model"] |= {"used": present.model, "used_because": present.origin}
        print(json.dumps(entries, indent=2))
        return
    names = max(map(len, values))
    origins = dict(settings.origins)
    if settings.model is None:
        values["model"], origins["model"] = present
    for name, value in values.items():
        shown = "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        row, origin = f"{name:{names}} {one_line(shown):{VALUES}}", one_line(origins[name])
        if len(row) > names + 1 + VALUES:  # the origin keeps its column
            print("\n".join(folded(row, width(), indent=names + 1)))
            row = " " * (names + 1 + VALUES)
        print("\n".join(folded(f"{row} {origin}", width(), indent=names + 1)))
    file = Paths(environment.home()).config_file
    print(
        "\n".join(
            folded(one_line(f"Change settings in {file}, or for one command: LOCALSPEC_TEMPERATURE=0.3"), width())
        )
    )
