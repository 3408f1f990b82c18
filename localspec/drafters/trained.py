"""The base classes of drafters with weights, and what these drafters share: options, tensors, stored states, trees.

A trained drafter is a directory: `drafter.json` describes it and the target it was made for, and `drafter.safetensors`
holds its weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar, Self

import numpy as np

from localspec.config import nearest
from localspec.decoding.calibration import Calibration
from localspec.decoding.compute import Array, Compute, DraftableModel, LinearLayer, RowModel, Rows
from localspec.decoding.drafter import Context, DrafterState, Step
from localspec.decoding.forward import ParkableCache, brought_back, set_aside
from localspec.decoding.logits import Candidate, Logits
from localspec.decoding.tree import DraftTree, best_first_tree, sampled_tree
from localspec.drafters.tensors import StoredTensors, TensorSpec, check_tensors
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.models.drafter_cards import RANKS, TRAIN_AGAIN, DrafterCard, remedy
from localspec.models.drafter_kinds import kind_of

QUIET = np.errstate(over="ignore", invalid="ignore")  # NaN and inf only lose the draft; no warning


def refuse_without_joint(kind: str, options: Any, names: Sequence[str]) -> None:
    """Raise UsageMistake if an option that works only with joint training was given without `joint`.

    `names` are the names of such options.
    """
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in names and value != option.default and not options.joint:
            raise UsageMistake(
                f"{option.name} = {value!r} of {kind} has no effect without joint; give both or neither."
            )


def check_options(kind: str, options: Any, checks: Sequence[tuple[str, object, str]]) -> None:
    """Raise UsageMistake for the first option of a drafter that has an impossible value.

    Each check is the name of an option, whether its value is possible, and the possible values in words.
    """
    for name, possible, hint in checks:
        if not possible:
            value = shortened(getattr(options, name))
            raise UsageMistake(f"{name} = {value} of {kind} is not possible; give {hint}.")


def bytes_of(*parts: Any) -> int:
    """Return the bytes of a drafter's parts together; None stands for a missing part."""
    return sum(int(part.nbytes) for part in parts if part is not None)


FREQUENT, LARGE = 2**13, 2**15  # tokens of a draft vocabulary, and of the smallest vocabulary that is shortened


def draft_vocabulary(count: int, vocab_size: int) -> int:
    """Return how many tokens a drafter proposes; 0 means all. `count` is this number, or -1 for the default.

    A head over all tokens would be most of the bytes that a draft reads. Raises UsageMistake for more tokens than the
    model has.
    """
    if count > vocab_size:
        raise UsageMistake(f"vocabulary = {count} is more than the model's {vocab_size} tokens; give fewer.")
    return count if count >= 0 else FREQUENT if vocab_size > LARGE else 0


def check_vocabulary(least: int, most: int, vocab_size: int, what_to_do: str = TRAIN_AGAIN) -> None:
    """Raise LocalspecError if a drafter proposes ids that the model does not have. The message ends in `what_to_do`.

    `least` and `most` are the smallest and the largest id that the drafter proposes.
    """
    if least < 0 or most >= vocab_size:
        raise LocalspecError(f"The draft vocabulary ('kept') has tokens that the model does not have; {what_to_do}.")


class DraftVocabulary:
    """The tokens that a drafter proposes: the ids in its tensor `kept` [tokens], or all ids."""

    def __init__(self, target: DraftableModel[Any], tensors: Mapping[str, Array], shared: bool = True) -> None:
        """Read the ids of the proposed tokens. With `shared`, copy the rows of the target's head for these tokens."""
        self.ids: Array | None = tensors.get("kept")
        self._target = target
        self.rows: LinearLayer | None = None  # a copy of the target's head, if it is shared
        if self.ids is not None and shared:
            self.rows = target.compute.target.head_rows(self.ids.tolist())

    @property
    def nbytes(self) -> int:
        """Bytes of the copied rows of the target's head."""
        return 0 if self.rows is None else self.rows.nbytes

    def head(self, states: Rows) -> Rows:
        """Return the target's logits [rows, tokens] of states after the final norm."""
        return (self.rows or self._target.compute.target.head)(states)

    def whole(self, logits: Rows) -> Rows:
        """Return logits of the whole vocabulary [rows, vocab_size], with -inf for tokens that the drafter does not
        propose."""
        if self.ids is None:
            return logits
        return self._target.compute.at_columns(logits, self.ids, self._target.vocab_size)


