"""The result of a choice: how a model is loaded, with or without a drafter, and the expected speed and memory."""

from dataclasses import dataclass, replace
from typing import Literal

from localspec.models.drafter_cards import DrafterCard
from localspec.models.model import draft_form
from localspec.models.registry import TargetCard
from localspec.quantities import m_words, pace_in_words, precision_in_words

# How a GPU computes a step: operation by operation, with padding to static shapes, or by replaying a recording (CUDA
# graph) of a static shape.
StepForm = Literal["eager", "static", "captured"]


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """A description of how one model is loaded: its device, precision and bytes."""

    target: TargetCard
    device: str
    dtype: str
    quantize: str
    exact: bool = False
    context: int | None = None  # tokens; None means the model's full context
    threshold: float = 0.0  # the setting `int8_threshold`, for int8 on CUDA
    engine: str  # native or torch
    loaded_bytes: int  # of the weights, and of everything that a drafter holds
    bytes: int  # `loaded_bytes` plus cache, tree and workspace: the expected peak
    bits: float = 0.0  # average bits of a weight, if the weights are in the blocks of GGUF files
    drafts: bool = False  # loaded as a draft model, whose weights may be coarser
    on_disk: str = ""  # a clause about experts that stay on the disk for lack of memory; "" if there are none

    @property
    def precision(self) -> str:
        """The packing of the weights, or their dtype if they are not packed."""
        return self.dtype if self.quantize == "none" else self.quantize

    def __str__(self) -> str:
        return precision_in_words(self.dtype, self.quantize, self.bits)

    def loads_as(self, other: "LoadSpec") -> bool:
        """Return whether `other` describes the same model, loaded in the same way; drafters do not count."""
        names = ("device", "engine", "dtype", "quantize", "exact", "context", "threshold", "drafts")
        here, there = ((spec.target.path, *(getattr(spec, name) for name in names)) for spec in (self, other))
        return here == there


@dataclass(frozen=True, kw_only=True)
class Choice(LoadSpec):
    """A target and a drafter, how both are loaded, and a sentence that explains the choice."""

    drafter: str
    nodes: int  # the most that a draft tree may have
    fixed: bool  # the settings name the number of nodes: it is neither changed nor set to 0 during a reply
    reason: str
    tokens_per_second: float | None = None  # predicted, or measured in earlier replies
    measured: bool = False  # whether `tokens_per_second` was measured rather than predicted
    speedup: float | None = None  # of `tokens_per_second` over plain decoding in the same precision
    cost_effectiveness: float | None = None  # M
    peak_measured: bool = False  # whether M counts a peak that was measured here
    rule: Literal["memory", "speed"] | None = None  # the rule that decided, if `auto` chose the drafter
    trained: tuple[DrafterCard, ...] = ()  # the drafters that have trained weights
    draft: LoadSpec | None = None  # how the draft model is loaded, if there is one
    parts: tuple[str, ...] = ()  # the parts of Ouroboros that are switched on
    off_reason: str | None = None  # why `auto` takes no drafter, if it takes none
    idle: str = ""  # a sentence that says why a GPU of this machine is not used

    def with_figures_of(self, later: "Choice") -> "Choice":
        """Return this choice with the expected speeds, the cost-effectiveness, the rule and the reasons of `later`."""
        names = ["reason", "tokens_per_second", "measured", "speedup", "cost_effectiveness"]
        names += ["peak_measured", "rule", "off_reason"]
        return replace(self, **{name: getattr(later, name) for name in names})

    @property
    def draft_form(self) -> str | None:
        """The draft model's precision and, if its head is short, the number of its tokens; None without a draft model.

        For example `4.0 bits per weight, 36,864 of 151,936 tokens`.
        """
        if self.draft is None:
            return None
        return (draft_form(self.draft.target) if self.draft.drafts else None) or str(self.draft)

    @property
    def pace(self) -> tuple[str, ...]:
        """The expected speed in words, then M and the rule that chose the drafter, then the draft model's precision.

        M is the cost-effectiveness: speedup ÷ relative memory. Unknown figures are left out.
        """
        words: list[str] = []
        if (speed := self.tokens_per_second) is not None:
            words += pace_in_words(speed, self.measured, self.speedup if self.nodes else None)
            if self.rule is not None and self.cost_effectiveness is not None:
                words.append(m_words(self.cost_effectiveness, self.rule))
        if self.draft is not None:
            words.append(f"{self.draft.target.name} drafts in {self.draft_form}")
        return tuple(words)
