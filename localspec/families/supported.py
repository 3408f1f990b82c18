"""The architectures that are computed, and what a config.json says of the language model in a larger one."""

import re
from collections.abc import Mapping
from typing import Any

from localspec.families.table import FAMILIES

# The classes that a config.json names, and the model type of each; of some only the language model is served.
ARCHITECTURES = {name: kind for family in FAMILIES.values() for name, kind in family.classes.items()}
# The registered model that is nearest to those that are not supported, by how the name of an architecture begins.
_NEAREST = {"Deepseek": "deepseek-r1-qwen-7b"}
_NEAREST |= {name: model for family in FAMILIES.values() for name, model in family.nearest.items()}
ANY = "qwen3-4b"


def _inside(kind: str) -> dict[str, str]:
    """Return the classes of the language models in a model that reads pictures too, by their type, the usual first."""
    of_type = [one for one in FAMILIES.values() if kind in one.classes.values() and kind != one.model_type]
    others = [one for one in FAMILIES.values() if kind in one.inside]
    return {one.model_type: next(iter(one.classes)) for one in (*of_type, *others)}


def supported(refused: str | None) -> str:
    """End a sentence about an architecture that is refused: what is supported, and the nearest model of it."""
    names = dict.fromkeys(re.sub("For(CausalLM|ConditionalGeneration)$", "", name) for name in ARCHITECTURES)
    return f"supported are {', '.join(names)}; {nearest_model(refused)}"


def nearest_model(refused: str | None) -> str:
    """End a sentence about a model of this architecture that is refused: which registered one is nearest to it."""
    nearest = next((model for name, model in _NEAREST.items() if (refused or "").startswith(name)), ANY)
    return f"the nearest model is {nearest}, by `localspec pull {nearest}`."


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config.json says of the language model: that of a model which reads pictures too has it inside."""
    inner, inside = config.get("text_config"), _inside(str(config.get("model_type")))
    if not inside or not isinstance(inner, dict):
        return config
    kind = inner.get("model_type") or next(iter(inside))
    if kind not in inside:
        return config
    outer = {
        name: value for name, value in config.items() if name not in ("text_config", "vision_config", "audio_config")
    }
    said = {name: value for name, value in inner.items() if value is not None}
    ends = {name: outer[name] for name in ("eos_token_id",) if name in outer}  # those of its turns too
    tied = {name: True for name in ("tie_word_embeddings",) if outer.get(name) is True}  # whatever it says inside
    return {**outer, **said, **ends, **tied, "architectures": [inside[kind]], "model_type": kind}
