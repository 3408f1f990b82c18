"""Stage b: measures what forwards cost by number of rows, in every precision, against the speed of the GPU's memory."""

from typing import Any

from figures import table

from gpu_stages import attention, products, timing
from gpu_stages.aims import HOST_SHARE, READS, SIXTEEN_ROWS, Aim, failed
from gpu_stages.invented import LLAMA2, PHI, PRECISIONS, SHAPES, random_target
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.timing import copy_bandwidth, runtime_calls
from localspec.decoding.measuring import finished
from localspec.engine.model_profile import picks_after, timing_forwards
from localspec.machine.hardware import memory_bandwidth
from localspec.nn.target import Target

ROWS = (1, 2, 4, 8, 16, 32, 64)
PROFILED = (1, 8, 32)  # rows of the steps whose launches are counted
CONTEXT = 256
FIRST = [(PHI, "bf16"), (LLAMA2, "nf4"), (LLAMA2, "bf16"), (LLAMA2, "int8")]


def run(record: Record, request: Request) -> None:
    """Measure the memory's bandwidth, the most important models, kernels, attention, and the other models."""
    if request.small:
        timing.ENOUGH = 0.0
    record.measured("bandwidth", lambda: bandwidth(request.device))
    rest = [(PHI, "fp32")] if request.small else [(name, precision) for name in SHAPES for precision in PRECISIONS]
    for name, precision in FIRST:
        record.measured(f"{name} {precision}", lambda: model(request, name, precision), least=20)
    products.run(record, request)
    attention.run(record, request)
    for name, precision in rest:
        record.measured(f"{name} {precision}", lambda: model(request, name, precision), least=20)


def bandwidth(device: str) -> dict[str, float]:
    return {"copy": copy_bandwidth(device), "read": memory_bandwidth(device)}


def model(request: Request, name: str, precision: str) -> dict[str, Any]:
    """Return the costs of a model's forwards in one precision, eager and, if possible, recorded as CUDA graphs."""
    target = random_target(name, request.small, request.device, precision)
    eager = of_form(target)
    if not callable(use := getattr(target, "use_step_form", None)):
        return eager
    use("captured" if request.on_gpu else "static")
    return {**eager, "recorded": of_form(target), "trouble": getattr(target, "step_trouble", None)}


def of_form(target: Target) -> dict[str, Any]:
    """Return the costs of forwards in the form of steps that the model uses now."""
    costs = finished(timing_forwards(target))
    return {
        "read": target.read_bytes, "held": target.nbytes, "rows": list(ROWS), "contexts": list(costs.contexts),
        "seconds": [[costs.at(rows, context) for rows in ROWS] for context in costs.contexts],
        "calls": {str(rows): calls(target, rows) for rows in PROFILED},
    }  # fmt: skip


def calls(target: Target, rows: int) -> dict[str, float]:
    """Count the calls of the CUDA runtime in a step of `rows` rows, until the likeliest tokens are on the host."""
    cache = target.cache(CONTEXT + rows)
    cache.assume(CONTEXT)
    return runtime_calls(lambda: picks_after(target, cache, [3] * rows), target.device)


# -- the page ----------------------------------------------------------------------------------------------------------


def section(figures: dict[str, Any]) -> str:
    speed = figures.get("bandwidth", {})
    parts = []
    if "copy" in speed:
        parts.append(
            f"The memory of the card reads and writes {speed['copy'] / 1e9:.0f} GB/s while a large tensor is copied. "
            f"It reads {speed['read'] / 1e9:.0f} GB/s while one is summed.\n\n"
            "In the next table a line is a model, and *weights* is their size. The other columns have the milliseconds of a pass by its number of "
            f"rows, after {CONTEXT} tokens of text; less is better. Every pass reads all weights once. In brackets is the speed of "
            "this reading for one row, as a share of the speed of copying; more is better. Where fewer rows took "
            "longer than more rows, both have the shorter time. Passes that are not *recorded* are eager."
        )
    models = {name: result for name, result in figures.items() if name.rpartition(" ")[0] in SHAPES}
    good = {name: result for name, result in models.items() if not failure(result)}
    lines, of_calls = [], []
    for name, result in good.items():
        for form, form_result in forms(result).items():
            part = share(form_result, speed)
            first, *cells = [f"{1e3 * seconds:.2f}" for seconds in form_result["seconds"][0]]
            read = f"{first} ({100 * part:.0f} %)" if part else first
            lines.append([f"{name}{form}", f"{form_result['held'] / 2**30:.1f} GiB", read, *cells])
            of_calls.append([f"{name}{form}", *calls_told(form_result)])
    if good:
        rows = next(iter(good.values()))["rows"]
        parts.append(table(["model", "weights", *(f"{n} rows" if n > 1 else "1 row" for n in rows)], lines))
        parts.append(
            "The next table counts, for one step: kernels started / recordings started / times that the host waits for the GPU / "
            "copies of memory. Less is better."
        )
        parts.append(table(["model", *(f"{n} rows" if n > 1 else "1 row" for n in PROFILED)], of_calls))
        parts += waits_told(good)
    parts += [f"- {name} is not recorded: {why}" for name, result in good.items() if (why := result.get("trouble"))]
    parts += failed(models)
    return "\n\n".join([*parts, *products.section(figures), *attention.section(figures)])


