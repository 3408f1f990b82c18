"""A caller's mistake gives an error, never a crash."""

import ctypes
from ctypes import byref, c_int32

import numpy as np
import pytest
from each import each
from golden import matching
from native.engine import POOL, Model, Text, linear
from native.stock_models import stock_of
from tiny_models import CONFIGS, RECURRENT

from localspec.errors import LocalspecError
from localspec.machine.library import (
    Adapter,
    Delta,
    DeltaSizes,
    ExpertSizes,
    Heads,
    LayerInputs,
    Matrix,
    ModelConfig,
    Packing,
    Request,
    Sampling,
    Table,
    address,
    check,
    int32,
    library,
    valid_handle,
)
from localspec.weights.matrices import PackedMatrix


@pytest.fixture(scope="module")
def model():
    return Model(stock_of(CONFIGS["llama-grouped-dynamic"](), 0), context=128)


def request(rows=2, **given):
    """Return a request whose arrays live as long as it does."""
    arrays = {
        name: int32(value) if name != "inputs" else value
        for name, value in given.items()
        if isinstance(value, list | np.ndarray)
    }
    made_of = Request(rows)
    for name, value in given.items():
        setattr(made_of, name, address(arrays[name]) if name in arrays else value)
    made_of.arrays = arrays
    return made_of


@each(
    "given, sentence",
    [
        ({"rows": 0, "tokens": []}, "forward of 0 rows"),
        ({"rows": -3, "tokens": []}, "forward of -3 rows"),
        ({"rows": 17, "tokens": [1] * 17}, "17 rows do not fit behind 0 tokens in 16 slots"),
        ({"tokens": [1, 320]}, "Row 1 has token 320, and the model knows ids below 320"),
        ({"tokens": [1, -1]}, "Row 1 has neither a token nor an input"),
        ({}, "Row 0 has neither a token nor an input"),
        ({"tokens": [1, 2], "parents": [-1, 1]}, "Row 1 has parent 1"),
        ({"tokens": [1, 2], "parents": [-2, 0]}, "Row 0 has parent -2"),
        ({"tokens": [1, 2], "positions": [4, 3]}, "Row 1 has position 3, below 4"),
        ({"tokens": [1, 2], "positions": [-1, 3]}, "Row 0 has position -1, below 0"),
        ({"tokens": [1, 2], "layers": [1, 0], "num_layers": 2}, matching("layer_0_place")),
        ({"tokens": [1, 2], "layers": [3], "num_layers": 1}, matching("layer_3_place")),
        ({"tokens": [1, 2], "layers": [-1], "num_layers": 1}, matching("layer_1_place")),
        ({"tokens": [1, 2], "layers": [0], "num_layers": 4}, matching("n4_layers_asked_model_3")),
        ({"tokens": [1, 2], "logits_from": 3}, "Logits from row 3 on"),
        ({"tokens": [1, 2], "logits_from": -1}, "Logits from row -1 on"),
    ],
)
def test_a_wrong_request_says_what_is_wrong_and_changes_nothing(model, given, sentence):
    text = Text(model, slots=16)
    with pytest.raises(LocalspecError, match=sentence):
        check(library().ls_forward(model.handle, text.cache, POOL.handle, request(**given)))
    assert text.length == 0
    text.forward([1, 2])


def test_what_is_missing_is_named(model):
    text, fine = Text(model), request(tokens=[1, 2])
    for arguments in (
        (None, text.cache, POOL.handle),
        (model.handle, None, POOL.handle),
        (model.handle, text.cache, None),
    ):
        with pytest.raises(LocalspecError, match=matching("a_forward_needs_a_model_a")):
            check(library().ls_forward(*arguments, fine))
    bad = (Adapter * 12)()
    bad[5] = Adapter(None, None, 4, 1.0)
    with pytest.raises(LocalspecError, match=matching("an_adapter_of_layer_1_lacks")):
        check(
            library().ls_forward(
                model.handle,
                text.cache,
                POOL.handle,
                request(tokens=[1, 2], adapters=ctypes.cast(bad, ctypes.c_void_p)),
            )
        )
    bad[5] = Adapter(None, None, -4, 1.0)
    with pytest.raises(LocalspecError, match="rank -4"):
        check(
            library().ls_forward(
                model.handle,
                text.cache,
                POOL.handle,
                request(tokens=[1, 2], adapters=ctypes.cast(bad, ctypes.c_void_p)),
            )
        )


