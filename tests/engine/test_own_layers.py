"""The layers that draft are found once for each model, saved, and chosen by the cost of forwards."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden import matching
from machines import LITTLE, SEVEN, machine, unfetched
from tiny_models import Tiny

from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.cost import ForwardCosts
from localspec.choosing.measure import LAYERS, MeasurementCache
from localspec.config import Settings
from localspec.decoding.calibration import Calibration
from localspec.decoding.measuring import finished
from localspec.engine import loading
from localspec.engine.loading import calibration_of, load_layers
from localspec.engine.model_profile import ModelProfile
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.store.store import Store
from localspec.weights.fingerprint import Identity

LLAMA = "llama-grouped-dynamic"
COSTS = ForwardCosts((1, 64), (256,), ((1.0, 1.5),))


def choice(drafter: str = "layers", **settings: object) -> Choice:
    return choose(unfetched(LITTLE), Settings(drafter=drafter, **settings), machine())


def profile(store: Store | None) -> ModelProfile:
    return ModelProfile(MeasurementCache(store, Reporter(pytest.fail)), Identity(Path()), "subject")


@pytest.mark.slow
def test_the_probe_is_made_once_and_its_layers_are_used(tiny, store, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny(LLAMA).target
    first = load_layers(choice(), target, profile(store), COSTS)
    assert first is not None and first.kept_layers == (0, 2), "outer layers, until a probe was made"
    found = finished(loading.probing(target, profile(store)))
    assert [len(one.layers) for one in found] == [2, 1]
    assert profile(store).recall(LAYERS) == found
    again = load_layers(choice(), target, profile(store), COSTS)
    assert again is not None and again.kept_layers in [one.layers for one in found]


def test_what_its_confidence_was_worth_is_kept(tiny: Tiny, store) -> None:
    kept = Calibration.from_json([[True, 1, 0, 3, 5.0, 9.0]])
    profile(store).remember(LAYERS, [MeasuredLayers((0, 2), (0.5, 0.1))])
    profile(store).remember(calibration_of(None), kept)
    drafter = load_layers(choice(), tiny(LLAMA).target, profile(store), COSTS)
    assert drafter is not None and drafter.calibration.as_json() == kept.as_json()


def test_other_drafters_take_no_probe(tiny: Tiny) -> None:
    assert load_layers(choice("phrases"), tiny(LLAMA).target, profile(None), COSTS) is None


def test_without_room_for_a_reply_outer_layers_stay(tiny: Tiny, store, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny(LLAMA).target
    monkeypatch.setattr(target, "context", 8)
    assert finished(loading.probing(target, profile(store))) == []
    drafter = load_layers(choice(), target, profile(store), COSTS)
    assert drafter is not None and drafter.kept_layers == (0, 2)


def test_a_model_of_one_layer_is_refused() -> None:
    sizes = SimpleNamespace(num_layers=1, need_layers_alone=lambda _: None)
    target: Any = SimpleNamespace(compute=SimpleNamespace(target=SimpleNamespace(sizes=sizes)))
    with pytest.raises(UsageMistake, match=matching("drafter_layers_needs_model_2")):
        load_layers(choice(), target, profile(None), COSTS)


def test_stored_layers_that_are_not_layers_are_found_again(tmp_path: Path) -> None:
    one = MeasuredLayers((0, 2), (0.5, 0.1))
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        cache = MeasurementCache(store)
        for stored in (None, [], {}, [{"layers": [0]}], [{"layers": "x", "shares": [1]}], "odd"):
            store.measurements.remember(LAYERS.name, "here", stored)
            assert cache.recall(LAYERS, "here") is None, stored
        cache.remember(LAYERS, "here", [one])
        assert cache.recall(LAYERS, "here") == [one]


def test_the_layers_are_taken_that_promise_most_by_what_their_forwards_cost() -> None:
    few, many = MeasuredLayers((0, 31), (0.5, 0.1)), MeasuredLayers(tuple(range(16)), (0.6, 0.1))
    flat, steep = (ForwardCosts((1, 64), (256,), ((0.05, last),)) for last in (0.05, 9.0))
    for costs in (flat, steep):
        assert loading.best_layers([few, many], SEVEN, costs, 16) is few, "for a tenth less they read an eighth"
    better = replace(many, shares=(0.99, 0.0))
    assert loading.best_layers([few, better], SEVEN, flat, 16) is better
