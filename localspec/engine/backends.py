"""The two that compute: our compiled library on CPUs, torch elsewhere. Each is imported only where it is chosen."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from localspec.choosing.choice import LoadSpec, StepForm
from localspec.decoding.compute import DraftableModel
from localspec.decoding.exactness import Exactness
from localspec.decoding.measuring import Measuring
from localspec.engine.kept_weights import load_kept
from localspec.events import Reporter
from localspec.families.model_config import ModelConfig
from localspec.models.chat_tokenizer import ChatTokenizer


class Target(DraftableModel[Any], Protocol):
    """A model as it was loaded, whatever computes it."""

    config: ModelConfig
    chat: ChatTokenizer
    generation: Mapping[str, Any]  # generation_config.json: the model's own sampling

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one decode step reads: all but an embedding, of which it reads a few rows."""

    def set_threads(self, count: int) -> None:
        """Compute with this many cores of the CPU from now on."""

    def lend_core(self, lent: bool) -> None:
        """Leaves a core to another thread of this process, as long as it is `lent`; any thread may say so."""


def open_target(choice: LoadSpec, reporter: Reporter, beside: Target | None = None) -> Target:
    """Load a model; on a CPU it shares the threads of the model `beside` it, with which it takes turns.

    Raises LocalspecError for a broken model, UsageMistake for a context that it cannot hold, and what either engine
    raises where memory runs out.
    """
    if choice.engine == "native":
        from localspec.native.target import NativeTarget

        threads = beside.threads if isinstance(beside, NativeTarget) else None
        return NativeTarget.open(
            choice.target.path,
            packing=choice.precision,
            context=choice.context,
            threads=threads,
            tokenizer=beside.tokenizer if beside else None,
            name=choice.target.name,
            reporter=reporter,
            drafts=choice.drafts,
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
    return load_kept(choice, lambda kept: load(kept=kept), reporter) if choice.quantize == "nf4" else load()


def find_step_form(target: Target) -> tuple[StepForm, str | None]:
    """Find the quickest form of a torch target's steps whose bits are right, and why none that is quicker serves."""
    from localspec.nn import step_forms
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return step_forms.find_step_form(target)


def use_step_form(target: Target, form: StepForm) -> None:
    """Lets a torch target compute steps in this form from now on."""
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    target.use_step_form(form)


def fills_rows(target: Any) -> bool:
    """Whether rows of a step are filled up to a power of two."""
    return getattr(target, "step_form", "eager") != "eager"


def recording_troubles(target: Target) -> tuple[str | None, str | None]:
    """Why steps of a torch target, and what drafters compute beside them, are not recorded any more, if they were."""
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return target.step_trouble, target.draft_trouble


def checking_exactness(choice: LoadSpec, target: Target, widest: int) -> Measuring[Exactness]:
    """Measure how exact a loaded model computes trees of up to `widest` rows, root included; torch without a pause."""
    if choice.engine == "native":
        from localspec.native import exactness as native
        from localspec.native.target import NativeTarget

        assert isinstance(target, NativeTarget)
        return (yield from native.measuring(target, widest))
    from localspec.nn import exactness as torch_exactness
    from localspec.nn.target import Target as TorchTarget

    assert isinstance(target, TorchTarget)
    return torch_exactness.measure(target, widest, choice.exact)
