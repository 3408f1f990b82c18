"""`localspec export ENGINE DRAFTER`: writes a trained drafter in the form of another engine."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from localspec.cli.console import Progress, print_json
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.options import whole_number
from localspec.exporting.engines import engine_named
from localspec.quantities import size
from localspec.text import one_line

app = typer.Typer()


@app.command()
def export(
    engine: Annotated[str, typer.Argument(help="vllm or sglang.")],
    drafter: Annotated[str, typer.Argument(help="A directory that `train` wrote, or a name as for --drafter.")],
    out: Annotated[Path, typer.Option("--out", help="The output directory, new or empty.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A name, a directory, or a GGUF file."),
    ] = None,
    tensor_parallel: Annotated[
        int, whole_number("--tensor-parallel", help="Number of GPUs that the command uses together.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of lines.")] = False,
) -> None:
    """Write a drafter in the layout of another engine, with the command that serves it."""
    engine_named(engine)
    from localspec.exporting.export import export as write

    with Progress() as progress, cleared_up_when_ended():
        progress.show(f"writing {drafter} for {engine}")
        exported = write(engine, drafter, model, out, tensor_parallel)
    if as_json:
        print_json(asdict(exported) | {"directory": str(exported.directory)})
        return
    label = engine_named(engine).label
    typer.echo(one_line(f"{drafter} for {label}: {exported.form}, {size(exported.bytes)}, in {exported.directory}"))
    for note in exported.notes:
        typer.echo(one_line(note))
    typer.echo(one_line(shlex.join(exported.command)))
