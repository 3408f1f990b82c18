"""The computing interface for drafters with weights: arrays, layers and attention, and the target's own layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec.decoding.forward import CacheT, ForwardModel, ParkableCache, TokenCache
from localspec.decoding.logits import Logits
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig
from localspec.families.rope import Rope
from localspec.models.tokenizer import Tokenizer

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
EPS = float(np.finfo(np.float32).eps)
# [rows, channels], an array of the backend in the precision of its activations. All have `len`, `shape`, slices, rows
# by `integers`, and `+` and `*` with each other and with numbers.
Rows = Any
RowFunction = Callable[..., tuple[Rows, ...]]


@dataclass(frozen=True)
class LowRank:
    """A low-rank adapter of a linear layer: y += scale * B (A x); a [rank, in], b [out, rank]."""

    a: Floats
    b: Floats
    scale: float


class LinearLayer(Protocol):
    """A linear layer y = x Wᵀ + b."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    def __call__(self, x: Rows, /) -> Rows: ...


@dataclass(frozen=True)
class HeadWeights:
    """The weights of Medusa's draft heads (Cai et al. 2024, §3.1). Each array stacks all heads.

    A head starts with the target's state x, and each of its blocks computes x += silu(B x + b). `blocks` has a pair of
    B [heads, hidden_size, hidden_size] and b [heads, hidden_size] for each block.

    `path` is None, or a pair of A [heads, hidden_size, 2 * hidden_size] and a [heads, hidden_size]. With it the first
    block computes x = A z + a + silu(B z + b) instead, and its B has the shape of A. z joins the state and the root's
    embedding, each divided by its root mean square.

    The logits are W x + up (down x). W is the head's matrix in `vocabulary` [heads, tokens, hidden_size]; if that is
    None, all heads share a matrix. Without `down` [heads, rank, hidden_size] and `up` [heads, tokens, rank] there is no
    second term.
    """

    blocks: Sequence[tuple[Array, Array]]
    path: tuple[Array, Array] | None
    vocabulary: Array | None
    down: Array | None
    up: Array | None


class DraftHeads(Protocol):
    """Draft heads (Medusa) that are ready to compute."""

    @property
    def nbytes(self) -> int:
        """Bytes of the heads' weights, without a vocabulary matrix that they share."""

    def __call__(self, state: Rows, root: int, count: int) -> Rows:
        """Return logits [count, tokens] of the first heads, from a state [1, hidden_size] and the root's token id."""


class PackedAdapters(Protocol):
    """Adapters of a model's layers, in the form that its backend computes with."""

    @property
    def nbytes(self) -> int:
        """Bytes of the adapters."""


class RowModel(Protocol):
    """A transformer that drafters call: either the target, or a small model of a drafter.

    Its input is a sequence of rows (embeddings), which continue the tokens in a cache.
    """

    @property
    def sizes(self) -> TransformerConfig:
        """The family of the model and the sizes of its layers."""

    @property
    def nbytes(self) -> int:
        """Bytes of the model's weights."""

    def cache(self, slots: int) -> ParkableCache:
        """Return an empty cache with room for `slots` tokens."""

    def embed(self, tokens: Sequence[int] | Rows) -> Rows:
        """Return the input embeddings of token ids, [tokens, hidden_size]."""

    def adapters(self, adapters: Mapping[int, Mapping[str, LowRank]]) -> PackedAdapters:
        """Convert adapters, by layer and by the name of the linear layer, to the form that `read_rows` takes."""

    def read_rows(
        self,
        inputs: Rows,
        cache: TokenCache,
        layers: Sequence[int] | None = None,
        adapters: PackedAdapters | None = None,
    ) -> Rows:
        """Compute inputs [rows, hidden_size], a chain that continues the committed tokens, with some or all layers.

        Return the states [rows, hidden_size] after the final norm. The cache grows if needed. The rows' keys and values
        are written to it, but not committed.
        """

    def read_borrowed(self, inputs: Rows, cache: TokenCache, position: int) -> Rows:
        """Read inputs [rows, hidden_size], all at `position`, with layers that use the keys and values of another
        model.

        The rows attend only to the committed tokens in the other model's `cache`, which must hold at least one token.
        Return the rows' states [rows, hidden_size] after the final norm. The cache stays unchanged.
        """

    def forget_rows(self, cache: TokenCache, rows: int, layers: Sequence[int]) -> None:
        """Make NaN and inf harmless in the keys and values that the last `read_rows` wrote after the committed tokens.

        They must not reach later forwards of the target. A backend that never reads these slots does nothing.
        """

    def head(self, states: Rows) -> Rows:
        """Return the logits [rows, vocab_size] of states after the final norm."""

    def head_rows(self, ids: Sequence[int]) -> LinearLayer:
        """Return the part of the head that computes the logits of these tokens, as a copy in the head's precision."""


