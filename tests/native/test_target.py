"""NativeTarget as a whole: packed models opened, losslessness in every packing, hostile inputs."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from each import each
from golden import matching
from scripted_drafters import OffChain, RandomBranches, random_tree
from session_replies import reply
from slow_cases import covering
from tiny_models import (
    DYNAMIC,
    FAMILIES,
    LONGROPE,
    MIXTURES,
    RECURRENT,
    RECURRENT_MIXTURES,
    SHARDED,
    prompt_ids,
    stock_logits,
)
from transformers import AutoModelForCausalLM

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.measuring import finished
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import LocalspecError, UsageMistake
from localspec.machine import compiled
from localspec.machine.library import library
from localspec.native import exactness
from localspec.native import target as native_target
from localspec.native.logits import NativeLogits
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target

DEMO = Path(__file__).parents[2] / "localspec" / "demo"
PACKINGS = ["int8", "int4", "bf16", "fp32"]
NODES = 8
HOT = Sampling(0.9, top_p=0.95, seed=7)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NativeTarget]]:
    """opened(packing, name): open the demo model, or its draft model, packed once in a separate home."""
    home, made = tmp_path_factory.mktemp("home"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(home))

        def give(packing: str, name: str = "", threads: Threads | None = None) -> NativeTarget:
            key = packing, name, threads
            if key not in made:
                made[key] = NativeTarget.open(DEMO / name, packing=packing, threads=threads or Threads(1))
            return made[key]

        yield give


# -- opened ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_model_in_fp32_says_what_the_stock_model_says(opened):
    """The reference is a short loop over transformers' model, which reads the whole text again for every token."""
    target, stock = opened("fp32"), AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    for question in ("Who are you?", "Tell me about the sea."):
        prompt = target.encode([{"role": "user", "content": question}])
        tokens = list(prompt)
        while len(tokens) < len(prompt) + 24:
            logits = stock_logits(stock, tokens)[-1]
            first, second = logits.topk(2).values.tolist()
            if first - second < 1e-4 * logits.abs().max() or int(logits.argmax()) in target.stop_tokens:
                break
            tokens.append(int(logits.argmax()))
        assert len(tokens) > len(prompt) + 4
        ids, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, len(tokens) - len(prompt))
        assert ids == tokens[len(prompt) :]


@pytest.mark.slow
@each("name", [SHARDED, *FAMILIES, *RECURRENT, *MIXTURES, *RECURRENT_MIXTURES])
def test_logits_of_a_directory_that_is_opened_are_the_stock_models(tiny, name):
    model, text = tiny(name), prompt_ids(60, seed=9)
    expected = stock_logits(model.stock, text).numpy()
    found = read(NativeTarget.open(model.path, packing="fp32", threads=Threads(1)), text)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.slow
@each("name, context", [(LONGROPE, 64), (LONGROPE, 65), (DYNAMIC, 128), (DYNAMIC, 256)])
def test_positions_are_scaled_for_the_context_that_is_requested(tiny, name, context):
    model, text = tiny(name), prompt_ids(50, seed=9)
    reference = Target.load(model.path, context=context)
    expected = reference.forward(DraftTree.chain(text), reference.cache(64)).logits.numpy()
    target = NativeTarget.open(model.path, packing="fp32", context=context, threads=Threads(1))
    assert target.context == context
    assert np.abs(read(target, text) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.slow
@each("packing", PACKINGS)
def test_what_is_opened_knows_text_sizes_and_settings(opened, packing):
    target = opened(packing)
    assert (target.precision, target.context, target.device) == (packing, 1024, "cpu")
    prompt = target.encode([{"role": "user", "content": "Hi <|end|>"}])
    assert target.decode(prompt).replace("\u200c", "") == "Hi <|end|>"
    assert {target.tokenizer.token_to_id(name) for name in ("<|end|>", "<|endoftext|>")} == target.stop_tokens
    assert target.special_tokens > target.stop_tokens
    assert target.generation["temperature"] == 0.5
    assert target.nbytes == target.read_bytes, "the embedding is the head"
    parameters = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(DEMO).parameters())
    bits = {"int8": 8.25, "int4": 5.2, "bf16": 16, "fp32": 32}[packing]  # int4: the head has 6.6
    assert bits / 8 * parameters <= target.nbytes < bits / 8 * parameters * 1.15


