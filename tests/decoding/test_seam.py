"""Decoding knows no backend: a table of chances is a model like any other, and nothing loads torch for it.

    python tests/decoding/test_seam.py

decodes with every untrained drafter, and fails if torch or transformers is imported.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from clocks import PATIENCE
from each import each
from table_model import TableModel

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.limits import Limits
from localspec.decoding.logits import NumpyLogits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree, sampled_tree
from localspec.drafters.ingredients import Ingredients
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import out_of_memory
from localspec.events import Done, Statistics, Text
from localspec.machine.memory import give_back
from localspec.models.drafter_kinds import TABLE, kind_of

LETTERS, PROMPT, NODES = 5, [3, 1, 4, 1, 2, 3, 1], 7
UNTRAINED = [kind for kind in TABLE if kind.takes in ("nothing", "draft model")]  # a table has no layers to probe
NAMES = [kind.name for kind in UNTRAINED] + [f"{kind.name}+phrases" for kind in UNTRAINED if not kind.has_phrases]
PARTS = ("accelerating", "lengthening", "beside", "verification", "history")
SAMPLINGS = {
    "greedy": Sampling(),
    "seeded": Sampling(0.9, seed=3),
    "cut": Sampling(1.1, top_k=4, top_p=0.95, min_p=0.02, seed=4),
    "rejection": Sampling(0.9, seed=5, rule="rejection"),  # drafts that were not sampled follow the exact rule
    "typical": Sampling(1e-6, seed=6, rule="typical"),  # so cold that it is greedy decoding
}


def kindred(model: TableModel) -> TableModel:
    """Return a model that mostly picks the same tokens."""
    other = TableModel(model.vocab_size, seed=0)
    other.logits = model.logits + 0.5 * other.logits
    return other


def drafter_of(name: str, model: TableModel) -> Drafter:
    """Return the drafter as the engine builds it."""
    kind, pool = kind_of(name), PhrasePool((), None, model.vocab_size)
    small = kindred(model) if kind.takes == "draft model" else None
    built: Drafter = import_module(kind.file).build(
        Ingredients(model, pool, name.endswith("+phrases"), small, parts=PARTS, fixed=True)
    )
    return WithPhrases(built, pool, anywhere=small is not None) if name.endswith("+phrases") else built


def said(model: TableModel, drafter: Drafter, sampling: Sampling, count: int) -> tuple[list[int], Statistics]:
    """Return the ids of one reply; text, cache and tokens must end at the same place."""
    session = Session(model, drafter, Budget(NODES))
    *events, done = session.generate(PROMPT, sampling, Limits(count))
    assert isinstance(done, Done)
    ids = [token for event in events if isinstance(event, Text) for token in event.tokens]
    assert session.tokens == [*PROMPT, *ids] and session.cache.length == len(session.tokens) - 1
    return ids, done.statistics


class Sampled:
    """A drafter that draws trees for the rule `rejection`, from the same distribution at every depth."""

    nbytes, target_layers = 0, ()

    def __init__(self, vocab_size: int) -> None:
        self.logits = NumpyLogits(np.random.default_rng(9).normal(0, 1, (2, vocab_size)))

    def observe(self, step: Step) -> None:
        """Nothing."""

    def rewind(self, length: int) -> None:
        """Nothing."""

    def draft(self, context: Context) -> DraftTree:
        """Return several chains of two tokens."""
        position = len(context.committed)
        return sampled_tree(context.root, self.logits, context.nodes, context.sampling, position, "sampled")


@pytest.mark.slow
@each("how", SAMPLINGS)
@each("name", NAMES)
def test_every_untrained_drafter_leaves_the_text_as_it_is(name: str, how: str) -> None:
    model, sampling = TableModel(LETTERS, seed=1), SAMPLINGS[how]
    plain, _ = said(model, drafter_of("none", model), sampling, 60)
    if how in ("greedy", "typical"):
        assert plain == model.greedy(PROMPT, 60)
    else:
        assert len(set(plain)) == LETTERS
    ids, statistics = said(model, drafter_of(name, model), sampling, 60)
    assert ids == plain
    assert (statistics.acceptance_length > 1.2) == (name != "none"), "much is drafted, and much of it is right"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "top_k"), [("draft_model", 3), ("phrases", 0), ("rejection", 0), ("rejection", 3)])
def test_three_tokens_have_the_chances_of_the_table(name: str, top_k: int) -> None:
    import torch
    from distributions import assert_drawn_from

    model = TableModel(3 if top_k == 0 else 4, seed=2)
    prompt, counts = [token % model.vocab_size for token in PROMPT], np.zeros((model.vocab_size,) * 3)
    for seed in range(400):
        rule = "rejection" if name == "rejection" else "exact"
        drafter: Drafter = Sampled(model.vocab_size) if name == "rejection" else drafter_of(name, model)
        session = Session(model, drafter, Budget(NODES))
        *_, done = session.generate(prompt, Sampling(0.9, top_k, seed=seed, rule=rule), Limits(3))
        counts[done.statistics.token_ids] += 1
    assert_drawn_from(torch.from_numpy(model.joint(prompt, 0.9, top_k)), torch.from_numpy(counts))


def everything() -> Sequence[str]:
    """Decode with every untrained drafter; return the modules of torch and transformers that are loaded then."""
    model = TableModel(LETTERS, seed=1)
    plain, _ = said(model, drafter_of("none", model), Sampling(), 40)
    for name in NAMES:
        assert said(model, drafter_of(name, model), Sampling(), 40)[0] == plain
    import_module("localspec.drafters.ouroboros_tuning")
    give_back("cpu")
    assert out_of_memory(MemoryError()) and not out_of_memory(RuntimeError("a bug"))
    return [name for name in ("torch", "transformers") if name in sys.modules]


@pytest.mark.slow
def test_no_drafter_that_is_not_trained_loads_torch() -> None:
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, here],
        cwd=here.parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here.parents[1], here.parents[2])))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


if __name__ == "__main__":
    print(everything())
