"""A draft model: it drafts its own greedy text, reads each token once, and never changes the target's text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from session_replies import assert_plain, assert_stops_leave_no_trace, reply
from tiny_models import (
    END,
    LONGROPE,
    VOCABULARY,
    Tiny,
    byte_tokenizer,
    prompt_ids,
    read,
    stock_reply,
    word_tokenizer,
    write,
)
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.forward import ForwardOutput, TokenCache, common_prefix
from localspec.decoding.logits import NumpyHidden
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import COSTS_MORE, READS, SOURCE, UNUSED, DraftModel, build
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.pool import PhrasePool
from localspec.errors import UsageMistake
from localspec.models.small_model import compare_tokens
from localspec.nn.target import Target

Make = Callable[[str], Tiny]


def compared(small: Target, target: Target, path: Path) -> None:
    compare_tokens(small.tokenizer, small.vocab_size, target.tokenizer, path)


GREEDY, NODES = Sampling(), 4
LLAMA = "llama-many-heads-biases-llama3"
QWEN = "qwen3-grouped-mixed-window-wide-heads"
# A target, and a model of another family and shape that drafts for it; all have one tokenizer.
PAIRS = [
    (LLAMA, "qwen2-one-key-head"),
    (QWEN, "phi3-one-key-head-tied"),
    ("mistral-grouped-window-wide-heads", "llama-one-key-head-tied-linear"),
    ("phi3-grouped-window-partial-rotary", "qwen3-many-heads-tied-llama3"),
    ("qwen2-many-heads-mixed-window-tied", "mistral-many-heads-no-window"),
]
KIN = [LLAMA, QWEN]


@pytest.fixture(scope="module")
def kin(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """kin(name): return that model with slightly changed weights, so that it mostly picks the same tokens."""
    made: dict[str, Tiny] = {}

    def make(name: str) -> Tiny:
        if name not in made:
            model, generator = copy(tiny(name)), torch.Generator().manual_seed(1)
            stock = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
            with torch.no_grad():
                for parameter in stock.parameters():
                    parameter += 0.012 * torch.randn(parameter.shape, generator=generator)
            path = tmp_path_factory.mktemp("kin") / name
            stock.save_pretrained(path)
            model.target.tokenizer.save(path)
            made[name] = read(path)
        return made[name]

    return make


class Watched:
    """A small model whose forwards are counted.

    `rows` has the number of rows of each forward, `read` the text in the cache, and `again` the number of rows that were
    read although they were there already.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.rows, self.read, self.again = copy(target), list[int](), list[int](), 0
        forward = self.target.forward

        def watched(tree: DraftTree, cache: TokenCache, **named: Any) -> ForwardOutput:
            start, fresh = cache.length, list(tree.tokens)
            assert start <= len(self.read), "something was left out"
            self.again += common_prefix(fresh, self.read[start:])
            self.read[start:] = fresh
            self.rows.append(len(fresh))
            return forward(tree, cache, **named)

        self.target.forward = watched  # type: ignore[method-assign]


class Checked(DraftModel):
    """A draft model that checks each draft: it is the stock model's greedy continuation of the same text."""

    def __init__(self, small: Target, stock: Any, length: int | None = None) -> None:
        super().__init__(small, VOCABULARY, Autoregressive(), Budget(0), length)
        self.stock, self.lengths = stock, list[int]()

    def draft(self, context: Context) -> DraftTree:
        tree = super().draft(context)
        assert list(tree.parents) == list(range(-1, tree.size - 1))
        said = stock_reply(self.stock, list(context.committed), tree.size - 1, stops=())
        assert list(tree.tokens) == [context.root, *said]
        self.lengths.append(tree.size - 1)
        return tree


def drafting(small: Target, length: int | None = None, vocabulary: int = VOCABULARY) -> DraftModel:
    return DraftModel(small, vocabulary, Autoregressive(), Budget(0), length)


def context(drafter: DraftModel, tokens: Sequence[int], nodes: int, sampling: Sampling = GREEDY) -> Context:
    return Context(tokens, drafter.small.cache(0), nodes, sampling)


@contextmanager
def stopping(token: int, *targets: Target) -> Iterator[None]:
    """Make these models stop at that token only."""
    before = [target.stop_tokens for target in targets]
    try:
        for target in targets:
            target.stop_tokens = frozenset({token})
        yield
    finally:
        for target, stops in zip(targets, before, strict=True):
            target.stop_tokens = stops


