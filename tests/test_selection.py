"""What is loaded for what was asked, and what is refused."""

from pathlib import Path

import pytest
from checkpoints import write_checkpoint

from localspec import hardware
from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec.registry import TargetCard
from localspec.selection import AUTO_NODES, MOST_NODES, Choice, choose

CARD, BIG = TargetCard("demo", Path("nowhere"), None, ""), 500_000_000


@pytest.fixture
def machine(monkeypatch):
    """A machine with these devices, with bf16 instructions and int8 kernels or without."""

    def made_of(*devices: str, bf16: bool = True, int8: bool = True) -> None:
        monkeypatch.setattr(hardware, "devices", lambda: [*devices, "cpu"])
        monkeypatch.setattr(hardware, "cpu_computes_bf16", lambda: bf16)
        monkeypatch.setattr(hardware, "cpu_multiplies_int8", lambda: int8)

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


def test_auto_is_int8_on_a_processor_that_has_it_unless_the_model_is_small_or_a_format_is_named(machine):
    def taken(parameters: int = BIG, **settings) -> tuple[str, str]:
        choice = choose(CARD, Settings(**settings), parameters)
        return choice.dtype, choice.quantize

    assert taken() == ("bf16", "int8")
    assert taken(7_000_000) == ("fp32", "none")
    assert taken(quantize="none") == taken(dtype="bf16") == ("bf16", "none")
    assert taken(dtype="fp32") == ("fp32", "none")
    assert taken(7_000_000, quantize="int8") == ("fp32", "int8")
    assert taken(dtype="fp32", quantize="int8") == ("fp32", "int8")
    machine(int8=False)
    assert taken() == ("bf16", "none")
    machine("cuda:0")
    assert taken() == ("bf16", "none")
    assert taken(device="cpu") == ("bf16", "int8")
    machine(bf16=False)
    assert taken() == ("fp32", "int8")


def test_the_reason_is_a_sentence_about_what_is_taken(machine):
    assert "int8" in choose(CARD, Settings(), BIG).reason
    assert "int8" in choose(CARD, Settings(quantize="int8"), BIG).reason
    assert "int8" not in choose(CARD, Settings(quantize="none"), BIG).reason


def test_exact_is_as_asked(machine):
    assert not choose(CARD, Settings(), BIG).exact
    assert choose(CARD, Settings(exact=True), BIG).exact


def test_bytes_are_those_of_the_precision(machine):
    for settings, size in (
        (Settings(), 1), (Settings(quantize="none"), 2), (Settings(dtype="fp32"), 4),
        (Settings(dtype="fp32", quantize="int8"), 1),
    ):  # fmt: skip
        assert choose(CARD, settings, BIG).bytes == size * BIG


def test_an_embedding_keeps_its_precision_in_int8(machine):
    def taken(**settings) -> int:
        return choose(CARD, Settings(**settings), BIG, 100).bytes

    assert taken(dtype="fp32", quantize="int8") == BIG + 400
    assert taken() == taken(dtype="bf16", quantize="int8") == BIG + 200
    assert taken(dtype="fp32") == 4 * BIG and taken(dtype="bf16") == 2 * BIG


def test_a_small_model_on_a_processor_is_exact_rather_than_a_little_faster(machine):
    assert choose(CARD, Settings(), 7_000_000).dtype == "fp32"
    assert choose(CARD, Settings(dtype="bf16"), 7_000_000).dtype == "bf16"
    machine("cuda:0")
    assert choose(CARD, Settings(), 7_000_000).dtype == "bf16"


def test_a_number_of_nodes_is_a_fixed_experiment_and_none_of_them_is_plain_decoding(machine):
    assert (choose(CARD, Settings(draft_max=3), BIG).nodes, choose(CARD, Settings(draft_max=3), BIG).fixed) == (3, True)
    assert not choose(CARD, Settings(), BIG).fixed
    assert choose(CARD, Settings(draft_max=AUTO_NODES), BIG).fixed, "as many as auto has are a number all the same"
    for settings in (Settings(draft_max=0), Settings(drafter="none")):
        assert (choose(CARD, settings, BIG).drafter, choose(CARD, settings, BIG).nodes) == ("none", 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (Settings(device="cuda:3"), "cuda:3"),
        (Settings(device="mps"), "mps"),
        (Settings(dtype="fp16"), "fp16"),
        (Settings(drafter="medusaa"), "medusa"),
        (Settings(drafter="none", draft_max=4), "4"),
        (Settings(draft_max=MOST_NODES + 1), str(MOST_NODES + 1)),
        (Settings(quantize="nf4"), "nf4"),
        (Settings(quantize="int8", dtype="fp16"), "fp16"),
    ],
)
def test_what_is_named_and_cannot_run_is_refused_with_its_value(machine, settings, named):
    with pytest.raises(UsageMistake, match=named):
        choose(CARD, settings, BIG)


