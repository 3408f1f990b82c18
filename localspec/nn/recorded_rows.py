"""Functions of rows, for drafters and for the search for picks.

If steps are recorded, one call to the GPU computes such a function.
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F

from localspec.choosing.fit import STATIC_ROWS
from localspec.nn.placed_rows import filled_rows
from localspec.nn.recording import Function, Recorder, Recording
from localspec.nn.row_attention import TorchAttention

# Per function; the least recently used one is dropped first. A level of a tree has up to five numbers of rows below as
# many.
MOST_RECORDINGS = 32


class RecordedRows:
    """A function of tensors [rows, …], recorded for each number of rows that is a power of two, up to 64.

    The function must have no control flow that depends on values of tensors. A row of its results must not depend on
    other rows. Indices into inputs must be inputs too. Results have as many rows as the first input. If the function is
    recorded, its next call overwrites them.
    """

    def __init__(self, function: Function, recorder: Recorder, attentions: Sequence[TorchAttention] = ()) -> None:
        """Wrap a function. `attentions` are those whose keys and values it reads."""
        self._function, self._recorder, self._attentions = function, recorder, attentions
        self._recordings: dict[Hashable, Recording] = {}
        self._over: list[int] = []  # the versions of the keys and values that they use
        self._unrecorded: set[Hashable] = set()

    @torch.inference_mode()
    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the function, by a recording if there is one."""
        if not self._recorder.active or max(map(len, inputs)) > STATIC_ROWS[-1]:
            return self._function(*inputs)
        return tuple(one[: len(inputs[0])] for one in self._filled_up(inputs))

    def _filled_up(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self._over != (over := [one.grown for one in self._attentions]):
            self._recordings, self._over = {}, over
        shape = tuple((filled_rows(len(one)), *one.shape[1:]) for one in inputs)
        recording = self._recordings.pop(shape, None)
        if recording is None:
            filled = [
                F.pad(one, (*(0, 0) * (one.ndim - 1), 0, rows - len(one)))
                for one, (rows, *_) in zip(inputs, shape, strict=True)
            ]
            recording = None if shape in self._unrecorded else self._recorder.record(self._function, filled)
            if recording is None:
                self._unrecorded.add(shape)
                return self._function(*filled)
            while len(self._recordings) >= MOST_RECORDINGS:
                del self._recordings[next(iter(self._recordings))]
        self._recordings[shape] = recording
        return recording(*inputs)
