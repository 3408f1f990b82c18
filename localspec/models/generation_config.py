"""Reads generation_config.json: how a model's maker samples, and which tokens end a reply."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, cannot_read, first_line
from localspec.models.family_config import number
from localspec.outside_files import parse_json, read_bytes
from localspec.setting_checks import HOTTEST

GENERATION = "generation_config.json"
_SAMPLING: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= HOTTEST,
    "top_k": lambda value: value >= 0 and value % 1 == 0,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
}


def read_generation_config(path: Path) -> Mapping[str, Any]:
    """Reads generation_config.json, {} where there is none. Raises LocalspecError for values that are not possible."""
    file = path / GENERATION
    try:
        return generation_config(read_bytes(file), file) if file.is_file() else {}
    except OSError as error:
        raise cannot_read(file, error) from error


def generation_config(content: bytes, file: Path) -> Mapping[str, Any]:
    """What a generation_config.json says; `file` names it in sentences. Raises as `read_generation_config` does."""
    try:
        said = parse_json(content)
    except ValueError as error:
        raise LocalspecError(f"{file} cannot be read ({first_line(error)}); fetch the model again.") from error
    said = said if isinstance(said, dict) else {}
    for name, possible in _SAMPLING.items():
        value = said.get(name)
        if value is not None and not (number(value) and possible(value)):
            raise LocalspecError(f"{name} = {value!r} in {file} is not possible; correct it, or fetch the model again.")
    return said