class Features:
    """A store of the target's states after the final norm, one per token (EAGLE).

    A token's feature is the state that predicted it, one position before it. The first token's feature is zeros.
    """

    layers: Sequence[int] = ()  # layers whose states are read in addition to the last, as in `Drafter.target_layers`

    def __init__(self, compute: Compute) -> None:
        self._compute, self._rows = compute, list[Rows]()
        self._first = self.zeros(1)  # of the first token

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored rows."""
        return sum(int(row.nbytes) for row in self._rows)

    def observe(self, step: Step) -> None:
        """Store the states of the rows that are now in the target's cache."""
        rows = self.of(step)
        self._rows += [rows[row : row + 1] for row in range(len(rows))]

    def of(self, step: Step) -> Rows:
        """Return the rows [rows, channels] that are stored for a step."""
        return step.hidden.rows

    def truncate(self, length: int) -> None:
        """Discard the features of tokens after the first `length`."""
        del self._rows[length:]

    def hand_over(self) -> Sequence[Rows]:
        """Return the stored rows and store none afterwards."""
        rows, self._rows = self._rows, []
        return rows

    def resume(self, rows: Sequence[Rows]) -> None:
        """Store these rows, which another instance handed over."""
        self._rows = list(rows)

    def of_tokens(self, start: int, count: int) -> Rows:
        """Return the features of the tokens [start, start + count), [count, channels]."""
        first = [self._first] if start == 0 else []
        return self._compute.concat([*first, *self._rows[max(start - 1, 0) : start + count - 1]])

    def zeros(self, rows: int) -> Rows:
        """Return features of zeros, [rows, channels]."""
        return self._compute.rows(np.zeros((rows, self._compute.target.sizes.hidden_size), np.float32))


