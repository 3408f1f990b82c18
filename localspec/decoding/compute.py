"""What drafters with weights compute with: matrices of their own, and the target's embedding, layers and head."""

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
    """What adapts a linear layer: y += scale * B (A x); a [rank, in], b [out, rank]."""

    a: Floats
    b: Floats
    scale: float


class Linear(Protocol):
    """A linear layer: y = x Wᵀ + b, row by row, or another such layer with other weights for each row."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""

    def __call__(self, x: Rows, /) -> Rows: ...


class PackedAdapters(Protocol):
    """Adapters of a model's layers, as its backend computes with them."""

    @property
    def nbytes(self) -> int:
        """Bytes that they hold."""


class RowModel(Protocol):
    """A transformer as drafters use it: the target's own, or a small one. It reads a chain of rows after a cache."""

    @property
    def sizes(self) -> TransformerConfig:
        """What its family and its sizes are."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""

    def cache(self, slots: int) -> ParkableCache:
        """Return an empty cache with room for `slots` tokens."""

    def embed(self, tokens: Sequence[int] | Rows) -> Rows:
        """Return the input embeddings of token ids, [tokens, hidden_size]."""

    def adapters(self, adapters: Mapping[int, Mapping[str, LowRank]]) -> PackedAdapters:
        """Return adapters for `read_rows`, by layer and by the name of the linear layer."""

    def read_rows(
        self,
        inputs: Rows,
        cache: TokenCache,
        layers: Sequence[int] | None = None,
        adapters: PackedAdapters | None = None,
    ) -> Rows:
        """Read inputs [rows, hidden_size], one after another behind the committed tokens, through some or all layers.

        Return their states after the final norm [rows, hidden_size]. The cache grows as it must; the rows are not
        committed.
        """

    def read_borrowed(self, inputs: Rows, cache: TokenCache, position: int) -> Rows:
        """Read inputs [rows, hidden_size], each at this position, by a model whose layers borrow keys and values.

        They attend to the committed tokens of the lender's cache, one at least, and to nothing else. Return their
        states after the final norm [rows, hidden_size]. The cache stays as it is.
        """

    def forget_rows(self, cache: TokenCache, rows: int, layers: Sequence[int]) -> None:
        """Remove NaN and inf that these rows of the last `read_rows` left behind the committed tokens."""

    def head(self, states: Rows) -> Rows:
        """Return the logits [rows, vocab_size] of states after the final norm."""

    def head_rows(self, ids: Sequence[int]) -> Linear:
        """Return the part of the head that makes the logits of these tokens, a copy in the head's precision."""


class RowAttention(Protocol):
    """The attention of one layer, with separate keys and values, for rows that stand anywhere in a tree."""

    @property
    def length(self) -> int:
        """How many rows it holds keys and values of."""

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds."""

    def seats(
        self,
        positions: Sequence[int],
        seen: Sequence[Sequence[int]] | None = None,
        window: int | None = None,
    ) -> tuple[Any, ...]:
        """Reserve room for the keys and values of rows behind the others. Return what a call takes.

        Each row sees itself and, without `seen`, all before it. With `seen` it sees the first `seen[row][0]` rows, and
        those listed after that number. With a `window` it sees no row that stands this many rows before it, or more.
        """

    def __call__(self, qkv: Rows, *seats: Any) -> Rows:
        """Return what rows attend to from their seats, [rows, heads * head_dim], and store their keys and values.

        qkv [rows, (heads + 2 * key heads) * head_dim] are queries, keys and values, not rotated yet.
        """

    def keep(self, kv: Rows, positions: Sequence[int]) -> None:
        """Store rows that attend to nothing: keys and values [rows, 2 * key heads * head_dim], not rotated yet."""

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` rows."""


