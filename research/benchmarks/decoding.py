"""Replies to real prompts: every program plain, and with each way of speculation that it has."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import checkout  # noqa: F401
import torch
from llama_cpp_model import Gguf

from benchmarks.contenders import OURS, THEIRS, load_stock
from benchmarks.llama_speculation import DraftModel, Propose, Reply, look_up, nothing, reply
from benchmarks.readings import OtherPrograms, cell, turns
from benchmarks.sections import Measured, Wanted
from benchmarks.workshop import Model
from localspec import Choice, Done, Engine, Limits, Sampling, config
from localspec.bench.prompts import message
from localspec.choosing.choose import choose
from localspec.models import drafter_cards, registry
from localspec.store.store import Store

PLAIN, DRAFT_MODEL = "plain", "draft model"
ROOM = 1024
LOOK_UPS = {"look-up 2": 2, "look-up 10": 10}  # tokens ahead: llama-cpp-python's advice for CPUs, and its default
AHEAD = 10  # as in the manual of transformers

Answer = Callable[[str], Reply]


def measure(model: Model, wanted: Wanted) -> Measured:
    """One prompt a turn, answered greedily by everybody; milliseconds a token from the first token on."""
    measured = Measured()
    counted = measured.notes["replies"] = {}
    with TemporaryDirectory() as place, ExitStack() as stack:
        store = stack.enter_context(Store.open(Path(place) / "localspec.db", wanted.progress))
        plain = {packing: Engine(_choice(model, packing, "none"), store=store, phrases="off") for packing in OURS}
        answers: dict[str, Answer] = {}
        for packing, engine in plain.items():
            answers |= _ours(model, packing, engine, store, wanted)
        target = plain[OURS[0]].target
        asked = {text: target.encode(message(text)) for text in wanted.prompts}
        if "llama.cpp" in wanted.peers:
            for kind in THEIRS:
                answers |= _llama_cpp(model, kind, asked, target.stop_tokens, wanted, stack)
        if "transformers" in wanted.peers:
            answers |= _transformers(model, asked, target.stop_tokens, wanted)
        names = list(answers)
        for turn, order in turns(len(names), wanted.seconds):
            text, first = wanted.prompts[turn % len(wanted.prompts)], {}
            for index in order:
                name = names[index]
                wanted.progress(f"prompt {turn + 1}, {name.replace('|', ', ')}")
                others = OtherPrograms()
                first[name] = found = answers[name](text)
                if len(found.tokens) > 1:
                    measured.add(name, turn, 1e3 * found.seconds / (len(found.tokens) - 1), others())
            for name, found in first.items():
                told = counted.setdefault(name, {"replies": 0, "tokens": 0, "steps": 0, "same": 0})
                told["replies"] += 1
                told["tokens"] += max(0, len(found.tokens) - 1)
                told["steps"] += found.steps
                told["same"] += found.tokens == first[cell(name.split("|")[0], PLAIN)].tokens
    return measured


def _choice(model: Model, packing: str, drafter: str) -> Choice:
    flags = {"quantize": packing, "drafter": drafter, "context": ROOM, "device": "cpu"}
    return choose(registry.resolve(str(model.path)), config.load(flags=flags))


def _ours(model: Model, packing: str, plain: Engine, store: Store, wanted: Wanted) -> dict[str, Answer]:
    """Measure our drafters: only phrases, each trained one with phrases, and the draft model."""
    trained = drafter_cards.trained_drafters(registry.resolve(str(model.path)))
    named = {PLAIN: "none", "phrases": "phrases"} | {f"{one.kind}+phrases": f"{one.kind}+phrases" for one in trained}
    named[DRAFT_MODEL] = f"draft_model:{model.draft.path}"
    answers: dict[str, Answer] = {}
    for column, drafter in named.items():
        wanted.progress(f"loading localspec {packing}, {column}")
        choice = _choice(model, packing, drafter)
        first = plain if column == PLAIN else Engine(choice, store=store, phrases="off", share_with=plain)
        answers[cell(f"localspec {packing}", column)] = partial(_our_reply, choice, first, store, wanted.max_tokens)
    return answers


def _our_reply(choice: Choice, first: Engine, store: Store, limit: int, text: str) -> Reply:
    """Return a reply of a new engine, because phrases of one reply would speed up the next one."""
    engine = Engine(choice, store=store, phrases="off", share_with=first)
    *_, done = engine.chat(message(text), Sampling(), Limits(limit))
    assert isinstance(done, Done)
    told = done.statistics
    return Reply(list(told.token_ids), told.decode_seconds, told.steps)


def _llama_cpp(
    model: Model,
    kind: str,
    asked: Mapping[str, Sequence[int]],
    stops: Collection[int],
    wanted: Wanted,
    stack: ExitStack,
) -> dict[str, Answer]:
    """Return a draft model of the same kind, and look-ups."""

    def opened(one: Model) -> Gguf:
        gguf = Gguf(one.gguf(kind), one.config.vocab_size, ROOM, flash=one.flash)
        gguf.set_threads(one.threads)
        return stack.enter_context(closing(gguf))

    wanted.progress(f"loading llama.cpp {kind.upper()}")
    target, ways = opened(model), {PLAIN: nothing, **{name: look_up(ahead) for name, ahead in LOOK_UPS.items()}}
    ways[DRAFT_MODEL] = DraftModel(opened(model.draft))

    def answer(propose: Propose, text: str) -> Reply:
        return reply(target, asked[text], wanted.max_tokens, stops, propose)

    return {cell(f"llama.cpp {kind.upper()}", name): partial(answer, way) for name, way in ways.items()}


def _transformers(
    model: Model, asked: Mapping[str, Sequence[int]], stops: Collection[int], wanted: Wanted
) -> dict[str, Answer]:
    """`generate`, with its assisted decoding and its prompt look-up."""

    class Clock:
        """A criterion that is asked after each step, and stops nothing."""

        def __init__(self) -> None:
            self.seen: list[tuple[float, int]] = []

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            self.seen.append((time.perf_counter(), input_ids.shape[1]))
            return torch.zeros(1, dtype=torch.bool)

    wanted.progress("loading transformers")
    target, draft = load_stock(model), load_stock(model.draft)
    ways = {PLAIN: {}, "look-up": {"prompt_lookup_num_tokens": AHEAD}, "assisted": {"assistant_model": draft}}

    @torch.inference_mode()
    def answer(options: dict[str, Any], text: str) -> Reply:
        clock, prompt = Clock(), torch.tensor([list(asked[text])])
        out = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, temperature=None, top_p=None, top_k=None,
            max_new_tokens=wanted.max_tokens, eos_token_id=list(stops), pad_token_id=0, stopping_criteria=[clock],
            **options,
        )  # fmt: skip
        (first, had), (last, _) = clock.seen[0], clock.seen[-1]
        told = [token for token in out[0, prompt.shape[1] :].tolist() if token not in stops]
        # A first step may commit several tokens: the tokens after it are timed, as in each other reply.
        ahead = had - prompt.shape[1] - 1
        return Reply(told[min(ahead, len(told)) :], last - first, len(clock.seen) - 1)

    return {cell("transformers bf16", name): partial(answer, options) for name, options in ways.items()}
