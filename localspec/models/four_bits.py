"""Which blocks a matrix has where a model is packed in four bits."""

from collections.abc import Sequence

from localspec.models.architecture import TransformerConfig
from localspec.models.shape import Shape
from localspec.packed_file import BLOCKS, Tensor, block_inputs

_USUAL, _FINER = ("Q4_K", "Q5_0"), ("Q6_K", "Q8_0")  # the second of each for widths that the first does not divide


def block_type(name: str, part: int, layers: int, inputs: int) -> str | None:
    """Return the type of blocks for a part of our parameter `name`; None where no type divides its inputs.

    What loses most is finer, as in llama.cpp's Q4_K_M: the head, and in half of the `layers` values and the projection
    down. Matrices of what layers read beside their states are so small that four bits would save next to nothing.
    """
    types = _FINER if _loses_most(name, part, layers) else _USUAL
    return next((one for one in types if inputs % block_inputs(one) == 0), None)


def part_rows(name: str, stored: Sequence[int], sizes: TransformerConfig) -> list[int]:
    """Return the rows of the parts of our parameter `name`, each of which may have its own type.

    `stored` are the rows of its tensors; some families store queries, keys and values as one, or gate and up.
    """
    if name.endswith("gate_up_proj.weight"):
        return [sum(stored) // 2] * 2
    if len(stored) == 1 and name.endswith("qkv_proj.weight"):
        one = sizes.sizes_of(int(name.split(".")[1]))
        keys = one.num_kv_heads * one.head_dim
        parts = [sizes.num_heads * one.head_dim * (2 if sizes.gated else 1), keys, keys]
        return parts if sum(parts) == stored[0] else [*stored]
    return [*stored]


def in_four_bits(shape: Shape) -> int:
    """Return the bytes of all matrices of a model, without tables."""
    found = 0
    for name, parts, inputs in shape.linears:
        for part, rows in enumerate(parts):
            if (chosen := block_type(name, part, shape.num_layers, inputs)) is None:
                found += Tensor("panels", "int8", sum(parts), inputs, 32).bytes
                break
            found += Tensor(BLOCKS, chosen, rows, inputs).bytes
    return found


def _loses_most(name: str, part: int, layers: int) -> bool:
    if name == "lm_head.weight" or ".per_layer_" in f".{name}":
        return True
    if not name.endswith("down_proj.weight") and not (name.endswith("qkv_proj.weight") and part == 2):
        return False
    index, eighth = int(name.split(".")[1]), layers // 8
    return index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2
