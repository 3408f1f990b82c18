"""Measures a model while the user types in `chat --plain`, and after an import or a pull."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from localspec.cli.console import Progress, is_terminal, tell
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import TUNING
from localspec.store.store import user_store

ANNOUNCED = "(checking once that drafts leave the text unchanged, and timing this model; you can keep typing)"
TUNES = "(tuning once how this pair of models drafts, for some minutes; you can keep typing)"


class Meanwhile:
    """A measurement of the model in the background, while the user types. Ctrl+C ends it for the session.

    The full-screen chat does not use this class, because the thread of its engine measures between jobs.
    """

    def __init__(self) -> None:
        self._announced: list[str] = []
        self._skipped = False

    @contextmanager
    def measuring(self, engine: Any) -> Iterator[None]:
        """Measure on another thread during the `with` block, whose end waits only for the measurement in progress.

        Nothing is measured for a model on a server.
        """
        if self._skipped or not hasattr(engine, "measure"):
            yield
            return
        pause = threading.Event()
        stages = engine.measure()
        first = next(stages, None)
        if first is None:
            yield
            return
        announced = TUNES if first.startswith(TUNING) else ANNOUNCED
        if announced not in self._announced:
            self._announced.append(announced)
            tell(announced)

        def measure() -> None:
            for _ in stages:
                if pause.is_set():
                    return

        thread = threading.Thread(target=measure, name="measuring", daemon=True)
        thread.start()
        try:
            yield
        except KeyboardInterrupt:
            self._skipped = True
            raise
        finally:
            pause.set()
            thread.join()


def measure_now(engine: Any, progress: Progress) -> None:
    """Run all missing measurements with a line of progress; Ctrl+C skips the rest."""
    with progress:
        try:
            for stage in engine.measure(tune=False):
                progress.show(f"{stage} (Ctrl+C skips)")
        except KeyboardInterrupt:
            progress.notice("skipped; estimates are used until the model is measured, after the first reply of a chat.")


def measure_new(name: str, settings: Settings, progress: Progress) -> None:
    """Measure a new model as a chat would load it, so that its first reply can use measured costs.

    Without a terminal nothing is measured: a script continues at once with estimates. Failures only cause a notice.
    """
    if not is_terminal(sys.stderr):
        return
    from localspec import Engine  # slow to import
    from localspec.models import registry

    progress.show(f"loading {name}")
    try:
        with user_store(progress.notice, create=True) as store:
            engine = Engine.open(settings, registry.resolve(name), store=store, notice=progress.notice)
            measure_now(engine, progress)
    except LocalspecError as trouble:
        progress.notice(f"{name} was not measured: {trouble}")
