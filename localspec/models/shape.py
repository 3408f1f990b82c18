"""How large the parts of a model are, from its config.json or from models.toml; parameters are counted, not read."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# Our names, and those of config.json; what it may leave out has a rule below.
_NAMES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "key_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
}


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer of the kind that is served here: widths in channels, context in tokens."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    context: int
    tied: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape | None":
        """What a config.json says; None where it does not say enough."""
        found: dict[str, Any] = {name: config.get(theirs) for name, theirs in _NAMES.items()}
        found["tied"] = bool(found["tied"])
        if found["key_heads"] is None:
            found["key_heads"] = found["heads"]
        if found["head_width"] is None and whole(found["width"]) and whole(found["heads"]):
            found["head_width"] = found["width"] // found["heads"]
        if all(whole(value) for name, value in found.items() if name != "tied"):
            return cls(**found)
        return None

    @property
    def layer(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.key_heads)
        return attention + 3 * self.width * self.inner

    @property
    def rows(self) -> int:
        """Output channels of one layer's matrices together: what has a scale of its own in int8."""
        return self.head_width * (self.heads + 2 * self.key_heads) + 2 * self.width + 2 * self.inner

    @property
    def embedding(self) -> int:
        """Weights of the input embedding; a head has as many."""
        return self.vocabulary * self.width

    @property
    def matrices(self) -> int:
        """Weights that one decode step reads: all layers and the head."""
        return self.layers * self.layer + self.embedding

    @property
    def parameters(self) -> int:
        """All of them, but for biases and the norms inside of attention, which no family has many of."""
        norms = (2 * self.layers + 1) * self.width
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + norms

    def cached(self, tokens: int, item: int) -> int:
        """Bytes of keys and values of so many tokens, in numbers of `item` bytes."""
        return 2 * self.layers * self.key_heads * self.head_width * tokens * item


NAMES = tuple(field.name for field in fields(Shape))


def whole(value: object) -> bool:
    """Whether this is a number of things, and not a truth value."""
    return type(value) is int and value > 0
