"""Recognises published drafters by their config.json, and explains why some are not supported."""

from collections.abc import Mapping
from typing import Any

# Keys that heads of one layer have; the first with the value of their model, in addition to draft_vocab_size.
_EAGLE3 = (
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)

DSPARK = "dspark"
_DSPARK = ("Qwen3DSparkModel", "DSparkDraftModel")  # DeepSpec's, and vLLM's name for the same
ASSISTANT = "assistant"
_ASSISTANTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_OF_ASSISTANTS = "-assistant"  # after the model's name in the name of an assistant's repository
_ASSISTANTS_IN_GGUF = ("gemma4-assistant", "gemma4_assistant", "gemma4_mtp")  # llama.cpp's name, and those of forks
_NOT_READ = {  # a name, and what to take instead
    "Gemma4DSparkModel": "a DSpark drafter with Gemma layers, but localspec computes only those of Qwen3; use the "
    "small model that Google publishes for drafting, which has -assistant in its name",
    "DFlash2DraftModel": "a DFlash drafter of the second version, whose convolutions and choice of candidates "
    "localspec does not compute; use a DSpark drafter or a DFlash drafter of the first version, if the model has one",
    "dflash": "a DFlash drafter with its own vocabulary, in the format of speculators, but localspec reads only the "
    "DFlash drafters of Z Lab; use one of Z Lab's",
    DSPARK: "a DSpark drafter in the format of speculators, but localspec reads only DSpark drafters of "
    "DeepSpec and SpecForge; use one of theirs",
    "peagle": "an EAGLE head that drafts in parallel (P-EAGLE), but localspec reads only EAGLE-3 heads of one "
    "layer; use an EAGLE-3 head, or a DFlash or DSpark drafter, if the model has one",
}


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Return whether this config.json describes an EAGLE-3 head (SafeAILab, SpecForge, speculators)."""
    if (kind := config.get("speculators_model_type")) is not None:
        return bool(kind == "eagle3")
    names = config.get("architectures")
    listed = isinstance(names, list) and len(names) == 1 and names[0] in _EAGLE3
    return listed and type(config.get("draft_vocab_size")) is int


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Return whether this config.json describes a DFlash drafter, as Z Lab publishes them."""
    listed = config.get("architectures") == ["DFlashDraftModel"] and "speculators_model_type" not in config
    return listed and not is_dspark(config)


def is_dspark(config: Mapping[str, Any]) -> bool:
    """Return whether this config.json describes a DSpark drafter (DeepSpec, SpecForge)."""
    if "speculators_model_type" in config:
        return False
    names, inner = config.get("architectures"), config.get("dflash_config")
    listed = isinstance(names, list) and len(names) == 1 and names[0] in _DSPARK and config.get("model_type") == "qwen3"
    return listed or (
        names == ["DFlashDraftModel"] and isinstance(inner, dict) and inner.get("projector_type") == DSPARK
    )


def why_not_read(config: Mapping[str, Any]) -> str | None:
    """Return why a published drafter is not supported, and what to use instead, as the end of a sentence.

    Return None for a config.json of any other model or drafter.
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name in _NOT_READ:
        return _NOT_READ[name]
    kind = config.get("speculators_model_type")
    if kind in (None, "eagle3"):
        return None
    return (
        _NOT_READ.get(str(kind))
        or f"a drafter of the kind {str(kind)[:40]!r} in the format of speculators, which localspec does not read; use "
        "another drafter"
    )


def why_not_in_gguf(architecture: str) -> str | None:
    """Return what a GGUF file with a drafter is, and what to fetch instead, as the end of a sentence.

    Return None if the file's architecture is not that of a drafter.
    """
    if architecture not in _ASSISTANTS_IN_GGUF:
        return None
    return (
        "an assistant, which drafts for a Gemma 4; localspec reads it only as Google publishes it: fetch it by the "
        f"name of its model, as in `localspec pull google/gemma-4-E4B-it{_OF_ASSISTANTS}`"
    )


def kind_of_heads(config: Mapping[str, Any]) -> str | None:
    """Return the kind of published drafter that a config.json describes, such as "eagle3"; None for anything else."""
    if is_eagle3(config):
        return "eagle3"
    if is_dflash(config):
        return "dflash"
    if is_dspark(config):
        return DSPARK
    names = config.get("architectures")
    if isinstance(names, list) and len(names) == 1 and names[0] in _ASSISTANTS:
        return ASSISTANT
    medusa = config.get("architectures") == ["MedusaModel"] or config.get("model_type") == "medusa"
    return "medusa" if medusa else None


def base_model(config: Mapping[str, Any], repo: str = "") -> str | None:
    """Return the model for which a published drafter drafts; None if unknown. config.json names it or, for an
    assistant, the name of the repository (`repo`) does."""
    if kind_of_heads(config) == ASSISTANT and repo.endswith(_OF_ASSISTANTS):
        return repo.removesuffix(_OF_ASSISTANTS)
    verifier = config.get("speculators_config")
    verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
    model = verifier.get("name_or_path") if isinstance(verifier, dict) else config.get("base_model_name_or_path")
    return model if isinstance(model, str) else None
