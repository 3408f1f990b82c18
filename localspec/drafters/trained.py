"""What drafters with weights of their own have in common: options, training, files, and trees of parallel drafts."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar, Self

import torch
from torch import nn

from localspec.config import nearest
from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Context, Step
from localspec.decoding.sampling import drawn
from localspec.decoding.tree import Candidate, DraftTree, best_first
from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.adapters import Adapters
from localspec.nn.losses import RANKS, DepthLoss
from localspec.nn.target import Target


@dataclass(frozen=True)
class Batch:
    """Texts to learn from, shorter ones filled up behind their end.

    tokens [texts, n]; counts bool [texts, n]: the tokens that are worth foreseeing, those of replies and their end
    marks, never what is filled up; hidden [texts, n, width]: the target's states behind its final norm, in the
    precision of inference. With `distill` the target's distribution is the label, else the text is.
    """

    tokens: torch.Tensor
    loss_mask: torch.Tensor
    hidden: torch.Tensor
    distill: bool
    generator: torch.Generator = field(default_factory=torch.Generator)


@dataclass(frozen=True)
class LossOutput:
    """What one batch teaches: the loss to go down, a mean over tokens, and how well each depth was foreseen."""

    loss: torch.Tensor
    depth_losses: Sequence[DepthLoss]


FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
OTHERS = {"BOOL": torch.bool, "I64": torch.int64}  # by their names in files


@dataclass(frozen=True)
class TensorSpec:
    """What a file says of a tensor. The type is its name in files where no drafter has a tensor of it."""

    shape: Sequence[int]
    dtype: torch.dtype | str

    @classmethod
    def of(cls, stored: Any) -> Self:
        """Of a slice of a safetensors file."""
        name = stored.get_dtype()
        return cls(stored.get_shape(), (FLOATS | OTHERS).get(name, name))


def refuse_without_joint(kind: str, options: Any, names: Sequence[str]) -> None:
    """Raises UsageMistake for an option out of `names`, which only joint training has, where that was not asked for."""
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in names and value != option.default and not options.joint:
            raise UsageMistake(
                f"{option.name} = {value!r} of {kind} has no effect without joint; give both or neither."
            )


@dataclass(frozen=True)
class PreviousRun:
    """A drafter that was trained before: its options, and its accuracies by depth and rank on held-out text."""

    options: Mapping[str, Any]
    accuracies: Sequence[Sequence[float]]


class TrainedDrafter(nn.Module):
    """A drafter with weights of its own, made for one target. `Options` is a frozen dataclass of what can be chosen.

    Its weights are trained and saved in fp32, and compute in the precision of the target's activations. A new one is
    untrained, and lossless like any other. `accuracies` [depth][rank] are how often the token of that rank was right on
    held-out text, where that was measured.
    """

    kind: ClassVar[str]
    Options: ClassVar[type]
    JOINT: ClassVar[Sequence[str]] = ()  # options that only a form which changes the target has
    gradient_share: ClassVar[float] = 0.0  # of the target's weights, which gradients pass while it is trained

    def __init__(self, target: Target, options: Any) -> None:
        super().__init__()
        self.target, self.options = target, options
        self.calibration = Calibration()
        self.accuracies: Sequence[Sequence[float]] = ()
        self.adapters: Adapters | None = None
        self.progress = 1.0  # how much of a training is over, 0 to 1

    @property
    @abstractmethod
    def depth(self) -> int:
        """Levels of its trees, the root not counted."""

    @abstractmethod
    def observe(self, step: Step) -> None:
        """As of `Drafter`."""

    @abstractmethod
    def draft(self, context: Context) -> DraftTree:
        """As of `Drafter`."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """As of `Drafter`."""

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """What a batch teaches. Every depth is foreseen as in drafting."""

    def cast_for_inference(self) -> None:
        """Called when nobody will train it: the weights take on the precision that they compute in."""
        self.to(self.target.transformer.computes_in)

    @classmethod
    def parse_options(cls, options: Mapping[str, Any]) -> Any:
        """These as `Options`. Raises UsageMistake for options that this kind does not have, and for their values."""
        types = {option.name: type(option.default) for option in fields(cls.Options)}
        for name, value in options.items():
            if name not in types:
                raise UsageMistake(
                    f"{cls.kind} has no option {name!r}{nearest(name, types)}; it has {', '.join(types)}."
                )
            if not _is(value, types[name]):
                raise UsageMistake(
                    f"{name} = {shortened(value)} of {cls.kind} must be of type {types[name].__name__}; correct it."
                )
        return cls.Options(**options)

    @classmethod
    def from_model(cls, path: Path, target: Target) -> Self:
        """The drafter that a published language model is; only kinds whose row has a `mask_key` have one."""
        raise NotImplementedError

    # -- training -----------------------------------------------------------------------------------------------------

    @classmethod
    def propose(cls, target: Target, former: Sequence[PreviousRun] = ()) -> tuple[dict[str, Any], str] | None:
        """Options that suit this target and machine, and why, in a sentence; None where a kind proposes nothing.

        `former` are drafters of this kind that were trained for the target before.
        """
        return None

    def outcome(self, accuracies: Sequence[Sequence[float]]) -> str:
        """What a finished training came to, beside what was expected; empty where a kind expects nothing."""
        return ""

    @property
    def changes_target(self) -> bool:
        """Whether its training changes the target, so that it belongs to the changed one and to no other."""
        return self.adapters is not None

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Called before training, with how often each token [vocabulary] comes in the text."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What learns, in groups: `params`, and `lr_scale`, the multiple of the learning rate that they learn with."""
        return [{"params": list(self.parameters()), "lr_scale": 1.0}]

    def adapted(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's states with the adapters of a joint form, [texts, n, width]; gradients flow."""
        assert self.adapters is not None
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states: torch.Tensor = self.target.transformer(
            tokens, places, places[:, None] >= places, adapters=self.adapters
        )
        return states

    def merge(self) -> None:
        """Ends joint training: the adapters become part of the target, which then is another model."""
        assert self.adapters is not None and self.changes_target
        self.adapters.merge(self.target.transformer)
        usual = {option.name: option.default for option in fields(self.Options) if option.name in self.JOINT}
        self.adapters, self.options = None, replace(self.options, joint=False, **usual)
        self.rewind(0)

    # -- weights ------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Memory the drafter holds beside the target."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is saved."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes over what `tensors` gave. Raises LocalspecError for what is missing, left over, or of another shape."""
        self.check_tensors(tensors)
        self.load_state_dict(dict(tensors), strict=False)  # a kind may hold more than it saves

    def check_tensors(self, tensors: Mapping[str, torch.Tensor | TensorSpec]) -> None:
        """Raises LocalspecError where these are not what `tensors` gives: missing, left over, of another shape or type.

        Weights may be of any precision that they compute in.
        """
        wanted = self.tensors()
        if missing := sorted(wanted.keys() - tensors.keys()):
            raise LocalspecError(f"{_named(missing)} missing; train the drafter again.")
        if extra := sorted(tensors.keys() - wanted.keys()):
            raise LocalspecError(f"{_named(extra)} not a part of it; train the drafter again.")
        for name, tensor in tensors.items():
            want = wanted[name]
            if list(tensor.shape) != list(want.shape):
                raise LocalspecError(
                    f"'{name}' has the shape {list(tensor.shape)} where {list(want.shape)} belongs; "
                    "train the drafter again."
                )
            if tensor.dtype != want.dtype and not (want.is_floating_point() and tensor.dtype in FLOATS.values()):
                found, right = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, want.dtype))
                raise LocalspecError(f"'{name}' is of type {found} where {right} belongs; train the drafter again.")


