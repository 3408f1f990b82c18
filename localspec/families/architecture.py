"""Describes a transformer of any supported family: the settings in which families differ, and its parameters.

`weight_map` names the Hugging Face tensors that make up each of localspec's parameters, and `gguf_map` those of a GGUF
file. `post_attention_layernorm` always precedes the MLP.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from localspec.errors import LocalspecError, UsageMistake
from localspec.families.family import DeltaNet, LayerSizes, MixtureSizes, Names
from localspec.families.model_config import ModelConfig
from localspec.families.table import FAMILIES

TABLES = ("embed_tokens", "embed_tokens_per_layer")  # parameters of which only the rows of the tokens are read
# Our activations, and their names in config.json.
_CALLED = {"silu": ("silu", "swish"), "gelu": ("gelu_pytorch_tanh",), "clamped": ("silu",)}


@dataclass(frozen=True)
class TransformerConfig:
    """The settings in which families differ. Sizes are in channels; a window counts positions, including the token's
    own."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    sliding_windows: tuple[int | None, ...]  # one per layer; None: the whole text
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    activation: str = "silu"  # of the MLP's gate: silu, gelu (by tanh), or clamped (gpt-oss)
    gate_limit: float = 0.0  # of a clamped gate, and of its factor
    output_norms: bool = False  # norms also after attention and MLP
    norm_offset: float = 0.0  # the factor of a norm is this plus its weight
    embed_scale: float = 1.0  # factor of embeddings, rounded to their own precision
    query_scalar: float = 0.0  # scores are divided by its square root; 0: by the root of head_dim
    residual_scale: float = 1.0  # factor of the outputs of attention and MLP
    logit_scale: float = 1.0  # factor of the states before the head
    local_layers: tuple[bool, ...] = ()  # the layers that are rotated by `Rope.local`; () for none
    layer_sizes: tuple[LayerSizes, ...] = ()  # if layers differ; () if all have the widths above
    per_layer_inputs: tuple[int, int] = (0, 0)  # (channels, tokens of the table) of the additional input of each layer
    value_norm: bool = False  # values have a norm without weights
    layer_scalars: bool = False  # the output of each layer has its own factor
    logit_cap: float = 0.0  # tanh keeps logits below it; 0 for none
    interleaved: bool = False  # channels that are rotated together are neighbours, not i and i + half
    gated: bool = False  # the output of attention has a sigmoid factor, projected with the queries
    borrows: bool = False  # all layers read keys and values of another model, from its layers `keys_of`
    delta: DeltaNet | None = None  # layers with a recurrent state instead of attention
    experts: MixtureSizes | None = None  # instead of the MLP
    sinks: bool = False  # each head has one more score, without a value, in its softmax

    @classmethod
    def of(cls, config: ModelConfig) -> "TransformerConfig":
        """Return the settings of the transformer in a model's config.json.

        Raises LocalspecError for arithmetic that localspec does not compute.
        """
        arithmetic = {"activation": "silu", **FAMILIES[config.model_type].arithmetic}
        names = _CALLED[arithmetic["activation"]]
        if config.hidden_act not in names:
            raise LocalspecError(
                f"The model's activation is '{config.hidden_act}', but for this family localspec computes only "
                f"'{names[0]}'; choose another model."
            )
        if config.soft_caps:
            raise LocalspecError(
                "The model caps its logits or scores by a hyperbolic tangent, which localspec does not compute; choose "
                "another model."
            )
        windowed = tuple(window is not None for window in config.sliding_windows)
        usual = {
            **{
                field.name: getattr(config, field.name) for field in fields(cls) if hasattr(config, field.name)
            },  # as named there
            "family": config.model_type,
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "tied": config.tie_word_embeddings,
            "qkv_bias": config.attention_bias,
            "o_bias": config.attention_bias,
            "qk_norm": False,
            "embed_scale": config.embedding_multiplier,
            "query_scalar": config.query_pre_attn_scalar,
            "residual_scale": config.residual_multiplier,
            "logit_scale": 1.0 / config.logits_scaling,
            "local_layers": config.unrotated if config.local_rope_parameters is None else windowed,
        }
        return cls(**{**usual, **arithmetic})

    def is_local(self, layer: int) -> bool:
        """Return whether a layer rotates positions by `Rope.local`, the second of a model's two rotations."""
        return bool(self.local_layers) and self.local_layers[layer]

    def sizes_of(self, layer: int) -> LayerSizes:
        """Return the numbers of heads and channels of a layer."""
        usual = LayerSizes(self.num_kv_heads, self.head_dim, self.intermediate_size)
        return self.layer_sizes[layer] if self.layer_sizes else usual

    def need_layers_alone(self, kind: str) -> None:
        """Raise UsageMistake if a few layers cannot draft by themselves, because they need other layers or a token
        id."""
        if self.per_layer_inputs[0] or any(sizes.keys_of is not None for sizes in self.layer_sizes):
            raise UsageMistake(
                f"{kind} drafts with some of a model's own layers, but this model's layers cannot be used "
                "separately: they share keys and values, or need an additional embedding of each token, which a mask "
                "token does not have; use another drafter."
            )

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer has a recurrent state instead of attention."""
        return self.delta is not None and self.delta.layers[layer]

    @property
    def attending(self) -> list[int]:
        """The attention layers, in order."""
        return [layer for layer in range(self.num_layers) if not self.is_recurrent(layer)]

    @property
    def num_layers(self) -> int:
        return len(self.sliding_windows)

    @property
    def cache_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """The (heads, channels of a head) of each layer's keys and values; None for a layer that stores none."""
        sizes = [self.sizes_of(layer) for layer in range(self.num_layers)]
        stores = [size.keys_of is None and not self.is_recurrent(layer) for layer, size in enumerate(sizes)]
        return tuple(
            (size.num_kv_heads, size.head_dim) if stored else None for size, stored in zip(sizes, stores, strict=True)
        )