# -- what is drafted ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("nodes", [1, 5, 9])
def test_a_draft_is_a_chain_of_as_many_tokens_as_there_are_nodes_or_of_its_own_length(tiny: Make, nodes: int) -> None:
    model, text = tiny("qwen2-one-key-head"), prompt_ids(9, seed=2)
    said = stock_reply(model.stock, text, 9, stops=())
    assert not set(said) & model.target.stop_tokens
    for length in (None, 1, 3, 20):
        drafter = drafting(model.target, length)
        tree = drafter.draft(context(drafter, text, nodes))
        assert list(tree.tokens) == [text[-1], *said[: min(nodes, length or nodes)]]
        assert list(tree.parents) == list(range(-1, tree.size - 1))
        assert tree.source is not None and set(tree.source[1:]) == {SOURCE}
        assert not tree.probe
    assert drafter.draft(context(drafter, text, 0)).size == 1


class SecondEach:
    """Costs of a small model of which each forward takes a second."""

    def at(self, rows: int, context: int) -> float:
        return 1.0


def steps_of_four(rows: int) -> float:
    """Return the seconds of a verification whose rows are priced in steps of four, a second each."""
    return float((rows + 3) // 4)


@each(
    "worth, covered, prices, forwards",
    [
        (None, (), None, 8),  # a fixed experiment
        (1e9, (), None, 8),
        (0.01, (), None, 0),
        (2.0, (), None, 1),  # 2 · 0.8 for the first, and 2 · 0.5 · 0.8 for the second
        (4.0, (), None, 2),
        (2.0, (0.5,), None, 1),  # phrases predict 0.5² of it
        (2.0, (0.8,), None, 0),
        (1e9, (1.0,) * 8, None, 0),
        (1e9, (1.0,) * 3, None, 8),  # phrases end before the draft does
        (2.0, (), float, 0),  # a row takes as long as a forward
        (8.0, (), steps_of_four, 3),  # the fourth node is the first of a step of rows
        (20.0, (), steps_of_four, 4),  # 20 · 0.5³ · 0.8 would not pay by itself, but with the fifth it does
    ],
)
def test_a_draft_continues_while_some_longer_one_saves_more_than_it_takes(
    tiny, monkeypatch, worth, covered, prices, forwards
):
    """Each pick has a chance of one half, each forward takes a second."""
    small = tiny("qwen2-one-key-head").target
    drafter = DraftModel(small, VOCABULARY, Autoregressive(), Budget(0), costs=SecondEach())
    monkeypatch.setattr(drafter.calibration, "chances", lambda level, *_: [(token, 0.5) for token, _ in level])
    asked = replace(context(drafter, prompt_ids(9, seed=2), 8), token_seconds=worth, covered=covered)
    tree = drafter.draft(asked if prices is None else replace(asked, verify_seconds=prices))
    assert sum(drafter.forwards.values()) == forwards and (tree.size > 1) == (forwards > 0)


def test_with_phrases_the_small_model_reads_what_matches_in_one_forward(tiny: Make) -> None:
    """Its draft stays the same; phrases only decide which tokens it reads together."""
    model = tiny("qwen2-one-key-head")
    text = prompt_ids(9, seed=2)
    text += stock_reply(model.stock, text, 12, stops=())[:1]
    said = stock_reply(model.stock, text, 8, stops=())
    forwards = []
    for known in ([], [*text[-4:], *said]):
        pool = PhrasePool(())
        pool.extend([*known, *text])
        small = build(Ingredients(model.target, pool, True, model.target, SecondEach()))
        small.draft(replace(context(small, text, 8), token_seconds=1e99))
        assert small._drafted == said
        forwards.append(sum(small.forwards.values()))
    assert forwards[0] == 8 and forwards[1] <= 3


def test_the_first_draft_already_goes_by_what_it_costs(tiny: Make) -> None:
    drafter = DraftModel(tiny("qwen2-one-key-head").target, VOCABULARY, Autoregressive(), Budget(0), 4, SecondEach())
    asked = replace(context(drafter, prompt_ids(9, seed=2), 16), token_seconds=0.01)
    nothing, long = drafter.draft(asked), drafter.draft(replace(asked, token_seconds=1e9))
    assert nothing.size == 1 and nothing.declined == COSTS_MORE
    assert long.size > 4 and not long.declined


class ARowEach:
    """Costs of a small model of which each row takes a second."""

    def at(self, rows: int, context: int) -> float:
        return float(rows)


def test_a_draft_is_not_charged_for_reading_the_prompt(tiny: Make) -> None:
    """The prompt is read once for all following drafts; otherwise nothing would be drafted after a long prompt."""
    drafter = DraftModel(tiny("qwen2-one-key-head").target, VOCABULARY, Autoregressive(), Budget(0), 4, ARowEach())
    asked = replace(context(drafter, prompt_ids(60, seed=2), 16), token_seconds=5.0)
    assert drafter.draft(asked).size > 1


def test_the_small_model_reads_no_prompt_while_phrases_foresee_the_reply(tiny: Make) -> None:
    drafter = DraftModel(tiny("qwen2-one-key-head").target, VOCABULARY, Autoregressive(), Budget(0), 4, SecondEach())
    asked = replace(context(drafter, prompt_ids(60, seed=2), 16), token_seconds=1e9, covered=(0.5,))
    assert drafter.draft(asked).size == 1 and not drafter.forwards
    assert drafter.draft(replace(asked, covered=(0.1,))).size > 1
    committed = [*asked.committed, 1, 2]
    assert drafter.draft(replace(asked, committed=committed)).size > 1, "little is left to read"


def test_a_long_prompt_is_read_once_the_reply_has_become_long(tiny: Make) -> None:
    """A short reply would end before drafts have saved the time of reading the prompt."""
    drafter = DraftModel(tiny("qwen2-one-key-head").target, VOCABULARY, Autoregressive(), Budget(0), 4, ARowEach())
    tokens, nothing = prompt_ids(90, seed=2), NumpyHidden(np.empty((0, 0)))
    drafter.observe(Step(tokens, nothing))
    lengths = []
    for _ in range(100):
        lengths.append(drafter.draft(replace(context(drafter, tokens, 16), token_seconds=6.0)).size)
        drafter.observe(Step([1], nothing, DraftTree((tokens[-1],), (-1,))))
        tokens = [*tokens, 1]
    first = next(number for number, size in enumerate(lengths) if size > 1)
    assert 50 < first < 80, lengths
    drafter.observe(Step([1], nothing))  # the prompt of another turn, and a new reply
    tokens += prompt_ids(90, seed=3)
    assert drafter.draft(replace(context(drafter, tokens, 16), token_seconds=6.0)).declined == READS


def test_what_was_wrong_for_a_while_is_forgotten_and_tried_again(tiny: Make) -> None:
    """A model that was wrong does not draft, so it could never prove itself. Therefore it is trusted again after a while,
    the sooner the less wrong it was.
    """
    drafter = DraftModel(tiny("qwen2-one-key-head").target, VOCABULARY, Autoregressive(), Budget(0), costs=SecondEach())
    asked = replace(context(drafter, prompt_ids(9, seed=2), 1), token_seconds=1e9)

    def resting() -> int:
        """Return the number of drafts with only the root before a longer one."""
        short = replace(asked, token_seconds=1.5)
        return next(number for number in range(8 * UNUSED) if drafter.draft(short).size > 1)

    waits = []
    for wrong in (4, 8):
        for _ in range(wrong):
            drafter.draft(asked)
            nothing = max(token for token, _ in drafter._levels[0]) + 1
            drafter.observe(Step([nothing], NumpyHidden(np.empty((0, 0)))))
            drafter.rewind(9)  # so that the next one takes a forward, too
        waits.append(resting())
    assert 0 < waits[0] < waits[1]


def test_a_stop_token_ends_a_draft(tiny: Make) -> None:
    model, text = tiny("qwen2-one-key-head"), prompt_ids(9, seed=2)
    said = stock_reply(model.stock, text, 6, stops=())
    stop = next(place for place in range(1, 6) if said[place] not in said[:place])
    small = copy(model.target)
    with stopping(said[stop], small):
        drafter = drafting(small)
        for _ in range(2):  # the second time, it was drafted before
            assert list(drafter.draft(context(drafter, text, 6)).tokens[1:]) == said[: stop + 1]


def test_tokens_that_the_target_does_not_have_are_not_drafted(tiny: Make) -> None:
    model, text = tiny("qwen2-one-key-head"), prompt_ids(9, seed=2)
    said = stock_reply(model.stock, text, 8, stops=())
    highest = max(range(8), key=said.__getitem__)
    drafter = drafting(model.target, vocabulary=said[highest])  # the largest id that the small model has is one less
    assert list(drafter.draft(context(drafter, text, 8)).tokens[1:]) == said[:highest]
    again = drafting(model.target, vocabulary=said[highest] + 1)
    assert list(again.draft(context(again, text, 8)).tokens[1:]) == said


def test_what_the_text_confirms_of_a_draft_is_kept_and_not_computed_again(tiny: Make) -> None:
    """Draft a b c d e: if the text continues a b c, the cache already has d e; if it continues a b x, it has nothing."""
    model, text = tiny("qwen2-one-key-head"), prompt_ids(9, seed=2)
    watched = Watched(model.target)
    drafter = drafting(watched.target)
    chain = list(drafter.draft(context(drafter, text, 5)).tokens[1:])
    assert watched.rows == [9, 1, 1, 1, 1]
    rest = drafter.draft(context(drafter, text + chain[:3], 2))
    assert list(rest.tokens) == chain[2:]
    assert len(watched.rows) == 5, "not a single forward"
    more = drafter.draft(context(drafter, text + chain[:3], 4))
    assert list(more.tokens[:3]) == chain[2:] and more.size == 5
    assert watched.rows[5:] == [1, 1], "it goes on where it stopped"
    other = [*text, *chain[:3], (chain[3] + 1) % 300]
    drafter.draft(context(drafter, other, 1))
    assert watched.rows[7:] == [1] and watched.read == other


def test_where_its_context_is_full_it_drafts_to_the_end_of_it_and_then_nothing(tiny: Make) -> None:
    model = tiny("qwen2-one-key-head")
    small = copy(model.target)
    small.context = 30
    drafter = drafting(small)
    assert [drafter.draft(context(drafter, prompt_ids(n), 4)).size - 1 for n in (25, 26, 27, 29, 30, 31, 60)] == [
        4, 4, 3, 1, 0, 0, 0,
    ]  # fmt: skip


# -- losslessness ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_greedy_ids_are_those_of_the_stock_model_whatever_model_drafts(tiny: Make, pair: tuple[str, str]) -> None:
    name, small = pair
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 30)
    for length in (None, 2):
        session = Session(model.target, drafting(tiny(small).target, length), Budget(NODES))
        ids, statistics = reply(session, prompt, 30)
        assert ids == text and statistics.drafted > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", KIN)
