"""The demo model itself: the stock model's ids, whatever is drafted, on the prompts a person would try first."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from each import each
from machines import cpu, machine
from safetensors.torch import load_file
from scripted_drafters import OffChain, RandomBranches
from tiny_models import Tiny, read, stock_logits

import localspec
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.ouroboros import Pair, draft_model, ouroboros
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.trained import WEIGHTS, drafter_class, load_drafter
from localspec.engine.loading import load_target
from localspec.events import Done, Reporter, Statistics, Text
from localspec.machine.machine import this_machine
from localspec.models.drafter_cards import read_drafter
from localspec.models.registry import TargetCard
from localspec.native.target import NativeTarget
from localspec.nn.target import Target
from localspec.training.target import load_target as to_train_on
from localspec.training.trainable import make_drafter

PROMPTS = ["Who are you?", "Tell me a short story about a fox.", "What is 2 + 3?"]
COUNT = 32
SHIPPED = sorted(path.name for path in (Path(localspec.__file__).parent / "demo" / "drafters").iterdir())

StockAnswer = Callable[[str], tuple[list[int], int]]


@pytest.fixture(scope="module")
def demo_path() -> Path:
    return Path(localspec.__file__).parent / "demo"


@pytest.fixture(scope="module")
def demo(demo_path: Path) -> Tiny:
    return read(demo_path)


@pytest.fixture(scope="module")
def stock(demo: Tiny) -> StockAnswer:
    """stock(question): its answer, computed once."""
    return cache(lambda question: stock_answer(demo, demo.target.encode([{"role": "user", "content": question}])))


def stock_answer(demo: Tiny, prompt: list[int], count: int = COUNT) -> tuple[list[int], int]:
    """Greedy ids of a plain loop over the stock model, and how many of them come before the first near-tie."""
    tokens = list(prompt)
    clear = None
    while len(tokens) < len(prompt) + count:
        logits = stock_logits(demo.stock, tokens)[-1]
        first, second = logits.topk(2).values.tolist()
        if clear is None and first - second < 1e-4:
            clear = len(tokens) - len(prompt)
        if (token := int(logits.argmax())) in demo.target.stop_tokens:
            break
        tokens.append(token)
    reply = tokens[len(prompt) :]
    return reply, len(reply) if clear is None else clear


@pytest.mark.slow
def test_the_logits_of_a_prompt_are_the_stock_models(demo: Tiny) -> None:
    tokens = demo.target.encode([{"role": "user", "content": " ".join(PROMPTS)}])
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    with torch.no_grad():
        ours = demo.target.forward_tensors(torch.tensor(tokens), torch.arange(len(tokens)), mask).logits
    stock = stock_logits(demo.stock, tokens)
    assert (ours - stock).abs().max() < 1e-5 * stock.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "quantize"), [("fp32", "none"), ("bf16", "none"), ("auto", "int8"), ("fp32", "int8"), ("auto", "int4")]
)
def test_its_bytes_are_known_before_it_is_loaded(demo_path: Path, dtype: str, quantize: str) -> None:
    """To the byte by our library, and by torch where that computes on a processor: packed weights to train on."""
    card = TargetCard("demo", demo_path, None, "")
    settings = Settings(device="cpu", dtype=dtype, quantize=quantize, drafter="phrases")
    choice = choose(card, settings)
    assert choice.engine == "native" and load_target(choice, Reporter()).nbytes == choice.loaded_bytes
    trained_on = choose(card, settings, this_machine().as_torch_has_it())
    assert trained_on.engine == "torch" and to_train_on(trained_on, Reporter()).nbytes == trained_on.loaded_bytes
    if quantize == "none":
        alone = choose(card, Settings(dtype=dtype, drafter="phrases"), machine(cpu(packings=(), bf16=False)))
        assert alone.engine == "torch" and load_target(alone, Reporter()).nbytes == alone.loaded_bytes


@pytest.mark.slow
@pytest.mark.parametrize("question", PROMPTS)
def test_greedy_ids_are_those_of_a_plain_loop_over_the_stock_model(
    demo: Tiny, stock: StockAnswer, question: str
) -> None:
    prompt = demo.target.encode([{"role": "user", "content": question}])
    text, clear = stock(question)
    assert len(text) > 3, "the demo model says something"
    # After a near-tie, two correct computations may differ; none of these prompts should come near a tie.
    assert clear == len(text)
    for drafter in (
        Autoregressive(),
        WithPhrases(Autoregressive(), PhrasePool(demo.target.special_tokens)),
        OffChain(prompt + text),
        RandomBranches(prompt + text, seed=1),
    ):
        events = list(Session(demo.target, drafter, Budget(8)).generate(prompt, Sampling(), Limits(max_tokens=COUNT)))
        assert [token for event in events if isinstance(event, Text) for token in event.tokens] == text
        assert isinstance(events[-1], Done)
        if isinstance(drafter, OffChain):
            assert events[-1].statistics.acceptance_length > 1.5


@pytest.mark.slow
def test_a_seed_gives_the_same_ids_with_and_without_phrases(demo: Tiny) -> None:
    prompt = demo.target.encode([{"role": "user", "content": PROMPTS[1]}])
    pool = PhrasePool(demo.target.special_tokens)
    for seed in range(2):
        replies = []
        for drafter in (Autoregressive(), WithPhrases(Autoregressive(), pool)):
            session = Session(demo.target, drafter, Budget(8))
            events = list(session.generate(prompt, Sampling(0.8, top_p=0.95, seed=seed), Limits(max_tokens=COUNT)))
            replies.append([token for event in events if isinstance(event, Text) for token in event.tokens])
            session.rewind(0)
        assert replies[0] == replies[1]


WARM = PROMPTS[1], Sampling(0.8, top_p=0.95, seed=1)


@pytest.fixture(scope="module")
def warm_text(demo: Tiny) -> list[int]:
    """Return the answer of plain decoding to WARM."""
    return answer(demo.target, Autoregressive(), *WARM)[0]


def answer(target: Target, drafter: object, question: str, sampling: Sampling) -> tuple[list[int], Statistics]:
    session = Session(target, drafter, Budget(16))
    prompt = target.encode([{"role": "user", "content": question}])
    *events, done = session.generate(prompt, sampling, Limits(max_tokens=COUNT))
    return [token for event in events if isinstance(event, Text) for token in event.tokens], done.statistics


@each("kind", SHIPPED)
def test_its_drafters_are_saved_under_the_names_they_were_read_by(demo: Tiny, demo_path: Path, kind: str) -> None:
    card = read_drafter(demo_path / "drafters" / kind)
    options = {**drafter_class(kind).BEFORE, **card.options}
    stored, weights = load_file(card.path / WEIGHTS), make_drafter(kind, demo.target, options)
    weights.load_tensors(stored)
    again = weights.tensors()
    assert again.keys() == stored.keys()
    assert all(torch.equal(again[name].to(tensor.dtype), tensor) for name, tensor in stored.items())


@pytest.fixture(scope="module", params=["int8", "int4"])
def bitwise(request: pytest.FixtureRequest, demo_path: Path) -> Callable[[str], Any]:
    """bitwise(name): the demo model, or its draft model, on the CPU engine, whose rows never depend on each other."""
    return cache(lambda name="": NativeTarget.open(demo_path / name, packing=request.param))


@pytest.mark.slow
def test_its_trained_drafters_change_no_bit(demo_path: Path, bitwise: Callable[..., Any]) -> None:
    target = bitwise()
    sampling = Sampling(0.8, top_p=0.95, seed=3)
    plain, _ = answer(target, Autoregressive(), PROMPTS[1], sampling)
    for kind in SHIPPED:
        drafter = load_drafter(read_drafter(demo_path / "drafters" / kind), target)
        assert answer(target, drafter, PROMPTS[1], sampling)[0] == plain, kind


def paired(target: Any, small: Any) -> dict[str, Drafter]:
    """Return all combinations in which the demo's draft model drafts for it."""
    vocabulary, special = target.vocab_size, target.special_tokens
    pair = Pair(special, vocabulary, small, PhrasePool(special, None, vocabulary))
    chosen = Hyperparameters(4, 2, 4, 3)
    alone = draft_model(pair, chosen, False, None, True)
    return {
        "alone": alone,
        "with phrases": WithPhrases(alone, pair.pool, anywhere=True),
        "ouroboros": ouroboros(pair, chosen, None, False),
        "beside": ouroboros(pair, chosen, None, True, ("accelerating", "lengthening", "beside")),
    }


