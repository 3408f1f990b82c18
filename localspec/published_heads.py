"""Which kind of drafter the heads of a repository are, by their config.json alone."""

from collections.abc import Mapping
from typing import Any

# What heads of one layer say of themselves; the first as the models they are for do, beside draft_vocab_size.
_EAGLE3 = (
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is of an EAGLE-3 head (SafeAILab, SpecForge, speculators)."""
    if (said := config.get("speculators_model_type")) is not None:
        return bool(said == "eagle3")
    names = config.get("architectures")
    named = isinstance(names, list) and len(names) == 1 and names[0] in _EAGLE3
    return named and type(config.get("draft_vocab_size")) is int


def kind_of_heads(config: Mapping[str, Any]) -> str | None:
    """The kind of the heads that a config.json is of; None where it is of none that is read."""
    if is_eagle3(config):
        return "eagle3"
    medusa = config.get("architectures") == ["MedusaModel"] or config.get("model_type") == "medusa"
    return "medusa" if medusa else None


def base_model(config: Mapping[str, Any]) -> str | None:
    """The model that heads say they are for."""
    verifier = config.get("speculators_config")
    verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else config.get("base_model_name_or_path")
    return named if isinstance(named, str) else None
