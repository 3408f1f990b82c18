"""How a request is loaded, or refused, on simulated machines."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from checkpoints import CONFIG, change_config, write_checkpoint
from each import each
from golden import matching, wording
from machines import BILLION, GIB, LITTLE, SEVEN, Told, apple, cpu, flat, gpu, machine, trained, unfetched

from localspec.choosing import choose as selection
from localspec.choosing import survey
from localspec.choosing.choice import Choice, LoadSpec
from localspec.choosing.choose import choices, choose, requested_drafter
from localspec.choosing.drafters import MOST_NODES
from localspec.choosing.fit import weights
from localspec.choosing.measure import ModelMeasurements, NoMeasurements, ReplyStats
from localspec.choosing.named import DrafterSpec
from localspec.choosing.plans import AUTO_NODES
from localspec.config import Settings
from localspec.errors import DoesNotFit, LocalspecError, NotHere, UsageMistake
from localspec.machine.machine import Device, Machine
from localspec.models.drafter_kinds import WEIGHTS, kinds
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.models.model import Model, model_of, small_model_of
from localspec.models.registry import NOWHERE, TargetCard, resolve
from localspec.models.shape import Shape
from localspec.weights.recipe import as_draft

CARD = unfetched(SEVEN)
NORMS = (2 * SEVEN.num_layers + 1) * SEVEN.hidden_size  # numbers that are in fp32 on a CPU
HERE = machine(cpu(48, bandwidth=200e9))  # int8 is comfortable here
SLOW = machine(cpu(32, bandwidth=20e9))
ALONE = machine(cpu(48, packings=(), bf16=False))  # a CPU for which there is no library


def taken(machine: Machine, card: TargetCard = CARD, **settings: object) -> tuple[str, str, str]:
    choice = choose(card, Settings(**settings), machine)
    return choice.device, choice.dtype, choice.quantize


def offered(settings: Settings, machine: Machine) -> list[Choice]:
    return choices(model_of(CARD), requested_drafter(settings, CARD), settings, machine)


@pytest.fixture
def old_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch report capability 7.0 for every GPU."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 0))


# -- auto ----------------------------------------------------------------------------------------------------------------


def test_auto_takes_phrases_in_the_precision_whose_m_is_best() -> None:
    choice = choose(CARD, Settings(), HERE)
    assert (choice.drafter, choice.nodes, choice.device, choice.quantize) == ("phrases", AUTO_NODES, "cpu", "int8")
    assert (choice.fixed, choice.exact, choice.context, choice.draft, choice.trained) == (
        False,
        False,
        None,
        None,
        (),
    )
    assert choice.cost_effectiveness is not None and choice.cost_effectiveness > 1
    assert taken(machine(cpu(32, packings=()))) == ("cpu", "bf16", "none")
    assert taken(ALONE) == ("cpu", "fp32", "none")
    assert taken(SLOW) == ("cpu", "bf16", "int4")


def test_what_any_memory_reads_quickly_needs_no_measurement() -> None:
    class NeverAsked(Told):
        def recalled_bandwidth(self, device: str) -> float | None:
            return None

        def bandwidth(self, device: str) -> float | None:
            pytest.fail("half a second for nothing")

    little = Model(TargetCard("little", NOWHERE, None, ""), LITTLE, LITTLE.parameters)
    where = machine(cpu(48, bandwidth=None))
    assert choices(little, DrafterSpec("auto"), Settings(), where, NeverAsked())[0].quantize == "int8"


@pytest.mark.slow
def test_four_bits_are_taken_where_eight_have_no_room_for_the_drafter_that_was_named(monkeypatch) -> None:
    own = trained("parallelspec", 10**9, revision="")
    monkeypatch.setattr("localspec.choosing.named.find_drafter", lambda *_: own)
    where = machine(cpu(12.5, bandwidth=200e9))
    assert choose(CARD, Settings(), where).quantize == "int8"
    beside = choose(CARD, Settings(drafter="parallelspec"), where)
    assert (beside.quantize, beside.trained) == ("int4", (own,))
    assert choose(CARD, Settings(drafter="parallelspec"), HERE).quantize == "int8"
    with pytest.raises(DoesNotFit, match=matching("in_int8_on_cpu")):
        choose(CARD, Settings(drafter="parallelspec", quantize="int8"), where)
    with pytest.raises(DoesNotFit, match="in int4 on cpu"):
        choose(CARD, Settings(drafter="parallelspec"), machine(cpu(9, bandwidth=200e9)))


def test_without_the_library_a_cpu_computes_in_what_torch_has(tmp_path: Path) -> None:
    choice = choose(CARD, Settings(), ALONE)
    assert (choice.engine, choice.loaded_bytes) == ("torch", 4 * SEVEN.parameters)
    assert choose(CARD, Settings(), HERE).engine == choose(CARD, Settings(quantize="none"), HERE).engine == "native"
    assert choose(CARD, Settings(), machine(gpu())).engine == "torch"
    assert taken(ALONE, dtype="bf16") == ("cpu", "bf16", "none")
    path = str(write_checkpoint(tmp_path / "small"))
    pair = choose(CARD, Settings(drafter=f"draft_model:{path}", draft_device="cpu"), machine(gpu(24), *ALONE.devices))
    assert pair.draft and (pair.engine, pair.draft.engine, pair.draft.dtype) == ("torch", "torch", "fp32")
    pair = choose(CARD, Settings(drafter=f"draft_model:{path}", draft_device="cpu"), machine(gpu(24), *HERE.devices))
    assert pair.draft and (pair.engine, pair.draft.engine, pair.draft.quantize) == ("torch", "native", "int8")
    assert not pair.draft.drafts


def test_a_draft_model_of_many_tokens_has_another_form_in_the_library_only(tmp_path: Path) -> None:
    change_config(path := write_checkpoint(tmp_path / "small"), vocab_size=200_000)
    for where, coarser in ((HERE, True), (ALONE, False)):
        draft = choose(CARD, Settings(drafter=f"draft_model:{path}"), where).draft
        assert draft and draft.drafts == coarser
        assert draft.loads_as(replace(draft, drafts=False)) != coarser
    form = choose(CARD, Settings(drafter=f"draft_model:{path}"), HERE).draft_form
    assert form == "36,864 of 200,000 tokens"
    assert choose(CARD, Settings(drafter=f"draft_model:{path}"), HERE).pace[-1].endswith(form)
    assert choose(CARD, Settings(drafter="phrases"), HERE).draft_form is None
    assert choose(CARD, Settings(drafter=f"draft_model:{path}"), ALONE).draft_form == "fp32"


def test_a_draft_model_is_ranked_by_what_its_own_form_costs(tmp_path: Path) -> None:
    change_config(path := write_checkpoint(tmp_path / "small"), vocab_size=200_000)
    asked: list[str] = []

    class Watched(NoMeasurements):
        def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
            asked.extend([quantize] * (card.path == path))
            return ModelMeasurements()

    small = small_model_of(resolve(str(path)), drafts=True)
    model = replace(model_of(CARD), small=small, small_here=True)
    choices(model, requested_drafter(Settings(), CARD), Settings(), HERE, Watched())
    assert as_draft("int8") in asked


@each("where", [cpu(), cpu(packings=("int8",)), cpu(packings=(), bf16=False)])
def test_a_small_model_is_chosen_like_a_large_one(where) -> None:
    """Speculation changes no token in int8 either."""
    little = unfetched(LITTLE)
    usual = ("cpu", "bf16", "int8") if where.packings else ("cpu", "fp32", "none")
    assert taken(machine(where), little) == usual
    assert taken(machine(where), little, dtype="bf16") == ("cpu", "bf16", "none")
    assert taken(machine(where), little, quantize="none") == ("cpu", where.dtypes[0], "none")
    assert taken(machine(gpu(), where), unfetched(BILLION))[:2] == ("cuda:0", "bf16")
    faster = "cpu" if where.packings else "cuda:0"  # torch takes longer for a layer than our library
    assert taken(machine(gpu(), replace(where, bandwidth=200e9)), little)[0] == faster


def test_who_names_a_format_of_numbers_gets_it_unpacked() -> None:
    assert taken(HERE, dtype="bf16") == taken(HERE, quantize="none") == ("cpu", "bf16", "none")
    assert taken(HERE, dtype="fp32") == ("cpu", "fp32", "none")
    assert taken(HERE, dtype="fp32", quantize="int8") == taken(HERE, quantize="int8") == ("cpu", "bf16", "int8"), (
        "our library computes with packed weights in one way"
    )
    assert taken(machine(gpu()), dtype="fp16") == ("cuda:0", "fp16", "none")
    assert taken(machine(gpu()), dtype="fp16", quantize="int8") == ("cuda:0", "fp16", "int8")


def test_exact_leaves_out_nothing_on_a_cpu() -> None:
    for where in (HERE, SLOW):
        assert taken(where, exact=True) == taken(where)
        assert choose(CARD, Settings(exact=True), where).exact


def test_exact_on_a_cpu_needs_the_compiled_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.machine.compiled.missing", lambda: "this installation has none")
    with pytest.raises(UsageMistake, match=matching("exact_needs_compiled_library")):
        choose(CARD, Settings(exact=True), ALONE)
    assert taken(machine(gpu(24), *ALONE.devices), exact=True)[0] == "cuda:0"


def test_exact_takes_nf4_where_our_own_kernels_compute_it() -> None:
    assert taken(machine(gpu(20, packings=("nf4",))), exact=True) == ("cuda:0", "bf16", "nf4")


OLD = replace(gpu(20, packings=("nf4",)), dtypes=("fp16", "fp32"))


@each("where", [machine(OLD, cpu(3)), machine(apple(48), cpu(3))])
def test_exact_leaves_out_what_cannot_be_had_to_the_bit(where) -> None:
    assert taken(where)[2] in ("nf4", "int4")
    assert taken(where, exact=True)[2] in ("none", "int8")
    assert choose(CARD, Settings(exact=True), where).exact


def test_a_number_of_nodes_is_a_fixed_experiment_and_zero_is_plain_decoding() -> None:
    for nodes in (3, AUTO_NODES):
        choice = choose(CARD, Settings(draft_max=nodes), HERE)
        assert (choice.nodes, choice.fixed, choice.drafter) == (nodes, True, "phrases")
    for settings in (Settings(draft_max=0), Settings(drafter="none"), Settings(draft_max=0, drafter="lookahead")):
        assert (choose(CARD, settings, HERE).drafter, choose(CARD, settings, HERE).nodes) == ("none", 0)


def test_a_tree_has_as_many_nodes_as_may_be_and_no_forecast_counts_more() -> None:
    assert choose(CARD, Settings(draft_max=MOST_NODES), HERE).nodes == MOST_NODES


def test_on_a_cpu_no_tree_is_wider_for_rows_that_a_toy_has_for_nothing() -> None:
    free = Told({("cpu", "int8"): ModelMeasurements(flat(0.1))})
    asked = (Settings(), Settings(drafter="lookahead"), Settings(exact=True), Settings(drafter="none"))
    found = [choose(CARD, replace(one, quantize="int8"), HERE, free) for one in asked]
    assert [one.nodes for one in found] == [AUTO_NODES, AUTO_NODES, AUTO_NODES, 0]
    assert not any(one.fixed for one in found), "how many of them pay is still measured"


def test_a_fixed_experiment_drafts_also_where_that_does_not_pay() -> None:
    dear = Told({("cpu", "int8"): ModelMeasurements(flat(0.1, slope=5.0))})
    assert choose(CARD, Settings(quantize="int8", draft_max=4), HERE, dear).drafter == "phrases"
    assert choose(CARD, Settings(draft_max=4), machine(apple(48))).drafter == "phrases"


def test_what_was_requested_is_in_the_choice() -> None:
    choice = choose(CARD, Settings(exact=True, context=256, quantize="int8"), HERE)
    assert (choice.exact, choice.context, choice.target) == (True, 256, CARD)


# -- bytes and reasons -----------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_precision_and_all_of_it_is_more_than_the_weights() -> None:
    for settings, size in ((Settings(quantize="none"), 2), (Settings(dtype="fp32"), 4)):
        choice = choose(CARD, settings, HERE)
        assert choice.loaded_bytes == size * SEVEN.parameters + (4 - size) * NORMS
        assert choice.loaded_bytes + 2 * GIB * size // 2 < choice.bytes < choice.loaded_bytes + 6 * GIB
    assert SEVEN.parameters < choose(CARD, Settings(), HERE).loaded_bytes < 1.1 * SEVEN.parameters
    assert SEVEN.parameters / 2 < choose(CARD, Settings(), SLOW).loaded_bytes < 0.62 * SEVEN.parameters


def test_a_context_that_was_requested_takes_its_bytes_and_no_more_than_the_model_holds() -> None:
    short, full, beyond = (choose(CARD, Settings(context=context), HERE).bytes for context in (256, 4096, 10**6))
    own = choose(CARD, Settings(), HERE).bytes
    assert short < full == own == beyond, "the target refuses what it cannot hold, and says so"
    longer, long = (choose(unfetched(BILLION), Settings(context=context), HERE).bytes for context in (32768, 16384))
    assert longer - long == BILLION.cached(32768 - 16384, 2)


def test_the_reason_is_a_sentence_about_what_is_taken() -> None:
    reason = choose(CARD, Settings(), HERE).reason
    figures = r"[\d.]+ tokens/s \(predicted\), M \d\.\d\d \(predicted memory\), \d\.\d\d tokens/step .*"
    assert re.fullmatch(rf"phrases in int8: {figures}; chosen by speed, since memory is plentiful", reason)
    assert " in bf16: " in choose(CARD, Settings(quantize="none"), HERE).reason
    assert choose(CARD, Settings(drafter="lookahead"), HERE).reason == wording("lookahead_as_asked_in_int8")


# -- by which rule ---------------------------------------------------------------------------------------------------------


@each(
    "gib, rule, expected",
    [
        (48, "auto", ("draft_model+phrases", "speed")), (48, "memory", ("phrases", "memory")),
        (14, "auto", ("phrases", "memory")), (14, "speed", ("draft_model+phrases", "speed")),
    ],
)  # fmt: skip
def test_m_decides_where_memory_is_short_or_the_setting_says_so(gib, rule, expected, monkeypatch) -> None:
    """A 7B with a small model of more than half its bytes: faster, but not worth the memory."""
    small = replace(SEVEN, num_layers=20, context=512)
    pair = Model(
        CARD, SEVEN, SEVEN.parameters, small=Model(unfetched(small, "small"), small, small.parameters), small_here=True
    )
    monkeypatch.setattr(selection, "model_of", lambda card: pair)
    monkeypatch.setattr(selection, "_draft", lambda *_: None)
    timed = Told({("cpu", "int4"): ModelMeasurements(flat(0.3)), ("cpu", "int8"): ModelMeasurements(flat(0.06))})
    choice = choose(CARD, Settings(drafter_rule=rule, quantize="int4"), machine(cpu(gib)), timed)
    assert (choice.drafter, choice.rule) == expected
    assert choice.cost_effectiveness is not None and not choice.peak_measured
    assert wording("drafter_rule_says_so") in choice.reason or rule == "auto"


@each("rule", ["auto", "memory", "speed"])
def test_who_names_a_drafter_gets_the_precision_of_auto_and_so_the_same_text(rule) -> None:
    """bf16 is faster here, and int8 has the higher M by a hair."""
    costs = {
        ("cuda:0", packing): ModelMeasurements(flat(seconds)) for packing, seconds in (("none", 0.03), ("int8", 0.05))
    }
    for where in (machine(gpu(40, packings=("int8",)), cpu(8)), machine(gpu(24, packings=("int8",)), cpu(8))):
        found = {
            choose(CARD, Settings(drafter=drafter, drafter_rule=rule), where, Told(costs)).quantize
            for drafter in ("auto", "none", "phrases", "lookahead")
        }
        assert len(found) == 1


def test_who_names_a_drafter_gets_m_and_no_rule() -> None:
    choice = choose(CARD, Settings(drafter="phrases"), HERE)
    assert choice.rule is None and choice.cost_effectiveness and "chosen by" not in choice.reason


def test_a_model_on_the_cpu_says_why_the_gpu_is_idle() -> None:
    assert choose(CARD, Settings(), machine(gpu(4), HERE.devices[0])).idle.startswith(wording("cuda_0_is_not_used"))
    assert choose(CARD, Settings(), machine(gpu(24), HERE.devices[0])).idle == ""
    assert choose(CARD, Settings(device="cpu"), machine(gpu(4), HERE.devices[0])).idle == "", "it was asked for"


# -- which device ------------------------------------------------------------------------------------------------------------


def test_the_device_is_the_fastest_on_which_it_fits() -> None:
    assert taken(machine(gpu(24), HERE.devices[0]))[0] == "cuda:0"
    assert taken(machine(gpu(24, free=9), HERE.devices[0]))[0] == "cuda:0", "nf4 fits in what other programs leave"
    assert taken(machine(gpu(24, free=6), HERE.devices[0]))[0] == "cpu", "a tenth of all stays free"
    assert taken(machine(gpu(4), HERE.devices[0]))[0] == "cpu"
    assert taken(machine(gpu(24, free=3), gpu(24, index=1)))[0] == "cuda:1"
    assert taken(machine(gpu(24), gpu(24, index=1)))[0] == "cuda:0", "of equals the first"
    assert taken(machine(gpu(24), gpu(24, index=1, bandwidth=900e9)))[0] == "cuda:1"


def test_the_precision_gives_way_to_what_is_free() -> None:
    fast8 = machine(gpu(80, packings=("int8",), bandwidth=4e12))
    assert taken(fast8)[2] == "none", "int8 saves memory there, and no time: it has twice the kernels"
    assert taken(machine(gpu(24, packings=("int8",))))[2] == "int8", "slower memory takes longer than those kernels"
    assert taken(machine(gpu(24, free=14, packings=("int8",))))[1:] == ("bf16", "int8")


@pytest.mark.slow
def test_a_named_device_is_taken_though_another_is_faster() -> None:
    both = machine(gpu(24), gpu(24, index=1), HERE.devices[0])
    assert taken(both, device="cpu")[0] == "cpu"
    assert taken(both, device="cuda")[0] == "cuda:0"
    assert taken(both, device="cuda:1")[0] == "cuda:1"
    with pytest.raises(DoesNotFit, match="on cuda:0"):
        taken(machine(gpu(4), HERE.devices[0]), device="cuda")


def test_what_only_one_device_can_do_is_done_there(old_gpus: None) -> None:
    """The CPU has no NF4 and no fast fp16, which is no reason to refuse them on a GPU."""
    both = machine(gpu(24), cpu(64))
    assert taken(both, quantize="nf4") == ("cuda:0", "bf16", "nf4")
    assert taken(both, dtype="fp16") == ("cuda:0", "fp16", "none")
    assert taken(machine(gpu(24, packings=()), cpu(64)), quantize="int8") == ("cpu", "bf16", "int8")


# -- Apple -------------------------------------------------------------------------------------------------------------------


def test_apple_decodes_plainly_and_says_why() -> None:
    mac = machine(apple(48))
    choice = choose(CARD, Settings(), mac)
    assert (choice.device, choice.drafter, choice.nodes) == ("mps", "none", 0)
    assert wording("speculation_off_apple_s_gpus_2") in choice.reason
    assert choose(CARD, Settings(drafter="phrases"), mac).drafter == "phrases", "who names it, gets it"


# -- what does not fit -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_does_not_fit_names_what_is_missing_and_what_would_fit(fresh_home: Path) -> None:
    with pytest.raises(DoesNotFit) as caught:
        choose(CARD, Settings(), machine(cpu(6)))
    said = re.fullmatch(
        r"big needs ([\d.]+) GiB of memory in int4 on cpu, and 5\.4 of 6\.0 GiB free may be used; "
        r"close other programs, give a smaller --context, or choose (\S+) \(`localspec pull \2`\), which takes ([\d.]+) GiB\.",
        str(caught.value),
    )
    assert said and float(said[1]) == pytest.approx(6.0, abs=0.05)
    assert float(said[3]) < 5.4
    with pytest.raises(DoesNotFit, match=f"{matching('or_choose_demo_which_takes_0')}$"):
        choose(CARD, Settings(), machine(cpu(8, free=1)))
    with pytest.raises(DoesNotFit, match=f"{matching('close_other_programs_or_give_a')}$"):
        choose(CARD, Settings(), machine(cpu(8, free=0.8)))
    with pytest.raises(DoesNotFit, match=f"{matching('in_fp32_on_cuda_0')} .* {matching('n22_0_gib_free_19_6')}"):
        choose(CARD, Settings(dtype="fp32"), machine(gpu(24, free=22), cpu(8)))


@pytest.mark.slow
def test_it_never_offers_the_very_model_that_does_not_fit() -> None:
    named = unfetched(SEVEN, name="qwen3-8b")
    with pytest.raises(DoesNotFit, match=r"choose (?!qwen3-8b)"):
        choose(named, Settings(), machine(cpu(6, bandwidth=900e9)))


def test_a_damaged_model_is_not_offered_and_does_not_hide_what_was_wrong(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tokenizer.json").touch()
    bad = replace(unfetched(BILLION, name="damaged"), path=tmp_path)
    monkeypatch.setattr(survey, "known", lambda: {"damaged": bad, "sound": unfetched(BILLION, name="sound")})
    with pytest.raises(DoesNotFit, match="choose sound"):
        choose(CARD, Settings(), machine(cpu(6)))


@each("where", [HERE, SLOW, ALONE, machine(gpu(24)), machine(gpu(16), cpu(64))])
@each("settings", [{}, {"drafter": "phrases"}, {"drafter": "lookahead"}, {"drafter": "none"}])
def test_behind_the_choice_stands_one_that_takes_less(where, settings) -> None:
    found = offered(Settings(**settings), where)
    assert choose(CARD, Settings(**settings), where) == found[0]
    assert len({choice.device for choice in found}) == 1
    assert [choice.bytes for choice in found] == sorted({choice.bytes for choice in found}, reverse=True)


def test_the_second_choice_is_another_precision_and_the_smallest_has_no_second() -> None:
    fast8 = machine(gpu(80, packings=("int8",), bandwidth=4e12))
    assert [choice.quantize for choice in offered(Settings(drafter="phrases"), fast8)] == ["none", "int8"]
    assert len(offered(Settings(quantize="none", drafter="phrases"), fast8)) == 1


# -- what is refused ---------------------------------------------------------------------------------------------------------


@each(
    "settings, said",
    [
        ({"device": "cuda:3"}, "no device 'cuda:3' here; use one of cuda:0, cpu, or auto"),
        ({"device": "mps"}, "no device 'mps' here"),
        ({"quantize": "int4"}, matching("int4_cannot_cuda_0_kernels")),
        ({"quantize": "int4", "device": "cpu"}, matching("int4_cannot_cpu_kernels_invented")),
        ({"quantize": "nf4", "device": "cpu"}, matching("nf4_cannot_cpu")),
        ({"dtype": "fp16", "device": "cpu"}, matching("fp16_many_times_slower_than_fp32")),
        ({"drafter": "none", "draft_max": 4}, matching("draft_max_4_effect_without")),
        ({"drafter": "none", "draft_max": 0}, matching("draft_max_0_effect_without")),
        ({"draft_max": MOST_NODES + 1}, matching("draft_max_65_more_than_64_nodes")),
        ({"drafter": "medusaa"}, matching("did_you_mean_medusa_2")),
        ({"drafter": "phrases+phrases"}, matching("phrases_phrases_nothing_more_than")),
        ({"drafter": "none+phrases"}, matching("none_phrases_nothing_more_than")),
        ({"drafter": "ouroboros+phrases"}, matching("ouroboros_phrases_nothing_more")),
        ({"drafter": "ouroboros:demo+phrases"}, matching("nothing_more_than_ouroboros_demo")),
        ({"drafter": "draft_model:"}, matching("draft_model_names_model_write")),
        ({"drafter": "ourobors:demo"}, matching("did_you_mean_ouroboros")),
        (
            {"accept": "rejection"},
            "which 'phrases' does not make; use one of eagle3, medusa, parallelspec, s3d, semi",
        ),
        ({"accept": "rejection", "drafter": "none"}, "which 'none' does not make"),
        ({"accept": "rejection", "drafter": "lookahead+phrases"}, "which 'lookahead.phrases' does not make"),
        ({"accept": "typical", "drafter": "none"}, matching("typical_effect_without_drafter")),
        ({"accept": "typical", "draft_max": 0}, matching("typical_effect_without_drafter")),
    ],
)
def test_what_is_named_and_cannot_be_had_is_refused_in_a_sentence(settings, said) -> None:
    with pytest.raises(UsageMistake, match=said) as caught:
        choose(CARD, Settings(**settings), machine(gpu(24, packings=()), cpu(64, packings=(), bf16=False)))
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


IN_BLOCKS = Model(
    CARD, SEVEN, SEVEN.parameters, packed=("blocks", "int8", "int4", "none"), block_bytes=SEVEN.parameters * 6 // 10
)


def test_a_gguf_file_runs_on_a_gpu_where_it_fits_and_on_the_cpu_where_it_does_not() -> None:
    large, small = machine(gpu(48)), machine(gpu(4))
    chosen = [
        choices(IN_BLOCKS, DrafterSpec("auto"), Settings(quantize=quantize), there)[0]
        for quantize, there in (("auto", large), ("int8", large), ("auto", machine(gpu(14))), ("auto", small))
    ]
    assert [(one.device, one.quantize) for one in chosen] == [
        ("cuda:0", "none"),
        ("cuda:0", "int8"),
        ("cuda:0", "int8"),
        ("cpu", "blocks"),
    ]
    assert chosen[3].idle.startswith("cuda:0 is not used: ") and not chosen[0].idle
    as_int8 = replace(IN_BLOCKS, packed=("int8", "blocks", "int4", "none"))
    assert choices(as_int8, DrafterSpec("auto"), Settings(), large)[0].quantize == "int8", "as it was imported"


@each("packing, device", [("nf4", gpu(48)), ("int4", apple(48))])
def test_a_packing_that_rounds_a_gguf_file_a_second_time_is_refused_on_a_gpu(packing, device) -> None:
    settings = Settings(quantize=packing, device=device.name)
    with pytest.raises(UsageMistake, match=f"--quantize {packing} {matching('round_weights_a_second_time')}"):
        choices(IN_BLOCKS, DrafterSpec("auto"), settings, machine(device))


def test_auto_takes_what_can_be_sampled_where_the_rule_asks_for_it() -> None:
    chosen = choose(resolve("demo"), Settings(accept="rejection", temperature=1.0), machine(cpu(64)))
    assert chosen.drafter in kinds(*WEIGHTS), "and not phrases, with which the rule would be refused"


def test_what_can_be_sampled_and_is_not_here_is_not_taken() -> None:
    card = unfetched(SEVEN, drafters=(PublishedDrafter("medusa", accepted=PublishedLength(2.32, 4, "a paper")),))
    with pytest.raises(UsageMistake, match=matching("those_of_phrases_are_not")):
        choose(card, Settings(accept="rejection", temperature=1.0), HERE)


@each(
    "origin, said",
    [
        ("--draft-max", "^--draft-max 65 is more"),
        ("LOCALSPEC_DRAFT_MAX", "^LOCALSPEC_DRAFT_MAX=65 is more"),
        ("/home/me/config.toml", "^draft_max = 65 in /home/me/config.toml is more"),
    ],
)
def test_what_cannot_be_meant_is_named_where_it_was_written(origin, said) -> None:
    with pytest.raises(UsageMistake, match=said):
        choose(CARD, Settings(draft_max=MOST_NODES + 1, origins={"draft_max": origin}), HERE)


@each("origin", ["--draft-max", "/home/me/config.toml"])
def test_a_drafter_that_is_requested_and_may_not_draft_is_refused(origin) -> None:
    settings = Settings(drafter="phrases", draft_max=0, origins={"drafter": "--drafter", "draft_max": origin})
    with pytest.raises(UsageMistake) as caught:
        choose(CARD, settings, HERE)
    assert str(caught.value) == (wording("drafter_phrases_effect_which", shown=settings.shown("draft_max")))


def test_a_drafter_that_is_kept_in_a_file_is_switched_off_by_a_flag() -> None:
    settings = Settings(drafter="phrases", draft_max=0, origins={"drafter": "config.toml", "draft_max": "--draft-max"})
    assert choose(CARD, settings, HERE).drafter == "none"


def test_nf4_is_no_packing_of_a_cpu_that_has_others() -> None:
    with pytest.raises(UsageMistake, match=matching("quantize_nf4_cannot_cpu")):
        choose(CARD, Settings(quantize="nf4"), HERE)


@each("packing, device", [("int8", "cpu"), ("int4", "cpu"), ("int8", "cuda:0"), ("nf4", "cuda:0")])
def test_a_packing_without_kernels_is_refused_by_its_name(old_gpus: None, packing: str, device: str) -> None:
    bare = machine(gpu(packings=()), cpu(packings=()))
    with pytest.raises(UsageMistake, match=f"--quantize {packing} does not work on {device}: .*; use none or auto"):
        choose(CARD, Settings(quantize=packing, device=device), bare)


def test_int8_on_apple_and_int4_too_where_they_are_there() -> None:
    mac = machine(apple(48))
    assert taken(mac, quantize="int8", device="mps") == ("mps", "bf16", "int8")
    assert taken(mac, quantize="int4") == ("mps", "bf16", "int4")


def test_a_threshold_is_for_int8_on_a_gpu() -> None:
    both = machine(gpu(24), cpu(48))
    choice = choose(CARD, Settings(quantize="int8", int8_threshold=6.0), both)
    assert (choice.device, choice.threshold) == ("cuda:0", 6.0)
    assert choose(CARD, Settings(quantize="int8"), both).threshold == 0
    for settings in ({"device": "cpu", "quantize": "int8"}, {"quantize": "none"}):
        with pytest.raises(UsageMistake, match=matching("int8_threshold_6_0_effect")):
            choose(CARD, Settings(**settings, int8_threshold=6.0), both)


def test_threads_are_for_cpus_and_a_flag_for_a_gpu_is_refused() -> None:
    both, typed = machine(gpu(24), cpu(48)), {"threads": "--threads"}
    with pytest.raises(UsageMistake, match=matching("threads_2_effect_cuda_0_leave_out")):
        choose(CARD, Settings(threads=2, origins=typed), both)
    assert choose(CARD, Settings(threads=2, device="cpu", origins=typed), both).device == "cpu"
    assert choose(CARD, Settings(threads=2), both).device == "cuda:0", "a file's value waits for a CPU"


def test_a_model_of_unknown_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalspecError, match=matching("big_models_toml_does_say_add")):
        choose(unfetched(None), Settings(), HERE)
    path = write_checkpoint(tmp_path / "m", {name: CONFIG[name] for name in ("architectures", "model_type")})
    with pytest.raises(LocalspecError, match=matching("how_large_parts_m_config_json")):
        choose(TargetCard("m", path, None, ""), Settings(), HERE)
    with pytest.raises(NotHere):
        choose(TargetCard("m", NOWHERE, None, ""), Settings(), HERE)


# -- drafters by name --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return the directory of a model that claims to be large and has 44 parameters."""
    return str(write_checkpoint(tmp_path / "small"))