def calls_told(result: dict[str, Any]) -> list[str]:
    """Return table cells with the numbers of calls in a model's steps."""
    cells = []
    for rows in PROFILED:
        launches = result["calls"][str(rows)]
        known = [launches[name] for name in ("kernels", "graphs", "waits", "copies") if name in launches]
        if not known:
            cells.append(f"{launches['operators']} operators")
        else:
            cells.append(" / ".join(map(str, known)) if launches["seen"] else "the profiler saw none")
    return cells


def waits(result: dict[str, Any]) -> dict[int, float | None]:
    """Return the share of a step in which the GPU waits for the host, by number of rows; None if unknown."""
    known = {rows: result["calls"][str(rows)] for rows in PROFILED}
    return {
        rows: max(0.0, 1 - step["busy"] / step["seconds"]) if step.get("busy") and step.get("seconds") else None
        for rows, step in known.items()
    }


def waits_told(good: dict[str, Any]) -> list[str]:
    """Return the table of how long the GPU waits, or a sentence that this was not measured."""
    by_name = {
        f"{name}{form}": waits(form_result)
        for name, known in good.items()
        for form, form_result in forms(known).items()
    }
    lines = [
        [name, *("" if part is None else f"{100 * part:.0f} %" for part in parts.values())]
        for name, parts in by_name.items()
        if any(part is not None for part in parts.values())
    ]
    if not lines:
        return [
            "The share of a step in which the device waits for the host is not measured: the profiler saw no work of a device."
        ]
    return [
        "The next table has the share of a step's time in which the GPU runs no kernel and no copy, because it waits for "
        "the host. Less is better.",
        table(["model", *(f"{n} rows" if n > 1 else "1 row" for n in PROFILED)], lines),
    ]


def forms(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of eager steps (key ""), and those of recorded steps (key ", recorded") if there are any."""
    return {"": result, **({", recorded": result["recorded"]} if "recorded" in result else {})}


def quickest(known: Any) -> dict[str, Any] | None:
    """Return the figures of the form whose forward of one row is fastest; None if nothing was measured."""
    if not known or failure(known):
        return None
    return min(forms(known).values(), key=lambda form: float(form["seconds"][0][0]))


def share(result: dict[str, Any], speed: dict[str, float]) -> float | None:
    """Return the speed at which a forward of one row reads the weights, as a share of the memory's speed."""
    if "copy" not in speed:
        return None
    return float(result["read"] / result["seconds"][0][0] / speed["copy"])


def aims(figures: dict[str, Any]) -> list[Aim]:
    """Return the aims of this stage: reading speed, cost of 16 rows, waiting time, and speed against other kernels."""
    goals = []
    for precision in ("bf16", "int8", "nf4"):
        known = quickest(figures.get(f"{LLAMA2} {precision}"))
        assumed, growth = READS[precision], SIXTEEN_ROWS[precision]
        reading = share(known, figures.get("bandwidth", {})) if known else None
        goals.append(
            Aim(
                f"{LLAMA2} in {precision}: speed at which a pass of one row reads the weights ÷ speed of copying",
                reading,
                assumed,
            )
        )
        sixteen = None
        if known and 16 in known["rows"]:
            line = known["seconds"][0]
            sixteen = line[known["rows"].index(16)] / line[0]
        goals.append(Aim(f"{LLAMA2} in {precision}: time of 16 rows ÷ time of one", sixteen, growth, at_most=True))
    for precision in ("bf16", "nf4"):
        known = quickest(figures.get(f"{LLAMA2} {precision}"))
        idle = [part for part in waits(known).values() if part is not None] if known else []
        title = f"{LLAMA2} in {precision}: share of a step in which the device waits for the host"
        goals.append(Aim(title, max(idle, default=None), HOST_SHARE, at_most=True))
    rival = products.beside_others(figures, 8)
    goals.append(
        Aim(
            "8 rows: time of the fastest other kernel for packed weights ÷ time of our NF4 kernel",
            rival,
            0.95,
        )
    )
    return goals
