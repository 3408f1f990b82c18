"""The drafter that is built for a choice, and the search for its hyperparameters."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from machines import LITTLE, machine, unfetched
from measured_at_once import at_once
from tiny_models import Tiny, byte_tokenizer, read, write
from transformers import LlamaConfig

from localspec.choosing import measure
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.cost import ForwardCosts
from localspec.choosing.measure import MeasurementCache
from localspec.config import Settings
from localspec.decoding.measuring import finished
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.lookahead import Lookahead
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.engine import assemble
from localspec.engine.assemble import (
    LoadedDraftModel,
    drafter_of,
    known_hyperparameters,
    pool_of,
    tuning,
)
from localspec.engine.model_profile import ModelProfile
from localspec.events import Reporter
from localspec.models.drafter_kinds import kinds
from localspec.store.store import Store
from localspec.weights.fingerprint import Identity

LLAMA = "llama-grouped-dynamic"
COSTS = ForwardCosts((1, 64), (256,), ((1.0, 1.5),))
CHOSEN = Hyperparameters(3, 2, 4, 2)


def asked(drafter: str, **settings: object) -> Choice:
    """Return a choice of this drafter; its small model is put in by hand."""
    kind, _, _ = drafter.partition("+")
    plain = choose(unfetched(LITTLE), Settings(drafter="phrases", **settings), machine())
    return replace(plain, drafter=drafter, parts=plain.parts or (Settings().ouroboros if kind == "ouroboros" else ()))


def profile(store: Store | None, subject: str, notice: Callable[[str], None] = pytest.fail) -> ModelProfile:
    return ModelProfile(MeasurementCache(store, Reporter(notice)), Identity(Path()), subject)


def small(model: Tiny, store: Store | None = None, subject: str = "small") -> LoadedDraftModel:
    return LoadedDraftModel(model.target, profile(store, subject), COSTS)


def of(model: Tiny, choice: Choice, pool: PhrasePool) -> object:
    pair = small(model) if choice.drafter.startswith(kinds("draft model")) else None
    return drafter_of(choice, model.target, pool, (), pair, CHOSEN)


def test_every_name_is_another_drafter(tiny) -> None:
    model, pool = tiny(LLAMA), PhrasePool()
    assert isinstance(of(model, asked("none"), pool), Autoregressive)
    phrases = of(model, asked("phrases"), pool)
    assert isinstance(phrases, WithPhrases) and phrases.pool is pool
    alone, beside = of(model, asked("lookahead"), pool), of(model, asked("lookahead+phrases"), pool)
    assert isinstance(alone, WithPhrases) and isinstance(alone.inner, Lookahead)
    assert alone.pool is not pool, "without other phrases the window looks up only those that it collected"
    assert isinstance(beside, WithPhrases) and isinstance(beside.inner, Lookahead) and beside.pool is pool
    drafted = of(model, asked("draft_model"), pool)
    assert isinstance(drafted, DraftModel) and isinstance(drafted.inner, Autoregressive) and drafted.length is None
    with_phrases = of(model, asked("draft_model+phrases"), pool)
    assert isinstance(with_phrases, WithPhrases) and with_phrases._anywhere and with_phrases.pool is pool
    assert isinstance(with_phrases.inner, DraftModel) and isinstance(with_phrases.inner.inner, WithPhrases)
    fixed = of(model, asked("draft_model", draft_max=5), pool)
    assert isinstance(fixed, DraftModel) and fixed.length is None


@each("left_out", Settings().ouroboros)
def test_each_part_of_ouroboros_can_be_left_out(tiny, left_out: str) -> None:
    model, pool = tiny(LLAMA), PhrasePool()
    parts = tuple(part for part in Settings().ouroboros if part != left_out)
    choice = replace(asked("ouroboros"), parts=parts)
    drafter = of(model, choice, pool)
    drafted = drafter.inner if isinstance(drafter, WithPhrases) else drafter
    assert isinstance(drafted, DraftModel)
    assert isinstance(drafter, WithPhrases) == (left_out != "lengthening")
    assert isinstance(drafted.inner, WithPhrases) == (left_out != "accelerating")
    if isinstance(drafter, WithPhrases):
        assert drafter._anywhere == (left_out != "beside")
    assert pool_of(choice, model.target, small(model))._verification == (left_out != "verification")


@pytest.mark.slow
def test_what_is_found_belongs_to_the_pair_and_to_what_is_searched(tiny, store: Store, monkeypatch) -> None:
    model, found = tiny(LLAMA), iter([replace(CHOSEN, draft=number) for number in range(1, 9)])
    monkeypatch.setattr(assemble, "searching", at_once(lambda *_: next(found)))
    own = profile(store, "target")
    choice, one, other = asked("ouroboros"), small(model, store), small(model, store, "another small one")
    for kept in (own, one.profile, other.profile):
        kept.remember(measure.COSTS, COSTS)

    def known(choice: Choice, pair: LoadedDraftModel) -> int:
        return known_hyperparameters(choice, pair, own).draft

    def searched(choice: Choice, pair: LoadedDraftModel) -> int:
        return finished(tuning(choice, model.target, pair, own, COSTS)).draft

    assert known(choice, one) == Hyperparameters().draft == 14, "without a search a draft has the paper's length"
    assert [searched(choice, one), known(choice, one)] == [1, 1]
    assert known(choice, other) == 14, "another draft model is another pair"
    assert searched(choice, other) == 2
    assert known(replace(choice, parts=("lengthening",)), one) == 14
    assert searched(choice, one) == 3
    assert [known(choice, one), known(choice, other)] == [3, 2]


def test_where_no_reply_has_room_nothing_is_searched(tiny, store: Store, monkeypatch) -> None:
    model = tiny(LLAMA)
    monkeypatch.setattr(assemble, "searching", lambda *_: pytest.fail("it was searched"))
    choice, told = asked("ouroboros"), []
    monkeypatch.setattr(model.target, "context", 30)
    own = profile(store, "t", told.append)
    assert finished(tuning(choice, model.target, small(model, store), own, COSTS)) is None
    assert len(told) == 1 and "context of 30 tokens" in told[0]


@pytest.mark.slow
def test_phrases_of_a_search_hold_no_id_that_the_small_model_lacks(
    tiny, store: Store, monkeypatch, tmp_path: Path
) -> None:
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        vocab_size=300, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model, little = tiny(LLAMA), read(write(tmp_path / "small", config, byte_tokenizer(), seed=5))
    pools: list[PhrasePool] = []

    def search(build, workload, names) -> Hyperparameters:
        for prompt, reply in workload.exchanges:
            assert len(reply) <= assemble.REPLY and len(prompt) + len(reply) <= model.target.context
        pools.append(build(CHOSEN)[0].pool)
        return CHOSEN

    monkeypatch.setattr(assemble, "searching", at_once(search))
    measured = profile(store, "target")
    for parts in (Settings().ouroboros, ("lengthening",)):
        choice = replace(asked("ouroboros"), parts=parts)
        finished(tuning(choice, model.target, small(little, store), measured, COSTS))
    assert [pool._vocabulary for pool in pools] == [300, 300]
    assert [pool._verification for pool in pools] == [True, False]
