"""`localspec list`: lists the models that are here."""

import json
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.cli.console import say, table, width
from localspec.config import load
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere
from localspec.hub.cached_gguf import cached_gguf
from localspec.hub.records import packed_sources
from localspec.models.default_draft import DRAFT_FOLDER, default_draft
from localspec.models.drafter_cards import damaged_drafters, trained_drafters
from localspec.models.present import present_model
from localspec.models.registry import TargetCard, installed, reference
from localspec.paths import Paths
from localspec.quantities import amount, counted, precision_in_words, size
from localspec.weights.checkpoint import is_packed, revision
from localspec.weights.packed_file import BLOCKS, read
from localspec.weights.packed_files import files_in_use, packed_files, packed_for_gpus, unreadable

app = typer.Typer()

MOST_KINDS = 2  # of trained drafters that the table names; of more it counts them


@app.command()
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a table.")] = False,
) -> None:
    """List the models on this machine: name, parameters, bytes, packed forms, drafters, license, path.

    The drafters of a model are trained drafters and its small draft model. Drafters that come with localspec are marked
    as shipped.

    At a terminal a star marks the model that answers when you name none; in JSON `chosen` is true. `problem` says
    why a model cannot be used, such as a missing GGUF file.
    """
    rows: list[dict[str, Any]] = []
    paths = Paths(home())
    present = present_model(load(), paths).model
    every = [one for one in packed_files(paths) if not one.header.registered]
    packed = [(one.header.origin.revision, one.header.packing, one.path) for one in every]
    packed += packed_for_gpus(paths)
    found_here = sorted(installed(), key=lambda model: model[0].name)
    for card, found in found_here:
        row: dict[str, Any] = {"name": card.name}
        if isinstance(found, LocalspecError):
            packed_as = read(card.path) if isinstance(found, NotHere) and is_packed(card.path) else None
            say(str(found) if packed_as else f"{card.name} is left out: {found}")
            if packed_as is None:
                continue
            row |= {
                "parameters": packed_as.header.parameters,
                "bytes": 0,
                "bits_per_weight": None,
                "missing": str(packed_as.missing),
            }
        else:
            bits = round(found.bits, 3) if found.packing == BLOCKS else None
            gone = read(card.path).missing if found.packing else None  # another packing may still be usable
            missing = str(gone) if gone else None
            row |= {"parameters": found.parameters, "bytes": found.bytes, "bits_per_weight": bits, "missing": missing}
            with suppress(LocalspecError):
                for trouble in damaged_drafters(card):
                    say(trouble)
        draft = None  # the name of the small model here that drafts for this one, or its directory below the model's
        small, _ = (None, "") if isinstance(found, LocalspecError) else default_draft(card)
        if small is not None and small.card.here:
            inside = small.card.path == card.path / DRAFT_FOLDER and not small.named
            draft = f"{DRAFT_FOLDER}{os.sep}" if inside else small.card.name
        trained: list[dict[str, Any]] = []
        with suppress(LocalspecError):  # files that cannot be read
            every_kind = [] if isinstance(found, LocalspecError) else trained_drafters(card)
            trained = [{"kind": one.kind, "shipped": one.shipped} for one in every_kind]
        row |= {
            "packed": _packed(card, packed),
            "draft": draft,
            "trained": trained,
            "license": card.license,
            "path": str(card.path),
            "description": card.description,
            "chosen": present is not None and present in (reference(card), card.name),
            "problem": str(found) if isinstance(found, LocalspecError) else None,
        }
        rows.append(row)
    named = {card.path for card, _ in found_here}
    for file, why in unreadable(paths).items():
        if file not in named:
            again = ", and import its GGUF file again" if f"-{BLOCKS}-" in file.name else ""
            say(f"{file.name} is left out: {why} Delete it with `localspec rm {shlex.quote(str(file))}`{again}.")
    used = files_in_use(paths).keys()
    for one in cached_gguf():
        if str(one.source) not in packed_sources(paths) and not one.places & used:
            say(
                f"{one.source} is in the Hugging Face cache as GGUF, {size(one.bytes)}, but not imported; "
                f"`localspec pull {one.source}` imports it, `localspec rm {one.source}` deletes it."
            )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    a_count, bytes_ = (amount, size) if width() else ("{:,}".format, "{:,}".format)  # programs get exact numbers
    lines = [
        [
            row["name"] if not width() else f"{'*' if row['chosen'] else ' '} {row['name']}",
            a_count(row["parameters"]),
            bytes_(row["bytes"]),
            _forms(row, bytes_),
            _drafters(row),
            row["license"] or "unknown",
            row["path"],
        ]
        for row in rows
    ]
    heads = ["NAME" if not width() else "  NAME", "PARAMETERS", "BYTES", "PACKED", "DRAFTERS", "LICENSE", "PATH"]
    # `show NAME` has the whole path
    print("\n".join(table([heads, *lines], right={1, 2}, width=width(), wraps={3, 4, 5})))


def _forms(row: dict[str, Any], bytes_: Callable[[int], str]) -> str:
    """Return as text a model's packings with their sizes, and the name of a missing file; "no" if there are none."""
    missing = [f"missing: {row['missing']}"] if row["missing"] else []
    bits = row["bits_per_weight"]
    in_blocks = [precision_in_words("", BLOCKS, bits)] if bits else []
    packed = [f"{form} {bytes_(held)}" for form, held in row["packed"].items()]
    return ", ".join([*in_blocks, *packed, *missing]) or "no"


def _drafters(row: dict[str, Any]) -> str:
    """Return in words the drafters of a model: the user's trained drafters, shipped drafters, and its small model."""
    named = []
    for shipped, words in ((False, ""), (True, ", shipped")):
        kinds = [one["kind"] for one in row["trained"] if one["shipped"] is shipped]
        if kinds:
            named.append((", ".join(kinds) if len(kinds) <= MOST_KINDS else counted(len(kinds), "kind")) + words)
    return "; ".join([*named, row["draft"]] if row["draft"] else named) or "no"


def _packed(card: TargetCard, packed: list[tuple[str, str, Path]]) -> dict[str, int]:
    """Return the packings in which this model is here, with their bytes.

    `packed` lists the packed files of all models: revision, packing, file.
    """
    if not packed:
        return {}
    here = revision(card.path)
    own_file = {(BLOCKS, card.path)}  # its bytes are in another column
    return {form: file.stat().st_size for of, form, file in packed if of == here and (form, file) not in own_file}
