"""localspec list"""

import json
import sys
from typing import Annotated

import typer

from localspec.errors import LocalspecError
from localspec.models.registry import installed
from localspec.text import one_line

app = typer.Typer()


@app.command()
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a table.")] = False,
) -> None:
    """The models on this machine: name, parameters, bytes, license, path."""
    rows = []
    for card, found in installed():
        if isinstance(found, LocalspecError):
            print(f"localspec: {one_line(card.name)} is left out: {one_line(str(found))}", file=sys.stderr)
            continue
        rows.append(
            {
                "name": card.name,
                "parameters": found.parameters,
                "bytes": found.bytes,
                "license": card.license,
                "path": str(card.path),
                "description": card.description,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = [["NAME", "PARAMETERS", "BYTES", "LICENSE", "PATH"]]
    for row in rows:
        license_ = row["license"] or "unknown"
        cells = (row["name"], f"{row['parameters']:,}", f"{row['bytes']:,}", license_, row["path"])
        table.append([one_line(str(cell)) for cell in cells])
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    for name, parameters, size, license_, path in table:
        print(f"{name:{widths[0]}}  {parameters:>{widths[1]}}  {size:>{widths[2]}}  {license_:{widths[3]}}  {path}")