class RowAttention(Protocol):
    """The attention of one layer with its own store of keys and values. Each new row may see any of the stored rows."""

    @property
    def length(self) -> int:
        """The number of rows whose keys and values are stored."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""

    def reserve_rows(
        self,
        positions: Sequence[int],
        visible: Sequence[Sequence[int]] | None = None,
        window: int | None = None,
    ) -> tuple[Any, ...]:
        """Reserve room for the keys and values of new rows. Return the `places` for `__call__`.

        Each row sees itself. Without `visible`, each row also sees all rows before it. With `visible`, row i sees the
        first `visible[i][0]` rows and the rows with the numbers `visible[i][1:]`. With a `window`, a row sees no row
        that is `window` positions or more before it.
        """

    def __call__(self, qkv: Rows, *places: Any) -> Rows:
        """Store the keys and values of new rows. Return the rows' attention output, [rows, heads * head_dim].

        `places` is the result of `reserve_rows` for these rows.
        qkv [rows, (heads + 2 * key heads) * head_dim] are queries, keys and values, not rotated yet.
        """

    def keep(self, kv: Rows, positions: Sequence[int]) -> None:
        """Store keys and values [rows, 2 * key heads * head_dim], not rotated yet, of rows that have no queries."""

    def truncate(self, length: int) -> None:
        """Discard all but the first `length` rows."""


class Compute(Protocol):
    """A backend as drafters see it: its arrays and layers compute in the precision of the target's activations.

    A backend may quantize a drafter's matrices like the target's.
    """

    @property
    def target(self) -> RowModel:
        """The target, as a model that reads rows."""

    def stored(
        self, file: Path, tensors: Mapping[str, Array], of: str, reporter: Reporter | None = None
    ) -> Mapping[str, Array]:
        """Return the tensors of a drafter's `file`. A backend may read large matrices from a packed copy of the file.

        Problems with that copy go to the `reporter`. `of` is the revision of the model that the drafter was made for.
        Raises LocalspecError for weights that are NaN or infinite.
        """

    def rows(self, values: Floats) -> Rows:
        """Convert numbers [rows, channels] to an array of the backend."""

    def linear(self, weight: Floats, bias: Floats | None = None, silu: bool = False) -> LinearLayer:
        """Return a layer of weight [out, in] and bias [out], for rows [n, in].

        With `silu` its result y becomes y σ(y).
        """

    def draft_heads(self, weights: HeadWeights, head: Any) -> DraftHeads:
        """Return draft heads.

        Without `weights.vocabulary` the heads share `head`, a result of `head_rows` (None: the target's head).
        """

    def model(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> RowModel:
        """Return a small transformer whose `weights` have localspec's names. Without `rope` it rotates like the target.

        If `sizes.vocab_size` is 0, the transformer has neither embedding nor head.
        """

    def read_model(self, path: Path, context: int) -> RowModel:
        """Return the small language model in a directory of the Hugging Face layout, for texts of `context` tokens.

        Raises LocalspecError for broken, missing or unsupported files.
        """

    def integers(self, numbers: Sequence[Sequence[int]]) -> Rows:
        """Convert integers [rows, n], which are token ids or row numbers, to an array of the backend."""

    def recorded(self, function: RowFunction, *attentions: RowAttention) -> RowFunction:
        """Return the function, recorded as a CUDA graph (computed in one call) if the backend records functions.

        The function may read only its arguments, and the keys and values of `attentions`. It must not branch on the
        values in its arguments. All results have as many rows as the first argument. Row i of a result may depend on
        row i of each argument, on an argument's only row, and on rows whose numbers are in another argument. The next
        call overwrites the result.
        """

    def logits(self, rows: Rows) -> Logits:
        """Wrap `rows` [rows, tokens] as logits."""

    def concat(self, arrays: Sequence[Rows], axis: int = 0) -> Rows:
        """Return arrays joined along `axis`."""

    def repeated(self, row: Rows, count: int) -> Rows:
        """Return a row [1, channels] `count` times, [count, channels]."""

    def at_columns(self, rows: Rows, ids: Array, width: int) -> Rows:
        """Return an array [rows, width] with `rows` at the columns `ids`, and -inf elsewhere."""

    def silu(self, x: Rows) -> Rows:
        """Return x σ(x), the SiLU activation."""

    def sigmoid(self, x: Rows) -> Rows:
        """Return σ(x), the logistic function."""

    def tanh(self, x: Rows) -> Rows:
        """Return tanh(x), the hyperbolic tangent."""

    def rms_norm(self, x: Rows, eps: float = EPS) -> Rows:
        """Return rows, each divided by √(mean of its squares + `eps`)."""

    def attention(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> RowAttention:
        """Return the attention of a layer of these sizes. Without `rope` it rotates positions as the target does.

        If queries and keys are normed, `weights` has q_norm and k_norm [head_dim].
        """


class DraftableModel(ForwardModel[CacheT], Protocol[CacheT]):
    """A target that drafters with weights can use: a `ForwardModel` with a tokenizer and a computing interface."""

    tokenizer: Tokenizer

    @property
    def compute(self) -> Compute:
        """The computing interface of the target's backend."""


def rows_seen(
    first: int, rows: int, visible: Sequence[Sequence[int]] | None = None, window: int | None = None
) -> npt.NDArray[np.bool_]:
    """Return an attention mask, bool [rows, first + rows]: which of `first` stored rows and `rows` new rows each new
    row sees. `visible` and `window` are those of `RowAttention.reserve_rows`."""
    if visible is None:
        mask = np.tri(rows, first + rows, first, np.bool_)
    else:
        mask = np.zeros((rows, first + rows), np.bool_)
        for row, (first_rows, *others) in enumerate(visible):
            mask[row, :first_rows] = True
            mask[row, [*others, first + row]] = True
    return mask if window is None else np.triu(mask, first - window + 1)
