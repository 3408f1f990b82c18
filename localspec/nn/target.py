"""The target in torch: a transformer, its tokenizer and its settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from localspec.choosing.choice import StepForm
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.tree import DraftTree
from localspec.errors import LocalspecError
from localspec.families.architecture import in_features, stored_shape, weight_map
from localspec.families.generation_config import GENERATION, generation_config
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.families.table import FAMILIES
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.messages import Message
from localspec.models.tokenizer import Tokenizer
from localspec.nn import kernel_checks, row_kernels
from localspec.nn.attention import LEAST_SLOTS, fastest, invariant
from localspec.nn.cache import KVCache
from localspec.nn.compute import TorchCompute
from localspec.nn.experts import experts_together
from localspec.nn.linear import Adapter, Linear
from localspec.nn.logits import TensorOutput, TorchHidden, TorchLogits
from localspec.nn.packing import DTYPES, linear_class, lm_head_class
from localspec.nn.rotary import RotaryEmbedding
from localspec.nn.states import AT_ONCE, StateCache, cache_of
from localspec.nn.static_forward import StaticRows
from localspec.nn.step_logits import STATES_FINITE, Find, StepHidden, StepLogits, StepNumbers
from localspec.nn.transfer import moved, uploaded
from localspec.nn.transformer import Transformer
from localspec.nn.weights import Weights, freed_at_once
from localspec.weights.checkpoint import only_packed
from localspec.weights.opening import source_of


class Target:
    """The model that verifies drafts, and whose text localspec reproduces.

    `context` is the longest text in tokens; it fixes length-dependent position scaling.
    """

    def __init__(
        self,
        transformer: Transformer,
        config: ModelConfig,
        tokenizer: Tokenizer,
        context: int,
        generation: Mapping[str, Any],
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.transformer, self.config, self.tokenizer, self.context = transformer, config, tokenizer, context
        self.generation = generation  # generation_config.json: the model's recommended sampling
        self.file: Path | None = None
        self.row_multiple = 1  # rows of a forward with a cache are filled up to a multiple of this
        self.chat = ChatTokenizer(tokenizer)
        self.stop_tokens = self.chat.stop_tokens((config.eos_token_id, generation.get("eos_token_id")))

    @classmethod
    @freed_at_once()
    def load(
        cls,
        path: Path,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        context: int | None = None,
        quantize: str = "none",
        exact: bool = False,
        threshold: float = 0.0,
        each: Callable[[nn.Module], None] = lambda layer: None,
        packed: Mapping[str, Any] | None = None,
    ) -> "Target":
        """Read a model's directory, or the GGUF files of a registered model. The model states the default of `context`.

        `quantize` is `none`, int8, int4 or nf4, if the device supports it. With `exact`, rows never affect each other;
        `threshold` is as in `LLMInt8Linear`, for CUDA. `each` is called with every layer after it is read. `packed` are
        weights that were packed earlier, to be used instead of the directory's. On the device "meta" a model has only
        shapes. Raises LocalspecError for broken, missing or unsupported files, NotHere for a model that is here only
        packed, and UsageMistake for a context that the model cannot hold.
        """
        source = source_of(path)
        if not source.made_of and device != "meta":
            raise only_packed(path)
        config, sizes, texts = source.config, source.sizes, source.texts
        context = config.context_for(context)
        transformer = Transformer(
            sizes,
            RotaryEmbedding(Rope.of(config, context), torch.device(device)),
            Weights(source.made_of, sizes, dtype, device) if packed is None else packed,
            linear_class(quantize, device, threshold, exact),
            invariant if exact else fastest,
            lm_head_class(quantize, device, exact),
            each,
        )
        generation = generation_config(texts.get(GENERATION, b"{}"), path / GENERATION)
        return cls(transformer, config, Tokenizer.decoded(texts, path), context, generation, exact)

    # -- forward ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(
        self, tree: DraftTree, cache: KVCache, *, last: bool = False, inner: Sequence[int] = ()
    ) -> ForwardOutput:
        """Read the nodes of a tree. Each node sees the committed tokens and its ancestors. A prompt is a chain.

        With `last` return logits only of the last row, which is enough for prefill. With `inner` also return states of
        inner layers, numbered as in `Transformer.forward`.
        """
        assert self.branches or is_chain(tree.parents), "recurrent layers can read only chains of tokens"
        static = self.compute.target.static
        if static is not None and static.can_read(cache, max(tree.size, self.row_multiple)):
            return _step_output(static.tree(tree, cache, inner, self.row_multiple), last, static.contenders)
        device = self.device
        tokens = uploaded(tree.tokens, device)
        positions = cache.length + uploaded(tree.depth, device)
        mask = moved(ancestor_mask(tree.parents), device)
        output = self.forward_tensors(tokens, positions, mask, cache, last=last, inner=inner)
        states = None if output.inner is None else TorchHidden(output.inner)
        return ForwardOutput(TorchLogits(output.logits), TorchHidden(output.hidden), states)

    def forward_tensors(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None = None,
        layers: Sequence[int] | None = None,
        last: bool = False,
        inner: Sequence[int] = (),
    ) -> TensorOutput:
        """Return logits and states of rows: tokens [n] ([batch, n] without a cache), positions [n], bool mask [n, n].

        Gradients flow if there is no cache. With `last` return logits only of the last row. `inner` are the numbers of
        requested hidden states, as in `Transformer.forward`. Raises LocalspecError for an index that does not exist.
        """
        rows = len(positions)
        padding = 0 if cache is None else -rows % self.row_multiple
        if isinstance(cache, StateCache) and rows + padding > AT_ONCE:
            padding = 0  # a prompt is always read in the same way, and none of its rows can be taken back
        if cache is not None and padding:
            tokens, positions = F.pad(tokens, (0, padding)), torch.cat([positions, positions[:1].expand(padding)])
            itself = torch.eye(rows + padding, dtype=torch.bool, device=mask.device)
            mask = F.pad(mask, (0, padding, 0, padding)) | itself
            cache.reserve(cache.length + rows + padding)
        inner_states: dict[int, torch.Tensor | None] = dict.fromkeys(inner)
        batch = tokens if tokens.ndim == 2 else tokens[None]
        hidden = self.transformer(batch, positions, mask, cache, layers, inner=inner_states)
        states = self.transformer.side_by_side(inner_states, inner)[:, :rows] if inner else None
        if tokens.ndim == 1:
            hidden, states = hidden[0], None if states is None else states[0]
        if last:
            return TensorOutput(self.head(hidden[..., rows - 1 : rows, :]), hidden[..., :rows, :], states)
        return TensorOutput(self.head(hidden)[..., :rows, :], hidden[..., :rows, :], states)

    def aligned(self, tree: DraftTree, start: int) -> DraftTree:
        """Return the nodes of a tree that this model can verify. With recurrent layers, this is the tree's first chain.

        The exact form leaves out nodes whose bits would differ from plain decoding after `start` committed tokens.
        """
        tree = tree if self.branches else tree.first_chain()
        return tree.aligned(start, self.page) if self.exact else tree

    @property
    def step_form(self) -> StepForm:
        """The way in which steps run: operation by operation, in static shapes, or as recordings of static shapes."""
        return self.compute.step_form

    def use_step_form(self, form: StepForm) -> None:
        """Choose how steps run: `eager`, `static` or `captured` (CUDA graphs), also in models that are loaded later."""
        self.compute.use_step_form(form)

    @property
    def step_trouble(self) -> str | None:
        """The reason why steps are no longer recorded; None if nothing failed."""
        return self.compute.recorder.trouble

    @property
    def draft_trouble(self) -> str | None:
        """The reason why drafters' computations outside of the target's layers are no longer recorded; None if
        nothing failed."""
        return self.compute.draft_recorder.trouble

    @property
    def branches(self) -> bool:
        return self.transformer.config.delta is None

    @property
    def page(self) -> int:
        """The number of slots that exact attention sums at once; 1 if unknown: `aligned` then returns only chains."""
        config = self.transformer.config
        fit = all(row_kernels.heads_fit(config.sizes_of(index).head_dim) for index in range(config.num_layers))
        return row_kernels.PAGE if fit and kernel_checks.trouble(torch.device(self.device)) is None else 1

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input embeddings of token ids, [..., hidden_size]."""
        return self.transformer.embed(tokens)

    def head(self, hidden: torch.Tensor, adapter: Adapter | None = None) -> torch.Tensor:
        """Return the logits [..., vocab_size] of hidden states after the final norm."""
        return self.transformer.head(hidden, adapter)

    def cache(self, slots: int) -> KVCache:
        """Return an empty cache with room for `slots` tokens, in this model's precision and on its device."""
        least = LEAST_SLOTS if self.exact else 0
        return cache_of(self.transformer.config, slots, self.dtype, self.device, least)

    @cached_property
    def compute(self) -> TorchCompute:
        """The arithmetic of drafters with weights."""
        return TorchCompute(self.transformer)

    @property
    def device(self) -> str:
        return str(self.transformer.embed_tokens.device)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of computations and of the cache."""
        return self.transformer.computes_in

    @property
    def precision(self) -> str:
        """The precision as a user names it, such as bf16 or nf4."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    def set_threads(self, count: int) -> None:
        """Let torch compute with this many cores of the CPU from now on."""
        torch.set_num_threads(count)

    def lend_core(self, lent: bool) -> None:
        """Do nothing. Torch's threads share each operation evenly, so no thread can rest to leave its core free."""

    @property
    def vocab_size(self) -> int:
        return self.transformer.config.vocab_size

    @cached_property
    def nbytes(self) -> int:
        return self.transformer.nbytes

    @property
    def read_bytes(self) -> int:
        transformer = self.transformer
        shared = isinstance(transformer.lm_head, Linear) and transformer.lm_head.weight is transformer.embed_tokens
        return self.nbytes - (0 if shared else transformer.embed_tokens.nbytes)

    # -- text ---------------------------------------------------------------------------------------------------------

    def encode(self, messages: Sequence[Message], think: bool | None = None) -> list[int]:
        """Return the token ids of a conversation that waits for the assistant. Raises the errors of `ChatTokenizer`."""
        return self.chat.encode(messages, self.vocab_size, think)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.chat.decode(tokens)

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        return self.tokenizer.special_ids | self.stop_tokens

    def free(self) -> None:
        """Release the weights. The model can no longer compute."""
        del self.transformer
        self.__dict__.pop("compute", None)

    # -- back to files ------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write weights, config and tokenizer in the Hugging Face layout. Raises LocalspecError for a packed model."""
        if self.transformer.packed:
            raise LocalspecError(
                "A model in int8, int4 or nf4 cannot be exported, because its weights are rounded; give "
                "--quantize none."
            )
        path.mkdir(parents=True, exist_ok=True)
        parameters, tensors, sizes = dict(self.transformer.named_parameters()), {}, self.transformer.config
        for name, made_of in weight_map(sizes).items():
            pieces = torch.split(parameters[name].detach(), [rows for _, rows in made_of])
            columns = in_features(name, sizes)
            for (part, rows), piece in zip(made_of, pieces, strict=True):
                tensors[part] = piece.contiguous().view(stored_shape(name, rows, columns))
        if sizes.experts and FAMILIES[sizes.family].experts_together:
            tensors = experts_together(tensors, sizes.experts.count)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        self.save_settings(path)

    def save_settings(self, path: Path, changed: Mapping[str, Any] | None = None) -> None:
        """Write config, with some values `changed`, and tokenizer in the Hugging Face layout."""
        content = {**self.config.content, **(changed or {})}
        (path / "config.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")
        self.tokenizer.save(path)


def _step_output(rows: StaticRows, last: bool, find: Find) -> ForwardOutput:
    if last:  # the rows of a prompt are not copied, so the next step would overwrite them
        rows = rows.copied()
    assert rows.logits is not None and rows.summary is not None
    numbers = StepNumbers(rows.summary)
    hidden = StepHidden(rows.hidden, lambda some: bool(numbers[0][list(some), STATES_FINITE].all()))
    inner = None if rows.inner is None else TorchHidden(rows.inner)
    logits = StepLogits(rows.logits, numbers, len(rows.hidden) - 1 if last else 0, find)
    return ForwardOutput(logits, hidden, inner, rows.once_seconds)


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether each node except the root is below the node before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def ancestor_mask(parents: Sequence[int]) -> torch.Tensor:
    """Return bool [size, size] of a tree: True where the column is the row itself or one of its ancestors."""
    size = len(parents)
    if is_chain(parents):
        return torch.ones(size, size, dtype=torch.bool).tril_()
    rows: list[list[bool]] = []
    for node, parent in enumerate(parents):
        row = list(rows[parent]) if node else [False] * size
        row[node] = True
        rows.append(row)
    return torch.tensor(rows)
