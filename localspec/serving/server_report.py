"""What is told of a reply that a server gave: the same JSON as of any other, with null for what it does not tell."""

from typing import TYPE_CHECKING, Any

from localspec.engine.report import figures_of, sampling_facts
from localspec.events import Statistics
from localspec.serving.pieces import number

if TYPE_CHECKING:
    from localspec.serving.server_engine import ServerEngine, ServerSampling


class ServerReport:
    """The JSON object of one reply; what the server told is known from the first event on."""

    def __init__(self, engine: "ServerEngine", sampling: "ServerSampling", load_seconds: float) -> None:
        self._engine, self._sampling, self._load_seconds = engine, sampling, load_seconds

    @property
    def exactness(self) -> str:
        """For a line of figures; an empty text where it is not told."""
        return self._engine.label(self._sampling.rule)

    @property
    def start(self) -> dict[str, Any]:
        """What of it does not depend on how the reply went."""
        told = self._engine.told
        names = ("revision", "drafter", "device", "dtype", "quantize", "exactness", "accept", "lossless")
        seed = told.get("seed") if self._sampling.seed is None else self._sampling.seed
        of_model = {name: told.get(name) for name in names}
        of_model["bits_per_weight"] = number(told.get("bits_per_weight"))
        sampling = sampling_facts(self._sampling)
        return {"model": self._engine.model, **of_model, "engine": "server", "seed": seed, "sampling": sampling}

    def of(self, text: str, reasoning: str, reason: str, statistics: Statistics) -> dict[str, Any]:
        """All of it, once the reply is over."""
        counted = statistics.told_tokens is None or statistics.told_tokens > 0
        return {
            "text": text,
            "reasoning": reasoning,
            "token_ids": statistics.token_ids if statistics.told_tokens is None else None,
            **self.start,
            "finish_reason": reason,
            "prompt_tokens": statistics.prompt_tokens or None,
            "completion_tokens": statistics.tokens if counted else None,
            "reasoning_tokens": statistics.reasoning_tokens if counted else None,
            **self._figures(statistics, counted),
        }

    def _figures(self, statistics: Statistics, counted: bool) -> dict[str, Any]:
        found = figures_of(statistics, self._load_seconds)
        if self._engine.server.ours:
            return found
        timings, drafted = found["timings"], statistics.drafted
        untold = dict.fromkeys(found["speculation"])
        if drafted:
            untold |= {"draft_n": drafted, "draft_n_accepted": statistics.accepted}
        return {
            **found,
            "reused_tokens": None,
            "timings": {
                **timings,
                "prefill_s": None,
                "tokens_per_second": timings["tokens_per_second"] if counted else None,
            },
            "speculation": untold,
            "memory": dict.fromkeys(found["memory"]),
        }
