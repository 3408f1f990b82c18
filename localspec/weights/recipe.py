"""How each tensor of a model is packed, and which block type each matrix gets.

A draft model never changes the text, so its weights may be as coarse as pays, and its head may have only some tokens.
`docs/drafting.md` has the measured gain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from localspec.families.architecture import TABLES, TransformerConfig
from localspec.weights.packed_file import BLOCKS, RECORDS, BlockPart, Header, Tensor, bits, block_inputs

MOST_BITS = 5.5  # blocks of a GGUF file with at most this many bits per weight are not rounded again in int4


@dataclass(frozen=True)
class Recipe:
    """The recipe for packing a model's tensors, in int8, int4, bf16, fp32, or in the blocks of GGUF files.

    In int4, `block_type` chooses a block type for each matrix. In blocks, matrices keep the block types of their file,
    but types without kernels are replaced. A matrix whose width suits no block type is in int8. In int8, the matrices
    in `narrow` have groups of 32 inputs. With `drafts`, blocks are coarser, except in `TABLES`.
    """

    packing: str
    narrow: frozenset[str] = frozenset()
    drafts: bool = False

    def sections(
        self, name: str, parts: Sequence[tuple[int, str | None]], inputs: int | None, layers: int
    ) -> dict[str, Tensor]:
        """Return how a parameter is packed, by the names of the sections in which it is stored.

        `parts` has each part's number of rows, and the block type in which it is stored, or None. `inputs` is None for
        a vector. In blocks, each part is a section, whose name is the parameter's, a space and the part's number.
        """
        out = sum(rows for rows, _ in parts)
        in_blocks = self.packing == BLOCKS or (self.packing == "int4" and name not in TABLES)
        if not in_blocks or inputs is None or name.endswith(NEVER_PACKED):
            return {name: self.tensor(name, out, inputs)}
        sections = {}
        for number, (rows, stored) in enumerate(parts):
            if self.packing == "int4":
                chosen = block_type(name, number, layers, inputs)
                if chosen and stored in RECORDS and bits(stored) <= max(MOST_BITS, bits(chosen)):
                    chosen = stored
            else:
                assert stored is not None
                chosen = stored if stored in RECORDS else stand_in(stored, inputs)
                if self.drafts and chosen == stored and name not in TABLES:
                    chosen = draft_blocks(stored)
            if chosen is None:
                return {name: self.tensor(name, out, inputs)}
            sections[f"{name} {number}"] = Tensor(BLOCKS, chosen, rows, inputs)
        return sections

    def tensor(self, name: str, out: int, inputs: int | None) -> Tensor:
        """Return how a parameter [out, inputs] is packed if it is not in blocks. For a vector, `inputs` is None."""
        if inputs is None:
            return Tensor("rows", "fp32", 1, out)
        if name.endswith(".conv"):
            return Tensor("rows", "fp32", out, inputs)
        if name.endswith("router.weight"):  # small, and a rounded logit may choose another expert
            return Tensor("panels", "fp32", out, inputs)
        if name in TABLES:
            return Tensor("rows", "fp32" if self.packing == "fp32" else "bf16", out, inputs)
        if self.packing in ("fp32", "bf16"):
            return Tensor("panels", self.packing, out, inputs)
        return Tensor("panels", "int8", out, inputs, 32 if inputs % 64 or name in self.narrow else 64)


NEVER_PACKED = (".conv", "router.weight")  # matrices in fp32 in every packing


def read_bytes(header: Header) -> tuple[int, int]:
    """Return how many bytes a model in blocks reads in each decode step, without experts, and the bytes of all experts.

    An embedding counts only if it is also the head, because otherwise a step reads only a few of its rows. `header`
    belongs to a registration or to a packed file in blocks.
    """
    if header.registered:
        sizes = [(name, _bytes_in_blocks(name, parts)) for name, parts in header.blocks.items()]
    else:
        sizes = [(name.partition(" ")[0], section.bytes) for name, section in header.tensors.items()]
    head = any(name == "lm_head.weight" for name, _ in sizes)
    read = [(name, size) for name, size in sizes if name not in TABLES or (name == "embed_tokens" and not head)]
    experts = sum(size for name, size in read if ".experts." in name)
    return sum(size for _, size in read) - experts, experts


def _bytes_in_blocks(name: str, parts: Sequence[BlockPart]) -> int:
    """Return the bytes that a parameter stored in GGUF files takes in memory if it stays in blocks."""
    inputs = parts[0].shape[1] if len(parts[0].shape) > 1 else None
    sections = Recipe(BLOCKS).sections(name, [(part.shape[0], part.type) for part in parts], inputs, 0)
    return sum(tensor.bytes for tensor in sections.values())


# The second type of each pair is for widths that the first does not divide.
_USUAL, _FINER = ("Q4_K", "Q5_0"), ("Q6_K", "Q8_0")


def block_type(name: str, part: int, layers: int, inputs: int) -> str | None:
    """Return the block type for a part of the parameter `name`, such as part 2 (values) of qkv_proj.

    It is None if `inputs` is not a multiple of any type's block size. The matrices that lose most from rounding have
    finer blocks, as in llama.cpp's Q4_K_M: the head, and the value and down projections in half of the `layers`.
    Matrices of additional layer inputs have finer blocks, too, because four bits would save almost nothing.
    """
    types = _FINER if _loses_most(name, part, layers) else _USUAL
    return next((kind for kind in types if inputs % block_inputs(kind) == 0), None)


def part_rows(name: str, stored: Sequence[int], sizes: TransformerConfig) -> list[int]:
    """Return the number of rows of each part of a parameter, such as its queries, keys and values.

    Parts may have different block types. `stored` has the rows of each stored tensor; a single one may have all parts.
    """
    if name.endswith("gate_up_proj.weight"):
        return [sum(stored) // 2] * 2
    if name.endswith("experts.down_proj.weight"):
        return [sum(stored)]
    if len(stored) == 1 and name.endswith("qkv_proj.weight"):
        layer = sizes.sizes_of(int(name.split(".")[1]))
        keys = layer.num_kv_heads * layer.head_dim
        parts = [sizes.num_heads * layer.head_dim * (2 if sizes.gated else 1), keys, keys]
        return parts if sum(parts) == stored[0] else [*stored]
    return [*stored]


def in_four_bits(linears: Iterable[tuple[str, Sequence[int], int]], layers: int) -> int:
    """Return how many bytes some matrices (name, rows of each part, inputs) take in int4, in a model of `layers`
    layers."""
    total = 0
    for name, parts, inputs in linears:
        for part, rows in enumerate(parts):
            if (chosen := block_type(name, part, layers, inputs)) is None:
                total += Tensor("panels", "int8", sum(parts), inputs, 32).bytes
                break
            total += Tensor(BLOCKS, chosen, rows, inputs).bytes
    return total


def _loses_most(name: str, part: int, layers: int) -> bool:
    """Return whether rounding this part of a parameter hurts most, by the rule of llama.cpp's `use_more_bits`."""
    if name == "lm_head.weight" or ".per_layer_" in f".{name}":
        return True
    if not name.endswith("down_proj.weight") and not (name.endswith("qkv_proj.weight") and part == 2):
        return False
    index, eighth = int(name.split(".")[1]), layers // 8
    return index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2


