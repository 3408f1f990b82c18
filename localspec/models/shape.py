"""How large the parts of a model are, from its config.json or from models.toml; parameters are counted, not read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.checkpoint import inspect, text_config
from localspec.models.delta_net import DeltaNet, of_qwen35
from localspec.models.model_config import TORCH_ONLY, with_defaults

# Our names, and those of config.json; what it may leave out has a rule below.
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


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer of the kind that is served here: widths in channels, context in tokens.

    One of a family that is `torch_only` is not computed by the CPU engine, on a CPU neither.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    tied: bool = False
    torch_only: bool = False
    gated: bool = False  # attention projects as many gates as queries
    delta: DeltaNet | None = None  # layers that have a recurrent state in the place of attention

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape | None":
        """What a config.json says; None where it does not say enough."""
        said = with_defaults(config)
        found: dict[str, Any] = {name: said.get(theirs) for name, theirs in _NAMES.items()}
        found["tied"] = bool(found["tied"])
        if found["num_kv_heads"] is None:
            found["num_kv_heads"] = found["num_heads"]
        if found["head_dim"] is None and whole(found["hidden_size"]) and whole(found["num_heads"]):
            found["head_dim"] = found["hidden_size"] // found["num_heads"]
        if all(whole(value) for name, value in found.items() if name != "tied"):
            family = text_config(config).get("model_type")
            gated = said.get("model_type") == "qwen3_5_text"
            return cls(**found, torch_only=family in TORCH_ONLY, gated=gated, delta=_delta(said))
        return None

    @property
    def recurrent(self) -> bool:
        """Whether it has recurrent layers: drafts are chains, and torch computes them with dense weights alone."""
        return self.delta is not None

    @property
    def not_native(self) -> str:
        """What of it the CPU engine does not have yet, so that torch computes it there; "" where it has all."""
        return "family" if self.torch_only else ""

    @property
    def config(self) -> dict[str, Any]:
        """What a config.json would say of it."""
        return {theirs: getattr(self, name) for name, theirs in _NAMES.items()}

    @property
    def layer(self) -> int:
        """Weights of the matrices of one layer that attends."""
        heads = (3 if self.gated else 2) * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * (self.head_dim * heads + 3 * self.intermediate_size)

    def layer_at(self, index: int) -> int:
        """Weights of the matrices of this layer."""
        if self.delta is None or not self.delta.layers[index]:
            return self.layer
        projected = self.delta.read + 2 * self.delta.values  # with what reads the values
        return self.hidden_size * (projected + 3 * self.intermediate_size)

    @property
    def layers(self) -> int:
        """Weights of the matrices of all layers."""
        return sum(map(self.layer_at, range(self.num_layers))) if self.delta else self.num_layers * self.layer

    @property
    def rows(self) -> int:
        """Output channels of one layer's matrices together: what has a scale of its own in int8."""
        return (
            self.head_dim * (self.num_heads + 2 * self.num_kv_heads) + 2 * self.hidden_size + 2 * self.intermediate_size
        )

    @property
    def embedding(self) -> int:
        """Weights of the input embedding; a head has as many."""
        return self.vocab_size * self.hidden_size

    @property
    def matrices(self) -> int:
        """Weights that one decode step reads: all layers and the head."""
        return self.layers + self.embedding

    @property
    def parameters(self) -> int:
        """All of them, but for biases, norms inside of attention and those of outputs, which no family has many of."""
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.layers + self.embedding * (1 if self.tied else 2) + norms

    def cached(self, tokens: int, item: int) -> int:
        """Bytes of keys and values of so many tokens, in numbers of `item` bytes."""
        attending = self.num_layers - (sum(self.delta.layers) if self.delta else 0)
        return 2 * attending * self.num_kv_heads * self.head_dim * tokens * item


def recurrent(path: Path) -> bool:
    """Whether the model of a directory, or of a packed file, has recurrent layers. Raises what `inspect` raises."""
    shape = Shape.of(inspect(path).config)
    return shape is not None and shape.recurrent


# The key of each field in the `shape` of a models.toml.
TABLE_KEYS = dict(
    zip(
        ("layers", "width", "inner", "heads", "key_heads", "head_width", "vocabulary", "context", "tied"),
        _NAMES,
        strict=True,
    )
)


def _delta(said: Mapping[str, Any]) -> DeltaNet | None:
    """What is wrong with the sizes of recurrent layers is said where the model is read."""
    if said.get("model_type") != "qwen3_5_text":
        return None
    try:
        sizes: DeltaNet | None = of_qwen35(said)["delta"]
    except (ValueError, TypeError):
        return None
    return sizes if sizes and len(sizes.layers) == said.get("num_hidden_layers") else None


def whole(value: object) -> bool:
    """Whether this is a number of things, and not a truth value."""
    return type(value) is int and value > 0
