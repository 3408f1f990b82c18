"""The cache of the CPU engine: keys, values and states of the committed tokens, in the compiled library's memory."""

from collections.abc import Sequence
from ctypes import c_int32

from localspec.machine.library import check, free_with, library, valid_handle


def cache_format(packing: str) -> str:
    """Return the format of keys and values for weights in this packing."""
    return "fp32" if packing == "fp32" else "fp16"


class NativeCache:
    """A cache with one slot per token: first the committed tokens in order, then, from slot `length`, the draft tree.

    Slots are allocated as the text needs them, never for the longest possible text.
    """

    pinned = False

    def __init__(self, model: int, slots: int) -> None:
        """Make an empty cache for the library's `model`. Raises MemoryError."""
        self._hold(library().ls_cache_new(model, slots))

    def _hold(self, handle: int | None) -> None:
        self._library = library()
        self.handle = valid_handle(handle)
        free_with(self, "ls_cache_free", self.handle)
        self._length: int = self._library.ls_cache_length(self.handle)
        self._capacity: int = self._library.ls_cache_slots(self.handle)

    @property
    def length(self) -> int:
        return self._length

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def nbytes(self) -> int:
        return int(self._library.ls_cache_bytes(self.handle))

    def reserve(self, slots: int, spare: bool = True) -> None:
        """Make room for `slots` tokens, including the tree. With `spare` grow at least by half, because each growth
        copies the cache.

        Raises MemoryError; the cache is then unchanged.
        """
        if slots <= self._capacity:
            return
        check(self._library.ls_cache_reserve(self.handle, max(slots, self._capacity * 3 // 2) if spare else slots))
        self._capacity = self._library.ls_cache_slots(self.handle)

    def keep(self, path: Sequence[int]) -> None:
        """Commit the rows `path` of the last forward, in ascending order. Row numbers count from 0.

        With recurrent layers, `path` must be the first rows. Raises LocalspecError for rows that the forward did not
        write.
        """
        count = len(path)
        check(self._library.ls_cache_keep(self.handle, (c_int32 * count)(*path), count))
        self._length += count

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` tokens.

        With recurrent layers, more may be discarded: everything after the first `reachable(length)` tokens.
        """
        assert 0 <= length <= self._length
        if length < self._length:
            check(self._library.ls_cache_truncate(self.handle, length))
            self._length = self._library.ls_cache_length(self.handle)

    def reachable(self, length: int) -> int:
        """Return how many tokens `truncate(length)` would keep: `length`, or fewer with recurrent layers."""
        return int(self._library.ls_cache_reachable(self.handle, length))

    def copy(self, length: int, slots: int) -> "NativeCache":
        other = NativeCache.__new__(NativeCache)
        other._hold(self._library.ls_cache_copy(self.handle, length, slots))
        return other

    def take(self, other: "NativeCache") -> bool:
        """Return False: nothing was copied. On a CPU, the caller uses the cache `other` itself."""
        return False

    def assume(self, length: int) -> None:
        """Count the first `length` slots as committed tokens, for measurements without text. Unused slots are zero."""
        self.truncate(min(length, self._length))
        self.keep(range(length - self._length))