def test_a_context_is_the_models_own_unless_another_fits(opened):
    opened("int8")
    assert NativeTarget.open(DEMO, context=100).context == 100
    with pytest.raises(UsageMistake, match=matching("context_4096_tokens_more_than")):
        NativeTarget.open(DEMO, context=4096)


@pytest.mark.slow
def test_a_draft_model_shares_its_targets_threads(opened):
    target = NativeTarget.open(DEMO, threads=Threads(1))
    small = NativeTarget.open(DEMO / "draft", threads=target.threads)
    prompt = prompt_ids(20)
    before = [read(model, prompt) for model in (target, small)]
    target.set_threads(2)
    assert small.threads is target.threads and small.threads.count == 2
    assert all(np.array_equal(read(model, prompt), one) for model, one in zip((target, small), before, strict=True))
    with pytest.raises(LocalspecError, match="-3"):
        target.set_threads(-3)
    assert np.array_equal(read(target, prompt), before[0]), "the threads it had go on"


@each("threads, lends", [(4, True), (3, False)])
def test_a_core_is_lent_if_no_core_is_free(opened, monkeypatch, threads, lends):
    """Four cores, one always with the caller. A lent core comes back, whatever the number of threads is now."""
    monkeypatch.setattr(native_target, "logical_cores", lambda: 4)
    target, told = opened("int8", threads=Threads(threads)), []
    monkeypatch.setattr(library(), "ls_pool_lend", lambda pool, lent: told.append((pool, lent)))
    target.lend_core(True)
    assert told == ([(target.threads.handle, True)] if lends else [])
    target.set_threads(2)
    target.lend_core(False)
    assert told[-1] == (target.threads.handle, False)


def read(target: NativeTarget, tokens: list[int]) -> np.ndarray:
    return target.forward(DraftTree.chain(tokens), target.cache(0)).logits.numpy()


# -- the same ids, whatever is drafted -------------------------------------------------------------------------------------


def untrained(target: NativeTarget, small: NativeTarget, text: list[int]) -> Iterator[tuple[str, Drafter]]:
    vocabulary = target.vocab_size

    def pool() -> PhrasePool:
        return PhrasePool(target.special_tokens, vocabulary=vocabulary)

    yield "random branches", RandomBranches(text, seed=1, vocabulary=vocabulary)
    yield "off the chain", WithPhrases(OffChain(text, vocabulary=vocabulary), pool())
    for kind in ("phrases", "lookahead", "draft_model", "ouroboros"):
        parts = ("verification", "window", "phrases") if kind == "ouroboros" else ()
        build = import_module(f"localspec.drafters.{kind}").build
        yield kind, build(Ingredients(target, pool(), False, small, None, Hyperparameters(), parts))


def assert_lossless(target: NativeTarget, small: NativeTarget, prompt: list[int], count: int) -> None:
    for sampling in (Sampling(), HOT):
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, count, sampling)
        for name, drafter in untrained(target, small, prompt + plain):
            ids, statistics = reply(Session(target, drafter, Budget(NODES)), prompt, count, sampling)
            assert ids == plain, name
            if name in ("random branches", "off the chain") and len(plain) == count:
                assert statistics.acceptance_length > 1.2, name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "packing"), covering([*FAMILIES, *MIXTURES], ["int8", "int4"]))
def test_in_few_bits_no_drafter_changes_an_id(tiny, name, packing):
    target = tiny(name, packing).target
    small = tiny("llama-one-key-head-tied-linear", packing).target
    assert_lossless(target, small, prompt_ids(15, seed=3), 24)


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "threads"), [("int8", 2), ("int4", 1)])
def test_the_demo_models_replies_are_the_same_with_every_drafter(opened, packing, threads):
    shared = Threads(threads)
    target, small = opened(packing, "", shared), opened(packing, "draft", shared)
    for question in ("Tell me a story about a king.",):
        assert_lossless(target, small, target.encode([{"role": "user", "content": question}]), 64)