def test_a_named_drafter_that_cannot_be_predicted_is_taken_without_a_forecast(small: str) -> None:
    for name in ("lookahead", "lookahead+phrases", f"ouroboros:{small}", f"draft_model:{small}+phrases"):
        choice = choose(CARD, Settings(drafter=name), HERE)
        assert (choice.tokens_per_second, choice.cost_effectiveness) == (None, None)
        assert "as you asked" in choice.reason and choice.nodes == AUTO_NODES
    assert choose(CARD, Settings(drafter="phrases"), HERE).tokens_per_second


def test_a_published_pair_is_predicted_and_another_small_model_is_not(small: str) -> None:
    pair = PublishedDrafter("draft_model", accepted=PublishedLength(3.0, 5, "a paper"))
    card = unfetched(SEVEN, draft="demo-draft", drafters=(pair,))
    own, other = (choose(card, Settings(drafter=f"draft_model{of}"), HERE) for of in ("", f":{small}"))
    assert "a paper" in own.reason and own.cost_effectiveness and own.draft and own.draft.target.name == "demo-draft"
    assert other.cost_effectiveness is None and other.draft and str(other.draft.target.path) == small
    assert own.parts == ()


@pytest.mark.slow
def test_a_draft_model_has_a_precision_and_a_device_of_its_own(small: str) -> None:
    def drafting(drafter: str = f"ouroboros:{small}", where: Machine = HERE, **settings) -> Choice:
        return choose(CARD, Settings(drafter=drafter, **settings), where)

    choice = drafting()
    assert choice.draft is not None
    assert (choice.drafter, choice.quantize, choice.draft.dtype, choice.draft.quantize) == (
        "ouroboros", "int8", "bf16", "int8",
    )  # fmt: skip
    assert choice.parts == Settings().ouroboros
    shape = Shape.of(CONFIG)
    assert shape and choice.draft.loaded_bytes == weights(shape, "bf16", "int8", "native", 44)
    plain = choose(CARD, Settings(drafter="none"), HERE)
    assert (
        choice.draft.loaded_bytes <= choice.loaded_bytes - plain.loaded_bytes == choice.bytes - plain.bytes < 10**7
    ), "it is counted"
    assert drafting(f"draft_model:{small}+phrases").drafter == "draft_model+phrases"
    assert drafting(f"draft_model:{small}").parts == ()
    assert drafting(ouroboros=("history",)).parts == ("history",)
    exact = drafting(exact=True, context=9, quantize="none", dtype="bf16")
    assert exact.draft is not None
    assert (exact.draft.exact, exact.draft.context, exact.draft.quantize) == (False, None, "int8"), "it changes no text"
    slow = drafting(where=SLOW)
    assert slow.draft and (slow.quantize, slow.draft.quantize) == ("int4", "int8"), "four bits would agree less often"
    assert drafting(draft_max=0).draft is None
    loose = drafting(accept="typical", temperature=1.0)
    assert loose.draft is not None, "the rule is the target's affair"


