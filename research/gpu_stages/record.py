"""The figures of a stage, kept in its file as soon as each is there: a stage that is cut off goes on where it was.

A figure that failed is kept as `{"failed": why}`: one kernel that does not exist here must not cost the others.
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
    """The time of this stage is over; the next call measures the rest."""


class DeviceLost(Exception):
    """The device no longer answers in this process, so another one must continue."""


class Record:
    """The file of one stage, `seconds` of which are left."""

    def __init__(self, file: Path, seconds: float, device: str = "cpu") -> None:
        self.file, self._device, self._ends = file, device, time.monotonic() + seconds
        self._content = read(file)
        self.figures: dict[str, Any] = self._content["figures"]

    @property
    def left(self) -> float:
        """Seconds."""
        return self._ends - time.monotonic()

    def measured(self, name: str, make: Callable[[], Any], least: float = LEAST) -> Any:
        """Return the figure of this name, measured now where it was not before.

        Raises TimeUp where fewer than `least` seconds are left, DeviceLost where the device is of no use any more.
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
        """Write a figure down."""
        self.figures[name] = figure
        self._content["tries"].pop(name, None)
        if self._content["runs"]:  # the page names the commit of each figure
            self._content["runs"][-1]["measured"] = [
                *dict.fromkeys((*self._content["runs"][-1].get("measured", ()), name))
            ]
        self._write()
        return figure

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write down when, where and how this stage runs once more."""
        self._content["runs"].append(dict(about))
        self._write()

    def end(self, outcome: str, seconds: float) -> None:
        """Write down how that ended, and after how long."""
        if self._content["runs"]:
            self._content["runs"][-1] |= {"ended": outcome, "seconds": seconds}
            self._write()

    def forget_failed(self) -> None:
        """Let failed figures be measured again."""
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
    """Return the saved figures of a stage, or empty ones. Raise UsageMistake for a file that cannot be read."""
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
    """Why a figure failed; empty where it did not."""
    return str(figure["failed"]) if isinstance(figure, dict) and "failed" in figure else ""


def answers(device: str) -> bool:
    """Return whether a device still computes: after some errors no kernel of this process ever will."""
    import torch

    try:
        torch.ones(1, device=device).sum().item()
        wait_for(device)
    except RuntimeError:
        return False
    return True
