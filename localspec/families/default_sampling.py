"""Default sampling of a model: from its own files, else from its family, else from localspec.

Comments in the table name the source of each row: "card" is the model card, "config" its generation_config.json.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

DIGITS = 9  # decimal digits that identify every float32
NAME = "_name"  # key for the name in a GGUF file, added to the generation_config.json of the imported model
FILE, DEFAULT = "the model's file", "localspec's default"


@dataclass(frozen=True)
class DefaultSampling:
    """A default for how a model is sampled, and the source of that. Temperature 0 is greedy."""

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
_THINKING, _ANSWERING = DefaultSampling(0.6, 0.95, 20), DefaultSampling(0.7, 0.8, 20)
# Family, pattern of its names, values. The first match counts.
_FAMILIES: Sequence[tuple[str, str, DefaultSampling]] = (
    ("SmolLM2", "smollm-?2", DefaultSampling(0.2, 0.9)),  # card of SmolLM2-1.7B-Instruct
    ("DeepSeek-R1", "deepseek-?r1", DefaultSampling(0.6, 0.95)),  # config of DeepSeek-R1-Distill-Qwen-1.5B
    ("QwQ", "qwq", DefaultSampling(0.6, 0.95)),  # card of QwQ-32B
    ("Qwen3", r"qwen-?3(?!\.?\d|b\b)", _THINKING),  # card of Qwen3-0.6B, which has other values without thinking
    ("Qwen2.5", r"qwen-?2\.5", DefaultSampling(0.7, 0.8, 20)),  # config of Qwen2.5-7B-Instruct
    ("Llama 3", r"llama-?3(?!\d|b\b)", DefaultSampling(0.6, 0.9)),  # config of Llama-3.2-3B-Instruct
    ("Gemma 3", r"gemma-?3(?!\d|b\b)", DefaultSampling(1.0, 0.95, 64)),  # the Gemma team's advice for Gemma 3
)


def default_sampling(generation: Mapping[str, Any], name: str = "", think: bool | None = None) -> DefaultSampling:
    """Return the default sampling by the generation_config.json, else by the family, else localspec's own.

    `name` is the name of the model here. `think` is the setting of that name. A temperature counts even without
    `do_sample`, as in llama.cpp; `do_sample: false` is greedy.
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
    """Return these values, replaced by the given ones of the file; the source names both."""
    top_p, min_p = _decimal(given.get("top_p", found.top_p)), _decimal(given.get("min_p", found.min_p))
    source = found.source
    if given and source != FILE:
        source = f"{source}; {', '.join(given).replace('_', '-')} from {FILE}"
    return replace(found, top_p=top_p, top_k=int(given.get("top_k", found.top_k)), min_p=min_p, source=source)


def _decimal(number: Any) -> float:
    """Return the shortest decimal of a float32, as GGUF files hold them: 0.4, not 0.400000005960464; others as is."""
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
    """Return the values of the family that this name belongs to; None for an unknown family."""
    spelled = re.sub(r"[\s_]", "-", name.lower())
    for family, pattern, values in _FAMILIES:
        if re.search(rf"(?<![a-z0-9]){pattern}", spelled):
            if values is _THINKING and (think is False or "instruct" in spelled):
                values = _ANSWERING
            return replace(values, source=f"known for {family}")
    return None
