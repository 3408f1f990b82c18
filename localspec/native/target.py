"""The target on a CPU without torch: packed weights, the compiled library, and a tokenizer, as one model."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from localspec.decoding.forward import ForwardOutput
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.tree import DraftTree
from localspec.environment import home
from localspec.events import Reporter
from localspec.families.architecture import TABLES
from localspec.families.generation_config import generation_config
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.machine.hardware import logical_cores, physical_cores
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.messages import Message
from localspec.models.tokenizer import Tokenizer
from localspec.native.cache import NativeCache, cache_format
from localspec.native.compute import NativeCompute
from localspec.native.logits import NativeLogits
from localspec.native.model import NativeModel
from localspec.native.short_head import ShortHead
from localspec.native.threads import Threads
from localspec.paths import Paths
from localspec.weights.checkpoint import is_packed, read_texts
from localspec.weights.matrices import BlockStack, PackedMatrix
from localspec.weights.opened import PackedModel
from localspec.weights.opening import load
from localspec.weights.recipe import head_tokens


class NativeTarget:
    """A target that the compiled library computes. `context` is the largest number of tokens of a text."""

    row_multiple = 1
    device = "cpu"
    file: Path | None = None

    def __init__(
        self,
        model: NativeModel,
        config: ModelConfig,
        tokenizer: Tokenizer,
        context: int,
        generation: Mapping[str, Any],
        precision: str,
    ) -> None:
        self.model, self.config, self.tokenizer, self.context = model, config, tokenizer, context
        self.generation, self.precision = generation, precision
        self.chat = ChatTokenizer(tokenizer)
        self.stop_tokens = self.chat.stop_tokens((config.eos_token_id, generation.get("eos_token_id")))

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        packing: str = "int8",
        context: int | None = None,
        threads: Threads | None = None,
        tokenizer: Tokenizer | None = None,
        name: str = "",
        reporter: Reporter | None = None,
        drafts: bool = False,
        on_disk: bool = False,
    ) -> "NativeTarget":
        """Open a model's directory, or a packed file, in int8, int4, bf16 or fp32; pack it if there is no packed form.

        `threads` may be shared with a draft model; by default there is one per core. A given `tokenizer` from the same
        files shares its vocabulary with this model. The default `context` is in the config. With `drafts`, a draft
        model is opened: weights may be rounded more coarsely, and a large vocabulary gets a short head. With `on_disk`,
        some experts stay in a mapped file. Raises the errors of `opening.load`, LocalspecError for a tokenizer or
        settings that cannot be used, and UsageMistake for a context that the model cannot hold.
        """
        threads = threads or Threads(physical_cores())
        packed = load(path, packing, name or path.name, threads.count, reporter or Reporter(), drafts=drafts)
        # a directory's own texts: they may have changed since its weights were packed
        config, texts = packed.config, packed.texts if is_packed(path) else read_texts(path)
        context = config.context_for(context)
        packing = packed.header.packing
        generation = generation_config(texts.get("generation_config.json", b"{}"), path / "generation_config.json")
        decoded, ends = Tokenizer.decoded(texts, path, tokenizer), (config.eos_token_id, generation.get("eos_token_id"))
        short = _short_head(packed, ChatTokenizer(decoded).stop_tokens(ends)) if drafts else None
        rope = Rope.of(config, context)
        model = NativeModel(
            packed.sizes,
            rope,
            packed.tensors,
            threads,
            cache_format(packing),
            short,
            on_disk and packed.file is not None,
        )
        target = cls(model, config, decoded, context, generation, packed.header.packing)
        target.file = packed.file if packed.file and packed.file.parent == Paths(home()).packed else None
        return target

    # -- forward ------------------------------------------------------------------------------------------------------

    def forward(
        self, tree: DraftTree, cache: NativeCache, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Read the nodes of a tree, each of which sees the committed tokens and its ancestors; a prompt is a chain.

        With `last` return logits only of the last row: prefill needs no others. With `inner` also return hidden states,
        numbered as in `NativeModel.forward`. Raises LocalspecError for ids and layers that the model does not have.
        """
        parents = None if isinstance(tree.parents, range) else tree.parents  # None is a chain
        logits, hidden, states = self.model.forward(tree.tokens, parents, cache, tree.size - 1 if last else 0, inner)
        return ForwardOutput(logits, NumpyHidden(hidden), None if states is None else NumpyHidden(states))

    def forward_each(self, tokens: Sequence[int], caches: Sequence[NativeCache]) -> ForwardOutput:
        """Read one token of each text after the text's cache, for up to `MOST_TEXTS` texts. Return one row per text.

        Each row is bit-identical to the row of a forward over that text's cache only. Models with recurrent layers read
        one text after the other. Raises LocalspecError for ids that the model does not have.
        """
        if self.branches:
            logits, hidden = self.model.forward_each(tokens, caches)
            return ForwardOutput(logits, NumpyHidden(hidden))
        rows = [self.model.forward([token], None, cache) for token, cache in zip(tokens, caches, strict=True)]
        logits = NativeLogits(np.concatenate([row[0].rows for row in rows]))
        return ForwardOutput(logits, NumpyHidden(np.concatenate([row[1] for row in rows])))

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the nodes of a tree that get the bits of plain decoding: all, or one chain for recurrent layers."""
        return tree if self.branches else tree.first_chain()

    @property
    def branches(self) -> bool:
        return self.model.sizes.delta is None

    @cached_property
    def compute(self) -> NativeCompute:
        """The arithmetic of drafters with weights."""
        return NativeCompute(self.model, self.precision)

    def cache(self, slots: int) -> NativeCache:
        return self.model.cache(slots)

    def set_threads(self, count: int) -> None:
        """Compute with this many threads from now on, also in a draft model that shares them."""
        self.model.threads.set_count(count)

    def lend_core(self, lent: bool) -> None:
        """Leave one core to another thread of this process while it is `lent`, if this model computes on all cores."""
        if not lent or self.model.threads.count >= logical_cores():  # there may be fewer threads than when it was lent
            self.model.threads.lend(lent)

    @property
    def vocab_size(self) -> int:
        return self.model.sizes.vocab_size

    @property
    def nbytes(self) -> int:
        """The bytes of the weights, including mapped files, although other processes may share these."""
        return self.model.nbytes

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a decode step of one row reads.

        Tables do not count, unless they are also the head. Experts that a row does not choose do not count.
        """
        weights, experts = self.model.weights, self.model.sizes.experts
        tables = (weights[name] for name in TABLES if name in weights)
        read = self.nbytes - sum(int(table.nbytes) for table in tables if table is not weights.get("lm_head.weight"))
        if experts is None:
            return read
        in_experts = sum(int(tensor.nbytes) for name, tensor in weights.items() if ".experts." in name)
        return read - in_experts + in_experts * experts.used // experts.count

    @property
    def threads(self) -> Threads:
        """The threads, which a draft model can share."""
        return self.model.threads

    # -- text ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message], think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant. Raises the errors of `ChatTokenizer`."""
        return self.chat.encode(messages, self.vocab_size, think)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.chat.decode(tokens)

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        return self.tokenizer.special_ids | self.stop_tokens


def _short_head(packed: PackedModel, ends: Collection[int]) -> ShortHead | None:
    """Return the short head of a draft model; None if the model has few tokens, or a `hidden_size` that is not a
    multiple of 32."""
    sizes, head = packed.sizes, packed.tensors.get("lm_head.weight")
    if not head_tokens(sizes.vocab_size) or sizes.hidden_size % 32:
        return None
    if head is None:
        assert packed.head_rows
        return ShortHead(packed.head_rows, sizes.hidden_size, sizes.vocab_size, ends)
    assert isinstance(head, PackedMatrix | BlockStack)
    return ShortHead(head.rows, sizes.hidden_size, sizes.vocab_size, ends)
