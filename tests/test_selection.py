"""What is loaded for what was asked, and what is refused."""

from pathlib import Path

import pytest

from localspec import hardware
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.registry import TargetCard
from localspec.selection import AUTO_NODES, MOST_NODES, choose

CARD, BIG = TargetCard("demo", Path("nowhere"), None, ""), 500_000_000


@pytest.fixture
def machine(monkeypatch):
    """A machine with these devices, and bf16 instructions or none."""

    def made_of(*devices: str, bf16: bool = True) -> None:
        monkeypatch.setattr(hardware, "devices", lambda: [*devices, "cpu"])
        monkeypatch.setattr(hardware, "cpu_computes_bf16", lambda: bf16)

    made_of()
    return made_of


def test_auto_takes_phrases_on_the_fastest_device_in_its_own_format(machine):
    choice = choose(CARD, Settings(), BIG)
    assert (choice.drafter, choice.nodes, choice.device, choice.dtype) == ("phrases", AUTO_NODES, "cpu", "bf16")
    machine(bf16=False)
    assert choose(CARD, Settings(), BIG).dtype == "fp32"
    machine("cuda:0", "cuda:1", bf16=False)
    assert (choose(CARD, Settings(), BIG).device, choose(CARD, Settings(), BIG).dtype) == ("cuda:0", "bf16")
    assert choose(CARD, Settings(device="cuda"), BIG).device == "cuda:0"
    assert choose(CARD, Settings(device="cuda:1", dtype="fp16"), BIG).dtype == "fp16"
    assert choose(CARD, Settings(device="cpu"), BIG).device == "cpu"


def test_a_small_model_on_a_processor_is_exact_rather_than_a_little_faster(machine):
    assert choose(CARD, Settings(), 7_000_000).dtype == "fp32"
    assert choose(CARD, Settings(dtype="bf16"), 7_000_000).dtype == "bf16"
    machine("cuda:0")
    assert choose(CARD, Settings(), 7_000_000).dtype == "bf16"


def test_a_number_of_nodes_is_a_fixed_experiment_and_none_of_them_is_plain_decoding(machine):
    assert choose(CARD, Settings(draft_max=3), BIG).nodes == 3
    for settings in (Settings(draft_max=0), Settings(drafter="none")):
        assert (choose(CARD, settings, BIG).drafter, choose(CARD, settings, BIG).nodes) == ("none", 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(device="cuda:3"), "cuda:3"),
        (Settings(device="mps"), "mps"),
        (Settings(dtype="fp16"), "fp16"),
        (Settings(drafter="medusa"), "medusa"),
        (Settings(drafter="none", draft_max=4), "4"),
        (Settings(draft_max=MOST_NODES + 1), str(MOST_NODES + 1)),
        (Settings(quantize="nf4"), "nf4"),
    ],
)
def test_what_is_named_and_cannot_run_is_refused_with_its_value(machine, settings, named):
    with pytest.raises(UsageMistake, match=named):
        choose(CARD, settings, BIG)


def test_a_busy_machine_leaves_fewer_cores_but_always_one(monkeypatch):
    readings = iter([(0.0, 0.0, 0.0), (10.0, 20.0, 10.0), (20.0, 60.0, 20.0), (30.0, 60.5, 20.5), (30.01, 99.0, 20.5)])
    monkeypatch.setattr(hardware.IdleCores, "_read", staticmethod(lambda: next(readings)))
    monkeypatch.setattr(hardware, "physical_cores", lambda: 4)
    idle = hardware.IdleCores()
    assert idle() == 3, "one core's worth of somebody else's work"
    assert idle() == 1, "three cores' worth leave one"
    assert idle() == 4, "our own work is ours"
    assert idle() == 4, "too short a time to tell"


def test_this_machine_has_cores_memory_and_a_processor():
    assert hardware.physical_cores() >= 1
    assert hardware.free_memory() > 0
    assert hardware.peak_memory() > 1_000_000
    assert hardware.devices()[-1] == "cpu"
