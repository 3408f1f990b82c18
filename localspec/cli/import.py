"""localspec import FILE.gguf"""

from pathlib import Path
from typing import Annotated

import typer

from localspec.cli.console import print_json
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.meanwhile import measure_new
from localspec.cli.options import takes_settings
from localspec.cli.progress import Progress
from localspec.cli.texts import file_named
from localspec.config import Settings
from localspec.engine.importing import import_gguf
from localspec.quantities import amount, duration, size
from localspec.text import one_line

app = typer.Typer()


@app.command("import")
@takes_settings("quantize", quantize="How the CPU engine packs it: int8, int4, or auto, as it would be loaded.")
def import_file(
    *,
    file: Annotated[Path, typer.Argument(parser=file_named, help="A GGUF file; of several parts any one.")],
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a line.")] = False,
) -> None:
    """Make a model in a GGUF file ready for this engine, once. You may delete the file afterwards."""
    progress = Progress()
    try:
        with cleared_up_when_ended():
            done = import_gguf(file, settings, progress.reporter)
    finally:
        progress.clear()
    if as_json:
        print_json(
            {
                "name": done.name, "path": str(done.path), "packing": done.packing, "parameters": done.parameters,
                "bytes": done.bytes, "license": done.license, "file_bytes": done.file_bytes, "types": done.types,
                "new": done.new, "seconds": round(done.seconds, 3),
            }
        )  # fmt: skip
        return
    what = f"{amount(done.parameters)} parameters, {size(done.bytes)} in {done.packing}"
    of = f"{size(done.file_bytes)} in {', '.join(done.types)}"
    took = f", in {duration(done.seconds)}" if done.new else ", imported before"
    typer.echo(one_line(f"{done.name}: {what}, from {of}{took}: {done.path}"))
    typer.echo(one_line(f"Chat with it: localspec chat -m {done.name}. You may delete {file}; localspec has a copy."))
    measure_new(done.name, settings, progress)
