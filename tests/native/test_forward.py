"""Forwards: trees, caches, subsets of layers, adapters, inputs for tokens; a row depends only on its ancestors."""

import copy
import ctypes

import numpy as np
import pytest
import torch
from native.engine import POOL, Model, Pool, Text, adapters, isas, stock_logits, using
from native.stock_models import stock_of
from tiny_models import CONFIGS

from localspec.machine.library import Request, address, check, int32, library

TWO, SIXTEEN = Pool(2), Pool(16)
WINDOWED = "qwen3-grouped-mixed-window-wide-heads"  # 9 positions, norms, one layer that sees everything
VOCABULARY = 320


@pytest.fixture(scope="module")
def stock():
    return stock_of(CONFIGS[WINDOWED](), seed=1)


@pytest.fixture(
    scope="module",
    params=[("fp32", "fp32"), ("int8", "fp16"), ("bf16", "fp16")],
    ids=lambda form: form[0],
)
def model(request, stock):
    return Model(stock, *request.param)


def random_tree(rng: np.random.Generator, size: int) -> list[int]:
    return [-1, *(int(rng.integers(-1, node)) for node in range(1, size))]


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def test_a_row_of_a_tree_is_what_a_chain_of_its_ancestors_gives(model):
    rng = np.random.default_rng(0)
    for case in range(12):
        start, size = int(rng.integers(0, 40)), int(rng.integers(2, 34))
        tokens, prompt = rng.integers(0, VOCABULARY, size).tolist(), rng.integers(0, VOCABULARY, start).tolist()
        parents = random_tree(rng, size)
        text, alone = Text(model, (POOL, TWO, SIXTEEN)[case % 3]), Text(model)
        if start:
            text.read(prompt, int(rng.integers(1, 20)))
            alone.read(prompt, 1)
        tree = text.forward(tokens, parents)
        hidden = text.hidden
        for node in rng.permutation(size)[:3].tolist():
            path = path_to(parents, node)
            chain = alone.read([tokens[i] for i in path], 1)
            assert np.array_equal(chain, tree[path])
            assert np.array_equal(alone.hidden[-1], hidden[node])
            alone.truncate(start)
        # the saved rows are those that the chain has written
        node = int(rng.integers(size))
        path = path_to(parents, node)
        text.keep(path)
        alone.read([tokens[i] for i in path], 3)
        assert text.length == start + len(path)
        assert np.array_equal(text.forward([5, 6], [-1, -1]), alone.forward([5, 6], [-1, -1]))


@pytest.mark.slow
def test_a_long_text_is_the_same_in_one_chunk_and_in_many_among_any_threads_and_instructions(model):
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 700).tolist()
    first = None
    for isa in isas()[1:] or isas():
        with using(isa):
            for pool, chunk in ((POOL, 700), (SIXTEEN, 300), (TWO, 33)):
                text = Text(model, pool, slots=720)
                logits = text.read(tokens, chunk)[-30:]
                # one row and a tree after a long text: if there are many chunks of slots, threads share them
                tree = text.forward([1, 2, 3, 4, 5], [-1, 0, 0, 1, -1])
                got = np.concatenate([logits, tree])
                first = got if first is None else first
                assert np.array_equal(first, got), (isa, chunk)


def test_slots_are_added_without_a_change(model):
    tokens = np.random.default_rng(2).integers(0, VOCABULARY, 50).tolist()
    roomy, grown = Text(model, slots=512), Text(model, slots=16)
    assert library().ls_cache_slots(grown.cache) == 16
    roomy.read(tokens, 7)
    for start in range(0, 50, 10):
        check(library().ls_cache_reserve(grown.cache, start + 10))
        grown.read(tokens[start : start + 10], 5)
    check(library().ls_cache_reserve(grown.cache, 200))
    assert library().ls_cache_slots(grown.cache) == 208
    assert np.array_equal(roomy.forward([9, 8, 7], [-1, 0, 0]), grown.forward([9, 8, 7], [-1, 0, 0]))
    grown.truncate(20)
    roomy.truncate(20)
    assert np.array_equal(roomy.forward([9]), grown.forward([9]))


