"""`localspec chat [PROMPT]`: opens a conversation in the terminal."""

import sys
from typing import Annotated

import typer

from localspec.cli.console import is_terminal, say
from localspec.cli.options import SharedFlags, takes_shared_flags
from localspec.cli.texts import checked_prompt
from localspec.environment import dumb_terminal, in_a_tab
from localspec.errors import UsageMistake

app = typer.Typer()


@app.command()
@takes_shared_flags
def chat(
    *,
    prompt: Annotated[str | None, typer.Argument(help="The first prompt.")] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Line by line, for dumb terminals and screen readers.")
    ] = False,
    flags: SharedFlags,
) -> int:
    """Chat in the terminal."""
    flags, prompt, hint = (flags, None, "") if prompt is None else _model_or_prompt(flags, prompt)
    first = None if prompt is None else checked_prompt(prompt)
    if plain or dumb_terminal():
        from localspec.cli.plain import converse

        if hint:
            say(hint)
        return converse(flags, first)
    if not in_a_tab() and not all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        raise UsageMistake(
            "`localspec chat` needs a terminal; in pipelines use `localspec run`, or `localspec chat --plain`, "
            "which reads one prompt per line."
        )
    from localspec_tui import chat as full_screen

    return full_screen(flags.settings, first, flags.files, flags.resume, hint)


def _model_or_prompt(flags: SharedFlags, word: str) -> tuple[SharedFlags, str | None, str]:
    """Return the flags, the prompt, and a hint if the user may have meant the prompt as the name of a model.

    The word is read as `-m` if it is the full name of a model here, otherwise as a prompt. Unlike in `run`, a prefix of
    a model's name is not enough: no prompt follows, so the word itself may be the prompt.
    """
    if flags.settings.elsewhere is not None or flags.settings.origins["model"].startswith("--"):
        return flags, word, ""
    from localspec.models.names import exact_name, name_in_prompt
    from localspec.models.registry import known

    if (model := exact_name(word)) is not None and model in known():
        return flags.with_model(model), None, ""
    if (name := name_in_prompt(word)) is not None:
        return flags, word, f"{word!r} is the first prompt; to choose the model, use `localspec chat -m {name}`."
    return flags, word, ""
