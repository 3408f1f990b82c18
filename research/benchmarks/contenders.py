"""The contenders: ours, llama.cpp and transformers, with the same weights, tokens and threads."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Protocol

import gguf_writer
import llama_cpp_model
import torch

from benchmarks.workshop import Model, some_tokens
from localspec.choosing.fit import CHUNK
from localspec.decoding.tree import DraftTree
from localspec.machine import compiled
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.matrices import PackedMatrix

OURS = ("int8", "int4")
THEIRS = gguf_writer.QUANTISED
MOST_ROWS = 64


class Contender(Protocol):
    """A model in one program and precision."""

    name: str

    def prepare(self, context: int) -> None:
        """Fill the cache with `context` tokens, for the forwards that follow."""

    def forward(self, rows: int) -> None:
        """Run one forward of `rows` tokens after them, until the likeliest next token of each is on the host."""

    def prefill(self, tokens: int) -> None:
        """Read a prompt of `tokens` tokens into an empty cache, until the likeliest next token is known."""

    def close(self) -> None:
        """Give memory back."""


class Ours:
    """The CPU engine."""

    def __init__(self, model: Model, packing: str, longest: int) -> None:
        self.name, room = f"localspec {packing}", longest + MOST_ROWS
        self.target = NativeTarget.open(
            model.path, packing=packing, context=room, threads=Threads(model.threads), name=model.name
        )
        self._cache, self._threads = self.target.cache(room), model.threads
        matrices = [one for one in self.target.model.weights.values() if isinstance(one, PackedMatrix)]
        first = min(one.data.ctypes.data for one in matrices)
        end = max(one.data.ctypes.data + one.data.nbytes for one in matrices)
        self._weights = first, min(self.target.read_bytes, end - first)

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a forward reads."""
        return self.target.read_bytes

    def prepare(self, context: int) -> None:
        self._cache.assume(context)

    def forward(self, rows: int) -> None:
        self.target.forward(DraftTree.chain(some_tokens(rows, self.target.vocab_size)), self._cache).logits.argmax()

    def prefill(self, tokens: int) -> None:
        ids = some_tokens(tokens, self.target.vocab_size)
        self._cache.truncate(0)
        for start in range(0, tokens, CHUNK):
            chunk = ids[start : start + CHUNK]
            output = self.target.forward(DraftTree.chain(chunk), self._cache, last=True)
            self._cache.keep(range(len(chunk)))
        output.logits.argmax()

    def read_weights(self) -> float:
        """Seconds of reading as many bytes as a forward does, and doing nothing with them: the limit."""
        return compiled.read_seconds(*self._weights, self._threads)

    def close(self) -> None:
        del self.target, self._cache


class LlamaCpp:
    """llama.cpp with repacked weights and flash attention."""

    def __init__(self, model: Model, kind: str, longest: int) -> None:
        self.name, self._model, self._longest, self._context = f"llama.cpp {kind.upper()}", model, longest, 0
        self.gguf = llama_cpp_model.Gguf(
            model.gguf(kind), model.config.vocab_size, longest + MOST_ROWS, flash=model.flash
        )
        self.gguf.set_threads(model.threads)

    def prepare(self, context: int) -> None:
        state = self._model.state(self._longest)  # its first tokens are used
        ids, count = (ctypes.c_int32 * 1)(), ctypes.c_size_t()
        library = llama_cpp_model.library()
        path = str(state).encode()
        if not library.llama_state_seq_load_file(self.gguf.context, path, 0, ids, 1, ctypes.byref(count)):
            raise RuntimeError(f"llama.cpp does not read {state}; delete it.")
        self._context = context

    def shorten(self, context: int) -> None:
        """Forgets all but the first tokens."""
        self._context = context

    def forward(self, rows: int) -> None:
        tokens = some_tokens(rows, self._model.config.vocab_size)
        self.gguf.logits(tokens, self._context).argmax(-1).tolist()

    def prefill(self, tokens: int) -> None:
        self.gguf.read(some_tokens(tokens, self._model.config.vocab_size)).argmax()
        self._context = tokens

    def close(self) -> None:
        self.gguf.close()


class Transformers:
    """The stock model in bf16: sdpa and a growing cache."""

    name = "transformers bf16"

    def __init__(self, model: Model) -> None:
        self.model, self._vocabulary = load_stock(model), model.config.vocab_size
        self._cache: Any = None

    @torch.inference_mode()
    def prepare(self, context: int) -> None:
        config = self.model.config
        self._cache = empty_cache()
        zeros = torch.zeros(1, config.num_key_value_heads, context, self.model.model.layers[0].self_attn.head_dim)
        for layer in range(config.num_hidden_layers):
            self._cache.update(zeros.bfloat16(), zeros.bfloat16(), layer)

    @torch.inference_mode()
    def _logits(self, tokens: Sequence[int], cache: Any, last: bool) -> torch.Tensor:
        ids = torch.tensor([list(tokens)])
        logits: torch.Tensor = self.model(ids, past_key_values=cache, logits_to_keep=int(last)).logits[0]
        return logits

    def forward(self, rows: int) -> None:
        self._logits(some_tokens(rows, self._vocabulary), self._cache, False).argmax(-1).tolist()
        self._cache.crop(-rows)

    def prefill(self, tokens: int) -> None:
        self._logits(some_tokens(tokens, self._vocabulary), empty_cache(), True).argmax()

    def close(self) -> None:
        self.model = self._cache = None


def load_stock(model: Model) -> Any:
    """Return transformers' model in bf16."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(model.threads)
    return AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
    )


def empty_cache() -> Any:
    """Return a cache of transformers'."""
    from transformers import DynamicCache

    return DynamicCache()


@contextmanager
def opened(model: Model, peers: Sequence[str], longest: int) -> Iterator[list[Contender]]:
    """Ours in both packings and the peers, all loaded, with room for texts of `longest` tokens."""
    with ExitStack() as stack:
        found: list[Contender] = [stack.enter_context(closing(Ours(model, packing, longest))) for packing in OURS]
        if "llama.cpp" in peers:
            found += [stack.enter_context(closing(LlamaCpp(model, kind, longest))) for kind in THEIRS]
        if "transformers" in peers:
            found.append(stack.enter_context(closing(Transformers(model))))
        yield found
