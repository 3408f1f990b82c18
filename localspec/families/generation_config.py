"""Reads generation_config.json: the sampling that the model's maker recommends, and the tokens that end a reply."""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError, cannot_read, first_line
from localspec.families.family import number
from localspec.families.table import FAMILIES
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
    """Parse the content of a generation_config.json; `file` is its name in errors.

    Values with which no model can be sampled are left out, and listed under the key LEFT_OUT. Raises the errors of
    `read_generation_config`.
    """
    try:
        values = parse_json(content)
    except ValueError as error:
        raise LocalspecError(f"{file} cannot be read ({first_line(error)}); fetch the model again.") from error
    values = values if isinstance(values, dict) else {}
    if type(values.get("top_k")) is int and values["top_k"] < 0:
        values["top_k"] = 0  # the Hugging Face code takes 0 as all tokens
    wrong = [name for name in _SAMPLING if values.get(name) is not None and not possible(name, values[name])]
    pairs = ((name, str(values[name])[:40]) for name in wrong)
    left_out = {LEFT_OUT: [f"{name} = {value}" for name, value in pairs]} if wrong else {}
    return {name: value for name, value in values.items() if name not in (*wrong, LEFT_OUT)} | left_out


DIGITS = 9  # decimal digits that identify every float32
NAME = "_name"  # key for the name in a GGUF file, added to the generation_config.json of the imported model
FILE, DEFAULT = "the model's file", "localspec's default"


@dataclass(frozen=True)
class DefaultSampling:
    """The default sampling of a model, and its source. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    source: str = FILE
    chosen: Sequence[str] = ()  # values that the user set: none
    seed: int | None = None  # None: a new one for each reply

    @property
    def greedy(self) -> bool:
        """Return whether the likeliest token is always picked."""
        return self.temperature == 0


_UNKNOWN = DefaultSampling(0.7, 0.9, source=DEFAULT)


def default_sampling(generation: Mapping[str, Any], name: str = "", think: bool | None = None) -> DefaultSampling:
    """Return the default sampling: from the generation_config.json, else from the family, else localspec's own.

    `name` is the model's name, which may show its family. If `think` is False, the family's values for answers without
    thinking are used. A temperature counts even without `do_sample`, as in llama.cpp; `do_sample: false` is greedy.
    """
    samples = generation.get("do_sample")
    values = {key: value for key in ("top_p", "top_k", "min_p") if (value := generation.get(key)) is not None}
    temperature = generation.get("temperature")
    if samples is False or temperature == 0:
        return DefaultSampling()
    if samples or temperature is not None:
        return _with(DefaultSampling(1.0 if temperature is None else _decimal(temperature)), values)
    names = filter(None, (generation.get(NAME), name))
    families = filter(None, (_family_sampling(str(candidate), think) for candidate in names))
    return _with(next(families, _UNKNOWN), values)


def _with(sampling: DefaultSampling, values: Mapping[str, Any]) -> DefaultSampling:
    """Return `sampling` with the `values` of generation_config.json. The new `source` names both origins."""
    top_p, min_p = _decimal(values.get("top_p", sampling.top_p)), _decimal(values.get("min_p", sampling.min_p))
    source = sampling.source
    if values and source != FILE:
        source = f"{source}; {', '.join(values).replace('_', '-')} from {FILE}"
    return replace(sampling, top_p=top_p, top_k=int(values.get("top_k", sampling.top_k)), min_p=min_p, source=source)


def _decimal(number: Any) -> float:
    """Return the shortest decimal of a float32, because GGUF files store float32: 0.4, not 0.400000005960464."""
    value = float(number)
    try:
        stored = struct.pack("f", value)
    except OverflowError:
        return value
    if struct.unpack("f", stored)[0] != value:
        return value
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, DIGITS + 1))
    return next(decimal for decimal in decimals if struct.pack("f", decimal) == stored)


def _family_sampling(name: str, think: bool | None) -> DefaultSampling | None:
    spelled = re.sub(r"[\s_]", "-", name.lower())
    for row in (sampled for family in FAMILIES.values() for sampled in family.sampling):
        if re.search(rf"(?<![a-z0-9]){row.names}", spelled):
            values = row.temperature, row.top_p, row.top_k
            if row.answering and (think is False or "instruct" in spelled):
                values = row.answering
            models = row.known
            return DefaultSampling(*values, source=f"usual for {models}")
    return None
