"""The supported families, one row each, and the architectures that a config.json may name."""

import re
from collections.abc import Mapping
from typing import Any

from localspec.families.family import Family
from localspec.families.gemma3 import GEMMA3
from localspec.families.gemma4 import GEMMA4, UNIFIED
from localspec.families.glm4 import GLM4
from localspec.families.gpt_oss import GPT_OSS
from localspec.families.granite import GRANITE, GRANITE_4
from localspec.families.llama import LLAMA, MISTRAL
from localspec.families.ministral3 import MINISTRAL3
from localspec.families.phi3 import PHI3
from localspec.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from localspec.families.qwen35 import QWEN35, QWEN35_MOE
from localspec.families.smollm3 import SMOLLM3

_ROWS = (
    LLAMA, MISTRAL, QWEN2, QWEN3, PHI3, GEMMA3, SMOLLM3, GRANITE, GRANITE_4, MINISTRAL3, GEMMA4, QWEN35, GLM4, UNIFIED,
    QWEN3_MOE, GPT_OSS, QWEN35_MOE,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in _ROWS}
_IN_GGUF = [(family.gguf.architecture, family) for family in _ROWS if family.gguf]
# By `general.architecture` of a GGUF file. If several families have the same one, the first row counts, unless its
# `config` names another.
OF_GGUF: Mapping[str, Family] = dict(_IN_GGUF) | dict(reversed(_IN_GGUF))


# The class that a config.json names -> its model type. Of a model that also reads pictures, only the text is served.
ARCHITECTURES = {name: kind for family in FAMILIES.values() for name, kind in family.classes.items()}
# The beginning of an unsupported architecture's name -> the nearest registered model.
_NEAREST = {"Deepseek": "deepseek-r1-qwen-7b"}
_NEAREST |= {name: model for family in FAMILIES.values() for name, model in family.nearest.items()}
ANY = "qwen3-4b"  # the nearest model if none of these matches


def _inside(kind: str) -> dict[str, str]:
    """Return {model type: class} of the language models that a model of this type may contain, the usual one first.

    A model that also reads pictures contains a language model, for example.
    """
    of_type = [family for family in FAMILIES.values() if kind in family.classes.values() and kind != family.model_type]
    others = [family for family in FAMILIES.values() if kind in family.inside]
    return {family.model_type: next(iter(family.classes)) for family in (*of_type, *others)}


def supported(refused: str | None) -> str:
    """Return the end of a message that refuses an architecture: the supported architectures, and the nearest model."""
    names = dict.fromkeys(re.sub("For(CausalLM|ConditionalGeneration)$", "", name) for name in ARCHITECTURES)
    return f"localspec supports {', '.join(names)}; {nearest_model(refused)}"


def nearest_model(refused: str | None) -> str:
    """Return the end of a message that refuses an architecture: the nearest registered model, and how to pull it."""
    nearest = next((model for name, model in _NEAREST.items() if (refused or "").startswith(name)), ANY)
    return f"the nearest supported model is {nearest}: `localspec pull {nearest}` fetches it."


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's config. A model that also reads pictures has it under `text_config`."""
    inner, inside = config.get("text_config"), _inside(str(config.get("model_type")))
    if not inside or not isinstance(inner, dict):
        return config
    kind = inner.get("model_type") or next(iter(inside))
    if kind not in inside:
        return config
    outer = {
        name: value for name, value in config.items() if name not in ("text_config", "vision_config", "audio_config")
    }
    stated = {name: value for name, value in inner.items() if value is not None}
    ends = {name: outer[name] for name in ("eos_token_id",) if name in outer}  # these include the end of a turn
    tied = {name: True for name in ("tie_word_embeddings",) if outer.get(name) is True}  # whatever `inner` says
    return {**outer, **stated, **ends, **tied, "architectures": [inside[kind]], "model_type": kind}
