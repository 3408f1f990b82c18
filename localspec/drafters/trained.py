"""What all drafters with weights have in common: options, training, files; and trees of drafts made in parallel."""

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
from localspec.decoding.logits import Candidate
from localspec.decoding.tree import DraftTree, best_first_tree, sampled_tree
from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.adapters import Adapters
from localspec.nn.logits import TorchLogits
from localspec.nn.losses import RANKS, DepthLoss
from localspec.nn.target import Target


@dataclass(frozen=True)
class Batch:
    """Texts to learn from, the shorter ones padded at their end.

    tokens [texts, n]; loss_mask bool [texts, n]: the tokens to predict, which are those of replies and their end marks
    and never padding; hidden [texts, n, hidden_size]: the target's states after its final norm, in the precision of
    inference. With `distill` the label is the target's distribution, else it is the text.
    """

    tokens: torch.Tensor
    loss_mask: torch.Tensor
    hidden: torch.Tensor
    distill: bool
    generator: torch.Generator = field(default_factory=torch.Generator)


@dataclass(frozen=True)
class LossOutput:
    """The loss to minimise, a mean over tokens, and how well each depth was predicted."""

    loss: torch.Tensor
    depth_losses: Sequence[DepthLoss]


FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
OTHERS = {"BOOL": torch.bool, "I64": torch.int64}  # by their names in files


@dataclass(frozen=True)
class TensorSpec:
    """The shape and type of a tensor in a file. The type is a string where no drafter has a tensor of that type."""

    shape: Sequence[int]
    dtype: torch.dtype | str

    @classmethod
    def of(cls, stored: Any) -> Self:
        """Returns the spec of a slice of an open safetensors file."""
        name = stored.get_dtype()
        return cls(stored.get_shape(), (FLOATS | OTHERS).get(name, name))


def refuse_without_joint(kind: str, options: Any, names: Sequence[str]) -> None:
    """Raises UsageMistake where an option that only joint training has, one of `names`, was given without `joint`."""
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in names and value != option.default and not options.joint:
            raise UsageMistake(
                f"{option.name} = {value!r} of {kind} has no effect without joint; give both or neither."
            )


@dataclass(frozen=True)
class PreviousRun:
    """A drafter that was trained before: its options, and its accuracies [depth][rank] on held-out text."""

    options: Mapping[str, Any]
    accuracies: Sequence[Sequence[float]]


