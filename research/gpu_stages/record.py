"""The figures of a stage. Each figure is saved at once, so that a stopped stage can continue.

A figure that failed is saved as `{"failed": why}`: the others are measured all the same.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localspec.errors import UsageMistake, first_line
from localspec.machine.hardware import wait_for
from localspec.machine.memory import give_back

TRIES = 2  # attempts at a figure during which the process died
LEAST = 5.0  # seconds that must be left when a figure is begun
LONGEST = 300  # characters of a reason for failure


class TimeUp(Exception):
    """An error: the time of this stage is over. The next call measures the rest."""


class DeviceLost(Exception):
    """An error: the device no longer answers in this process, so another process must continue."""


class Record:
    """A file with the figures of one stage. The stage must end in `seconds`."""

    def __init__(self, file: Path, seconds: float, device: str = "cpu") -> None:
        self.file, self._device, self._ends = file, device, time.monotonic() + seconds
        self._content = read(file)
        self.figures: dict[str, Any] = self._content["figures"]

    @property
    def left(self) -> float:
        """The seconds that are left for this stage."""
        return self._ends - time.monotonic()

    def measured(self, name: str, make: Callable[[], Any], least: float = LEAST) -> Any:
        """Return the figure of this name. If it was not measured before, make and save it.

        Raises TimeUp if fewer than `least` seconds are left, and DeviceLost if the device no longer answers.
        """
        if name in self.figures:
            return self.figures[name]
        if self.left < least:
            raise TimeUp(name)
        tries = self._content["tries"].get(name, 0)
        if tries >= TRIES:
            return self.keep(name, {"failed": f"the process ended while this was measured, {TRIES} times"})
        self._content["tries"][name] = tries + 1
        self._write()
        print(f"  {name}", flush=True)
        failed = ""
        try:
            figure = self.keep(name, make())
            give_back(self._device)  # the next query of free memory must see it
            return figure
        except (TimeUp, DeviceLost, KeyboardInterrupt, SystemExit) as stopped:  # the process did not die of this
            overran = isinstance(stopped, SystemExit) and self.left <= 0  # otherwise every call would begin it again
            if not overran:
                self._content["tries"][name] = tries
                self._write()
            raise
        except Exception as error:  # noqa: BLE001  a kernel of another library may raise anything
            failed = f"{type(error).__name__}: {first_line(error)}"[:LONGEST]
        # Outside the handler, because an error keeps everything alive that its frames hold.
        print(f"    {failed}", flush=True)
        figure = self.keep(name, {"failed": failed})
        gc.collect()
        if not answers(self._device):
            raise DeviceLost(failed)
        give_back(self._device)
        return figure

    def keep(self, name: str, figure: Any) -> Any:
        """Save a figure and return it."""
        self.figures[name] = figure
        self._content["tries"].pop(name, None)
        if self._content["runs"]:  # the page names the commit of each figure
            self._content["runs"][-1]["measured"] = [
                *dict.fromkeys((*self._content["runs"][-1].get("measured", ()), name))
            ]
        self._write()
        return figure

    def begin(self, about: Mapping[str, Any]) -> None:
        """Add a run of this stage to the file: when, where and how it runs."""
        self._content["runs"].append(dict(about))
        self._write()

    def end(self, outcome: str, seconds: float) -> None:
        """Save how the last run ended, and after how many seconds."""
        if self._content["runs"]:
            self._content["runs"][-1] |= {"ended": outcome, "seconds": seconds}
            self._write()

    def forget_failed(self) -> None:
        """Delete the failed figures, so that they are measured again."""
        for name in [name for name, figure in self.figures.items() if failure(figure)]:
            del self.figures[name]
            for run in self._content["runs"]:
                run["measured"] = [item for item in run.get("measured", ()) if item != name]
        self._content["tries"].clear()
        self._write()

    def _write(self) -> None:
        half = self.file.with_suffix(".part")
        half.write_text(json.dumps(self._content, indent=1), "utf-8")
        os.replace(half, self.file)


def read(file: Path) -> dict[str, Any]:
    """Return the saved figures of a stage, empty ones without a file. Raises UsageMistake for a damaged file."""
    nothing: dict[str, Any] = {"figures": {}, "tries": {}, "runs": []}
    if not file.exists():
        return nothing
    try:
        content = json.loads(file.read_text("utf-8"))
        whole = isinstance(content, dict) and all(
            isinstance(content.get(part), type(nothing[part])) for part in nothing
        )
        if whole and all(isinstance(run, dict) for run in content["runs"]):
            return dict(content)
    except (OSError, ValueError):
        pass
    raise UsageMistake(f"{file} is damaged; delete it, and what it held is measured again.")


def failure(figure: Any) -> str:
    """Return why a figure failed; empty if it did not fail."""
    return str(figure["failed"]) if isinstance(figure, dict) and "failed" in figure else ""


def answers(device: str) -> bool:
    """Return whether a device still computes. After some errors it answers no more in this process."""
    import torch

    try:
        torch.ones(1, device=device).sum().item()
        wait_for(device)
    except RuntimeError:
        return False
    return True
