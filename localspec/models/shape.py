"""The sizes of a model's parts, from its config.json or from models.toml. Parameters are calculated, not read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from localspec.families.family import DeltaNet, Family, LayerSizes, MixtureSizes
from localspec.families.model_config import with_defaults
from localspec.families.table import FAMILIES
from localspec.weights.checkpoint import inspect
from localspec.weights.recipe import in_four_bits

# Our names, and those of config.json; defaults for missing ones are below.
_NAMES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}
_OF_LAYERS = {
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "layer_sizes": "layer_sizes",
    "layer_inputs": "per_layer_inputs",
    "delta": "delta",
    "experts": "experts",
}  # keys that a family may spell in its own way


@dataclass(frozen=True)
class Shape:
    """The sizes of a supported decoder-only transformer: widths in channels, context in tokens."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    tied: bool = False
    gated: bool = False  # attention also projects a gate for each query
    delta: DeltaNet | None = None  # recurrent layers instead of attention
    experts: MixtureSizes | None = None  # instead of each MLP
    layer_sizes: tuple[LayerSizes, ...] = ()  # if layers differ; () if all have the widths above
    layer_inputs: tuple[int, int] = (0, 0)  # (channels, tokens of the table) of the additional input of each layer

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape | None":
        """Return the shape in a config.json; None if it lacks sizes."""
        content = with_defaults(config)
        sizes: dict[str, Any] = {name: content.get(key) for name, key in _NAMES.items()}
        sizes["tied"] = bool(sizes["tied"])
        if sizes["num_kv_heads"] is None:
            sizes["num_kv_heads"] = sizes["num_heads"]
        if sizes["head_dim"] is None and whole(sizes["hidden_size"]) and whole(sizes["num_heads"]):
            sizes["head_dim"] = sizes["hidden_size"] // sizes["num_heads"]
        if all(whole(value) for name, value in sizes.items() if name != "tied"):
            if family := FAMILIES.get(str(content.get("model_type"))):
                sizes |= {"gated": family.arithmetic.get("gated", False), **_by_family(family, content)}
            return cls(**sizes)
        return None

    @property
    def recurrent(self) -> bool:
        """Whether the model has recurrent layers.

        Then drafts are chains, and torch computes the model only with dense weights.
        """
        return self.delta is not None

    @property
    def layers_alone(self) -> bool:
        """Whether a few layers can draft by themselves: `TransformerConfig.need_layers_alone` then raises no error."""
        return not self.layer_inputs[0] and all(layer.keys_of is None for layer in self.layer_sizes)

    @property
    def config(self) -> dict[str, Any]:
        """The config.json that describes these sizes."""
        return {key: getattr(self, name) for name, key in _NAMES.items()}

    @cached_property
    def widest(self) -> LayerSizes:
        """The largest sizes of any layer, each separately."""
        layers = self.layer_sizes or (LayerSizes(self.num_kv_heads, self.head_dim, self.intermediate_size),)
        head_dim = max(layer.head_dim for layer in layers)
        keys = max(layer.num_kv_heads * layer.head_dim for layer in layers)
        return LayerSizes(-(-keys // head_dim), head_dim, max(layer.intermediate_size for layer in layers))

    def _sum(self, size_of: Callable[[LayerSizes], int]) -> int:
        """Return the sum over all layers of a size that `size_of` returns for one layer."""
        if self.layer_sizes:
            return sum(map(size_of, self.layer_sizes))
        return self.num_layers * size_of(LayerSizes(self.num_kv_heads, self.head_dim, self.intermediate_size))

    @cached_property
    def layers(self) -> int:
        """The number of weights in all layers' matrices, and in the projection for additional inputs (Gemma 4)."""
        differ = bool(self.delta or self.layer_sizes)
        counted = [
            sum(sum(rows) * inputs for _, rows, inputs in self._matrices(index))
            for index in range(self.num_layers if differ else 1)
        ]
        total = sum(counted) if differ else self.num_layers * counted[0]
        return total + self.num_layers * self.layer_inputs[0] * self.hidden_size

    @property
    def layer(self) -> int:
        """The average number of weights in the matrices of a layer. For recurrent models, count an attention layer.

        For a mixture of experts, count an MLP in place of the experts, as in the layers of its drafters.
        """
        if self.experts or self.delta:
            widest = self.widest
            attention = widest.head_dim * ((3 if self.gated else 2) * self.num_heads + widest.projected)
            return self.hidden_size * (attention + 3 * self.intermediate_size)
        return self.layers // self.num_layers

    @property
    def linears(self) -> Iterator[tuple[str, list[int], int]]:
        """(Name, [output channels], input channels) of each matrix of the layers and of the head.

        The output channels are a list, because a matrix may join several projections, such as q, k and v.
        """
        for index in range(self.num_layers):
            for name, rows, inputs in self._matrices(index):
                yield f"layers.{index}.{name}.weight", rows, inputs
        if width := self.layer_inputs[0]:
            yield "per_layer_model_projection.weight", [self.num_layers * width], self.hidden_size
        yield "lm_head.weight", [self.vocab_size], self.hidden_size

    def _matrices(self, index: int) -> Iterator[tuple[str, list[int], int]]:
        """Yield (name, [output channels of each joined projection], input channels) for each matrix of a layer."""
        hidden, width = self.hidden_size, self.layer_inputs[0]
        sizes = self.layer_sizes[index] if self.layer_sizes else self.widest
        if self.delta and self.delta.layers[index]:
            heads = [self.delta.channels, self.delta.value_heads, self.delta.value_heads, self.delta.values]
            yield "delta.in_proj", heads, hidden
            yield "delta.out_proj", [hidden], self.delta.values
        else:
            queries, keys = self.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
            parts = [keys] * (sizes.projected // sizes.num_kv_heads)
            yield "qkv_proj", [queries * (2 if self.gated else 1), *parts], hidden
            yield "o_proj", [hidden], queries
        if (experts := self.experts) is not None:
            yield "experts.gate_up_proj", [experts.count * experts.size] * 2, hidden
            yield "experts.down_proj", [experts.count * hidden], experts.size
        if experts is None or experts.dense:
            yield "gate_up_proj", [sizes.intermediate_size] * 2, hidden
            yield "down_proj", [hidden], sizes.intermediate_size
        if width:
            yield "per_layer_input_gate", [width], hidden
            yield "per_layer_projection", [hidden], width

    @cached_property
    def four_bits(self) -> int:
        """The bytes of the matrices of the layers and of the head in int4."""
        return in_four_bits(self.linears, self.num_layers)

    @property
    def rows(self) -> int:
        """The number of output channels of all layers' matrices. In int8 each has a scale."""
        width, hidden = self.layer_inputs[0], self.hidden_size
        inputs = self.num_layers * (2 * width + hidden) if width else 0
        return inputs + self._sum(
            lambda layer: layer.head_dim * (self.num_heads + layer.projected) + 2 * hidden + 2 * layer.intermediate_size
        )

    @property
    def table(self) -> int:
        """The number of weights of the table that gives each layer an additional input for each token id (Gemma 4)."""
        width, tokens = self.layer_inputs
        return self.num_layers * width * tokens

    @property
    def embedding(self) -> int:
        """The number of weights of the input embedding, which is also the number of weights of the head."""
        return self.vocab_size * self.hidden_size

    @property
    def matrices(self) -> int:
        """The number of weights of the matrices of all layers, and of the head."""
        return self.layers + self.embedding

    @property
    def in_experts(self) -> int:
        """The number of weights of the matrices of all experts."""
        return 3 * self.num_layers * self.hidden_size * self.experts.count * self.experts.size if self.experts else 0

    def chosen(self, rows: int) -> float:
        """Return an upper bound of the share of experts that `rows` rows choose together; 1 without experts.

        The bound is the expected share if rows choose independently.
        """
        return 1.0 if self.experts is None else 1 - (1 - self.experts.used / self.experts.count) ** rows

    def read(self, rows: int) -> int:
        """Return how many weights a decode step of `rows` rows reads, including experts that any row chooses."""
        return self.matrices - round(self.in_experts * (1 - self.chosen(rows)))

    @property
    def small(self) -> int:
        """The number of weights that are never packed: norms before attention, MLP and head, and routers."""
        routers = self.num_layers * self.hidden_size * self.experts.count if self.experts else 0
        return (2 * self.num_layers + 1) * self.hidden_size + routers

    @property
    def active(self) -> int:
        """The number of parameters that a token reads."""
        return self.read(1) + self.small

    @property
    def parameters(self) -> int:
        """The number of parameters. Biases, and norms of queries, keys and outputs, are few and are not counted."""
        return self.layers + self.embedding * (1 if self.tied else 2) + self.table + self.small

    def cached(self, tokens: int, item: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens, with `item` bytes per number."""
        return 2 * self._key_channels * tokens * item

    @cached_property
    def _key_channels(self) -> int:
        """The number of channels of a token's keys in all layers that store keys."""
        recurrent = sum(self.delta.layers) if self.delta else 0
        total = self._sum(lambda layer: layer.num_kv_heads * layer.head_dim if layer.keys_of is None else 0)
        return total - recurrent * self.num_kv_heads * self.head_dim

    def cached_in_last(self, cached: int) -> int:
        """Return the bytes of keys and values that one more layer like the last would add to a cache of `cached`
        bytes."""
        return cached * self.num_kv_heads * self.head_dim // max(self._key_channels, 1)


def shape_of(path: Path) -> Shape | None:
    """Return the shape of the model in a directory or packed file. Raises the errors of `inspect`."""
    return Shape.of(inspect(path).config)


# The key of each field in the `shape` of a models.toml.
TABLE_KEYS = dict(
    zip(
        ("layers", "width", "inner", "heads", "key_heads", "head_width", "vocabulary", "context", "tied"),
        _NAMES,
        strict=True,
    )
)


def _by_family(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Shape` that each family reads differently; {} if one is invalid (reported at loading)."""
    try:
        fields = family.read(config)
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}
    shape = {name: fields[key] for name, key in _OF_LAYERS.items() if key in fields}
    delta, sizes = shape.get("delta"), shape.get("layer_sizes", ())
    wrong = (delta and len(delta.layers) != config["num_hidden_layers"]) or (
        sizes and len(sizes) != config["num_hidden_layers"]
    )
    return {} if wrong else shape


def whole(value: object) -> bool:
    """Return whether a value is a positive integer, and not a Boolean."""
    return type(value) is int and value > 0
