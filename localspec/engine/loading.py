"""Loads the parts of a chosen model: target, trained drafters, draft model, and the drafter of the target's layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.choosing.choice import Choice, LoadSpec
from localspec.choosing.cost import CONTEXT, ForwardCostModel
from localspec.choosing.drafters import Acceptance, speed
from localspec.choosing.measure import LAYERS, MeasurementCache, Quantity
from localspec.choosing.plans import AUTO_NODES
from localspec.decoding.calibration import Calibration
from localspec.decoding.drafter import Drafter
from localspec.decoding.exactness import Exactness
from localspec.decoding.forward import nan_words
from localspec.decoding.measuring import Measuring, finished
from localspec.decoding.tree import DraftTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.layers import Layers, probing_layers
from localspec.drafters.merged import Merged
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.trained import TrainedDrafter, load_drafter
from localspec.engine.assemble import LoadedDraftModel, replying
from localspec.engine.backends import Target, open_target
from localspec.engine.model_profile import CHECKING, ModelProfile, progress_texts
from localspec.engine.trials import settle_step_form
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake, fits_or
from localspec.events import Reporter
from localspec.machine.memory import free_memory
from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import WITH_PHRASES, drafting_kinds, kind_of
from localspec.models.s3d_prediction import MeasuredLayers, share, symmetric
from localspec.models.shape import Shape
from localspec.models.small_model import compare_tokens
from localspec.quantities import distinct, gib


def load_target(choice: LoadSpec, reporter: Reporter, share_with: Target | None = None) -> Target:
    """Load the target of a choice, in the precision and on the device that the choice names.

    `share_with` is a model that never computes at the same time, so that both can share threads. Raises DoesNotFit, and
    LocalspecError for a broken model.
    """
    free = free_memory(choice.device)
    if choice.loaded_bytes > free:  # otherwise the system would end some process, probably this one
        needed, left = distinct(gib, choice.loaded_bytes, free)
        raise DoesNotFit(
            f"{choice.target.name} needs {needed} GiB of memory and {left} GiB are free on {choice.device}; close "
            "other programs, or choose a smaller model."
        )
    with fits_or(f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."):
        return open_target(choice, reporter, share_with)


def known_exactness(choice: Choice, target: Target, profile: ModelProfile) -> Exactness:
    """Return how exactly this target computes draft trees: the saved result, or the result of a self-test now.

    The native engine is tested now only if `choice.exact` is set; otherwise the result is `unchecked`, and the test
    follows later. Torch needs the result to decide how rows are computed. Raises UsageMistake if `choice.exact` is
    impossible.
    """
    widest = widest_tree(choice)
    exactness = profile.exactness(target, widest)
    if exactness is None and choice.engine == "native" and not choice.exact:
        return Exactness.unchecked(widest)
    if exactness is None:
        exactness = finished(
            progress_texts(CHECKING, profile.checking(choice, target, widest)), profile.reporter.progress
        )
    if choice.exact and not exactness.bitwise:
        raise UsageMistake(
            f"{choice.target.name} cannot be exact bit for bit in {choice} on {choice.device}: its "
            f"logits differ by up to {exactness.largest:.1e} of the largest; try another precision, or leave --exact "
            "out."
        )
    return exactness


def widest_tree(choice: Choice) -> int:
    """Return the most rows of a tree that the self-test checks: the root and `choice.nodes`, at least `AUTO_NODES`."""
    return max(choice.nodes, AUTO_NODES) + 1


def load_trained(choice: Choice, target: Target, profile: ModelProfile) -> list[TrainedDrafter]:
    """Return the trained drafters of a choice, with the calibrations from earlier replies."""
    depth = choice.nodes if choice.fixed else None
    return [
        load_drafter(card, target, profile.recall(calibration_of(card)), depth, profile.reporter)
        for card in choice.trained
    ]


def calibration_of(card: DrafterCard | None) -> Quantity[Calibration]:
    """Return the name and JSON form for saving a drafter's calibration. None stands for the drafter `layers`."""
    return _calibration(f"{card.kind} {card.bytes} {card.path}" if card else "layers")


def _calibration(subject: str) -> Quantity[Calibration]:
    return Quantity(f"calibration of {subject}", Calibration.from_json, Calibration.as_json)


def calibrated(
    drafter: Drafter, choice: Choice, profile: ModelProfile
) -> list[tuple[Quantity[Calibration], Calibration]]:
    """Return the calibrations of all drafters within `drafter`, each with the name and JSON form for saving it.

    First load the saved ones of phrases, the draft model and merged drafters. Trained drafters already have theirs.
    """
    calibrations: list[tuple[Quantity[Calibration], Calibration]] = []

    def take(part: WithPhrases | DraftModel | Merged, subject: str) -> None:
        part.calibration = profile.recall(_calibration(subject)) or part.calibration
        calibrations.append((_calibration(subject), part.calibration))

    if isinstance(drafter, WithPhrases):
        take(drafter, "phrases")
        drafter = drafter.inner
    if isinstance(drafter, DraftModel) and choice.draft:
        take(drafter, f"{kind_of(choice.drafter).name} {choice.draft.target.path}")
    if isinstance(drafter, Merged):
        cards = " and ".join(f"{card.kind} {card.bytes} {card.path}" for card in choice.trained)
        take(drafter, f"{choice.drafter.removesuffix(WITH_PHRASES)} of {cards}")
    parts = drafter.drafters if isinstance(drafter, Merged) else [drafter]
    trained = [part for part in parts if isinstance(part, TrainedDrafter)]
    calibrations += [
        (calibration_of(card), part.calibration) for card, part in zip(choice.trained, trained, strict=True)
    ]
    return calibrations


