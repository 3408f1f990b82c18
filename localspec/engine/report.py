"""What is told of one reply beside its text: by whom it was written, and its figures, as JSON has them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from localspec.events import Statistics

if TYPE_CHECKING:
    from localspec.decoding.sampling import Sampling
    from localspec.engine.engine import Engine


class Report:
    """The JSON object of one reply. `start` is what of it does not depend on how the reply went."""

    def __init__(self, engine: "Engine", sampling: "Sampling", load_seconds: float) -> None:
        choice = engine.choice
        self._load_seconds, self.exactness = load_seconds, engine.exactness.label(sampling.rule)
        self.start: dict[str, Any] = {
            "model": choice.target.name,
            "revision": engine.revision,
            "drafter": choice.drafter,
            "device": choice.device,
            "engine": choice.engine,
            "dtype": choice.dtype,
            "quantize": choice.quantize,
            "exactness": engine.exactness.word(sampling.rule),
            "accept": sampling.rule,
            "lossless": sampling.rule != "typical",
            "seed": sampling.seed,
            "sampling": sampling_facts(sampling),
        }

    def of(self, text: str, reasoning: str, reason: str, statistics: Statistics) -> dict[str, Any]:
        """All of it, once the reply is over."""
        return whole(self.start, text, reasoning, reason, statistics, self._load_seconds)

    def figures(self, statistics: Statistics) -> dict[str, Any]:
        """Its times, what speculation did, and the bytes that are held."""
        return figures_of(statistics, self._load_seconds)


def sampling_facts(sampling: Any) -> dict[str, Any]:
    """Return how a reply is sampled, and where its temperature comes from."""
    values = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return {**values, "source": "yours" if "temperature" in sampling.chosen else sampling.source}


def whole(
    start: Mapping[str, Any], text: str, reasoning: str, reason: str, statistics: Statistics, load_seconds: float
) -> dict[str, Any]:
    """All that is told of a reply."""
    return {
        "text": text,
        "reasoning": reasoning,
        "token_ids": statistics.token_ids,
        **start,
        "finish_reason": reason,
        "prompt_tokens": statistics.prompt_tokens,
        "completion_tokens": statistics.tokens,
        "reasoning_tokens": statistics.reasoning_tokens,
        **figures_of(statistics, load_seconds),
    }


def figures_of(statistics: Statistics, load_seconds: float) -> dict[str, Any]:
    """The times of a reply, what speculation did, and the bytes that are held."""
    memory = statistics.memory
    return {
        "reused_tokens": statistics.reused_tokens,
        "dropped_turns": statistics.dropped_turns,
        "timings": {
            "load_s": round(load_seconds, 4),
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