@pytest.mark.slow
def test_its_draft_model_helps_and_changes_nothing(
    demo: Tiny, demo_path: Path, stock: StockAnswer, warm_text: list[int]
) -> None:
    """Its picks are mostly the demo's; a small model that was not trained for it would hardly ever agree."""
    small, counts = Target.load(demo_path / "draft"), {name: [0, 0] for name in paired(demo.target, demo.target)}
    for question in PROMPTS[:2]:
        text, _ = stock(question)
        for name in counts:
            drafter = paired(demo.target, small)[name]
            ids, statistics = answer(demo.target, drafter, question, Sampling())
            assert ids == text, name
            counts[name][0] += len(ids)
            counts[name][1] += statistics.steps
    for name, drafter in paired(demo.target, small).items():
        assert answer(demo.target, drafter, *WARM)[0] == warm_text, name
    lengths = {name: tokens / steps for name, (tokens, steps) in counts.items()}
    assert min(lengths.values()) > 1.7, lengths
    assert lengths["beside"] > lengths["ouroboros"], "phrases serve where the draft model errs"


@pytest.mark.slow
def test_its_draft_model_changes_no_bit(bitwise: Callable[..., Any]) -> None:
    target, small = bitwise(), bitwise("draft")
    sampling = Sampling(0.8, seed=3)
    plain, _ = answer(target, Autoregressive(), PROMPTS[1], sampling)
    for name, drafter in paired(target, small).items():
        assert answer(target, drafter, PROMPTS[1], sampling)[0] == plain, name


def test_it_stops_by_itself(demo: Tiny) -> None:
    prompt = demo.target.encode([{"role": "user", "content": PROMPTS[0]}])
    session = Session(demo.target, WithPhrases(Autoregressive(), PhrasePool(demo.target.special_tokens)), Budget(8))
    *_, done = session.generate(prompt, Sampling(), Limits(max_tokens=200))
    assert isinstance(done, Done)
    assert done.reason == "stop"
