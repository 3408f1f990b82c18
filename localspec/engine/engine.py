"""The engine: loads what was chosen, applies the chat template, keeps the phrases that replies leave behind."""

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Self

import torch

from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.calibration import Calibration
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits, Session
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.saved import load_drafter
from localspec.drafters.trained import TrainedDrafter
from localspec.engine.assemble import LoadedDraftModel, drafter_of, hyperparameters, pool_of
from localspec.engine.cached_measurements import CachedMeasurements
from localspec.engine.fit_context import fitting
from localspec.engine.measurement_cache import MeasurementCache, Quantity
from localspec.engine.model_profile import ModelProfile
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.events import Event, Prefill, Reporter, Statistics
from localspec.machine.hardware import IdleCores
from localspec.machine.machine import this_machine
from localspec.machine.memory import free_memory, out_of_memory, peak_memory
from localspec.models.drafter_kinds import kind_of
from localspec.models.model import model_of
from localspec.models.registry import TargetCard
from localspec.nn.exactness import Exactness
from localspec.nn.packing import DTYPES
from localspec.nn.small_model import compare_tokens
from localspec.nn.target import Message, Target, tokenizer_hash
from localspec.policy.candidates import reply_key
from localspec.policy.ranking import AUTO_NODES
from localspec.policy.selection import Choice, LoadSpec, choices, requested_drafter
from localspec.store.database import StoreTrouble
from localspec.store.store import Store

SUDDEN, FEW_STEPS = 4, 8  # times the usual cost of a step, in a reply of so many: memory has spilt


def _load(choice: LoadSpec) -> Target:
    free = free_memory(choice.device)
    if choice.loaded_bytes > free:  # else the system would end some process, likely this one
        raise DoesNotFit(
            f"{choice.target.name} needs {choice.loaded_bytes / 2**30:.1f} GiB of memory and "
            f"{free / 2**30:.1f} GiB are free on {choice.device}; close other programs, or choose a smaller model."
        )
    try:
        return Target.load(
            choice.target.path,
            device=choice.device,
            dtype=DTYPES[choice.dtype],
            context=choice.context,
            quantize=choice.quantize,
            exact=choice.exact,
            threshold=choice.threshold,
        )
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise DoesNotFit(
            f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."
        ) from error


