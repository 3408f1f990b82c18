"""What the policy asks about this machine: recalled, else measured and kept."""

from collections.abc import Callable
from typing import Any

from localspec.engine.measurement_cache import MeasurementCache, Quantity, T
from localspec.engine.recalled_measurements import BANDWIDTH, RATES, RecalledMeasurements, device_subject
from localspec.errors import first_line
from localspec.machine.hardware import devices, memory_bandwidth, versions
from localspec.machine.machine import engine_of
from localspec.policy.prediction import Rates

_FAILURES = (RuntimeError, MemoryError, OSError, ImportError)  # no memory, no kernel, no library


class DeviceProfiler(RecalledMeasurements):
    """Measures of devices what is asked for and was not measured before.

    What cannot be measured is reported once, and is not known.
    """

    def __init__(self, cache: MeasurementCache, exact: bool = False, context: int | None = None) -> None:
        super().__init__(cache, exact, context)
        self._found: dict[tuple[str, str], Any] = {}

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """The rates of this device; None for one that this machine does not have, and for one that fails."""
        if device not in devices():
            return None
        what = f"what a row costs in {dtype if quantize == 'none' else quantize} on {device}"
        subject = device_subject(device, dtype, quantize)
        return self._known(RATES, subject, what, lambda: _measure_rates(device, dtype, quantize))

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second that can be read from the device's memory; None where it cannot be measured."""
        what = f"how fast the memory of {device} is"
        return self._known(BANDWIDTH, versions(device), what, lambda: memory_bandwidth(device))

    def _known(self, quantity: Quantity[T], subject: str, what: str, measure: Callable[[], T]) -> T | None:
        key = (quantity.name, subject)
        if key not in self._found:
            try:
                self._found[key] = self.cache.get_or_measure(quantity, subject, what, lambda _: measure())
            except _FAILURES as trouble:
                self._found[key] = None
                self.cache.reporter.notice(
                    f"{what} could not be measured ({first_line(trouble)}); estimates serve instead."
                )
        found: T | None = self._found[key]
        return found


def _measure_rates(device: str, dtype: str, quantize: str) -> Rates:
    from localspec.engine.rates import measure_rates  # decoding and a tokenizer, which take a while to import

    return measure_rates(engine_of(device), device, dtype, quantize)
