"""The form of a model that drafts for another: coarser weights, and a head for only some tokens.

A draft model never changes the text, so its weights may be as coarse as pays. `docs/drafting.md` has the measured gain.
"""

from localspec.families.architecture import TABLES
from localspec.weights.packed_file import BLOCKS, RECORDS, Header, Tensor, bits

# Replies rarely need more than the first ids of a vocabulary and the ids that were read: common tokens have low ids.
FIRST_TOKENS, READ_TOKENS = 2**15, 2**12
_COARSE, HEAD_BLOCKS = "Q4_0", "Q5_0"  # of layers, and of a short head: they suit any width that is a multiple of 32
_MOST_BITS = 5.0  # of a weight whose blocks are not rounded again


def head_tokens(vocab_size: int) -> int:
    """Return the number of tokens for which a draft model computes logits. 0 means all, because fewer would save
    little."""
    few = FIRST_TOKENS + READ_TOKENS
    return few if vocab_size >= 2 * few else 0


def draft_blocks(stored: str) -> str:
    """Return the type of blocks that a draft model's layers are rounded to, or `stored` if that is as small."""
    return _COARSE if stored in RECORDS and bits(stored) > _MOST_BITS else stored


def is_coarser(quantize: str, vocab_size: int, engine: str) -> bool:
    """Return whether a model has another form when it is loaded as a draft model."""
    return engine == "native" and (quantize == BLOCKS or head_tokens(vocab_size) > 0)


def as_draft(quantize: str) -> str:
    """Return the name of this form, under which its measurements are saved."""
    return f"{quantize} as a draft model"


def draft_bytes(header: Header, vocab_size: int) -> int:
    """Return the bytes of a registered model's weights as a draft model; 0 if they cannot be computed in blocks."""
    if not header.weight_bytes:
        return 0
    few, found = head_tokens(vocab_size), 0
    for name, parts in header.blocks.items():
        for part in parts:
            if len(part.shape) == 1:
                found += 4 * part.shape[0]
            elif name != "lm_head.weight" or not few:
                stored = part.type if part.type in RECORDS else "Q8_0"
                kind = stored if name in TABLES or stored != part.type else draft_blocks(stored)
                found += Tensor(BLOCKS, kind, *part.shape).bytes
    return found + (Tensor(BLOCKS, HEAD_BLOCKS, few, header.blocks["embed_tokens"][0].shape[1]).bytes if few else 0)


def draft_in_words(numbers: str, vocab_size: int) -> str:
    """Return a description of a draft model: `4.0 bits per weight, 36,864 of 151,936 tokens`. It begins with
    `numbers`."""
    few = head_tokens(vocab_size)
    return ", ".join([numbers] * bool(numbers) + [f"{few:,} of {vocab_size:,} tokens"] * bool(few))
