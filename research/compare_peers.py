"""Compare the speed of localspec without drafts with that of transformers and llama.cpp.

    python research/compare_peers.py -m MODEL [--peer llama.cpp --peer transformers] [--limit 4] [-n 128]

All programs have the same weights, prompts and number of threads, and take turns. `pip install gguf llama-cpp-python`
compiles llama.cpp in some minutes. MODEL must be in the Hugging Face layout; llama.cpp gets its weights in f16 and
q8_0.
"""

import argparse
import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import gguf_writer
import llama_cpp_model
import torch
from llama_cpp_model import BATCH, Gguf

from localspec import Done, Engine, Limits, Sampling
from localspec.bench import prompts
from localspec.bench.prompts import in_turns, message
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.engine.model_profile import picks_after
from localspec.errors import LocalspecError, UsageMistake
from localspec.models.registry import resolve

ROWS = (1, 2, 4, 8, 16, 32, 64)
KINDS = {"transformers": (), "llama.cpp": ("llama_cpp", "gguf")}  # with the packages that each needs in addition
CONTEXT = 256  # tokens in the cache before a timed forward
REPETITIONS = 11  # of each forward


class Contender(Protocol):
    """A program to time: localspec or a peer."""

    @property
    def name(self) -> str: ...

    def forward(self, rows: int) -> None:
        """Run a forward of `rows` tokens after 256 earlier ones, until the likeliest next tokens are in the host's
        memory.
        """

    def tokens_per_second(self, prompt: str) -> float:
        """Return the speed of a greedy reply without drafts, after its first token; 0 if it has only one token."""


class Ours:
    """An engine of localspec that decodes without drafts."""

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
    """A program to compare with. It gets localspec's prompt as token ids, and decodes greedily until a stop token."""

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
        """Yield the tokens of a greedy reply without limit; the caller stops at a stop token."""


class Transformers(Peer):
    """A model in transformers, with SDPA attention and a cache that grows."""

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
        """Append tokens to the cache. Return their logits [tokens, vocab_size], or with `last` only the last row."""
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
    """A model in llama.cpp, which reads the same weights from a GGUF file."""

    def __init__(self, engine: Engine, limits: Limits, kind: gguf_writer.Kind, room: int) -> None:
        super().__init__(engine, limits)
        self.name = f"llama.cpp {kind}"
        with tempfile.TemporaryDirectory() as folder:  # a file that is read at once is not needed any longer
            file = Path(folder) / "weights.gguf"
            gguf_writer.write(file, engine.choice.target.path, self.target.config, kind)
            self._gguf = Gguf(file, self.vocabulary, room, on_gpu=engine.choice.device != "cpu")
        self._filled = False

    def logits(self, tokens: Sequence[int], start: int, last: bool = False) -> Any:
        """Read up to 512 tokens from position `start` on. Return their logits [tokens, vocabulary]; with `last` [1, …]."""
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
        for index in count(len(prompt)):
            token = int(logits[-1].argmax())
            yield token
            logits = self.logits([token], index)

    def close(self) -> None:
        self._gguf.close()


def _some_tokens(length: int, vocabulary: int) -> list[int]:
    return [(7 + 31 * index) % vocabulary for index in range(length)]


def require(kinds: Sequence[str]) -> None:
    """Raise UsageMistake for an unknown peer, or one whose packages are not installed."""
    for kind in kinds:
        if kind not in KINDS:
            raise UsageMistake(f"There is no peer {kind!r}; use one of {', '.join(KINDS)}.")
        if not all(find_spec(package) for package in KINDS[kind]):
            raise UsageMistake(f"The peer {kind} is not installed; run `pip install gguf llama-cpp-python`.")


def check(kinds: Sequence[str], engine: Engine, room: int) -> None:
    """Raise LocalspecError if a peer cannot compute this model with `room` tokens of context on this device."""
    if "llama.cpp" in kinds:
        gguf_writer.check(engine.target.config, room)
        if engine.choice.device != "cpu" and not llama_cpp_model.library().llama_supports_gpu_offload():
            raise LocalspecError("llama.cpp is installed here without its GPU part; give --device cpu.")


