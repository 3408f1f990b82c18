"""The same weights in other programs, timed beside ours: each gets the same tokens and the same number of threads."""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from localspec import Done, Engine, Limits, Sampling
from localspec.bench import gguf_file
from localspec.engine.forward_timing import picks_after
from localspec.errors import LocalspecError, UsageMistake

ROWS = (1, 2, 4, 8, 16, 32, 64)
KINDS = {"transformers": (), "llama.cpp": ("llama_cpp", "gguf")}  # and the packages each needs beside our own
CONTEXT = 256  # tokens in the cache before a timed forward
BATCH = 512  # tokens that llama.cpp reads at once


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
    """llama.cpp through its C functions, as llama-cpp-python lends them: several tokens at once, and no tokenizer."""

    def __init__(self, engine: Engine, limits: Limits, kind: gguf_file.Kind, room: int) -> None:
        super().__init__(engine, limits)
        self.name = f"llama.cpp {kind}"
        self._library = library = _llama_cpp()
        settings = library.llama_model_default_params()
        settings.use_mmap, settings.n_gpu_layers = False, 0 if engine.choice.device == "cpu" else 999
        with tempfile.TemporaryDirectory() as folder:  # without mmap, loading is all the file is needed for
            file = Path(folder) / "weights.gguf"
            gguf_file.write(file, engine.choice.target.path, self.target.config, kind)
            self._model = library.llama_model_load_from_file(str(file).encode(), settings)
        if not self._model:
            raise LocalspecError(
                f"llama.cpp does not take the weights of {engine.choice.target.name}; leave --peer llama.cpp out."
            )
        settings = library.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = room, BATCH, BATCH
        self._context = library.llama_init_from_model(self._model, settings)
        self._batch = library.llama_batch_init(BATCH, 0, 1)
        self._filled = False

    def logits(self, tokens: Sequence[int], start: int, last: bool = False) -> Any:
        """A numpy array [tokens, vocabulary] of up to 512 tokens at the places from `start` on; with `last` [1, …]."""
        library, batch = self._library, self._batch
        threads = torch.get_num_threads()
        library.llama_set_n_threads(self._context, threads, threads)
        library.llama_memory_seq_rm(library.llama_get_memory(self._context), 0, start, -1)
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.seq_id[row][0] = token, start + row, 1, 0
            batch.logits[row] = not last or row == len(tokens) - 1
        if library.llama_decode(self._context, batch):
            raise LocalspecError("llama.cpp fails to compute a forward; leave --peer llama.cpp out.")
        shape = (1 if last else len(tokens), self.vocabulary)
        return np.ctypeslib.as_array(library.llama_get_logits(self._context), shape)

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
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)


@cache
def _llama_cpp() -> Any:
    """The library, silenced; for good, for it keeps the function it was given to log with."""
    import llama_cpp

    llama_cpp.silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(llama_cpp.silence, None)
    llama_cpp.llama_backend_init()
    return llama_cpp


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
            raise UsageMistake(f'The peer {kind} is not installed; pip install "localspec[peers]" brings it.')


def check(kinds: Sequence[str], engine: Engine, room: int) -> None:
    """Raises LocalspecError where a peer cannot be given this model, for a context of `room` tokens, on this device."""
    if "llama.cpp" in kinds:
        gguf_file.check(engine.target.config, room)
        if engine.choice.device != "cpu" and not _llama_cpp().llama_supports_gpu_offload():
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