class TrainedDrafter(ABC):
    """A drafter with weights, made for one target. `Options` is a frozen dataclass of its options.

    It computes on the target's backend, in the precision of the target's activations. `accuracies` [depth][rank] is how
    often the candidate of that rank was right on held-out text, if that was measured. A drafter may store states of the
    target in `_features`. It may also have a `_model` that reads the text itself, with a `_cache`.
    """

    kind: ClassVar[str]
    Options: ClassVar[type]
    BEFORE: ClassVar[Mapping[str, Any]] = {}  # values for files written before the option existed
    _features: Features | None = None
    _model: RowModel | None = None
    _cache: ParkableCache | None = None

    def __init__(self, target: DraftableModel[Any], options: Any, tensors: Mapping[str, Array]) -> None:
        """Build the drafter. `tensors` are the tensors that `tensor_specs` lists, in fp32 if floating-point; each is
        read once."""
        self.target, self.options, self.compute = target, options, target.compute
        self.calibration = Calibration()
        self.accuracies: Sequence[Sequence[float]] = ()

    @classmethod
    @abstractmethod
    def tensor_specs(cls, target: DraftableModel[Any], options: Any) -> dict[str, TensorSpec]:
        """List the tensors of a drafter with these options, by their names in files, without allocating them.

        Raises UsageMistake for options that do not fit the target.
        """

    @property
    def depth(self) -> int:
        """Levels of the drafter's trees, not counting the root."""
        return int(self.options.depth)

    @property
    def target_layers(self) -> Sequence[int]:
        """The target's states that the drafter reads, as in `Drafter.target_layers`; mostly only the last."""
        return () if self._features is None else self._features.layers

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the drafter."""

    def observe(self, step: Step) -> None:
        """Observe a step, as `Drafter.observe` does: calibrate the last draft, and store features of the rows that are
        now in the target's cache."""
        self.calibrate(step)
        if self._features is not None:
            self._features.observe(step)

    def calibrate(self, step: Step) -> None:  # noqa: B027  # not every drafter is calibrated
        """Calibrate the confidence of the last draft along the committed text."""

    @abstractmethod
    def draft(self, context: Context) -> DraftTree:
        """Return a tree of at most `context.nodes` nodes below the root, as `Drafter.draft` does."""

    def rewind(self, length: int) -> None:
        """Discard everything after the first `length` tokens. Earlier keys, values and features stay valid."""
        if self._cache is not None:
            self._cache.truncate(min(self._cache.length, length))
        if self._features is not None:
            self._features.truncate(length)
        self.forget_draft()

    def forget_draft(self) -> None:  # noqa: B027  # likewise
        """Discard the last draft's candidates without learning from them."""

    def hand_over(self) -> DrafterState:
        """Return the state for the text, as `Drafter.hand_over` does.

        That state is the cache of `_model` and the features, if there are any. The drafter computes all other values
        again from the features.
        """
        cache = None
        if self._model is not None and self._cache is not None:
            cache, self._cache = set_aside(self._cache, self._model.cache)
        state = DrafterState(cache, () if self._features is None else self._features.hand_over())
        self.rewind(0)
        return state

    def resume(self, state: DrafterState, tokens: Sequence[int]) -> None:
        """Continue from a state, as `Drafter.resume` does."""
        if self._cache is not None:
            assert state.cache is not None
            self._cache = brought_back(state.cache, self._cache)
        if self._features is not None:
            self._features.resume(state.features)

    @classmethod
    def parse_options(cls, options: Mapping[str, Any]) -> Any:
        """Return these options as `Options`. Raises UsageMistake for an unknown name or an impossible value."""
        defaults = {option.name: option.default for option in fields(cls.Options)}
        for name, value in options.items():
            if name not in defaults:
                raise UsageMistake(
                    f"{cls.kind} has no option {name!r}{nearest(name, defaults)}; it has {', '.join(defaults)}."
                )
            if not _fits_type(value, type(defaults[name])):
                raise UsageMistake(f"{name} = {shortened(value)} of {cls.kind} must be {_possible(defaults[name])}.")
        return cls.Options(**options)


class OfModel(ABC):
    """A base class of drafters that are read from a published language model: from its MTP layer, or all of it."""

    @classmethod
    @abstractmethod
    def from_model(cls, path: Path, target: DraftableModel[Any], depth: int | None = None) -> Self:
        """Return the drafter of a model's files; `depth` is the requested number of tokens of a draft."""


def _possible(default: object) -> str:
    """Return in words what an option with this default may be: `a whole number, such as 4`."""
    match default:
        case bool():
            return "true or false"
        case int():
            return f"a whole number, such as {default}"
        case float():
            return f"a number, such as {default}"
    return f"text, such as {default!r}" if default else "text"


def _fits_type(value: object, type_: type) -> bool:
    """Return whether a value is possible for an option of this type; a float may also be an integer without loss."""
    if isinstance(value, bool) or type_ is bool:
        return isinstance(value, bool) and type_ is bool
    return isinstance(value, type_) or (type_ is float and isinstance(value, int) and abs(value) < 2**53)