def test_a_draft_model_is_on_the_targets_device_unless_a_device_is_named(small: str) -> None:
    both = machine(gpu(24), cpu(64))

    def drafting(**settings) -> Choice:
        return choose(CARD, Settings(drafter=f"draft_model:{small}", **settings), both)

    together, apart = drafting(), drafting(draft_device="cpu")
    assert together.draft is not None and apart.draft is not None
    assert (together.device, together.draft.device, together.draft.quantize) == ("cuda:0", "cuda:0", "none")
    assert (apart.device, apart.draft.device) == ("cuda:0", "cpu")
    assert apart.loaded_bytes < together.loaded_bytes and apart.bytes < together.bytes, "bytes are those of the device"
    assert drafting(draft_device="cuda").bytes == together.bytes
    for wrong in ("mps", "cuda:7"):
        with pytest.raises(UsageMistake, match=matching("device_here_draft_model_set_draft", wrong=wrong)):
            drafting(draft_device=wrong)


def test_a_predicted_pair_takes_no_memory_of_the_target_s_device_when_it_drafts_elsewhere() -> None:
    card = unfetched(
        SEVEN, draft="demo", drafters=(PublishedDrafter("ouroboros", accepted=PublishedLength(3.0, 5, "a paper")),)
    )
    both, named = machine(gpu(24), cpu(64)), {"drafter": "ouroboros", "quantize": "none"}
    together, apart = choose(card, Settings(**named), both), choose(card, Settings(**named, draft_device="cpu"), both)
    assert "a paper" in together.reason and "a paper" in apart.reason, "foreseen, though the small model has one itself"
    assert apart.loaded_bytes == 2 * SEVEN.parameters < together.loaded_bytes


