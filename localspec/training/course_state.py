"""The state of a course, in files of its directory: its plan, its progress, and whether its drafter is written."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import DoesNotFit, LocalspecError
from localspec.training.directory import PLAN, has_unfinished
from localspec.weights.checkpoint import read_json

NOTABLE = 1.5  # times as long as on an idle machine, or as many tokens as expected: the user should know


@dataclass(frozen=True)
class CoursePlan:
    """The predicted needs of a course: tokens of text, hours of its parts, bytes."""

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
        """Return the plan in the form of `train --json`."""
        return {
            "conversations": self.conversations, "prompts": self.prompts, "tokens": self.tokens,
            "answer_hours": round(self.answering, 4), "train_hours": round(self.training, 4),
            "bench_hours": round(self.bench, 4), "limit_hours": self.limit, "memory_bytes": self.memory,
            "disk_bytes": self.files,
        }  # fmt: skip


@dataclass
class CourseState:
    """The content of plan.json: the course, its predicted needs, the seconds so far, and how it trains."""

    id: str
    asked: Mapping[str, Any]
    token_seconds: float  # of training, per token
    plan: Mapping[str, Any] = field(default_factory=dict)
    spent: float = 0.0
    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # proposed by the drafter's kind
    each: float = 0.0  # seconds per answered token, with several conversations at once
    slowdown: float = 1.0  # by other programs when the course began

    def save(self, directory: Path) -> None:
        """Write plan.json atomically. Raises DoesNotFit."""
        content = json.dumps(vars(self), indent=2) + "\n"
        try:
            (new := directory / f"{PLAN}.new").write_text(content, "utf-8")
            new.replace(directory / PLAN)
        except OSError as error:
            raise DoesNotFit(
                f"{directory} cannot be written ({error.strerror}); make room, and give the same command again."
            ) from error


def read(directory: Path) -> CourseState | None:
    """Return the state of a course; None if there is none. Raises LocalspecError if it cannot be read."""
    if not has_unfinished(directory):
        return None
    with suppress(TypeError):
        state = CourseState(**dict(_object(directory / PLAN)))
        CoursePlan(**state.plan)
        if isinstance(state.asked, dict) and isinstance(state.training, dict) and isinstance(state.spent, int | float):
            return state
    raise LocalspecError(f"{directory / PLAN} is damaged; give --force to start over.")


def drafter_json(directory: Path) -> Mapping[str, Any]:
    """Return the drafter.json of the trained drafter; empty before it is written."""
    file = directory / "drafter" / "drafter.json"
    return _object(file) if file.exists() else {}


def _object(file: Path) -> Mapping[str, Any]:
    content = read_json(file, "give --force to start over")
    return content if isinstance(content, dict) else {}
