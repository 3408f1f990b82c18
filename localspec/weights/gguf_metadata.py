"""The metadata of a GGUF file: typed access to its values, and tables of the keys that localspec accepts.

The keys are those of the GGUF specification (ggml's docs/gguf.md), of llama.cpp's converters
(gguf-py/gguf/constants.py) and of its loader (src/llama-arch.cpp), as of November 2026. Keys that begin with the name
of the model's architecture, as in "llama.block_count", may change the arithmetic. A model is refused if such a key is
in no table. The tables are the one in the file of the model's family, which counts first, then USED, NEUTRAL, OFF and
SAME. For models with experts, OFF_WITH_EXPERTS counts before NEUTRAL. All other unknown keys are ignored.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from localspec.errors import LocalspecError
from localspec.text import one_line
from localspec.weights.gguf_file import Texts, Value

_MOST_POSITIONS, _MOST_CHANNELS, _MOST_LAYERS = 2**31 - 1, 2**24, 2**16
_MOST_NUMBERS = 2**21  # in an array; the longest arrays have one number for each token of the vocabulary


def _count(least: int, most: int) -> Callable[[Any], bool]:
    """Return a check, a function that accepts integers from `least` to `most`."""
    return lambda value: type(value) is int and least <= value <= most


def _number(least: float, most: float) -> Callable[[Any], bool]:
    """Return a check, a function that accepts numbers above `least` and up to `most`, but not NaN."""
    return lambda value: type(value) in (int, float) and least < value <= most


# -- keys of the architecture, without its name ------------------------------------------------------------------------

# Keys that localspec computes with, and a check for a possible value of each.
USED: Mapping[str, Callable[[Any], bool]] = {
    "context_length": _count(1, _MOST_POSITIONS),
    "embedding_length": _count(1, _MOST_CHANNELS),
    "feed_forward_length": _count(1, _MOST_CHANNELS),
    "block_count": _count(1, _MOST_LAYERS),
    "attention.head_count": _count(1, _MOST_LAYERS),
    "attention.head_count_kv": _count(1, _MOST_LAYERS),
    "attention.key_length": _count(1, _MOST_CHANNELS),
    "attention.value_length": _count(1, _MOST_CHANNELS),
    "attention.layer_norm_rms_epsilon": lambda value: value == 0 or _number(0, 0.1)(value),
    "attention.sliding_window": _count(0, 2**64 - 1),  # 0 means no window
    "rope.dimension_count": lambda value: _count(2, _MOST_CHANNELS)(value) and value % 2 == 0,
    "rope.freq_base": _number(1, 1e12),
    "rope.scaling.type": lambda value: value in ("none", "linear", "yarn", "longrope"),
    "rope.scaling.factor": lambda value: value == 0 or _number(0.01, 1e6)(value),  # 0 means no scaling, as in llama.cpp
    "rope.scale_linear": lambda value: value == 0 or _number(0.01, 1e6)(value),  # the older name of rope.scaling.factor
    "rope.scaling.attn_factor": _number(0, 1e3),
    "rope.scaling.original_context_length": _count(0, _MOST_POSITIONS),  # 0 means context_length, as in llama.cpp
    "rope.scaling.yarn_ext_factor": _number(-1e6, 1e6),
    "rope.scaling.yarn_attn_factor": _number(-1e6, 1e6),
    "rope.scaling.yarn_beta_fast": _number(-1e6, 1e6),
    "rope.scaling.yarn_beta_slow": _number(-1e6, 1e6),
    "rope.scaling.yarn_log_multiplier": _number(-1e6, 1e6),
    "tensor_data_layout": lambda value: value in ("reference", "Meta AI original pth"),
}
_EXPERTS = (
    "only models with experts use the key; for these, OFF_WITH_EXPERTS or the family's file checks it, or the shapes "
    "of tensors give the value"
)
_RMS = "these architectures have only RMS norms, which the key does not change"
_CLASSES = "only models that return embeddings or classes instead of text use the key"
# Keys that are ignored, and the reason.
NEUTRAL: Mapping[str, str] = {
    "vocab_size": "the number of rows of the embedding is used instead",
    "attention.layer_norm_epsilon": _RMS,
    "attention.group_norm_epsilon": _RMS,
    "attention.group_norm_groups": _RMS,
    "rope.scaling.finetuned": "the key only says how the model was trained, which does not change how it computes",
    "pooling_type": _CLASSES,
    "classifier.output_labels": _CLASSES,
    "classifier.pooling_type": _CLASSES,
    "decoder_start_token_id": "these models have no encoder",
    "expert_used_count": _EXPERTS,
    "expert_feed_forward_length": _EXPERTS,
    "expert_shared_feed_forward_length": _EXPERTS,
    "expert_chunk_feed_forward_length": _EXPERTS,
    "expert_shared_count": _EXPERTS,
    "expert_group_count": _EXPERTS,
    "expert_group_used_count": _EXPERTS,
    "expert_weights_scale": _EXPERTS,
    "expert_weights_norm": _EXPERTS,
    "expert_gating_func": _EXPERTS,
    "expert_group_scale": _EXPERTS,
    "experts_per_group": _EXPERTS,
    "expert_latent_length": _EXPERTS,
    "router_logit_softcapping": _EXPERTS,
}
# Keys of computations that localspec lacks, and the values that switch these off. Any other value is refused. An empty
# tuple marks a key that only other architectures have: any value is refused.
OFF: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.value_scale": (0, 1),
    "attention.sliding_window_pattern": (0, 1, False),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.relative_buckets_count": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "use_parallel_residual": (False,),
    "rope.scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
    "rope.dimension_sections": (0,),
    "nextn_predict_layers": (0,),
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0,),
    "moe_latent_size": (0,),
    "n_deepstack_layers": (0,),
    "num_loops": (0, 1),
    "embedding_length_per_layer_input": (0,),
    "activation_sparsity_scale": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "swin_norm": (False,),
    "rescale_every_n_layers": (0,),
    "full_attention_interval": (0, 1),
    "hidden_activation": ("silu",),
    **dict.fromkeys(
        (
            "features_length",
            "decoder_block_count",
            "time_mix_extra_dim",
            "time_decay_extra_dim",
            "token_shift_count",
            "altup.active_idx",
            "altup.num_inputs",
            "dense_2_feat_in",
            "dense_2_feat_out",
            "dense_3_feat_in",
            "dense_3_feat_out",
            "attention.q_lora_rank",
            "attention.kv_lora_rank",
            "attention.decay_lora_rank",
            "attention.iclr_lora_rank",
            "attention.value_residual_mix_lora_rank",
            "attention.gate_lora_rank",
            "attention.key_length_mla",
            "attention.value_length_mla",
            "attention.indexer.head_count",
            "attention.indexer.key_length",
            "attention.indexer.top_k",
            "attention.rope_pattern",
            "attention.recurrent_layers",
            "ssm.conv_kernel",
            "ssm.inner_size",
            "ssm.state_size",
            "ssm.time_step_rank",
            "ssm.group_count",
            "ssm.dt_b_c_rms",
            "kda.head_dim",
            "wkv.head_size",
            "posnet.embedding_length",
            "posnet.block_count",
            "convnext.embedding_length",
            "convnext.block_count",
            "shortconv.l_cache",
            "deepstack_mapping",
            "hash_layer_count",
            "skip_loop_final_norm",
            "target_layers",
            "target_hidden_size",
            "norm_before_residual",
            "norm_before_fc",
            "block_size",
        ),
        (),
    ),
}
# The same for routers, in files with experts: llama.cpp may compute another choice of experts, or other weights.
OFF_WITH_EXPERTS: Mapping[str, tuple[Any, ...]] = {
    "expert_weights_scale": (0, 1),
    "expert_weights_norm": (True,),
    "expert_gating_func": (0, 1, 3),  # not named, or a softmax over all or the chosen logits: the same after a norm
    "expert_group_count": (0, 1),
    "router_logit_softcapping": (0,),
}
# Keys that are accepted only with the value of another key.
SAME: Mapping[str, str] = {
    "embedding_length_out": "embedding_length",
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
}

# -- other keys --------------------------------------------------------------------------------------------------------

# Samplers that the model's maker recommends and localspec lacks, and the values that switch them off. A notice says
# that any other value is ignored.
TASTE: Mapping[str, tuple[Any, ...]] = {
    "general.sampling.xtc_probability": (0,), "general.sampling.penalty_repeat": (0, 1),
    "general.sampling.mirostat": (0,),
}  # fmt: skip


class Metadata:
    """The metadata of a GGUF file. Methods return a value after a check of its type, or None for a missing key.

    For a wrong type they raise ValueError; its message is not a whole sentence.
    """

    def __init__(self, values: Mapping[str, Value], name: str = "") -> None:
        """Wrap the metadata `values`. `name` is the name of the GGUF file, for error messages."""
        self.values, self.file = values, f"GGUF file {name}".rstrip()

    def text(self, key: str) -> str | None:
        """Return the text stored under a key. Raises ValueError if the text is not UTF-8."""
        text: str | None = self._of(key, (str,))
        if text is not None and not is_utf8(text):
            raise ValueError(f"{key} is not UTF-8")
        return text

    def label(self, key: str) -> str | None:
        """Return a text to display, with U+FFFD for bytes that are not UTF-8; None for another type."""
        text = self.values.get(key)
        return shown(text) if isinstance(text, str) else None

    def number(self, key: str) -> Any:
        """Return the number stored under a key. It may be an array with one number per layer, if all are equal."""
        value: Any = self.values.get(key)
        if isinstance(value, np.ndarray):
            values = set(value[:_MOST_LAYERS].tolist())
            if len(values) != 1:
                raise ValueError(f"{key} differs from layer to layer")
            value = values.pop()
        if isinstance(value, bool):
            raise ValueError(f"{key} = {value} is not a number")
        return self._of(key, (int, float), value)

    def by_layer(self, key: str) -> list[Any] | None:
        """Return the numbers or Booleans stored under a key, one per layer. A single value gives a list of one."""
        value: Any = self.values.get(key)
        if value is None or isinstance(value, np.ndarray):
            return None if value is None else value[:_MOST_LAYERS].tolist()
        return [self._of(key, (int, float))]

    def flag(self, key: str) -> bool | None:
        """Return the Boolean stored under a key."""
        flag: bool | None = self._of(key, (bool,))
        return flag

    def texts(self, key: str) -> Sequence[str] | None:
        """Return the array of texts stored under a key. Every call returns the same list."""
        texts: Texts | list[str] | None = self._of(key, (Texts, list))
        return texts.tolist() if isinstance(texts, Texts) else texts

    def count(self, key: str) -> int:
        """Return how many texts the array stored under a key has; 0 if there is no array."""
        return len(self._of(key, (Texts, list)) or ())

    @cached_property
    def merged(self) -> frozenset[str]:
        """The tokens that the tokenizer's merges produce. For example, the merge "t he" produces "the"."""
        return frozenset([merge.replace(" ", "") for merge in self.texts("tokenizer.ggml.merges") or []])

    def numbers(self, key: str) -> list[Any] | None:
        """Return the array of numbers stored under a key, as a list."""
        numbers: np.ndarray[Any, Any] | None = self._of(key, (np.ndarray,))
        if numbers is not None and len(numbers) > _MOST_NUMBERS:
            raise ValueError(f"{key} has {len(numbers):,} numbers, which is too many")
        return None if numbers is None else numbers.tolist()

    def _of(self, key: str, kinds: tuple[type, ...], *replacement: Any) -> Any:
        """Return the value of `key`, or `replacement` if given. Raises ValueError if its type is not among `kinds`."""
        value = replacement[0] if replacement else self.values.get(key)
        if value is not None and not isinstance(value, kinds):
            raise ValueError(f"{key} = {in_short(value)} is not possible")
        return value


