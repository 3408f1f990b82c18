"""The threads that models compute with: one pool for a target and its draft model, because these never compute at the
same time."""

from localspec.machine.library import free_with, library, valid_handle


class _Pool:
    def __init__(self, count: int) -> None:
        self.handle = valid_handle(library().ls_pool_new(count))
        free_with(self, "ls_pool_free", self.handle)


class Threads:
    """A pool of threads, including the caller's thread. Idle threads use no CPU time."""

    def __init__(self, count: int) -> None:
        """Start the pool. Raises LocalspecError for an impossible count."""
        self.count, self._pool = count, _Pool(count)

    @property
    def handle(self) -> int:
        return self._pool.handle

    def set_count(self, count: int) -> None:
        """Compute with this many threads from now on. Raises the errors of the constructor."""
        if count != self.count:
            self._pool, self.count = _Pool(count), count

    def lend(self, lent: bool) -> None:
        """Let one thread rest while `lent`, so that other work can use its core. This begins with the pool's next task.

        Any thread may call this.
        """
        pool = self._pool  # held, because another one may take its place meanwhile
        library().ls_pool_lend(pool.handle, lent)
