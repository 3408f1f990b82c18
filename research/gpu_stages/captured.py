"""Stage c: compares eager steps, steps of fixed shapes and captured CUDA graphs: seconds, bits and memory."""

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from figures import table

from gpu_stages.aims import Aim, failed, shares
from gpu_stages.invented import HYBRID, LLAMA2, random_target
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.timing import held_bytes, seconds_each, watch_peak
from localspec.decoding.tree import DraftTree
from localspec.engine.model_profile import picks_after
from localspec.machine.hardware import wait_for
from localspec.machine.memory import free_memory
from localspec.nn.logits import TorchLogits
from localspec.nn.target import Target

EAGER, STATIC, CAPTURED = FORMS = ("eager", "static", "captured")
MODELS = ((LLAMA2, "bf16"), (LLAMA2, "nf4"), (HYBRID, "bf16"))
ROWS = (1, 8, 16, 32)
CONTEXT = 500  # tokens of text: a wide tree reaches into the next bucket of slots
NONE = "no captured step in this version"


class Steps:
    """A model in one precision, and the logits of its eager steps. Both are made at their first use."""

    def __init__(self, request: Request, name: str, precision: str) -> None:
        self._request, self._name, self._precision = request, name, precision

    @cached_property
    def target(self) -> Target:
        return random_target(self._name, self._request.small, self._request.device, self._precision)

    @property
    def use(self) -> Callable[[str], Any] | None:
        """The function that selects the form of steps; None in versions with only one form."""
        method = getattr(self.target, "use_step_form", None)
        return method if callable(method) else None

    @cached_property
    def eager(self) -> Mapping[int, torch.Tensor]:
        """The logits of eager steps, by number of rows."""
        if self.use:
            self.use(EAGER)
        return {rows: logits_of(self.target, form_cache(self.target, rows), rows) for rows in ROWS}


def run(record: Record, request: Request) -> None:
    """Measure each model in each form of steps, one model after the other."""
    for name, precision in MODELS:
        steps = Steps(request, name, precision)
        for form in FORMS:
            record.measured(f"{name} {precision} {form}", partial(measured, steps, form, request.device), least=20)


def measured(steps: Steps, form: str, device: str) -> dict[str, Any]:
    """Measure one form of steps: ms by rows, seconds and bytes of the first step, and rows with other bits than eager."""
    target, eager = steps.target, steps.eager
    if steps.use is None:
        return {"none": NONE}
    steps.use(form)
    actual = getattr(target, "step_form", form)
    if actual != form:
        return {"none": f"the model keeps to its form '{actual}' where '{form}' was asked for"}
    watch_peak(device)
    result: dict[str, Any] = {"ms": {}, "first": {}, "bytes": {}, "differing": []}
    for rows in ROWS:
        cache, tokens = form_cache(target, rows), tokens_of(target, rows)
        free, used, began = free_memory(device), held_bytes(device), time.perf_counter()
        logits = logits_of(target, cache, rows)
        wait_for(device)
        result["first"][str(rows)] = time.perf_counter() - began
        result["bytes"][str(rows)] = {"card": free - free_memory(device), "tensors": held_bytes(device) - used}
        if not torch.equal(logits, eager[rows]):
            result["differing"].append(rows)
        result["ms"][str(rows)] = 1e3 * seconds_each([partial(picks_after, target, cache, tokens)], device)
    result["trouble"] = getattr(target, "step_trouble", None)
    return result


def form_cache(target: Target, rows: int) -> Any:
    """Return a cache that is filled with the same random text for every form of steps."""
    cache = target.cache(CONTEXT + rows + target.row_multiple)
    cache.fill(torch.Generator().manual_seed(0))
    cache.assume(min(CONTEXT, target.context - 2 * max(ROWS)))
    return cache


def tokens_of(target: Target, rows: int) -> list[int]:
    return [(7 + 31 * index) % target.vocab_size for index in range(rows)]


def logits_of(target: Target, cache: Any, rows: int) -> torch.Tensor:
    """Return a copy of the logits of a binary tree, or of a chain. The next captured step overwrites the original."""
    parents = [-1, *[(node - 1) // 2 if target.branches else node - 1 for node in range(1, rows)]]
    logits = target.forward(DraftTree(tokens_of(target, rows), parents), cache).logits
    assert isinstance(logits, TorchLogits)
    return logits.rows.clone()


# -- the page ----------------------------------------------------------------------------------------------------------


def section(figures: dict[str, Any]) -> str:
    good = {name: result for name, result in figures.items() if not failure(result) and "ms" in result}
    absent = sorted({result["none"] for result in figures.values() if "none" in result})
    parts = [f"- {why}" for why in absent]
    if good:
        lines = [
            [
                name, *(f"{result['ms'][str(rows)]:.2f}" for rows in ROWS), f"{max(result['first'].values()):.2f} s",
                f"{sum(size['card'] for size in result['bytes'].values()) / 2**20:.0f} MiB",
                f"differ at {', '.join(map(str, result['differing']))} rows" if result["differing"] else "as eager",
            ]
            for name, result in good.items()
        ]  # fmt: skip
        heads = [
            "model and form",
            *(f"{n} rows" if n > 1 else "1 row" for n in ROWS),
            "slowest first step",
            "memory of first steps",
            "bits",
        ]
        parts.insert(
            0,
            f"A line is a model with a form of steps. The columns of rows have the milliseconds of a step after about {CONTEXT} tokens of text, "
            "until its picks have reached the host. Less is better.\n\n"
            "- The first step with each number of rows prepares the later ones, which takes time and memory. *Slowest first step* is "
            "the longest of these four steps, and *memory of first steps* is what all four took together.\n"
            "- *Static* steps are eager, with tensors of fixed shapes, as recording needs them.\n"
            "- *Bits* compares all results with those of eager steps.\n"
            "- With recurrent layers, steps of more than 16 rows are not captured. So all their times for 32 rows are of eager steps.\n\n"
            f"{table(heads, lines)}",
        )
    parts += [f"- {name} fell back, for: {result['trouble']}" for name, result in good.items() if result.get("trouble")]
    return "\n\n".join([*parts, *failed(figures)])


def aims(figures: dict[str, Any]) -> list[Aim]:
    goals = []
    fine = (item for item in figures.items() if not failure(item[1]) and not item[1].get("trouble"))
    good = {name: result for name, result in fine if "ms" in result}
    for name, precision in MODELS:
        eager, captured = (good.get(f"{name} {precision} {form}") for form in (EAGER, CAPTURED))
        gain = eager["ms"]["1"] / captured["ms"]["1"] if eager and captured else None
        goals.append(
            Aim(f"{name} in {precision}: time of an eager step of one row ÷ time of a captured one", gain, 1.0)
        )
    same = shares(not result["differing"] for name, result in good.items() if not name.endswith(EAGER))
    goals.append(Aim("share of the other forms of steps with the same bits as eager steps", same, 1.0))
    return goals
