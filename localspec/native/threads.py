"""The threads that models compute with: one pool for a target and its draft model, which never compute at once."""

import weakref

from localspec.native.library import library, made


class Threads:
    """A pool of threads, the caller's own among them. Idle ones use no time."""

    def __init__(self, count: int) -> None:
        self.set_count(count)

    def set_count(self, count: int) -> None:
        """Computes with so many threads from now on. Raises LocalspecError for a count that is not possible."""
        handle = made(library().ls_pool_new(count))
        if hasattr(self, "_freed"):
            self._freed()
        self.handle, self.count = handle, count
        self._freed = weakref.finalize(self, library().ls_pool_free, handle)
