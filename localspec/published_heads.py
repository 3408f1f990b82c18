"""Which kind of drafter the heads of a repository are, by their config.json alone, and why others are not read."""

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

_ASSISTANT = (
    "one of Gemma's assistants, which reads the keys and values of its target's own layers, and localspec lends a "
    "drafter states alone"
)
_NOT_READ = {
    "Gemma4AssistantForCausalLM": _ASSISTANT,
    "Gemma4UnifiedAssistantForCausalLM": _ASSISTANT,
    "DFlash2DraftModel": "a DFlash drafter of the second form, whose convolutions and choice of candidates localspec "
    "does not compute",
    "dflash": "a DFlash drafter with a vocabulary of its own (speculators), and localspec reads those of Z Lab",
    "peagle": "an EAGLE head that drafts in parallel (P-EAGLE), and localspec reads EAGLE-3's one layer",
}


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is of an EAGLE-3 head (SafeAILab, SpecForge, speculators)."""
    if (said := config.get("speculators_model_type")) is not None:
        return bool(said == "eagle3")
    names = config.get("architectures")
    named = isinstance(names, list) and len(names) == 1 and names[0] in _EAGLE3
    return named and type(config.get("draft_vocab_size")) is int


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Whether this config.json is of a DFlash drafter, as Z Lab publishes them."""
    return config.get("architectures") == ["DFlashDraftModel"] and "speculators_model_type" not in config


def why_not_read(config: Mapping[str, Any]) -> str | None:
    """Why a drafter that others publish is not read, the end of a sentence about it; None for all else."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name in _NOT_READ:
        return _NOT_READ[name]
    said = config.get("speculators_model_type")
    return None if said in (None, "eagle3") else _NOT_READ.get(str(said)) or f"of speculators' kind {str(said)[:40]!r}"


def kind_of_heads(config: Mapping[str, Any]) -> str | None:
    """The kind of the heads that a config.json is of; None where it is of none that is read."""
    if is_eagle3(config):
        return "eagle3"
    if is_dflash(config):
        return "dflash"
    medusa = config.get("architectures") == ["MedusaModel"] or config.get("model_type") == "medusa"
    return "medusa" if medusa else None


def base_model(config: Mapping[str, Any]) -> str | None:
    """The model that heads say they are for."""
    verifier = config.get("speculators_config")
    verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else config.get("base_model_name_or_path")
    return named if isinstance(named, str) else None
