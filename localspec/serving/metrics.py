"""Figures of all replies so far, in Prometheus' format."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.events import Statistics

_HELP = {
    "localspec_requests_total": ("counter", "Requests by status."),
    "localspec_prompt_tokens_total": ("counter", "Tokens of prompts, those in the cache included."),
    "localspec_reused_tokens_total": ("counter", "Tokens of prompts that were in the cache already."),
    "localspec_completion_tokens_total": ("counter", "Tokens of replies."),
    "localspec_steps_total": ("counter", "Forward passes of the target after the prompt."),
    "localspec_drafted_tokens_total": ("counter", "Tokens that drafters proposed."),
    "localspec_accepted_tokens_total": ("counter", "Drafted tokens that the target accepted."),
    "localspec_prefill_seconds_total": ("counter", "Seconds spent reading prompts."),
    "localspec_decode_seconds_total": ("counter", "Seconds spent writing replies."),
    "localspec_waiting_requests": ("gauge", "Requests that wait for their turn."),
    "localspec_loaded_models": ("gauge", "Models that are loaded."),
}


class Metrics:
    """Counters for all requests and replies, which any thread may use."""

    def __init__(self) -> None:
        self.loaded: Sequence[Mapping[str, Any]] = ()  # models, as `localspec ps` shows them
        self._lock, self._counts, self._statuses = threading.Lock(), Counter[str](), Counter[int]()

    def answered(self, status: int) -> None:
        """Count a request that was answered with this status."""
        with self._lock:
            self._statuses[status] += 1

    def count(self, reply: Statistics) -> None:
        """Count a finished reply."""
        figures = {
            "prompt_tokens": reply.prompt_tokens,
            "reused_tokens": reply.reused_tokens,
            "completion_tokens": len(reply.token_ids),
            "steps": reply.steps,
            "drafted_tokens": reply.drafted,
            "accepted_tokens": reply.accepted,
            "prefill_seconds": reply.prefill_seconds,
            "decode_seconds": reply.decode_seconds,
        }
        with self._lock:
            for name, value in figures.items():
                self._counts[f"localspec_{name}_total"] += value  # type: ignore[assignment]

    def text(self, waiting: int) -> str:
        """Return all figures in the text format of Prometheus."""
        with self._lock:
            values = {name: {"": self._counts[name]} for name, (kind, _) in _HELP.items() if kind == "counter"}
            values["localspec_requests_total"] = {
                f'{{status="{status}"}}': count for status, count in sorted(self._statuses.items())
            }
            values["localspec_waiting_requests"] = {"": waiting}
            values["localspec_loaded_models"] = {"": len(self.loaded)}
        lines = []
        for name, (kind, description) in _HELP.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{label} {value:g}" if isinstance(value, float) else f"{name}{label} {value}"
                      for label, value in values[name].items()]  # fmt: skip
        return "\n".join(lines) + "\n"
