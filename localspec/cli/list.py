"""localspec list"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.checkpoint import revision
from localspec.cli.console import table, width
from localspec.cli.progress import say
from localspec.config import load
from localspec.environment import home
from localspec.errors import LocalspecError
from localspec.hub.cached_gguf import cached_gguf
from localspec.models.only_copies import unmoved
from localspec.models.own_draft import BESIDE, own_draft
from localspec.models.packed_files import kept_for_gpus, packed_files, packed_sources, unreadable
from localspec.models.present import present_model
from localspec.models.registry import TargetCard, installed, reference
from localspec.packed_file import BLOCKS
from localspec.paths import Paths
from localspec.quantities import amount, size

app = typer.Typer()


@app.command()
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a table.")] = False,
) -> None:
    """The models on this machine: name, parameters, bytes, packed forms, small model, license, path.

    A star at a terminal marks the one that answers where none is named.
    """
    rows: list[dict[str, Any]] = []
    paths = Paths(home())
    present = present_model(load(), paths).model
    packed = [(one.header.origin.revision, one.header.packing, one.path) for one in packed_files(paths)]
    packed += kept_for_gpus(paths)
    found_here = [*installed()]
    for card, found in found_here:
        if isinstance(found, LocalspecError):
            say(f"{card.name} is left out: {found}")
            continue
        rows.append(
            {
                "name": card.name,
                "parameters": found.parameters,
                "bytes": found.bytes,
                "packed": _packed(card, packed),
                "bits_per_weight": round(found.bits, 3) if found.packing == BLOCKS else None,
                "draft": _draft(card),
                "license": card.license,
                "path": str(card.path),
                "description": card.description,
                "present": present is not None and present in (reference(card), card.name),
            }
        )
    named = {card.path for card, _ in found_here}
    for file, why in unreadable(paths).items():
        if file not in named:
            say(f"{file.name} is left out: {why} Delete it with `localspec rm {file}`.")
    if sentence := unmoved(paths):
        say(sentence)
    for one in cached_gguf():
        if str(one.source) not in packed_sources(paths):
            say(
                f"{one.source} lies in the common cache as GGUF, {size(one.bytes)}, and nothing is made of it; "
                f"`localspec pull {one.source}` does that, `localspec rm {one.source}` deletes it."
            )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    a_count, bytes_ = (amount, size) if width() else ("{:,}".format, "{:,}".format)  # programs get every digit
    lines = [
        [
            row["name"] if not width() else f"{'*' if row['present'] else ' '} {row['name']}",
            a_count(row["parameters"]),
            bytes_(row["bytes"]),
            _forms(row, bytes_),
            row["draft"] or "no",
            row["license"] or "unknown",
            row["path"],
        ]
        for row in rows
    ]
    heads = ["NAME" if not width() else "  NAME", "PARAMETERS", "BYTES", "PACKED", "DRAFT", "LICENSE", "PATH"]
    # `show NAME` has the whole path
    print("\n".join(table([heads, *lines], right={1, 2}, width=width())))


def _forms(row: dict[str, Any], bytes_: Callable[[int], str]) -> str:
    """How a model's weights are held, if not only in its own files."""
    in_blocks = [f"{row['bits_per_weight']:.1f} bits per weight"] if row["bits_per_weight"] else []
    packed = [f"{form} {bytes_(held)}" for form, held in row["packed"].items()]
    return ", ".join([*in_blocks, *packed]) or "no"


def _draft(card: TargetCard) -> str | None:
    """The small model here that drafts for this one, by its name, or by its directory below the model's own."""
    own, _ = own_draft(card)
    if own is None or not own.card.here:
        return None
    return f"{BESIDE}{os.sep}" if own.card.path == card.path / BESIDE and not own.named else own.card.name


def _packed(card: TargetCard, packed: list[tuple[str, str, Path]]) -> dict[str, int]:
    """The packings in which this model is here, beside its own weights or instead of them, and their bytes.

    `packed` are those of all models: revision, packing, file.
    """
    if not packed:
        return {}
    own = revision(card.path)
    return {packing: file.stat().st_size for of, packing, file in packed if of == own and packing != BLOCKS}
