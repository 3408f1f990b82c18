"""The JSON object of one reply: the model, the settings and the figures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from localspec.events import Statistics

if TYPE_CHECKING:
    from localspec.decoding.sampling import Sampling
    from localspec.engine.engine import Engine


@dataclass
class Report:
    """A maker of the JSON object of a reply, with the facts that are known before the reply begins.

    `start` has the fields that are known by then. `exactness` says in words how exact replies are.
    """

    start: dict[str, Any]
    exactness: str
    load_seconds: float

    @classmethod
    def before(cls, engine: "Engine", sampling: "Sampling", load_seconds: float) -> Self:
        """Return the report of a reply by an engine of this process, whose model was loaded in `load_seconds`."""
        choice = engine.choice
        start = {
            "model": choice.target.name,
            "revision": engine.revision,
            "drafter": choice.drafter,
            "drafter_rule": choice.rule,
            "draft_model": choice.draft.target.name if choice.draft else None,
            "draft_form": choice.draft_form,
            "expected_M": None if choice.cost_effectiveness is None else round(choice.cost_effectiveness, 3),
            "device": choice.device,
            "engine": choice.engine,
            "dtype": choice.dtype,
            "quantize": choice.quantize,
            "bits_per_weight": round(choice.bits, 3) or None,
            "exactness": engine.exactness.word(sampling.rule),
            "accept": sampling.rule,
            "lossless": sampling.rule != "typical",
            "seed": sampling.seed,
            "sampling": sampling_facts(sampling),
        }
        return cls(start, engine.exactness.label(sampling.rule), load_seconds)

    def of(self, text: str, reasoning: str, reason: str, statistics: Statistics) -> dict[str, Any]:
        """Return the object for a finished reply."""
        return {
            "text": text,
            "reasoning": reasoning,
            "token_ids": statistics.token_ids,
            **self.start,
            "finish_reason": reason,
            "prompt_tokens": statistics.prompt_tokens,
            "completion_tokens": statistics.tokens,
            "reasoning_tokens": statistics.reasoning_tokens,
            **self.figures(statistics),
        }

    def figures(self, statistics: Statistics) -> dict[str, Any]:
        """Return the times of the reply, the figures of speculation, and the bytes in memory."""
        memory = statistics.memory
        return {
            "reused_tokens": statistics.reused_tokens,
            "dropped_turns": statistics.dropped_turns,
            "timings": {
                "load_s": round(self.load_seconds, 4),
                "prefill_s": round(statistics.prefill_seconds, 4),
                "first_token_s": round(statistics.first_token_seconds, 4),
                "decode_s": round(statistics.decode_seconds, 4),
                "reasoning_s": round(statistics.reasoning_seconds, 4),
                "tokens_per_second": round(statistics.tokens_per_second, 2),
            },
            "speculation": {
                "steps": statistics.steps,
                "acceptance_length": round(statistics.acceptance_length, 4),
                "acceptance_by_depth": [round(chance, 4) for chance in statistics.acceptance_by_depth],
                "draft_n": statistics.drafted,
                "draft_n_accepted": statistics.accepted,
                "sources": dict(statistics.sources),
                "speedup": None,
                "M": None,
                "off_reason": statistics.off_reason,
            },
            "memory": {
                "target_bytes": memory.target,
                "drafter_bytes": memory.drafter,
                "cache_bytes": memory.cache,
                "peak_bytes": memory.peak,
                "parked_bytes": memory.parked,
            },
        }


def sampling_facts(sampling: Any) -> dict[str, Any]:
    """Return the sampling of a reply, and the source of its temperature."""
    values = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return {**values, "source": "yours" if "temperature" in sampling.chosen else sampling.source}
