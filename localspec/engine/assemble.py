"""Builds the chosen drafter from its parts: trained weights, a small model, phrases and hyperparameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Self

from localspec.choosing.choice import Choice
from localspec.choosing.cost import CurrentCosts, ForwardCostModel, StepCosts
from localspec.choosing.measure import Quantity
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.measuring import Measuring, MeasuringProgress, finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.merged import Merged
from localspec.drafters.ouroboros_tuning import Exchange, Workload, searching, starting
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool, PhraseReader
from localspec.engine.backends import Target
from localspec.engine.model_profile import ModelProfile
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.models.drafter_kinds import WITH_PHRASES, kind_of
from localspec.models.registry import TargetCard, reference
from localspec.repetition import until_it_goes_round
from localspec.store.database import StoreTrouble
from localspec.store.phrases import Phrase
from localspec.store.store import Store

QUESTIONS = (  # of all kinds: a small model's acceptance depends more on the text than on the place in a reply
    "Write a Python function that returns the longest word of a sentence, and say how it works.",
    "A train has 8 carriages with 46 seats each, and 125 seats are taken. How many are free?",
    "Tell me a short story about a heron that is afraid of water.",
    "What causes the tides, and why are there two a day?",
    "Write a short letter to a landlord about a window that does not close.",
    "Translate into German: The shop opens at nine, but the baker is there at four.",
    "Give me six things to check before a long journey by bicycle.",
    "Summarise: The council met on Monday. It agreed to close the old bridge for two years, and to run a free ferry "
    "from May on. Shops near the bridge fear for their trade.",
    "Rewrite this more politely: Send me the figures today, you are late again.",
    "List the names and cities in this text: Ana Duarte moved from Porto to Ghent, where she met Piet Maes.",
    "How does a lighthouse differ from a lightship?",
    "Complete this poem: The kettle hums, the window clears,",
)
REPLY = 24  # tokens of the replies used to search hyperparameters


@dataclass(frozen=True)
class LoadedDraftModel:
    """A loaded draft model, its measurements, and the costs of its forwards."""

    target: Target
    profile: ModelProfile
    costs: CurrentCosts


def drafter_of(
    choice: Choice,
    target: Target,
    pool: PhrasePool,
    loaded: Sequence[Drafter],
    small: LoadedDraftModel | None,
    hyperparameters: Hyperparameters,
) -> Drafter:
    """Build the drafter that `choice.drafter` names, such as "medusa+phrases". Several loaded drafters are merged.

    `loaded` are the drafters that were loaded before: trained ones, and the drafter `layers`. `small` is the draft
    model, if the drafter needs one.
    """
    kind, with_phrases = kind_of(choice.drafter), choice.drafter.endswith(WITH_PHRASES)
    drafter: Drafter
    if loaded:
        drafter = Merged(loaded) if len(loaded) > 1 else loaded[0]
    else:
        model, costs = (small.target, small.costs) if small else (None, None)
        drafter = import_module(kind.file).build(
            Ingredients(target, pool, with_phrases, model, costs, hyperparameters, choice.parts, choice.fixed)
        )
    if not with_phrases:
        return drafter
    # A draft model knows how likely its tokens are.
    return WithPhrases(drafter, pool, anywhere=bool(loaded) or small is not None)


def pool_of(
    choice: Choice, target: Target, small: LoadedDraftModel | None, reader: PhraseReader | None = None
) -> PhrasePool:
    """Return an empty phrase pool, which rejects token ids that the target or the draft model lacks."""
    models = [target] if small is None else [target, small.target]
    return PhrasePool(
        target.special_tokens,
        reader,
        min(model.vocab_size for model in models),
        verification=not kind_of(choice.drafter).parts or "verification" in choice.parts,
    )


def known_hyperparameters(choice: Choice, small: LoadedDraftModel, profile: ModelProfile) -> Hyperparameters:
    """Return the result of an earlier search for this pair of models, or else values that suit the models' costs."""
    return searched_hyperparameters(choice, small, profile) or starting(small.costs)


def searched_hyperparameters(choice: Choice, small: LoadedDraftModel, profile: ModelProfile) -> Hyperparameters | None:
    """Return the result of an earlier search for this pair of models; None if there was none."""
    return profile.recall(_hyperparameters(choice, small))


def _hyperparameters(choice: Choice, small: LoadedDraftModel) -> Quantity[Hyperparameters]:
    name = f"hyperparameters of {choice.drafter} {'+'.join(choice.parts)} with {small.profile.subject}"
    return Quantity(name, Hyperparameters.from_json, Hyperparameters.as_json)


