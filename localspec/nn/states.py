"""The states of recurrent layers, and how to go back to an earlier state when drafted tokens are discarded.

A state cannot be cut like a cache. So the rows that a layer read recently are stored. To discard tokens, stored rows
are read again from the nearest earlier state, in the same order and thus with the same bits. Drafts cannot branch:
every text is read as a chain.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import torch

from localspec.choosing.fit import MOST_CHAINED, STATES
from localspec.families.architecture import TransformerConfig
from localspec.nn.cache import KVCache

AT_ONCE = 128  # rows: no draft has more; a longer input is a prompt and cannot be taken back in part
KEPT = 128  # rows that can be taken back at least, if they were read a few at a time


class State(NamedTuple):
    """The state of a layer after the first `length` tokens."""

    length: int
    matrices: torch.Tensor  # [value heads, channels of a key, channels of a value], fp32
    tail: torch.Tensor  # [taps - 1, channels]: the last rows before the convolution


class Advance(Protocol):
    """A function that advances the state of a recurrent layer by some rows; with `one_by_one`, row by row.

    Rows are [n, channels + 2 * value_heads] (`DeltaNet.read`). The function returns their output, and the state after
    the rows. `real`, an int64 scalar tensor, is the number of rows that change the state. Later rows are padding.
    """

    def __call__(
        self, state: State, rows: torch.Tensor, one_by_one: bool, real: torch.Tensor | None = None, /
    ) -> tuple[torch.Tensor, State]: ...


class StaticStates(NamedTuple):
    """States of all recurrent layers before and after a forward, and the rows of the forward, at constant addresses."""

    matrices: torch.Tensor  # [layers, …] of `State.matrices`
    tails: torch.Tensor
    rows: torch.Tensor  # [layers, MOST_CHAINED, numbers]
    matrices_after: torch.Tensor
    tails_after: torch.Tensor

    def read(self, index: int, count: int, advance: Advance, real: torch.Tensor | None = None) -> torch.Tensor:
        """Read the first `count` rows of a recurrent layer after its state, and return their output.

        `index` counts only recurrent layers. `real` is as in `Advance`.
        """
        before = State(0, self.matrices[index], self.tails[index])
        outputs, after = advance(before, self.rows[index, :count], True, real)
        self.matrices_after[index].copy_(after.matrices)
        self.tails_after[index].copy_(after.tail)
        return outputs

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self)


class LayerStates:
    """The states of one recurrent layer: the latest one, and some earlier ones, which become rarer further back.

        states   │         │       │   │ ││
        rows                       aaaaaaaa     stored rows: a text can be cut after any of them

    Before the stored rows, a text can be cut only at a stored state.
    """

    def __init__(self, nothing: State) -> None:
        self._states = [nothing]  # by length
        self._first = 0  # the length after which rows are stored
        self._rows = nothing.tail.new_empty(0, 0)  # allocated on demand

    @property
    def nbytes(self) -> int:
        """Bytes of states and rows."""
        return self._rows.nbytes + sum(state.matrices.nbytes + state.tail.nbytes for state in self._states)

    def reachable(self, length: int) -> int:
        """Return the length of the longest text, of at most `length` tokens, that the layer can return to."""
        nearest = max(state.length for state in self._states if state.length <= length)
        return length if nearest >= self._first else nearest

    def read(self, length: int, rows: torch.Tensor, advance: Advance) -> torch.Tensor:
        """Read rows after the first `length` tokens, and discard later tokens.

        `length` must be a result of `reachable`.
        """
        before = self.at(length, advance)
        outputs, after = advance(before, rows, len(rows) <= AT_ONCE)
        self.store(before, rows, after, advance)
        return outputs

    def store(self, before: State, rows: torch.Tensor, after: State, advance: Advance) -> None:
        """Store rows that were read after the state `before`, and the state `after` these rows.

        Discard all other rows and states after `before`.
        """
        self._put(before)
        if len(rows) <= AT_ONCE:
            self._keep(before.length, rows, advance)
        else:
            self._first = after.length
        self._put(after)
        self._thin()

    def copy(self, length: int) -> "LayerStates":
        """Return the states of the first `length` tokens, a result of `reachable`.

        States are shared: they are never written to.
        """
        other = LayerStates(self._states[0])
        other._states = [state for state in self._states if state.length <= length]
        other._first, other._rows = min(self._first, length), self._rows.clone()
        return other

    def assume(self, length: int) -> None:
        """Use the latest state as the state after `length` tokens."""
        self._states, self._first = [self._states[-1]._replace(length=length)], length

    def fill(self, generator: torch.Generator) -> None:
        """Replace the state by random numbers."""
        last = self._states[-1]
        matrices, tail = (torch.randn(part.shape, generator=generator).to(part) for part in last[1:])
        self._states, self._first = [State(last.length, matrices, tail)], last.length

    def at(self, length: int, advance: Advance) -> State:
        """Return the state after the first `length` tokens, a result of `reachable`."""
        nearest = max((state for state in self._states if state.length <= length), key=lambda state: state.length)
        if nearest.length < self._first:  # from here on it is the earliest with rows after it
            assert nearest.length == length, f"there is no saved state after {length} tokens"
            self._first = length
        if nearest.length < length:
            first = nearest.length - self._first
            nearest = advance(nearest, self._rows[first : first + length - nearest.length], True)[1]
        return nearest

    def _put(self, state: State) -> None:
        """Add a state, and drop all states of later tokens."""
        self._states = [*(earlier for earlier in self._states if earlier.length < state.length), state]

    def _keep(self, length: int, rows: torch.Tensor, advance: Advance) -> None:
        """Store rows that follow the first `length` tokens. Without room, replace the oldest stored rows by a state."""
        room = KEPT + AT_ONCE
        if not len(self._rows):
            self._rows = rows.new_empty(room, rows.shape[1])
        if length - self._first + len(rows) > room:
            first, later = length - KEPT, [state for state in self._states if state.length > length - KEPT]
            self._put(self.at(first, advance))
            self._states += later
            self._rows[:KEPT] = self._rows[first - self._first : length - self._first].clone()  # the two ranges overlap
            self._first = first
        self._rows[length - self._first : length - self._first + len(rows)] = rows

    def _thin(self) -> None:
        """Drop states until `STATES` are left. Each time, drop the state with the smallest gap between its two
        neighbours, relative to their distance from the end.

        The first state, the last two, and the state before the stored rows stay.
        """
        while len(self._states) > STATES:
            lengths = [state.length for state in self._states]
            places = [place for place in range(1, len(lengths) - 2) if lengths[place] != self._first]
            gaps = {
                place: (lengths[place + 1] - lengths[place - 1]) / (lengths[-1] - lengths[place - 1])
                for place in places
            }
            del self._states[min(gaps, key=gaps.__getitem__)]


class StateCache(KVCache):
    """A cache for models with recurrent layers: keys and values of attention layers, and states of recurrent layers.

    `truncate` may discard more than requested; `length` is then the number of tokens that are left.
    """

    def __init__(
        self, config: TransformerConfig, slots: int, dtype: torch.dtype, device: torch.device | str, least: int = 0
    ) -> None:
        assert config.delta is not None
        super().__init__(config.cache_shapes, slots, dtype, device, least)
        sizes = config.delta
        matrices = torch.zeros(sizes.value_heads, sizes.key_dim, sizes.value_dim, device=device)
        nothing = State(0, matrices, torch.zeros(sizes.taps - 1, sizes.channels, dtype=dtype, device=device))
        self._nothing, self._numbers = nothing, sizes.read
        self._states = {layer: LayerStates(nothing) for layer in range(config.num_layers) if config.is_recurrent(layer)}
        self._static: StaticStates | None = None
        self._before: list[State] = []  # the states in `static`, and the number of rows read after them
        self._read = 0

    @property
    def nbytes(self) -> int:
        static = 0 if self._static is None else self._static.nbytes
        return super().nbytes + static + (sum(states.nbytes for states in self._states.values()) if self.length else 0)

    def read(self, layer: int, rows: torch.Tensor, advance: Advance) -> torch.Tensor:
        """Return a recurrent layer's output for rows, as in `Advance`, after the committed tokens."""
        self._read = 0
        return self._states[layer].read(self.length, rows, advance)

    def load_static(self, advances: Sequence[Advance], again: Callable[[StaticStates, int], None]) -> StaticStates:
        """Copy the states after the committed tokens to constant addresses, for a forward of static shape. Return them.

        `advances` has the function of each recurrent layer that advances its state. If only the first rows of the last
        forward were kept, `again(static, count)` reads these again.
        """
        static = self._static = self._static or self._memory()
        if self._before and 0 < (count := self.length - self._before[0].length) < self._read:
            again(static, count)
            self._before = self._after(static)
            static.matrices.copy_(static.matrices_after)
            static.tails.copy_(static.tails_after)
        else:
            self._before = [
                states.at(self.length, advance) for states, advance in zip(self._states.values(), advances, strict=True)
            ]
            torch.stack([state.matrices for state in self._before], out=static.matrices)
            torch.stack([state.tail for state in self._before], out=static.tails)
        return static

    def store_static(self, count: int, advances: Sequence[Advance]) -> None:
        """Store the first `count` rows of the forward after `load_static`, and the states after these rows."""
        static = self._static
        assert static is not None
        after = self._after(static, count)
        for index, (states, advance) in enumerate(zip(self._states.values(), advances, strict=True)):
            states.store(self._before[index], static.rows[index, :count], after[index], advance)
        self._read = count

    def _memory(self) -> StaticStates:
        nothing, layers = self._nothing, len(self._states)
        matrices, tails = (part.new_empty(2, layers, *part.shape) for part in (nothing.matrices, nothing.tail))
        rows = nothing.tail.new_zeros(layers, MOST_CHAINED, self._numbers)
        return StaticStates(matrices[0], tails[0], rows, matrices[1], tails[1])

    def _after(self, static: StaticStates, count: int = 0) -> list[State]:
        matrices, tails = static.matrices_after.clone(), static.tails_after.clone()
        return [State(self.length + count, *parts) for parts in zip(matrices, tails, strict=True)]

    def keep(self, path: Sequence[int]) -> None:
        """Commit the first `len(path)` rows after the committed tokens. `path` must be 0, 1, 2, … (a chain)."""
        assert list(path) == list(range(len(path))), "recurrent layers can read only chains of tokens"
        super().keep(path)

    def truncate(self, length: int) -> None:
        """Cut the cache to the first `length` tokens, or to fewer: `reachable(length)`."""
        super().truncate(self.reachable(length))

    def reachable(self, length: int) -> int:
        length = min(length, self.length)
        while (least := min(states.reachable(length) for states in self._states.values())) < length:
            length = least
        return length

    def copy(self, length: int, slots: int) -> Self:
        """Return a cache with the first `length` tokens, a result of `reachable`, and room for `slots`."""
        other = super().copy(length, slots)
        other._states = {layer: states.copy(length) for layer, states in self._states.items()}
        other._static, other._before, other._read = None, [], 0
        return other

    def take(self, other: Self) -> bool:
        """Copy the contents of another cache into this one if it is pinned and has room for them.

        Return whether the contents were copied.
        """
        if not super().take(other):
            return False
        self._states, self._before, self._read = other._states, [], 0
        return True

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed, and the latest states as the states after these slots."""
        super().assume(length)
        self._read = 0
        for states in self._states.values():
            states.assume(length)

    def fill(self, generator: torch.Generator) -> None:
        """Put random keys and values in all slots, and random numbers in the states."""
        super().fill(generator)
        self._read = 0
        for states in self._states.values():
            states.fill(generator)


def cache_of(
    config: TransformerConfig, slots: int, dtype: torch.dtype, device: torch.device | str, least: int = 0
) -> KVCache:
    """Return an empty cache with room for `slots` tokens, for a transformer of these sizes."""
    if config.delta is not None:
        return StateCache(config, slots, dtype, device, least)
    return KVCache(config.cache_shapes, slots, dtype, device, least)
