"""Lets the target model answer prompts. The replies become training text in the model's own words (Medusa, §3.3.2).

Each reply is appended to a file as one line. Prompts that already have a reply there are skipped.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import DoesNotFit, UsageMistake
from localspec.models.messages import Message
from localspec.outside_files import DATA_LIMIT, parse_json, read_bytes
from localspec.training.answering import BatchAnswerer, GenerationSettings
from localspec.training.examples import Question

PROBE = 16  # tokens that are generated to estimate the duration
BEGINNING = b'{"asked": "'  # every line that is written here starts with this


@dataclass(frozen=True)
class ReplyBatch:
    """A batch of replies that were written: how many prompts are `done` out of `total`, the estimated seconds `left`,
    and the `new` conversations."""

    done: int
    total: int
    left: float
    new: Sequence[Sequence[Message]]


@dataclass
class _Dialogue:
    """A conversation in progress, and the user's prompts that are still to be asked."""

    messages: list[Message]
    following: list[str]
    finished: bool = True


class Distiller:
    """A loop in which the target answers the prompts that have no reply in `file` yet.

    Raises the errors of loading a model, and UsageMistake for unusable prompts or an unusable file.
    """

    def __init__(
        self, questions: Sequence[Question], file: Path, model: BatchAnswerer, generation: GenerationSettings
    ) -> None:
        self._file, self._model, self._generation = file, model, generation
        lengths = {question.id: len(model.encode(question.messages)) for question in questions}
        self._questions = {question.id: question for question in questions if self._has_room(lengths[question.id])}
        self.too_long = len(lengths) - len(self._questions)
        if not self._questions:
            raise UsageMistake(
                f"None of the {len(lengths)} prompts leaves room for {generation.max_tokens} tokens in the context of "
                f"{model.context}; give a smaller --max-tokens or shorter prompts."
            )
        self._marks = {name: _mark(question, generation, model.model) for name, question in self._questions.items()}
        self.answered = self._read()
        # Batches are made of all prompts, so that they are the same after a stop, and in order, so that the prompts
        # that are answered before time is up are of all kinds.
        order = list(self._questions)
        groups = [order[start : start + model.at_once] for start in range(0, len(order), model.at_once)]
        self._batches = [(index, group) for index, group in enumerate(groups) if {*group} - self.answered]

    @property
    def total(self) -> int:
        """The number of prompts that can be answered."""
        return len(self._questions)

    def estimate(self) -> float:
        """Return the most seconds that the remaining replies may take. Generate a few tokens to measure the speed."""
        if not self._batches:
            return 0.0
        _, group = self._batches[0]
        prompts = [self._questions[name].messages for name in group]
        seconds, tokens = [], []
        for most in (1, min(PROBE, self._generation.max_tokens)):
            began = time.perf_counter()
            replies = self._model.answer(prompts, GenerationSettings(most), "probe")
            seconds.append(time.perf_counter() - began)
            tokens.append(max(len(reply.tokens) + reply.finished for reply in replies))
        each = max(seconds[1] - seconds[0], 0.0) / max(tokens[1] - tokens[0], 1)
        turns = sum(1 + max(len(self._questions[name].following) for name in group) for _, group in self._batches)
        return turns * (seconds[0] + each * self._generation.max_tokens)

    def run(self) -> Iterator[ReplyBatch]:
        """Answer the prompts in batches. Yield a report after each batch; its replies are then already on disk."""
        began = time.monotonic()
        for done, (index, group) in enumerate(self._batches, start=1):
            dialogues = self._answer(index, group)
            new = [(name, dialogue) for name, dialogue in dialogues.items() if name not in self.answered]
            append(self._file, [self._line(name, dialogue) for name, dialogue in new])
            self.answered |= {name for name, _ in new}
            left = (time.monotonic() - began) / done * (len(self._batches) - done)
            yield ReplyBatch(len(self.answered), self.total, left, [dialogue.messages for _, dialogue in new])

    def _answer(self, index: int, group: Sequence[str]) -> dict[str, _Dialogue]:
        """Return the conversations named in `group`, with a reply to each prompt that still fits into the context."""
        dialogues = {
            name: _Dialogue([*self._questions[name].messages], [*self._questions[name].following]) for name in group
        }
        waiting, turn = list(dialogues.values()), 0
        while waiting:
            replies = self._model.answer(
                [dialogue.messages for dialogue in waiting], self._generation, f"{index} {turn}" if turn else f"{index}"
            )
            for dialogue, reply in zip(waiting, replies, strict=True):
                dialogue.messages.append({"role": "assistant", "content": self._model.decode(reply.tokens)})
                dialogue.finished = reply.finished
            waiting, turn = [dialogue for dialogue in waiting if self._goes_on(dialogue)], turn + 1
        return dialogues

    def _goes_on(self, dialogue: _Dialogue) -> bool:
        """Add the user's next prompt. Return False if there is no next prompt, or no room for its reply."""
        if not dialogue.following:
            return False
        dialogue.messages.append({"role": "user", "content": dialogue.following.pop(0)})
        if self._has_room(len(self._model.encode(dialogue.messages))):
            return True
        dialogue.messages.pop()
        return False

    def _has_room(self, tokens: int) -> bool:
        return tokens + self._generation.max_tokens <= self._model.context

    def _line(self, name: str, dialogue: _Dialogue) -> dict[str, Any]:
        return {
            "asked": self._marks[name],  # first, because it identifies a line that a kill cut off
            "id": name,
            "messages": dialogue.messages,
            "finish_reason": "stop" if dialogue.finished else "length",
        }

    def _read(self) -> set[str]:
        """Return the ids of answered prompts.

        Raises UsageMistake if the file was not written by `distill`, or belongs to another request.
        """
        answered = set()
        for number, entry in enumerate(saved_replies(self._file), start=1):
            name, mark = str(entry["id"]), entry["asked"]
            if name in self._marks:
                if mark != self._marks[name]:
                    raise UsageMistake(
                        f"{self._file}, line {number}: the reply to {name!r} was generated with another prompt, model, "
                        "seed, temperature or length; give the same command to continue, or another -o."
                    )
                answered.add(name)
        return answered