@each("packing", PACKINGS)
def test_a_rows_bits_depend_only_on_its_ancestors(tiny, packing):
    """A tree in one forward, each of its paths as a chain, and the chain token by token."""
    target, prompt = tiny(FAMILIES[1], packing).target, prompt_ids(37, seed=5)
    tree = random_tree(prompt[-1], 11, seed=2)
    cache = target.cache(0)
    target.forward(DraftTree.chain(prompt[:-1]), cache, last=True)
    cache.keep(range(len(prompt) - 1))
    whole = target.forward(tree, cache)
    for node in range(tree.size):
        path = [node]
        while path[-1]:
            path.append(tree.parents[path[-1]])
        text = [*prompt[:-1], *(tree.tokens[at] for at in reversed(path))]
        alone, chain = target.cache(len(text)), read(target, text)
        for token in text:
            one = target.forward(DraftTree.chain([token]), alone)
            alone.keep([0])
        assert np.array_equal(chain[-1], whole.logits.numpy()[node])
        assert np.array_equal(one.logits.numpy()[0], chain[-1]) and np.array_equal(
            one.hidden.rows[0], whole.hidden.rows[node]
        )


def test_what_lies_in_slots_that_a_row_does_not_see_changes_nothing(tiny):
    target, prompt = tiny(FAMILIES[0], "int8").target, prompt_ids(21)
    cache = target.cache(64)
    target.forward(DraftTree.chain(prompt), cache)
    cache.keep(range(len(prompt)))
    tree = random_tree(7, 5, seed=1)
    before = target.forward(tree, cache).logits.numpy()
    inputs = np.full((9, target.config.hidden_size), np.nan, np.float32)
    assert not np.isfinite(target.model.read_rows(inputs, cache)).any()
    assert np.array_equal(target.forward(tree, cache).logits.numpy(), before)


# -- hostile inputs ----------------------------------------------------------------------------------------------------


@each("token", [-1, 320, 10**6, -(2**31)])
@each("place", [0, 3])
def test_unknown_ids_are_refused(tiny, token, place):
    target, tokens = tiny(FAMILIES[0]).target, [5, 6, 7, 8]
    tokens[place] = token
    cache = target.cache(0)
    with pytest.raises(LocalspecError, match=str(token) if token > 0 else f"Row {place} has neither a token"):
        target.forward(DraftTree.chain(tokens), cache)
    with pytest.raises(LocalspecError, match=str(token)):
        target.model.embed(tokens)
    assert cache.length == 0 and read(target, [5, 6]).shape == (2, 320), "and it goes on"


def test_logits_that_are_not_a_number_pick_nothing(tiny):
    target = tiny(FAMILIES[0]).target
    inputs = np.zeros((2, target.config.hidden_size), np.float32)
    inputs[1] = np.nan
    logits = NativeLogits(target.model.head(inputs))
    assert not logits.finite() and logits.finite_rows(HOT) == 1
    for ask in (logits.argmax, lambda: logits.picks([3, 4], HOT)[1], lambda: logits.sample(1, 3, 0, HOT)):
        with pytest.raises(LocalspecError, match=matching("not_a_number")):
            ask()
    assert logits.candidates([3, 4], 4, HOT)[1] == []


# -- what is imported --------------------------------------------------------------------------------------------------

REPLY = """
import sys
from pathlib import Path
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.limits import Limits
from localspec.decoding.session import Session
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.phrases import build
from localspec.drafters.pool import PhrasePool
from localspec.native.target import NativeTarget

target = NativeTarget.open(Path(sys.argv[1]))
drafter = build(Ingredients(target, PhrasePool(target.special_tokens)))
session = Session(target, drafter, Budget(8))
prompt = target.encode([{"role": "user", "content": "Who are you?"}])
for sampling in (Sampling(), Sampling(0.8, top_p=0.9, seed=1)):
    events = list(session.generate(prompt, sampling, Limits(16)))
    assert len(session.tokens) > len(prompt)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.slow
def test_a_whole_reply_imports_neither_torch_nor_transformers(opened):
    opened("int8")
    told = subprocess.run([sys.executable, "-c", REPLY, str(DEMO)], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())
    assert {"numpy", "tokenizers"} <= loaded
    assert not loaded & {"torch", "transformers", "safetensors", "huggingface_hub", "accelerate", "textual"}


def test_where_the_library_is_missing_it_is_reported_in_a_sentence(monkeypatch, tmp_path):
    compiled.library.cache_clear()
    library.cache_clear()
    monkeypatch.setattr(compiled, "FILE", tmp_path / "localspec_native.so")
    try:
        with pytest.raises(LocalspecError, match=matching("compiled_library_localspec_native")):
            Threads(1)
    finally:
        monkeypatch.undo()
        compiled.library.cache_clear()
        library.cache_clear()
    assert Threads(1).count == 1


LEAVING = """
import sys, threading, time
from pathlib import Path
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.native.target import NativeTarget

