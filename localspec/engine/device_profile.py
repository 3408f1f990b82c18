"""What the policy asks about this machine: recalled, else measured and kept."""

from collections.abc import Callable
from typing import Any

from localspec.engine.measurement_cache import MeasurementCache, Quantity, T
from localspec.engine.own_kernels import settle_kernels
from localspec.engine.recalled_measurements import BANDWIDTH, RATES, RecalledMeasurements
from localspec.errors import first_line
from localspec.machine.hardware import devices, memory_bandwidth, versions
from localspec.machine.machine import engine_of
from localspec.policy.prediction import Rates

_FAILURES = (RuntimeError, MemoryError, OSError, ImportError)  # no memory, no kernel, no library


class BandwidthProfiler(RecalledMeasurements):
    """Measures how fast a device's memory is, where that is asked for and was not measured; it takes half a second.

    What cannot be measured is reported once, and is not known.
    """

    def __init__(self, cache: MeasurementCache, exact: bool = False, context: int | None = None) -> None:
        super().__init__(cache, exact, context)
        self._found: dict[tuple[str, str], Any] = {}

    def bandwidth(self, device: str) -> float | None:
        """Bytes a second that can be read from the device's memory, at its best; None where it cannot be measured."""
        if device not in devices():
            return None

        def best_so_far() -> float:  # what else the machine does makes a reading slower, never faster
            return max(self.cache.recall_either(BANDWIDTH, versions(device)) or 0.0, memory_bandwidth(device))

        return self._known(BANDWIDTH, versions(device), f"how fast the memory of {device} is", best_so_far)

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


class DeviceProfiler(BandwidthProfiler):
    """Measures what rows cost on a device, too, which takes some seconds a precision."""

    def rates(self, device: str, dtype: str, quantize: str) -> Rates | None:
        """The rates of this device; None for one that this machine does not have, and for one that fails."""
        if device not in devices():
            return None
        what = f"what a row costs in {dtype if quantize == 'none' else quantize} on {device}"
        settle_kernels(device, self.cache)
        subject = self._rates_subject(device, dtype, quantize)
        return self._known(RATES, subject, what, lambda: _measure_rates(device, dtype, quantize, self.cache, subject))


def _measure_rates(device: str, dtype: str, quantize: str, cache: MeasurementCache, subject: str) -> Rates:
    from localspec.engine.rates import measure_rates  # decoding and a tokenizer, which take a while to import
    from localspec.engine.step_forms import settle_step_form

    return measure_rates(
        engine_of(device), device, dtype, quantize, lambda target: settle_step_form(device, target, cache, subject)
    )
