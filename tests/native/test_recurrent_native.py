"""Qwen3.5 on the CPU engine: chains, rollbacks, and the bits of both, in every packing and instruction set."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from drafting import drafting
from each import each
from golden import matching
from invented_native import invented_target
from native.engine import POOL, Model, Pool, Text, isas, using
from native.engine import stock_logits as logits_of
from native.stock_models import stock_of
from scripted_drafters import OffChain, Oracle, RandomBranches
from session_replies import reply
from slow_cases import covering
from tiny_models import RECURRENT, VOCABULARY, Tiny, prompt_ids, stock_logits, stock_reply

from localspec.choosing import fit
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.forward import ForwardOutput
from localspec.decoding.measuring import finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import LocalspecError
from localspec.families.model_config import ModelConfig
from localspec.models.shape import Shape
from localspec.native import exactness
from localspec.native.cache import NativeCache
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target
from localspec.training.trainable import make_drafter
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin
from localspec.weights.recipe import Recipe
from localspec.weights.source import PackingSource

Make = Callable[..., Tiny]
NAMES = list(RECURRENT)
SHARED, BIASES, LONG = NAMES
PACKINGS = ["fp32", "bf16", "int8", "int4"]
KEPT = fit.RECENT // 2  # rows that can be taken back at least, where they were read a few at a time
TOLERANCE = 1e-4
HOT = Sampling(0.9, seed=7)
TWO = Pool(2)
every_config = each("name", NAMES)
every_packing = each("packing", PACKINGS)


def read(target: NativeTarget, cache: NativeCache, tokens: Sequence[int], keep: int | None = None) -> np.ndarray:
    """Read a chain, keep its first `keep` rows (all by default), and return the logits and the states of all rows."""
    output = target.forward(DraftTree.chain(tokens), cache)
    cache.keep(range(len(tokens) if keep is None else keep))
    return np.concatenate([output.logits.numpy(), output.hidden.rows], 1)


def plain(target: NativeTarget, tokens: Sequence[int]) -> np.ndarray:
    cache = target.cache(0)
    return np.concatenate([read(target, cache, [token]) for token in tokens])


def wrong(tokens: Sequence[int]) -> list[int]:
    return [(token + 1) % VOCABULARY for token in tokens]


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_config
def test_a_prompt_in_chunks_gives_the_stock_models_logits_and_the_bits_of_single_tokens(tiny, name):
    model, tokens = tiny(name), prompt_ids(700, seed=1)
    ends = (0, 1, 2, 9, 130, 387, 388, 700)  # within and beyond the rows of one chunk, and the saved rows
    cache = model.target.cache(0)
    found = np.concatenate([read(model.target, cache, tokens[a:b]) for a, b in pairwise(ends)])
    expected = stock_logits(model.stock, tokens).numpy()
    assert np.abs(found[:, :VOCABULARY] - expected).max() < TOLERANCE * np.abs(expected).max()
    assert np.array_equal(read(model.target, model.target.cache(0), tokens), found), "in one piece"
    assert np.array_equal(plain(model.target, tokens), found), "token by token"


@pytest.mark.slow
@each("keys, values, taps", [(128, 128, 4), (32, 64, 1), (17, 33, 2)])
def test_heads_of_real_width_and_odd_ones_are_the_stock_models_on_every_instruction_set(keys, values, taps):
    config = RECURRENT[SHARED]()
    config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim = keys, values, taps
    stock = stock_of(config, seed=1)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 40).tolist()
    want, first = logits_of(stock, tokens), None
    model = Model(stock, context=128)
    for isa, pool, chunk in ((isa, pool, chunk) for isa in isas() for pool, chunk in ((TWO, 3), (POOL, 40))):
        with using(isa):
            got = Text(model, pool).read(tokens, chunk)
        first = got if first is None else first
        assert np.array_equal(first, got), (isa, chunk)
    assert np.abs(first - want).max() < TOLERANCE * np.abs(want).max()


@pytest.mark.slow
@each("form, cache", [("fp32", "fp32"), ("int8", "fp16")])
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits_after_drafts_were_taken_back(form, cache):
    model, text = Model(stock_of(RECURRENT[SHARED](), seed=2), form, cache), prompt_ids(60, seed=4)
    want = Text(model).read(text, 1)
    for isa, pool in ((isa, pool) for isa in isas() for pool in (POOL, TWO)):
        with using(isa):
            one, at, choose = Text(model, pool), 0, random.Random(isa)
            while at < len(text):
                right = min(choose.choice([1, 2, 5]), len(text) - at)
                drafted = [*text[at : at + right], *wrong(text[at + right : at + right + choose.choice([0, 1, 6])])]
                assert np.array_equal(one.forward(drafted)[:right], want[at : at + right]), (isa, at)
                one.keep(range(right))
                at += right


# -- rollbacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("name, packing", [*covering(NAMES, PACKINGS), (LONG, "fp32"), (BIASES, "int8")])
def test_a_draft_that_is_rejected_at_any_token_leaves_no_bit_behind(tiny, name, packing):
    target, text = tiny(name, packing).target, prompt_ids(40, seed=5)
    want = plain(target, text)
    for kept in (1, 2, 3, 5, 8, 9):
        cache = target.cache(0)
        read(target, cache, text[:20])
        drafted = [*text[20 : 20 + kept], *wrong(text[20 + kept : 29])]
        assert np.array_equal(read(target, cache, drafted, kept)[:kept], want[20 : 20 + kept])
        later = [read(target, cache, text[20 + kept : 22 + kept]), read(target, cache, text[22 + kept :])]
        assert np.array_equal(np.concatenate(later), want[20 + kept :]), kept


@pytest.mark.slow
@each("packing", ["fp32", "int4"])
def test_drafts_of_all_lengths_leave_no_bit_behind_in_a_long_text(tiny, packing):
    target, text, choose = tiny(SHARED, packing).target, prompt_ids(600, seed=3), random.Random(0)
    want, cache = plain(target, text), target.cache(0)
    read(target, cache, text[:9])
    at = 9
    while at < len(text):
        right = min(choose.choice([1, 1, 2, 4, 9, 40]), len(text) - at)
        false = wrong(text[at + right : at + right + choose.choice([0, 3, 7, 90])])
        assert np.array_equal(
            read(target, cache, [*text[at : at + right], *false], right)[:right], want[at : at + right]
        )
        at += right


@pytest.mark.slow
@every_config
def test_any_length_of_late_can_be_gone_back_to_and_any_before_about(tiny, name):
    target, text, choose = tiny(name).target, prompt_ids(600, seed=4), random.Random(1)
    want, cache = plain(target, text), target.cache(0)
    read(target, cache, text[:20])
    at = 20
    while at < 560:
        step = choose.choice([1, 1, 1, 3, 6])
        read(target, cache, text[at : at + step])
        at += step
        for length in (at - 1, at - KEPT // 2, at - KEPT + 8):  # what drafts took from the rows included
            if at % 7 or length < 20:
                continue
            cache.truncate(length)
            assert cache.length == length
            assert np.array_equal(read(target, cache, text[length:at]), want[length:at]), (at, length)
    for length in (300, 120, 119, 40, 1, 0):  # far back: to a state that is held, from which the text is read again
        cache.truncate(min(length, cache.length))
        reached = cache.length
        assert reached <= length
        assert np.array_equal(read(target, cache, text[reached:560]), want[reached:560])


def test_a_draft_that_is_not_a_number_is_forgotten(tiny):
    for packing in PACKINGS:
        target, text = tiny(SHARED, packing).target, prompt_ids(30)
        want, cache = plain(target, text), target.cache(0)
        read(target, cache, text[:20])
        spoilt = np.full((5, target.config.hidden_size), np.nan, np.float32)
        assert not np.isfinite(target.model.read_rows(spoilt, cache)).any()
        assert np.array_equal(read(target, cache, text[20:]), want[20:])


def test_room_that_is_added_changes_no_bit(tiny):
    target, text = tiny(SHARED, "int8").target, prompt_ids(200, seed=8)
    want, cache = plain(target, text), target.cache(0)
    read(target, cache, text[:50])
    read(target, cache, [*text[50:53], 1, 2], keep=3)
    cache.reserve(4000)
    assert np.array_equal(read(target, cache, text[53:]), want[53:])


def test_what_recurrent_layers_cannot_do_is_refused_and_nothing_changes(tiny):
    target, text = tiny(SHARED).target, prompt_ids(310)
    want, cache = plain(target, text), target.cache(0)
    read(target, cache, text[:5])
    with pytest.raises(LocalspecError, match=matching("row_2_parent_0_recurrent_layers")):
        target.forward(DraftTree([5, 6, 7], [-1, 0, 0]), cache)
    with pytest.raises(LocalspecError, match=matching("computed_all_together_leave_out_which")):
        target.model.read_rows(np.zeros((1, target.config.hidden_size), np.float32), cache, [0])
    target.forward(DraftTree.chain(text[5:9]), cache)
    with pytest.raises(LocalspecError, match=matching("chains_alone_of_which_the_first")):
        cache.keep([0, 2])
    cache.keep([0, 1])
    assert np.array_equal(read(target, cache, text[7:]), want[7:])
    cache.truncate(0)
    target.forward(DraftTree.chain(text), cache)
    with pytest.raises(LocalspecError, match=matching("of_310_rows_that_were_read")):
        cache.keep(range(30))
    tree = DraftTree([5, 6, 7, 8, 9], [-1, 0, 0, 1, 3], probe=[False, False, False, False, True])
    assert not target.branches and target.aligned(tree, 0).tokens == [5, 6, 8]


def test_slots_that_are_counted_as_read_can_be_gone_on_from(tiny):
    target = tiny(SHARED, "int8").target
    cache = target.cache(300)
    for length in (200, 250, 30, 280):
        cache.assume(length)
        rows = read(target, cache, [5, 6, 7], keep=0)
        assert cache.length == length and np.isfinite(rows).all()
        assert np.array_equal(read(target, cache, [5, 6, 7], keep=0), rows)


def test_a_shorter_text_in_the_same_cache_can_be_taken_back_in_small_steps(tiny):
    """Rows of a longer text, or of lengths that were only assumed, are not rows of this text."""
    target, text = tiny(SHARED).target, prompt_ids(30)
    want = plain(target, text)
    for length in (200, 900):
        cache = target.cache(1000)
        cache.assume(length)
        cache.truncate(0)
        read(target, cache, text[:20])
        assert np.array_equal(read(target, cache, [text[20], 1, 2, 3, 4], keep=1)[:1], want[20:21])
        assert np.array_equal(read(target, cache, text[21:]), want[21:])


# -- drafts ------------------------------------------------------------------------------------------------------------


def drafters(
    tiny: Make, name: str, target: NativeTarget, packing: str, text: Sequence[int]
) -> Iterator[tuple[str, Drafter]]:
    small = tiny(next(one for one in NAMES if one != name), packing).target
    yield "oracle", Oracle(text)
    yield "off the chain", OffChain(text)
    yield "random branches", RandomBranches(text, seed=len(text))
    yield "phrases", WithPhrases(Autoregressive(), PhrasePool(target.special_tokens, vocabulary=VOCABULARY))
    yield "draft model", DraftModel(small, VOCABULARY, Autoregressive(), Budget(0), 5)
    yield "itself", DraftModel(target, VOCABULARY, Autoregressive(), Budget(0), 5)
    yield "medusa", untrained(tiny(name), target)


def untrained(model: Tiny, target: NativeTarget) -> Drafter:
    torch.manual_seed(0)
    found: Drafter = drafting(make_drafter("medusa", Target.load(model.path), {"heads": 3}), target)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "packing"), [*covering(NAMES, PACKINGS), (SHARED, "int4"), (LONG, "int8")])
def test_no_drafter_changes_an_id(tiny, name, packing):
    target, prompt = tiny(name, packing).target, prompt_ids(23, seed=23)
    for sampling in (Sampling(), HOT):
        text, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 40, sampling)
        if packing == "fp32" and sampling.greedy:
            assert text == stock_reply(tiny(name).stock, prompt, 40) and len(set(text)) > 12
        for drafted_by, drafter in drafters(tiny, name, target, packing, [*prompt, *text]):
            session = Session(target, drafter, Budget(8, branches=target.branches))
            ids, statistics = reply(session, prompt, 40, sampling)
            assert ids == text, drafted_by
            if drafted_by in ("oracle", "itself"):
                assert statistics.acceptance_length > 1.5, drafted_by


@pytest.mark.slow
@each("packing, sampling", [("int8", HOT), ("int4", Sampling())])
def test_a_later_turn_that_changes_the_text_is_as_if_it_were_the_first(tiny, packing, sampling):
    target, prompt = tiny(SHARED, packing).target, prompt_ids(160, seed=9)
    session = Session(target, RandomBranches(prompt), Budget(8, branches=False))
    said = [*prompt, *reply(session, prompt, 30, sampling)[0]]
    for shared in (len(said), len(said) - 3, 150, 40):
        later = [*said[:shared], *prompt_ids(12, seed=shared)]
        found, statistics = reply(session, later, 20, sampling)
        assert found == reply(Session(target, Autoregressive(), Budget(0)), later, 20, sampling)[0], shared
        assert statistics.reused_tokens <= shared
        if shared > 160:
            assert statistics.reused_tokens >= shared - 1, "what was read late is not read again"
        reply(session, said, 1, sampling)


@pytest.mark.parametrize("packing", ["int8", "fp32"])
def test_the_self_test_finds_every_bit_and_a_state_that_is_not_taken_back(tiny, packing, monkeypatch):
    target = tiny(SHARED, packing).target
    assert finished(exactness.measuring(target, 65)).bitwise
    forward = NativeTarget.forward

    def remembering(self: NativeTarget, tree: DraftTree, cache: NativeCache, **more: bool) -> ForwardOutput:
        """Change a state slightly, as if rolled-back rows were still in it."""
        output = forward(self, tree, cache, **more)
        if cache.length != exactness.CONTEXT and tree.size > 1:
            output.hidden.rows[0, 0] = np.nextafter(output.hidden.rows[0, 0], np.float32(np.inf))
        return output

    monkeypatch.setattr(NativeTarget, "forward", remembering)
    found = finished(exactness.measuring(target, 9))
    assert not found.bitwise and 0 < found.largest < 1e-6


# -- files and bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_packing
@every_config
def test_a_packed_model_holds_what_is_predicted(tiny, name, packing):
    """To the byte, but for matrices that are padded to whole panels and groups, which is most of so small a one."""
    model = tiny(name)
    source = PackingSource.open(model.path)
    shape = Shape.of(source.config.content)
    assert shape is not None and shape.matrices + (not shape.tied) * shape.embedding < source.checkpoint.parameters
    header = source.header(Origin(name, ""), Recipe(packing))
    padding = 0
    for one in header.tensors.values():
        assert one.tensor is not None
        if one.tensor.layout == "panels" and packing != "int4":
            bits = {"fp32": 32, "bf16": 16, "int8": 8 + 16 / 64}[one.tensor.format]
            padding += one.bytes - int(one.tensor.out * one.tensor.inputs * bits / 8)
    held = sum(section.bytes for section in header.tensors.values())
    dtype, quantize = (packing, "none") if packing in fit.ITEM else ("bf16", packing)
    said = fit.weights(shape, dtype, quantize, "native", source.checkpoint.parameters)
    assert abs(said + padding - held) < 200, "roundings of each matrix"


def test_states_of_real_sizes_hold_what_is_predicted():
    """With heads of 128, as in Qwen3.5, states are most of it, so a missing or extra copy is noticed."""
    content = {
        "model_type": "qwen3_5_text", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 4096, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    }  # fmt: skip
    target = invented_target(ModelConfig.of(content), "fp32")
    assert isinstance(target, NativeTarget)
    shape = Shape.of(content)
    assert shape is not None
    cache = target.cache(0)
    cache.reserve(512, spare=False)
    empty = cache.nbytes
    for token in prompt_ids(400):
        read(target, cache, [token])
    assert cache.nbytes - empty == pytest.approx(fit.states(shape, "fp32"), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["int8", "int4"])
def test_a_directory_is_packed_once_and_computes_as_it_does_in_memory(tiny, packing, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    model, text = tiny(BIASES), prompt_ids(50, seed=9)
    found = [plain(NativeTarget.open(model.path, packing=packing, threads=Threads(1)), text) for _ in range(2)]
    [file] = tmp_path.rglob("*.packed")
    assert np.array_equal(*found)
    packed = PackedModel.open(file)
    conv = packed.tensors["layers.1.delta.conv"]
    assert np.array_equal(conv, model.stock.model.layers[1].linear_attn.conv1d.weight.detach().numpy()[:, 0])
    stock = stock_logits(model.stock, text).numpy()
    apart = np.abs(found[0][:, :VOCABULARY] - stock).max(-1) / np.abs(stock).max()
    assert 1e-3 < np.median(apart) < {"int8": 0.1, "int4": 0.6}[packing]


def test_a_copy_of_a_cache_has_its_states_and_one_that_no_state_is_near_is_refused(tiny):
    model = tiny(SHARED)
    target, tokens = model.target, prompt_ids(500, seed=3)
    cache = target.cache(0)
    cache.reserve(600)
    read(target, cache, tokens[:400])
    for token in tokens[400:440]:
        read(target, cache, [token])
    assert cache.reachable(430) == 430 and cache.reachable(1000) == 440 and cache.reachable(100) == 0
    for length in (440, 430, 0):
        other = cache.copy(length, length + 60)
        other.reserve(600)
        found = read(target, other, tokens[length : length + 60])
        assert other.length == length + 60 and (found == plain(target, tokens[: length + 60])[length:]).all()
    assert cache.length == 440 and cache.copy(0, 0).nbytes < cache.copy(440, 440).nbytes < cache.nbytes
    with pytest.raises(LocalspecError):
        cache.copy(100, 100)
    with pytest.raises(LocalspecError):
        cache.copy(441, 600)