target = NativeTarget.open(Path(sys.argv[1]))
target.stop_tokens = frozenset()
begun = threading.Event()

def talk():
    while True:
        for _ in Session(target, Autoregressive(), Budget(0)).generate([5, 6, 7], Sampling()):
            begun.set()

threading.Thread(target=talk, daemon=True).start()
begun.wait()
"""


@pytest.mark.slow
def test_a_program_may_end_while_another_thread_computes(opened):
    opened("int8")
    for _ in range(2):
        left = subprocess.run([sys.executable, "-c", LEAVING, str(DEMO)], capture_output=True, text=True, check=False)
        assert (left.returncode, left.stderr) == (0, "")


def test_texts_that_changed_since_the_weights_were_packed_are_those_of_the_directory(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    path = tmp_path / "model"
    shutil.copytree(tiny("qwen2-one-key-head").path, path)
    NativeTarget.open(path)
    (path / "chat_template.jinja").write_text("{% for message in messages %}<{{ message['content'] }}>{% endfor %}")
    (path / "generation_config.json").write_text('{"temperature": 0.25}')
    target = NativeTarget.open(path)
    assert (
        target.chat.render([{"role": "user", "content": "Hi"}]) == "<Hi>" and target.generation["temperature"] == 0.25
    )
    assert len(list((tmp_path / "home").rglob("*.packed"))) == 1


@pytest.mark.parametrize("what", ["logits", "states"])
def test_the_self_test_sees_a_last_bit_that_depends_on_other_rows(opened, monkeypatch, what):
    target, forward = opened("int8"), NativeTarget.forward
    assert finished(exactness.measuring(target, 3)).bitwise

    def disturbed(self: NativeTarget, tree: DraftTree, cache: object, **more: bool) -> object:
        output = forward(self, tree, cache, **more)
        if tree.size == 3:
            numbers = output.logits.rows if what == "logits" else output.hidden.rows
            numbers[0, 0] = np.nextafter(numbers[0, 0], np.float32(np.inf))
        return output

    monkeypatch.setattr(NativeTarget, "forward", disturbed)
    found = finished(exactness.measuring(target, 3))
    assert not found.bitwise and 0 < found.largest < 1e-6
    assert finished(exactness.measuring(target, 2)).bitwise


@pytest.mark.slow
@each("name", ["", "draft"])
@each("packing", PACKINGS)
def test_rows_of_several_texts_are_what_each_says_by_itself(opened, packing, name):
    target, rng = opened(packing, name), np.random.default_rng(4)
    lengths = (1, 15, 16, 40, 270)  # blocks of keys, and chunks of attention
    both = []
    for _ in range(2):
        both.append([target.cache(length + 2) for length in lengths])
    for length, *caches in zip(lengths, *both, strict=True):
        text = rng.integers(4, target.vocab_size, length).tolist()
        for cache in caches:
            target.forward(DraftTree.chain(text), cache, last=True)
            cache.keep(range(length))
    for _ in range(3):  # the last of them grows the caches
        tokens = rng.integers(4, target.vocab_size, len(lengths)).tolist()
        together = target.forward_each(tokens, both[0])
        for row, (token, cache) in enumerate(zip(tokens, both[1], strict=True)):
            alone = target.forward(DraftTree.chain([token]), cache)
            assert np.array_equal(together.logits.rows[row], alone.logits.rows[0])
            assert np.array_equal(together.hidden.rows[row], alone.hidden.rows[0])
            assert together.logits.argmax()[row] == alone.logits.argmax()[0]
        for cache in (*both[0], *both[1]):
            cache.keep([0])
    with pytest.raises(LocalspecError, match="same cache"):
        target.forward_each([5, 6], [both[0][0]] * 2)
    with pytest.raises(LocalspecError, match="not possible at once"):
        target.forward_each([5] * 33, [target.cache(2) for _ in range(33)])
    with pytest.raises(LocalspecError, match="knows ids below"):
        target.forward_each([5, target.vocab_size], both[0][:2])
