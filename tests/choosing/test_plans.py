"""Which plan is chosen for a model on simulated machines, by which rule, and how it is explained."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from golden import wording
from machines import BILLION, GIB, LITTLE, SEVEN, Told, apple, cpu, flat, gpu, machine, trained, unfetched
from properties import given, st

from localspec.choosing import fit, plans
from localspec.choosing.choose import choices
from localspec.choosing.cost import CONTEXT, ForwardCosts, reading
from localspec.choosing.drafters import Acceptance, DrafterCandidate, reply_key
from localspec.choosing.measure import ModelMeasurements, NoMeasurements, ReplyStats
from localspec.choosing.named import DrafterSpec
from localspec.choosing.plans import (
    AUTO_NODES,
    COMFORTABLE,
    Precision,
    RunPlan,
    as_computed,
    best,
    disk_words,
    explained,
    natural_precisions,
    run_plans,
    why_idle,
    why_none,
)
from localspec.config import Settings
from localspec.errors import DoesNotFit, UsageMistake
from localspec.hub.sources import Source
from localspec.machine.machine import Device
from localspec.models.drafter_cards import DrafterCard
from localspec.models.drafter_kinds import kind_of
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.models.model import Model
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import in_four_bits

GPU = gpu(24, packings=("int8",))
PRECISION = Precision(GPU, "bf16", "none")
MEDUSA = PublishedDrafter("medusa", parameters=10**9, accepted=PublishedLength(2.3, 4, "x"))


def model(*published: PublishedDrafter, here: tuple[DrafterCard, ...] = ()) -> Model:
    return Model(unfetched(SEVEN, drafters=published), SEVEN, SEVEN.parameters, here)


def one(found: list[RunPlan], name: str, quantize: str = "none") -> RunPlan:
    (plan,) = (plan for plan in found if plan.candidate.name == name and plan.precision.quantize == quantize)
    return plan


def told(*, costs: ForwardCosts | None = None, **replies: ReplyStats) -> Told:
    return Told({("cuda:0", "none"): ModelMeasurements(flat(0.05) if costs is None else costs, replies)})


def plan(name: str, speed: float, size: float = 1.0, **more: object) -> RunPlan:
    """Return a plan of this speed that takes `size` GiB of a GPU of 24; plain decoding has 10 tokens/s in 1 GiB."""
    precision = more.pop("precision", PRECISION)
    source = more.pop("source", Source("org/medusa"))
    published = None if more.pop("here", True) else PublishedDrafter("medusa", source=source)  # type: ignore[arg-type]
    plain = DrafterCandidate("none", 0, Acceptance((), ""), lambda nodes: 0.0)
    drafter = plain if name == "none" else DrafterCandidate(
        name, int((size - 1) * GIB), Acceptance((0.5,), "by guess"), lambda nodes: 0.0, published=published
    )  # fmt: skip
    held, measured = int(size * GIB), bool(more.pop("measured", False))
    return RunPlan(precision, drafter, 1, 1, held, held, speed, measured, speed / 10 / size)  # type: ignore[arg-type]


def taken(*ranked: RunPlan, **how: object) -> tuple[str, str] | None:
    found = best(ranked, **how)  # type: ignore[arg-type]
    return None if found is None else (found.candidate.name, found.rule)


# -- precisions --------------------------------------------------------------------------------------------------------


def test_a_device_has_all_the_precisions_that_it_computes_in() -> None:
    assert [str(precision) for precision in natural_precisions(cpu())] == ["int8", "int4"]
    assert [str(precision) for precision in natural_precisions(cpu(packings=(), bf16=False))] == ["fp32"]
    assert [str(precision) for precision in natural_precisions(gpu())] == ["bf16", "int8", "nf4"]
    assert natural_precisions(replace(gpu(), dtypes=("fp16", "fp32")))[0].dtype == "fp16"


def packings(device: Device, of: Model | None = None, **settings: object) -> list[str]:
    """Return those of the plans for a model on a device, each once, in the order of their M."""
    known, of = settings.pop("measurements", NoMeasurements()), of or model()
    open_ones = plans.possible_precisions(of, natural_precisions(plans.as_computed(device, of)))
    found = run_plans(of, open_ones, known, 16, **settings)  # type: ignore[arg-type]
    return list(dict.fromkeys(plan.precision.quantize for plan in found))


def test_int4_is_left_out_where_int8_fits_and_is_comfortable() -> None:
    assert packings(cpu(48, bandwidth=200e9)) == ["int8"]
    assert packings(cpu(48, bandwidth=20e9)) == ["int4"], "slow"
    assert packings(cpu(8, bandwidth=200e9)) == ["int4"], "int8 has no room"
    assert packings(cpu(4, bandwidth=200e9)) == ["int4", "int8"], "neither has"
    assert packings(cpu(9.2, bandwidth=200e9), context=4096)[0] == "int4"
    assert packings(cpu(9.2, bandwidth=200e9), context=256) == ["int8"], "a shorter context leaves room for it"
    torch = replace(cpu(48, bandwidth=1e9), engine="torch", dtypes=("fp32", "bf16"))
    assert set(packings(torch)) == {"int8", "none"}, "which makes packed weights dense"


@each("speed, packing", [(COMFORTABLE * 0.99, "int4"), (COMFORTABLE * 1.01, "int8")])
def test_comfortable_is_plain_decoding_by_the_speed_of_the_memory(speed: float, packing: str) -> None:
    read = reading(cpu(bandwidth=1e9), "bf16", "int8") * (SEVEN.matrices + SEVEN.cached(CONTEXT, 1))
    replies = {"phrases": ReplyStats(3.0, 5, 0.0)}
    known = Told({("cpu", "int8"): ModelMeasurements(flat(0.3), replies)}, memory=speed * read * 1e9)
    assert packings(cpu(48, bandwidth=None), measurements=known) == [packing], "and by no timing or reply"


IN_BLOCKS = replace(model(), packed=("blocks", "int8", "int4", "none"), block_bytes=SEVEN.parameters * 6 // 10)


def test_a_gguf_file_is_taken_as_it_is_where_it_fits_and_takes_its_own_bytes_and_time() -> None:
    assert packings(cpu(48), IN_BLOCKS) == ["blocks"]
    assert packings(cpu(7.2), replace(IN_BLOCKS, block_bytes=SEVEN.parameters * 17 // 16)) == ["int4"], "Q8_0"
    device = plans.as_computed(cpu(48), IN_BLOCKS)
    found = {
        packing: run_plans(IN_BLOCKS, [Precision(device, "bf16", packing)], NoMeasurements(), 16)
        for packing in ("blocks", "int8")
    }
    blocks = one(found["blocks"], "none", "blocks")
    assert (str(blocks.precision), blocks.loaded_bytes) == ("4.8 bits per weight", IN_BLOCKS.block_bytes)
    assert 1.4 < blocks.speed / one(found["int8"], "none", "int8").speed < 2


@each("device, offered", [(gpu(48), ["none", "int8"]), (apple(48), ["none", "int8"]), (cpu(48), [])])
def test_on_a_gpu_a_gguf_file_is_dense_or_in_int8_and_takes_what_such_a_model_takes(device, offered) -> None:
    found = plans.possible_precisions(IN_BLOCKS, natural_precisions(plans.as_computed(device, IN_BLOCKS)))
    assert [one.quantize for one in found if one.device.type != "cpu"] == offered
    for precision in found if offered else []:
        ours, same = (run_plans(one, [precision], NoMeasurements(), 16) for one in (IN_BLOCKS, model()))
        assert [(plan.candidate.name, plan.bytes) for plan in ours] == [(one.candidate.name, one.bytes) for one in same]
    assert IN_BLOCKS.from_gguf and not replace(IN_BLOCKS, packed=("int8", "int4")).from_gguf


def test_torch_on_a_cpu_has_the_blocks_of_a_gguf_file_and_its_tables_dense() -> None:
    device = plans.as_computed(cpu(48).as_torch_has_it(), IN_BLOCKS)
    found = plans.possible_precisions(IN_BLOCKS, natural_precisions(device))
    assert [one.quantize for one in found] == ["none", "blocks", "int8", "int4"]
    assert plans.weight_bytes(IN_BLOCKS, found[1]) == IN_BLOCKS.block_bytes + 4 * (SEVEN.embedding + SEVEN.table)


@each("packed", [("int8",), ("int4",), ("int8", "int4")])
def test_of_a_packed_model_nothing_is_in_question_but_its_packings_on_the_cpu_engine(packed: tuple[str, ...]) -> None:
    alone = replace(model(), packed=packed)
    for device in (cpu(48), cpu(48, bf16=False, packings=()), gpu(48), apple(48)):
        found = plans.possible_precisions(alone, natural_precisions(device))
        assert [one.quantize for one in found] == (list(packed) if device.engine == "native" else [])


@each("packed, precision", [((), "int8"), (("int4",), "int4"), (("blocks", "int8"), "blocks")])
def test_a_draft_model_drafts_in_int8_unless_it_is_here_only_in_another_form(packed, precision) -> None:
    blocks = LITTLE.parameters if "blocks" in packed else 0
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters, packed=packed, block_bytes=blocks)
    assert [one.quantize for one in plans.draft_precisions(small, cpu())] == [precision]
    assert [one.quantize for one in plans.draft_precisions(small, plans.as_computed(cpu(), IN_BLOCKS))] == [precision]
    assert [one.quantize for one in plans.draft_precisions(small, GPU)] == ([] if packed else ["none"])


# -- bytes, speed, M ---------------------------------------------------------------------------------------------------


def test_m_is_against_the_fastest_plain_decoding_that_fits() -> None:
    found = run_plans(model(), natural_precisions(GPU), NoMeasurements(), 16)
    base = max((plan for plan in found if plan.candidate.name == "none"), key=lambda plan: plan.speed)
    assert base.fits and base.cost_effectiveness == 1
    for plan in found:
        assert plan.cost_effectiveness == pytest.approx((plan.speed / base.speed) / (plan.bytes / base.bytes))
    tight = run_plans(model(), natural_precisions(gpu(24, free=12, packings=("int8",))), NoMeasurements(), 16)
    assert not one(tight, "none").fits and one(tight, "none", "int8").cost_effectiveness == 1


def test_bytes_are_weights_drafter_cache_tree_workspace_and_the_program() -> None:
    found = run_plans(model(MEDUSA), [PRECISION], NoMeasurements(), 16)
    alone = one(found, "none")
    assert alone.loaded_bytes == 2 * SEVEN.parameters
    assert alone.bytes - alone.loaded_bytes > SEVEN.cached(4096 + 256, 2) + 100 * 2**20
    assert one(found, "medusa").loaded_bytes == 2 * SEVEN.parameters + 2 * 10**9
    short = one(run_plans(model(), [PRECISION], NoMeasurements(), 16, context=100), "none")
    assert alone.bytes - short.bytes == SEVEN.cached(4096, 2)
    size = alone.bytes
    for spare, fits in ((-1, False), (0, True)):
        where = Device("cuda:0", "", 100 * GIB, size + 10 * GIB + spare, ("bf16",))
        assert one(run_plans(model(), [Precision(where, "bf16", "none")], NoMeasurements(), 16), "none").fits == fits


def test_a_draft_model_has_the_bytes_of_its_own_precision_and_keeps_the_whole_text() -> None:
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters)
    pair = replace(model(), small=small)
    short, long = (
        one(run_plans(pair, [PRECISION], NoMeasurements(), 16, context=tokens), "draft_model:small")
        for tokens in (256, 1024)
    )
    assert long.candidate.bytes - short.candidate.bytes == LITTLE.cached(1024 - 256, 2) and not short.candidate.here
    assert short.candidate.bytes >= 2 * LITTLE.parameters + fit.cache(LITTLE, 256, "bf16")
    eight = one(
        run_plans(pair, [Precision(cpu(48), "bf16", "int8")], NoMeasurements(), 16), "draft_model:small", "int8"
    )
    assert LITTLE.parameters < eight.candidate.bytes < short.candidate.bytes + LITTLE.cached(4096, 2)


def test_what_was_measured_is_taken_and_what_was_not_is_expected() -> None:
    found = run_plans(model(), natural_precisions(GPU), told(phrases=ReplyStats(2.5, 7, 0.25)), 16)
    assert (one(found, "none").speed, one(found, "none").measured) == (pytest.approx(20.0), True)
    assert (one(found, "phrases").speed, one(found, "phrases").measured) == (pytest.approx(2.5 / 0.05 / 1.25), True)
    assert not one(found, "none", "int8").measured and not one(found, "phrases", "int8").measured
    untimed = Told({("cuda:0", "none"): ModelMeasurements(None, {"phrases": ReplyStats(2.5, 7, 0.25)})})
    plan = one(run_plans(model(), [PRECISION], untimed, 16), "phrases")
    assert plan.speed / one(run_plans(model(), [PRECISION], untimed, 16), "none").speed > 1.9 and not plan.measured


def test_a_few_replies_move_what_is_expected_only_a_little() -> None:
    """Two replies of 64 tokens without a gain say little about the next text; fifty decide."""

    def speed_after(tokens: float | None) -> float:
        known = told() if tokens is None else told(phrases=ReplyStats(1.0, 7, 0.25, tokens=tokens))
        return one(run_plans(model(), [PRECISION], known, 16), "phrases").speed

    before, few, many, all_of_it = (speed_after(tokens) for tokens in (None, 128.0, 3200.0, math.inf))
    assert before > few > many > all_of_it == pytest.approx(16.0)
    assert few == pytest.approx(before ** (1 - 128 / 728) * all_of_it ** (128 / 728))


@given(st.integers(1, 20), st.integers(0, 19))
def test_m_counts_the_peak_where_it_was_measured(peak: int, held: int) -> None:
    known = told(phrases=ReplyStats(2.0, 3, 0.0, peak=peak * GIB, drafter_bytes=min(held, peak - 1) * GIB))
    found = run_plans(model(), [PRECISION], known, 16)
    phrases, alone = one(found, "phrases"), one(found, "none")
    assert phrases.peak_measured and not alone.peak_measured
    assert phrases.cost_effectiveness == pytest.approx(2.0 / (peak / (peak - min(held, peak - 1))))
    assert (phrases.bytes == peak * GIB) == (peak * GIB >= alone.bytes) and phrases.bytes >= alone.bytes


def test_a_drafter_that_nobody_foresees_counts_once_it_replied() -> None:
    assert not any("lookahead" in plan.candidate.name for plan in run_plans(model(), [PRECISION], told(), 16))
    found = run_plans(
        model(), [PRECISION], told(lookahead=ReplyStats(1.6, 4, 0.02), phrases=ReplyStats(1.05, 1, 0)), 16
    )
    assert taken(*found) == ("lookahead", "memory")
    here = trained("s3d", 10**8, 0.5), trained("semi", 10**8, 0.5)
    key = reply_key("s3d+semi+phrases", here, None)
    found = run_plans(model(here=here), [PRECISION], told(**{key: ReplyStats(2.6, 8, 0.2)}), 16)
    assert taken(*found) == ("s3d+semi+phrases", "memory")


@each("at_33, at_65, nodes", [(1.0, 1.0, 64), (1.02, 1.1, 32), (1.06, 1.06, 16)])
def test_trees_are_wider_where_further_rows_are_next_to_free(at_33: float, at_65: float, nodes: int) -> None:
    costs = ForwardCosts((1, 17, 33, 65), (256,), ((0.9, 1.0, at_33, at_65),))
    assert {plan.most for plan in run_plans(model(), [PRECISION], told(costs=costs))} == {nodes}
    assert {plan.most for plan in run_plans(model(), [PRECISION], told(costs=costs), 8)} == {8}, "asked for"
    assert {plan.most for plan in run_plans(model(), [PRECISION], NoMeasurements())} == {AUTO_NODES}, "an estimate"


# -- which one is taken ------------------------------------------------------------------------------------------------

PLAIN, PHRASES = plan("none", 10), plan("phrases", 12)
PAIR = plan("draft_model", 16, 1.5)  # M 1.07
LARGE = plan("draft_model", 16, 15.0)


@each(
    "plans, how, expected",
    [
        ((PLAIN, PHRASES, PAIR), {}, ("draft_model", "speed")),
        ((PLAIN, PHRASES, PAIR), {"rule": "memory"}, ("phrases", "memory")),
        ((PLAIN, PHRASES, LARGE), {}, ("phrases", "memory")),  # more than half of what may be used
        ((PLAIN, PHRASES, LARGE), {"rule": "speed"}, ("draft_model", "speed")),
        ((PLAIN, PHRASES, plan("draft_model", 16, 30.0)), {"rule": "speed"}, ("phrases", "speed")),  # no room
        ((PLAIN, PHRASES, plan("draft_model", 12.5, 1.5)), {}, ("phrases", "speed")),  # not clearly better
        ((PLAIN, plan("phrases", 9)), {}, ("none", "speed")),
        ((PLAIN, plan("phrases", 9)), {"allow_plain": False}, None),
        ((PLAIN, PHRASES, plan("medusa", 16, here=False)), {}, ("phrases", "speed")),
        ((PLAIN, PHRASES, plan("medusa", 16, here=False)), {"here": False}, ("medusa", "speed")),
        ((PLAIN, PHRASES, plan("medusa", 16, here=False, source=None)), {"here": False}, ("phrases", "speed")),
        ((PLAIN, plan("medusa+phrases", 16), plan("medusa", 16)), {}, ("medusa+phrases", "speed")),
    ],
)
def test_speed_decides_where_memory_is_plentiful_and_m_where_it_is_short(plans, how, expected) -> None:
    assert taken(*plans, **how) == expected


@given(
    st.lists(st.tuples(st.floats(1, 99), st.floats(1, 30)), min_size=1, max_size=8),
    st.sampled_from(["auto", "memory", "speed"]),
)
def test_what_is_taken_fits_and_never_loses_against_plain_decoding(figures, rule) -> None:
    ranked = [PLAIN, *(plan("medusa", speed, size) for speed, size in figures)]
    found = best(ranked, rule=rule)
    assert found is not None and found.fits
    assert plans.worth(found, found.rule) >= plans.worth(PLAIN, found.rule)
    assert rule in ("auto", found.rule) and found.rule_named == (rule != "auto")
    if rule != "memory":
        fastest = best(ranked, rule="speed")
        assert fastest is not None and (found.rule == "speed") == (rule == "speed" or not fastest.short)
        assert max(one.speed for one in ranked if one.fits) <= fastest.speed * plans.CLEARLY * 1.0001


def test_phrases_are_taken_unless_replies_showed_that_they_lose_time() -> None:
    steep = ForwardCosts((1, 2, 64), (256,), ((0.05, 0.2, 10.0),))  # a second row costs three times the first
    assert taken(*run_plans(model(), [PRECISION], told(costs=steep), 16)) == ("phrases", "memory")
    losing = run_plans(model(), [PRECISION], told(costs=steep, phrases=ReplyStats(1.0, 4.0, 0.0)), 16)
    assert taken(*losing) == ("none", "memory")
    assert taken(*run_plans(model(), [PRECISION], told(phrases=ReplyStats(0.99, 1.0, 0.0)), 16)) == (
        "phrases",
        "memory",
    )


# Milliseconds of forwards of 1 to 16 rows, for a model that fits into the CPU's cache, and for one that does not.
TINY = ForwardCosts((1, 2, 4, 8, 16), (256,), ((2.0e-4, 2.1e-4, 2.6e-4, 3.7e-4, 7e-4),))
LONG = ForwardCosts((1, 2, 4, 8, 16), (256,), ((0.055, 0.056, 0.059, 0.064, 0.085),))


def test_phrases_are_for_models_whose_steps_take_longer_than_the_lookup_in_replies(real_host) -> None:
    quick, slow = ({"phrases": ReplyStats(1.02, 1.0, 0.0, rest=beside)} for beside in (0.002, 0.4))
    for costs, known, drafter in ((LONG, quick, "phrases"), (TINY, slow, "none"), (TINY, {}, "phrases")):
        found = best(run_plans(model(), [PRECISION], told(costs=costs, **known), 16))
        assert found is not None and found.candidate.name == drafter


def test_apples_gpus_decode_plainly_until_it_is_measured_that_a_drafter_pays() -> None:
    mac = Precision(apple(48), "bf16", "int4")
    alone = plan("none", 10, precision=mac)
    assert taken(alone, plan("phrases", 20, precision=mac)) == ("none", "speed")
    for speed, drafter in ((10.4, "none"), (10.6, "phrases")):
        assert taken(alone, plan("phrases", speed, precision=mac, measured=True)) == (drafter, "speed")


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_a_reason_names_precision_speed_m_the_rule_and_their_sources() -> None:
    assert explained(PLAIN, [PLAIN]) == wording("explained_plain")
    assert explained(PHRASES, [PHRASES, PLAIN]) == wording("explained_phrases")
    short = replace(PHRASES, rule="memory", measured=True)
    assert explained(short, [short, PLAIN]) == wording("explained_phrases_by_m")
    named = replace(PHRASES, rule="memory", rule_named=True)
    assert explained(named, [named, PLAIN]).endswith(wording("chosen_by_m_as_the_setting_says"))
    replies = replace(PHRASES.candidate, replies=ReplyStats(1.3, 4, 0.0, peak=GIB))
    assert explained(replace(PHRASES, candidate=replies), [PLAIN]) == wording("explained_phrases_as_measured")
    for count, words in ((1, "as measured in 1 reply here;"), (12, "as measured in 12 replies here;")):
        counted = replace(replies, replies=ReplyStats(1.3, 4, 0.0, peak=GIB, replies=count))
        assert words in explained(replace(PHRASES, candidate=counted), [PLAIN])
    lost = explained(replace(PHRASES, nodes=0), [PHRASES, PLAIN])
    assert wording("phrases_expected_to_cost_more") in lost and "tokens/step" not in lost


def test_a_reason_says_why_the_best_other_drafter_is_left_out() -> None:
    assert explained(PLAIN, [PLAIN, plan("medusa", 8)]).endswith(wording("medusa_would_have_less_speed"))
    by_m = replace(PLAIN, rule="memory")
    assert explained(by_m, [by_m, plan("medusa", 16, 2.0, here=False)]).endswith(
        wording("medusa_not_here_would_have_less_m")
    )
    assert explained(PHRASES, [PLAIN, PHRASES, plan("medusa", 12.1, 30.0)]).endswith(
        wording("medusa_would_reach_and_takes")
    )
    mac = plan("none", 10, precision=Precision(apple(), "bf16", "int4"))
    assert wording("speculation_off_apple_s_gpus") in explained(mac, [mac])


@each(
    "speed, known, key",
    [
        (8, (True, True), "phrases_20_slower_measured"),
        (8, (True, False), "phrases_20_slower_predicted"),
        (9.98, (True, True), "phrases_gain_too_little_measured"),
        (9.98, (False, False), "phrases_gain_too_little_predicted"),
        (11, (True, True), "no_drafter_expected_to_pay"),
    ],
)
def test_who_gets_no_drafter_learns_why(speed, known, key) -> None:
    alone = replace(PLAIN, measured=known[0])
    assert why_none(alone, [alone, plan("phrases", speed, measured=known[1])]) == wording(key)
    assert why_none(alone, [alone]) == wording("no_drafter_expected_to_pay")


@each(
    "row, expected",
    [
        (0.02, "mtp"),  # as rows cost in the CPU engine
        (0.7, "phrases"),
    ],
)
def test_the_layer_in_a_models_own_files_drafts_where_measured_forwards_let_it_pay(row, expected) -> None:
    """A draft of n tokens reads the layer and the head n times, and each of them is a row of the next forward."""
    shape = Shape.of({"model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 2560,
                      "intermediate_size": 9216, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
                      "vocab_size": 248320, "max_position_embeddings": 262144, "tie_word_embeddings": True})  # fmt: skip
    assert shape is not None and shape.recurrent
    parameters = kind_of("mtp").parameters(shape)
    layer = DrafterCard("mtp", Path("model"), {}, "", "big", parameters, 2 * parameters, {})
    target = Model(unfetched(shape), shape, shape.parameters, (layer,))
    known = Told({("cpu", "int8"): ModelMeasurements(flat(0.2, row), {})})
    ranked = run_plans(target, [Precision(cpu(24), "fp32", "int8")], known)
    mtp = next(one for one in ranked if one.candidate.name == "mtp")
    drafting = mtp.candidate.draft_seconds
    assert drafting(2) == pytest.approx(2 * 0.2 * (parameters + shape.embedding) / shape.matrices)
    chosen = best(ranked)
    assert chosen is not None and chosen.candidate.drafter.partition("+")[0] == expected
    reason = explained(chosen, ranked)
    if expected == "mtp":
        assert re.search(r"2\.\d\d tokens/step expected \(as measured for a 0\.8B model in LightLLM\)", reason)
    else:
        assert re.search(
            r"drafting with mtp(\+phrases)? would reach only (0\.\d\d|1\.00) times the speed of plain decoding", reason
        )


def test_a_gpu_is_never_left_idle_without_a_sentence() -> None:
    here = plan("none", 10, precision=Precision(cpu(), "bf16", "int8"))
    assert why_idle("big", here, [(cpu(), here)]) == why_idle("big", PLAIN, [(GPU, PLAIN), (cpu(), here)]) == ""
    assert why_idle("big", here, [(GPU, plan("none", 5)), (cpu(), here)]) == wording("gpu_idle_slower")
    assert why_idle("big", here, [(GPU, plan("none", 50, 30.0)), (cpu(), here)]) == wording("gpu_idle_no_room")
    assert why_idle("big", here, [(GPU, UsageMistake("It has no kernels.")), (cpu(), here)]) == wording(
        "gpu_idle_refused"
    )


def test_a_billion_keeps_what_was_requested() -> None:
    long = Model(unfetched(BILLION), BILLION, BILLION.parameters)
    usual, more = (
        one(run_plans(long, [PRECISION], NoMeasurements(), 16, tokens), "none").bytes for tokens in (None, 8192)
    )
    assert more - usual == BILLION.cached(4096, 2)


MIXTURE = Shape.of(
    {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
)  # fmt: skip -- Qwen3-30B-A3B


def test_only_mapped_experts_stay_on_the_disk_and_torch_packs_no_experts() -> None:
    assert fit.on_disk("int4", "native", 10**10, 10**6) == 10**6
    assert fit.on_disk("int4", "native", 10**10, 10**10) == 10**10 // 2
    for quantize, backend in (("none", "native"), ("int8", "cuda"), ("int8", "cpu")):
        assert fit.on_disk(quantize, backend, 10**10, 10**6) == 0
    model = Model(unfetched(MIXTURE), MIXTURE, MIXTURE.parameters)
    assert as_computed(gpu(), model).packings == () and "experts" in as_computed(gpu(), model).missing["int8"]
    assert as_computed(cpu(), model).packings == cpu().packings


@each("gib, on_disk", [(32, False), (14, True), (8, None)])  # None: not even with half on the disk
def test_experts_without_room_in_memory_stay_on_the_disk_and_a_clause_says_how_slow_that_is(
    gib, on_disk, monkeypatch
) -> None:
    model = Model(unfetched(MIXTURE), MIXTURE, MIXTURE.parameters)
    ranked = run_plans(model, [Precision(cpu(gib), "bf16", "int4")], NoMeasurements())
    plan = next(one for one in ranked if one.candidate.name == "none")
    assert plan.fits is (on_disk is not None) and (plan.on_disk > 0) is (on_disk is not False)
    words = explained(plan, ranked)
    assert "; 3.04 B of 30.5 B parameters are read for each token" in words
    if on_disk is None:
        in_experts = in_four_bits([one for one in MIXTURE.linears if ".experts." in one[0]], MIXTURE.num_layers)
        assert plan.on_disk == pytest.approx(in_experts / 2, rel=0.05)
        with pytest.raises(DoesNotFit, match=r"needs [\d.]+ GiB .*, with half of its experts on the disk"):
            choices(model, DrafterSpec("none"), Settings(quantize="int4"), machine(cpu(gib)))
        return
    chosen, *_ = choices(model, DrafterSpec("none"), Settings(quantize="int4"), machine(cpu(gib)))
    assert bool(chosen.on_disk) is on_disk, "it is loaded so"
    if not on_disk:
        assert plan.slowed == 1 and "disk" not in words
        return
    roomy = run_plans(model, [Precision(cpu(32), "bf16", "int4")], NoMeasurements())
    faster = next(one for one in roomy if one.candidate.name == "none")
    assert plan.slowed == pytest.approx(faster.speed / plan.speed, rel=0.05) and plan.slowed > 2
    assert f"{plan.on_disk / 2**30:.1f} GiB of experts have no room" in words
    assert f"{plan.slowed:.1f} times as long if the disk reads 0.75 GB/s, as assumed" in words
    measured = Told(on_disk=7.5e9)
    ranked = run_plans(model, [Precision(cpu(gib), "bf16", "int4")], measured)
    quicker = next(one for one in ranked if one.candidate.name == "none")
    assert (plan.slowed - 1) / (quicker.slowed - 1) == pytest.approx(10) and "assumed" not in explained(quicker, ranked)
    timed = Told(models={("cpu", "int4"): ModelMeasurements(flat(0.1))})
    monkeypatch.setattr(Told, "disk", lambda self, card: pytest.fail("measured costs include the disk"))
    assert run_plans(model, [Precision(cpu(gib), "bf16", "int4")], timed)[0].on_disk


def test_a_mixture_that_does_not_fit_in_its_blocks_is_not_packed_again() -> None:
    def packings(model: Model) -> set[str]:
        offered = [Precision(cpu(4), "bf16", one) for one in (BLOCKS, "int4")]
        return {one.precision.quantize for one in run_plans(model, offered, NoMeasurements())}

    mixture = Model(unfetched(MIXTURE), MIXTURE, MIXTURE.parameters, packed=(BLOCKS, "int4"), block_bytes=17 * 10**9)
    assert packings(mixture) == {BLOCKS}
    assert packings(replace(IN_BLOCKS, block_bytes=8 * 10**9)) == {"int4"}


@each("slowed, words", [(1.04, ""), (1.06, ", so a token takes about 1.1 times as long")])
def test_a_clause_never_says_that_a_token_takes_once_as_long(slowed, words) -> None:
    model = Model(unfetched(MIXTURE), MIXTURE, MIXTURE.parameters)
    (plan, *_) = run_plans(model, [Precision(cpu(14), "bf16", "int4")], NoMeasurements())
    assert disk_words(replace(plan, slowed=slowed, disk_measured=True)).endswith(f"are read from the disk{words}")


def test_a_mixture_in_gguf_files_is_never_packed_again_unasked() -> None:
    """Not even if int4 would fit. A dense model that does not fit in its blocks is offered int4."""
    in_blocks = int(MIXTURE.parameters * 0.9)  # bytes, as in Q6_K and Q8_0
    model = Model(unfetched(MIXTURE), MIXTURE, MIXTURE.parameters, packed=(BLOCKS,), block_bytes=in_blocks)
    device = as_computed(cpu(16), model)
    assert "int4" in device.packings
    ranked = run_plans(model, natural_precisions(device), NoMeasurements())
    assert {plan.precision.quantize for plan in ranked} == {BLOCKS}
    named = run_plans(model, [Precision(device, "bf16", "int4")], NoMeasurements())
    assert {plan.precision.quantize for plan in named} == {"int4"}