@pytest.fixture(scope="module")
def sharing():
    """Return a model whose last two layers read keys and values of the first two; all read inputs of a token."""
    return Model(stock_of(CONFIGS["gemma4-one-key-head-shared-double-wide-layer-inputs"](), 0))


@each(
    "given, sentence",
    [
        ({"rows": 1, "inputs": np.zeros((1, 48), np.float32)}, "Row 0 has an input in the place of a token"),
        ({"tokens": [1, -1], "inputs": np.zeros((2, 48), np.float32)}, "Row 1 has an input in the place of a token"),
        ({"tokens": [1, 2], "layers": [0, 2], "num_layers": 2}, matching("layer_2_reads_keys_layer_1_which")),
        ({"tokens": [1, 2], "layers": [1, 2, 3], "num_layers": 3}, matching("layer_3_reads_keys_layer_0_which")),
    ],
)
def test_what_layers_need_of_each_other_and_of_tokens_is_requested(sharing, given, sentence):
    text = Text(sharing, slots=16)
    with pytest.raises(LocalspecError, match=sentence):
        check(library().ls_forward(sharing.handle, text.cache, POOL.handle, request(**given)))
    text.forward([1, 2])


def test_a_cache_belongs_to_its_model(model):
    other = Model(stock_of(CONFIGS["llama-one-key-head-tied-linear"](), 0))
    with pytest.raises(LocalspecError, match="another shape"):
        check(library().ls_forward(model.handle, Text(other).cache, POOL.handle, request(tokens=[1, 2])))


def test_a_cache_belongs_to_layers_of_these_sizes(sharing):
    """Both caches have the same numbers of layers and heads, but the heads are wider, or one layer has its own keys."""
    config = CONFIGS["gemma4-one-key-head-shared-double-wide-layer-inputs"]()
    said = {**config.to_dict(), "global_head_dim": 12}
    del said["per_layer_config"]
    for name, value in (("num_kv_shared_layers", 0), ("head_dim", 20)):
        other = Model(stock_of(type(config)(**{**said, name: value}), 0))
        with pytest.raises(LocalspecError, match="another shape"):
            check(library().ls_forward(sharing.handle, Text(other).cache, POOL.handle, request(tokens=[1, 2])))


def test_mistakes_with_a_cache(model):
    text = Text(model, slots=16)
    for path, sentence in (
        ([-1], "Row -1 cannot"),
        ([1, 1], "Row 1 cannot"),
        ([2, 1], "Row 1 cannot"),
        ([16], "Row 16 cannot"),
        (list(range(17)), "17 rows"),
    ):
        with pytest.raises(LocalspecError, match=sentence):
            text.keep(path)
    text.forward([1, 2, 3])
    text.keep([0, 2])
    for length in (3, -1):
        with pytest.raises(LocalspecError, match=f"A cache of 2 tokens cannot be cut to {length}"):
            text.truncate(length)
    with pytest.raises(LocalspecError, match=matching("a_cache_of_1_slots")):
        check(library().ls_cache_reserve(text.cache, -1))
    with pytest.raises(MemoryError, match=matching("no_memory_for_a_cache_of")):
        check(library().ls_cache_reserve(text.cache, 2**31 - 1))
    assert text.length == 2 and library().ls_cache_slots(text.cache) == 16
    with pytest.raises(MemoryError):
        valid_handle(library().ls_cache_new(model.handle, 2**31 - 1))
    with pytest.raises(LocalspecError, match=matching("a_cache_needs_a_model")):
        valid_handle(library().ls_cache_new(None, 16))


def config_of(model, **changes):
    config = ModelConfig.from_buffer_copy(model.config)
    layers = model.layers()
    config.layers = ctypes.cast(layers, ctypes.c_void_p)
    for name, value in changes.items():
        if name.startswith("layer_") and name != "layer_inputs":
            setattr(layers[1], name.removeprefix("layer_"), value)
        else:
            setattr(config, name, value)
    config.kept = layers
    return config


