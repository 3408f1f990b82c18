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
    model = _import(file, settings, progress)
    if as_json:
        print_json(_json(model))
        return 0
    _tell(model)
    typer.echo(one_line(f"Chat with it: localspec chat -m {model.name}"))
    measure_new(model.name, settings, progress)
    return 0


def _import_folder(folder: Path, settings: Settings, as_json: bool) -> int:
    """Import every model of a folder. If a file cannot be imported, report it and continue."""
    models, others = models_below(folder), incomplete_below(folder)
    if not models and not others:
        path = str(folder)
        raise UsageMistake(f"{path!r} is a directory without GGUF files; give another directory, or a GGUF file.")
    progress, imported = Progress(), list[Imported]()
    for file, lacks in others.items():
        say(f"{file.name} is left out: {lacks}")
    for model in models:
        try:
            imported.append(_import(model.path, settings, progress))
        except LocalspecError as trouble:
            say(f"{model.name} is left out: {trouble}")
            continue
        if not as_json:
            _tell(imported[-1])
    if as_json:
        print_json([_json(result) for result in imported])
    elif imported:
        typer.echo(one_line(f"Chat with one: localspec chat -m {imported[0].name}"))
    return 0 if len(imported) == len(models) and not others else 1


def _import(file: Path, settings: Settings, progress: Progress) -> Imported:
    with progress, cleared_up_when_ended():
        return import_gguf(file, settings, progress.reporter)


def _json(model: Imported) -> dict[str, Any]:
    return {
        "name": model.name, "path": str(model.path), "packing": model.packing, "parameters": model.parameters,
        "bytes": model.bytes, "license": model.license, "file_bytes": model.file_bytes, "types": model.types,
        "new": model.new, "seconds": round(model.seconds, 3), "bits_per_weight": round(model.bits, 3),
    }  # fmt: skip


def _tell(model: Imported) -> None:
    weights = (
        precision_in_words("", model.packing, model.bits) if model.packing == BLOCKS else f"packed in {model.packing}"
    )
    note = "" if model.new else " It was imported before."
    typer.echo(
        one_line(
            f"{model.name} is ready: {amount(model.parameters)} parameters, {weights}, {size(model.bytes)}, read from "
            f"{must_stay(model.read_from)}.{note}"
        )
    )
