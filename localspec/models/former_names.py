"""The names of deleted imports that a registered model had: conversations and phrases of them still hold those."""

import json
from collections.abc import Mapping

from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew


def former_names(paths: Paths) -> dict[str, str]:
    """Return the name of the registered model by each former name; nothing if the file cannot be read."""
    try:
        found = parse_json(read_bytes(paths.former_names))
    except (OSError, ValueError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {former: name for former, name in pairs if isinstance(former, str) and isinstance(name, str)}


def save_former_names(names: Mapping[str, str], paths: Paths) -> None:
    """Add former names to those that are saved. Raises OSError."""
    if names.items() <= (known := former_names(paths)).items():
        return
    private_directory(paths.former_names.parent)
    write_anew(paths.former_names, json.dumps({**known, **names}).encode() + b"\n")