@contextmanager
def opened(kinds: Sequence[str], engine: Engine, limits: Limits, room: int) -> Iterator[list[Contender]]:
    """Yield the loaded peers: transformers (bf16 if localspec packs the weights), and llama.cpp in f16 and q8_0."""
    with ExitStack() as stack:
        peers: list[Contender] = []
        if "transformers" in kinds:
            peers.append(Transformers(engine, limits))
        if "llama.cpp" in kinds:
            peers += [stack.enter_context(closing(LlamaCpp(engine, limits, kind, room))) for kind in ("f16", "q8_0")]
        yield peers


def run_beside(
    contenders: Sequence[Contender], prompts: Sequence[str], progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure all programs in turns. Return each one's median milliseconds of a forward by its rows, and tokens/s."""
    seconds: dict[str, dict[int, list[float]]] = {c.name: {rows: [] for rows in ROWS} for c in contenders}
    speeds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    turns = REPETITIONS * len(ROWS)
    for turn, contender in in_turns(contenders, turns):
        progress(f"forward {turn + 1} of {turns}")
        rows = ROWS[turn % len(ROWS)]
        contender.forward(rows)  # not counted, because the previous program still occupies cores and caches
        began = time.perf_counter()
        contender.forward(rows)
        seconds[contender.name][rows].append(time.perf_counter() - began)
    for turn, contender in in_turns(contenders, len(prompts)):
        progress(f"prompt {turn + 1} of {len(prompts)}")
        if speed := contender.tokens_per_second(prompts[turn]):
            speeds[contender.name].append(speed)
    return [
        {
            "name": contender.name,
            "ms_by_rows": {str(rows): round(1e3 * median(times), 3) for rows, times in seconds[contender.name].items()},
            "tokens_per_second": round(median(measured), 4) if (measured := speeds[contender.name]) else None,
        }
        for contender in contenders
    ]


def compare(model: str, kinds: Sequence[str], texts: Sequence[str], most: int, show: Callable[[str], None]) -> Any:
    """Load the model in localspec and in the peers, and return the measurements of `run_beside`."""
    limits = Limits(most)
    card = resolve(model)
    if card.imported_as:
        raise UsageMistake(f"{card.name} was imported from GGUF, and peers need the model's own weights; name another.")
    engine = Engine(choose(card, Settings(drafter="none", temperature=0.0)), phrases="off")
    target = engine.target
    lengths = {prompt: len(target.encode(message(prompt))) + most for prompt in texts}
    fitting = [prompt for prompt in texts if lengths[prompt] <= target.context]
    if not fitting:
        raise UsageMistake(f"No prompt leaves room for {most} tokens in a context of {target.context}; lower -n.")
    room = max(CONTEXT + max(ROWS), *(lengths[prompt] for prompt in fitting))
    check(kinds, engine, room)
    with opened(kinds, engine, limits, room) as peers:
        return run_beside([Ours(engine, limits), *peers], fitting, show)


def main() -> int:
    """Parse the arguments, measure, and print the figures as JSON. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--peer", action="append", metavar="NAME", help=f"{', '.join(KINDS)}; all by default")
    parser.add_argument("--prompts", type=Path, help="as `localspec bench --prompts` reads them")
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    options = parser.parse_args()
    kinds = options.peer or list(KINDS)
    try:
        require(kinds)
        texts = prompts.spread(prompts.read(options.prompts) if options.prompts else prompts.BUILT_IN, options.limit)
        show = lambda line: print(line, file=sys.stderr)  # noqa: E731
        print(
            json.dumps(
                compare(options.model, kinds, [prompt.text for prompt in texts], options.max_tokens, show), indent=1
            )
        )
    except LocalspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
