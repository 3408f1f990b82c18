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
    files_here = [file for file in packed_files(paths) if not file.header.registered]
    packed = [(file.header.origin.revision, file.header.packing, file.path) for file in files_here]
    packed += packed_for_gpus(paths)
    installed_models = sorted(installed(), key=lambda pair: pair[0].name)
    for card, model in installed_models:
        row: dict[str, Any] = {"name": card.name}
        if isinstance(model, LocalspecError):
            packed_as = read(card.path) if isinstance(model, NotHere) and is_packed(card.path) else None
            say(str(model) if packed_as else f"{card.name} is left out: {model}")
            if packed_as is None:
                continue
            row |= {
                "parameters": packed_as.header.parameters,
                "bytes": 0,
                "bits_per_weight": None,
                "missing": str(packed_as.missing),
            }
        else:
            bits = round(model.bits, 3) if model.packing == BLOCKS else None
            absent = read(card.path).missing if model.packing else None  # another packing may still be usable
            missing = str(absent) if absent else None
            row |= {"parameters": model.parameters, "bytes": model.bytes, "bits_per_weight": bits, "missing": missing}
            with suppress(LocalspecError):
                for trouble in damaged_drafters(card):
                    say(trouble)
        draft = None  # the name of the small model here that drafts for this one, or its directory below the model's
        small, _ = (None, "") if isinstance(model, LocalspecError) else default_draft(card)
        if small is not None and small.card.here:
            is_inside = small.card.path == card.path / DRAFT_FOLDER and not small.named
            draft = f"{DRAFT_FOLDER}{os.sep}" if is_inside else small.card.name
        trained: list[dict[str, Any]] = []
        with suppress(LocalspecError):  # files that cannot be read
            every_kind = [] if isinstance(model, LocalspecError) else trained_drafters(card)
            trained = [{"kind": drafter.kind, "shipped": drafter.shipped} for drafter in every_kind]
        row |= {
            "packed": _packed(card, packed),
            "draft": draft,
            "trained": trained,
            "license": card.license,
            "path": str(card.path),
            "description": card.description,
            "chosen": present is not None and present in (reference(card), card.name),
            "problem": str(model) if isinstance(model, LocalspecError) else None,
        }
        rows.append(row)
    listed = {card.path for card, _ in installed_models}
    for file, reason in unreadable(paths).items():
        if file not in listed:
            advice = ", and import its GGUF file again" if f"-{BLOCKS}-" in file.name else ""
            problem = str(reason).partition(";")[0].rstrip(".")  # without the advice that may follow
            say(f"{file.name} is left out: {problem}. Delete it with `localspec rm {shlex.quote(str(file))}`{advice}.")
    used = files_in_use(paths).keys()
    for gguf in cached_gguf():
        if str(gguf.source) not in packed_sources(paths) and not gguf.places & used:
            say(
                f"{gguf.source} is in the Hugging Face cache as GGUF, {size(gguf.bytes)}, but not imported; "
                f"`localspec pull {gguf.source}` imports it, `localspec rm {gguf.source}` deletes it."
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
    packed = [f"{form} {bytes_(packed_bytes)}" for form, packed_bytes in row["packed"].items()]
    return ", ".join([*in_blocks, *packed, *missing]) or "no"


def _drafters(row: dict[str, Any]) -> str:
    """Return in words the drafters of a model: the user's trained drafters, shipped drafters, and its small model."""
    groups = []
    for shipped, words in ((False, ""), (True, ", shipped")):
        kinds = [drafter["kind"] for drafter in row["trained"] if drafter["shipped"] is shipped]
        if kinds:
            groups.append((", ".join(kinds) if len(kinds) <= MOST_KINDS else counted(len(kinds), "kind")) + words)
    return "; ".join([*groups, row["draft"]] if row["draft"] else groups) or "no"


def _packed(card: TargetCard, packed: list[tuple[str, str, Path]]) -> dict[str, int]:
    """Return the packings in which this model is here, with their bytes.

    `packed` lists the packed files of all models: revision, packing, file.
    """
    if not packed:
        return {}
    own_commit = revision(card.path)
    own_file = {(BLOCKS, card.path)}  # its bytes are in another column
    return {
        form: file.stat().st_size
        for commit, form, file in packed
        if commit == own_commit and (form, file) not in own_file
    }
