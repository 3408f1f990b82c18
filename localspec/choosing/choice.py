"""How a model is loaded, alone or as the target of a drafter, and what that promises: the result of a choice."""

from dataclasses import dataclass, replace
from typing import Literal

from localspec.models.drafter_cards import DrafterCard
from localspec.models.model import draft_form
from localspec.models.registry import TargetCard
from localspec.quantities import m_words, pace_in_words, precision_in_words

# How steps are computed on a GPU: operation by operation, in static shapes, or by recordings of those.
StepForm = Literal["eager", "static", "captured"]


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """How one model is loaded: on which device, in which precision, and what that takes."""

    target: TargetCard
    device: str
    dtype: str
    quantize: str
    exact: bool = False
    context: int | None = None  # tokens; None is the model's own
    threshold: float = 0.0  # of int8 on CUDA
    engine: str  # native or torch
    loaded_bytes: int  # of the weights, and of all that a drafter holds
    bytes: int  # with cache, tree and workspace
    bits: float = 0.0  # of a weight on average, if they are in the blocks of GGUF files
    drafts: bool = False  # as a draft model, which may be coarser

    @property
    def precision(self) -> str:
        """The numbers that its weights are in."""
        return self.dtype if self.quantize == "none" else self.quantize

    def __str__(self) -> str:
        return precision_in_words(self.dtype, self.quantize, self.bits)

    def loads_as(self, other: "LoadSpec") -> bool:
        """Return whether both load the same model in the same way, with whatever drafter."""
        names = ("device", "engine", "dtype", "quantize", "exact", "context", "threshold", "drafts")
        here, there = ((one.target.path, *(getattr(one, name) for name in names)) for one in (self, other))
        return here == there


@dataclass(frozen=True, kw_only=True)
class Choice(LoadSpec):
    """A target and a drafter, how both are loaded, and the sentence that says why."""

    drafter: str
    nodes: int  # at most
    fixed: bool  # a number was asked for: no resizing, no switching off
    reason: str
    tokens_per_second: float | None = None  # predicted, or measured in earlier replies
    measured: bool = False  # which of the two
    speedup: float | None = None  # of that over plain decoding in the same precision
    cost_effectiveness: float | None = None  # M
    peak_measured: bool = False  # whether M counts a peak that was measured here
    rule: Literal["memory", "speed"] | None = None  # that decided, where the drafter was left to `auto`
    trained: tuple[DrafterCard, ...] = ()  # the weights of those drafters that have some
    draft: LoadSpec | None = None  # the draft model, where one drafts
    parts: tuple[str, ...] = ()  # of Ouroboros
    off_reason: str | None = None  # why `auto` takes no drafter, where it takes none
    idle: str = ""  # a sentence that says why a GPU of this machine is not used

    def with_figures_of(self, later: "Choice") -> "Choice":
        """Return the same choice with the figures of a later one."""
        names = ["reason", "tokens_per_second", "measured", "speedup", "cost_effectiveness"]
        names += ["peak_measured", "rule", "off_reason"]
        return replace(self, **{name: getattr(later, name) for name in names})

    @property
    def draft_form(self) -> str | None:
        """What the draft model is held in, where one drafts: often a coarser form with a short vocabulary."""
        if self.draft is None:
            return None
        return (draft_form(self.draft.target) if self.draft.drafts else None) or str(self.draft)

    @property
    def pace(self) -> tuple[str, ...]:
        """How fast it should answer, in words, with M and what chose the drafter, then the form of a draft model.

        What is not known is left out.
        """
        draft = () if self.draft is None else (f"{self.draft.target.name} drafts in {self.draft_form}",)
        return *self._speed, *draft

    @property
    def _speed(self) -> tuple[str, ...]:
        if self.tokens_per_second is None:
            return ()
        pace = pace_in_words(self.tokens_per_second, self.measured, self.speedup if self.nodes else None)
        if self.rule is None or self.cost_effectiveness is None:
            return pace
        return *pace, m_words(self.cost_effectiveness, self.rule)