def append(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append lines to a file, and flush them to disk.

    Raises DoesNotFit if that fails. The file then still has only complete lines.
    """
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    try:
        with open(file, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            start, done = stream.tell(), 0
            try:
                while done < len(content):
                    done += stream.write(content[done:])
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)
                raise
    except OSError as error:
        raise DoesNotFit(
            f"{file} cannot be written ({error.strerror}); make room, and give the same command again."
        ) from error


def saved_replies(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of replies. Cut off an incomplete last line, which a killed process may have left.

    Raises UsageMistake if the file was not written by `distill`.
    """
    try:
        content = read_bytes(file, DATA_LIMIT)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageMistake(f"{file} cannot be read ({error.strerror}); give another -o.") from None
    *lines, cut = content.split(b"\n")
    if not cut.startswith(BEGINNING[: len(cut)]):
        raise _foreign(file, len(lines) + 1)
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
            _ = entry["id"], entry["asked"]
        except (ValueError, TypeError, KeyError):
            raise _foreign(file, number) from None
        entries.append(entry)
    if cut:
        with file.open("r+b") as stream:
            stream.truncate(len(content) - len(cut))
    return entries


def _foreign(file: Path, number: int) -> UsageMistake:
    return UsageMistake(f"{file}, line {number}: this is not a reply of localspec distill; give another -o.")


def _mark(question: Question, generation: GenerationSettings, model: Sequence[str]) -> str:
    """Return a digest of everything that determines a reply: the prompt, the settings and the model."""
    following = [list(question.following)] if question.following else []
    cut = ["cut"] if generation.cut else []
    parts = [
        question.messages,
        *following,
        generation.max_tokens,
        generation.temperature,
        generation.seed,
        *cut,
        *model,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
