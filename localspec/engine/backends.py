"""The two backends: the compiled library on CPUs, torch elsewhere. Each is imported only if it is chosen."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from localspec.choosing.choice import LoadSpec, StepForm
from localspec.decoding.compute import DraftableModel
from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import Measuring
from localspec.events import Reporter
from localspec.families.model_config import ModelConfig
from localspec.models.chat_tokenizer import ChatTokenizer


class Target(DraftableModel[Any], Protocol):
    """A loaded model on any backend."""

    config: ModelConfig
    chat: ChatTokenizer
    generation: Mapping[str, Any]  # generation_config.json: the model's recommended sampling

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all except the embedding, because a step reads few of its
        rows."""

    def set_threads(self, count: int) -> None:
        """Compute with this many cores of the CPU from now on."""

    def lend_core(self, lent: bool) -> None:
        """Leave one CPU core to another thread of this process, or take it back if `lent` is false.

        Any thread may call this.
        """


def open_target(choice: LoadSpec, reporter: Reporter, share_with: Target | None = None) -> Target:
    """Load a model. On a CPU it shares the threads of the model `share_with`; only one of the two computes at a time.

    Raises LocalspecError for a broken model, UsageMistake for a context that it cannot have, and the backend's errors
    if memory runs out.
    """
    if choice.engine == "native":
        from localspec.native.target import NativeTarget

        threads = share_with.threads if isinstance(share_with, NativeTarget) else None
        return NativeTarget.open(
            choice.target.path,
            packing=choice.precision,
            context=choice.context,
            threads=threads,
            tokenizer=share_with.tokenizer if share_with else None,
            name=choice.target.name,
            reporter=reporter,
            drafts=choice.drafts,
            on_disk=bool(choice.on_disk),
        )
    from localspec.nn.packing import DTYPES
    from localspec.nn.target import Target as TorchTarget

    load = partial(
        TorchTarget.load,
        choice.target.path,
        device=choice.device,
        dtype=DTYPES[choice.dtype],
        context=choice.context,
        quantize=choice.quantize,
        exact=choice.exact,
        threshold=choice.threshold,
    )
    if choice.quantize != "nf4":
        return load()
    from localspec.nn.nf4_file import load_saved

    return load_saved(choice, lambda packed: load(packed=packed), reporter)


def saved_damage(file: Path) -> str | None:
    """Return a clause that says what is damaged in a file of weights packed for a GPU; None if nothing is damaged."""
    from localspec.nn.nf4_file import damage

    return damage(file)


def find_step_form(target: Target) -> tuple[StepForm, str | None]:
    """Return the fastest way to compute steps without changing a bit, such as "captured", and why none is faster."""
    from localspec.nn import step_forms
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return step_forms.find_step_form(target)


def use_step_form(target: Target, form: StepForm) -> None:
    """Make a torch target compute steps in this way from now on: "eager", "static" or "captured" (as CUDA graphs)."""
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    target.use_step_form(form)


def fills_rows(target: Any) -> bool:
    """Return whether the rows of a step are padded to a power of two."""
    return getattr(target, "step_form", "eager") != "eager"


def recording_troubles(target: Target) -> tuple[str | None, str | None]:
    """Return why steps of a torch target, and why steps of drafters, are no longer recorded as CUDA graphs.

    A reason is None if recording still works.
    """
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return target.step_trouble, target.draft_trouble


def checking_exactness(choice: LoadSpec, target: Target, widest: int) -> Measuring[Exactness]:
    """Measure how exactly a loaded model computes trees of up to `widest` rows, including the root.

    In torch the measurement is one step, which cannot be paused.
    """
    if choice.engine == "native":
        from localspec.native import exactness as native
        from localspec.native.target import NativeTarget

        assert isinstance(target, NativeTarget)
        return (yield from native.measuring(target, widest))
    from localspec.nn import exactness as torch_exactness
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return torch_exactness.measure(target, widest, choice.exact)