def test_int8_where_it_cannot_run_is_refused(machine):
    machine("cuda:0")
    for device in ("auto", "cuda"):
        with pytest.raises(UsageMistake, match="int8.*cuda:0"):
            choose(CARD, Settings(quantize="int8", device=device), BIG)
    assert choose(CARD, Settings(quantize="int8", device="cpu"), BIG).quantize == "int8"
    machine(int8=False)
    with pytest.raises(UsageMistake, match="int8"):
        choose(CARD, Settings(quantize="int8"), BIG)


def test_a_draft_model_has_a_precision_and_a_device_of_its_own(machine, tmp_path):
    small = str(write_checkpoint(tmp_path / "small"))  # of 44 parameters

    def drafting(drafter: str = f"ouroboros:{small}", **settings) -> Choice:
        return choose(CARD, Settings(drafter=drafter, **settings), BIG)

    choice = drafting()
    assert (choice.drafter, choice.quantize, choice.draft.dtype, choice.draft.quantize) == (
        "ouroboros",
        "int8",
        "fp32",
        "none",
    )
    assert choice.parts == Settings().ouroboros
    assert choice.bytes == choose(CARD, Settings(), BIG).bytes + 44 * 4
    assert drafting(f"draft_model:{small}+phrases").drafter == "draft_model+phrases"
    assert drafting(f"draft_model:{small}").parts == ()
    assert drafting(ouroboros=("history",)).parts == ("history",)
    exact = drafting(exact=True, context=9, quantize="none", dtype="bf16")
    assert (exact.draft.exact, exact.draft.context, exact.draft.dtype) == (False, None, "fp32"), "it changes no text"
    assert drafting(draft_max=0).draft is None
    machine("cuda:0")
    assert (drafting().device, drafting().draft.device) == ("cuda:0", "cuda:0")
    apart = drafting(draft_device="cpu")
    assert (apart.device, apart.draft.device) == ("cuda:0", "cpu")
    assert apart.bytes == drafting().bytes - drafting().draft.bytes, "bytes are those of the device"
    for wrong in ("mps", "cuda:7"):
        with pytest.raises(UsageMistake, match=f"no device '{wrong}' here for a draft model; set draft_device"):
            drafting(draft_device=wrong)
    assert drafting(draft_device="cuda").draft.device == "cuda:0"
    loose = choose(CARD, Settings(drafter=f"draft_model:{small}", accept="typical", temperature=1.0), BIG)
    assert loose.draft is not None, "the rule is the target's affair"


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


def test_int8_is_for_processors_and_their_default_beyond_small_models(machine, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_multiplies_int8", lambda: True)
    big = choose(CARD, Settings(), BIG)
    assert (big.quantize, big.dtype, big.bytes) == ("int8", "bf16", BIG)
    assert choose(CARD, Settings(), 7_000_000).quantize == "none"
    assert choose(CARD, Settings(quantize="int8"), 7_000_000).quantize == "int8"
    assert choose(CARD, Settings(quantize="none"), BIG).quantize == "none"
    named = choose(CARD, Settings(dtype="bf16"), BIG)
    assert (named.quantize, named.bytes) == ("none", 2 * BIG)
    monkeypatch.setattr(hardware, "cpu_multiplies_int8", lambda: False)
    assert choose(CARD, Settings(), BIG).quantize == "none"
    with pytest.raises(UsageMistake, match="no int8 kernels"):
        choose(CARD, Settings(quantize="int8"), BIG)
    machine("cuda:0")
    assert choose(CARD, Settings(), BIG).quantize == "none"
    with pytest.raises(UsageMistake, match="int8 is for processors.*cuda:0"):
        choose(CARD, Settings(quantize="int8"), BIG)


def test_what_was_asked_for_is_in_the_choice(machine):
    assert choose(CARD, Settings(), BIG).fixed is False
    assert choose(CARD, Settings(draft_max=8), BIG).fixed is True
    assert choose(CARD, Settings(exact=True), BIG).exact is True
    with pytest.raises(UsageMistake, match="nf4"):
        choose(CARD, Settings(quantize="nf4"), BIG)
