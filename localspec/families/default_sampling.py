"""Default sampling of a model: from its own files, or from its family, or else from localspec.

Comments in the files of families name the source of each value: "card" is the model card, "config" its
generation_config.json.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.families.table import FAMILIES

DIGITS = 9  # decimal digits that identify every float32
NAME = "_name"  # key for the name in a GGUF file, added to the generation_config.json of the imported model
FILE, DEFAULT = "the model's file", "localspec's default"


@dataclass(frozen=True)
class DefaultSampling:
    """A default for how a model is sampled, and its source. Temperature 0 is greedy."""

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
    """Return the default sampling by the generation_config.json, or by the family, or else localspec's own.

    `name` may name the family. If `think` is False, the family's values for answers without thinking are used. A
    temperature counts even without `do_sample`, as in llama.cpp; `do_sample: false` is greedy.
    """
    samples = generation.get("do_sample")
    given = {key: value for key in ("top_p", "top_k", "min_p") if (value := generation.get(key)) is not None}
    temperature = generation.get("temperature")
    if samples is False or temperature == 0:
        return DefaultSampling()
    if samples or temperature is not None:
        return _with(DefaultSampling(1.0 if temperature is None else _decimal(temperature)), given)
    names = filter(None, (generation.get(NAME), name))
    families = filter(None, (_of_family(str(one), think) for one in names))
    return _with(next(families, _UNKNOWN), given)


def _with(found: DefaultSampling, given: Mapping[str, Any]) -> DefaultSampling:
    """Return `found` with the values that the file gives. The source names both."""
    top_p, min_p = _decimal(given.get("top_p", found.top_p)), _decimal(given.get("min_p", found.min_p))
    source = found.source
    if given and source != FILE:
        source = f"{source}; {', '.join(given).replace('_', '-')} from {FILE}"
    return replace(found, top_p=top_p, top_k=int(given.get("top_k", found.top_k)), min_p=min_p, source=source)


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


def _of_family(name: str, think: bool | None) -> DefaultSampling | None:
    """Return the sampling of the family that a model's name belongs to; None for an unknown family."""
    spelled = re.sub(r"[\s_]", "-", name.lower())
    for one in (known for family in FAMILIES.values() for known in family.sampling):
        if re.search(rf"(?<![a-z0-9]){one.names}", spelled):
            values = one.temperature, one.top_p, one.top_k
            if one.answering and (think is False or "instruct" in spelled):
                values = one.answering
            return DefaultSampling(*values, source=f"known for {one.known}")
    return None