def test_a_model_without_a_small_one_says_how_to_name_it() -> None:
    for kind in ("draft_model", "ouroboros"):
        with pytest.raises(NotHere, match=f"No draft model is known for big; .*--drafter {kind}:MODEL"):
            choose(CARD, Settings(drafter=kind), HERE)
        with pytest.raises(NotHere, match=matching("draft_gone_big_models_toml_cannot")):
            choose(unfetched(SEVEN, draft="gone"), Settings(drafter=kind), HERE)
    assert choose(unfetched(SEVEN, draft="gone"), Settings(), HERE).drafter == "phrases"


def test_auto_takes_a_small_model_in_the_targets_directory_where_it_should_pay_and_no_more_once_it_did_not(
    tmp_path,
) -> None:
    """A target of a billion numbers whose rows are nearly free, and a twentieth of it below `draft`."""

    def config(layers: int) -> dict[str, object]:
        return {**CONFIG, "vocab_size": 8192, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
                "num_hidden_layers": layers, "max_position_embeddings": 4096}  # fmt: skip

    path = write_checkpoint(tmp_path / "model", config(24))
    draft = write_checkpoint(path / "draft", config(1))
    for one in (path, draft):
        (one / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    card = TargetCard("own", path, None, "")
    replies: dict[str, ReplyStats] = {}

    @dataclass(frozen=True)
    class Timed(Told):
        def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
            whole = card.path == path
            return ModelMeasurements(flat(0.05 if whole else 0.003, slope=0.01), replies if whole else {})

    taken = choose(card, Settings(), HERE, Timed())
    assert (taken.drafter, taken.quantize) == ("draft_model+phrases", "int8") and taken.draft is not None
    assert taken.draft.target.path == draft and taken.draft.loaded_bytes < 0.2 * taken.loaded_bytes
    assert str(draft) in taken.reason and taken.rule == "speed"
    named = choose(card, Settings(drafter="draft_model+phrases"), HERE, Timed())
    assert named.draft == taken.draft and named.tokens_per_second == taken.tokens_per_second
    for drafter in ("draft_model", "draft_model+phrases", "ouroboros"):
        replies[f"{drafter} of {draft}"] = ReplyStats(1.2, 4, 0.2)
    assert choose(card, Settings(), HERE, Timed()).drafter == "phrases", "measured replies decide"
    replies.clear()
    (draft / "tokenizer.json").write_text('{"model": {"vocab": {"b": 0}}}')
    assert choose(card, Settings(), HERE, Timed()).drafter == "phrases"
    with pytest.raises(
        LocalspecError, match=f"{matching('its_token_0_is_b')} .* {matching('to_use_another_small_model')}"
    ):
        choose(card, Settings(drafter="ouroboros"), HERE, Timed())


# -- this machine ------------------------------------------------------------------------------------------------------------


def test_where_no_machine_is_given_it_is_this_one() -> None:
    assert choose(unfetched(LITTLE), Settings(device="cpu")).device == "cpu"


@pytest.mark.slow
def test_what_would_fit_instead_is_on_the_device_that_was_requested(fresh_home: Path) -> None:
    both = machine(gpu(4), cpu(64))
    with pytest.raises(DoesNotFit) as caught:
        choose(CARD, Settings(device="cuda:0", quantize="none"), both)
    said = re.search(
        r"on cuda:0, and ([\d.]+) of 4\.0 GiB free may be used; .* takes ([\d.]+) GiB\.$", str(caught.value)
    )
    assert said and float(said[2]) <= float(said[1])
    long = unfetched(replace(SEVEN, context=10**6))
    with pytest.raises(DoesNotFit, match=f"{matching('may_be_used_close_other_programs')}$"):
        choose(long, Settings(context=500_000), HERE)  # longer contexts need more memory for other models, too


@pytest.mark.slow
def test_where_the_draft_model_has_no_room_the_next_device_is_taken(small: str, monkeypatch) -> None:
    usual = selection._draft

    def full(small: Model, device: Device, *rest: object) -> LoadSpec:
        if device.name == "cuda:0":
            raise DoesNotFit("there is no room for it")
        return usual(small, device, *rest)

    monkeypatch.setattr(selection, "_draft", full)
    named = Settings(drafter=f"draft_model:{small}")
    assert choose(CARD, named, machine(gpu(24), cpu(64))).device == "cpu"
    there = replace(named, device="cuda:0")
    with pytest.raises(DoesNotFit, match=matching("no_room_for_it")):
        choose(CARD, there, machine(gpu(24)))
    with pytest.raises(DoesNotFit, match="^big needs"):
        choose(CARD, there, machine(gpu(2)))


def test_a_drafter_of_which_nobody_knows_what_it_brings_takes_its_bytes_all_the_same(monkeypatch) -> None:
    own = trained("parallelspec", 10**9, revision="")  # a published model with its own cache
    monkeypatch.setattr("localspec.choosing.named.find_drafter", lambda *_: own)
    without = choose(CARD, Settings(drafter="none", quantize="none"), HERE)
    beside = choose(CARD, Settings(drafter="parallelspec", quantize="none"), HERE)
    assert beside.trained == (own,) and without.loaded_bytes == 2 * (SEVEN.parameters + NORMS)
    assert beside.loaded_bytes - without.loaded_bytes == 2 * 10**9 + SEVEN.cached(4096, 2)
