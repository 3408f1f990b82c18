"""The base of all drafters with weights during training: their losses, and how they are saved."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from localspec.decoding.compute import Array, DraftableModel
from localspec.drafters.tensors import TensorSpec, check_tensors
from localspec.drafters.trained import CARD, WEIGHTS, TrainedDrafter, check_vocabulary, drafter_class
from localspec.engine.backends import Target as DecodingTarget
from localspec.errors import UsageMistake
from localspec.models.drafter_cards import DIGEST, FORMAT, DrafterCard, file_digest
from localspec.models.drafter_kinds import kind_of
from localspec.nn.adapters import Adapters
from localspec.nn.cache import TextPrefix
from localspec.nn.losses import DepthLoss, Labels, Likeliest
from localspec.nn.target import Target
from localspec.training.readings import Places


@dataclass(frozen=True)
class Batch:
    """A batch of texts to learn from; shorter ones are padded at their end.

    tokens [texts, n] are token ids. loss_mask bool [texts, n] marks the tokens to predict: replies and their end marks,
    never padding. hidden [texts, n, hidden_size] are the target's states after its final norm, in the precision of
    inference. They are [texts, n, 0] if the loss reads none. With `distill` the label is the target's distribution,
    otherwise the text.

    `prefix` has the texts' keys and values in the layers that a kind reads, if any. `inner` [texts, n, places *
    hidden_size] are the states that a kind reads in addition to the last. `places` are saved outputs of the target for
    the texts, for kinds that need nothing else; `hidden` is then [texts, n, 0].
    """

    tokens: torch.Tensor
    loss_mask: torch.Tensor
    hidden: torch.Tensor
    distill: bool
    generator: torch.Generator = field(default_factory=torch.Generator)
    prefix: TextPrefix | None = None
    inner: torch.Tensor | None = None
    places: Places | None = None

    def read_places(self, depth: int, states: torch.Tensor, teacher_states: torch.Tensor) -> Places:
        """Return the `Places` of texts that were just read, in the form of saved outputs, for drafts of `depth` tokens.

        `states` [texts, n, hidden_size] are the states of all positions. With `distill`, labels are made of
        `teacher_states`, which have the same shape.
        """
        predicting = predicting_next(self.loss_mask)
        text, position = predicting.nonzero(as_tuple=True)
        roots, numbers = self.tokens.roll(-1, 1)[predicting], text * 2 * (self.tokens.shape[1] + depth) + position
        return Places(states[predicting], roots, numbers, teacher_states[predicting] if self.distill else roots)


def predicting_next(loss_mask: torch.Tensor) -> torch.Tensor:
    """Return bool [texts, n]: True where a position predicts a token that counts in the loss."""
    return F.pad(loss_mask[:, 1:], (0, 1))


@dataclass(frozen=True)
class LossOutput:
    """The loss to minimise, a mean over tokens, and how well each depth was predicted.

    chains [depth, 2], if a kind reports them, count drafts whose likeliest tokens were right at all earlier depths: how
    many of these drafts were right at this depth too, and the number of these drafts.
    """

    loss: torch.Tensor
    depth_losses: Sequence[DepthLoss]
    chains: torch.Tensor | None = None


@dataclass(frozen=True)
class GradientWork:
    """The work of training that needs gradients: rows per token of a text, and layers that rows pass (0: only heads).

    A row keeps `vectors` vectors of hidden_size in memory for the gradient: its state when it is selected and sorted,
    and states inside a head. Outputs of a head, mainly logits, are not included, because they exist for only a few rows
    at a time.
    """

    rows: float
    layers: int = 0
    vectors: int = 4


CANDIDATES, COMMON = 16, 2048  # of a place, and the most common tokens: a step learns to distinguish these
PROBE_SECONDS = 120.0  # of measuring for a proposal, at most


class Proposed(NamedTuple):
    """Options that suit a target and a machine, a sentence that explains them, and whether the drafter should pay."""

    options: dict[str, Any]
    sentence: str
    pays: bool = True


class Recomputing(Protocol):
    """A module that gradients pass; on request, its layers are computed twice to save memory."""

    recomputed: bool


class TrainableDrafter(nn.Module):
    """The weights of a drafter while they are trained for one target, in fp32. A `Drafter` drafts with them.

    An untrained drafter is as lossless as any other. `progress` is the finished share of a training, from 0 to 1.
    """

    Drafter: ClassVar[type[TrainedDrafter]]
    PROBES: ClassVar[bool] = False  # whether a proposal is measured first, from shapes and the decoding model
    JOINT: ClassVar[Sequence[str]] = ()  # options of the forms that change the target

    def __init__(self, target: Target, options: Any) -> None:
        """Build the drafter without training. Raises UsageMistake for options that do not fit the target."""
        super().__init__()
        self.target, self.options = target, options
        self.adapters: Adapters | None = None
        self.progress = 1.0
        self._common = torch.zeros(0, dtype=torch.long, device=target.device)
        self.draft_from(0)

    def draft_from(self, vocabulary: int) -> None:
        """Limit drafts to `vocabulary` tokens, which `begin_training` chooses; 0 stands for all."""
        self.kept: torch.Tensor | None
        self.register_buffer("kept", torch.arange(vocabulary, device=self.target.device) if vocabulary else None)
        self.copy_head_rows()

    def copy_head_rows(self) -> None:
        """Set `shared` to the target's head, or to a copy of the head's rows for the draft vocabulary."""
        self.shared: Callable[..., torch.Tensor] = self.target.head  # neither trained nor saved
        if self.kept is not None:
            self.shared = self.target.transformer.head_of(self.kept)[0]

    @property
    def kind(self) -> str:
        """The name of the drafter's kind."""
        return self.Drafter.kind

    @property
    def depth(self) -> int:
        """The number of levels of a tree below the root."""
        return int(self.options.depth)

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch. Every depth is predicted in the same way as in drafting."""

    @classmethod
    def propose(
        cls,
        target: Target,
        previous: Sequence[DrafterCard] = (),
        decoding: Callable[[], DecodingTarget] | None = None,
        seconds: float = PROBE_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Proposed | None:
        """Return options that suit this target and machine; None if a kind has no proposal.

        `previous` are earlier drafters of this kind for this target. `decoding` loads the model as for replies (None:
        the target itself decodes). Measurements take about `seconds`.
        """
        return None

    def reads_states(self, distill: bool) -> bool:
        """Return whether the loss reads a text's states.

        With `distill` the labels are the target's distributions, which are made of states; otherwise the text.
        """
        return True

    @property
    def uses_readings(self) -> bool:
        """Whether the loss needs only saved outputs, `Places`, so that the target reads each text only once."""
        return False

    @property
    def starts_fitted(self) -> bool:
        """Whether `fit` sets good first weights. A high learning rate would then only make them worse."""
        return False

    def candidates(
        self, labels: Labels
    ) -> tuple[Callable[..., torch.Tensor], torch.Tensor | None, torch.Tensor | None]:
        """Return a head for only candidate tokens, these tokens' ids, and their columns in the draft vocabulary.

        On saved outputs, a training step's candidates are the likeliest tokens at each position and the most frequent
        tokens, if they can be drafted. That is twenty times as fast as a whole vocabulary, and as good. Otherwise the
        candidates are the whole draft vocabulary: columns are then None, as are ids if all tokens can be drafted.
        """
        if not self.training or not isinstance(labels, Likeliest):
            return self.shared, self.kept, None
        ids = columns = torch.unique(torch.cat([labels.ids[:, :CANDIDATES].flatten(), self._common]))
        if self.kept is not None:
            columns = torch.searchsorted(self.kept, ids).clamp(max=len(self.kept) - 1)
            in_vocabulary = self.kept[columns] == ids
            ids, columns = ids[in_vocabulary], columns[in_vocabulary]
        return self.target.transformer.head_of(ids)[0], ids, columns

    def fit(self, parts: Iterable[Places]) -> None:
        """Compute weights directly, without gradients, from the target's outputs `parts`, one for each batch.

        This is called before the first step, and only if the target's outputs are saved and not computed in each pass.
        """

    @property
    def gradient_share(self) -> float:
        """The share of the target's weights that gradients pass in training."""
        return float(self.changes_target)

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work that needs gradients, per token of texts of `length` tokens, excluding the target's own
        reading of the texts."""
        return GradientWork(float(self.depth))

    @property
    def weights_passed(self) -> int:
        """The number of weights that each token of a text passes with a gradient. Weights passed twice count twice.

        The target's own layers are not included: see `gradient_share`.
        """
        head = self.target.transformer.config
        trained: int = sum(
            weight.numel() for group in self.parameter_groups() for weight in group["params"] if weight.requires_grad
        )
        return trained + self.depth * head.vocab_size * head.hidden_size

    @property
    def transformers(self) -> Sequence[Recomputing]:
        """The transformers that gradients pass. Their layers may be computed twice to save memory."""
        return [self.target.transformer]

    @property
    def reads_layers(self) -> Sequence[int]:
        """The target's layers from which the loss reads a text's keys and values, computed without a gradient."""
        return ()

    @property
    def reads_inner(self) -> Sequence[int]:
        """The states of a text that the loss reads in addition to the last, by Hugging Face's indices."""
        return ()

    def outcome(
        self,
        right_after_right: Sequence[float],
        generated: float | None = None,
        decoding: Callable[[], DecodingTarget] | None = None,
    ) -> str:
        """Return a sentence that compares a finished training with the expectation; empty if there was no expectation.

        `right_after_right` [depth] is how often the likeliest token was right on held-out text if all before it were.
        `generated` is the tokens per forward on text that the model generated. `decoding` loads the model as for
        replies.
        """
        return ""

    @property
    def changes_target(self) -> bool:
        """Whether training changes the target. The drafter then belongs only to the changed target."""
        return self.adapters is not None

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Choose the most frequent tokens: as draft vocabulary, and as candidates of every step.

        frequencies [vocab_size] is how often each token occurs in the text.
        """
        self._common = most_frequent(frequencies, COMMON)
        if self.kept is not None:
            self.kept.copy_(most_frequent(frequencies, len(self.kept)))
            self.copy_head_rows()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return groups of trained parameters: `params`, and `lr_scale`, a factor of their learning rate."""
        return [{"params": list(self.parameters()), "lr_scale": 1.0}]

    def adapted_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's logits [..., vocab_size] of states, with the adapters of joint training."""
        assert self.adapters is not None
        return self.target.head(hidden, self.adapters.head)

    def adapted_states(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the target's states [texts, n, hidden_size] with the adapters of joint training; gradients flow."""
        assert self.adapters is not None
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        causal = positions[:, None] >= positions
        states: torch.Tensor = self.target.transformer(tokens, positions, causal, adapters=self.adapters)
        return states

    def for_changed(self, target: Target) -> Self:
        """Return this drafter for the changed target, after its adapters were merged into that target."""
        assert self.changes_target
        defaults = {option.name: option.default for option in fields(self.options) if option.name in self.JOINT}
        drafter = type(self)(target, replace(self.options, **defaults)).to(target.device)
        drafter.load_tensors(self.tensors())
        return drafter

    # -- weights ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the saved tensors by name: all except adapters that change the target."""
        state = self.state_dict()
        return {name: tensor.detach() for name, tensor in state.items() if not name.startswith("adapters.")}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the tensors that `tensors()` once returned. Raises the errors of `check_tensors`."""
        self.check_tensors(tensors)
        self.load_state_dict(dict(tensors), strict=False)  # a kind may have more than it saves
        self.copy_head_rows()

    def check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise LocalspecError if a tensor is missing, unknown, or of a wrong shape or type.

        Raise it also for a draft vocabulary with tokens that the model does not have.
        """
        check_tensors(_specs(self.tensors()), _specs(tensors))
        if (ids := tensors.get("kept")) is not None:
            check_vocabulary(int(ids.min()), int(ids.max()), self.target.transformer.config.vocab_size)

    def numbers(self) -> dict[str, Array]:
        """Return the saved tensors as numpy arrays, from which a `Drafter` is built."""
        return {
            name: (tensor.float() if tensor.is_floating_point() else tensor).numpy(force=True)
            for name, tensor in self.tensors().items()
        }

    def drafter(self, target: DraftableModel[Any] | None = None) -> TrainedDrafter:
        """Return a drafter with the present weights, for the same target in another backend."""
        return self.Drafter(target or self.target, self.options, self.numbers())


def _specs(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }


def most_frequent(frequencies: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` most frequent tokens, ascending. Of equally frequent tokens take the lowest ids.

    Tokenizers give the lowest ids to common tokens.
    """
    return frequencies.argsort(descending=True, stable=True)[:count].sort().values


def trainable_class(kind: str) -> type[TrainableDrafter]:
    """Return the class `Trainable` in the file of a kind."""
    class_: type[TrainableDrafter] = import_module(kind_of(kind).training_file).Trainable
    return class_


SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse_options(kind: str, words: Sequence[str]) -> dict[str, Any]:
    """Return options of the form NAME=VALUE, each in its own type. Raises UsageMistake."""
    types = {option.name: type(option.default) for option in fields(drafter_class(kind).Options)}
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageMistake(
                f"--option {word!r} must have the form NAME=VALUE; the options of {kind} are {', '.join(types)}."
            )
        if name in options:
            raise UsageMistake(f"--option {name} is given twice; give it once.")
        options[name] = _value(types.get(name, str), value)
    return options


def _value(type_: type, text: str) -> Any:
    """Return a text converted to this type. If that fails, return it unchanged: `make_drafter` reports the error."""
    if type_ is bool:
        return SWITCHES.get(text.lower(), text)
    try:
        return type_(text) if type_ in (int, float) else text
    except ValueError:
        return text


def make_drafter(kind: str, target: Target, options: Mapping[str, Any]) -> TrainableDrafter:
    """Return a new, untrained drafter. Raises UsageMistake for options that are impossible for this target."""
    class_ = trainable_class(kind)
    return class_(target, class_.Drafter.parse_options(options))


class ConvertedDrafter(NamedTuple):
    """A published drafter, ready to be saved: its kind, its options (a dataclass), and its tensors by our names."""

    kind: str
    options: Any
    weights: Mapping[str, torch.Tensor]

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the saved tensors, as `TrainableDrafter.tensors` does."""
        return self.weights


def save_drafter(drafter: TrainableDrafter | ConvertedDrafter, path: Path, about: Mapping[str, Any]) -> None:
    """Write a directory for `load_drafter`, atomically. `about` is added to drafter.json."""
    path.mkdir(parents=True, exist_ok=True)
    card = {"format": FORMAT, "kind": drafter.kind, "options": asdict(drafter.options), **about}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in drafter.tensors().items()}
    save_file(tensors, path / (WEIGHTS + ".new"), metadata={"format": "pt"})
    card[DIGEST] = file_digest(path / (WEIGHTS + ".new"))
    (path / (CARD + ".new")).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    for name in (WEIGHTS, CARD):
        (path / (name + ".new")).replace(path / name)
