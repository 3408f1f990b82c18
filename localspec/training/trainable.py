"""The base class of all drafters with weights, while they are trained: their losses, and how they are saved."""

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

    `tokens` [texts, n] are token ids. `loss_mask` bool [texts, n] marks the tokens to predict: replies and their end
    marks, never padding. `hidden` [texts, n, hidden_size] are the target's hidden states after its final norm, in the
    precision of inference; [texts, n, 0] if the loss reads none. With `distill`, the labels are the target's
    probabilities, otherwise the tokens of the text.

    Each of the last three fields is only set for kinds of drafters that read it. `prefix` has the texts' keys and
    values in some layers. `inner` [texts, n, places * hidden_size] are hidden states of inner layers. `places` are
    saved outputs of the target, for kinds that need nothing else.
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
        """Return the target's outputs for these texts as `Places`, in the form of saved outputs.

        Drafts have `depth` tokens. `states` [texts, n, hidden_size] are the hidden states of all positions. With
        `distill`, the labels are made from `teacher_states`, which have the same shape.
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
    """The loss to minimise, a mean over tokens, and how well each depth of a draft was predicted.

    Some kinds of drafters also report `chains` [depth, 2]. Its second column counts the drafts whose first candidates
    were right at all earlier depths. Its first column says how many of these were right at this depth, too.
    """

    loss: torch.Tensor
    depth_losses: Sequence[DepthLoss]
    chains: torch.Tensor | None = None


@dataclass(frozen=True)
class GradientWork:
    """The part of a training step that needs gradients: the rows per token of a text, and how many layers each row
    passes.

    If `layers` is 0, only heads compute. A row then keeps `vectors` vectors of hidden_size in memory for the backward
    pass. The outputs of heads, mainly logits, do not count, because only a few rows of them exist at a time.
    """

    rows: float
    layers: int = 0
    vectors: int = 4


CANDIDATES, COMMON = 16, 2048  # of a place, and the most common tokens: a step learns to distinguish these
PROBE_SECONDS = 120.0  # of measuring for a proposal, at most


class Proposed(NamedTuple):
    """Drafter options that suit a target and a machine, and a sentence that explains them.

    `pays` says whether the drafter should be faster than plain decoding.
    """

    options: dict[str, Any]
    sentence: str
    pays: bool = True


class Recomputing(Protocol):
    """A module that can save memory: if `recomputed` is set, the backward pass computes its layers again."""

    recomputed: bool


class TrainableDrafter(nn.Module):
    """A drafter while it is trained for one target, in fp32. A `Drafter` with the same weights makes the drafts.

    Even an untrained drafter is lossless. `progress` is the finished share of the training, from 0 to 1.
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
        """Limit drafts to a vocabulary of this many tokens, which `begin_training` chooses. 0 means all tokens."""
        self.kept: torch.Tensor | None
        self.register_buffer("kept", torch.arange(vocabulary, device=self.target.device) if vocabulary else None)
        self.copy_head_rows()

    def copy_head_rows(self) -> None:
        """Set `shared` to the target's head, or to a copy of only those rows that the draft vocabulary needs."""
        self.shared: Callable[..., torch.Tensor] = self.target.head  # neither trained nor saved
        if self.kept is not None:
            self.shared = self.target.transformer.head_of(self.kept)[0]

    @property
    def kind(self) -> str:
        """The name of the drafter's kind."""
        return self.Drafter.kind

    @property
    def depth(self) -> int:
        """The number of levels of a draft tree below its root."""
        return int(self.options.depth)

    @abstractmethod
    def loss(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch. Each depth of a draft is predicted in the same way as in decoding."""

    @classmethod
    def propose(
        cls,
        target: Target,
        previous: Sequence[DrafterCard] = (),
        decoding: Callable[[], DecodingTarget] | None = None,
        seconds: float = PROBE_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Proposed | None:
        """Return options that suit this target and machine; None if this kind of drafter proposes nothing.

        `previous` are earlier drafters of this kind for this target. `decoding` loads the model as for replies; if it
        is None, the target itself decodes. Measurements take about `seconds`.
        """
        return None

    def reads_states(self, distill: bool) -> bool:
        """Return whether the loss reads the target's final hidden states.

        With `distill`, the labels are the target's probabilities, which are computed from these states.
        """
        return True

    @property
    def uses_readings(self) -> bool:
        """Whether the loss needs only saved outputs (`Places`), so that the target reads each text only once."""
        return False

    @property
    def starts_fitted(self) -> bool:
        """Whether `fit` computes good first weights. A high learning rate would then only spoil them."""
        return False

    def candidates(
        self, labels: Labels
    ) -> tuple[Callable[..., torch.Tensor], torch.Tensor | None, torch.Tensor | None]:
        """Return a head that computes only candidates' logits, their ids, and their columns in the draft vocabulary.

        In a training step on saved outputs, the candidates are the likeliest tokens at each position and the most
        frequent tokens, as far as they can be drafted. That is twenty times as fast as a whole vocabulary, and as good.
        Otherwise they are the whole draft vocabulary, with None for the columns, and with None for the ids if every
        token can be drafted.
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
        """Compute first weights directly, for example by least squares. `parts` are the target's outputs, by batch.

        This is called before the first step, and only if the target's outputs are saved.
        """

    @property
    def gradient_share(self) -> float:
        """The share of the target's weights through which gradients flow in training."""
        return float(self.changes_target)

    def gradient_work(self, length: int) -> GradientWork:
        """Return the work per token that needs gradients, in texts of `length` tokens, without the target's own."""
        return GradientWork(float(self.depth))

    @property
    def weights_passed(self) -> int:
        """The number of weights through which each token's gradients flow. A weight used twice counts twice.

        The target's own layers are not included; see `gradient_share`.
        """
        head = self.target.transformer.config
        trained: int = sum(
            weight.numel() for group in self.parameter_groups() for weight in group["params"] if weight.requires_grad
        )
        return trained + self.depth * head.vocab_size * head.hidden_size

    @property
    def transformers(self) -> Sequence[Recomputing]:
        """The transformers through which gradients flow. Their layers can be recomputed to save memory."""
        return [self.target.transformer]

    @property
    def reads_layers(self) -> Sequence[int]:
        """The indices of the target's layers whose keys and values the loss reads. They get no gradients."""
        return ()

    @property
    def reads_inner(self) -> Sequence[int]:
        """The inner hidden states of the target that the loss reads, as indices in Hugging Face's `hidden_states`."""
        return ()

    def outcome(
        self,
        right_after_right: Sequence[float],
        generated: float | None = None,
        decoding: Callable[[], DecodingTarget] | None = None,
    ) -> str:
        """Return a sentence that compares the training's result with what was expected; empty if nothing was expected.

        `right_after_right` [depth] is how often the first candidate was right on held-out text, if all before it were
        right. `generated` is the number of tokens per forward pass, on text that the model generated. `decoding` loads
        the model as for replies.
        """
        return ""

    @property
    def changes_target(self) -> bool:
        """Whether training changes the target model. The drafter then works only with the changed target."""
        return self.adapters is not None

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Choose the most frequent tokens, as draft vocabulary and as candidates in every step.

        `frequencies` [vocab_size] is how often each token occurs in the text.
        """
        self._common = most_frequent(frequencies, COMMON)
        if self.kept is not None:
            self.kept.copy_(most_frequent(frequencies, len(self.kept)))
            self.copy_head_rows()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return groups of trained weights, `params`, each with `lr_scale`, the factor of its learning rate."""
        return [{"params": list(self.parameters()), "lr_scale": 1.0}]

    def adapted_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's logits [..., vocab_size] for hidden states, with the adapters of joint training."""
        assert self.adapters is not None
        return self.target.head(hidden, self.adapters.head)

    def adapted_states(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the target's hidden states [texts, n, hidden_size], computed with its adapters and with gradients."""
        assert self.adapters is not None
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        causal = positions[:, None] >= positions
        states: torch.Tensor = self.target.transformer(tokens, positions, causal, adapters=self.adapters)
        return states

    def for_changed(self, target: Target) -> Self:
        """Return this drafter for the changed target, into which the adapters were merged."""
        assert self.changes_target
        defaults = {option.name: option.default for option in fields(self.options) if option.name in self.JOINT}
        drafter = type(self)(target, replace(self.options, **defaults)).to(target.device)
        drafter.load_tensors(self.tensors())
        return drafter

    # -- weights ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to save, by name. Adapters that change the target are not among them."""
        state = self.state_dict()
        return {name: tensor.detach() for name, tensor in state.items() if not name.startswith("adapters.")}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load tensors that `tensors()` returned. Raises the errors of `check_tensors`."""
        self.check_tensors(tensors)
        self.load_state_dict(dict(tensors), strict=False)  # a kind may have more than it saves
        self.copy_head_rows()

    def check_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise LocalspecError if a tensor is missing or unknown, or has the wrong shape or type.

        Also raise it for a draft vocabulary with token ids that the target does not have.
        """
        check_tensors(_specs(self.tensors()), _specs(tensors))
        if (ids := tensors.get("kept")) is not None:
            check_vocabulary(int(ids.min()), int(ids.max()), self.target.transformer.config.vocab_size)

    def numbers(self) -> dict[str, Array]:
        """Return the tensors to save as numpy arrays, from which a `Drafter` can be built."""
        return {
            name: (tensor.float() if tensor.is_floating_point() else tensor).numpy(force=True)
            for name, tensor in self.tensors().items()
        }

    def drafter(self, target: DraftableModel[Any] | None = None) -> TrainedDrafter:
        """Return a `Drafter` with the present weights. `target` may be the same model in another backend."""
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
    """Return the class `Trainable` from the file of a kind of drafter."""
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
    """Return the text converted to this type, or unchanged if that fails: `make_drafter` then reports the error."""
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
        """Return the tensors to save, as `TrainableDrafter.tensors` does."""
        return self.weights


def save_drafter(drafter: TrainableDrafter | ConvertedDrafter, path: Path, about: Mapping[str, Any]) -> None:
    """Write a drafter's tensors and drafter.json into a directory, atomically. `about` is added to drafter.json."""
    path.mkdir(parents=True, exist_ok=True)
    card = {"format": FORMAT, "kind": drafter.kind, "options": asdict(drafter.options), **about}
    tensors = {name: tensor.contiguous().cpu() for name, tensor in drafter.tensors().items()}
    save_file(tensors, path / (WEIGHTS + ".new"), metadata={"format": "pt"})
    card[DIGEST] = file_digest(path / (WEIGHTS + ".new"))
    (path / (CARD + ".new")).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    for name in (WEIGHTS, CARD):
        (path / (name + ".new")).replace(path / name)
