"""A draft model in its own form: coarser blocks, a head of few tokens; it drafts, and no drafter changes a text."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from distributions import assert_drawn_from
from drafters.test_loading import FORMS, write_drafter
from each import each
from gguf_files import write_model
from native.test_picks import SETTINGS, logits_of
from native_models import read_native
from session_replies import reply
from six_words import _SMALL, PROMPT, WORDS, drawn, joint_chances, six_words
from tiny_models import prompt_ids, word_tokenizer, write
from transformers import LlamaConfig
from weights.test_gguf_weights import numbers, open_blocks, registered

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.logits import NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.layers import Layers
from localspec.drafters.pool import PhrasePool
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import kinds
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.native import short_head
from localspec.native.cache import cache_format
from localspec.native.logits import NativeLogits
from localspec.native.model import NativeModel
from localspec.native.short_head import ShortHead
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.weights import recipe
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import draft_bytes, draft_in_words, head_tokens

FIRST, READ, NODES = 40, 24, 6
SHAPE = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 256, "num_key_value_heads": 2}
HOT = Sampling(0.9, top_p=0.95, seed=7)


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Return a home, where draft models have so few tokens that tiny models have more."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    few(monkeypatch, FIRST, READ)
    return Paths(tmp_path / "home")


def few(patch: pytest.MonkeyPatch, first: int, read: int) -> None:
    for module in (recipe, short_head):
        patch.setattr(module, "FIRST_TOKENS", first)
        patch.setattr(module, "READ_TOKENS", read)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    folder, made = tmp_path_factory.mktemp("tiny"), dict[bool, Path]()

    def of(tied: bool) -> Path:
        if tied not in made:
            config = LlamaConfig(**{**SHAPE, "tie_word_embeddings": tied})
            made[tied] = write(folder / str(tied), config, tiny_models.byte_tokenizer(), 0)
        return made[tied]

    return of


def in_file(path: Path, file: Path, paths: Paths, kind: str = "Q8_0") -> Any:
    return registered(write_model(file, path, kind), paths)


@each("given", [{"temperature": 0.0}, *({"temperature": 0.8, **one} for one in SETTINGS)])
def test_logits_of_few_tokens_are_those_of_all_with_no_chance_for_the_others(given):
    random, tokens = np.random.default_rng(1), np.array([3, 900, 17, 4], np.int32)
    for seed in range(20):
        columns, sampling = np.stack([logits_of(4), logits_of(4)]), Sampling(seed=seed, **given)
        whole = np.full((2, 1000), -np.inf, np.float32)
        whole[:, tokens] = columns
        short, plain = NativeLogits(columns, None, tokens, 1000), NumpyLogits(whole)
        positions = [int(random.integers(5000)), 9]
        if sampling.greedy:
            assert short.take([1, 0]).argmax() == tokens[columns[::-1].argmax(-1)].tolist()
        found, wanted = short.picks(positions, sampling), plain.picks(positions, sampling)
        assert [found[0], found[1]] == [wanted[0], wanted[1]]
        assert np.array_equal(short.numpy(), whole)
        shown = short.candidates(positions, 2, sampling)
        expected = plain.candidates(positions, 2, sampling)
        assert [[token for token, _ in row] for row in shown] == [[token for token, _ in row] for row in expected]
        if not sampling.greedy:
            assert np.allclose(short.probabilities(1, sampling), plain.probabilities(1, sampling))


def rows_of_random(vocabulary: int, inputs: int = 64) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((vocabulary, inputs)).astype(np.float32)


def test_it_has_the_first_tokens_those_that_end_a_reply_and_the_last_that_were_read():
    weights = rows_of_random(500)
    head = ShortHead(lambda tokens: weights[list(tokens)], 64, 500, {499})
    for read in ([100, 101, 3, 100], range(200, 200 + READ - 4), [300, 301, 302], range(400, 400 + READ + 5)):
        head.add(read)
        tokens = head._tokens.tolist()
        assert {*range(FIRST), 499} <= {*tokens} and len({*tokens}) == len(tokens) <= FIRST + 1 + READ
        assert {*list(read)[-READ:]} <= {*tokens}
        near = head.stack.rows(range(len(tokens)))
        assert np.abs(near - weights[tokens]).max() < 0.05 * np.abs(weights).max()
    assert 100 not in tokens and 300 not in tokens


def test_a_row_that_is_empty_is_never_the_likeliest():
    weights = -np.abs(rows_of_random(500))
    head = ShortHead(lambda tokens: weights[list(tokens)], 64, 500, ())
    logits = head.stack.rows(range(head.matrix.out)) @ np.ones((64, 1), np.float32)
    found = head.logits(np.ascontiguousarray(logits.T), [int(logits.argmax())])
    assert logits.argmax() >= FIRST and found.argmax() == [int(logits[:FIRST].argmax())]


def test_rows_that_cannot_be_read_are_left_out():
    weights = rows_of_random(500)
    there = {"file": True}

    def rows_of(tokens: Sequence[int]) -> np.ndarray:
        if not there["file"]:
            raise LocalspecError("The file is gone.")
        return weights[list(tokens)]

    head = ShortHead(rows_of, 64, 500, ())
    there["file"] = False
    head.add([100])
    assert 100 not in head._tokens
    there["file"], weights[100, 5] = True, np.nan
    head.add([100])
    assert 100 not in head._tokens


@pytest.mark.slow
@each("tied", [False, True])
def test_a_registered_draft_model_is_coarser_and_its_head_short(directory, tmp_path, paths, tied):
    found = in_file(directory(tied), tmp_path / "tiny.gguf", paths)
    whole, coarse = open_blocks(found, 2), open_blocks(found, 2, drafts=True)
    for name, stack in coarse.tensors.items():
        kind = {part.type for part in stack.parts} if hasattr(stack, "parts") else None
        assert kind in (None, {"Q8_0"} if name in ("embed_tokens", "lm_head.weight") else {"Q4_0"}), name
        away = np.abs(numbers(coarse, name) - numbers(whole, name)).max() / np.abs(numbers(whole, name)).max()
        assert away < 0.2 and (kind == {"Q4_0"}) == (away > 0), name
    assert (coarse.head_rows is not None) == (not tied) == ("lm_head.weight" not in coarse.tensors)
    target = NativeTarget.open(found.path, packing=BLOCKS, threads=Threads(1))
    small = NativeTarget.open(found.path, packing=BLOCKS, threads=Threads(1), drafts=True)
    tokens = small.model.short._tokens.tolist()
    rows = target.model.weights["lm_head.weight"].rows(tokens)
    assert {*range(FIRST), *target.stop_tokens} <= {*tokens}
    assert np.abs(small.model.short.stack.rows(range(len(tokens))) - rows).max() < 0.05 * np.abs(rows).max()
    ends = len({*tokens} - {*range(FIRST)})  # of which the estimate has none
    more = small.nbytes - draft_bytes(found.header, target.vocab_size)
    assert 0 <= more <= 64 * (ends + 16) and small.nbytes < 0.8 * target.nbytes


def test_smaller_blocks_and_short_vocabularies_stay_as_they_are(directory, tmp_path, paths, monkeypatch):
    monkeypatch.setattr(recipe, "FIRST_TOKENS", 10**6)
    found = in_file(directory(False), tmp_path / "tiny.gguf", paths, "Q4_1")
    whole = NativeTarget.open(found.path, packing=BLOCKS, threads=Threads(1))
    small = NativeTarget.open(found.path, packing=BLOCKS, threads=Threads(1), drafts=True)
    assert small.model.short is None and small.nbytes == whole.nbytes == draft_bytes(found.header, whole.vocab_size)
    assert head_tokens(whole.vocab_size) == 0
    assert draft_in_words("", whole.vocab_size) == "" and draft_in_words("int8", whole.vocab_size) == "int8"


def test_what_it_is_stands_in_words(monkeypatch):
    few(monkeypatch, 2**15, 2**12)
    assert draft_in_words("4.0 bits per weight", 151_936) == "4.0 bits per weight, 36,864 of 151,936 tokens"
    assert draft_in_words("", 49_152) == ""


@pytest.mark.slow
@each("tied", [False, True])
def test_one_that_is_packed_in_int8_has_a_short_head_too(directory, tied):
    whole = NativeTarget.open(directory(tied), threads=Threads(1))
    small = NativeTarget.open(directory(tied), threads=Threads(1), drafts=True)
    tokens = small.model.short._tokens.tolist()
    rows = whole.model.weights["lm_head.weight"].rows(tokens)
    assert np.abs(small.model.short.stack.rows(range(len(tokens))) - rows).max() < 0.05 * np.abs(rows).max()
    assert small.read_bytes < whole.read_bytes


def shortened(target: NativeTarget) -> NativeTarget:
    """Return the same model with a short head."""
    model = target.model
    head = ShortHead(model.weights["lm_head.weight"].rows, model.sizes.hidden_size, target.vocab_size, ())
    short = NativeModel(
        model.sizes, model.rope, model.weights, model.threads, cache_format(target.precision), head
    )  # fmt: skip
    return NativeTarget(
        short, target.config, target.tokenizer, target.context, target.generation, target.precision
    )  # fmt: skip


@pytest.mark.slow
@each("sampling", [Sampling(1.0), Sampling(0.8, top_k=5, top_p=0.9, min_p=0.05)])
def test_three_tokens_have_the_joint_distribution_whatever_words_the_draft_model_lacks(tmp_path, monkeypatch, sampling):
    few(monkeypatch, 2, 2)
    letters = six_words(tmp_path, read_native)
    config = LlamaConfig(**{**_SMALL, "hidden_size": 32}, num_hidden_layers=1)
    other = read_native(write(tmp_path / "small", config, word_tokenizer(WORDS), seed=4, spread=0.6))
    small = shortened(other.target)
    session = Session(letters.target, DraftModel(small, len(WORDS), Autoregressive(), Budget(0)), Budget(4))
    found = drawn(session, PROMPT, sampling, 500)
    assert found.accepted > 100 and len(small.model.short._tokens) == 4
    assert_drawn_from(joint_chances(letters.stock, PROMPT, sampling), found.counts)


def drafters_of(target: Any, small: Any, path: Path, folder: Path) -> Iterator[tuple[str, Drafter]]:
    """Yield every kind that any model can have, the trained ones made in torch from the same directory."""
    pool = PhrasePool(target.special_tokens, vocabulary=target.vocab_size)
    for kind in kinds("nothing", "draft model"):
        parts = ("accelerating", "lengthening", "verification") if kind == "ouroboros" else ()
        build = import_module(f"localspec.drafters.{'autoregressive' if kind == 'none' else kind}").build
        yield kind, build(Ingredients(target, pool, False, small, None, Hyperparameters(), parts))
    yield "layers", Layers(target, MeasuredLayers((0,), (0.5,)))
    for form in FORMS:
        card = read_drafter(write_drafter(folder / form.replace(" ", "-"), Target.load(path), form))
        yield form, load_drafter(card, target)


@pytest.mark.slow
@each("kind", ["Q8_0", "Q4_1"])
def test_no_kind_of_drafter_changes_a_text_of_a_target_in_blocks(directory, tmp_path, paths, kind):
    target = NativeTarget.open(
        in_file(directory(False), tmp_path / "tiny.gguf", paths, kind).path, packing=BLOCKS, threads=Threads(1)
    )
    small = NativeTarget.open(
        in_file(directory(True), tmp_path / "small.gguf", paths).path, packing=BLOCKS, threads=Threads(1), drafts=True
    )
    assert small.model.short is not None
    prompt, drafted = prompt_ids(15, seed=3), dict[str, int]()
    plain = {
        sampling: reply(Session(target, Autoregressive(), Budget(0)), prompt, 20, sampling)[0]
        for sampling in (Sampling(), HOT)
    }
    for name, drafter in drafters_of(target, small, directory(False), tmp_path):
        for sampling, text in plain.items():
            ids, statistics = reply(Session(target, drafter, Budget(NODES)), prompt, 20, sampling)
            assert ids == text, name
            drafted[name] = drafted.get(name, 0) + statistics.drafted
    made = {FORMS[name][0] if name in FORMS else name for name in drafted}
    assert made == {*kinds()} - {*kinds("published")}
    assert all(drafted[name] for name in drafted if name not in ("none", "phrases", "lookahead"))
