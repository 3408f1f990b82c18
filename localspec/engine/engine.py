"""The engine: loads what was chosen, applies the chat template, keeps what each reply taught."""

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import zip_longest
from typing import Literal, Self

from localspec.checkpoint import is_packed, only_packed
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits, Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Hyperparameters
from localspec.engine.assemble import LoadedDraftModel, drafter_of, find_hyperparameters, pool_of
from localspec.engine.backends import Target
from localspec.engine.device_profile import BandwidthProfiler
from localspec.engine.fit_context import fit_conversation
from localspec.engine.loading import calibrated, load_draft_model, load_target, load_trained, promised_exactness
from localspec.engine.measurement_cache import MeasurementCache
from localspec.engine.model_profile import ModelProfile
from localspec.engine.own_layers import load_layers
from localspec.engine.saved_phrases import SavedPhrases
from localspec.engine.spilling import SpillWatch
from localspec.errors import DoesNotFit, UsageMistake
from localspec.events import Event, Prefill, Reporter
from localspec.machine import compiled
from localspec.machine.hardware import IdleCores, devices
from localspec.machine.machine import this_machine, torch_trouble
from localspec.machine.memory import peak_memory
from localspec.models.confinement import Stopped, confinement
from localspec.models.drafter_kinds import kind_of
from localspec.models.messages import Message
from localspec.models.model import model_of
from localspec.models.registry import TargetCard
from localspec.policy.candidates import reply_key
from localspec.policy.selection import Choice, choices, requested_drafter
from localspec.store.store import Store

Phrases = Literal["user", "readonly", "off"]


