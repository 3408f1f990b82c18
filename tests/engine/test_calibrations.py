"""What drafters' confidence was worth outlives the session: phrases', a draft model's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.config import load
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Limits
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.phrases import WithPhrases
from localspec.engine.engine import Engine
from localspec.models.registry import resolve
from localspec.store.store import Store

QUESTION = "Tell me a long story about a dog and a cat."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "localspec.db", pytest.fail) as opened:
        yield opened


def loaded(store: Store, drafter: str) -> Engine:
    return Engine.open(load(flags={"drafter": drafter, "context": 512}), resolve("demo"), store=store)


def test_a_later_session_begins_with_what_an_earlier_one_learned(store: Store) -> None:
    first = loaded(store, "draft_model+phrases")
    drafter = first.session.drafter
    assert isinstance(drafter, WithPhrases) and isinstance(drafter.inner, DraftModel)
    assert drafter.calibration.as_json() == drafter.inner.calibration.as_json() == []
    first.session.budget = Budget(8)  # drafts whatever it costs
    for _ in first.chat([{"role": "user", "content": QUESTION}], Sampling(), Limits(96)):
        pass
    learned = drafter.calibration.as_json(), drafter.inner.calibration.as_json()
    assert all(learned)
    later = loaded(store, "draft_model+phrases").session.drafter
    assert isinstance(later, WithPhrases) and isinstance(later.inner, DraftModel)
    assert (later.calibration.as_json(), later.inner.calibration.as_json()) == learned
    alone = loaded(store, "phrases").session.drafter
    assert isinstance(alone, WithPhrases) and alone.calibration.as_json() == learned[0], (
        "phrases are the same beside all"
    )
