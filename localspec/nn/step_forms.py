"""Chooses how decoding steps run on a GPU: in the fastest form that gives the same bits as unrecorded steps."""

from collections.abc import Sequence

import torch

from localspec.choosing.choice import StepForm
from localspec.choosing.fit import BUCKET, STATIC_ROWS
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.errors import first_line, out_of_memory
from localspec.nn.cache import KVCache
from localspec.nn.logits import TorchLogits
from localspec.nn.static_forward import StaticForward
from localspec.nn.target import Target

# Tokens of text: two lengths that share a recording, and one that needs another.
LENGTHS = (BUCKET - 40, 3, 2 * BUCKET + 1)
QUICKER: tuple[StepForm, ...] = ("static", "captured")
FEW = (1, 5, 16)  # rows: a single token, a few that are padded, a tree
SAMPLED = Sampling(0.9, seed=1), Sampling(1.1, top_p=0.9, seed=2), Sampling(0.8, top_k=40, min_p=0.01, seed=3)


def find_step_form(target: Target) -> tuple[StepForm, str | None]:
    """Let a target use the fastest form of steps with the bits of `eager`. Return (form, why no faster one works).

    Raises MemoryError if there is no memory for the check; the target then uses the last form that passed the check.
    """
    form: StepForm = "eager"
    why: str | None = None
    if not StaticForward.can_read(target.cache(1), 1):
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
    """Compare steps in a form with `eager` steps of the same rows. Return a clause about a difference, or None."""
    cache, multiple = target.cache(LENGTHS[-1] + STATIC_ROWS[-1]), target.row_multiple
    try:
        expected = []
        target.use_step_form("eager")
        for rows, length in _cases(cache):
            target.row_multiple = next(count for count in STATIC_ROWS if count >= rows)  # padded like the static form
            expected.append(_parts(target, cache, rows, length))
        target.row_multiple = 1
        target.use_step_form(form)
        for (rows, length), plain in zip(_cases(cache), expected, strict=True):
            parts = _parts(target, cache, rows, length)
            if target.step_trouble:
                return target.step_trouble
            if not all(torch.equal(part, plain_part) for part, plain_part in zip(parts, plain, strict=True)):
                return f"the results of {rows} rows after {length} tokens differ from those of unrecorded steps"
        return None
    finally:
        target.row_multiple = multiple


def _cases(cache: KVCache) -> list[tuple[int, int]]:
    cases = [(rows, LENGTHS[0]) for rows in (*STATIC_ROWS, 3) if StaticForward.can_read(cache, rows)]
    return [*cases, *((rows, length) for rows in FEW for length in LENGTHS)]


def _parts(target: Target, cache: KVCache, rows: int, length: int) -> Sequence[torch.Tensor]:
    """Run a step with a tree of `rows` rows after `length` tokens, and a draft of the same tokens by two of the model's
    layers. Return all outputs that decoding uses."""
    cache.fill(torch.Generator().manual_seed(rows))  # an earlier check may have overwritten some tokens
    cache.assume(length)
    tokens = [(37 * row + length) % target.vocab_size for row in range(rows)]
    parents = [-1, *((row - 1) // 2 if target.branches else row - 1 for row in range(1, rows))]
    output = target.forward(DraftTree(tokens, parents), cache)
    assert isinstance(output.logits, TorchLogits)
    parts = [output.logits.rows.clone(), output.hidden.rows.clone(), cache.rows(range(rows))]
    picked = [output.logits.picks([length + 1] * rows, sampling) for sampling in SAMPLED]
    numbers = [*output.logits.argmax(), output.logits.finite(), output.hidden.finite()]
    numbers += [picks[row] for picks in picked for row in {0, rows - 1}]
    model, layers = target.compute.target, len(target.transformer.layers)
    # If layers read more than embeddings, they cannot draft. Eager drafts are not padded.
    if target.branches and not model.sizes.per_layer_inputs[0] and rows in STATIC_ROWS:
        states = model.read_rows(model.embed(tokens), cache, sorted({0, layers - 1}))
        parts += [states, cache.rows(range(rows))]
    if not target.branches:  # the effect of part of the rows on recurrent layers shows in the next forward
        cache.keep(range(rows - rows // 2))
        multiple, target.row_multiple = target.row_multiple, 1
        output = target.forward(DraftTree.chain(tokens[:1]), cache)
        target.row_multiple = multiple
        assert isinstance(output.logits, TorchLogits)
        parts += [output.logits.rows.clone(), output.hidden.rows.clone()]
    return [*parts, torch.tensor(numbers)]
