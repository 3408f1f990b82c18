"""Stage e: compares localspec with transformers (eager, compiled, assisted, with prompt look-up) on the same weights."""

import time
from collections.abc import Sequence
from functools import cached_property, partial
from statistics import median
from typing import Any, Protocol

import compare_peers
import torch
from figures import figure, table

from gpu_stages.aims import Aim, failed
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.wide import questions_of, settings_of, wide_demo, without_phrases
from localspec import Engine, Limits
from localspec.bench.prompts import message
from localspec.choosing.choose import choose
from localspec.errors import first_line
from localspec.machine.hardware import wait_for
from localspec.machine.memory import give_back
from localspec.models.registry import TargetCard
from localspec.store.store import Store

PRECISION = "bf16"
PLAIN, EAGER = "localspec none", "transformers"
OURS = ("none", "phrases", "medusa", "eagle3", "draft_model")
SMALL_OURS = ("none", "medusa")
LOADED, COMPILED = 15.0, 90.0  # seconds that a first reply may take
LOOKED_UP = 10  # tokens of a draft that is looked up in the prompt, as on transformers' own pages
TURNS, TOKENS = 24, 96
SMALL_TURNS, SMALL_TOKENS = 1, 12


class Contender(Protocol):
    """A program that answers a prompt and returns its speed."""

    def tokens_per_second(self, prompt: str) -> float: ...


class Clock:
    """A stopping criterion for `generate` that never stops, but records when the first tokens came."""

    def __init__(self, device: str) -> None:
        self._device, self.began, self.length = device, 0.0, 0

    def __call__(self, ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        if not self.length:
            wait_for(self._device)
            self.began, self.length = time.perf_counter(), ids.shape[1]
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    def tokens_per_second(self, length: int) -> float:
        """Return the tokens/s after the first tokens. `length` is the length of the output in tokens."""
        wait_for(self._device)
        return max(0, length - self.length) / (time.perf_counter() - self.began)


class Generate:
    """A contender that runs transformers' `generate` with some options. Other contenders use the same loaded model."""

    def __init__(self, stock: Any, engine: Engine, tokens: int, **options: Any) -> None:
        self._stock, self._target, self._tokens, self._options = stock, engine.target, tokens, options

    @torch.inference_mode()
    def tokens_per_second(self, prompt: str) -> float:
        device, stops = str(self._stock.device), sorted(self._target.stop_tokens)
        clock, ids = Clock(device), torch.tensor([self._target.encode(message(prompt))], device=device)
        output = self._stock.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self._tokens, do_sample=False, eos_token_id=stops,
            pad_token_id=stops[0], stopping_criteria=[clock], **self._options,
        )  # fmt: skip
        return clock.tokens_per_second(int(output.shape[1]))


class Everybody:
    """A collection of all contenders by name. Each is loaded at its first use."""

    def __init__(self, request: Request, card: TargetCard, store: Store) -> None:
        self._request, self._card, self._store, self._contenders = request, card, store, dict[str, Contender]()
        self._tokens = SMALL_TOKENS if request.small else TOKENS
        self._limits = Limits(self._tokens)

    @property
    def names(self) -> Sequence[str]:
        variants = [f"localspec {name}" for name in (SMALL_OURS if self._request.small else OURS)]
        return [*variants, EAGER, "transformers, compiled", "transformers, assisted", "transformers, prompt look-up"]

    def __getitem__(self, name: str) -> Contender:
        if name not in self._contenders:
            self._contenders[name] = self._make(name)
        return self._contenders[name]

    @cached_property
    def _plain(self) -> Engine:
        return Engine(self._choice("none"), store=self._store, phrases="off", measured=True)

    @cached_property
    def _stock(self) -> compare_peers.Transformers:
        return compare_peers.Transformers(self._plain, self._limits)

    def _choice(self, drafter: str) -> Any:
        return choose(self._card, without_phrases(settings_of(self._request, PRECISION), drafter))

    def _make(self, name: str) -> Contender:
        kind = name.removeprefix("localspec ")
        if kind == "none":
            return compare_peers.Ours(self._plain, self._limits)
        if kind != name:
            return compare_peers.Ours(
                Engine(self._choice(kind), store=self._store, phrases="off", share_with=self._plain, measured=True),
                self._limits,
            )
        if name == EAGER:
            return self._stock
        options: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKED_UP}
        if name.endswith("compiled"):  # transformers compiles by itself on CUDA if the cache is static
            options = {"cache_implementation": "static", "disable_compile": not self._request.on_gpu}
        elif name.endswith("assisted"):
            options = {"assistant_model": self._assistant}
        return Generate(self._stock.model, self._plain, self._tokens, **options)

    @cached_property
    def _assistant(self) -> Any:
        from transformers import AutoModelForCausalLM

        draft = self._card.path / "draft"
        loaded = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16, local_files_only=True)
        return loaded.to(self._request.device)


