"""How replies are decoded, as far as what drafts bring depends on it."""

from typing import Literal

from localspec.config import Rule, Settings

DecodingKind = Literal["greedy", "sampled", "rejection", "typical"]


def decoding_kind(temperature: float, rule: Rule) -> DecodingKind:
    """The kind of replies at this temperature by this rule of acceptance, which has no effect on greedy ones."""
    return "greedy" if temperature == 0 else "sampled" if rule == "exact" else rule


def asked_kind(settings: Settings, own: float) -> DecodingKind:
    """The kind that settings ask for, of a model whose maker samples at the temperature `own`."""
    return decoding_kind(own if settings.temperature is None else settings.temperature, settings.accept)


def kept_as(key: str, kind: DecodingKind) -> str:
    """The key under which replies of one kind are kept of a drafter with this `reply_key`."""
    return key if kind == "greedy" else f"{key}, {kind}"
