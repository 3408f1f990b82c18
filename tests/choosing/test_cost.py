"""Seconds of forwards: measured points, lines between them, and estimates from a memory's bandwidth."""

from dataclasses import replace

import pytest
from each import each
from machines import PHI, SEVEN, apple, cpu, flat, gpu
from properties import given, st

from localspec.choosing import cost
from localspec.choosing.cost import CONTEXT, Estimate, ForwardCosts, Rates, linear, reading, step_seconds
from localspec.families.family import MixtureSizes
from localspec.machine.machine import Device
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS

FORMS = [
    (device, dtype, quantize)
    for device in (cpu(), gpu(), apple())
    for dtype in ("bf16", "fp32", "fp16")
    for quantize in ("none", "int8", {"cuda": "nf4"}.get(device.type, "int4"))
] + [(cpu(packings=(), bf16=False), dtype, "none") for dtype in ("fp32", "bf16")]  # torch, where the library is missing


def seconds(rows: int, quantize: str, dtype: str = "bf16", device: Device | None = None, **other: object) -> float:
    where = replace(device or cpu(), **other)  # type: ignore[arg-type]
    return Estimate(SEVEN, Rates.of(where, dtype, quantize)).at(rows, CONTEXT)


@pytest.mark.slow
@given(st.lists(st.integers(1, 500), min_size=1, max_size=6, unique=True), st.integers(0, 600), st.data())
def test_costs_are_exact_at_what_was_measured_and_stay_between_their_neighbours(rows, at, data) -> None:
    rows.sort()
    seconds = sorted(data.draw(st.lists(st.floats(1e-6, 1.0), min_size=len(rows), max_size=len(rows))))
    costs = ForwardCosts(tuple(rows), (256,), (tuple(seconds),))
    assert ForwardCosts.from_list(costs.as_list()) == costs
    assert [costs.at(one, 999) for one in rows] == pytest.approx(seconds)
    inside = min(max(at, rows[0]), rows[-1])
    assert (
        seconds[0] <= linear(rows, seconds, inside) * 1.000001 and linear(rows, seconds, inside) <= seconds[-1] * 1.01
    )


@each("damaged", [None, 5, {}, [[1]], [[2, 1], [9], [[1.0, 1.0]]], [[1], [9], [[0.0]]], [[1], [9], [["x"]]]])
def test_anything_else_is_no_costs(damaged: object) -> None:
    assert ForwardCosts.from_list(damaged) is None


@each("device, dtype, quantize", FORMS)
def test_every_form_has_an_estimate_by_its_bandwidth_before_anything_was_measured(device, dtype, quantize) -> None:
    once, ten = (seconds(1, quantize, dtype, device, bandwidth=times * device.bandwidth) for times in (1, 10))
    assert ten < once / 2.5 and seconds(1, quantize, dtype, device, bandwidth=None) > 0
    rows = [seconds(rows, quantize, dtype, device) for rows in (1, 2, 8, 64)]
    assert rows == sorted(rows), "more rows never cost less"
    fast, slow = (reading(replace(device, bandwidth=one), dtype, quantize) for one in (2e10, 1e10))
    assert slow == pytest.approx(2 * fast)


def test_each_packing_is_faster_as_its_bytes_are_read() -> None:
    assert seconds(1, "none") > 1.8 * seconds(1, "int8") and seconds(1, "int8") > 1.4 * seconds(1, "int4")
    assert seconds(1, "none", device=gpu()) > seconds(1, "int8", device=gpu()) > seconds(1, "nf4", device=gpu())
    assert 35 < 1 / seconds(1, "none", device=gpu(bandwidth=600e9)) < 45, "a 7B in bf16 on a GPU of 600 GB/s"


@each(
    "shape, quantize, measured",
    [(SEVEN, "none", 5.22), (PHI, "none", 3.98), (SEVEN, "int8", 6.08), (SEVEN, "nf4", 3.85)],
)
def test_a_recorded_step_of_a_card_takes_what_was_measured_of_it(shape, quantize, measured) -> None:
    """docs/figures/gpu-figures.md, b: an H200, whose memory copies 4179 GB/s, with 256 tokens of context."""
    card = replace(gpu(bandwidth=4179e9), cores=132)
    assert Estimate(shape, Rates.of(card, "bf16", quantize)).at(1, 256) == pytest.approx(measured / 1e3, rel=0.1)


