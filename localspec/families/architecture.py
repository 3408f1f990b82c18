"""The transformer of all families that are served: how they differ, and what its weights are.

Parameters are called as in the Hugging Face code of Llama, with query, key and value stacked as `qkv_proj`, gate and up
as `gate_up_proj` (as Phi-3 has them). `weight_map` says which tensors of the Hugging Face layout each is made of. Norms
of what attention and MLP give (Gemma) are `o_norm` and `down_norm`; `post_attention_layernorm` is before any MLP.
"""

from dataclasses import dataclass

from localspec.errors import LocalspecError, UsageMistake
from localspec.families.delta_net import DeltaNet
from localspec.families.family_config import LayerSizes
from localspec.families.model_config import ModelConfig

TABLES = ("embed_tokens", "embed_tokens_per_layer")  # parameters of which a token reads its row


@dataclass(frozen=True)
class TransformerConfig:
    """What the families differ in. Sizes are in channels; a window counts positions, the token's own included."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    sliding_windows: tuple[int | None, ...]  # one per layer; None sees everything
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    activation: str = "silu"  # of the MLP's gate: silu, or gelu (by tanh)
    output_norms: bool = False  # norms of what attention and MLP give, too
    norm_offset: float = 0.0  # norms multiply by this plus their weight
    embed_scale: float = 1.0  # embeddings are multiplied by it, rounded to their own precision
    query_scalar: float = 0.0  # scores are divided by its root; that of head_dim where it is 0
    residual_scale: float = 1.0  # what attention and MLP give is multiplied by it
    logit_scale: float = 1.0  # states are multiplied by it before the head
    local_layers: tuple[bool, ...] = ()  # those that are rotated by `Rope.local`; () for none
    layer_sizes: tuple[LayerSizes, ...] = ()  # where layers differ; () where all are as wide as is said above
    per_layer_inputs: tuple[int, int] = (0, 0)  # (channels, tokens of the table) that layers read beside their states
    value_norm: bool = False  # values are normed, without weights
    layer_scalars: bool = False  # what a layer gives is multiplied by a number of its own
    logit_cap: float = 0.0  # logits are bent to stay below it, by tanh; 0 for not
    gated: bool = False  # what attention gives is multiplied by a sigmoid, whose inputs are projected with the queries
    delta: DeltaNet | None = None  # layers that have a recurrent state in the place of attention

    @classmethod
    def of(cls, config: ModelConfig) -> "TransformerConfig":
        """Reads a model's config. Raises LocalspecError where this transformer would not compute the same."""
        gemma3, gemma4 = config.model_type == "gemma3_text", config.model_type == "gemma4_text"
        gemma, qwen35 = gemma3 or gemma4, config.model_type == "qwen3_5_text"
        known = {"gelu_pytorch_tanh": "gelu"} if gemma else {"silu": "silu", "swish": "silu"}
        if config.hidden_act not in known:
            raise LocalspecError(
                f"The model's activation is '{config.hidden_act}', and localspec computes '{next(iter(known))}' only, "
                "in models of this family; choose another model."
            )
        if config.soft_caps:
            raise LocalspecError(
                "The model caps its logits or scores by a hyperbolic tangent, which localspec does not compute; choose "
                "another model."
            )
        return cls(
            family=config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            sliding_windows=config.sliding_windows,
            tied=config.tie_word_embeddings,
            qkv_bias=config.attention_bias or config.model_type == "qwen2",
            o_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            qk_norm=gemma or qwen35 or config.model_type == "qwen3",
            activation=known[config.hidden_act],
            output_norms=gemma,
            norm_offset=1.0 if gemma3 or qwen35 else 0.0,
            embed_scale=config.hidden_size**0.5 if gemma else config.embedding_multiplier,
            query_scalar=config.query_pre_attn_scalar,
            residual_scale=config.residual_multiplier,
            logit_scale=1.0 / config.logits_scaling,
            local_layers=tuple(one is not None for one in config.sliding_windows) if gemma else config.unrotated,
            layer_sizes=config.layer_sizes,
            per_layer_inputs=config.per_layer_inputs,
            value_norm=gemma4,
            layer_scalars=gemma4,
            logit_cap=config.logit_cap,
            gated=qwen35,
            delta=config.delta,
        )

    def is_local(self, layer: int) -> bool:
        """Whether a layer is rotated by `Rope.local`."""
        return bool(self.local_layers) and self.local_layers[layer]

    def sizes_of(self, layer: int) -> LayerSizes:
        """What a layer has."""
        same = LayerSizes(self.num_kv_heads, self.head_dim, self.intermediate_size)
        return self.layer_sizes[layer] if self.layer_sizes else same

    def need_layers_alone(self, kind: str) -> None:
        """Raises UsageMistake where no layers of its own can draft: they read what only all layers have, or an id."""
        if self.per_layer_inputs[0] or any(one.keys_of is not None for one in self.layer_sizes):
            raise UsageMistake(
                f"{kind} drafts with some of a model's own layers, and those of this one need the others: they share "
                "keys and values, or read inputs that a mask token does not have; use another drafter."
            )

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer has a recurrent state in the place of attention."""
        return self.delta is not None and self.delta.layers[layer]

    @property
    def attending(self) -> list[int]:
        """The layers that attend, in order."""
        return [layer for layer in range(self.num_layers) if not self.is_recurrent(layer)]

    @property
    def num_layers(self) -> int:
        return len(self.sliding_windows)

    @property
    def cache_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """(key and value heads, channels of a head) of each layer; None of one that keeps none of its own."""
        sizes = [self.sizes_of(layer) for layer in range(self.num_layers)]
        keeps = [one.keys_of is None and not self.is_recurrent(layer) for layer, one in enumerate(sizes)]
        return tuple((one.num_kv_heads, one.head_dim) if kept else None for one, kept in zip(sizes, keeps, strict=True))


def weight_map(config: TransformerConfig) -> dict[str, list[tuple[str, int]]]:
    """Our parameter -> the Hugging Face tensors it is made of, stacked along the first axis, with their rows."""
    parts: dict[str, list[tuple[str, int]]] = {"embed_tokens": [("model.embed_tokens.weight", config.vocab_size)]}
    width, tokens = config.per_layer_inputs
    if width:
        parts["embed_tokens_per_layer"] = [("model.embed_tokens_per_layer.weight", tokens)]
        parts["per_layer_model_projection.weight"] = [
            ("model.per_layer_model_projection.weight", config.num_layers * width)
        ]
        parts["per_layer_projection_norm"] = [("model.per_layer_projection_norm.weight", width)]
    for index in range(config.num_layers):
        sizes = config.sizes_of(index)
        inner, keys = sizes.intermediate_size, sizes.num_kv_heads * sizes.head_dim
        queries = config.num_heads * sizes.head_dim
        projected = 2 * queries if config.gated else queries  # head by head: its query, and what gates its output
        ours, theirs = f"layers.{index}.", f"model.layers.{index}."
        self_attn, mlp = theirs + "self_attn.", theirs + "mlp."
        if config.family == "phi3":
            qkv, gate_up = [("qkv_proj", queries + 2 * keys)], [("gate_up_proj", 2 * inner)]
        else:
            qkv = [("q_proj", projected), ("k_proj", keys), ("v_proj", keys)]
            qkv = qkv[: 1 if sizes.keys_of is not None else 2 if sizes.keys_are_values else 3]
            gate_up = [("gate_proj", inner), ("up_proj", inner)]
        down = "down_proj"
        if config.family == "granitemoehybrid":  # a shared expert without any other
            mlp, gate_up, down = (
                theirs + "shared_mlp.",
                [("input_linear", 2 * inner)],
                "output_linear",
            )
        attention = {
            "qkv_proj": ([(self_attn + name, rows) for name, rows in qkv], config.qkv_bias),
            "o_proj": ([(self_attn + "o_proj", config.hidden_size)], config.o_bias),
        }
        recurrent = config.delta if config.is_recurrent(index) else None
        linears = {
            **({} if recurrent else attention),
            "gate_up_proj": ([(mlp + name, rows) for name, rows in gate_up], config.mlp_bias),
            "down_proj": ([(mlp + down, config.hidden_size)], config.mlp_bias),
        }
        for name, (made_of, bias) in linears.items():
            parts[f"{ours}{name}.weight"] = [(part + ".weight", rows) for part, rows in made_of]
            if bias:
                parts[f"{ours}{name}.bias"] = [(part + ".bias", rows) for part, rows in made_of]
        for name, called in _norms(config).items():
            parts[ours + name] = [(f"{theirs}{called}.weight", config.hidden_size)]
        if recurrent:
            own = recurrent.weights(theirs, config.hidden_size)
            parts |= {ours + name: made_of for name, made_of in own.items()}
        elif config.qk_norm:
            for name in ("q_norm", "k_norm")[: 2 if sizes.keys_of is None else 1]:
                parts[ours + name] = [(f"{self_attn}{name}.weight", sizes.head_dim)]
        if width:
            for name, rows in (("per_layer_input_gate", width), ("per_layer_projection", config.hidden_size)):
                parts[f"{ours}{name}.weight"] = [(f"{theirs}{name}.weight", rows)]
            parts[ours + "per_layer_norm"] = [(f"{theirs}post_per_layer_input_norm.weight", config.hidden_size)]
        if config.layer_scalars:
            parts[ours + "layer_scalar"] = [(theirs + "layer_scalar", 1)]
    parts["norm"] = [("model.norm.weight", config.hidden_size)]
    if not config.tied:
        parts["lm_head.weight"] = [("lm_head.weight", config.vocab_size)]
    return parts


def _norms(config: TransformerConfig) -> dict[str, str]:
    """Our names of a layer's norms, and those of the Hugging Face layout."""
    if not config.output_norms:
        return {name: name for name in ("input_layernorm", "post_attention_layernorm")}
    return {
        "input_layernorm": "input_layernorm",
        "o_norm": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "down_norm": "post_feedforward_layernorm",
    }


def in_features(name: str, config: TransformerConfig) -> int | None:
    """The columns of one of our parameters: None for a vector, else the channels that the layer takes in."""
    if name.endswith((".bias", "norm", "scalar", ".dt_bias", ".A_log")):
        return None
    if name == "embed_tokens_per_layer":
        return config.num_layers * config.per_layer_inputs[0]
    if config.delta and name.endswith((".delta.conv", ".delta.out_proj.weight")):
        return config.delta.taps if name.endswith("conv") else config.delta.values
    of, *inside = name.removesuffix(".weight").split(".")
    if of != "layers":
        return config.hidden_size
    sizes = config.sizes_of(int(inside[0]))
    inputs = {"o_proj": config.num_heads * sizes.head_dim, "down_proj": sizes.intermediate_size}
    inputs["per_layer_projection"] = config.per_layer_inputs[0]
    return inputs.get(inside[-1], config.hidden_size)
