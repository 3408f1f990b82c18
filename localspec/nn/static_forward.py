"""Forwards of a few rows in fixed shapes; what differs between steps, such as positions, is read from the device.

So a GPU's driver can record a forward and replay it by a single call (`Recording`). Unrecorded, the same code runs on
any device.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from localspec.choosing.fit import MOST_CHAINED, STATIC_ROWS
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.errors import out_of_memory
from localspec.nn.cache import KVCache
from localspec.nn.layers.llama import LayerAdapters
from localspec.nn.layers.qwen35 import Qwen35Layer
from localspec.nn.placed_rows import PlacedChain, PlacedRows, filled_rows, filled_slots
from localspec.nn.recording import Function, RecordedRows, Recorder, Recording
from localspec.nn.states import Advance, StateCache, StaticStates
from localspec.nn.step_logits import Contenders, contenders, summary
from localspec.nn.transfer import signed, uploaded
from localspec.nn.transformer import Transformer

# Over the slots of one cache; the least recently used one is dropped first. Measuring costs takes all numbers of rows
# at two contexts in turns.
MOST_RECORDINGS = 16


class StaticShape(NamedTuple):
    """The properties that determine the operations of a forward. Forwards with equal properties share a recording."""

    rows: int
    visible: int  # slots that attention reads
    layers: tuple[int, ...] | None
    adapters: int | None  # their id
    inner: tuple[int, ...]  # requested states
    embeddings: bool  # instead of token ids, and no logits are requested


class StaticRows(NamedTuple):
    """The result of a forward for the requested rows. `summary` is a result of `step_logits.summary`.

    The next recorded forward with the same number of rows overwrites it.
    """

    hidden: torch.Tensor
    inner: torch.Tensor | None
    logits: torch.Tensor | None
    summary: torch.Tensor | None
    once_seconds: float = 0.0  # preparation that later forwards of this shape do not need

    def copied(self) -> "StaticRows":
        """Return the result with copies of the states."""
        return self._replace(hidden=self.hidden.clone(), inner=None if self.inner is None else self.inner.clone())


class StaticForward:
    """A reader of trees and chains of up to 64 rows, which follow the committed tokens of a cache.

    Rows are padded to a power of two, and slots to one of a few numbers. So texts of any length need few shapes. While
    the recorder is active, each shape is recorded when it is first used.
    """

    def __init__(self, transformer: Transformer, recorder: Recorder) -> None:
        self._transformer, self._recorder = transformer, recorder
        self._results: dict[StaticShape, tuple[torch.Tensor, ...]] = {}
        self._finders: dict[tuple[float, ...], RecordedRows] = {}  # of contenders
        self._unrecorded: set[Hashable] = set()  # shapes for whose recording there was no memory

    @staticmethod
    def can_read(cache: object, rows: int) -> bool:
        """Return whether this many rows can be read after this cache in a static shape.

        For recurrent layers the limit is lower.
        """
        limit = MOST_CHAINED if isinstance(cache, StateCache) else STATIC_ROWS[-1]
        return isinstance(cache, KVCache) and 0 < rows <= limit

    @torch.inference_mode()
    def tree(self, tree: DraftTree, cache: KVCache, inner: Sequence[int] = (), multiple: int = 1) -> StaticRows:
        """Read the nodes of a tree. The number of rows is padded at least to a multiple of `multiple`."""
        return self._read(tree.tokens, tree.depth, _bits(tree.parents), cache, multiple, inner=tuple(inner))

    @torch.inference_mode()
    def chain(
        self,
        embeddings: torch.Tensor,
        cache: KVCache,
        layers: Sequence[int] | None,
        adapters: Mapping[int, LayerAdapters] | None,
    ) -> torch.Tensor:
        """Read embeddings [rows, hidden_size], one after another.

        Return their states, which later forwards do not overwrite.
        """
        rows = len(embeddings)
        depth, bits = range(rows), _bits(range(-1, rows - 1))
        read = self._read([0] * rows, depth, bits, cache, 1, layers=layers, adapters=adapters, embeddings=embeddings)
        return read.hidden.clone() if self._recorder.active else read.hidden

    @torch.inference_mode()
    def contenders(self, logits: torch.Tensor, keys: torch.Tensor, sampling: Sampling) -> Contenders:
        """Find the ids that may be picked, by `step_logits.contenders`. For a single row, this search is recorded, too.

        The next call for a single row then overwrites the result.
        """
        if len(logits) > 1:
            return contenders(logits, keys, sampling)
        form = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        if form not in self._finders:  # sampling settings seldom change back

            def find(logits: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
                result = contenders(logits, keys, sampling)
                return result.ids, result.scores, result.before, result.noisy

            self._finders = {form: RecordedRows(find, self._recorder)}
        return Contenders(*self._finders[form](logits, keys))

    def _read(
        self,
        tokens: Sequence[int],
        depth: Sequence[int],
        bits: Sequence[int],
        cache: KVCache,
        multiple: int,
        *,
        inner: tuple[int, ...] = (),
        layers: Sequence[int] | None = None,
        adapters: Mapping[int, LayerAdapters] | None = None,
        embeddings: torch.Tensor | None = None,
    ) -> StaticRows:
        count = len(tokens)
        rows = filled_rows(max(count, multiple))
        _reserve(cache, cache.length + rows)
        chosen, adapters_id = None if layers is None else tuple(layers), None if adapters is None else id(adapters)
        shape = StaticShape(rows, visible_slots(cache, rows), chosen, adapters_id, inner, embeddings is not None)
        spare = range(count, rows)
        words = [signed(word) for word in (*bits, *(1 << row for row in spare))]
        columns = [*tokens, *[0] * len(spare)], [*depth, *[0] * len(spare)], words
        numbers = [cache.length, count, *(number for column in columns for number in column)]
        inputs = [uploaded(numbers, self._device)]
        if embeddings is not None:  # NaN that an earlier draft left in a spare row would reach the others
            inputs.append(F.pad(embeddings, (0, 0, 0, len(spare))))
        static = None
        if isinstance(cache, StateCache):
            static = cache.load_static(self._advances, partial(self._read_again, cache))
        function = self._function(shape, cache, adapters, static)
        active = self._recorder.active
        began, met = time.perf_counter(), shape in cache.recordings or not active
        recording = self._recording(shape, cache, adapters, function, inputs) if active else None
        once_seconds = 0.0 if met else time.perf_counter() - began
        hidden, *others = (part[:count] for part in (recording or function)(*inputs))
        if isinstance(cache, StateCache):
            cache.store_static(count, self._advances)
        states = others.pop(0) if inner else None
        logits, short = others or (None, None)
        return StaticRows(hidden, states, logits, short, once_seconds)

    def _function(
        self,
        shape: StaticShape,
        cache: KVCache,
        adapters: Mapping[int, LayerAdapters] | None,
        static: StaticStates | None,
    ) -> Function:
        """Return the forward as a function of numbers on the device: the length, the number of real rows, and each
        row's token, depth and visible rows (bits)."""

        def read(numbers: torch.Tensor, *embeddings: torch.Tensor) -> tuple[torch.Tensor, ...]:
            length, (tokens, depth, bits) = numbers[0], numbers[2:].view(3, shape.rows)
            placed = PlacedRows(cache, shape.visible, length, shape.rows)
            if static is not None:
                placed = PlacedChain(cache, shape.visible, length, shape.rows, numbers[1], static)
            states: dict[int, torch.Tensor | None] = dict.fromkeys(shape.inner)
            rows = embeddings[0] if shape.embeddings else tokens
            hidden = self._transformer(
                rows[None], length + depth, bits, placed, shape.layers, adapters or {}, inner=states
            )[0]
            results = [hidden]
            if shape.inner:
                results.append(self._transformer.side_by_side(states, shape.inner)[0])
            if not shape.embeddings:
                logits = self._transformer.head(hidden)
                results += [logits, summary(hidden, logits)]
            return tuple(results)

        return read

    def _recording(
        self,
        shape: StaticShape,
        cache: KVCache,
        adapters: object,
        function: Function,
        inputs: Sequence[torch.Tensor],
    ) -> Recording | None:
        """Return the CUDA graph for forwards of this shape with this cache. Record it if it is missing.

        Return None if that fails.
        """
        recordings: dict[StaticShape, tuple[Recording, object]] = cache.recordings
        if shape in recordings:
            recording, _ = recordings.pop(shape)
        else:
            any_length = shape._replace(visible=0)
            if any_length in self._unrecorded:
                return None
            new = self._recorder.record(function, inputs, self._results.get(any_length))
            if new is None:
                recordings.clear()  # gives memory back
                self._unrecorded.add(any_length)  # repeated attempts would take longest
                return None
            recording = new
            self._results[any_length] = recording.results
        while len(recordings) >= MOST_RECORDINGS:
            del recordings[next(iter(recordings))]
        recordings[shape] = recording, adapters  # holding the adapters keeps others from getting their id
        return recording

    def _read_again(self, cache: StateCache, static: StaticStates, count: int) -> None:
        """Let recurrent layers read the first `count` rows of the last forward again: later rows were discarded."""

        def again(_: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for index, advance in enumerate(self._advances):
                static.read(index, count, advance)
            # The values by which a recording is compared: copies, because `static` is overwritten.
            return static.matrices_after[..., 0].clone(), static.tails_after.clone()

        shape = StaticShape(count, 0, (), None, (), True)  # of no attention layers
        recording = self._recording(shape, cache, None, again, [static.tails]) if self._recorder.active else None
        (recording or again)(static.tails)

    @cached_property
    def _advances(self) -> list[Advance]:
        layers = (layer for layer in self._transformer.layers if isinstance(layer, Qwen35Layer))
        return [layer.delta.advance for layer in layers if layer.delta is not None]

    @property
    def _device(self) -> torch.device:
        return self._transformer.embed_tokens.device


def visible_slots(cache: KVCache, rows: int) -> int:
    """Return how many slots attention reads in a static shape when `rows` new rows follow the committed tokens."""
    return min(filled_slots(cache.visible(rows)), cache.capacity)


def _reserve(cache: KVCache, slots: int) -> None:
    """Make room for `slots` tokens, and for more if memory allows, because growing invalidates all recorded CUDA
    graphs."""
    try:
        cache.reserve(slots)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        cache.reserve(slots, spare=False)


def _bits(parents: Sequence[int]) -> list[int]:
    """Return an integer for each row of a tree, whose bits are the rows that it sees: itself and its ancestors."""
    bits: list[int] = []
    for row, parent in enumerate(parents):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << row)
    return bits
