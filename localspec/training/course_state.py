"""Where a course is, in files of its directory: its plan, what it has done, whether its drafter is written."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import DoesNotFit, LocalspecError
from localspec.training.directory import PLAN, begun
from localspec.weights.checkpoint import read_json


@dataclass(frozen=True)
class Plan:
    """What a course should take, told before it begins: tokens of text, hours of its parts, bytes."""

    conversations: int  # of the user
    prompts: int
    tokens: int
    answering: float
    training: float
    bench: float
    limit: float
    memory: int
    files: int

    def as_json(self) -> dict[str, Any]:
        """Return what `train --json` prints of it."""
        return {
            "conversations": self.conversations, "prompts": self.prompts, "tokens": self.tokens,
            "answer_hours": round(self.answering, 4), "train_hours": round(self.training, 4),
            "bench_hours": round(self.bench, 4), "limit_hours": self.limit, "memory_bytes": self.memory,
            "disk_bytes": self.files,
        }  # fmt: skip


@dataclass
class State:
    """plan.json: which course it is, what it should take, the seconds it has taken, how it trains once it does."""

    id: str
    asked: Mapping[str, Any]
    token_seconds: float  # of training, for each token
    plan: Mapping[str, Any] = field(default_factory=dict)
    spent: float = 0.0
    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # that were proposed
    each: float = 0.0  # seconds that a token took to answer, together with others

    def save(self, directory: Path) -> None:
        """Write plan.json; no reader sees half of it. Raises DoesNotFit."""
        content = json.dumps(vars(self), indent=2) + "\n"
        try:
            (new := directory / f"{PLAN}.new").write_text(content, "utf-8")
            new.replace(directory / PLAN)
        except OSError as error:
            raise DoesNotFit(
                f"{directory} cannot be written ({error.strerror}); make room, and give the same command again."
            ) from error


def read(directory: Path) -> State | None:
    """Return where a course is; None where none was begun. Raises LocalspecError where that cannot be read."""
    if not begun(directory):
        return None
    with suppress(TypeError):
        state = State(**dict(_object(directory / PLAN)))
        Plan(**state.plan)
        if isinstance(state.asked, dict) and isinstance(state.training, dict) and isinstance(state.spent, int | float):
            return state
    raise LocalspecError(f"{directory / PLAN} is damaged; give --force to begin anew.")


def drafter_json(directory: Path) -> Mapping[str, Any]:
    """Return what is written beside the trained drafter; empty before."""
    file = directory / "drafter" / "drafter.json"
    return _object(file) if file.exists() else {}


def _object(file: Path) -> Mapping[str, Any]:
    content = read_json(file, "give --force to begin anew")
    return content if isinstance(content, dict) else {}