def check(
    metadata: Metadata, architecture: str, family_keys: Mapping[str, Callable[[Any], bool]] | None = None
) -> None:
    """Raise LocalspecError for a key of the model's architecture that is unknown, impossible or not supported.

    `family_keys` maps each key that only this model family uses to a check of its value.
    """
    used, experts = {**USED, **(family_keys or {})}, metadata.values.get(f"{architecture}.expert_count")
    off = {**OFF, **(OFF_WITH_EXPERTS if experts is not None and any(_by_layer(experts)) else {})}

    def refuse(key: str, reason: str) -> LocalspecError:
        return LocalspecError(
            f"The {metadata.file} sets {one_line(shown(key))} = {in_short(metadata.values[key])}: {reason}."
        )

    for key, value in metadata.values.items():
        prefix, _, name = key.partition(".")
        if prefix != architecture:
            continue
        # An array has one value per layer. None, which fails every check, stands for an empty array or one of texts.
        values = _by_layer(value)
        values = [None] if isinstance(value, Texts) or not values else values
        if name in used:
            if not all(map(used[name], values)):
                integer = isinstance(value, float) and value.is_integer() and used[name](int(value))
                problem = "it must be an integer, not a float" if integer else "that value is impossible"
                raise refuse(key, f"{problem}; fetch it again, or choose another file")
        elif name in off or name in SAME:
            if name in off:
                computed = all(item is not None and item in off[name] for item in values)
            else:
                others = _by_layer(metadata.values.get(f"{architecture}.{SAME[name]}"))
                computed = None not in values and (values == others or len({*values, *others}) == 1)
            if not computed:
                raise refuse(key, "localspec cannot compute that; choose another model")
        elif name not in NEUTRAL:
            raise refuse(key, "localspec does not know this key, which may change the replies; choose another model")


def left_out(metadata: Metadata) -> list[str]:
    """Return a sentence for each sampler that the file recommends but localspec does not have."""
    return [
        f"{key} = {in_short(metadata.values[key])} is ignored, because localspec does not have this sampler."
        for key, off in TASTE.items()
        if key in metadata.values and not all(value in off for value in _by_layer(metadata.values[key]))
    ]


def _by_layer(value: Any) -> list[Any]:
    """Return the values of an array as a list; a single value becomes a list of one."""
    return value[:_MOST_LAYERS].tolist() if isinstance(value, np.ndarray) else [value]


def shown(text: str) -> str:
    """Return a text for display, with the replacement character U+FFFD for bytes that are not UTF-8 in the file."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def is_utf8(text: str) -> bool:
    """Return whether a text is valid UTF-8 in the file. If not, it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def in_short(value: Any) -> str:
    """Return a value in a few characters, for a message."""
    if isinstance(value, str):
        return repr(shown(value)[:40])
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    if isinstance(value, np.ndarray):
        return f"{value[:4].tolist()}"[:-1] + (", …]" if len(value) > 4 else "]")
    return f"{len(value)} texts" if isinstance(value, Texts) else str(value)[:40]
