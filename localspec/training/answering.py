"""Who lets a target answer prompts: transformers, many at once, or our engine, one after the other.

On a GPU only throughput matters, which batches have. Our CPU engine has none, and needs none as much: it computes with
packed weights, where a batch needs dense ones, and speculates, which changes no token.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.config import Settings
from localspec.decoding.sampling import Limits, Sampling
from localspec.engine.engine import Engine
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake, out_of_memory
from localspec.events import Done, Reporter
from localspec.machine.machine import this_machine
from localspec.machine.memory import free_memory
from localspec.models.messages import Message
from localspec.models.registry import TargetCard
from localspec.store.store import Store
from localspec.weights.checkpoint import is_packed, revision

BATCH = 16  # prompts at once, where nothing else was asked for


@dataclass(frozen=True)
class Way:
    """How replies are to be written: at most `max_tokens` long; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Reply:
    """The ids of a reply, without its end mark, and whether it came to one."""

    tokens: Sequence[int]
    finished: bool


class Answerer(Protocol):
    """A model that answers `at_once` conversations together. `model` identifies it and its precision."""

    at_once: int
    model: list[str]

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Returns the token ids of a conversation that waits for the assistant."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of a reply."""

    def answer(self, conversations: Sequence[Sequence[Message]], way: Way, draw: str) -> list[Reply]:
        """Answers each of them; where replies are drawn, `draw` and the seed decide. Raises DoesNotFit."""


def answerer(
    card: TargetCard, settings: Settings, batch: int | None, store: Store | None, reporter: Reporter
) -> Answerer:
    """Returns who answers for a model with these settings: `batch` prompts at once, where that is asked for.

    On a CPU this takes transformers and dense weights. Raises UsageMistake for a batch that cannot be had, and what
    choosing and loading a model raise.
    """
    choice = answering_choice(card, settings, batch, store, reporter)
    if can_batch(choice):
        return Batched(choice, batch or BATCH)
    if batch is not None:
        raise UsageMistake(
            f"--batch {batch} has no effect in {choice} on {choice.device}, where prompts are answered one "
            "after the other; leave it out."
        )
    return OneByOne(Engine(choice, store=store, phrases="off", reporter=reporter))


def answering_choice(
    card: TargetCard, settings: Settings, batch: int | None, store: Store | None, reporter: Reporter
) -> Choice:
    """Returns how the model that answers is loaded: with whatever drafts there, where it answers one by one."""
    own = replace(settings, drafter="auto", draft_max="auto", accept="exact", exact=False, context=None)
    plain = replace(own, drafter="none")
    known = Measurements(MeasurementCache(store, reporter))
    choice = choose(card, own, measurements=known)
    if can_batch(choice):
        return choose(card, plain, measurements=known)
    if batch is not None and choice.engine == "native" and settings.quantize in ("auto", "none"):
        return choose(card, replace(plain, device="cpu", quantize="none"), this_machine().as_torch_has_it(), known)
    return choice


def can_batch(choice: Choice) -> bool:
    """Return whether transformers computes what is chosen: a directory's weights, dense or on CUDA bitsandbytes'."""
    own = choice.engine == "torch" and not is_packed(choice.target.path)
    return own and (choice.quantize == "none" or choice.device.startswith("cuda"))


class OneByOne:
    """Our engine, with whatever drafts there; it keeps no phrases."""

    at_once = 1

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model = _identity(engine.choice)

    @property
    def context(self) -> int:
        return self._engine.context

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return self._engine.target.encode(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._engine.target.decode(tokens)

    def answer(self, conversations: Sequence[Sequence[Message]], way: Way, draw: str) -> list[Reply]:
        sampling = Sampling(temperature=way.temperature, seed=_number(way, draw))
        return [self._answer(messages, sampling, Limits(way.max_tokens)) for messages in conversations]

    def _answer(self, messages: Sequence[Message], sampling: Sampling, limits: Limits) -> Reply:
        *_, done = self._engine.chat(messages, sampling, limits)
        assert isinstance(done, Done)
        return Reply(done.statistics.token_ids, done.reason == "stop")


class Batched:
    """transformers' `generate`; the model is loaded once something is asked."""

    def __init__(self, choice: Choice, at_once: int) -> None:
        from localspec.nn.target import Target  # torch takes seconds to import

        self._choice, self.at_once = choice, at_once
        self._light = Target.load(choice.target.path, device="meta")  # tokenizer, template and stop tokens only
        self.model = _identity(choice)

    @property
    def context(self) -> int:
        return self._light.context

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return self._light.encode(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._light.decode(tokens)

    def answer(self, conversations: Sequence[Sequence[Message]], way: Way, draw: str) -> list[Reply]:
        """Prompts are padded on the left."""
        import torch

        torch.manual_seed(_number(way, draw))
        prompts = [self.encode(messages) for messages in conversations]
        longest = max(map(len, prompts))
        device = self._model.device
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        sampling: dict[str, Any] = {"do_sample": way.temperature > 0}
        if way.temperature > 0:
            sampling |= {"temperature": way.temperature, "top_k": 0, "top_p": 1.0}
        stops = sorted(self._light.stop_tokens)
        try:
            with torch.inference_mode():
                found = self._model.generate(
                    ids, attention_mask=seen, max_new_tokens=way.max_tokens, eos_token_id=stops or None,
                    pad_token_id=stops[0] if stops else 0, **sampling,
                )  # fmt: skip
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise DoesNotFit(
                f"{len(prompts)} prompts at once do not fit in the memory of {device}; give a smaller --batch."
            ) from error
        return [self._ended(reply) for reply in found[:, longest:].tolist()]

    def _ended(self, reply: list[int]) -> Reply:
        """A reply without its end mark, and the padding after it."""
        end = next((at for at, token in enumerate(reply) if token in self._light.stop_tokens), None)
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
            raise DoesNotFit(
                f"{choice.target.name} needs {needed / 2**30:.1f} GiB of memory and {free / 2**30:.1f} GiB are free; "
                "close other programs, or choose a smaller model."
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
    """What transformers is told of packed weights, which are the ones that our engine has there; None of dense ones."""
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


def _number(way: Way, draw: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{way.seed} {draw}".encode()).digest()[:4], "big")