class Engine:
    """One loaded model with one conversation. Use it from one thread at a time.

    With a store, what was measured here before is not measured again, and phrases of earlier sessions are used; those
    of each reply are kept there unless `phrases` are "readonly" or "off". Troubles that cost no text, such as a store
    that cannot be written, and what takes a while on the first load go to the `reporter`. An engine `beside` this one,
    with which it takes turns, shares its models as far as `choice` names the same; its target must be the same. With
    `tune` hyper-parameters that were found before are searched again.
    Raises DoesNotFit, LocalspecError for a broken model, UsageMistake where `choice.exact` cannot be had.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        store: Store | None = None,
        phrases: Phrases = "user",
        reporter: Reporter | None = None,
        beside: "Engine | None" = None,
        tune: bool = False,
    ) -> None:
        began = time.perf_counter()
        self.choice, self._reporter = choice, reporter or Reporter()
        # Engines that take turns look at the machine alike, or one would compute with more threads than the other.
        self._idle_cores: IdleCores = beside._idle_cores if beside else IdleCores()
        cache = MeasurementCache(store, self._reporter)
        auto = choice.nodes > 0 and not choice.fixed
        # The target, and what is measured of it.
        self.target: Target = beside.target if beside else load_target(choice, self._reporter)
        self.profile = ModelProfile.of(choice, cache)
        self.exactness = promised_exactness(choice, self.target, self.profile)
        self.costs = self.profile.costs(self.target) if auto else None
        # What drafts, and how.
        layers = load_layers(choice, self.target, self.profile, self.costs)
        own: list[Drafter] = [*([layers] if layers else []), *load_trained(choice, self.target, self.profile)]
        pair = beside if beside and beside.choice.draft == choice.draft else None
        self.draft_model: LoadedDraftModel | None = (
            pair.draft_model if pair else load_draft_model(choice.draft, self.target, cache, auto)
        )
        self.hyperparameters = Hyperparameters()
        if pair and pair.choice.drafter == choice.drafter and not tune:
            self.hyperparameters = pair.hyperparameters
        elif self.draft_model:
            self.hyperparameters = find_hyperparameters(
                choice, self.target, self.draft_model, self.profile, self.costs, tune
            )
        # Phrases, those of earlier sessions included.
        drafts = choice.drafter != "none"  # else no phrase would ever be used
        uses_history = drafts and phrases != "off" and (not kind_of(choice.drafter).parts or "history" in choice.parts)
        self.saved_phrases = self._open_phrases(store, phrases == "user") if store and uses_history else None
        reader = self.saved_phrases.read if self.saved_phrases else None
        self.pool = pool_of(choice, self.target, self.draft_model, reader)
        # All of it together.
        drafter = drafter_of(choice, self.target, self.pool, own, self.draft_model, self.hyperparameters)
        self.session = Session(self.target, drafter, Budget(choice.nodes, self.costs))
        self._calibrated = calibrated(drafter, choice, self.profile)
        self._spill_watch = SpillWatch(choice.device, self.costs, self._reporter)
        self._warned_of_context = False
        self.load_seconds = time.perf_counter() - began

    @classmethod
    def open(
        cls,
        settings: Settings,
        card: TargetCard,
        *,
        store: Store | None = None,
        notice: Callable[[str], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """The engine that these settings ask for; phrases are used and kept as far as they allow.

        Raises what `choose` and the engine itself raise.
        """
        reporter = Reporter(notice, progress)
        with suppress(Stopped):  # which is told where a template is needed
            confinement.start()  # meanwhile the model is loaded
        known = BandwidthProfiler(MeasurementCache(store, reporter), settings.exact, settings.context)
        kept: Phrases = "readonly" if settings.pool == "user" and not settings.log else settings.pool
        decide = partial(choices, model_of(card), requested_drafter(settings, card), settings, measurements=known)
        load = partial(cls, store=store, phrases=kept, reporter=reporter)
        options = decide()
        for choice, smaller in zip_longest(options, options[1:]):
            try:
                engine = load(choice)
                break
            except DoesNotFit as trouble:
                if smaller is None:
                    raise
                notice(f"{trouble} It is tried once more with less: {smaller.reason}.")
        if settings.drafter == "auto" and engine.profile.cache.measured:  # what was an estimate is known now
            again = decide()[0]
            if again.drafter != engine.choice.drafter and again.loads_as(engine.choice):
                first, engine = engine, load(again, beside=engine)
                engine.load_seconds += first.load_seconds
        if settings.device == "auto" and engine.choice.device == "cpu":  # nobody with a GPU is left there in silence
            why = only_packed(card.path) if is_packed(card.path) and devices() != ["cpu"] else torch_trouble()
            if why:
                notice(f"This runs on the CPU. {why}")
        if (engine.choice.device, engine.choice.engine) == ("cpu", "torch"):
            notice(f"PyTorch computes with dense weights, slowly: {compiled.missing()}; install localspec again.")
        if not engine.target.chat.keeps_prompts:
            notice("the model's chat template leaves out what is asked, so no answer can be about it.")
        if engine.sampling(settings).rule == "typical":
            notice("with --accept typical the text is not exactly what the model alone would have written.")
        return engine

    @property
    def revision(self) -> str:
        """The revision of the target's weights."""
        return self.profile.revision

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""
        return self.target.context

    def hold_threads(self) -> None:
        """Looks at the machine for all engines beside this one; until the next look each has as many threads."""
        self._idle_cores.hold()

    def peak_bytes(self) -> int:
        """The most memory this process ever held: on the device, or of main memory where that is the device."""
        return peak_memory(self.target.device)

    def sampling(self, settings: Settings) -> Sampling:
        """What was asked for, else the model's own generation_config; a fresh seed where none was given."""
        own = self.target.generation if self.target.generation.get("do_sample") else {"temperature": 0.0}

        def value(name: str, default: float) -> float:
            for given in (getattr(settings, name), own.get(name)):
                if given is not None:
                    return float(given)
            return default

        sampling = Sampling(
            temperature=value("temperature", 1.0),
            top_k=int(value("top_k", 0)),
            top_p=value("top_p", 1.0),
            min_p=value("min_p", 0.0),
            seed=secrets.randbits(32) if settings.seed is None else settings.seed,
            rule=settings.accept,
        )
        if sampling.greedy:
            for name in ("top_p", "top_k", "min_p"):
                if settings.origins.get(name, "").startswith("--"):
                    flag = "--" + name.replace("_", "-")
                    raise UsageMistake(
                        f"{flag} has no effect at temperature 0; leave it out, or give a --temp above 0."
                    )
        return sampling

    def chat(
        self, messages: Sequence[Message], sampling: Sampling, limits: Limits | None = None
    ) -> Generator[Event, None, None]:
        """Answers a conversation; the oldest turns are left out where the context is full, and `Prefill` says so.

        Stop asking for events to stop the reply: what was generated stays. Raises UsageMistake for a last prompt that
        is too long by itself.
        """
        self.target.set_threads(self._idle_cores())
        limits, room = limits or Limits(), self._room()
        prompt, dropped, lower = fit_conversation(self.target, messages, limits, room)
        if lower != limits and not self._warned_of_context:
            self._warned_of_context = True
            self._reporter.notice(
                f"the memory of {self.choice.device} holds {room} tokens of context now; replies end there."
            )
        stream = self.session.generate(prompt, sampling, lower)  # what refuses the prompt leaves nothing to keep
        try:
            with closing(stream):  # a reply that was stopped is settled before its phrases are kept
                for event in stream:
                    yield Prefill(event.done, event.total, dropped) if isinstance(event, Prefill) else event
        finally:
            self._keep(len(prompt))

    def _room(self) -> int:
        """Tokens of context that fit: as many as the model's own, or fewer where memory is short."""
        device, cache = this_machine().device(self.choice.device), self.session.cache
        assert device is not None
        smallest = self.target.cache(1)
        fitting = max(cache.capacity, device.usable // (smallest.nbytes // smallest.capacity))
        return int(min(self.target.context, max(0, fitting - self.choice.nodes - 1)))

    def gap(self, tokens: Sequence[int], one: int, other: int) -> float:
        """By how much the target's logit of token `one` exceeds that of token `other`, after these tokens."""
        cache = self.target.cache(len(tokens))
        logits = self.target.forward(DraftTree.chain(tokens), cache, last=True).logits.numpy()[0]
        return float(logits[one] - logits[other])

    # -- what is kept for later sessions ------------------------------------------------------------------------------

    def _open_phrases(self, store: Store, learn: bool) -> SavedPhrases | None:
        tokenizer = f"{self.target.tokenizer.hash}-{self.revision[:16]}"
        return SavedPhrases.open(store, self.choice.target, tokenizer, learn, self._reporter)

    def _keep(self, start: int) -> None:
        """Keeps what the reply that began at token `start` taught. What cannot be kept costs this session nothing."""
        statistics = None if self.choice.fixed else self.session.statistics
        if statistics is not None:
            self._spill_watch.look(statistics, len(self.session.tokens))
        if self.saved_phrases and not self.saved_phrases.keep(self.pool, start):
            return  # one trouble is waited for, and reported, once
        for quantity, calibration in self._calibrated:
            self.profile.remember(quantity, calibration)
        if statistics is not None:
            draft = self.choice.draft.target if self.choice.draft else None
            self.profile.add_reply(reply_key(self.choice.drafter, self.choice.trained, draft), statistics)
