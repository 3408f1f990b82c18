"""The engine: loads what was chosen, applies the chat template, keeps the phrases that replies leave behind."""

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from localspec.config import Settings
from localspec.database import StoreTrouble
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.base import Drafter
from localspec.drafters.phrases import Lengthened, PhrasePool
from localspec.engine.sampling import Sampling
from localspec.engine.session import Limits, Session
from localspec.engine.target import Message, Target, tokenizer_hash
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Event, Prefill
from localspec.hardware import IdleCores, free_memory
from localspec.registry import inspect, revision
from localspec.selection import Choice
from localspec.store import Store

LONGEST_TOKEN = 256  # characters; what is longer than a context of these need not be cut into tokens to be refused
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Engine:
    """One loaded model with one conversation. Use it from one thread at a time.

    With a store, phrases of earlier sessions are used, and with `learn` those of each reply are kept there. Troubles
    that cost no text, such as a store that cannot be written, are told through `notice`.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        store: Store | None = None,
        learn: bool = True,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        began, self._idle_cores = time.perf_counter(), IdleCores()
        self.choice, self._notice = choice, notice
        needed, free = inspect(choice.target.path).parameters * DTYPES[choice.dtype].itemsize, free_memory()
        if choice.device == "cpu" and needed > free:  # else the system would end some process, likely this one
            raise DoesNotFit(
                f"{choice.target.name} needs {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free; "
                "close other programs, or choose a smaller model."
            )
        try:
            self.target = Target.load(
                choice.target.path, device=choice.device, dtype=DTYPES[choice.dtype], context=choice.context
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise DoesNotFit(
                f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."
            ) from error
        self.revision = revision(choice.target.path)
        self._store, self._learn = store, learn
        self._pool_id = None if store is None else self._open_pool(store, choice.target.path)
        reader = None if store is None or self._pool_id is None else partial(store.phrases, self._pool_id)
        self.pool = PhrasePool(self.target.special_tokens, reader, self.target.transformer.shape.vocabulary)
        drafter: Drafter = Lengthened(Autoregressive(), self.pool) if choice.drafter == "phrases" else Autoregressive()
        self.session = Session(self.target, drafter, choice.nodes)
        self.load_seconds = time.perf_counter() - began

    def sampling(self, settings: Settings) -> Sampling:
        """What was asked for, else the model's own generation_config; a fresh seed where none was given."""
        own = self.target.generation if self.target.generation.get("do_sample") else {"temperature": 0.0}

        def value(name: str, default: float) -> float:
            for given in (getattr(settings, name), own.get(name)):
                if given is not None:
                    return float(given)
            return default

        sampling = Sampling(
            temperature=value("temperature", 1.0),
            top_k=int(value("top_k", 0)),
            top_p=value("top_p", 1.0),
            min_p=value("min_p", 0.0),
            seed=secrets.randbits(32) if settings.seed is None else settings.seed,
        )
        if sampling.greedy:
            for name in ("top_p", "top_k", "min_p"):
                if settings.origins.get(name, "").startswith("--"):
                    flag = "--" + name.replace("_", "-")
                    raise UsageMistake(
                        f"{flag} has no effect at temperature 0; leave it out, or give a --temp above 0."
                    )
        return sampling

    def chat(
        self, messages: Sequence[Message], sampling: Sampling, limits: Limits | None = None
    ) -> Generator[Event, None, None]:
        """Answers a conversation; the oldest turns are left out where the context is full, and `Prefill` says so.

        Stop asking for events to stop the reply: what was said stays. Raises UsageMistake for a last prompt that is too
        long by itself.
        """
        torch.set_num_threads(self._idle_cores())
        limits = limits or Limits()
        prompt, dropped = self._fitting(messages, limits)
        stream = self.session.generate(prompt, sampling, limits)  # what refuses the prompt leaves nothing to keep
        try:
            with closing(stream):  # a reply that was stopped is settled before its phrases are kept
                for event in stream:
                    yield Prefill(event.done, event.total, dropped) if isinstance(event, Prefill) else event
        except torch.OutOfMemoryError as error:
            raise DoesNotFit(
                f"A context of {len(self.session.tokens)} tokens does not fit in the memory of {self.choice.device}; "
                "give a smaller --context."
            ) from error
        finally:
            self._keep(len(prompt))

    def _fitting(self, messages: Sequence[Message], limits: Limits) -> tuple[list[int], int]:
        """Token ids of the conversation, and how many of its oldest turns had to be left out."""
        messages, dropped = list(messages), 0
        if (length := len(messages[-1]["content"])) > LONGEST_TOKEN * self.target.context:
            raise UsageMistake(
                f"The prompt is {length} characters long, and the context holds {self.target.context} tokens; "
                "shorten it."
            )
        while True:
            prompt = self.target.encode(messages)
            first = 1 if messages[0]["role"] == "system" else 0
            # Room for an answer: what was asked for, but never more than a quarter of the context.
            room = min(limits.max_tokens or self.target.context, self.target.context // 4)
            if len(prompt) + room <= self.target.context or len(messages) - first < 3:
                return prompt, dropped
            del messages[first : first + 2]
            dropped += 1

    # -- phrases of earlier sessions ----------------------------------------------------------------------------------

    def _open_pool(self, store: Store, path: Path) -> int | None:
        name = self.choice.target.name
        try:
            return store.pool(
                name, f"{tokenizer_hash(self.target.tokenizer)}-{self.revision[:16]}", str(path), make=self._learn
            )
        except StoreTrouble as trouble:
            self._notice(str(trouble))
            return None

    def _keep(self, start: int) -> None:
        """One transaction a reply. What cannot be kept costs the next session time and this one nothing."""
        if self._store is None or self._pool_id is None or not self._learn or self._store.read_only:
            return
        phrases, used = self.pool.harvest(start)
        try:
            self._store.learn(self._pool_id, phrases, used)
        except StoreTrouble as trouble:
            self._notice(str(trouble))