@each(
    "changes, sentence",
    [
        ({"hidden_size": 0}, matching("hidden_size_0_possible")),
        ({"num_layers": -1}, "num_layers = -1"),
        ({"num_kv_heads": 3}, matching("n4_heads_cannot_share_3_key_heads")),
        ({"rotary_dim": 5}, "rotary_dim = 5"),
        ({"rotary_dim": 14}, "rotary_dim = 14"),
        ({"cache_format": 2}, "cache cannot have format 2"),
        ({"embed_tokens": Table(64, 9)}, "embed_tokens cannot have format 9"),
        ({"embed_tokens": Table(matrix=Matrix(64, None, 319, 48, 0, 0))}, "embed_tokens is 319 x 48"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"attention_scaling": 0.0}, "attention_scaling = 0"),
        ({"local_scaling": -1.0}, "local_scaling = -1"),
        ({"query_scalar": 0.0}, "query_scalar = 0"),
        ({"embed_scale": float("nan")}, "embed_scale = nan"),
        ({"norm_offset": 2.0}, "norm_offset = 2"),
        ({"residual_scale": 0.0}, "residual_scale = 0"),
        ({"logit_scale": -1.0}, "logit_scale = -1"),
        ({"query_factors": 64, "num_query_factors": 0}, "There are 0 query_factors"),
        ({"query_factors": 64, "num_query_factors": 1, "query_period": 0}, "each for 0 positions"),
        ({"gate": 0}, "no gate 0"),
        ({"layer_o_norm": 64}, "one of o_norm and down_norm"),
        ({"layer_local": 1}, "Layer 1 is local"),
        ({"inv_freq": None}, "needs inv_freq"),
        ({"local_rotary_dim": 12}, "needs local_inv_freq"),
        ({"logit_cap": -1.0}, "logit_cap = -1"),
        ({"layer_num_kv_heads": 3}, matching("n4_heads_cannot_share_3_key_heads")),
        ({"layer_num_kv_heads": -2}, matching("n4_heads_cannot_share_2_key_heads")),
        ({"layer_head_dim": 10}, matching("rotary_dim_12_possible_even_most")),
        ({"layer_head_dim": 2**30}, matching("n4_heads_1073741824_channels")),
        ({"layer_head_dim": 14}, "qkv_proj of layer 1 is 96 x 48, and the model's sizes ask for 112 x 48"),
        ({"layer_intermediate_size": 41}, "gate_up_proj of layer 1 is 80 x 48"),
        ({"layer_intermediate_size": -1}, "intermediate_size = -1"),
        ({"layer_keys_from": 2}, "Layer 1 cannot read the keys of the layer 2 before it"),
        ({"layer_keys_from": -1}, "Layer 1 and layer 0 do not both read keys of another model"),
        ({"layer_keys_from": 1}, "qkv_proj of layer 1 is 96 x 48, and the model's sizes ask for 48 x 48"),
        ({"layer_keys_from": 1, "layer_num_kv_heads": 4}, "Layer 1 cannot read the keys of layer 0"),
        ({"layer_keys_are_values": 1}, "the model's sizes ask for 72 x 48"),
        ({"layer_inputs": LayerInputs(width=-1)}, matching("layers_cannot_read_1_channels")),
        ({"layer_inputs": LayerInputs(width=8, tokens=319)}, matching("n319_tokens_model_knows_320")),
        ({"layer_inputs": LayerInputs(8, 320, 1.0, 1.0, Table(64, 2), Matrix(), 64)}, "what layers read cannot have format 2"),
        ({"layer_inputs": LayerInputs(width=8, tokens=320)}, "lacks its table"),
        ({"layer_inputs": LayerInputs(8, 320, 1.0, 1.0, Table(64), Matrix(), 64)}, matching("matrix_0_x_0")),
        ({"vocab_size": 319}, "lm_head is 320 x 48, and the model's sizes ask for 319 x 48"),
        ({"intermediate_size": 41}, "gate_up_proj of layer 0 is 80 x 48"),
        ({"experts": ExpertSizes(4097, 2, 16)}, "4097 experts are not possible; give 1 to 4096"),
        ({"experts": ExpertSizes(-1, 2, 16)}, "-1 experts are not possible"),
        ({"experts": ExpertSizes(8, 9, 16)}, "9 of 8 experts for each row are not possible"),
        ({"experts": ExpertSizes(8, 0, 16)}, "0 of 8 experts for each row are not possible"),
        ({"experts": ExpertSizes(8, 2, 24)}, "Experts of 24 channels on states of 48 are not possible"),
        ({"layer_input_layernorm": None}, "Layer 1 lacks a norm"),
        ({"layer_q_norm": 64}, "one of q_norm and k_norm"),
        ({"layer_sliding_window": -1}, "window of -1 positions"),
        ({"layer_qkv_proj": Matrix(None, None, 96, 48, 0, 0)}, "qkv_proj of layer 1 has no weights"),
        ({"layer_qkv_proj": Matrix(32, None, 96, 48, 0, 0)}, "multiple of 64 bytes"),
        ({"layer_qkv_proj": Matrix(64, None, 96, 48, 7, 0)}, "no format 7 of weights"),
        ({"layer_qkv_proj": Matrix(64, None, 96, 48, 2, 48)}, "group of 48 inputs"),
        ({"layer_qkv_proj": Matrix(64, None, 96, 48, 0, 32)}, "dense matrix has no groups"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_possible(model, changes, sentence):
    with pytest.raises(LocalspecError, match=sentence):
        valid_handle(library().ls_model_new(config_of(model, **changes)))


def test_a_model_with_recurrent_layers_that_is_not_possible(model):
    recurrent = Model(stock_of(RECURRENT["qwen3_5-grouped-shared-keys-interval"](), 0))  # whose layer 1 is one
    part = Delta(64, 64, None, 64)
    for changes, sentence in (
        ({"gated": 2}, "gated = 2 is not possible"),
        ({"gated": 0}, "qkv_proj of layer 2 is 192 x 48, and the model's sizes ask for 128 x 48"),
        ({"delta": DeltaSizes(2, 4, 8, 12, 0)}, "taps = 0 of recurrent layers"),
        ({"delta": DeltaSizes(3, 4, 8, 12, 4)}, "4 value heads cannot share 3 key heads"),
        ({"delta": DeltaSizes(65536, 65536, 65536, 65536, 4)}, "too large"),
        ({"delta": DeltaSizes(1, 65536, 1, 600, 1)}, "too wide"),
        (
            {"delta": DeltaSizes(2, 4, 8, 13, 4)},
            "qkv_proj of layer 0 is 136 x 48, and the model's sizes ask for 144 x 48",
        ),
        ({"delta": DeltaSizes()}, "Layer 0 is recurrent, and the model does not say how large"),
        ({"layer_delta": ctypes.addressof(part)}, "Recurrent layer 1 lacks a part"),
    ):
        with pytest.raises(LocalspecError, match=sentence):
            valid_handle(library().ls_model_new(config_of(recurrent, **changes)))
    with pytest.raises(LocalspecError, match="another shape"):
        check(library().ls_forward(recurrent.handle, Text(model).cache, POOL.handle, request(tokens=[1, 2])))


def test_a_cache_belongs_to_recurrent_layers_of_its_size():
    """The keys and values of both caches have the same shape; the states do not."""
    one, other = (
        RECURRENT["qwen3_5-grouped-shared-keys-interval"](),
        RECURRENT["qwen3_5-grouped-shared-keys-interval"](),
    )
    other.linear_key_head_dim = 16
    models = [Model(stock_of(config, 0)) for config in (one, other)]
    texts = [Text(made_of) for made_of in models]
    for text, wrong in zip(texts, reversed(models), strict=True):
        with pytest.raises(LocalspecError, match="another shape"):
            check(library().ls_forward(wrong.handle, text.cache, POOL.handle, request(tokens=[1, 2])))
        text.forward([1, 2])


def test_mistakes_with_matrices():
    assert library().ls_packed_bytes(0, 5, 0, 0) == library().ls_packed_bytes(5, 5, 2, 33) == 0
    weights = np.zeros((64, 64), np.float32)
    target = np.zeros(1 << 16, np.uint8)
    for packing, panels, sentence in (
        (Packing(None, 0, 64, 64, 0, 0, 0, None), (0, 2), "needs weights"),
        (Packing(address(weights), 9, 64, 64, 0, 0, 0, None), (0, 2), "format 9 cannot be packed"),
        (Packing(address(weights), 0, 63, 64, 0, 0, 1, None), (0, 2), "no two halves"),
        (Packing(address(weights), 0, 64, 64, 0, 0, 0, None), (0, 3), "no panels 0 to 3"),
        (Packing(address(weights), 0, 64, 64, 0, 0, 0, None), (-1, 2), "no panels -1 to 2"),
        (Packing(address(weights), 0, -5, 64, 0, 0, 0, None), (0, 1), "matrix of -5 x 64"),
    ):
        with pytest.raises(LocalspecError, match=sentence):
            check(library().ls_pack(packing, address(target), *panels))
    with pytest.raises(LocalspecError, match="activation 3"):
        check(
            library().ls_linear(
                POOL.handle, PackedMatrix.pack(weights, "fp32").struct(), 1, address(weights), address(weights), 3
            )
        )
    assert linear(PackedMatrix.pack(weights, "fp32"), np.zeros((0, 64))).shape == (0, 64)


@each(
    "given, count, root, sentence",
    [
        ({"heads": 0}, 1, 5, "1 of 0 draft heads"),
        ({}, 3, 5, "3 of 2 draft heads"),
        ({}, 0, 5, "0 of 2 draft heads"),
        ({"layers": 0}, 1, 5, "of 0 blocks"),
        ({"blocks": None}, 1, 5, "draft heads of 1 blocks"),
        ({"up": None}, 1, 5, "two matrices"),
        ({"path": None}, 1, 5, "A block of a draft head is 48 x 96"),
        ({"tokens": 7}, 1, 5, "320 x 5, and the model.s sizes ask for 7 x 5"),
        ({"down": "up"}, 1, 5, "first matrix of a draft head's change"),
        ({}, 1, 320, "token 320, and the model knows ids below 320"),
        ({}, 1, -1, "token -1"),
    ],
)
def test_mistakes_with_draft_heads(model, given, count, root, sentence):
    def stack(out, inputs):
        packed = [PackedMatrix.pack(np.ones((out, inputs), np.float32), "fp32") for _ in range(2)]
        return packed, (Matrix * 2)(*(one.struct() for one in packed))

    matrices = {
        "blocks": stack(48, 96), "path": stack(48, 96), "vocabulary": (), "head": (), "down": stack(5, 48), "up": stack(320, 5)
    }  # fmt: skip
    named = {name: matrices[given.get(name, name) or "vocabulary"] for name in matrices}
    places = [ctypes.addressof(one[1]) if one else None for one in named.values()]
    heads = Heads(*places, given.get("heads", 2), given.get("layers", 1), given.get("tokens", 320))
    state, logits = np.ones(48, np.float32), np.zeros((2, 320), np.float32)
    asked = heads, model.handle, POOL.handle, address(state), root, count, address(logits)
    with pytest.raises(LocalspecError, match=sentence):
        check(library().ls_draft_heads(*asked))
    assert not logits.any()


def test_mistakes_with_pieces():
    lengths, costs, cuts = int32([2, 1]), np.zeros(2), np.zeros(2, np.int32)
    for text, count, of, sentence in (
        (None, 2, lengths, "need a text"),
        (b"aba", -1, lengths, "vocabulary of -1 pieces"),
        (b"aba", 2, int32([2, 0]), "Piece 1 has 0 bytes"),
    ):
        with pytest.raises(LocalspecError, match=sentence):
            check(library().ls_piece_cuts(text, address(of), address(costs), count, 1, address(cuts)))


def test_mistakes_with_picks_pools_and_instructions():
    logits, found = np.zeros(4, np.float32), c_int32()
    for settings, sentence in (
        (Sampling(-1.0, 1.0, 0.0, 0, 0), "temperature of -1"),
        (Sampling(float("nan"), 1.0, 0.0, 0, 0), "temperature of nan"),
        (Sampling(1.0, 0.0, 0.0, 0, 0), "top-p of 0"),
        (Sampling(1.0, 1.0, 1.5, 0, 0), "min-p of 1.5"),
        (Sampling(1.0, 1.0, 0.0, 0, -1), "top-k of -1"),
    ):
        with pytest.raises(LocalspecError, match=sentence):
            check(library().ls_pick(address(logits), 4, settings, 0, None, byref(found)))
    with pytest.raises(LocalspecError, match="among 0 tokens"):
        check(library().ls_pick(address(logits), 0, Sampling(1.0, 1.0, 0.0, 0, 0), 0, None, byref(found)))
    for threads in (0, -1, 100000):
        with pytest.raises(LocalspecError, match=f"pool of {threads} threads"):
            valid_handle(library().ls_pool_new(threads))
    with pytest.raises(LocalspecError, match="no instruction set number 77"):
        check(library().ls_isa_use(77))
