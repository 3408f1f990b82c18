"""The block types that weights are rounded to where no kernel multiplies by the blocks of their own type.

Weights of a coarse type lie on a grid, so finer blocks lose little of them. `docs/figures/stand-ins.md` has what
is lost, and `research/stand_in_table.py` measures it.
"""

from collections.abc import Mapping

from localspec.packed_file import block_inputs

STAND_INS: Mapping[str, str] = {
    "TQ1_0": "Q4_K", "TQ2_0": "Q4_K", "IQ1_S": "Q4_K", "IQ1_M": "Q6_K", "IQ2_XXS": "Q5_0", "IQ2_XS": "Q6_K",
    "IQ2_S": "Q6_K", "IQ3_XXS": "Q5_0", "IQ3_S": "Q5_0", "NVFP4": "Q6_K", "F16": "Q8_0", "BF16": "Q8_0", "F32": "Q8_0",
}  # fmt: skip
_ANY_WIDTH = "Q8_0"  # for rows that are no whole number of the blocks above


def stand_in(name: str, columns: int) -> str | None:
    """Return the type that weights of the type `name` are rounded to; None if no type divides rows of `columns`."""
    return next((one for one in (STAND_INS[name], _ANY_WIDTH) if columns % block_inputs(one) == 0), None)
