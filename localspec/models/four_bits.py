"""Which blocks a matrix has where a model is packed in four bits."""

from localspec.packed_file import block_inputs

_USUAL, _FINER = ("Q4_K", "Q5_0"), ("Q6_K", "Q8_0")  # the second of each for widths that the first does not divide


def block_type(name: str, part: int, layers: int, inputs: int) -> str | None:
    """Return the type of blocks for a part of our parameter `name`; None where no type divides its inputs.

    What loses most is finer, as in llama.cpp's Q4_K_M: the head, and in half of the `layers` values and the projection
    down. Matrices of what layers read beside their states are so small that four bits would save next to nothing.
    """
    types = _FINER if _loses_most(name, part, layers) else _USUAL
    return next((one for one in types if inputs % block_inputs(one) == 0), None)


def _loses_most(name: str, part: int, layers: int) -> bool:
    if name == "lm_head.weight" or ".per_layer_" in f".{name}":
        return True
    if not name.endswith("down_proj.weight") and not (name.endswith("qkv_proj.weight") and part == 2):
        return False
    index, eighth = int(name.split(".")[1]), layers // 8
    return index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2
