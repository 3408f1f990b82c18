"""Reads generation_config.json: the sampling that the model's maker recommends, and the tokens that end a reply."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, cannot_read, first_line
from localspec.families.reading import number
from localspec.outside_files import parse_json, read_bytes
from localspec.setting_checks import HOTTEST

GENERATION = "generation_config.json"
LEFT_OUT = "_left_out"  # key that lists impossible values
_SAMPLING: Mapping[str, Callable[[float], bool]] = {
    "temperature": lambda value: 0 <= value <= HOTTEST,
    "top_k": lambda value: 0 <= value < 2**31 and value % 1 == 0,
    "top_p": lambda value: 0 < value <= 1,
    "min_p": lambda value: 0 <= value <= 1,
}


def possible(name: str, value: object) -> bool:
    """Return whether a model can be sampled with this value of temperature, top_k, top_p or min_p."""
    return number(value) and _SAMPLING[name](value)  # type: ignore[arg-type]


def read_generation_config(path: Path) -> Mapping[str, Any]:
    """Read generation_config.json; {} if there is none. Raises LocalspecError if it is damaged."""
    file = path / GENERATION
    try:
        return generation_config(read_bytes(file), file) if file.is_file() else {}
    except OSError as error:
        raise cannot_read(file, error) from error


def generation_config(content: bytes, file: Path) -> Mapping[str, Any]:
    """Return the content of a generation_config.json; `file` is its name in errors.

    Values with which no model can be sampled are left out; `LEFT_OUT` lists them. Raises the errors of
    `read_generation_config`.
    """
    try:
        said = parse_json(content)
    except ValueError as error:
        raise LocalspecError(f"{file} cannot be read ({first_line(error)}); fetch the model again.") from error
    said = said if isinstance(said, dict) else {}
    if type(said.get("top_k")) is int and said["top_k"] < 0:
        said["top_k"] = 0  # the Hugging Face code takes this as all tokens
    wrong = [name for name in _SAMPLING if said.get(name) is not None and not possible(name, said[name])]
    left_out = {LEFT_OUT: [f"{name} = {str(said[name])[:40]}" for name in wrong]} if wrong else {}
    return {name: value for name, value in said.items() if name not in (*wrong, LEFT_OUT)} | left_out