class TrainedDrafter(nn.Module):
    """A drafter with weights, made for one target. `Options` is a frozen dataclass of what can be chosen.

    Its weights are trained and saved in fp32, and compute in the precision of the target's activations. A new one is
    untrained, and as lossless as any other. `accuracies` [depth][rank] is how often the token of that rank was right on
    held-out text, where that was measured. `progress` is how much of a training is over, from 0 to 1.
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
        self.progress = 1.0

    @property
    @abstractmethod
    def depth(self) -> int:
        """The number of levels of its trees, the root not counted."""

    @abstractmethod
    def observe(self, step: Step) -> None:
        """Takes in what a step committed, as `Drafter.observe` does."""

    @abstractmethod
    def draft(self, context: Context) -> DraftTree:
        """Returns a tree of at most `context.nodes` nodes below the root, as `Drafter.draft` does."""

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forgets the text after `length`, as `Drafter.rewind` does."""

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """Returns the loss of a batch. Every depth is predicted as it is in drafting."""

    def cast_for_inference(self) -> None:
        """Casts the weights to the precision that they compute in. Called where the drafter will not be trained."""
        self.to(self.target.transformer.computes_in)

    @classmethod
    def parse_options(cls, options: Mapping[str, Any]) -> Any:
        """Returns these options as `Options`. Raises UsageMistake for an unknown name or an impossible value."""
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
    def propose(cls, target: Target, previous: Sequence[PreviousRun] = ()) -> tuple[dict[str, Any], str] | None:
        """Returns options that suit this target and machine, and why, in a sentence; None where a kind has no proposal.

        `previous` are drafters of this kind that were trained for the target before.
        """
        return None

    def outcome(self, accuracies: Sequence[Sequence[float]]) -> str:
        """Returns a sentence that compares a finished training with what was expected; empty where nothing was."""
        return ""

    @property
    def changes_target(self) -> bool:
        """Whether its training changes the target: then it belongs to the changed target and to no other."""
        return self.adapters is not None

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Called before training with `frequencies` [vocab_size], how often each token occurs in the text."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Returns groups of what is trained: `params`, and `lr_scale`, by which their learning rate is multiplied."""
        return [{"params": list(self.parameters()), "lr_scale": 1.0}]

    def adapted_states(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the target's states [texts, n, hidden_size] with the adapters of joint training; gradients flow."""
        assert self.adapters is not None
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        causal = positions[:, None] >= positions
        states: torch.Tensor = self.target.transformer(tokens, positions, causal, adapters=self.adapters)
        return states

    def merge_adapters(self) -> None:
        """Ends joint training: the adapters become part of the target, which is another model from then on."""
        assert self.adapters is not None and self.changes_target
        self.adapters.merge(self.target.transformer)
        defaults = {option.name: option.default for option in fields(self.Options) if option.name in self.JOINT}
        self.adapters, self.options = None, replace(self.options, joint=False, **defaults)
        self.rewind(0)

    # -- weights ------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes that the drafter holds beside the target."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns what is saved, by name."""
        return {name: tensor.detach() for name, tensor in self.state_dict().items()}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` gave. Raises LocalspecError where one is missing, superfluous or of another shape."""
        self.check_tensors(tensors)
        self.load_state_dict(dict(tensors), strict=False)  # a kind may hold more than it saves

    def check_tensors(self, tensors: Mapping[str, torch.Tensor | TensorSpec]) -> None:
        """Raises LocalspecError where a tensor is missing, superfluous, or of another shape or type than in `tensors`.

        Floating-point weights may be of any precision that they compute in.
        """
        expected = self.tensors()
        if missing := sorted(expected.keys() - tensors.keys()):
            raise LocalspecError(f"{_named(missing)} missing; train the drafter again.")
        if extra := sorted(tensors.keys() - expected.keys()):
            raise LocalspecError(f"{_named(extra)} not a part of it; train the drafter again.")
        for name, tensor in tensors.items():
            own = expected[name]
            if list(tensor.shape) != list(own.shape):
                raise LocalspecError(
                    f"'{name}' has the shape {list(tensor.shape)} where {list(own.shape)} belongs; "
                    "train the drafter again."
                )
            if tensor.dtype != own.dtype and not (own.is_floating_point() and tensor.dtype in FLOATS.values()):
                found, right = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, own.dtype))
                raise LocalspecError(f"'{name}' is of type {found} where {right} belongs; train the drafter again.")


def _named(names: Sequence[str]) -> str:
    """Returns the first name and the number of the others, with the verb that follows."""
    return f"'{names[0]}'" + (" is" if len(names) == 1 else f" and {len(names) - 1} more are")


def _is(value: object, type_: type) -> bool:
    """Whether an option of this type may have this value; an integer is a float where a float can hold it exactly."""
    if isinstance(value, bool) or type_ is bool:
        return isinstance(value, bool) and type_ is bool
    return isinstance(value, type_) or (type_ is float and isinstance(value, int) and abs(value) < 2**53)


class ParallelDrafter(TrainedDrafter):
    """A trained drafter that predicts all depths at once: the candidates of a depth do not depend on their parents."""

    def __init__(self, target: Target, options: Any) -> None:
        super().__init__(target, options)
        self._candidates: list[list[Candidate]] = []  # of the last draft, by depth
        self._greedy = True

    def build_tree(self, context: Context, logits: torch.Tensor, width: int = RANKS) -> DraftTree:
        """Returns the likeliest tree by logits [depths, vocab_size]; by the rule `rejection`, a tree that is sampled.

        Each depth has `width` candidates; with one of them the tree is a chain.
        """
        sampling, handle = context.sampling, TorchLogits(logits)
        if sampling.rule == "rejection":
            return sampled_tree(context.root, handle, context.nodes, sampling, len(context.committed), self.kind)
        levels = handle.candidates(self.positions(context, logits), min(context.nodes, width), sampling)
        self._candidates, self._greedy = levels, sampling.greedy
        chances = [self.calibration.chances(level, depth, self._greedy) for depth, level in enumerate(levels, start=1)]
        return best_first_tree(context.root, chances, context.nodes, self.kind)

    @staticmethod
    def positions(context: Context, logits: torch.Tensor) -> range:
        """Returns the positions of the tokens that rows of logits [depths, vocab_size] predict."""
        return range(len(context.committed), len(context.committed) + len(logits))

    def calibrate(self, step: Step) -> None:
        """Calibrates the confidence of the last draft, at each depth whose parents were all accepted."""
        if step.tree is not None:
            for depth, (level, token) in enumerate(zip(self._candidates, step.committed, strict=False), start=1):
                self.calibration.learn(level, depth, self._greedy, token)
        self.forget_draft()

    def forget_draft(self) -> None:
        """Drops the last draft's candidates, so that nothing is calibrated by them."""
        self._candidates = []
