"""Measures a model while somebody types, as `chat --plain` does, and after an import."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localspec.cli.progress import Progress, tell

ANNOUNCED = "(checking that drafts leave the text unchanged, and timing this model, once; type on)"


class Meanwhile:
    """What is unknown of a model is measured while somebody types, until Ctrl+C."""

    def __init__(self) -> None:
        self._announced = self._skipped = False

    @contextmanager
    def measuring(self, engine: Any) -> Iterator[None]:
        """Measure on another thread; it rests before this is left. A server's model is measured there."""
        if self._skipped or not hasattr(engine, "measure"):
            yield
            return
        typed = threading.Event()
        stages = engine.measure()
        if next(stages, None) is None:
            yield
            return
        if not self._announced:
            self._announced = True
            tell(ANNOUNCED)
        thread = threading.Thread(target=_measure, args=(stages, typed), name="measuring", daemon=True)
        thread.start()
        try:
            yield
        except KeyboardInterrupt:
            self._skipped = True
            raise
        finally:
            typed.set()
            thread.join()


def _measure(stages: Iterator[str], typed: threading.Event) -> None:
    for _ in stages:
        if typed.is_set():
            return


def measure_now(engine: Any, progress: Progress) -> None:
    """Measure all that is unknown of a model, with a line of progress; Ctrl+C skips the rest."""
    try:
        for stage in engine.measure():
            progress.show(f"{stage} (Ctrl+C skips)")
    except KeyboardInterrupt:
        progress.notice("skipped; the rest is measured after the first reply of a chat, and estimated until then.")
    finally:
        progress.clear()