def run(record: Record, request: Request) -> None:
    """Run each contender once, which loads and compiles it. Then let all of them answer each prompt, in changing order."""
    card = wide_demo(request)
    asked_prompts = [prompt.text for prompt in questions_of(request, SMALL_TURNS if request.small else TURNS)]
    longest = max(asked_prompts, key=len)  # code compiled for this text serves shorter ones, too
    with Store.open(request.work / "measured-peers.db", print) as store:
        everybody = Everybody(request, card, store)
        turns = [f"turn {number}" for number in range(len(asked_prompts))]
        if all(turn in record.figures for turn in turns):
            return
        able = []
        for name in everybody.names:
            # Whatever was saved, every program that answers has to be warm in this process.
            why = first_reply(record, everybody, name, longest)
            able += [] if why else [name]
            give_back(request.device)
        for number, (turn, prompt) in enumerate(zip(turns, asked_prompts, strict=True)):
            order = able[number % len(able) :] + able[: number % len(able)]
            record.measured(turn, partial(all_of, everybody, order, prompt), least=10)


def first_reply(record: Record, everybody: Everybody, name: str, prompt: str) -> str:
    """Let a contender answer for the first time. Return the reason if that fails, otherwise an empty text."""
    record.figures.pop(f"first {name}", None)
    began = time.perf_counter()

    def answer() -> dict[str, float]:
        everybody[name].tokens_per_second(prompt)
        return {"seconds": time.perf_counter() - began}

    return failure(record.measured(f"first {name}", answer, least=COMPILED if name.endswith("compiled") else LOADED))


def all_of(everybody: Everybody, order: Sequence[str], prompt: str) -> dict[str, Any]:
    """Return the tokens/s of all contenders for one prompt. If one of them fails, the others are still measured."""
    speeds: dict[str, Any] = {}
    for name in order:
        try:
            speeds[name] = everybody[name].tokens_per_second(prompt)
        except RuntimeError as error:
            speeds[name] = {"failed": first_line(error)}
    return speeds


# -- the page ----------------------------------------------------------------------------------------------------------


def gains(figures: dict[str, Any], rival: str) -> dict[str, list[float]]:
    """Return each contender's speedups over the contender `rival`, one for each prompt."""
    ratios: dict[str, list[float]] = {}
    for name, turn in figures.items():
        if name.startswith("turn ") and not failure(turn) and number(turn.get(rival)):
            for who, speed in turn.items():
                if number(speed):
                    ratios.setdefault(who, []).append(speed / turn[rival])
    return ratios


def number(speed: Any) -> bool:
    """Return whether a speed was measured. A reply of one token has no speed."""
    return isinstance(speed, float) and speed > 0


def section(figures: dict[str, Any]) -> str:
    turns = [turn for name, turn in figures.items() if name.startswith("turn ") and not failure(turn)]
    parts = []
    if turns:
        times, beside_plain = gains(figures, EAGER), gains(figures, PLAIN)
        lines = []
        for name in sorted(times, key=lambda who: -median(times[who])):
            speeds = [turn[name] for turn in turns if number(turn.get(name))]
            over_plain = beside_plain.get(name)
            lines.append([
                name, f"{median(speeds):.1f}", figure(median(times[name])), figure(median(over_plain) if over_plain else None),
                figure(figures.get(f"first {name}", {}).get("seconds"), "{:.1f} s"),
            ])  # fmt: skip
        heads = ["who", "tokens/s", "× of transformers", "× of our plain decoding", "first reply"]
        parts.append(
            f"The widened demo in {PRECISION}, greedy, {len(turns)} prompts in turns; medians, ratios prompt by prompt. The "
            f"first reply loads and, where it says so, compiles.\n\n{table(heads, lines)}"
        )
    return "\n\n".join(
        [*parts, *failed({name: result for name, result in figures.items() if name.startswith("first ")})]
    )


def aims(figures: dict[str, Any]) -> list[Aim]:
    times = {name: median(ratios) for name, ratios in gains(figures, EAGER).items()}
    local = max((gain for name, gain in times.items() if name.startswith("localspec")), default=None)
    peer = max((gain for name, gain in times.items() if name.startswith("transformers")), default=None)
    ahead = local / peer if local and peer else None
    return [
        Aim("speed of our plain decoding ÷ transformers as it starts", times.get(PLAIN), 1.0),
        Aim("speed with our best drafter ÷ the best of transformers", ahead, 1.0),
    ]