def _named(names: Sequence[str]) -> str:
    """The first one, and how many there are beside it."""
    return f"'{names[0]}'" + (" is" if len(names) == 1 else f" and {len(names) - 1} more are")


def _is(value: object, kind: type) -> bool:
    """Whether an option may have this value; a number that no float holds is none."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int) and abs(value) < 2**53)


class ParallelDrafter(TrainedDrafter):
    """A trained drafter that foresees all depths at once, whatever stands between: a level is the same everywhere."""

    def __init__(self, target: Target, options: Any) -> None:
        super().__init__(target, options)
        self._candidates: list[list[Candidate]] = []  # by the last draft, to be judged
        self._greedy = True

    def build_tree(self, context: Context, logits: torch.Tensor, width: int = RANKS) -> DraftTree:
        """The likeliest tree of what logits [depths, vocabulary] say; one that is drawn, by the rule `rejection`.

        Of each depth it takes `width` candidates; with one it is a chain.
        """
        sampling = context.sampling
        if sampling.rule == "rejection":
            return drawn(context.root, logits, context.nodes, sampling, len(context.committed), self.kind)
        levels = sampling.candidates(logits, self.positions(context, logits), min(context.nodes, width))
        self._candidates, self._greedy = levels, sampling.greedy
        chances = [self.calibration.chances(level, depth, self._greedy) for depth, level in enumerate(levels, start=1)]
        return best_first(context.root, chances, context.nodes, self.kind)

    @staticmethod
    def positions(context: Context, logits: torch.Tensor) -> range:
        """The positions that rows of logits foresee."""
        return range(len(context.committed), len(context.committed) + len(logits))

    def calibrate(self, step: Step) -> None:
        """Learns what the confidence of the last draft was worth: of each level whose parents were all accepted."""
        if step.tree is not None:
            for depth, (level, token) in enumerate(zip(self._candidates, step.committed, strict=False), start=1):
                self.calibration.learn(level, depth, self._greedy, token)
        self.forget()

    def forget(self) -> None:
        """What was proposed will not be judged."""
        self._candidates = []