def tuning(
    choice: Choice,
    target: Target,
    small: LoadedDraftModel,
    profile: ModelProfile,
    costs: ForwardCostModel,
    reader: PhraseReader | None = None,
) -> Measuring[Hyperparameters | None]:
    """Search for the best hyperparameters of this pair of models, whose forwards were timed, and save them.

    Return None if the context has no room for a reply. Each trial decodes the same greedy replies of the target again.
    It may use phrases of earlier sessions, but none of the replies themselves, which would predict these perfectly.
    """
    exchanges = yield from replying(target, QUESTIONS, Budget(choice.nodes, costs, target.branches))
    if not exchanges:
        profile.reporter.notice(
            f"A context of {target.context} tokens is too short to tune the length of drafts; give a longer one."
        )
        return None
    costs_of_both = StepCosts(costs), StepCosts(small.costs)
    workload = Workload(exchanges, target.vocab_size, choice.nodes, *costs_of_both, target.branches)

    def build(tried: Hyperparameters) -> tuple[Drafter, DraftModel]:
        drafter = drafter_of(choice, target, pool_of(choice, target, small, reader), (), small, tried)
        drafting = drafter.inner if isinstance(drafter, WithPhrases) else drafter
        if not isinstance(drafting, DraftModel):
            raise LocalspecError(
                f"The function `build` in the file of '{choice.drafter}' returns no DraftModel; let it return one."
            )
        return drafter, drafting

    best = yield from searching(build, workload, kind_of(choice.drafter).searched(choice.parts))
    profile.remember(_hyperparameters(choice, small), best)
    return best


def greedy_replies(target: Target) -> list[Exchange]:
    """Return the target's greedy replies to a few prompts. A reply ends before it begins to repeat itself."""
    return finished(replying(target, QUESTIONS))


def replying(target: Target, prompts: Sequence[str], budget: Budget | None = None) -> Measuring[list[Exchange]]:
    """Return replies as `greedy_replies` does, but to these prompts. Yield after each step of a reply."""
    exchanges: list[Exchange] = []
    drafter = WithPhrases(Autoregressive(), PhrasePool(target.special_tokens))
    session = Session(target, drafter, budget or Budget(0))
    for number, question in enumerate(prompts):
        prompt = target.encode([{"role": "user", "content": question}])
        if len(prompt) + REPLY <= target.context:
            for _ in session.generate(prompt, Sampling(), Limits(REPLY)):
                yield MeasuringProgress(number, len(prompts), 0.0)
            reply = session.tokens[len(prompt) :]
            exchanges.append((prompt, reply[: until_it_goes_round(reply)]))
    return [(prompt, reply) for prompt, reply in exchanges if reply]


@dataclass(frozen=True)
class SavedPhrases:
    """The phrases in the store that belong to one model. New phrases are saved only if `learn` is set."""

    store: Store
    pool_id: int
    learn: bool
    reporter: Reporter

    @classmethod
    def open(
        cls, store: Store, card: TargetCard, tokenizer: str, learn: bool, reporter: Reporter, earlier: str | None = None
    ) -> Self | None:
        """Return the saved phrases of a model; None if nothing may be saved or the store cannot be used.

        `tokenizer` is a hash of tokenizer and weights, by which the phrases are found. `earlier` is the same hash as an
        earlier version of localspec computed it; without it, only phrases saved under the model's name or path are
        found. Problems with the store are reported.
        """
        try:
            pool_id = store.phrases.pool(reference(card), tokenizer, str(card.path), make=learn, earlier=earlier)
        except StoreTrouble as trouble:
            reporter.notice(str(trouble))
            return None
        return None if pool_id is None else cls(store, pool_id, learn, reporter)

    def read(self, keys: Sequence[int]) -> Sequence[Phrase]:
        """Return the saved phrases that follow certain pairs of tokens; each key stands for a pair (`pack_key`)."""
        return self.store.phrases.look_up(self.pool_id, keys)

    def keep(self, pool: PhrasePool, start: int, conversation: int | None) -> bool:
        """Save the phrases that `pool` has learned from the reply since token `start`, if saving is allowed.

        Return False after a problem with the store, which is reported.
        """
        if not self.learn or self.store.read_only:
            return True
        try:
            self.store.phrases.learn(self.pool_id, *pool.harvest(start), conversation)
        except StoreTrouble as trouble:
            self.reporter.notice(str(trouble))
            return False
        return True
