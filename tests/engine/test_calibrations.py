"""Calibrations of drafters outlive the session: of phrases, of a draft model."""

import pytest

from localspec.config import load
from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.merged import Merged
from localspec.drafters.phrases import WithPhrases
from localspec.engine.engine import Engine
from localspec.events import Done
from localspec.models.registry import resolve
from localspec.store.store import Store

QUESTION = "Tell me a long story about a dog and a cat."


def loaded(store: Store, drafter: str) -> Engine:
    return Engine.open(load(flags={"drafter": drafter, "context": 512}), resolve("demo"), store=store)


@pytest.mark.slow
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
        "phrases have one calibration, whatever they are combined with"
    )


@pytest.mark.slow
def test_what_several_drafters_learned_together_is_kept(store: Store) -> None:
    first = loaded(store, "semi+s3d+phrases")
    assert first.choice.drafter == "s3d+semi+phrases"
    drafter = first.session.drafter
    assert isinstance(drafter, WithPhrases) and isinstance(drafter.inner, Merged)
    first.session.budget = Budget(8)
    *_, done = first.chat([{"role": "user", "content": QUESTION}], Sampling(), Limits(96))
    assert isinstance(done, Done)
    assert "s3d+semi" in done.statistics.sources, "the statistics say which drafter proposed a token"
    parts = [drafter.inner, *drafter.inner.drafters]
    learned = [sorted(part.calibration.as_json()) for part in parts]  # type: ignore[attr-defined]
    assert all(learned)
    later = loaded(store, "s3d+semi").session.drafter
    assert isinstance(later, Merged)
    again = [sorted(part.calibration.as_json()) for part in (later, *later.drafters)]  # type: ignore[attr-defined]
    assert again == learned, "with phrases and without they are the same drafters"