class Engine:
    """One loaded model with one conversation. Use it from one thread at a time.

    With a store, what was measured here before is not measured again; with `phrases` too, those of earlier sessions
    are used, and with `learn` those of each reply are kept there. Troubles that cost no text, such as a store that
    cannot be written, are told through `notice`; what takes a while on the first load, through `progress`. The
    models of an engine `beside` it, with which it takes turns, are shared as far as they are what `choice` says; its
    target must be. With `tune` hyper-parameters that were found before are searched again.
    Raises DoesNotFit, LocalspecError for a broken model, UsageMistake where `choice.exact` cannot be had.
    """

    def __init__(
        self,
        choice: Choice,
        *,
        store: Store | None = None,
        learn: bool = True,
        phrases: bool = True,
        notice: Callable[[str], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
        beside: "Engine | None" = None,
        tune: bool = False,
    ) -> None:
        began, self._idle_cores = time.perf_counter(), IdleCores()
        self.choice, self._notice, self._progress = choice, notice, progress
        self.target: Target = beside.target if beside else _load(choice)
        self._store, self._learn = store, learn
        self._cache = MeasurementCache(store, Reporter(notice, progress))
        self.profile = ModelProfile.of(choice, self._cache)
        self.revision = self.profile.revision
        self.exactness = self._measured_exactness()
        auto = choice.nodes and not choice.fixed
        self.costs = self.profile.costs(self.target) if auto else None
        self._trained = self._load_trained()
        alike = beside is not None and beside.choice.draft == choice.draft
        self.small: LoadedDraftModel | None = beside.small if beside and alike else self._load_small()
        self.hyperparameters = Hyperparameters()
        if beside and alike and beside.choice.drafter == choice.drafter and not tune:
            self.hyperparameters = beside.hyperparameters
        elif self.small:
            self.hyperparameters = hyperparameters(choice, self.target, self.small, self.profile, self.costs, tune)
        history = phrases and (not kind_of(choice.drafter).parts or "history" in choice.parts)
        self._pool_id = None if store is None or not history else self._open_pool(store, choice.target.path)
        reader = None if store is None or self._pool_id is None else partial(store.phrases, self._pool_id)
        self.pool = pool_of(choice, self.target, self.small, reader)
        drafter = drafter_of(choice, self.target, self.pool, self._trained, self.small, self.hyperparameters)
        self.session = Session(self.target, drafter, Budget(choice.nodes, self.costs))
        self._told_of_spilling = self._told_of_context = False
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
        learn = settings.log and settings.pool == "user"
        cache, drafter = MeasurementCache(store), requested_drafter(settings, card)
        measurements = CachedMeasurements(cache, settings.exact, settings.context)
        options = choices(model_of(card), drafter, settings, measurements=measurements)
        for choice, smaller in zip_longest(options, options[1:]):
            phrases = settings.pool != "off" and choice.drafter != "none"
            try:
                engine = cls(choice, store=store, learn=learn, phrases=phrases, notice=notice, progress=progress)
                break
            except DoesNotFit as trouble:
                if smaller is None:
                    raise
                notice(f"{trouble} It is tried once more with less: {smaller.reason}.")
        if engine.sampling(settings).rule == "typical":
            notice("with --accept typical the text is not exactly what the model alone would have written.")
        return engine

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""
        return self.target.context

    def peak_bytes(self) -> int:
        """The most memory this process ever held: on the device, or of main memory where that is the device."""
        return peak_memory(str(self.target.device))

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

        Stop asking for events to stop the reply: what was said stays. Raises UsageMistake for a last prompt that is too
        long by itself.
        """
        torch.set_num_threads(self._idle_cores())
        limits = limits or Limits()
        prompt, dropped, least = fitting(self.target, messages, limits, holds := self._holds())
        if least != limits and not self._told_of_context:
            self._told_of_context = True
            self._notice(f"the memory of {self.choice.device} holds {holds} tokens of context now; replies end there.")
        limits = least
        stream = self.session.generate(prompt, sampling, limits)  # what refuses the prompt leaves nothing to keep
        try:
            with closing(stream):  # a reply that was stopped is settled before its phrases are kept
                for event in stream:
                    yield Prefill(event.done, event.total, dropped) if isinstance(event, Prefill) else event
        finally:
            self._keep(len(prompt))

    def _holds(self) -> int:
        """Tokens of context that fit: the model's own, or fewer where memory is short."""
        device, cache = this_machine().device(self.choice.device), self.session.cache
        assert device is not None
        one = self.target.cache(1)
        held = max(cache.capacity, device.usable // (one.nbytes // one.capacity))
        return min(self.target.context, max(0, held - self.choice.nodes - 1))

    def gap(self, tokens: Sequence[int], one: int, other: int) -> float:
        """By how much the target's logit of token `one` exceeds that of `other`, behind these tokens."""
        with torch.inference_mode():
            causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=self.target.device).tril_()
            positions = torch.arange(len(tokens), device=self.target.device)
            row = torch.tensor(tokens, device=self.target.device)
            logits = self.target.forward(row, positions, causal, last=True).logits[0]
        return float(logits[one] - logits[other])

    def _measured_exactness(self) -> Exactness:
        choice, widest = self.choice, max(self.choice.nodes, AUTO_NODES) + 1
        found = self.profile.exactness(self.target, widest, choice.exact)
        if choice.exact and not found.bitwise:
            raise UsageMistake(
                f"{choice.target.name} cannot be exact bit for bit in {choice.dtype} on {choice.device}: its logits "
                f"differ by up to {found.largest:.1e} of the largest; try another precision, or leave --exact out."
            )
        return found

    # -- what is drafted with -----------------------------------------------------------------------------------------

    def _load_trained(self) -> TrainedDrafter | None:
        if self.choice.trained is None:
            return None
        drafter = load_drafter(self.choice.trained, self.target)
        drafter.calibration = self.profile.recall(self._calibration) or Calibration()
        return drafter

    @property
    def _calibration(self) -> Quantity[Calibration]:
        """What this drafter's confidence is worth."""
        trained = self.choice.trained
        name = f"calibration of {trained.kind} {trained.bytes} {trained.path}" if trained else ""
        return Quantity(name, Calibration.from_json, Calibration.as_json)

    def _load_small(self) -> LoadedDraftModel | None:
        draft = self.choice.draft
        if draft is None:
            return None
        small = _load(draft)
        compare_tokens(small, self.target, draft.target.path)
        if not small.answers():
            raise LocalspecError(
                f"The draft model {draft.target.name} gives no numbers ({small.dtype}); its weights are damaged, or "
                "too large for this format: fetch it again."
            )
        profile = ModelProfile.of(draft, self._cache)
        return LoadedDraftModel(small, profile, profile.costs(small) if self.costs else None)

    # -- phrases of earlier sessions ----------------------------------------------------------------------------------

    def _open_pool(self, store: Store, path: Path) -> int | None:
        name = self.choice.target.name
        try:
            return store.pool(
                name, f"{tokenizer_hash(self.target.tokenizer)}-{self.revision[:16]}", str(path), make=self._learn
            )
        except StoreTrouble as trouble:
            self._notice(str(trouble))
            return None

    def _keep(self, start: int) -> None:
        """One transaction a reply. What cannot be kept costs the next session time and this one nothing."""
        said = self.session.statistics if not self.choice.fixed else None
        if said is not None:
            self._look_for_spilling(said)
        if not self._learned(start):
            return  # one trouble is waited for, and told, once
        if self._trained is not None:
            self.profile.remember(self._calibration, self._trained.calibration)
        if said is not None:
            small = self.choice.draft.target if self.choice.draft else None
            self.profile.add_reply(reply_key(self.choice.drafter, self.choice.trained, small), said)

    def _learned(self, start: int) -> bool:
        """Keeps the phrases of a reply, if any are to be kept; whether the store gave no trouble."""
        if self._store is None or self._pool_id is None or not self._learn or self._store.read_only:
            return True
        phrases, used = self.pool.harvest(start)
        try:
            self._store.learn(self._pool_id, phrases, used)
        except StoreTrouble as trouble:
            self._notice(str(trouble))
            return False
        return True

    def _look_for_spilling(self, said: Statistics) -> None:
        """Where a graphics card is full, Windows moves weights to main memory and says nothing; steps tell it."""
        if self._told_of_spilling or self.costs is None or self.target.device.type != "cuda" or said.steps < FEW_STEPS:
            return
        usual = self.costs.at(round(1 + said.drafted / said.steps), len(self.session.tokens))
        if said.verify_seconds / said.steps > SUDDEN * usual:
            self._told_of_spilling = True
            self._notice(
                f"a step takes {said.verify_seconds / said.steps / usual:.0f} times what it took when it was measured: "
                f"the memory of {self.choice.device} may be full, and part of it moved to main memory; close other "
                "programs, or give a smaller --context or --quantize nf4."
            )
