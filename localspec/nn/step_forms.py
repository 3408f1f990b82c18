"""In which form steps are computed on a GPU: the quickest that a self-check finds to have the bits of the plainest."""

from collections.abc import Sequence

import torch

from localspec.decoding.tree import DraftTree
from localspec.errors import first_line, out_of_memory
from localspec.nn.cache import KVCache
from localspec.nn.logits import TorchLogits
from localspec.nn.static_forward import StaticForward
from localspec.nn.target import Target
from localspec.policy.choice import StepForm
from localspec.policy.prediction import BUCKET, STATIC_ROWS

# Tokens of text: twice what one recording serves, and then what another one does.
LENGTHS = (BUCKET - 40, 3, 2 * BUCKET + 1)
QUICKER: tuple[StepForm, ...] = ("static", "captured")
ROWS = (1, 5, 16)  # of a single token, of a few that are filled up, of a tree


def find_step_form(target: Target) -> tuple[StepForm, str | None]:
    """Returns the quickest form with the right bits, and why none that is quicker serves; the target then has it.

    Raises MemoryError where there is no memory to look; the target then has the form before the one that was looked at.
    """
    form: StepForm = "eager"
    why: str | None = None
    if not StaticForward.reads(target.cache(1), 1):
        return form, why
    try:
        for quicker in QUICKER:
            if (why := _difference(target, quicker)) is not None:
                break
            form = quicker
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        why = first_line(error).rstrip(".")
    finally:
        target.use_step_form(form)
    return form, why


@torch.inference_mode()
def _difference(target: Target, form: StepForm) -> str | None:
    """Compares a form with the eager one on the same rows; returns what is wrong, None where all bits are the same."""
    cache, before = target.cache(LENGTHS[-1] + STATIC_ROWS[-1]), target.row_multiple
    try:
        expected = []
        target.use_step_form("eager")
        cache.fill(torch.Generator().manual_seed(0))
        for rows, length in _cases():
            target.row_multiple = next(one for one in STATIC_ROWS if one >= rows)  # filled up alike
            expected.append(_parts(target, cache, rows, length))
        target.row_multiple = 1
        target.use_step_form(form)
        cache.fill(torch.Generator().manual_seed(0))  # some tokens were written over
        for (rows, length), plain in zip(_cases(), expected, strict=True):
            found = _parts(target, cache, rows, length)
            if target.step_trouble:
                return target.step_trouble
            if not all(torch.equal(one, other) for one, other in zip(found, plain, strict=True)):
                return f"the results of {rows} rows after {length} tokens are not the same to the bit"
        return None
    finally:
        target.row_multiple = before


def _cases() -> list[tuple[int, int]]:
    return [(rows, length) for rows in ROWS for length in LENGTHS]


def _parts(target: Target, cache: KVCache, rows: int, length: int) -> Sequence[torch.Tensor]:
    """Returns logits, states and what is written of a tree of so many rows, after so many tokens."""
    cache.assume(length)
    tokens = [(37 * row + length) % target.vocab_size for row in range(rows)]
    parents = [-1, *((row - 1) // 2 if target.branches else row - 1 for row in range(1, rows))]
    output = target.forward(DraftTree(tokens, parents), cache)
    assert isinstance(output.logits, TorchLogits)
    return output.logits.rows.clone(), output.hidden.rows.clone(), cache.rows(range(rows))
