"""`localspec import FILE.gguf`: registers GGUF files, which stay where they are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.cli.console import Progress, print_json, say
from localspec.cli.interrupt import cleared_up_when_ended
from localspec.cli.meanwhile import measure_new
from localspec.cli.options import takes_settings
from localspec.cli.texts import file_named
from localspec.config import Settings
from localspec.engine.importing import Imported, import_gguf, must_stay
from localspec.errors import LocalspecError, UsageMistake
from localspec.quantities import amount, precision_in_words, size
from localspec.text import one_line
from localspec.weights.packed_file import BLOCKS
from localspec.weights.packed_files import incomplete_below, models_below

app = typer.Typer()


@app.command("import")
@takes_settings(
    "quantize",
    quantize=("auto|int8|int4", "Packing: int8 or int4, or auto, which reads the file unchanged."),
)
def import_file(
    *,
    file: Annotated[
        Path, typer.Argument(parser=file_named, help="A GGUF file, any part of one, or a folder of files.")
    ],
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a line.")] = False,
) -> int:
    """Register a GGUF file as a model. It is read from the file, which must stay where it is."""
    if file.is_dir():
        return _import_folder(file, settings, as_json)
    progress = Progress()
    done = _import(file, settings, progress)
    if as_json:
        print_json(_json(done))
        return 0
    _tell(done)
    typer.echo(one_line(f"Chat with it: localspec chat -m {done.name}"))
    measure_new(done.name, settings, progress)
    return 0


def _import_folder(folder: Path, settings: Settings, as_json: bool) -> int:
    """Import every model of a folder. If a file cannot be imported, report it and continue."""
    models, others = models_below(folder), incomplete_below(folder)
    if not models and not others:
        raise UsageMistake(
            f"{str(folder)!r} is a directory without GGUF files; give another directory, or a GGUF file."
        )
    progress, done = Progress(), list[Imported]()
    for file, lacks in others.items():
        say(f"{file.name} is left out: {lacks}")
    for model in models:
        try:
            done.append(_import(model.path, settings, progress))
        except LocalspecError as trouble:
            say(f"{model.name} is left out: {trouble}")
            continue
        if not as_json:
            _tell(done[-1])
    if as_json:
        print_json([_json(one) for one in done])
    elif done:
        typer.echo(one_line(f"Chat with one: localspec chat -m {done[0].name}"))
    return 0 if len(done) == len(models) and not others else 1


def _import(file: Path, settings: Settings, progress: Progress) -> Imported:
    with progress, cleared_up_when_ended():
        return import_gguf(file, settings, progress.reporter)


def _json(done: Imported) -> dict[str, Any]:
    return {
        "name": done.name, "path": str(done.path), "packing": done.packing, "parameters": done.parameters,
        "bytes": done.bytes, "license": done.license, "file_bytes": done.file_bytes, "types": done.types,
        "new": done.new, "seconds": round(done.seconds, 3), "bits_per_weight": round(done.bits, 3),
    }  # fmt: skip


def _tell(done: Imported) -> None:
    weights = precision_in_words("", done.packing, done.bits) if done.packing == BLOCKS else f"packed in {done.packing}"
    known = "" if done.new else " It was imported before."
    typer.echo(
        one_line(
            f"{done.name} is ready: {amount(done.parameters)} parameters, {weights}, {size(done.bytes)}, read from "
            f"{must_stay(done.read_from)}.{known}"
        )
    )