def test_slots_that_are_added_before_a_path_is_kept_lose_no_row_of_the_tree(model):
    tokens, texts = np.random.default_rng(6).integers(0, VOCABULARY, 29).tolist(), [Text(model, slots=32) for _ in "ab"]
    for text in texts:
        text.read(tokens[:9], 9)
        text.forward(tokens[9:], [-1, *[0] * 18, 15])
        if text is texts[0]:
            check(library().ls_cache_reserve(text.cache, 100))
        text.keep([0, 15, 19])
    assert np.array_equal(*(text.forward([9, 8], [-1, 0]) for text in texts))


def test_logits_from_a_row_on_and_rows_that_nobody_asks_for(model):
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, 300).tolist()
    whole, part = Text(model), Text(model)
    want = whole.forward(tokens)
    for start in (0, 1, 255, 256, 257, 299, 300):
        got = part.forward(tokens, logits_from=start)
        assert np.array_equal(got, want[start:])
        assert part.argmax.tolist() == want[start:].argmax(-1).tolist()
        assert np.array_equal(part.hidden, whole.hidden)
    # Without logits, or with only the last ones, the last layer is not finished for rows that nobody reads.
    for last in (False, True):
        text, logits, numbers = Text(model), np.empty((1, VOCABULARY), np.float32), int32(tokens)
        request = Request(
            300, address(numbers), None, None, None, None, 0, None, None, address(logits) if last else None, None, 299
        )
        check(library().ls_forward(model.handle, text.cache, text.pool.handle, ctypes.byref(request)))
        if last:
            assert np.array_equal(logits[0], want[299])
        text.keep(range(300))
        whole.truncate(0)
        whole.forward(tokens)
        whole.keep(range(300))
        assert np.array_equal(text.forward([3]), whole.forward([3]))


def test_some_layers_are_a_model_of_these_layers(stock):
    tokens = list(range(40, 70))
    model = Model(stock)
    for layers in ([0, 2], [1], []):
        fewer = copy.deepcopy(stock)
        fewer.model.layers = torch.nn.ModuleList(fewer.model.layers[i] for i in layers)
        fewer.config.layer_types = [stock.config.layer_types[i] for i in layers]
        fewer.config.num_hidden_layers = len(layers)
        got = Text(model).forward(tokens, layers=layers)
        want = stock_logits(fewer, tokens) if layers else None
        if layers:
            assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
        else:
            with torch.no_grad():
                assert np.allclose(
                    got, fewer.lm_head(fewer.model.norm(fewer.model.embed_tokens(torch.tensor(tokens)))), atol=1e-4
                )


@pytest.mark.slow
@pytest.mark.parametrize("intermediate", [40, 41], ids=["whole vectors", "a part of one"])
def test_adapters_are_weights_that_were_added(intermediate):
    rng, tokens, config = np.random.default_rng(4), list(range(100, 130)), CONFIGS[WINDOWED]()
    config.intermediate_size = intermediate
    stock = stock_of(config, seed=1)
    changed = copy.deepcopy(stock)
    given = {}
    for layer, which, parts, module in (
        (0, 0, ("q_proj", "k_proj", "v_proj"), "self_attn"),
        (1, 1, ("o_proj",), "self_attn"),
        (1, 2, ("gate_proj", "up_proj"), "mlp"),
        (2, 3, ("down_proj",), "mlp"),
    ):
        linears = [getattr(getattr(changed.model.layers[layer], module), part) for part in parts]
        out, inputs, rank = sum(linear.out_features for linear in linears), linears[0].in_features, 3 + which
        a, b = rng.standard_normal((rank, inputs)) * 0.3, rng.standard_normal((out, rank)) * 0.3
        given[layer, which] = a, b, 0.5
        added = torch.tensor(0.5 * b @ a, dtype=torch.float32)
        with torch.no_grad():
            for linear, part in zip(linears, added.split([linear.out_features for linear in linears]), strict=True):
                linear.weight += part
    model = Model(stock)
    struct = adapters(model, given)
    want = stock_logits(changed, tokens)
    got = Text(model).forward(tokens, adapters=struct)
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    assert np.abs(got - Text(model).forward(tokens)).max() > 0.1
    for isa in isas():
        with using(isa):
            text = Text(model, TWO)
            for row, token in enumerate(tokens):
                assert np.array_equal(text.forward([token], adapters=struct)[0], got[row])
                text.keep([0])


