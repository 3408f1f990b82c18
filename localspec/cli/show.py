"""localspec show NAME"""

import json
from typing import Annotated

import typer

from localspec.checkpoint import inspect, revision
from localspec.drafter_cards import drafters
from localspec.errors import LocalspecError
from localspec.registry import resolve
from localspec.selection import DRAFTERS, PAIRED
from localspec.text import one_line

app = typer.Typer()


def _is_here(draft: str) -> bool:
    try:
        return bool(draft) and bool(inspect(resolve(draft).path))
    except LocalspecError:
        return False


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A registered name, or a directory in the Hugging Face layout.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """What is known about one model."""
    card = resolve(name)
    checkpoint = inspect(card.path)
    facts: dict[str, str | int | list[str] | None] = {
        "name": card.name,
        "description": card.description,
        "path": str(card.path),
        "architecture": checkpoint.architecture,
        "parameters": checkpoint.parameters,
        "bytes": checkpoint.bytes,
        "context": checkpoint.context,
        "license": card.license,
        "drafters": [
            *DRAFTERS,
            *(drafter.kind for drafter in drafters(card)),
            *(f"{kind}:{card.draft}" for kind in PAIRED if _is_here(card.draft)),
        ],
        "revision": revision(card.path),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
        print(f"{key:13} {one_line(shown) if shown else 'unknown'}")
