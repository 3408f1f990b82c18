"""The target answers prompts: conversations in its own words, for drafters to learn from (Medusa, §3.3.2).

Only throughput matters here, so transformers' batched `generate` writes the replies; our decoding answers one person
quickly. A file of replies grows line by line, and prompts that it answers already are left out.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from localspec.checkpoint import revision
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.machine.memory import free_memory, out_of_memory
from localspec.nn.packing import DTYPES
from localspec.nn.target import Target
from localspec.policy.selection import Choice
from localspec.training.examples import Question

PROBE = 16  # tokens that are generated to estimate the time
BEGINNING = b'{"asked": "'  # of every line that is written here


@dataclass(frozen=True)
class DistillRequest:
    """How to answer prompts. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float
    seed: int
    batch_size: int  # prompts in one batch


@dataclass(frozen=True)
class Written:
    """A batch was written: `done` replies of `total` so far, and about how many seconds are `left`."""

    done: int
    total: int
    left: float


class Distiller:
    """Answers the prompts that `file` does not answer yet.

    Raises what loading a model raises, and UsageMistake for prompts or a file that cannot be used.
    """

    def __init__(self, questions: Sequence[Question], file: Path, choice: Choice, request: DistillRequest) -> None:
        self._file, self._request = file, request
        self._light = Target.load(choice.target.path, device="meta")  # tokenizer, template and stop tokens only
        prompts = {question.id: self._light.encode(question.messages) for question in questions}
        most = self._light.context - request.max_tokens
        self._prompts = {name: ids for name, ids in prompts.items() if len(ids) <= most}
        self.too_long = len(prompts) - len(self._prompts)
        if not self._prompts:
            raise UsageMistake(
                f"None of the {len(prompts)} prompts leaves room for {request.max_tokens} tokens in the context of "
                f"{self._light.context}; give a smaller --max-tokens or shorter prompts."
            )
        self._questions = {question.id: question for question in questions if question.id in self._prompts}
        model = [revision(choice.target.path), choice.dtype]
        self._marks = {name: _mark(question, request, model) for name, question in self._questions.items()}
        self.answered = self._read()
        # Batches are made of all prompts, so that they are the same after a stop; of similar lengths, so that there is
        # little padding; and the longest first, so that what does not fit in memory is known at once.
        order = sorted(self._prompts, key=lambda name: (-len(self._prompts[name]), name))
        groups = [order[start : start + request.batch_size] for start in range(0, len(order), request.batch_size)]
        self._batches = [(index, group) for index, group in enumerate(groups) if {*group} - self.answered]
        if self._batches:
            self._model = _load(choice)

    @property
    def total(self) -> int:
        """The number of prompts that can be answered."""
        return len(self._prompts)

    def estimate(self) -> float:
        """Returns the seconds that the rest takes at most, with replies as long as allowed. Generates a few tokens."""
        if not self._batches:
            return 0.0
        _, group = self._batches[0]
        few = min(PROBE, self._request.max_tokens)
        times = []
        for tokens in (1, few):
            began = time.perf_counter()
            self._generate(group, tokens, least=tokens)
            times.append(time.perf_counter() - began)
        each = max(times[1] - times[0], 0.0) / max(few - 1, 1)
        return len(self._batches) * (times[0] + each * self._request.max_tokens)

    def run(self) -> Iterator[Written]:
        """Yields an event a batch. What was written stays when the caller stops."""
        began = time.monotonic()
        for done, (index, group) in enumerate(self._batches, start=1):
            torch.manual_seed(
                int.from_bytes(hashlib.sha256(f"{self._request.seed} {index}".encode()).digest()[:4], "big")
            )
            replies = self._generate(group, self._request.max_tokens)
            new = [(name, reply) for name, reply in zip(group, replies, strict=True) if name not in self.answered]
            self._append([self._line(name, reply) for name, reply in new])
            self.answered |= {name for name, _ in new}
            left = (time.monotonic() - began) / done * (len(self._batches) - done)
            yield Written(len(self.answered), self.total, left)

    @torch.inference_mode()
    def _generate(self, names: Sequence[str], most: int, least: int = 0) -> list[list[int]]:
        """Returns the replies' ids, a stop token included where they reached one. Prompts are padded on the left."""
        prompts = [self._prompts[name] for name in names]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampled = self._request.temperature > 0
        sampling: dict[str, Any] = {"do_sample": sampled}
        if sampled:
            sampling |= {"temperature": self._request.temperature, "top_k": 0, "top_p": 1.0}
        stops = sorted(self._light.stop_tokens)
        try:
            all_ = self._model.generate(
                ids.to(self._model.device), attention_mask=seen.to(self._model.device), max_new_tokens=most,
                min_new_tokens=least or None, eos_token_id=stops or None, pad_token_id=stops[0] if stops else 0,
                **sampling,
            )  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise DoesNotFit(
                f"{len(names)} prompts at once do not fit in the memory of {self._model.device}; give a smaller "
                "--batch."
            ) from error
        return [self._ended(reply) for reply in all_[:, longest:].tolist()]

    def _ended(self, reply: list[int]) -> list[int]:
        """Returns a reply without the padding after its end."""
        end = next((at for at, token in enumerate(reply) if token in self._light.stop_tokens), len(reply) - 1)
        return reply[: end + 1]

    def _line(self, name: str, reply: Sequence[int]) -> dict[str, Any]:
        finished = bool(reply) and reply[-1] in self._light.stop_tokens
        answer = {"role": "assistant", "content": self._light.decode(reply)}
        return {
            "asked": self._marks[name],  # first, for a line that was cut by a kill is recognised by it
            "id": name,
            "messages": [*self._questions[name].messages, answer],
            "finish_reason": "stop" if finished else "length",
        }

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes the lines of a batch to disk before the next one begins."""
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        try:
            with self._file.open("ab", buffering=0) as file:
                start, written = file.tell(), 0
                try:
                    while written < len(content):
                        written += file.write(content[written:])
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(start)
                    raise
        except OSError as error:
            raise DoesNotFit(
                f"{self._file} cannot be written ({error.strerror}); make room, and give the same command again."
            ) from error

    def _read(self) -> set[str]:
        """Returns the ids of prompts that are answered. Cuts off a line that a kill left half-written.

        Raises UsageMistake where the file was not written by `distill`, or with another request.
        """
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise UsageMistake(f"{self._file} cannot be read ({error.strerror}); give another -o.") from None
        *lines, cut = content.split(b"\n")
        if not cut.startswith(BEGINNING[: len(cut)]):
            raise self._foreign(len(lines) + 1)
        found = set()
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                name, mark = str(entry["id"]), entry["asked"]
            except (ValueError, TypeError, KeyError, RecursionError):
                raise self._foreign(number) from None
            if name in self._marks:
                if mark != self._marks[name]:
                    raise UsageMistake(
                        f"{self._file}, line {number}: the reply to {name!r} was asked for with another prompt, model, "
                        "seed, temperature or length; give the same command to go on, or another -o."
                    )
                found.add(name)
        if cut:
            with self._file.open("r+b") as file:
                file.truncate(len(content) - len(cut))
        return found

    def _foreign(self, number: int) -> UsageMistake:
        return UsageMistake(f"{self._file}, line {number}: this is no reply of localspec distill; give another -o.")


def _mark(question: Question, request: DistillRequest, model: Sequence[str]) -> str:
    """Returns a digest of everything in the request that changes the reply."""
    parts = [question.messages, request.max_tokens, request.temperature, request.seed, *model]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _load(choice: Choice) -> Any:
    needed, free = choice.loaded_bytes, free_memory(choice.device)
    if needed > free:
        raise DoesNotFit(
            f"{choice.target.name} needs {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free; "
            "close other programs, or choose a smaller model."
        )
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            choice.target.path, dtype=DTYPES[choice.dtype], local_files_only=True, trust_remote_code=False
        )
        return model.to(choice.device).eval()
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise DoesNotFit(
                f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."
            ) from error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LocalspecError(
            f"transformers cannot load {choice.target.path} ({first}); fetch the model again."
        ) from error
