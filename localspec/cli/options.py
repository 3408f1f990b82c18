"""Options that several commands have."""

from contextlib import suppress
from typing import Annotated, Any

import typer


def number(*names: str, help: str) -> Any:  # noqa: A002
    """An option whose value the settings check: their sentence names it, which typer's own does not."""

    def read(text: str) -> int | float | str:
        for kind in (int, float):
            with suppress(ValueError):
                return kind(text)
        return text

    return typer.Option(*names, parser=read, metavar="N", help=help)


Context = Annotated[int | None, number("--context", help="Tokens of prompt and reply together.")]
Drafter = Annotated[str | None, typer.Option("--drafter", help="auto, none, phrases.")]
DraftMax = Annotated[str | None, number("--draft-max", help="Nodes of a draft tree, or auto.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="auto, fp32, fp16, bf16.")]
Quantize = Annotated[str | None, typer.Option("--quantize", help="auto, none, int8.")]
