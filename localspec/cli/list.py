"""localspec list"""

import json
import sys
from typing import Annotated, Any

import typer

from localspec.checkpoint import revision
from localspec.cli.console import amount, seen, size, table
from localspec.config import home
from localspec.errors import LocalspecError
from localspec.models.packed_files import packed_files
from localspec.models.registry import TargetCard, installed
from localspec.packed_file import PackedFile
from localspec.paths import Paths
from localspec.text import one_line

app = typer.Typer()


@app.command()
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a table.")] = False,
) -> None:
    """The models on this machine: name, parameters, bytes, packed forms, license, path."""
    rows: list[dict[str, Any]] = []
    packed = packed_files(Paths(home()))
    for card, found in installed():
        if isinstance(found, LocalspecError):
            print(f"localspec: {one_line(card.name)} is left out: {one_line(str(found))}", file=sys.stderr)
            continue
        rows.append(
            {
                "name": card.name,
                "parameters": found.parameters,
                "bytes": found.bytes,
                "packed": _packed(card, packed),
                "license": card.license,
                "path": str(card.path),
                "description": card.description,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    a_count, bytes_ = (amount, size) if seen() else ("{:,}".format, "{:,}".format)  # programs get every digit
    lines = [
        [
            row["name"],
            a_count(row["parameters"]),
            bytes_(row["bytes"]),
            ", ".join(f"{form} {bytes_(held)}" for form, held in row["packed"].items()) or "no",
            row["license"] or "unknown",
            row["path"],
        ]
        for row in rows
    ]
    print("\n".join(table([["NAME", "PARAMETERS", "BYTES", "PACKED", "LICENSE", "PATH"], *lines], right={1, 2})))


def _packed(card: TargetCard, packed: list[PackedFile]) -> dict[str, int]:
    """The packings in which this model is here, beside its own weights or instead of them, and their bytes."""
    if not packed:
        return {}
    own = revision(card.path)
    return {one.header.packing: one.path.stat().st_size for one in packed if one.header.origin.revision == own}
