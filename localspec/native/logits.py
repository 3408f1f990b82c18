"""Logits of the CPU engine, and the picks that the compiled library finds in them, one row at a time."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.decoding.logits import Candidate, NumpyLogits, Picks, PicksOnRequest, candidates_shown
from localspec.decoding.sampling import Ids, Sampling
from localspec.errors import LocalspecError
from localspec.machine import library as native
from localspec.machine.library import address, check, int32, library


class NativeLogits(NumpyLogits):
    """Logits [rows, vocab_size], as `Logits` describes them, and each row's `likeliest` token if the forward found it.

    A `ShortHead` gives columns only for `tokens`, a part of the `vocab_size` tokens.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.float32],
        likeliest: list[int] | None = None,
        tokens: npt.NDArray[np.int32] | None = None,
        vocab_size: int = 0,
    ) -> None:
        """Store contiguous rows. `likeliest` has each row's likeliest token, or -1 for NaN; None: not known yet."""
        super().__init__(rows)
        self._likeliest, self._start = likeliest, int(self.rows.ctypes.data)
        self._tokens, self._vocab_size = tokens, vocab_size

    def take(self, rows: Sequence[int]) -> "NativeLogits":
        likeliest = self._likeliest and [self._likeliest[row] for row in rows]
        return NativeLogits(self.rows[list(rows)], likeliest, self._tokens, self._vocab_size)

    def numpy(self) -> npt.NDArray[np.float32]:
        """Return the logits of the whole vocabulary: -inf for tokens that a short head lacks."""
        return self._by_token(self.rows, -np.inf)

    def argmax(self) -> list[int]:
        """Return the likeliest token of each row. Raises LocalspecError if one has a NaN."""
        if self._likeliest is None:
            greedy = native.Sampling(top_p=1.0)
            self._likeliest = [self._pick(row, 0, greedy) for row in range(len(self.rows))]
        if min(self._likeliest, default=0) < 0:
            raise LocalspecError(_NO_NUMBER)
        return self._likeliest

    def picks(self, positions: Sequence[int], sampling: Sampling) -> Picks:
        """Return the picked token of each row. A pick is computed when it is accessed, unless sampling is greedy."""
        if sampling.greedy:
            return self.argmax()
        return PicksOnRequest(lambda row: self._pick(row, positions[row], _struct(sampling)))

    def sample(self, row: int, position: int, stream: int, sampling: Sampling) -> int:
        base = _struct(sampling)
        other = native.Sampling(base.temperature, base.top_p, base.min_p, sampling.stream_seed(stream), base.top_k)
        return self._pick(row, position, other)

    def _pick(self, row: int, position: int, sampling: native.Sampling) -> int:
        token = ctypes.c_int32()
        arguments = self.rows.shape[1], sampling, position, address(self._tokens)
        check(library().ls_pick(self._row_address(row), *arguments, token))
        if token.value < 0:
            raise LocalspecError(_NO_NUMBER)
        return token.value

    def candidates(
        self, positions: Sequence[int], count: int, sampling: Sampling, ids: Ids | None = None
    ) -> list[list[Candidate]]:
        vocabulary, among = self.rows.shape[1], candidates_shown(sampling, count, self.rows.shape[1])
        # Both functions need room for all tokens that they consider.
        tokens, chances, size = np.empty(among, np.int32), np.empty(among, np.float32), ctypes.c_int32()
        results, token_ids = (address(tokens), address(chances), size), self._tokens if ids is None else int32(ids)
        rows: list[list[Candidate]] = []
        for row, position in enumerate(positions):
            pointer = self._row_address(row)
            if sampling.proposes_likeliest:
                check(library().ls_top(pointer, vocabulary, 0.0, among, *results))
                shown = tokens[: size.value] if token_ids is None else token_ids[tokens[: size.value]]
            else:
                arguments = _struct(sampling), position, address(token_ids), among, min(count, among)
                check(library().ls_candidates(pointer, vocabulary, *arguments, *results))
                shown = tokens[: size.value]
            rows.append(list(zip(shown.tolist(), chances[: size.value].tolist(), strict=True)))
        return rows

    def probabilities(self, row: int, sampling: Sampling) -> npt.NDArray[np.float64]:
        chances = np.empty(self.rows.shape[1], np.float64)
        check(library().ls_probabilities(self._row_address(row), len(chances), _struct(sampling), address(chances)))
        return self._by_token(chances, 0.0)

    def _by_token(self, numbers: npt.NDArray[Any], missing: float) -> npt.NDArray[Any]:
        """Arrange numbers by column as numbers by token. Tokens without a column get the number `missing`."""
        if self._tokens is None:
            return numbers
        whole = np.full((*numbers.shape[:-1], self._vocab_size), missing, numbers.dtype)
        whole[..., self._tokens] = numbers
        return whole

    def _row_address(self, row: int) -> int:
        count = len(self.rows)
        assert -count <= row < count
        return self._start + row % count * self.rows.strides[0]


_NO_NUMBER = "The model computed NaN, so no token can be picked; try --dtype fp32, or fetch the model again."


@lru_cache(maxsize=8)
def _struct(sampling: Sampling) -> native.Sampling:
    return native.Sampling(
        sampling.temperature, sampling.top_p, sampling.min_p, sampling.seed & (1 << 64) - 1, sampling.top_k
    )
