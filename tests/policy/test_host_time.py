"""Python beside forwards: what it makes of the choice where forwards are as short as itself, and where they are long."""

from dataclasses import replace

import pytest
from machines import SEVEN, Told, cpu, flat, unfetched

from localspec.models.model import Model
from localspec.models.s3d_prediction import KeptLayers
from localspec.policy import host_time, prediction
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, ReplyStats
from localspec.policy.own_layers import OwnLayers
from localspec.policy.prediction import Acceptance
from localspec.policy.ranking import Precision, RunPlan, best, run_plans

REAL = {name: getattr(host_time, name) for name in ("STEP", "TREE", "DRAFT", "PHRASES")}
EIGHT = Precision(cpu(24), "bf16", "int8")
MODEL = Model(replace(unfetched(), path=unfetched().path), SEVEN, SEVEN.parameters)


@pytest.fixture(autouse=True)
def real_host(free_host, monkeypatch):
    for name, seconds in REAL.items():
        monkeypatch.setattr(host_time, name, seconds)


def plans(costs: ForwardCosts, **replies: ReplyStats) -> dict[str, RunPlan]:
    known = ModelMeasurements(costs, replies)
    found = run_plans(MODEL, [EIGHT], Told({("cpu", "int8"): known}), most=16)
    return {plan.candidate.name: plan for plan in found if plan.candidate.published is None}


def test_a_step_takes_what_python_takes_too() -> None:
    assert plans(flat(2e-4))["none"].speed == pytest.approx(1 / (2e-4 + REAL["STEP"]))
    speed, nodes = prediction.speed(
        flat(2e-4), Acceptance((0.9, 0.5), "known"), lambda nodes: 1e-4 if nodes else 0.0, 16
    )
    assert nodes == 2 and speed == pytest.approx(2.4 / (1e-4 + 2e-4 + REAL["STEP"] + REAL["TREE"]))


def test_each_forward_of_own_layers_takes_what_python_takes() -> None:
    one = OwnLayers(KeptLayers((0, 3), (0.5,)), forwards=3, share=0.4, speed=0.0)
    assert one.draft_seconds(flat(2e-4))(2) == pytest.approx(2 * (0.4 * 2e-4 + REAL["DRAFT"]))


def test_what_replies_took_beside_their_forwards_counts_as_it_was_measured() -> None:
    said = ReplyStats(length=1.5, nodes=3, drafting=0.3, beside=0.2)
    assert plans(flat(2e-4), phrases=said)["phrases"].speed == pytest.approx(1.5 / (2e-4 * 1.5))


# Milliseconds of forwards of 1, 2, 4, 8 and 16 rows: of a model that a cache of the processor holds, and of one in memory.
TINY = ForwardCosts((1, 2, 4, 8, 16), (256,), ((2.0e-4, 2.1e-4, 2.6e-4, 3.7e-4, 7e-4),))
LARGE = ForwardCosts((1, 2, 4, 8, 16), (256,), ((0.055, 0.056, 0.059, 0.064, 0.085),))


def test_phrases_are_for_models_whose_steps_are_longer_than_looking_for_them() -> None:
    assert best(list(plans(LARGE).values())).candidate.name == "phrases"
    assert best(list(plans(TINY).values())).candidate.name == "none"
