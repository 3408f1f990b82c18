"""The compiled library in Python: its structures and functions, and its errors as exceptions.

`native/src/localspec.h` has the same names and order. Arrays are passed by address; callers must keep them alive.
"""

import ctypes
import weakref
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from localspec.errors import LocalspecError
from localspec.machine import compiled

FORMATS = {"fp32": 0, "bf16": 1, "int8": 2, "fp16": 4}
BLOCK_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39,
}  # fmt: skip
ACTIVATIONS = {"silu": 1, "gelu": 2, "clamped": 3}
BLOCKS, MOST_PARTS = 5, 4  # the format of a stack of parts in blocks, and how many there can be
_NO_MEMORY = 2


class Blocks(ctypes.Structure):
    """ls_blocks: rows of a weight that stay in the blocks of their GGUF file."""

    _fields_ = (("data", c_void_p), ("type", c_int32), ("out", c_int32))


class Matrix(ctypes.Structure):
    """ls_matrix: a packed matrix, or the stacked parts of a matrix in GGUF blocks, and a bias."""

    _fields_ = (
        ("data", c_void_p), ("bias", c_void_p),
        ("out", c_int32), ("inputs", c_int32), ("format", c_int32), ("group", c_int32),
        ("num_parts", c_int32), ("parts", Blocks * MOST_PARTS),
    )  # fmt: skip


class Packing(ctypes.Structure):
    """ls_packing: a request to pack a dense matrix into a format."""

    _fields_ = (
        ("weights", c_void_p), ("source", c_int32), ("out", c_int32), ("inputs", c_int32), ("format", c_int32),
        ("group", c_int32), ("interleave", c_int32), ("importance", c_void_p),
    )  # fmt: skip


class BlocksPacking(ctypes.Structure):
    """ls_blocks_packing: a request to pack rows of a GGUF file. Packing also transposes them."""

    _fields_ = (
        ("rows", c_void_p), ("bytes", c_int64), ("type", c_int32), ("out", c_int32), ("inputs", c_int32),
        ("head_rows", c_int32),
    )  # fmt: skip


class Table(ctypes.Structure):
    """ls_table: a table with a row per token id, in fp32 or bf16, or as a packed matrix."""

    _fields_ = (("rows", c_void_p), ("format", c_int32), ("matrix", Matrix))


class Adapter(ctypes.Structure):
    """ls_adapter: a low-rank change of a linear layer; `b` is transposed."""

    _fields_ = (("a", c_void_p), ("b", c_void_p), ("rank", c_int32), ("scale", c_float))


class Heads(ctypes.Structure):
    """ls_heads: draft heads that all start from the same state."""

    _fields_ = (
        ("blocks", c_void_p), ("path", c_void_p), ("vocabulary", c_void_p), ("head", c_void_p), ("down", c_void_p),
        ("up", c_void_p), ("heads", c_int32), ("layers", c_int32), ("tokens", c_int32), ("cap", c_float),
    )  # fmt: skip


class DeltaSizes(ctypes.Structure):
    """ls_delta_sizes: the sizes of recurrent layers."""

    _fields_ = (
        ("key_heads", c_int32), ("value_heads", c_int32), ("key_dim", c_int32), ("value_dim", c_int32),
        ("taps", c_int32), ("tiled", c_int32),
    )  # fmt: skip


class Delta(ctypes.Structure):
    """ls_delta: the parts of a recurrent layer in addition to its projections."""

    _fields_ = (("conv", c_void_p), ("dt_bias", c_void_p), ("a_log", c_void_p), ("value_norm", c_void_p))


