"""What the policy asks about this machine: recalled, else measured and kept."""

import time
from collections.abc import Callable
from typing import Any

from localspec.engine.measurements import BANDWIDTH, BUSY, RATES, Measurements, place
from localspec.errors import first_line
from localspec.machine.hardware import IdleCores, devices, memory_bandwidth, physical_cores, versions
from localspec.policy.prediction import Rates
from localspec.store.database import StoreTrouble
from localspec.store.store import Store

LOOK_SECONDS = 0.3
_FAILURES = (RuntimeError, OSError, ImportError)  # no memory, no kernel, no library: of torch and bitsandbytes


class DeviceProfiler(Measurements):
    """What was measured here; what is asked for and was not, is measured, and kept.

    What a busy moment made of it serves until there is a quiet one. What cannot be measured is told, and not known.
    """

    def __init__(
        self,
        store: Store | None,
        progress: Callable[[str], None],
        notice: Callable[[str], None],
        exact: bool = False,
        context: int | None = None,
    ) -> None:
        super().__init__(store, exact, context)
        self._progress, self._notice = progress, notice
        self._found: dict[tuple[str, str], Any] = {}
        self._idle_cores = IdleCores()
        self._was_quiet: bool | None = None

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """Those of this device. Of one that this machine does not have, and of one that fails, none."""
        if device not in devices():
            return None
        what = f"what a row costs in {dtype if quantize == 'none' else quantize} on {device}"
        return Rates.from_list(
            self._known(RATES, place(device, dtype, quantize), what, lambda: _listed(device, dtype, quantize))
        )

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second; None where it cannot be measured."""
        what = f"how fast the memory of {device} is"
        found = self._known(BANDWIDTH, versions(device), what, lambda: memory_bandwidth(device))
        return None if found is None else float(found)

    def _known(self, name: str, about: str, what: str, measure: Callable[[], object]) -> Any:
        if (name, about) not in self._found:
            found = self.recall(name, about)
            if found is None and (found := self.recall(name + BUSY, about)) is not None and self._quiet():
                found = None
            if found is None:
                self._progress(f"measuring {what}, once")
                self._idle_cores()
                try:
                    found = measure()
                    self._keep(name if self._idle_cores() == physical_cores() else name + BUSY, about, found)
                except _FAILURES as trouble:
                    self._notice(f"{what} could not be measured ({first_line(trouble)}); estimates serve instead.")
            self._found[name, about] = found
        return self._found[name, about]

    def _quiet(self) -> bool:
        """Whether other programs leave all cores to us, looked at for a moment, once."""
        if self._was_quiet is None:
            self._idle_cores()
            time.sleep(LOOK_SECONDS)
            self._was_quiet = self._idle_cores() == physical_cores()
        return self._was_quiet

    def _keep(self, name: str, about: str, value: object) -> None:
        if self.store is not None and not self.store.read_only:
            try:
                self.store.remember(name, about, value)
            except StoreTrouble as trouble:
                self._notice(str(trouble))


def _listed(device: str, dtype: str, quantize: str) -> list[list[float]]:
    from localspec.engine.rates import measured_rates  # transformers, which takes a second to import

    return measured_rates(device, dtype, quantize).as_list()