class Compute(Protocol):
    """The arithmetic of a backend, in the precision of a target's activations. Matrices may be rounded as its are."""

    @property
    def target(self) -> RowModel:
        """The target itself."""

    def stored(
        self, file: Path, tensors: Mapping[str, Array], of: str, reporter: Reporter | None = None
    ) -> Mapping[str, Array]:
        """Return the tensors of a drafter's file in the form from which layers are made the fastest.

        Trouble with a cached form goes to the `reporter`. `of` is the revision of the model that the drafter was made
        for. Raises LocalspecError for weights that are NaN or infinite.
        """

    def rows(self, values: Floats) -> Rows:
        """Return numbers [rows, channels] as an array of the backend."""

    def linear(self, weight: Floats, bias: Floats | None = None, silu: bool = False) -> Linear:
        """Return a layer of weight [out, in] and bias [out], for rows [n, in].

        With `silu` its result y becomes y σ(y).
        """

    def linears(self, weights: Floats, biases: Floats | None = None, silu: bool = False) -> Linear:
        """Return n layers, weights [n, out, in] and biases [n, out], one for each of up to n rows."""

    def model(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> RowModel:
        """Return a small transformer with weights named as in `weight_map`. Without `rope` it has the target's.

        With `vocab_size` 0 it has neither embedding nor head.
        """

    def read_model(self, path: Path, context: int) -> RowModel:
        """Return the small language model of a directory in the Hugging Face layout, for texts of `context` tokens.

        Raises LocalspecError for broken, missing or unsupported files.
        """

    def integers(self, numbers: Sequence[Sequence[int]]) -> Rows:
        """Return integers [rows, n], which name tokens and rows."""

    def recorded(self, function: RowFunction, *attentions: RowAttention) -> RowFunction:
        """Return a function of rows, computed by one call to the device if steps are recorded.

        It depends only on numbers in its arguments, which Python need not see, and on keys and values of `attentions`.
        Each row of a result depends on one row of each argument. If an argument is a single row for all, or others name
        its rows by their place, it depends on those. A result has as many rows as the first argument, and the next call
        overwrites it.
        """

    def logits(self, rows: Rows) -> Logits:
        """Return `rows` [rows, tokens] as logits."""

    def concat(self, arrays: Sequence[Rows], axis: int = 0) -> Rows:
        """Return arrays joined below each other, or with axis 1 next to each other."""

    def repeated(self, row: Rows, count: int) -> Rows:
        """Return a row [1, channels] `count` times, [count, channels]."""

    def at_columns(self, rows: Rows, ids: Array, width: int) -> Rows:
        """Return [rows, width] with the columns `ids` of `rows`, and -inf elsewhere."""

    def silu(self, x: Rows) -> Rows:
        """x σ(x)."""

    def sigmoid(self, x: Rows) -> Rows:
        """σ(x)."""

    def tanh(self, x: Rows) -> Rows:
        """tanh(x)."""

    def rms_norm(self, x: Rows, eps: float = EPS) -> Rows:
        """Return rows divided by the root of their mean square, to which `eps` is added."""

    def attention(self, sizes: TransformerConfig, rope: Rope | None, weights: Mapping[str, Array]) -> RowAttention:
        """Return the attention of a layer of these sizes. Without `rope` it rotates as the target does.

        If queries and keys are normed, `weights` has q_norm and k_norm [head_dim].
        """


class DraftableModel(ForwardModel[CacheT], Protocol[CacheT]):
    """A model for which drafters with weights can draft."""

    tokenizer: Tokenizer

    @property
    def compute(self) -> Compute:
        """What they compute with."""


def rows_seen(
    first: int, rows: int, seen: Sequence[Sequence[int]] | None = None, window: int | None = None
) -> npt.NDArray[np.bool_]:
    """Return [rows, first + rows]: which rows each of those behind the `first` ones sees, as in `RowAttention`."""
    if seen is None:
        visible = np.tri(rows, first + rows, first, np.bool_)
    else:
        visible = np.zeros((rows, first + rows), np.bool_)
        for row, (before, *others) in enumerate(seen):
            visible[row, :before] = True
            visible[row, [*others, first + row]] = True
    return visible if window is None else np.triu(visible, first - window + 1)