class Layer(ctypes.Structure):
    """ls_layer: the weights of one layer."""

    _fields_ = (
        ("qkv_proj", Matrix), ("o_proj", Matrix), ("gate_up_proj", Matrix), ("down_proj", Matrix),
        ("input_layernorm", c_void_p), ("post_attention_layernorm", c_void_p), ("q_norm", c_void_p),
        ("k_norm", c_void_p), ("o_norm", c_void_p), ("down_norm", c_void_p), ("sliding_window", c_int32),
        ("local", c_int32), ("delta", c_void_p), ("num_kv_heads", c_int32), ("head_dim", c_int32),
        ("intermediate_size", c_int32), ("keys_from", c_int32), ("keys_are_values", c_int32), ("scalar", c_void_p),
        ("input_gate", Matrix), ("input_projection", Matrix), ("input_norm", c_void_p),
        ("router", Matrix), ("expert_gate_up", Matrix), ("expert_down", Matrix), ("shared_gate", c_void_p),
        ("router_norm", c_void_p), ("expert_norm", c_void_p), ("mlp_out_norm", c_void_p), ("expert_out_norm", c_void_p),
        ("expert_scale", c_void_p), ("sinks", c_void_p),
    )  # fmt: skip


class ExpertSizes(ctypes.Structure):
    """ls_expert_sizes: the sizes of a mixture of experts."""

    _fields_ = (("count", c_int32), ("used", c_int32), ("size", c_int32), ("normalised", c_int32), ("on_disk", c_int32))


class LayerInputs(ctypes.Structure):
    """ls_layer_inputs: the weights of an additional input of each layer, which depends on the token."""

    _fields_ = (
        ("width", c_int32), ("tokens", c_int32), ("table_scale", c_float), ("projection_scale", c_float),
        ("table", Table), ("projection", Matrix), ("norm", c_void_p),
    )  # fmt: skip


class ModelConfig(ctypes.Structure):
    """ls_model_config: the sizes of a model."""

    _fields_ = (
        ("num_layers", c_int32), ("hidden_size", c_int32), ("intermediate_size", c_int32), ("num_heads", c_int32),
        ("num_kv_heads", c_int32), ("head_dim", c_int32), ("rotary_dim", c_int32), ("vocab_size", c_int32),
        ("cache_format", c_int32), ("rms_norm_eps", c_float),
        ("attention_scaling", c_float), ("local_scaling", c_float), ("query_scalar", c_float),
        ("embed_scale", c_float), ("norm_offset", c_float), ("residual_scale", c_float),
        ("logit_scale", c_float), ("gate", c_int32), ("embed_tokens", Table),
        ("lm_head", Matrix), ("norm", c_void_p), ("inv_freq", c_void_p), ("local_inv_freq", c_void_p),
        ("query_factors", c_void_p), ("num_query_factors", c_int32), ("query_period", c_int32), ("layers", c_void_p),
        ("gated", c_int32), ("delta", DeltaSizes), ("local_rotary_dim", c_int32), ("value_norm", c_int32),
        ("logit_cap", c_float), ("layer_inputs", LayerInputs), ("interleaved", c_int32), ("experts", ExpertSizes),
        ("gate_limit", c_float),
    )  # fmt: skip


class Request(ctypes.Structure):
    """ls_request: the rows of a forward, and the destination of its results."""

    _fields_ = (
        ("rows", c_int32), ("tokens", c_void_p), ("inputs", c_void_p), ("parents", c_void_p), ("positions", c_void_p),
        ("layers", c_void_p), ("num_layers", c_int32), ("adapters", c_void_p), ("hidden", c_void_p),
        ("logits", c_void_p), ("argmax", c_void_p), ("logits_from", c_int32), ("inner_at", c_void_p),
        ("num_inner", c_int32), ("inner", c_void_p),
    )  # fmt: skip


class Sampling(ctypes.Structure):
    """ls_sampling: the settings of sampling."""

    _fields_ = (
        ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("seed", c_uint64), ("top_k", c_int32),
    )  # fmt: skip


