"""The engine: loads the chosen model and drafter, applies the chat template, and saves what it learns from each
reply."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Literal, Self

from localspec.choosing import cost, fit
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choices, requested_drafter
from localspec.choosing.cost import ForwardCostModel
from localspec.choosing.drafters import reply_key
from localspec.choosing.measure import LAYERS, MeasurementCache, Measurements, T
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.measuring import Measuring, finished
from localspec.decoding.parked import Parked
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.ingredients import Hyperparameters
from localspec.engine.assemble import (
    LoadedDraftModel,
    SavedPhrases,
    drafter_of,
    known_hyperparameters,
    pool_of,
    searched_hyperparameters,
    tuning,
)
from localspec.engine.backends import Target
from localspec.engine.fit_context import fit_conversation, fit_text
from localspec.engine.loading import (
    calibrated,
    known_exactness,
    load_draft_model,
    load_layers,
    load_target,
    load_trained,
    probing,
    take_best,
    widest_tree,
)
from localspec.engine.model_profile import (
    CHECKING,
    PROBING,
    TIMING,
    TIMING_DRAFT,
    ModelProfile,
    ProgressTexts,
    SpillWatch,
    progress_texts,
)
from localspec.engine.reply_settings import requested_sampling, requested_thinking
from localspec.engine.report import Report
from localspec.engine.trials import RecordingWatch, settle_kernels, settle_step_form
from localspec.errors import DoesNotFit, LocalspecError, first_line
from localspec.events import TUNING, Done, Event, Prefill, Reporter
from localspec.families.generation_config import GENERATION, LEFT_OUT
from localspec.machine import compiled
from localspec.machine.hardware import IdleCores
from localspec.machine.machine import Device, this_machine, torch_trouble
from localspec.machine.memory import give_back
from localspec.models.drafter_kinds import kind_of
from localspec.models.encoding import Unwanted, stopping_unless
from localspec.models.messages import Message
from localspec.models.model import model_of
from localspec.models.registry import TargetCard
from localspec.quantities import counted
from localspec.repetition import goes_round
from localspec.store.store import Store
from localspec.weights.checkpoint import inspect

LOOK = 1.0  # seconds of observation of other programs: any shorter moment may look busy

MOST_NAMED = 20  # characters that one notice lists

Phrases = Literal["user", "readonly", "off"]


def phrases_allowed(settings: Settings) -> Phrases:
    """Return how the phrases of earlier sessions may be used: "user" (new ones are saved, too), "readonly" or "off"."""
    return "readonly" if settings.pool == "user" and not settings.log else settings.pool


class Engine:
    """One loaded model with one conversation. Use it from one thread at a time.

    With a store, measurements and phrases of earlier sessions are used, and those of this session are saved. If
    `phrases` is "readonly", no phrases are saved, and if "off", none are used either. The `reporter` gets problems that
    do not affect the text, such as a read-only store, and the progress of a slow first load. An engine shares the
    loaded models of `share_with`, another engine with the same target, as far as both choices agree. Only one of the
    two may answer at a time.

    Costs of forwards are estimated until `measure` measures them. If `measured`, they are measured at once, by the
    constructor. If `tune`, the constructor also searches hyperparameters, which `measure` does otherwise. With `park`,
    the caches of earlier conversations stay in free memory, so that these need not be read again. Raises DoesNotFit,
    LocalspecError for a broken model, and UsageMistake if `choice.exact` is impossible.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        store: Store | None = None,
        phrases: Phrases = "user",
        reporter: Reporter | None = None,
        share_with: "Engine | None" = None,
        measured: bool = False,
        tune: bool = False,
        park: bool = False,
    ) -> None:
        began = time.perf_counter()
        self.choice, self._reporter = choice, reporter or Reporter()
        # Engines that take turns share this, so that both use the same number of threads.
        self._idle_cores: IdleCores = share_with._idle_cores if share_with else IdleCores(LOOK)
        cache = MeasurementCache(store, self._reporter)
        auto = choice.nodes > 0 and not choice.fixed
        settle_kernels(choice.device, cache)
        self.target: Target = share_with.target if share_with else load_target(choice, self._reporter)
        self.profile = ModelProfile.of(choice, cache)
        if share_with is None:
            settle_step_form(choice.device, self.target, cache, self.profile.subject)  # before all measurements
        self.exactness = known_exactness(choice, self.target, self.profile)
        self._costs = self.profile.costs(choice, self.target) if auto else None
        small_model = choice.draft.target if choice.draft else None
        self._key = reply_key(choice.drafter, choice.trained, small_model)
        doubted = self._costs is not None and self.profile.was_slower(self._key, self._costs)
        self._budget = Budget(choice.nodes, self._costs, self.target.branches, choice.off_reason, doubted)
        self._layers = load_layers(choice, self.target, self.profile, self._costs)
        loaded: list[Drafter] = [
            *([self._layers] if self._layers else []),
            *load_trained(choice, self.target, self.profile),
        ]
        pair = share_with if share_with and share_with.choice.draft == choice.draft else None
        self.draft_model: LoadedDraftModel | None = (
            pair.draft_model if pair else load_draft_model(choice.draft, self.target, cache)
        )
        self._unmeasured = self._measurements()
        if measured or tune:
            for stage in self._unmeasured:
                self._reporter.progress(stage)
        # Phrases of earlier sessions.
        drafts = choice.drafter != "none"  # else no phrase would ever be used
        uses_history = drafts and phrases != "off" and (not kind_of(choice.drafter).parts or "history" in choice.parts)
        self.saved_phrases = self._open_phrases(store, phrases == "user") if store and uses_history else None
        self.conversation: int | None = None  # in which replies are saved; its phrases can be deleted by it
        self.wanted: Callable[[], bool] = lambda: True  # called before events, which then come more often
        reader = self.saved_phrases.read if self.saved_phrases else None
        small = self.draft_model
        self.hyperparameters = Hyperparameters()
        if pair and pair.choice.drafter == choice.drafter:
            self.hyperparameters = pair.hyperparameters
        elif small:
            self.hyperparameters = known_hyperparameters(choice, small, self.profile)
        self.pool = pool_of(choice, self.target, self.draft_model, reader)
        drafter = drafter_of(choice, self.target, self.pool, loaded, self.draft_model, self.hyperparameters)
        self._reader = reader
        parked = self._parked() if park else None
        self.session = Session(self.target, drafter, self._budget, self.target.chat.thinking, parked)
        self._calibrated = calibrated(drafter, choice, self.profile)
        self._spill_watch = SpillWatch(choice.device, self._costs, self._reporter)
        watched = [(self.target, self.profile), *([(small.target, small.profile)] if small else [])]
        self._recording_watches = [
            RecordingWatch(model.device, model, cache, profile.subject) for model, profile in watched
        ]
        self._warned_of_context = False
        self._unspelled = ""  # characters that were named in a notice
        if tune:
            for stage in self._tuning(progress_texts):
                self._reporter.progress(stage)
        self._untuned = iter(()) if measured or tune else self._tuning_once()
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
        """Return the engine for these settings, which also say whether phrases are used and saved.

        Raises the errors of `choose` and of the engine.
        """
        reporter = Reporter(notice, progress)
        measurements = Measurements(MeasurementCache(store, reporter), settings.exact, settings.context)
        phrases = phrases_allowed(settings)
        model, auto = model_of(card), settings.drafter == "auto"
        decide = partial(choices, model, requested_drafter(settings, card), settings, measurements=measurements)
        load = partial(cls, store=store, phrases=phrases, reporter=reporter, park=True)
        if auto and model.passed_over:
            notice(model.passed_over)
        options = decide()
        for choice, smaller in zip_longest(options, options[1:]):
            if choice.on_disk:
                notice(f"{choice.on_disk}; close other programs, or choose a smaller model.")
            try:
                engine = load(choice)
                break
            except LocalspecError as trouble:
                unasked = auto and (choice.draft is not None or choice.trained)  # the user named neither of them
                if smaller is None or not (unasked or isinstance(trouble, DoesNotFit)):
                    raise
                notice(f"{trouble} Trying once more with less memory: {smaller.reason}.")
        for sentence in engine._peculiarities(settings):
            notice(sentence)
        return engine

    def _peculiarities(self, settings: Settings) -> Iterator[str]:
        """Yield a sentence for each reason why replies may be slower than expected, or different."""
        unasked = settings.device == "auto" and self.choice.device == "cpu"
        if unasked and (why := torch_trouble() or self.choice.idle):  # explain why an existing GPU is not used
            yield f"The model runs on the CPU. {why}"
        if (self.choice.device, self.choice.engine) == ("cpu", "torch"):
            yield f"PyTorch computes with dense weights, slowly: {compiled.missing()}; install localspec again."
        match self.target.chat.prompt_loss():
            case "leaves out":
                yield "the model's chat template leaves out your prompt, so the model cannot answer it."
            case "changes":
                yield "the model's chat template changes your prompt, so the model reads a different text."
        if not self.target.chat.tokenizer.chat_template:
            yield "this model has no chat template, so it continues your text and may not answer it."
        for value in self.target.generation.get(LEFT_OUT, ()):
            yield f"{value} in the model's {GENERATION} is ignored, because it is not possible."
        if self.sampling(settings).rule == "typical":
            yield "with --accept typical the text is not exactly what the model would have written without drafts."

    @property
    def costs(self) -> ForwardCostModel | None:
        """The costs of forwards, timed or estimated; None if the size of trees is fixed."""
        return self._costs.model if self._costs else None

    @property
    def revision(self) -> str:
        """The revision of the target's weights and texts."""
        return self.profile.identity.revision

    @property
    def parameters(self) -> int:
        """The number of the target's weights, by the headers of its files."""
        return inspect(self.choice.target.path).parameters

    @property
    def context(self) -> int:
        """The largest number of tokens of prompt and reply together."""
        return self.target.context

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text within a prompt."""
        return len(self.target.chat.tokenizer.encode(text, False))

    def cannot_spell(self, messages: Sequence[Message]) -> str:
        """Return a sentence about characters of a conversation that the model's vocabulary cannot encode, or an
        empty text."""
        return _cannot_spell(self.target.chat.unspelled(messages))

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        """A function that decodes token ids. It holds no reference to the model, whose memory can then be freed."""
        return self.target.chat.tokenizer.decode

    @property
    def freed_memory(self) -> tuple[str, int]:
        """The device, and the bytes of its memory that become free when this engine is discarded.

        On a CPU only parked texts count, because the memory of mapped weight files counts as free already.
        """
        session, device = self.session, self.choice.device
        sizes = (session.target.nbytes, session.drafter.nbytes, session.cache.nbytes) if device != "cpu" else ()
        return device, sum(sizes) + session.memory.parked

    def forget_parked(self) -> None:
        """Free the memory of parked texts."""
        if self.session.parked:
            self.session.parked.clear()
            give_back(self.choice.device)

    def hold_threads(self) -> None:
        """Measure the load of the machine now.

        Until the next call, this engine and all engines that share its models use the same number of threads.
        """
        self._idle_cores.hold()

    def report(self, sampling: Sampling, load_seconds: float) -> Report:
        """Return the report of a reply with this sampling, after the model was loaded in `load_seconds`."""
        return Report.before(self, sampling, load_seconds)

    def lend_core(self, lent: bool) -> None:
        """Leave a CPU core to the thread that draws the reply, or take it back if `lent` is false.

        Otherwise a compute thread may lose its core, and all other compute threads wait. Any thread may call this.
        """
        self.target.lend_core(lent)

    def sampling(self, settings: Settings) -> Sampling:
        """Return the sampling of the settings, or else the model's defaults, with a new seed if none was given."""
        return requested_sampling(settings, self.target.generation, self.choice.target.names)

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Return whether the model should think before it answers; None leaves that to its chat template.

        Raises UsageMistake for a setting without effect, in general or with this `system` prompt.
        """
        return requested_thinking(settings, self.target.chat, self.choice.target.name, system)

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        """Return whether the model thinks by default before it answers; None if it has no switch."""
        return self.target.chat.thinks_by_itself(system)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        limits: Limits | None = None,
        think: bool | None = None,
        *,
        whole: bool = False,
    ) -> Generator[Event, None, None]:
        """Yield the events of an answer. If the context is full, the oldest turns are left out, and `Prefill` says so.

        If `think` is None, the chat template decides whether the model thinks. Stop iterating to stop the reply; the
        text so far stays. Raises UsageMistake for a last prompt that is too long by itself. With `whole`, raises
        Overlong instead of leaving out turns.
        """
        self.target.set_threads(self._idle_cores())
        limits, room = limits or Limits(), self._room()
        try:
            prompt, dropped, lower = fit_conversation(
                self.target, messages, limits, room, think, whole=whole, wanted=self.wanted
            )
        except Unwanted:
            return
        if new := set(self.target.chat.unspelled(messages)) - {*self._unspelled}:
            self._unspelled += "".join(sorted(new))
            self._reporter.notice(_cannot_spell("".join(sorted(new))))
        if lower != limits and not self._warned_of_context:
            self._warned_of_context = True
            self._reporter.notice(
                f"the memory of {self.choice.device} now has room for only {room} tokens of context; replies end when "
                "it is full."
            )
        yield from self._answer(prompt, sampling, lower, dropped)

    def complete(self, text: str, sampling: Sampling, limits: Limits | None = None) -> Generator[Event, None, None]:
        """Continue a text without a chat template. Raises UsageMistake for a text that is too long."""
        self.target.set_threads(self._idle_cores())
        limits, room = limits or Limits(), self._room()
        try:
            with stopping_unless(self.wanted):
                prompt, lower = fit_text(self.target, text, limits, room)
        except Unwanted:
            return
        yield from self._answer(prompt, sampling, lower, dropped=0)

    def _answer(
        self, prompt: list[int], sampling: Sampling, limits: Limits, dropped: int
    ) -> Generator[Event, None, None]:
        stream = self.session.generate(prompt, sampling, limits)  # if the prompt is refused, there is nothing to save
        try:
            with closing(stream):  # a stopped reply is finished before its phrases are saved
                for event in stream:
                    match event:
                        case Prefill(done, total):
                            yield Prefill(done, total, dropped)
                        case Done(reason, statistics):
                            yield Done(reason, replace(statistics, dropped_turns=dropped))
                        case _:
                            yield event
        finally:
            if self.session.statistics is not None:
                self.session.statistics = replace(self.session.statistics, dropped_turns=dropped)
            self._save_learned(len(prompt))

    def _room(self) -> int:
        """Return how many tokens fit: the model's context length, or fewer if memory is short."""
        usable = self._device.usable + self.session.memory.parked
        fitting = max(self.session.cache.capacity, usable // self._bytes_per_token)
        return int(min(self.target.context, max(0, fitting - self.choice.nodes - 1)))

    @property
    def _device(self) -> Device:
        """The device, with its memory as it is now."""
        device = this_machine().device(self.choice.device)
        assert device is not None
        return device

    @property
    def _bytes_per_token(self) -> int:
        smallest = self.target.cache(1)
        return int(smallest.nbytes // smallest.capacity)

    def _parked(self) -> Parked:
        """Return an empty store of parked texts for this engine. It leaves room for a full context."""

        def budget(parked: int) -> int:
            growing = max(0, self.target.context - self.session.cache.capacity) * self._bytes_per_token
            return fit.parking(self._device.usable + parked - growing)

        costs = self._costs or self.profile.costs(self.choice, self.target)
        return Parked(budget, costs, cost.copying(self._device))

    def gap(self, tokens: Sequence[int], first: int, second: int) -> float:
        """Return the target's logit of token `first` minus its logit of `second`, after these tokens."""
        cache = self.target.cache(len(tokens))
        logits = self.target.forward(DraftTree.chain(tokens), cache, last=True).logits.numpy()[0]
        return float(logits[first] - logits[second])

    # -- measurements of the model ------------------------------------------------------------------------------------

    def measure(self, tune: bool = True) -> Iterator[str]:
        """Measure the missing figures of this model on this machine, and yield the progress as text.

        With `tune`, hyperparameters are searched too, which takes minutes. To pause, stop iterating: the next call
        resumes. A measurement that fails is reported, and its value stays unknown.
        """
        self.target.set_threads(self._idle_cores())
        yield from iter(partial(next, self._unmeasured, None), None)
        if tune:
            yield from iter(partial(next, self._untuned, None), None)

    def time_when_idle(self, cache: MeasurementCache) -> None:
        """Time forwards again if the machine is idle now, but was busy when they were timed."""
        small = self.draft_model
        models = [
            (self.target, self.profile, self._costs),
            *([(small.target, small.profile, small.costs)] if small and self._costs else []),
        ]
        for target, profile, costs in models:
            if costs is not None and profile.untimed and cache.idle:
                costs.take(finished(replace(profile, cache=cache).timing(target)), timed=True)
                if costs is self._costs:
                    self._budget.take_costs(costs)

    def _measurements(self) -> Iterator[str]:
        """Run the missing measurements, the check of exactness first, and yield their progress in words."""
        if not self.exactness.checked:
            widest = widest_tree(self.choice)
            checking = self.profile.checking(self.choice, self.target, widest)
            self.exactness = (yield from self._run_measurement(CHECKING, checking)) or self.exactness
        if self._costs and self.profile.untimed:
            costs = yield from self._run_measurement(TIMING, self.profile.timing(self.target))
            self._costs.take(costs or self._costs.model, timed=costs is not None)
            self._budget.take_costs(self._costs)
        if (small := self.draft_model) and self._costs and small.profile.untimed:
            costs = yield from self._run_measurement(TIMING_DRAFT, small.profile.timing(small.target))
            small.costs.take(costs or small.costs.model, timed=costs is not None)
        if self._layers and not self.profile.recall(LAYERS):
            layers = yield from self._run_measurement(PROBING, probing(self.target, self.profile))
            if layers:
                take_best(self._layers, self.target, layers, self.choice, self._costs)

    def _tuning_once(self) -> Iterator[str]:
        """Search hyperparameters if that was never done and if forwards were timed on an idle machine."""
        small = self.draft_model
        timed = small is not None and not (self.profile.untimed or small.profile.untimed)
        if small and timed and searched_hyperparameters(self.choice, small, self.profile) is None:
            yield from self._tuning(self._run_measurement)

    def _tuning(
        self, shown: Callable[[str, Measuring[Hyperparameters | None]], ProgressTexts[Hyperparameters | None]]
    ) -> Iterator[str]:
        """Search the hyperparameters of this drafter, if the drafter has any, and use the result from now on."""
        choice, small = self.choice, self.draft_model
        if not (small and self._costs and kind_of(choice.drafter).searched(choice.parts)):
            return
        best = yield from shown(TUNING, tuning(choice, self.target, small, self.profile, self._costs, self._reader))
        if best is None:
            return
        self.hyperparameters = best
        state = self.session.drafter.hand_over()
        drafter = drafter_of(choice, self.target, self.pool, (), small, best)
        drafter.resume(state, self.session.tokens)
        self.session.drafter = drafter
        self._calibrated = calibrated(drafter, choice, self.profile)

    def _run_measurement(self, name: str, measuring: Measuring[T]) -> ProgressTexts[T | None]:
        """Run a measurement, and yield its progress after its `name`. Return its result; None if it failed."""
        try:
            return (yield from progress_texts(name, measuring))
        except (LocalspecError, MemoryError, RuntimeError, OSError) as trouble:
            task = name.removesuffix(" (once)")
            self._reporter.notice(f"{task} failed ({first_line(trouble)}); estimates are used.")
            return None

    # -- saved for later sessions -------------------------------------------------------------------------------------

    def _open_phrases(self, store: Store, learn: bool) -> SavedPhrases | None:
        identity, tokenizer = self.profile.identity, self.target.tokenizer.hash
        key, earlier_key = (f"{tokenizer}-{digest[:16]}" for digest in (identity.weights, identity.revision))
        return SavedPhrases.open(store, self.choice.target, key, learn, self._reporter, earlier_key)

    def _save_learned(self, start: int) -> None:
        """Save what the engine learned from the reply that began at token `start`. Errors are reported, not raised."""
        for watch in self._recording_watches:
            watch.look()
        statistics = None if self.choice.fixed else self.session.statistics
        if statistics is not None and self._costs and self._costs.timed:
            self._spill_watch.look(statistics, len(self.session.tokens))
        if self.saved_phrases and not self.saved_phrases.keep(self.pool, start, self.conversation):
            return  # the store failed: do not wait for it or report it again
        for quantity, calibration in self._calibrated:
            self.profile.remember(quantity, calibration)
        if statistics is not None and not goes_round(self.target.decode(statistics.token_ids)):
            self.profile.add_reply(self._key, statistics)


def _cannot_spell(characters: str) -> str:
    if not characters:
        return ""
    shown = " ".join(characters[:MOST_NAMED]) + (" …" if len(characters) > MOST_NAMED else "")
    return f"the model's vocabulary cannot encode {counted(len(characters), 'character')}: {shown}"