# A type without kernels -> the type that it is rounded to.
STAND_INS: Mapping[str, str] = {
    "TQ1_0": "Q4_K", "TQ2_0": "Q4_K", "IQ1_S": "Q4_K", "IQ1_M": "Q6_K", "IQ2_XXS": "Q5_0", "IQ2_XS": "Q6_K",
    "IQ2_S": "Q6_K", "IQ3_XXS": "Q5_0", "IQ3_S": "Q5_0", "NVFP4": "Q6_K", "F16": "Q8_0", "BF16": "Q8_0", "F32": "Q8_0",
}  # fmt: skip
_ANY_WIDTH = "Q8_0"  # for rows that are not a whole number of the blocks above


def stand_in(name: str, columns: int) -> str | None:
    """Return the block type to which the type `name`, which has no kernel, is rounded; None if no type fits the
    rows."""
    return next((kind for kind in (STAND_INS[name], _ANY_WIDTH) if columns % block_inputs(kind) == 0), None)


# -- draft models ------------------------------------------------------------------------------------------------------

# Replies rarely need more than the first ids of a vocabulary and the ids that were read: common tokens have low ids.
FIRST_TOKENS, READ_TOKENS = 2**15, 2**12
_COARSE, HEAD_BLOCKS = "Q4_0", "Q5_0"  # of layers, and of a short head: they suit any width that is a multiple of 32
_MOST_DRAFT_BITS = 5.0  # of a weight whose blocks are not rounded again


def head_tokens(vocab_size: int) -> int:
    """Return how many tokens a draft model computes logits for; 0 means all, if fewer would save little."""
    few = FIRST_TOKENS + READ_TOKENS
    return few if vocab_size >= 2 * few else 0


def draft_blocks(stored: str) -> str:
    """Return the block type for a draft model's layers: a smaller one than `stored`, if that has too many bits."""
    return _COARSE if stored in RECORDS and bits(stored) > _MOST_DRAFT_BITS else stored


def is_coarser(quantize: str, vocab_size: int, engine: str) -> bool:
    """Return whether a model's weights are coarser when it is used as a draft model."""
    return engine == "native" and (quantize == BLOCKS or head_tokens(vocab_size) > 0)


def as_draft(quantize: str) -> str:
    """Return the name under which measurements of a draft model in this packing are saved."""
    return f"{quantize} as a draft model"


def draft_bytes(header: Header, vocab_size: int) -> int:
    """Return how many bytes a registered model takes in memory as a draft model; 0 if no engine reads its blocks."""
    if not header.weight_bytes:
        return 0
    few, total = head_tokens(vocab_size), 0
    for name, parts in header.blocks.items():
        for part in parts:
            if len(part.shape) == 1:
                total += 4 * part.shape[0]
            elif name != "lm_head.weight" or not few:
                stored = part.type if part.type in RECORDS else "Q8_0"
                kind = stored if name in TABLES or stored != part.type else draft_blocks(stored)
                total += Tensor(BLOCKS, kind, *part.shape).bytes
    return total + (Tensor(BLOCKS, HEAD_BLOCKS, few, header.blocks["embed_tokens"][0].shape[1]).bytes if few else 0)


def draft_in_words(numbers: str, vocab_size: int) -> str:
    """Return words for a draft model's precision and head: `4.0 bits per weight, 36,864 of 151,936 tokens`."""
    few = head_tokens(vocab_size)
    return ", ".join([numbers] * bool(numbers) + [f"{few:,} of {vocab_size:,} tokens"] * bool(few))
