"""What the policy asks about this machine is measured once, and again where the moment was a busy one."""

from pathlib import Path

import pytest
from each import each
from golden import wording

from localspec.engine import device_profile, measurement_cache
from localspec.engine.device_profile import DeviceProfiler
from localspec.engine.measurement_cache import MeasurementCache
from localspec.engine.rates import SLIM, WIDE, measure_rates, weight_and_layer
from localspec.events import Reporter
from localspec.machine.hardware import physical_cores
from localspec.models.shape import Shape
from localspec.policy.prediction import CONTEXT, Estimate, Rates
from localspec.store.store import Store

RATES = Rates((1, 8), (1e-12, 2e-12), (1e-4, 2e-4))


class Counted:
    """Stands for the measurements, and for how many cores others leave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times, self.idle = 0, physical_cores()
        monkeypatch.setattr(device_profile, "memory_bandwidth", lambda device: self.measure(5e9))
        monkeypatch.setattr(device_profile, "_measure_rates", lambda *form: self.measure(RATES))
        monkeypatch.setattr(measurement_cache, "IdleCores", lambda: lambda: self.idle)
        monkeypatch.setattr(measurement_cache, "LOOK_SECONDS", 0.0)

    def measure(self, value: object) -> object:
        self.times += 1
        return value


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def profiler(store: Store | None, told: list[str] | None = None) -> DeviceProfiler:
    return DeviceProfiler(MeasurementCache(store, Reporter(notice=print if told is None else told.append)))


def ask(path: Path | None) -> tuple[Rates | None, float]:
    if path is None:
        measurements = profiler(None)
        return measurements.rates("cpu", "fp32", "int8"), measurements.bandwidth("cpu")
    with Store.open(path, pytest.fail) as store:
        measurements = profiler(store)
        return measurements.rates("cpu", "fp32", "int8"), measurements.bandwidth("cpu")


def test_it_is_measured_once_and_kept(counted, tmp_path) -> None:
    first = ask(tmp_path / "localspec.db")
    assert first == (RATES, 5e9) and counted.times == 2
    assert ask(tmp_path / "localspec.db") == first and counted.times == 2


def test_without_a_store_it_is_measured_each_time(counted) -> None:
    assert ask(None) == ask(None) and counted.times == 4


def test_the_memory_is_as_fast_as_it_ever_was(counted, monkeypatch, tmp_path) -> None:
    """A busy moment after a quieter one, or the other way round, must not make another model or packing pay."""
    speeds = iter([5e9, 3e9, 8e9])
    monkeypatch.setattr(device_profile, "memory_bandwidth", lambda device: next(speeds))
    counted.idle = physical_cores() - 1
    assert ask(tmp_path / "localspec.db")[1] == ask(tmp_path / "localspec.db")[1] == 5e9
    counted.idle = physical_cores()
    assert ask(tmp_path / "localspec.db")[1] == 5e9, "the quiet moment was the slower one"
    assert ask(tmp_path / "localspec.db")[1] == 5e9 and next(speeds) == 8e9


@pytest.mark.parametrize("trouble", [RuntimeError("no room\nat all"), OSError("no kernel"), ImportError("")])
def test_what_cannot_be_measured_is_told_once_and_estimates_serve(counted, monkeypatch, tmp_path, trouble) -> None:
    def fail(*_: object) -> None:
        raise trouble

    for name in ("_measure_rates", "memory_bandwidth"):
        monkeypatch.setattr(device_profile, name, fail)
    told: list[str] = []
    with Store.open(tmp_path / "localspec.db", told.append) as store:
        measurements = profiler(store, told)
        for _ in range(2):
            assert measurements.rates("cpu", "fp32", "int8") is None and measurements.bandwidth("cpu") is None
        assert len(told) == 2 and all(wording("could_not_be_measured") in said and "\n" not in said for said in told)
    monkeypatch.setattr(device_profile, "_measure_rates", lambda *_: RATES)
    with Store.open(tmp_path / "localspec.db", told.append) as store:
        assert profiler(store).rates("cpu", "fp32", "int8") is not None, "nothing was kept of it"


def test_a_device_that_this_machine_does_not_have_is_not_measured(counted) -> None:
    assert profiler(None).rates("cuda:7", "bf16", "nf4") is None and counted.times == 0


def shape(sizes: dict[str, int]) -> Shape:
    """That of one of the two models that are timed."""
    layers, width, inner = (sizes[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    return Shape(layers, width, inner, 16, 4, 128, sizes["vocab_size"], 512)


@each("weight, layer", [(4e-11, 7e-4), (3e-10, 5e-4), (2e-12, 1.5e-4)])
def test_what_weights_and_layers_take_is_told_apart(weight: float, layer: float) -> None:
    taken = (sizes["num_hidden_layers"] * layer + shape(sizes).matrices * weight for sizes in (WIDE, SLIM))
    assert weight_and_layer(*taken) == pytest.approx((weight, layer))


@each("wide, slim", [(0.03, 0.2), (0.3, 1e-4), (1e-3, 1.0)])
def test_a_disturbed_measurement_never_says_that_something_takes_no_time(wide: float, slim: float) -> None:
    assert all(one > 0 for one in weight_and_layer(wide, slim))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "quantize"), [("native", "int8"), ("torch", "none")])
def test_rates_of_this_machine_foretell_the_model_they_were_measured_with(engine, quantize) -> None:
    rates = measure_rates(engine, "cpu", "fp32", quantize)
    one, many = (Estimate(shape(WIDE), rates).at(rows, CONTEXT) for rows in (1, 64))
    assert 1e-4 < one < many < 60 and rates.rows[0] == 1
    assert Rates.from_list(rates.as_list()) == rates