def load_draft_model(draft: LoadSpec | None, target: Target, cache: MeasurementCache) -> LoadedDraftModel | None:
    """Return the draft model of a choice, if there is one, with the costs of its forwards.

    Raises DoesNotFit, UsageMistake if its tokens are not the target's, LocalspecError for a broken model.
    """
    if draft is None:
        return None
    model = load_target(draft, cache.reporter, target)
    if model.tokenizer.backend is not target.tokenizer.backend or model.vocab_size < target.vocab_size:
        compare_tokens(model.tokenizer, model.vocab_size, target.tokenizer, draft.target.path)
    profile = ModelProfile.of(draft, cache)
    settle_step_form(draft.device, model, cache, profile.subject)
    if not model.forward(DraftTree.chain([0] * 4), model.cache(4), last=True).logits.finite():
        raise LocalspecError(nan_words(f"The draft model {draft.target.name}", model))
    return LoadedDraftModel(model, profile, profile.costs(draft, model))


PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a short letter to a friend about a rainy day.",
    "Explain in a few sentences why the sky is blue.",
    "List the planets of the solar system in order.",
    "Write a Python function that returns the longest word of a sentence.",
)
LONGEST = 8  # forwards of one draft
MOST_READS = 600  # reads with some of the layers in one probe
GUESSED = (0.5, 0.1, 0.05, 0.03)  # acceptance rate of candidates before a probe, by rank


@dataclass(frozen=True)
class _Flat:
    """A cost model for trees of a fixed size: each forward costs 1, whatever its number of rows."""

    def at(self, rows: int, context: int) -> float:
        return 1.0


def probing(target: Target, profile: ModelProfile) -> Measuring[list[MeasuredLayers]]:
    """Search for the layers that draft best in replies of the target, and save the result.

    Yield after each of at most `MOST_READS` forwards through some of the layers. The result is empty if the context is
    too short for a reply.
    """
    replies = yield from replying(target, PROMPTS)
    layers = (yield from probing_layers(target, replies, MOST_READS)) if replies else []
    if layers:
        profile.remember(LAYERS, layers)
    return layers


def load_layers(choice: Choice, target: Target, profile: ModelProfile, costs: ForwardCostModel | None) -> Layers | None:
    """Return the drafter of the target's own layers, if it was chosen; otherwise None.

    It uses the layers that a search has found, or else `outer_layers`. Raises UsageMistake if the model has only one
    layer, or a layer that cannot draft without the other layers.
    """
    if all(kind.takes != "probe" for kind in drafting_kinds(choice.drafter)):
        return None
    target.compute.target.sizes.need_layers_alone("layers")
    count = target.compute.target.sizes.num_layers
    if count < 2:
        raise UsageMistake("--drafter layers needs a model of several layers; use another drafter.")
    drafter = Layers(target, outer_layers(count), choice.fixed)
    if layers := profile.recall(LAYERS):
        take_best(drafter, target, layers, choice, costs)
    drafter.calibration = profile.recall(calibration_of(None)) or drafter.calibration
    return drafter


def take_best(
    drafter: Layers, target: Target, layers: Sequence[MeasuredLayers], choice: Choice, costs: ForwardCostModel | None
) -> None:
    """Let the drafter use those of the measured sets of layers that are expected to be fastest on this machine."""
    shape = Shape.of(target.config.content)
    assert shape is not None
    drafter.take(best_layers(layers, shape, costs or _Flat(), choice.nodes))


def best_layers(layers: Sequence[MeasuredLayers], shape: Shape, costs: ForwardCostModel, limit: int) -> MeasuredLayers:
    """Return the set of layers with the most expected tokens/s, with trees of up to `limit` nodes.

    A draft runs γ forwards through the share β of the model, so it takes as long as γβ plain steps (S3D, eq. 12, but
    with γ passes, not one).
    """
    head, plain = shape.embedding / shape.layer, costs.at(1, CONTEXT)

    def promised(candidate: MeasuredLayers, forwards: int) -> float:
        each = share(shape.num_layers, len(candidate.layers), head) * plain
        acceptance = Acceptance(candidate.gains(forwards), "")
        return speed(costs, acceptance, lambda nodes: min(nodes, forwards) * each, limit)[0]

    return max(layers, key=lambda candidate: max(promised(candidate, forwards) for forwards in range(1, LONGEST + 1)))


def outer_layers(count: int) -> MeasuredLayers:
    """Return the layers to draft with before a search has found better ones: the outer three quarters of all layers.

    Their acceptance rate is a guess, which the drafter corrects while it drafts.
    """
    return MeasuredLayers(symmetric(count, max(1, count - -(-count // 4))), GUESSED)