def test_a_similar_model_drafts_its_own_text_and_reads_every_token_once(tiny, kin, name):
    """Drafts are accepted in part, completely, or not at all; `Watched` and `Checked` inspect each of them."""
    model, small, prompt = tiny(name), kin(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    watched = Watched(small.target)
    drafter = Checked(watched.target, small.stock)
    ids, statistics = reply(Session(model.target, drafter, Budget(NODES)), prompt, 40)
    assert ids == text
    assert watched.again == 0, "what was read and still stands is not read again"
    assert 1.3 < statistics.acceptance_length < 4.6, "drafts that are right and wrong"
    assert set(statistics.sources) == {"target", SOURCE}
    assert sum(drafter.forwards.values()) == len(watched.rows)
    assert sorted(drafter.forwards.elements()) == sorted(watched.rows)
    # The prompt and the first pick in one forward; then a row for each drafted token, and one more if all are accepted
    assert watched.rows[0] == 24
    assert {1} <= set(watched.rows[1:]) <= {1, 2}
    assert len(watched.rows) == sum(drafter.lengths)


@pytest.mark.slow
@each(
    "name, sampling",
    [(QWEN, GREEDY), (LLAMA, Sampling(0.8, seed=6)), (QWEN, Sampling(1.1, top_k=20, top_p=0.9, seed=8))],
)
def test_a_target_that_drafts_for_itself_is_always_right_and_reads_the_unread_token_with_the_bonus(
    tiny: Make, name: str, sampling: Sampling
) -> None:
    """The noise is shared, so sampled text is accepted like greedy text. After a whole draft two tokens are unread."""
    model, prompt = tiny(name), prompt_ids(12, seed=4)
    plain, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 36, sampling)
    watched = Watched(model.target)
    session = Session(model.target, drafting(watched.target), Budget(NODES))
    ids, statistics = reply(session, prompt, 36, sampling)
    assert ids == plain and len(ids) == 36
    assert statistics.steps == 7, "35 behind the first one, five a step"
    assert statistics.acceptance_length == 5
    assert watched.rows == [13, 1, 1, 1, *[2, 1, 1, 1] * 6]


