"""Former names of registered models, from imports that were deleted since.

Saved conversations and phrases still have these names.
"""

import json
from collections.abc import Mapping

from localspec.outside_files import parse_json, read_bytes
from localspec.paths import Paths, private_directory, write_anew


def former_names(paths: Paths) -> dict[str, str]:
    """Return the present name for each former name; an empty dict if the file cannot be read."""
    try:
        found = parse_json(read_bytes(paths.former_names))
    except (OSError, ValueError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {former: name for former, name in pairs if isinstance(former, str) and isinstance(name, str)}


def save_former_names(names: Mapping[str, str], paths: Paths) -> None:
    """Save these former names in addition to the saved ones. Raises OSError."""
    if names.items() <= (known := former_names(paths)).items():
        return
    private_directory(paths.former_names.parent)
    write_anew(paths.former_names, json.dumps({**known, **names}).encode() + b"\n")
