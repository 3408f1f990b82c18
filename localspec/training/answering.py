"""Generates a target model's replies to many prompts, as training text for a drafter.

The prompts are answered in batches by transformers or the CPU engine, or one by one by torch. A batch raises
throughput: on a CPU, eight rows cost about as much as two. Each reply has its own cache, so replies in a batch do not
affect each other.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.engine.backends import Target
from localspec.engine.engine import Engine
from localspec.engine.loading import load_target
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake, fits_or, out_of_memory
from localspec.events import Done, Reporter
from localspec.machine.machine import this_machine
from localspec.machine.memory import free_memory
from localspec.models.messages import Message
from localspec.models.registry import TargetCard
from localspec.native.cache import NativeCache
from localspec.native.target import NativeTarget
from localspec.quantities import distinct, gib
from localspec.repetition import until_it_goes_round
from localspec.store.store import Store
from localspec.weights.checkpoint import is_packed, revision

BATCH = 16  # prompts at once by default
TEXTS = 8  # at once on a CPU
CHUNK = 256  # tokens of a prompt that are read at once
LOOKED = 32  # a reply is checked for repetition after this many tokens


@dataclass(frozen=True)
class GenerationSettings:
    """The settings for generating replies. A reply has at most `max_tokens` tokens, and temperature 0 is greedy.

    With `cut`, a reply ends where it starts to repeat itself, because repetitions are useless as training text.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Reply:
    """The token ids of a reply, without its end mark. `finished` says whether the model wrote the end mark."""

    tokens: Sequence[int]
    finished: bool


def answerer(
    card: TargetCard, settings: Settings, batch: int | None, store: Store | None, reporter: Reporter
) -> "BatchAnswerer":
    """Return a model that answers prompts with these settings, `batch` prompts at a time if `batch` is given.

    Raises UsageMistake if this model and device cannot answer in batches of a given size, and the errors of choosing
    and loading a model.
    """
    choice = answering_choice(card, settings, batch, store, reporter)
    if can_batch(choice):
        return Batched(choice, batch or BATCH)
    if choice.engine == "native" and batch is None:
        return Native(choice, reporter)
    if batch is not None:
        raise UsageMistake(
            f"--batch {batch} has no effect in {choice} on {choice.device}, where prompts are answered one "
            "after the other; leave --batch out."
            if choice.engine != "native"
            else f"--batch {batch} has no effect in {choice} on {choice.device}, where {TEXTS} prompts are answered at "
            "once; leave --batch out."
        )
    return OneByOne(Engine(choice, store=store, phrases="off", reporter=reporter))


def answering_choice(
    card: TargetCard, settings: Settings, batch: int | None, store: Store | None, reporter: Reporter
) -> Choice:
    """Return which device and precision to use for answering prompts. If prompts must be answered one by one, also
    choose the fastest drafter."""
    drafting = replace(settings, drafter="auto", draft_max="auto", accept="exact", exact=False, context=None)
    plain = replace(drafting, drafter="none")
    measured = Measurements(MeasurementCache(store, reporter))
    choice = choose(card, plain, measurements=measured)
    if not can_batch(choice) and choice.engine != "native":
        return choose(card, drafting, measurements=measured)
    if batch is not None and choice.engine == "native" and settings.quantize in ("auto", "none"):
        return choose(card, replace(plain, device="cpu", quantize="none"), this_machine().as_torch_has_it(), measured)
    return choice


def at_once(choice: Choice) -> int:
    """Return how many conversations can be answered together in about the time of one, according to measurements."""
    return BATCH if can_batch(choice) else TEXTS // 2 if choice.engine == "native" else 1


def can_batch(choice: Choice) -> bool:
    """Return whether transformers can run this choice. It needs a model directory, not a packed file. The weights must
    be dense, or on a CUDA device quantized by bitsandbytes."""
    in_torch = choice.engine == "torch" and not is_packed(choice.target.path)
    return in_torch and (choice.quantize == "none" or choice.device.startswith("cuda"))