def weight_map(config: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return (name, number of rows) of the Hugging Face tensors that make up each of localspec's parameters."""
    return named_parts(parameter_rows(config), FAMILIES[config.family].tensors, "model.layers.{}.", _count(config))


def gguf_map(config: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return (name, number of rows) of the GGUF tensors that make up each of localspec's parameters."""
    of_family = FAMILIES[config.family].gguf
    assert of_family is not None, f"{config.family} is not read from GGUF"
    return named_parts(parameter_rows(config), of_family.tensors, "blk.{}.", _count(config))


def unread(config: TransformerConfig) -> set[str]:
    """Return the names of tensors that GGUF files may have but localspec does not read: keys and values of layers that
    use the keys and values of another layer."""
    of_family = FAMILIES[config.family].gguf
    sharing = [index for index, sizes in enumerate(config.layer_sizes) if sizes.keys_of is not None]
    if of_family is None or not sharing:
        return set()
    names = (*of_family.tensors["qkv_proj.weight"][1:], *of_family.tensors["k_norm"])
    return {f"blk.{index}.{name}" for index in sharing for name in names}


def _count(config: TransformerConfig) -> int:
    return config.experts.count if config.experts else 0


def named_parts(
    rows: Mapping[str, list[int]], names: Names, prefix: str, experts: int = 0
) -> dict[str, list[tuple[str, int]]]:
    """Return [(tensor's name, number of rows)] for each parameter: the tensors in a file that make it up.

    `rows` is from `parameter_rows`. `names` are the tensors' names after the layer's `prefix`. Braces stand for the
    layer's number in the prefix, and for the number of one of the `experts` in a name.
    """
    tensors: dict[str, list[tuple[str, int]]] = {}
    for parameter, parts in rows.items():
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", parameter)
        name, layer_prefix = (layer[2], prefix.format(layer[1])) if layer else (parameter, "")
        weight = name.removesuffix(".bias") + ".weight" if name.endswith(".bias") else name
        tensor_names = [layer_prefix + suffix for suffix in names[weight]]
        if weight != name:
            tensor_names = [tensor.removesuffix(".weight") + ".bias" for tensor in tensor_names]
        pairs = zip(tensor_names, [sum(parts)] if len(tensor_names) == 1 else parts, strict=False)
        tensors[parameter] = [
            (tensor.format(number), count // (experts if "{}" in tensor else 1))
            for tensor, count in pairs
            for number in range(experts if "{}" in tensor else 1)
        ]
    return tensors


def parameter_rows(config: TransformerConfig) -> dict[str, list[int]]:
    """Return the number of rows of each matrix in each parameter. `qkv_proj`, for example, stacks three matrices."""
    hidden, (width, tokens) = config.hidden_size, config.per_layer_inputs
    parts: dict[str, list[int]] = {"embed_tokens": [config.vocab_size]}
    if width:
        parts["embed_tokens_per_layer"] = [tokens]
        parts["per_layer_model_projection.weight"] = [config.num_layers * width]
        parts["per_layer_projection_norm"] = [width]
    for index in range(config.num_layers):
        parts |= {f"layers.{index}.{name}": rows for name, rows in _layer_rows(config, index).items()}
    parts["norm"] = [hidden]
    if not config.tied:
        parts["lm_head.weight"] = [config.vocab_size]
    return parts


def _layer_rows(config: TransformerConfig, index: int) -> dict[str, list[int]]:
    hidden, sizes, width = config.hidden_size, config.sizes_of(index), config.per_layer_inputs[0]
    delta = config.delta if config.is_recurrent(index) else None
    keys, queries = sizes.num_kv_heads * sizes.head_dim, config.num_heads * sizes.head_dim
    projected = 2 * queries if config.gated else queries  # for each head: its query, then the gate of its output
    linears: dict[str, tuple[list[int], bool]] = {}
    if delta is None:
        qkv = [projected, keys, keys][: 1 if sizes.keys_of is not None else 2 if sizes.keys_are_values else 3]
        linears = {"qkv_proj": (qkv, config.qkv_bias), "o_proj": ([hidden], config.o_bias)}
    if (experts := config.experts) is not None:
        linears["router"] = [experts.count], config.mlp_bias
        linears["experts.gate_up_proj"] = [experts.count * experts.size] * 2, config.mlp_bias
        linears["experts.down_proj"] = [experts.count * hidden], config.mlp_bias
    if experts is None or experts.dense:
        linears["gate_up_proj"] = [sizes.intermediate_size] * 2, config.mlp_bias
        linears["down_proj"] = [hidden], config.mlp_bias
    parts: dict[str, list[int]] = {}
    for name, (rows, bias) in linears.items():
        parts |= {f"{name}.{kind}": rows for kind in (("weight", "bias") if bias else ("weight",))}
    norms = ("input_layernorm", "o_norm", "post_attention_layernorm", "down_norm")
    parts |= {name: [hidden] for name in (norms if config.output_norms else norms[::2])}
    if delta is not None:
        parts |= {
            "delta.in_proj.weight": [delta.channels, delta.value_heads, delta.value_heads, delta.values],
            "delta.conv": [delta.channels],
            "delta.dt_bias": [delta.value_heads],
            "delta.A_log": [delta.value_heads],
            "delta.value_norm": [delta.value_dim],
            "delta.out_proj.weight": [hidden],
        }
    elif config.qk_norm:
        parts |= {name: [sizes.head_dim] for name in ("q_norm", "k_norm")[: 2 if sizes.keys_of is None else 1]}
    if width:
        parts |= {
            "per_layer_input_gate.weight": [width],
            "per_layer_projection.weight": [hidden],
            "per_layer_norm": [hidden],
        }
    if config.layer_scalars:
        parts["layer_scalar"] = [1]
    if config.sinks:
        parts["sinks"] = [config.num_heads]
    if config.experts and config.experts.gated:
        parts["shared_gate"] = [hidden]
    if config.experts and config.experts.norms:
        parts |= {name: [hidden] for name in ("router_norm", "expert_norm", "mlp_out_norm", "expert_out_norm")}
        parts["expert_scale"] = [config.experts.count]
    return parts


def stored_shape(name: str, rows: int, columns: int | None) -> tuple[int, ...]:
    """Return the shape in the Hugging Face layout of a tensor with this many rows."""
    if columns is None:
        return (1, rows) if name.endswith(".shared_gate") else (rows,)
    return (rows, 1, columns) if name.endswith(".conv") else (rows, columns)  # a filter for each channel


def in_features(name: str, config: TransformerConfig) -> int | None:
    """Return the number of input columns of a parameter's matrix; None for a vector."""
    if name.endswith((".bias", "norm", "scalar", ".dt_bias", ".A_log", ".sinks", ".expert_scale", ".shared_gate")):
        return None
    if name == "embed_tokens_per_layer":
        return config.num_layers * config.per_layer_inputs[0]
    if config.delta and name.endswith((".delta.conv", ".delta.out_proj.weight")):
        return config.delta.taps if name.endswith("conv") else config.delta.values
    part, *inside = name.removesuffix(".weight").split(".")
    if part != "layers":
        return config.hidden_size
    sizes = config.sizes_of(int(inside[0]))
    if config.experts and inside[1:] == ["experts", "down_proj"]:
        return config.experts.size
    inputs = {"o_proj": config.num_heads * sizes.head_dim, "down_proj": sizes.intermediate_size}
    inputs["per_layer_projection"] = config.per_layer_inputs[0]
    return inputs.get(inside[-1], config.hidden_size)


BEFORE = ("embedding_norm", "state_norm", "fc.weight")  # our parameters that are before the layer itself


def ahead_config(target: TransformerConfig) -> TransformerConfig:
    """Return the config of the target's MTP layer: an attention layer like the target's, which sees the whole text."""
    return replace(target, vocab_size=0, tied=True, sliding_windows=(None,), delta=None)


def ahead_map(target: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return (name, number of rows) of the safetensors tensors that make up each parameter of the MTP layer."""
    family = FAMILIES[target.family]
    return _ahead_parts(target, {**family.tensors, **family.ahead}, "mtp.layers.0.")


def ahead_gguf_map(target: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Return (name, number of rows) of the GGUF tensors that make up each parameter of the MTP layer."""
    of_family = FAMILIES[target.family].gguf
    assert of_family is not None
    prefix = f"blk.{target.num_layers}."
    ahead = {parameter: tuple(prefix + name for name in tensors) for parameter, tensors in of_family.ahead.items()}
    return _ahead_parts(target, {**of_family.tensors, **ahead}, prefix)


def _ahead_parts(target: TransformerConfig, names: Names, prefix: str) -> dict[str, list[tuple[str, int]]]:
    rows = {name: parts for name, parts in parameter_rows(ahead_config(target)).items() if name != "embed_tokens"}
    experts = target.experts.count if target.experts else 0
    return named_parts({**rows, **{name: [target.hidden_size] for name in BEFORE}}, names, prefix, experts)


def ahead_features(name: str, target: TransformerConfig) -> int | None:
    """Return the number of columns of a parameter of the MTP layer; None for a vector."""
    return 2 * target.hidden_size if name == "fc.weight" else in_features(name, ahead_config(target))