class ParallelDrafter(TrainedDrafter):
    """A trained drafter that predicts all depths at once: the candidates of a depth do not depend on their parents."""

    def __init__(self, target: DraftableModel[Any], options: Any, tensors: Mapping[str, Array]) -> None:
        super().__init__(target, options, tensors)
        self._candidates: Sequence[Sequence[Candidate]] = ()  # of the last draft, by depth
        self._greedy = True

    def build_tree(self, context: Context, logits: Logits, width: int = RANKS, ids: Array | None = None) -> DraftTree:
        """Return the likeliest tree by logits [depths, tokens], or a sampled tree for the rule `rejection`.

        `ids` are the tokens of the logits' columns (None: all); the rule `rejection` needs logits of all tokens. Each
        depth has `width` candidates. With a width of 1, or for a target that reads only chains, the tree is a chain.
        """
        sampling, nodes = context.sampling, context.nodes
        if not self.target.branches:
            width, nodes = 1, min(nodes, len(logits))
        if sampling.rule == "rejection":
            return sampled_tree(context.root, logits, nodes, sampling, len(context.committed), self.kind)
        levels = logits.candidates(self.positions(context, logits), min(nodes, width), sampling, ids)
        self._candidates, self._greedy = levels, sampling.greedy
        chances = [
            self.calibration.chances(level, depth, sampling.greedy) for depth, level in enumerate(levels, start=1)
        ]
        return best_first_tree(context.root, chances, nodes, self.kind)

    @staticmethod
    def positions(context: Context, logits: Logits) -> range:
        """Return the positions of the tokens that the rows of logits predict."""
        return range(len(context.committed), len(context.committed) + len(logits))

    def calibrate(self, step: Step) -> None:
        """Calibrate the confidence of the last draft, at each depth down to the bonus token's."""
        if step.tree is not None:
            for depth, (level, token) in enumerate(zip(self._candidates, step.committed, strict=False), start=1):
                self.calibration.learn(level, depth, self._greedy, token)
        self.forget_draft()

    def forget_draft(self) -> None:
        """Discard the last draft's candidates without learning from them."""
        self._candidates = ()


# -- loading -----------------------------------------------------------------------------------------------------------

CARD, WEIGHTS = "drafter.json", "drafter.safetensors"


def drafter_class(kind: str) -> type[TrainedDrafter]:
    """Return the class `Drafter` in the file of a kind with weights."""
    class_: type[TrainedDrafter] = import_module(kind_of(kind).file).Drafter
    return class_


def load_drafter(
    card: DrafterCard,
    target: DraftableModel[Any],
    calibration: Calibration | None = None,
    depth: int | None = None,
    reporter: Reporter | None = None,
) -> TrainedDrafter:
    """Return the trained drafter of a directory, with the calibration from earlier replies, if there is one.

    `depth` is the requested number of tokens of a draft; only a published language model uses it. Raises LocalspecError
    if the drafter is damaged, missing, or does not fit the target. A published small language model that does not fit
    raises UsageMistake. Problems with a cached packed form go to the `reporter`.
    """
    class_, file = drafter_class(card.kind), card.path / WEIGHTS
    drafter: TrainedDrafter
    if issubclass(class_, OfModel) and not (card.path / CARD).is_file():  # a published language model
        drafter = class_.from_model(card.path, target, depth)
    else:
        tensors = StoredTensors(file)
        try:
            options = class_.parse_options({**class_.BEFORE, **card.options})
            # A few bytes of drafter.json can ask for any amount of memory: check before allocating.
            check_tensors(class_.tensor_specs(target, options), tensors.specs(), remedy(file))
            if (ids := tensors.get("kept")) is not None:
                check_vocabulary(int(ids.min()), int(ids.max()), target.vocab_size, remedy(file))
            stored = target.compute.stored(file, tensors, card.revision, reporter or Reporter())
            drafter = class_(target, options, stored)
        except UsageMistake as mistake:
            raise LocalspecError(f"{card.path / CARD} cannot be used: {mistake}") from None
        except LocalspecError as error:
            raise LocalspecError(f"{file} cannot be used: {error}") from None
        drafter.accuracies = card.about.get("accuracy_by_depth", ())
    if calibration is not None:
        drafter.calibration = calibration
    return drafter
