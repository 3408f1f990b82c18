"""The architectures that are computed, and what a config.json says of the language model in a larger one."""

import re
from collections.abc import Mapping
from typing import Any

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",  # which reads pictures too: of it we serve the language model alone
    "Gemma4ForCausalLM": "gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4",  # reads pictures and hears, too
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",  # those without experts and recurrent layers
    "Ministral3ForCausalLM": "ministral3",
    "Mistral3ForConditionalGeneration": "mistral3",  # reads pictures too
    "Qwen3_5ForCausalLM": "qwen3_5_text",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",  # reads pictures too
}  # and the model type that goes with each
# The registered model that is nearest to those that are not supported, by how the name of an architecture begins.
_NEAREST = {
    "Gemma": "gemma-3-4b-it", "Qwen": "qwen3-4b", "Mistral": "mistral-7b", "Mixtral": "mistral-7b",
    "Ministral": "ministral-3-3b", "Llama": "llama3.1-8b", "Phi": "phi4-mini", "SmolLM": "smollm3-3b",
    "Granite": "granite-4.0-micro", "Deepseek": "deepseek-r1-qwen-7b", "GptOss": "qwen3-14b",
}  # fmt: skip
ANY = "qwen3-4b"
# Models that read pictures too, and by its type the architecture of the language model inside.
_INSIDE: Mapping[str, Mapping[str, str]] = {
    "gemma3": {"gemma3_text": "Gemma3ForCausalLM"},
    "gemma4": {"gemma4_text": "Gemma4ForCausalLM"},
    "mistral3": {"ministral3": "Ministral3ForCausalLM", "mistral": "MistralForCausalLM"},
    "qwen3_5": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
}


def supported(refused: str | None) -> str:
    """Ends a sentence about an architecture that is refused: what is supported, and the nearest model of it."""
    names = dict.fromkeys(re.sub("For(CausalLM|ConditionalGeneration)$", "", name) for name in ARCHITECTURES)
    return f"supported are {', '.join(names)}; {nearest_model(refused)}"


def nearest_model(refused: str | None) -> str:
    """Ends a sentence about a model of this architecture that is refused: which registered one is nearest to it."""
    nearest = next((model for name, model in _NEAREST.items() if (refused or "").startswith(name)), ANY)
    return f"the nearest model is {nearest}, by `localspec pull {nearest}`."


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the language model: that of a model which reads pictures too has it inside."""
    inner, inside = config.get("text_config"), _INSIDE.get(str(config.get("model_type")))
    if inside is None or not isinstance(inner, dict):
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