def test_a_card_with_slower_memory_uses_more_of_it() -> None:
    """Kernels start, and multiprocessors unpack, as fast as on other cards."""

    def used(quantize: str, bandwidth: float, multiprocessors: int) -> float:
        card = replace(gpu(bandwidth=bandwidth), cores=multiprocessors)
        return seconds(1, quantize, device=replace(card, bandwidth=1e18)) / seconds(1, quantize, device=card)

    for quantize in ("none", "int8", "nf4"):
        assert used(quantize, 313e9, 28) < used(quantize, 815e9, 82) < used(quantize, 4179e9, 132)
    few, many = (seconds(1, "nf4", device=replace(gpu(bandwidth=3e11), cores=cores)) for cores in (14, 56))
    assert many < few and seconds(1, "nf4", device=gpu(bandwidth=3e11)) < few, "unknown: as many as are usual"


def test_rows_cost_a_cpu_the_less_the_more_and_the_quicker_its_cores_are() -> None:
    def growth(quantize: str, **device: object) -> float:
        return seconds(8, quantize, **device) / seconds(1, quantize, **device)  # type: ignore[arg-type]

    assert growth("int8") < 1.3, "while weights are read, a few rows are computed"
    for quantize in ("int8", "int4", "none"):
        assert growth(quantize, cores=1) > growth(quantize, cores=2) > growth(quantize, cores=16)
        assert min(growth(quantize, capability="avx2"), growth(quantize, bandwidth=80e9)) > growth(quantize)
    assert growth("int8", capability="unheard of") == growth("int8", capability="avx2")


# Milliseconds of forwards of 1, 2, 4, 8, 16 and 32 rows that were timed on two cores with AVX-512 VNNI, 35.8 GB/s.
SMOLLM2 = Shape(30, 576, 1536, 9, 3, 64, 49152, 8192, tied=True)
QWEN = Shape(28, 1536, 8960, 12, 2, 128, 151936, 32768, tied=True)
TIMED = {
    "SmolLM2 in Q4_1": (SMOLLM2, 5.75, 256, (3.65, 3.88, 4.51, 6.6, 11.6, 21.3)),
    "SmolLM2 after a long text": (SMOLLM2, 5.75, 2048, (4.82, 5.67, 7.13, 12.0, 22.2, 44.3)),
    "Qwen2.5-Coder-1.5B in Q4_K_M": (QWEN, 5.1, 256, (28.4, 29.3, 31.9, 52.5, 91.8, 181.3)),
    "Qwen2.5-Coder-1.5B after a long text": (QWEN, 5.1, 2048, (30.6, 32.9, 38.5, 60.7, 116.6, 237.9)),
}


@each("timed", TIMED)
def test_rows_of_models_in_blocks_cost_what_they_were_timed_at(timed: str) -> None:
    shape, bits, context, milliseconds = TIMED[timed]
    device = replace(cpu(packings=(BLOCKS,), bandwidth=35.8e9), cores=2, block_bits=bits)
    estimate = Estimate(shape, Rates.of(device, "bf16", BLOCKS))
    for rows, taken in zip((1, 2, 4, 8, 16, 32), milliseconds, strict=True):
        assert estimate.at(rows, context) == pytest.approx(taken / 1e3, rel=0.15), f"{rows} rows"
        growth = estimate.at(rows, context) / estimate.at(1, context)
        assert growth == pytest.approx(taken / milliseconds[0], rel=0.15), f"{rows} rows for one"


def test_a_step_takes_what_python_takes_too(real_host) -> None:
    assert step_seconds(0.0, 1.0, 0) == 1.0 + cost.STEP
    assert step_seconds(0.5, 1.0, 3) == pytest.approx(1.5 + cost.STEP + cost.TREE)
    assert cost.StepCosts(flat(1.0)).at(1, 0) == 1.0 + cost.STEP


def test_a_token_takes_as_long_as_was_timed_with_half_of_the_experts_on_the_disk() -> None:
    """A third of 30B-A3B's layers: docs/figures/experts.md. More rows choose more experts, up to all of them."""
    shape = Shape(16, 2048, 6144, 32, 4, 128, 151936, 32768, experts=MixtureSizes(128, 8, 768))
    half = round(shape.in_experts * 4.5 / 8 / 2)
    costs = cost.FromDisk(flat(0.038), shape, half)
    assert costs.at(1, CONTEXT) == pytest.approx(0.223, rel=0.25)
    missing = {rows: costs.at(rows, CONTEXT) - 0.038 for rows in (1, 4, 1000)}
    assert missing[4] / missing[1] == pytest.approx((1 - (15 / 16) ** 4) * 16)
    assert missing[1000] / missing[1] == pytest.approx(16)
    assert replace(costs, bandwidth=2 * cost.DISK).at(1, CONTEXT) - 0.038 == pytest.approx(missing[1] / 2)
