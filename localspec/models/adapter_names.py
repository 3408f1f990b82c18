"""Which projections adapters of low rank adapt, what peft calls them, and where they lie in our stacked layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.errors import UsageMistake
from localspec.families.architecture import TransformerConfig, in_features, weight_map

LINEARS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
WHICH = {  # the projections that may be adapted, by the last part of their Hugging Face names
    "all": {
        "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj",
        "input_linear", "output_linear",
    },
    "vko": {"k_proj", "v_proj", "qkv_proj", "o_proj"},  # S3D, appendix B
}  # fmt: skip
MOST_RANK = 1024  # a higher one is not low rank any more


@dataclass(frozen=True)
class AdaptedPart:
    """One projection of the Hugging Face layout that has an adapter, in one of our linear layers.

    Rows `start` to `end` of our layer are adapted; the projection has rows `first` to `first` + `size` of it, and
    `inputs` columns. `block` is its number among those that are adapted in this layer, in order.
    """

    layer: int
    linear: str
    name: str
    block: int
    start: int
    end: int
    first: int
    size: int
    inputs: int

    @property
    def lora_a(self) -> str:
        """What peft calls A [rank, inputs]."""
        return f"base_model.model.{self.name}.lora_A.weight"

    @property
    def lora_b(self) -> str:
        """What peft calls B [size, rank]."""
        return f"base_model.model.{self.name}.lora_B.weight"


def adapted_parts(config: TransformerConfig, layers: Sequence[int], which: str) -> Iterator[AdaptedPart]:
    """Lists what is adapted, layer by layer, in the order of our linear layers and of their rows.

    Raises UsageMistake for recurrent layers, whose matrices have no adapters.
    """
    if any(map(config.is_recurrent, layers)):
        raise UsageMistake(
            "Some of the model's layers are recurrent, for which there are no adapters; leave out joint and first, and "
            "train the drafter for the model as it is."
        )
    made_of = weight_map(config)
    for layer in layers:
        for linear in LINEARS:
            ours = f"layers.{layer}.{linear}.weight"
            first = block = 0
            for weight, size in made_of[ours]:
                name = weight.removesuffix(".weight")
                if name.rpartition(".")[2] in WHICH[which]:
                    # Keys and values of Phi-3's fused projection are one block.
                    fused = which == "vko" and name.endswith("qkv_proj")
                    start = first + (config.num_heads * config.head_dim if fused else 0)
                    inputs = in_features(ours, config)
                    assert inputs is not None
                    yield AdaptedPart(layer, linear, name, block, start, first + size, first, size, inputs)
                    block += 1
                first += size
