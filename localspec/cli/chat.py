"""localspec chat [PROMPT]"""

import sys
from typing import Annotated, TextIO

import typer

from localspec.cli.options import SharedFlags, takes_shared_flags
from localspec.cli.progress import say
from localspec.cli.texts import asked
from localspec.environment import dumb_terminal, in_a_tab
from localspec.errors import UsageMistake
from localspec.models.names import begun_name, exact_name
from localspec.models.registry import known

app = typer.Typer()


@app.command()
@takes_shared_flags
def chat(
    flags: SharedFlags,
    prompt: Annotated[str | None, typer.Argument(help="The first thing to say.")] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Line by line, for dumb terminals and screen readers.")
    ] = False,
) -> int:
    """A conversation in the terminal."""
    hint = ""
    if prompt is not None and flags.settings.elsewhere is None and not flags.settings.origins["model"].startswith("--"):
        if (named := exact_name(prompt)) is not None and named in known():
            flags, prompt = flags.with_model(named), None
        elif (begun := begun_name(prompt)) is not None:
            hint = f"{prompt!r} is the first prompt; `localspec chat -m {begun}` would have chosen the model."
    first = None if prompt is None else asked(prompt)
    if plain or dumb_terminal():
        from localspec.cli.plain import converse

        if hint:
            say(hint)
        return converse(flags, first)
    if not in_a_tab() and not all(map(_is_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        raise UsageMistake(
            "`localspec chat` needs a terminal to draw on; for pipelines there is `localspec run`, and "
            "`localspec chat --plain` reads a prompt from each line."
        )
    from localspec_tui import chat as full_screen

    return full_screen(flags.settings, first, flags.files, flags.resume, hint)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
