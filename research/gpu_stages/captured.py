"""Stage c: the same steps as Python starts them, with fixed shapes, and as captured CUDA graphs: seconds, bits, memory."""

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from figures import table

from gpu_stages.aims import Aim, failed, shares
from gpu_stages.asked import Asked
from gpu_stages.invented import HYBRID, LLAMA2, random_target
from gpu_stages.record import Record, failure
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
    """A model in one precision, and the results of its eager steps; both are made on first use."""

    def __init__(self, asked: Asked, name: str, precision: str) -> None:
        self._asked, self._name, self._precision = asked, name, precision

    @cached_property
    def target(self) -> Target:
        return random_target(self._name, self._asked.small, self._asked.device, self._precision)

    @property
    def use(self) -> Callable[[str], Any] | None:
        """What changes the form of a step, in versions that have several."""
        found = getattr(self.target, "use_step_form", None)
        return found if callable(found) else None

    @cached_property
    def eager(self) -> Mapping[int, torch.Tensor]:
        """Logits by rows."""
        if self.use:
            self.use(EAGER)
        return {rows: logits_of(self.target, form_cache(self.target, rows), rows) for rows in ROWS}


def run(record: Record, asked: Asked) -> None:
    """Run each model by itself, its forms one after the other."""
    for name, precision in MODELS:
        steps = Steps(asked, name, precision)
        for form in FORMS:
            record.measured(f"{name} {precision} {form}", partial(measured, steps, form, asked.device), least=20)


def measured(steps: Steps, form: str, device: str) -> dict[str, Any]:
    """ms by rows in one form, the seconds and bytes of its first step, and with how many rows bits are not eager's."""
    target, eager = steps.target, steps.eager
    if steps.use is None:
        return {"none": NONE}
    steps.use(form)
    taken = getattr(target, "step_form", form)
    if taken != form:
        return {"none": f"the model keeps to its form '{taken}' where '{form}' was asked for"}
    watch_peak(device)
    found: dict[str, Any] = {"ms": {}, "first": {}, "bytes": {}, "differing": []}
    for rows in ROWS:
        cache, tokens = form_cache(target, rows), tokens_of(target, rows)
        free, held, began = free_memory(device), held_bytes(device), time.perf_counter()
        own = logits_of(target, cache, rows)
        wait_for(device)
        found["first"][str(rows)] = time.perf_counter() - began
        found["bytes"][str(rows)] = {"card": free - free_memory(device), "tensors": held_bytes(device) - held}
        if not torch.equal(own, eager[rows]):
            found["differing"].append(rows)
        found["ms"][str(rows)] = 1e3 * seconds_each([partial(picks_after, target, cache, tokens)], device)
    found["trouble"] = getattr(target, "step_trouble", None)
    return found


def form_cache(target: Target, rows: int) -> Any:
    """Return a cache with the same random text in it, whatever the form."""
    cache = target.cache(CONTEXT + rows + target.row_multiple)
    cache.fill(torch.Generator().manual_seed(0))
    cache.assume(min(CONTEXT, target.context - 2 * max(ROWS)))
    return cache


def tokens_of(target: Target, rows: int) -> list[int]:
    return [(7 + 31 * place) % target.vocab_size for place in range(rows)]


def logits_of(target: Target, cache: Any, rows: int) -> torch.Tensor:
    """Return the logits of a binary tree, or a chain; copied, since the next captured step overwrites them."""
    parents = [-1, *[(node - 1) // 2 if target.branches else node - 1 for node in range(1, rows)]]
    logits = target.forward(DraftTree(tokens_of(target, rows), parents), cache).logits
    assert isinstance(logits, TorchLogits)
    return logits.rows.clone()


# -- the page ----------------------------------------------------------------------------------------------------------


def section(figures: dict[str, Any]) -> str:
    good = {name: one for name, one in figures.items() if not failure(one) and "ms" in one}
    absent = sorted({one["none"] for one in figures.values() if "none" in one})
    told = [f"- {why}" for why in absent]
    if good:
        lines = [
            [
                name, *(f"{one['ms'][str(rows)]:.2f}" for rows in ROWS), f"{max(one['first'].values()):.2f} s",
                f"{sum(size['card'] for size in one['bytes'].values()) / 2**20:.0f} MiB",
                f"differ at {', '.join(map(str, one['differing']))} rows" if one["differing"] else "as eager",
            ]
            for name, one in good.items()
        ]  # fmt: skip
        heads = [
            "model and form",
            *(f"{n} rows" if n > 1 else "1 row" for n in ROWS),
            "longest first step",
            "memory for first steps",
            "bits",
        ]
        told.insert(
            0,
            f"Milliseconds until a step's picks are on the host, after about {CONTEXT} tokens of text. *Static* "
            f"steps are eager, with tensors of fixed shapes. *Bits* compares all results with those of the eager step. With recurrent "
            f"layers, steps of more than 16 rows are not captured.\n\n{table(heads, lines)}",
        )
    told += [f"- {name} fell back, for: {one['trouble']}" for name, one in good.items() if one.get("trouble")]
    return "\n\n".join([*told, *failed(figures)])


def aims(figures: dict[str, Any]) -> list[Aim]:
    found = []
    fine = (item for item in figures.items() if not failure(item[1]) and not item[1].get("trouble"))
    good = {name: one for name, one in fine if "ms" in one}
    for name, precision in MODELS:
        eager, captured = (good.get(f"{name} {precision} {form}") for form in (EAGER, CAPTURED))
        gain = eager["ms"]["1"] / captured["ms"]["1"] if eager and captured else None
        found.append(
            Aim(f"{name} in {precision}: time of an eager step of one row ÷ time of a captured one", gain, 1.0)
        )
    same = shares(not one["differing"] for name, one in good.items() if not name.endswith(EAGER))
    found.append(Aim("share of static and captured forms whose results equal the eager one's bit for bit", same, 1.0))
    return found
