"""A smaller head for draft models, which gives logits only for some tokens: the first ids, tokens that end a reply, and
tokens that the model has read."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from localspec.errors import LocalspecError
from localspec.native.logits import NativeLogits
from localspec.weights.matrices import BlockMatrix, BlockStack
from localspec.weights.packed_file import BLOCK_PANEL
from localspec.weights.recipe import FIRST_TOKENS, HEAD_BLOCKS, READ_TOKENS
from localspec.weights.stored import Floats, RowsOf

_PIECE = 256 * BLOCK_PANEL  # rows read at a time


class ShortHead:
    """A matrix with some tokens' rows of a model's head, in GGUF blocks of the type HEAD_BLOCKS.

    The last READ_TOKENS rows are for tokens that the model reads, so that it can draft the words of a prompt in any
    language. When all these rows are in use, the tokens that were added first are replaced. A token without a row ends
    a draft, and changes no text.
    """

    def __init__(self, rows_of: RowsOf, inputs: int, vocab_size: int, ends: Collection[int]) -> None:
        """Read the rows of the first ids, and of `ends`, the tokens that end a reply.

        `rows_of` reads rows of the whole head [vocab_size, inputs]. Raises LocalspecError for rows that have NaN or
        inf, or cannot be read.
        """
        fixed = sorted({*range(FIRST_TOKENS), *ends})
        self.vocab_size, self._rows_of, self._fixed = vocab_size, rows_of, len(fixed)
        self.matrix = BlockMatrix.empty(len(fixed) + READ_TOKENS, inputs, HEAD_BLOCKS)
        self.matrix.data[:] = 0
        self._tokens = np.array(fixed, np.int32)  # the token of each row in use
        self._known = set(fixed)
        self._next = 0  # the next row to fill, counted from `_fixed`
        for start in range(0, len(fixed), _PIECE):
            self._put(start, rows_of(fixed[start : start + _PIECE]))

    @property
    def stack(self) -> BlockStack:
        """The matrix as a `BlockStack`, the form in which a model takes its head."""
        return BlockStack((self.matrix,))

    def add(self, tokens: Iterable[int]) -> None:
        """Add rows for the tokens that are missing. If their rows cannot be read, add none."""
        fresh = [token for token in dict.fromkeys(tokens) if token not in self._known][-READ_TOKENS:]
        if not fresh:
            return
        try:
            rows = self._rows_of(fresh)
        except (LocalspecError, OSError):  # the file is gone; fewer tokens cost only speed
            return
        row_tokens = np.concatenate([self._tokens, np.empty(READ_TOKENS, np.int32)])[: self.matrix.out]
        used = len(self._tokens)
        while fresh:
            start = self._fixed + self._next
            count = min(len(fresh), self.matrix.out - start)
            try:
                self._put(start, rows[:count])
            except LocalspecError:
                break  # the rows written so far stay
            self._known -= {*self._tokens[start : start + count].tolist()}
            self._known |= {*fresh[:count]}
            row_tokens[start : start + count] = fresh[:count]
            used = max(used, start + count)
            self._next = (self._next + count) % READ_TOKENS
            fresh, rows = fresh[count:], rows[count:]
        self._tokens = row_tokens[:used]  # a new array: earlier logits keep the old one

    def logits(self, rows: Floats, likeliest: Sequence[int]) -> NativeLogits:
        """Assign the columns of logits [n, rows of the matrix] to tokens.

        `likeliest` is the column of each row's largest logit.
        """
        used = len(self._tokens)
        tokens = [int(self._tokens[column]) if 0 <= column < used else column for column in likeliest]
        # An unused row has the logit 0. Where that is the largest, the likeliest token must be searched.
        known = tokens if all(column < used for column in likeliest) else None
        return NativeLogits(rows[:, :used], known, self._tokens, self.vocab_size)

    def _put(self, start: int, rows: Floats) -> None:
        """Store rows of the whole head from row `start` on. Raises LocalspecError for NaN and inf."""
        first, end = start // BLOCK_PANEL, -(-(start + len(rows)) // BLOCK_PANEL)
        of_panel, last = len(self.matrix.data) // self.matrix.panels, min(BLOCK_PANEL * end, self.matrix.out)
        whole = self.stack.rows(range(BLOCK_PANEL * first, last))  # panels are packed whole, with their other rows
        whole[start - BLOCK_PANEL * first :][: len(rows)] = rows
        panels = self.matrix.data[first * of_panel : end * of_panel]
        BlockMatrix(panels, len(whole), self.matrix.inputs, HEAD_BLOCKS).fill_rounded(whole)
