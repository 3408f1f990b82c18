"""The same weights in other programs, timed beside ours: each gets the same tokens and the same number of threads."""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch

from localspec import Done, Engine, Limits, Sampling
from localspec.bench import gguf_file, llama_cpp
from localspec.bench.llama_cpp import BATCH, Gguf
from localspec.engine.forward_timing import picks_after
from localspec.environment import install_extra
from localspec.errors import LocalspecError, UsageMistake

ROWS = (1, 2, 4, 8, 16, 32, 64)
KINDS = {"transformers": (), "llama.cpp": ("llama_cpp", "gguf")}  # and the packages each needs beside our own
CONTEXT = 256  # tokens in the cache before a timed forward


class Contender(Protocol):
    """What is timed: ours, or a peer."""

    @property
    def name(self) -> str: ...

    def forward(self, rows: int) -> None:
        """Runs one forward of so many tokens after 256, until the likeliest next token of each is on the host."""

    def tokens_per_second(self, prompt: str) -> float:
        """The speed of a plain greedy reply from its first token on; 0 where there is no second one."""


class Ours:
    """A plain engine."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        choice, target = engine.choice, engine.target
        self.name = f"localspec {choice.dtype if choice.quantize == 'none' else choice.quantize}"
        self._engine, self._limits = engine, limits
        self._cache = target.cache(CONTEXT + max(ROWS))
        self._cache.assume(CONTEXT)

    def forward(self, rows: int) -> None:
        target = self._engine.target
        picks_after(target, self._cache, _some_tokens(rows, target.vocab_size))

    def tokens_per_second(self, prompt: str) -> float:
        *_, done = self._engine.chat(message(prompt), Sampling(), self._limits)
        assert isinstance(done, Done)
        return done.statistics.tokens_per_second


class Peer(ABC):
    """What peers share: our prompts as tokens, and a greedy loop with our stop tokens, timed as ours is."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.target, self.vocabulary = engine.target, engine.target.config.vocab_size
        self._limit = limits.max_tokens or engine.target.context

    def tokens_per_second(self, prompt: str) -> float:
        replies = self.greedy(self.target.encode(message(prompt)))
        if next(replies) in self.target.stop_tokens:
            return 0.0
        began, tokens = time.perf_counter(), 0
        while tokens + 1 < self._limit and next(replies) not in self.target.stop_tokens:
            tokens += 1
        return tokens / (time.perf_counter() - began) if tokens else 0.0

    @abstractmethod
    def greedy(self, prompt: Sequence[int]) -> Iterator[int]:
        """Yields the tokens of a greedy reply, without an end."""


class Transformers(Peer):
    """The stock model: sdpa and a growing cache."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        super().__init__(engine, limits)
        dtype = engine.choice.dtype if engine.choice.quantize == "none" else "bf16"
        self.name = f"transformers {dtype}"
        self.model = AutoModelForCausalLM.from_pretrained(
            engine.choice.target.path,
            dtype={"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype],
            attn_implementation="sdpa",
            local_files_only=True,
        ).to(engine.choice.device)

    @cached_property
    def _filled(self) -> Any:
        cache = _dynamic_cache()
        self.logits(_some_tokens(CONTEXT, self.vocabulary), cache)
        return cache

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], cache: Any, last: bool = False) -> torch.Tensor:
        """Logits [tokens, vocab_size] after what the cache holds, which then holds them too; [1, …] with `last`."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        logits: torch.Tensor = self.model(ids, past_key_values=cache, logits_to_keep=int(last)).logits[0]
        return logits

    def forward(self, rows: int) -> None:
        self.logits(_some_tokens(rows, self.vocabulary), self._filled).argmax(-1).tolist()
        self._filled.crop(-rows)

    def greedy(self, prompt: Sequence[int]) -> Iterator[int]:
        cache, tokens = _dynamic_cache(), prompt
        while True:
            tokens = [int(self.logits(tokens, cache, last=True)[-1].argmax())]
            yield tokens[0]


def _dynamic_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


class LlamaCpp(Peer):
    """A GGUF file of the model in llama.cpp."""

    def __init__(self, engine: Engine, limits: Limits, kind: gguf_file.Kind, room: int) -> None:
        super().__init__(engine, limits)
        self.name = f"llama.cpp {kind}"
        with tempfile.TemporaryDirectory() as folder:  # a file that is read at once is not needed for longer
            file = Path(folder) / "weights.gguf"
            gguf_file.write(file, engine.choice.target.path, self.target.config, kind)
            self._gguf = Gguf(file, self.vocabulary, room, on_gpu=engine.choice.device != "cpu")
        self._filled = False

    def logits(self, tokens: Sequence[int], start: int, last: bool = False) -> Any:
        """A numpy array [tokens, vocabulary] of up to 512 tokens at the places from `start` on; with `last` [1, …]."""
        self._gguf.set_threads(torch.get_num_threads())
        return self._gguf.logits(tokens, start, last)

    def forward(self, rows: int) -> None:
        if not self._filled:
            self.logits(_some_tokens(CONTEXT, self.vocabulary), 0, last=True)
            self._filled = True
        self.logits(_some_tokens(rows, self.vocabulary), CONTEXT).argmax(-1).tolist()

    def greedy(self, prompt: Sequence[int]) -> Iterator[int]:
        self._filled = False
        for start in range(0, len(prompt), BATCH):
            logits = self.logits(prompt[start : start + BATCH], start, last=True)
        for place in count(len(prompt)):
            token = int(logits[-1].argmax())
            yield token
            logits = self.logits([token], place)

    def close(self) -> None:
        self._gguf.close()


def message(prompt: str) -> list[dict[str, str]]:
    """A conversation of one question."""
    return [{"role": "user", "content": prompt}]


def _some_tokens(length: int, vocabulary: int) -> list[int]:
    return [(7 + 31 * place) % vocabulary for place in range(length)]


def require(kinds: Sequence[str]) -> None:
    """Raises UsageMistake for a peer there is not, or whose packages are not installed; loads nothing."""
    for kind in kinds:
        if kind not in KINDS:
            raise UsageMistake(f"There is no peer {kind!r}; use one of {', '.join(KINDS)}.")
        if not all(find_spec(package) for package in KINDS[kind]):
            raise UsageMistake(f"The peer {kind} is not installed; {install_extra('peers')}.")


def check(kinds: Sequence[str], engine: Engine, room: int) -> None:
    """Raises LocalspecError where a peer cannot be given this model, for a context of `room` tokens, on this device."""
    if "llama.cpp" in kinds:
        gguf_file.check(engine.target.config, room)
        if engine.choice.device != "cpu" and not llama_cpp.library().llama_supports_gpu_offload():
            raise LocalspecError("llama.cpp is installed here without its GPU part; give --device cpu.")


@contextmanager
def opened(kinds: Sequence[str], engine: Engine, limits: Limits, room: int) -> Iterator[list[Contender]]:
    """The peers, loaded: one of transformers, in our precision or bf16, and two of llama.cpp, f16 and q8_0."""
    with ExitStack() as stack:
        found: list[Contender] = []
        if "transformers" in kinds:
            found.append(Transformers(engine, limits))
        if "llama.cpp" in kinds:
            found += [stack.enter_context(closing(LlamaCpp(engine, limits, kind, room))) for kind in ("f16", "q8_0")]
        yield found