# name -> (result type, argument types)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ls_error": (ctypes.c_char_p, []),
    "ls_pool_new": (c_void_p, [c_int]),
    "ls_pool_free": (None, [c_void_p]),
    "ls_pool_lend": (None, [c_void_p, c_int]),
    "ls_packed_bytes": (c_size_t, [c_int, c_int, c_int, c_int]),
    "ls_pack": (c_int, [POINTER(Packing), c_void_p, c_int, c_int]),
    "ls_unpack": (c_int, [POINTER(Matrix), c_int, c_void_p]),
    "ls_linear": (c_int, [c_void_p, POINTER(Matrix), c_int, c_void_p, c_void_p, c_int]),
    "ls_draft_heads": (c_int, [POINTER(Heads), c_void_p, c_void_p, c_void_p, c_int32, c_int, c_void_p]),
    "ls_blocks_bytes": (c_size_t, [c_int, c_int, c_int]),
    "ls_blocks_pack": (c_int, [POINTER(BlocksPacking), c_void_p, c_int, c_int]),
    "ls_blocks_round": (c_int, [POINTER(Packing), c_int, c_void_p, c_int, c_int]),
    "ls_rows": (c_int, [POINTER(Matrix), c_int, c_void_p, c_void_p]),
    "ls_model_new": (c_void_p, [POINTER(ModelConfig)]),
    "ls_model_free": (None, [c_void_p]),
    "ls_cache_new": (c_void_p, [c_void_p, c_int]),
    "ls_cache_copy": (c_void_p, [c_void_p, c_int, c_int]),
    "ls_cache_reachable": (c_int, [c_void_p, c_int]),
    "ls_cache_free": (None, [c_void_p]),
    "ls_cache_reserve": (c_int, [c_void_p, c_int]),
    "ls_cache_slots": (c_int, [c_void_p]),
    "ls_cache_length": (c_int, [c_void_p]),
    "ls_cache_bytes": (c_int64, [c_void_p]),
    "ls_cache_keep": (c_int, [c_void_p, c_void_p, c_int]),
    "ls_cache_truncate": (c_int, [c_void_p, c_int]),
    "ls_forward": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(Request)]),
    "ls_forward_each": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(Request)]),
    "ls_embed": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "ls_head": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "ls_pick": (c_int, [c_void_p, c_int, POINTER(Sampling), c_int64, c_void_p, POINTER(c_int32)]),
    "ls_probabilities": (c_int, [c_void_p, c_int, POINTER(Sampling), c_void_p]),
    "ls_top": (c_int, [c_void_p, c_int, c_double, c_int, c_void_p, c_void_p, POINTER(c_int32)]),
    "ls_piece_cuts": (c_int, [ctypes.c_char_p, c_void_p, c_void_p, c_int64, c_uint64, c_void_p]),
    "ls_candidates": (
        c_int,
        [c_void_p, c_int, POINTER(Sampling), c_int64, c_void_p, c_int, c_int, c_void_p, c_void_p, POINTER(c_int32)],
    ),
}  # fmt: skip


@cache
def library() -> Any:
    """Return the library with the types of its functions set. Raises LocalspecError if it is missing."""
    lib = compiled.library()
    if lib is None:
        raise LocalspecError(f"The CPU engine cannot be used: {compiled.missing()}; install localspec again.")
    for name, (returns, takes) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = returns, takes
    return lib


def check(code: int) -> None:
    """Raise the error of a call of the library unless it returned 0: MemoryError, or LocalspecError with its text."""
    if code:
        _fail(code)


def valid_handle(handle: int | None) -> int:
    """Return the handle of an object that the library made; raise the library's error if the handle is null."""
    if not handle:
        _fail(_NO_MEMORY if "memory" in _sentence() else 1)
    return handle


def free_with(owner: object, function: str, handle: int) -> None:
    """Let a function of the library free one of its objects when the object's Python owner is deleted.

    At the program's end nothing is freed, because another thread may still use it.
    """
    weakref.finalize(owner, getattr(library(), function), handle).atexit = False


def _fail(code: int) -> NoReturn:
    if code == _NO_MEMORY:
        raise MemoryError(_sentence())
    raise LocalspecError(_sentence())


def _sentence() -> str:
    text: bytes = library().ls_error() or b"The CPU engine failed and does not say why."
    return text.decode("utf-8", "replace")


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Return the address of the first number of a contiguous array; None if there is no array."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def int32(values: Any) -> npt.NDArray[np.int32]:
    """Return an array of 32-bit integers, as the compiled library reads them."""
    return np.ascontiguousarray(values, np.int32)