@pytest.mark.slow
@pytest.mark.parametrize("name", KIN)
def test_a_seed_gives_the_text_of_plain_decoding(tiny: Make, kin: Make, name: str) -> None:
    model, prompt = tiny(name), prompt_ids(10, seed=4)
    cut = Sampling(1.2, top_k=5, top_p=0.9, min_p=0.02, seed=7)
    for small in (kin(name), tiny("qwen2-one-key-head")):
        session = Session(model.target, drafting(small.target), Budget(NODES))
        assert_plain(model.target, session, prompt, 24, Sampling(0.8, seed=0), cut, Sampling(0.8, seed=2**63 + 1))


@pytest.mark.slow
def test_typical_acceptance_and_rejection_do_not_disturb_the_small_model(tiny: Make) -> None:
    """The target applies the rule: a chain of unknown distribution is accepted by the rule exact or typical."""
    model, prompt = tiny(QWEN), prompt_ids(10, seed=4)
    for rule in ("rejection", "typical"):
        sampling = Sampling(0.8, seed=3, rule=rule)
        ids, statistics = reply(Session(model.target, drafting(model.target), Budget(NODES)), prompt, 20, sampling)
        assert len(ids) == 20
        if rule == "rejection":
            assert statistics.acceptance_length > 4


def sized(path: Path, vocabulary: int, seed: int) -> Tiny:
    """Return a model whose vocabulary is padded to another size."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=vocabulary, max_position_embeddings=256, bos_token_id=None, eos_token_id=END, pad_token_id=0,
    )  # fmt: skip
    return read(write(path / f"of {vocabulary}", config, byte_tokenizer(), seed))


@pytest.mark.slow
@each("vocabulary", [300, 700])
def test_a_small_model_may_be_filled_up_to_another_vocabulary(tiny: Make, tmp_path: Path, vocabulary: int) -> None:
    """Random models pick padded ids as often as any others: ids that only one of the two has."""
    model, small = tiny(LLAMA), sized(tmp_path, vocabulary, seed=5)
    compared(small.target, model.target, small.path)
    beyond = 0
    for seed in range(2):
        prompt, sampling = prompt_ids(20, seed=seed), Sampling(1.5, seed=seed)
        text = stock_reply(model.stock, prompt, 20)
        drafter = drafting(small.target)
        assert reply(Session(model.target, drafter, Budget(NODES)), prompt, 20)[0] == text
        plain, _ = reply(Session(model.target, Autoregressive(), Budget(0)), prompt, 30, sampling)
        assert reply(Session(model.target, drafter, Budget(NODES)), prompt, 30, sampling)[0] == plain
        beyond += sum(token >= vocabulary for token in text + plain)
    assert beyond or vocabulary > VOCABULARY, "the target said what the small model has not"


@pytest.mark.slow
def test_a_small_model_whose_context_is_shorter_than_the_text(tiny: Make) -> None:
    model, small, prompt = tiny(LLAMA), tiny(LONGROPE), prompt_ids(30, seed=2)
    assert small.target.context == 64
    text = stock_reply(model.stock, prompt, 60)
    session = Session(model.target, drafting(small.target), Budget(NODES))
    ids, statistics = reply(session, prompt, 60)
    assert ids == text and 60 < statistics.drafted < 60 * NODES
    longer = [*prompt, *ids, *prompt_ids(9, seed=3)]
    assert reply(session, longer, 10)[0] == stock_reply(model.stock, longer, 10), "nothing is drafted any more"
    assert session.statistics is not None and session.statistics.drafted == 0
    assert reply(session, prompt, 60)[0] == text
    assert session.statistics.drafted == statistics.drafted, "a shorter one again: it drafts"


@pytest.mark.slow
def test_a_small_model_of_another_precision(tiny: Make) -> None:
    model, prompt = tiny(QWEN), prompt_ids(23, seed=23)
    small = Target.load(model.path, dtype=torch.bfloat16)
    text = stock_reply(model.stock, prompt, 40)
    watched = Watched(small)
    ids, statistics = reply(Session(model.target, drafting(watched.target), Budget(NODES)), prompt, 40)
    assert ids == text
    assert statistics.acceptance_length > 2.5


# -- where replies end and begin ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_turns_share_what_was_read_and_another_prompt_shares_nothing(tiny: Make, kin: Make) -> None:
    model, small = tiny(LLAMA), kin(LLAMA)
    watched = Watched(small.target)
    drafter = Checked(watched.target, small.stock)
    session = Session(model.target, drafter, Budget(NODES))
    first = prompt = prompt_ids(15, seed=6)
    for turn in range(3):
        text = stock_reply(model.stock, prompt, 12)
        watched.rows.clear()
        assert reply(session, prompt, 12)[0] == text
        prompt = [*prompt, *text, END, *prompt_ids(9, seed=turn)]
        # Where a reply ends a token is taken back, and where the next begins another: both are read with the new ones.
        assert watched.again <= 2 * turn, "what the turns before hold is not read again"
    assert reply(session, first, 12)[0] == stock_reply(model.stock, first, 12)
    assert watched.again <= 8
    other = prompt_ids(20, seed=99)
    assert other[0] != first[0]
    watched.rows.clear()
    assert reply(session, other, 12)[0] == stock_reply(model.stock, other, 12)
    assert watched.rows[0] == 21


@pytest.mark.slow
def test_streams_that_are_closed_and_stop_tokens_leave_no_trace(tiny: Make, kin: Make) -> None:
    model, small = tiny(LLAMA), kin(LLAMA)
    drafter = Checked(Watched(small.target).target, small.stock)
    assert_stops_leave_no_trace(model, Session(model.target, drafter, Budget(NODES)))


def test_a_prompt_is_read_in_chunks(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = tiny("qwen2-one-key-head"), prompt_ids(23, seed=2)
    monkeypatch.setattr("localspec.drafters.draft_model.CHUNK", 8)
    watched = Watched(model.target)
    drafter = Checked(watched.target, model.stock)
    drafter.draft(context(drafter, text, 3))
    assert watched.rows == [8, 8, 7, 1, 1]


class Steep:
    """Costs with expensive rows of the target, so that the budget cuts drafts, and switches them off and on."""

    def at(self, rows: int, context: int) -> float:
        return 1.0 + 0.6 * (rows - 1)


@pytest.mark.slow
def test_while_drafting_is_off_the_small_model_rests_and_reads_later_what_was_said(tiny: Make, kin: Make) -> None:
    model, small, prompt = tiny(LLAMA), kin(LLAMA), prompt_ids(23, seed=23)
    watched = Watched(small.target)
    drafter, budget = Checked(watched.target, small.stock), Budget(NODES, Steep())
    text = stock_reply(model.stock, prompt, 180)
    assert reply(Session(model.target, drafter, budget), prompt, 180)[0] == text
    assert 0 in drafter.lengths and drafter.lengths[-1] >= 0
    assert max(watched.rows[1:]) > 8, "what was said meanwhile, in one forward"


# -- which models go together ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_model_with_another_tokenizer_is_refused_and_the_token_named(tiny: Make, tmp_path: Path) -> None:
    config = Qwen3Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=16, vocab_size=VOCABULARY, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    target = tiny(LLAMA).target
    words = read(write(tmp_path / "words", config, word_tokenizer(list("abcdef")), seed=0))
    with pytest.raises(UsageMistake, match=matching("another_tokenizer_token_0_target")):
        compared(words.target, target, words.path)
    tokens = sorted(target.tokenizer.get_vocab(), key=target.tokenizer.get_vocab().get)
    tokens[41], tokens[260] = tokens[260], tokens[41]  # two that changed places
    swapped = read(write(tmp_path / "swapped", config, word_tokenizer(tokens), seed=0))
    with pytest.raises(UsageMistake, match=matching("its_token_41_is")) as refused:
        compared(swapped.target, target, swapped.path)
    assert repr(tokens[41]) in str(refused.value) and repr(tokens[260]) in str(refused.value)
    assert str(swapped.path) in str(refused.value)


def test_a_small_model_that_lacks_tokens_is_refused(tiny: Make, tmp_path: Path) -> None:
    target, small = tiny(LLAMA).target, sized(tmp_path, 299, seed=0)
    with pytest.raises(UsageMistake, match=matching("knows_299_tokens_target_s")):
        compared(small.target, target, small.path)