def test_inputs_in_place_of_tokens_and_positions_of_ones_own(stock):
    model, tokens = Model(stock), [3, 1, 4, 1, 5, 9, 2, 6]
    embeddings = stock.model.embed_tokens.weight.detach().numpy()[tokens]
    want = Text(model).forward(tokens)
    assert np.array_equal(Text(model).forward(None, inputs=embeddings), want)
    mixed = embeddings.copy()
    mixed[::2] = np.nan
    half = [token if row % 2 == 0 else -1 for row, token in enumerate(tokens)]
    assert np.array_equal(Text(model).forward(half, inputs=mixed), want)


def test_positions_of_ones_own():
    stock, tokens, positions = (
        stock_of(CONFIGS["llama-grouped-dynamic"](), seed=2),
        [3, 1, 4, 1, 5, 9],
        [2, 3, 5, 5, 9, 20],
    )
    mask = torch.zeros(1, 1, 6, 6).masked_fill(
        torch.ones(6, 6).triu(1).bool(), float("-inf")
    )  # else it takes jumps for texts
    with torch.no_grad():
        want = (
            stock(torch.tensor([tokens]), attention_mask=mask, position_ids=torch.tensor([positions]), use_cache=False)
            .logits[0]
            .numpy()
        )
    text = Text(Model(stock, context=128))
    assert np.abs(text.forward(tokens, positions=positions) - want).max() < 1e-4 * np.abs(want).max()
    text.keep(range(6))
    assert np.array_equal(text.forward([1, 2], positions=[20, 21])[:1], text.forward([1], positions=[20]))


def test_windows_count_positions(stock):
    """A row at position 30 sees nothing at 21 or before through a window of 9, at any place in the cache."""
    model = Model(stock)

    def last(tokens, positions):
        text = Text(model, slots=16)
        text.forward(tokens[:-1], layers=[0], positions=positions[:-1])
        text.keep(range(len(tokens) - 1))
        check(library().ls_cache_reserve(text.cache, 100))  # positions are copied, too
        text.forward(tokens[-1:], layers=[0], positions=positions[-1:])
        return text.hidden[0]

    want = last([1, 2, 3], [22, 23, 30])
    assert np.allclose(last([7, 8, 1, 2, 3], [20, 21, 22, 23, 30]), want, atol=1e-5)
    assert np.abs(last([7, 8, 1, 2, 3], [20, 22, 22, 23, 30]) - want).max() > 0.01
    assert np.abs(last([7, 8, 1, 2, 3], [20, 21, 22, 23, 31]) - want).max() > 0.01


@pytest.mark.slow
def test_equal_models_of_one_text_at_once(model):
    from concurrent.futures import ThreadPoolExecutor

    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 60).tolist()
    want = Text(model).read(tokens, 6)
    with ThreadPoolExecutor(4) as several:
        for got in several.map(lambda _: Text(model, TWO).read(tokens, 6), range(8)):
            assert np.array_equal(got, want)


def test_nan_inside_is_seen_outside(stock):
    damaged = copy.deepcopy(stock)
    with torch.no_grad():
        damaged.model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    for form in ("fp32", "int8"):
        text = Text(Model(damaged, form))
        logits = text.forward([1, 2, 3])
        assert np.isnan(logits).all() and text.argmax.tolist() == [-1, -1, -1] and not np.isfinite(text.hidden).all()