class BatchAnswerer(ABC):
    """A model that answers up to `at_once` conversations together, with the tokenizer and chat template of `target`.

    `model` identifies the weights and their precision.
    """

    at_once: int

    def __init__(self, target: Target, choice: Choice) -> None:
        self._target, self.context, self.model = target, target.context, _identity(choice)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation that ends with a user's message."""
        return self._target.encode(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a reply."""
        return self._target.decode(tokens)

    @abstractmethod
    def answer(
        self, conversations: Sequence[Sequence[Message]], generation: GenerationSettings, draw: str
    ) -> list[Reply]:
        """Return a reply to each conversation. `generation.seed` and `draw` seed the sampling. Raises DoesNotFit."""


class Native(BatchAnswerer):
    """The CPU engine as an answerer. Several conversations are answered at once: each row of a forward pass belongs to
    a different conversation."""

    at_once = TEXTS

    def __init__(self, choice: Choice, reporter: Reporter) -> None:
        target = load_target(choice, reporter)
        assert isinstance(target, NativeTarget)
        super().__init__(target, choice)
        self._native = target

    def answer(
        self, conversations: Sequence[Sequence[Message]], generation: GenerationSettings, draw: str
    ) -> list[Reply]:
        sampling = Sampling(temperature=generation.temperature, seed=_number(generation, draw))
        texts = [self._first_token(self.encode(messages), generation, sampling) for messages in conversations]
        while under_way := [text for text in texts if text.goes_on]:
            tokens, caches = [text.tokens[-1] for text in under_way], [text.cache for text in under_way]
            picks = self._native.forward_each(tokens, caches).logits.picks(
                [cache.length + 1 for cache in caches], sampling
            )
            for row, text in enumerate(under_way):
                text.cache.keep([0])
                text.take(picks[row])
        return [text.reply for text in texts]

    def _first_token(
        self, prompt: Sequence[int], generation: GenerationSettings, sampling: Sampling
    ) -> "_ReplyInProgress":
        """Read a prompt, pick the first token of the reply, and return the reply in progress."""
        cache = self._native.cache(len(prompt) + generation.max_tokens)
        for start in range(0, len(prompt), CHUNK):
            part = prompt[start : start + CHUNK]
            output = self._native.forward(DraftTree.chain(part), cache, last=True)
            cache.keep(range(len(part)))
        text = _ReplyInProgress(cache, generation, self._native.stop_tokens)
        text.take(output.logits.picks([cache.length], sampling)[0])
        return text


@dataclass
class _ReplyInProgress:
    """A reply in progress: its cache, and its `tokens` so far. The last token is not yet in the cache."""

    cache: NativeCache
    generation: GenerationSettings
    ends: Collection[int]
    tokens: list[int] = field(default_factory=list)
    goes_on: bool = True
    finished: bool = False

    def take(self, token: int) -> None:
        """Append the token that the model picked, unless it is an end mark."""
        if token in self.ends:
            self.goes_on, self.finished = False, True
            return
        self.tokens.append(token)
        self.goes_on = len(self.tokens) < self.generation.max_tokens
        if (
            self.generation.cut
            and len(self.tokens) % LOOKED == 0
            and until_it_goes_round(self.tokens) < len(self.tokens)
        ):
            self.goes_on = False

    @property
    def reply(self) -> Reply:
        return cut_reply(Reply(self.tokens, self.finished), self.generation)


def cut_reply(reply: Reply, generation: GenerationSettings) -> Reply:
    """Return the reply. If `generation.cut` is set, cut the reply where it starts to repeat itself."""
    if not generation.cut or (end := until_it_goes_round(reply.tokens)) == len(reply.tokens):
        return reply
    return Reply(reply.tokens[:end], False)


class OneByOne(BatchAnswerer):
    """A model in torch with packed weights, which answers one conversation at a time with its best drafter."""

    at_once = 1

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.target, engine.choice)
        self._engine = engine

    def answer(
        self, conversations: Sequence[Sequence[Message]], generation: GenerationSettings, draw: str
    ) -> list[Reply]:
        sampling = Sampling(temperature=generation.temperature, seed=_number(generation, draw))
        return [self._answer(messages, sampling, generation) for messages in conversations]

    def _answer(self, messages: Sequence[Message], sampling: Sampling, generation: GenerationSettings) -> Reply:
        *_, done = self._engine.chat(messages, sampling, Limits(generation.max_tokens))
        assert isinstance(done, Done)
        return cut_reply(Reply(done.statistics.token_ids, done.reason == "stop"), generation)


class Batched(BatchAnswerer):
    """A model that answers several conversations at once with the `generate` function of transformers. It is loaded
    when the first prompts arrive."""

    def __init__(self, choice: Choice, at_once: int) -> None:
        from localspec.nn.target import Target as TorchTarget  # torch takes seconds to import

        light = TorchTarget.load(choice.target.path, device="meta")  # tokenizer, template and stop tokens only
        super().__init__(light, choice)
        self._choice, self.at_once = choice, at_once

    def answer(
        self, conversations: Sequence[Sequence[Message]], generation: GenerationSettings, draw: str
    ) -> list[Reply]:
        """Answer conversations, with prompts padded on the left."""
        import torch

        torch.manual_seed(_number(generation, draw))
        prompts = [self.encode(messages) for messages in conversations]
        longest = max(map(len, prompts))
        device = self._model.device
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        sampling: dict[str, Any] = {"do_sample": generation.temperature > 0}
        if generation.temperature > 0:
            sampling |= {"temperature": generation.temperature, "top_k": 0, "top_p": 1.0}
        stops = sorted(self._target.stop_tokens)
        too_many = f"{len(prompts)} prompts at once do not fit in the memory of {device}; give a smaller --batch."
        with fits_or(too_many), torch.inference_mode():
            replies = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=generation.max_tokens, eos_token_id=stops or None,
                pad_token_id=stops[0] if stops else 0, **sampling,
            )  # fmt: skip
        return [cut_reply(self._ended(reply), generation) for reply in replies[:, longest:].tolist()]

    def _ended(self, reply: list[int]) -> Reply:
        """Return a reply without its end mark and without the padding after it."""
        end = next((index for index, token in enumerate(reply) if token in self._target.stop_tokens), None)
        return Reply(reply[:end], end is not None)

    @cached_property
    def _model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        from localspec.nn.packing import DTYPES

        choice = self._choice
        needed, free = choice.loaded_bytes, free_memory(choice.device)
        if needed > free:
            needed_gib, free_gib = distinct(gib, needed, free)
            raise DoesNotFit(
                f"{choice.target.name} needs {needed_gib} GiB of memory, but only {free_gib} GiB are free; close other "
                "programs, or choose a smaller model."
            )
        logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                choice.target.path, dtype=DTYPES[choice.dtype], device_map={"": torch.device(choice.device)},
                quantization_config=bitsandbytes_config(choice), local_files_only=True, trust_remote_code=False,
            )  # fmt: skip
            return model.eval()
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            if out_of_memory(error):
                raise DoesNotFit(
                    f"{choice.target.name} does not fit in the memory of {choice.device}; choose a smaller model."
                ) from error
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LocalspecError(
                f"transformers cannot load {choice.target.path} ({first}); fetch the model again."
            ) from error


def bitsandbytes_config(choice: Choice) -> Any:
    """Return the quantization config that makes transformers pack weights as localspec does; None for dense weights."""
    if choice.quantize == "none":
        return None
    from transformers import BitsAndBytesConfig

    from localspec.nn.packing import DTYPES

    if choice.quantize == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=choice.threshold)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=choice.quantize, bnb_4bit_compute_dtype=DTYPES[choice.dtype]
    )


def _identity(choice: Choice) -> list[str]:
    packing = [] if choice.quantize == "none" else [choice.quantize]
    return [revision(choice.target.path), choice.dtype, *packing]


def _number(generation: GenerationSettings, draw: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{generation.seed} {draw}".encode()).digest()[:4], "big")
