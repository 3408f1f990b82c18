"""Which plan to run a model pays on a machine that nobody has, and how that is explained."""

import math
from dataclasses import replace

import pytest
from each import each
from golden import wording
from machines import BILLION, GIB, LITTLE, SEVEN, Told, apple, cpu, flat, gpu, trained, unfetched

from localspec.hub.sources import Source
from localspec.machine.machine import Device
from localspec.models.drafter_cards import DrafterCard
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.models.model import Model
from localspec.policy import host_time, ranking
from localspec.policy.candidates import DrafterCandidate, plain, reply_key
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.measurements import ModelMeasurements, NoMeasurements, ReplyStats
from localspec.policy.prediction import CONTEXT, Acceptance, Rates, reading
from localspec.policy.ranking import (
    AUTO_NODES,
    FORESEEN_TOKENS,
    QUICK,
    Precision,
    RunPlan,
    best,
    explained,
    natural_precisions,
    pays,
    run_plans,
)

GPU = gpu(24, packings=("int8",))
PRECISION = Precision(GPU, "bf16", "none")


def model(*published: PublishedDrafter, here: tuple[DrafterCard, ...] = ()) -> Model:
    return Model(unfetched(SEVEN, drafters=published), SEVEN, SEVEN.parameters, here)


def names(found: list[RunPlan]) -> list[str]:
    return [plan.candidate.name for plan in found]


def one(found: list[RunPlan], name: str, quantize: str = "none") -> RunPlan:
    (plan,) = (plan for plan in found if plan.candidate.name == name and plan.precision.quantize == quantize)
    return plan


# -- precisions ----------------------------------------------------------------------------------------------------------


def test_a_device_has_all_the_precisions_that_it_computes_in() -> None:
    assert [str(precision) for precision in natural_precisions(cpu())] == ["int8", "int4"]
    assert [str(precision) for precision in natural_precisions(cpu(packings=(), bf16=False))] == ["fp32"]
    assert [str(precision) for precision in natural_precisions(gpu())] == ["bf16", "int8", "nf4"]
    assert [str(precision) for precision in natural_precisions(apple())] == ["bf16", "int8", "int4"]


def test_an_older_gpu_computes_in_fp16() -> None:
    turing = replace(gpu(), dtypes=("fp16", "fp32"))
    assert {precision.dtype for precision in natural_precisions(turing)} == {"fp16"}


# -- M -------------------------------------------------------------------------------------------------------------------


def test_m_is_against_the_fastest_plain_decoding_that_fits() -> None:
    found = run_plans(model(), natural_precisions(GPU), NoMeasurements(), 16)
    base = one(found, "none")
    assert base.fits and base.cost_effectiveness == 1
    for plan in found:
        assert plan.cost_effectiveness == pytest.approx((plan.speed / base.speed) / (plan.bytes / base.bytes))
    assert [plan.cost_effectiveness for plan in found] == sorted(
        (plan.cost_effectiveness for plan in found), reverse=True
    )
    tight = gpu(24, free=12, packings=("int8",))
    found = run_plans(model(), natural_precisions(tight), NoMeasurements(), 16)
    assert not one(found, "none").fits and one(found, "none", "int8").cost_effectiveness == 1
    none = run_plans(model(), natural_precisions(gpu(4, packings=("int8",))), NoMeasurements(), 16)
    assert one(none, "none").cost_effectiveness == 1, "where nothing fits, the fastest of all"


def packings(device: Device, **settings: object) -> list[str]:
    """Those of the plans for a model on a device, each once, in the order of their M."""
    told = settings.pop("told", NoMeasurements())
    found = run_plans(model(), natural_precisions(device), told, 16, **settings)  # type: ignore[arg-type]
    return list(dict.fromkeys(plan.precision.quantize for plan in found))


def test_int4_is_left_out_where_int8_fits_and_is_quick_enough_to_read_along() -> None:
    assert packings(cpu(48, bandwidth=100e9)) == ["int8"]
    assert packings(cpu(48, bandwidth=20e9)) == ["int4"], "slow"
    assert packings(cpu(8, bandwidth=100e9)) == ["int4"], "int8 has no room"
    assert packings(cpu(4, bandwidth=100e9)) == ["int4", "int8"], "neither has"
    assert packings(cpu(10, bandwidth=100e9)) == ["int8"]
    assert packings(cpu(9.2, bandwidth=100e9), context=4096)[0] == "int4"
    assert packings(cpu(9.2, bandwidth=100e9), context=256) == ["int8"], "a shorter context leaves room for it"


@each("speed, taken", [(QUICK * 0.99, "int4"), (QUICK * 1.01, "int8")])
def test_quick_is_what_plain_decoding_is_with_this_memory_without_the_hope_for_a_drafter(speed, taken) -> None:
    def plain_speed(bandwidth: float) -> float:
        read = reading(cpu(48, bandwidth=bandwidth), "bf16", "int8")
        return 1 / (read * (SEVEN.matrices + SEVEN.cached(CONTEXT, 1)))

    low, high = 1e9, 1e12
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if plain_speed(middle) < speed else (low, middle)
    phrases = {"phrases": ReplyStats(3.0, 5, 0.0)}
    told = Told({("cpu", "int8"): ModelMeasurements(flat(0.3), phrases)}, memory=low)
    for elsewhere in (10e9, 1000e9):
        assert packings(cpu(48, bandwidth=elsewhere), told=told) == [taken], "measured before assumed"


def test_int4_alone_is_what_was_asked_for_and_other_devices_keep_theirs() -> None:
    fast = cpu(48, bandwidth=100e9)
    found = run_plans(model(), [Precision(fast, "bf16", "int4")], NoMeasurements(), 16)
    assert {plan.precision.quantize for plan in found} == {"int4"} and one(
        found, "none", "int4"
    ).cost_effectiveness == 1
    assert "int4" in packings(replace(apple(48), bandwidth=800e9))
    beside = [*natural_precisions(gpu(48)), *natural_precisions(cpu(48, bandwidth=20e9))]
    found = run_plans(model(), beside, NoMeasurements(), 16)
    assert any(plan.precision.quantize == "int4" for plan in found), "int8 is quick on the GPU alone"
    assert "int4" in packings(cpu(48, packings=("int4",), bandwidth=100e9)), "there is no int8 to take instead"


def test_what_is_left_out_is_no_baseline() -> None:
    found = run_plans(model(), natural_precisions(cpu(48, bandwidth=100e9)), NoMeasurements(), 16)
    assert one(found, "none", "int8").cost_effectiveness == 1


def test_bytes_are_weights_drafter_cache_tree_workspace_and_the_program() -> None:
    found = run_plans(model(PublishedDrafter("medusa", parameters=10**9)), [PRECISION], NoMeasurements(), 16)
    plain_decoding, heads = (
        one(found, "none"),
        one(found, "medusa+phrases") if "medusa+phrases" in names(found) else None,
    )
    assert heads is None, "nobody knows what these heads bring"
    assert plain_decoding.loaded_bytes == 2 * SEVEN.parameters
    # a bucket of 256 slots more: behind 4096 tokens there is still the root
    assert plain_decoding.bytes - plain_decoding.loaded_bytes > SEVEN.cached(4096 + 256, 2) + 100 * 2**20
    short = one(run_plans(model(), [PRECISION], NoMeasurements(), 16, context=100), "none")
    assert plain_decoding.bytes - short.bytes == SEVEN.cached(4096, 2)
    with_heads = run_plans(
        model(PublishedDrafter("medusa", parameters=10**9, accepted=PublishedLength(2.3, 4, "x"))),
        [PRECISION],
        NoMeasurements(),
        16,
    )
    assert one(with_heads, "medusa").loaded_bytes == 2 * SEVEN.parameters + 2 * 10**9


def test_planned_is_the_models_own_context_or_what_is_usual() -> None:
    long = Model(unfetched(BILLION), BILLION, BILLION.parameters)
    usual, asked = (
        one(run_plans(long, [PRECISION], NoMeasurements(), 16, context), "none").bytes for context in (None, 4096)
    )
    assert usual == asked
    assert one(run_plans(long, [PRECISION], NoMeasurements(), 16, 8192), "none").bytes - usual == BILLION.cached(
        4096, 2
    )


def test_what_fits_is_what_may_be_used() -> None:
    size = one(run_plans(model(), [PRECISION], NoMeasurements(), 16), "none").bytes
    for spare, fits in ((-1, False), (0, True)):
        where = Device("cuda:0", "", 100 * GIB, size + 10 * GIB + spare, ("bf16",))
        assert one(run_plans(model(), [Precision(where, "bf16", "none")], NoMeasurements(), 16), "none").fits == fits


# -- measured before predicted ---------------------------------------------------------------------------------------------


def test_what_was_measured_is_taken_and_what_was_not_is_predicted() -> None:
    told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05), {"phrases": ReplyStats(2.5, 7, 0.25)})})
    found = run_plans(model(), natural_precisions(GPU), told, 16)
    assert (one(found, "none").speed, one(found, "none").measured) == (pytest.approx(20.0), True)
    assert (one(found, "phrases").speed, one(found, "phrases").measured) == (pytest.approx(2.5 / 0.05 / 1.25), True)
    assert not one(found, "none", "int8").measured and not one(found, "phrases", "int8").measured


def test_replies_are_worth_nothing_without_what_their_rows_cost() -> None:
    told = Told({("cuda:0", "none"): ModelMeasurements(None, {"phrases": ReplyStats(2.5, 7, 0.25)})})
    found = run_plans(model(), [PRECISION], told, 16)
    assert not one(found, "phrases").measured and not one(found, "none").measured
    acceptance = one(found, "phrases").candidate.acceptance
    assert acceptance is not None and acceptance.origin == wording("as_measured_here"), "but what was accepted is known"


@each("brought, taken", [(1.6, "lookahead"), (1.1, "phrases")])
def test_a_window_is_taken_once_replies_told_that_it_pays(brought: float, taken: str) -> None:
    replies = {"lookahead": ReplyStats(brought, 4.0, 0.02), "phrases": ReplyStats(1.05, 1.0, 0.0)}
    replies["lookahead+phrases"] = ReplyStats(brought, 4.0, 0.02)
    told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05, slope=0.01), replies)})
    chosen = best(run_plans(model(), [PRECISION], told, 16))
    assert chosen is not None and chosen.candidate.name.removesuffix("+phrases") == taken and chosen.measured
    assert not any("lookahead" in name for name in names(run_plans(model(), [PRECISION], NoMeasurements(), 16)))


def test_several_in_one_tree_are_taken_once_replies_told_that_they_pay() -> None:
    here = trained("s3d", 10**8, 0.5), trained("semi", 10**8, 0.5)

    def taken(brought: float | None) -> str | None:
        replies = {reply_key(one.kind, (one,), None): ReplyStats(1.4, 8.0, 0.1) for one in here}
        replies |= {reply_key(f"{one.kind}+phrases", (one,), None): ReplyStats(1.4, 8.0, 0.1) for one in here}
        replies["phrases"] = ReplyStats(1.05, 1.0, 0.0)
        if brought is not None:
            replies[reply_key("s3d+semi+phrases", here, None)] = ReplyStats(brought, 8.0, 0.2)
        told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05), replies)})
        chosen = best(run_plans(model(here=here), [PRECISION], told, 16))
        assert chosen is not None
        return chosen.candidate.name if chosen.measured else None

    assert taken(2.2) == "s3d+semi+phrases"
    assert [taken(None), taken(1.2)] == ["s3d+phrases"] * 2


def test_what_was_foreseen_counts_beside_few_replies_and_hardly_beside_many() -> None:
    heads = trained("medusa", 10**8, 0.8)

    def speed(tokens: float | None) -> float:
        replies = {reply_key("medusa", (heads,), None): ReplyStats(1.1, 2.0, 0.1, tokens=tokens)} if tokens else {}
        told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05, slope=0.01), replies)})
        return one(run_plans(model(here=(heads,)), [PRECISION], told, 16), "medusa").speed

    foreseen, brought = speed(None), speed(math.inf)
    assert brought == pytest.approx(1.1 / (flat(0.05, slope=0.01).at(3, CONTEXT) * 1.1)) and foreseen > 1.2 * brought
    assert speed(FORESEEN_TOKENS) == pytest.approx((foreseen * brought) ** 0.5)
    assert brought < speed(19 * FORESEEN_TOKENS) == pytest.approx(brought * (foreseen / brought) ** 0.05)


def test_what_plain_replies_take_beside_forwards_is_expected_of_all_others() -> None:
    heads = trained("medusa", 10**8, 0.8)

    def times_plain(name: str, replies: dict[str, ReplyStats]) -> float:
        told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05), replies)})
        plans = run_plans(model(here=(heads,)), [PRECISION], told, 16)
        return one(plans, name).speed / one(plans, "none").speed

    slow = {"none": ReplyStats(1.0, 0.0, 0.0, beside=0.9)}
    few = {reply_key("medusa", (heads,), None): ReplyStats(1.1, 0.0, 0.0, beside=0.9, tokens=1e-6)}
    for name in ("medusa", "phrases"):
        assert times_plain(name, slow) == pytest.approx(times_plain(name, {}), rel=1e-2)
    assert times_plain("medusa", slow | few) == pytest.approx(times_plain("medusa", {}), rel=1e-2), "blended, too"


@each("name, drafter", [("ouroboros:small", "ouroboros"), ("draft_model:small", "draft_model"),
     ("draft_model:small+phrases", "draft_model+phrases")])  # fmt: skip
def test_replies_of_a_pair_are_found_though_its_way_names_the_small_model(name: str, drafter: str) -> None:
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters)
    key = reply_key(drafter, (), small.card)
    pair = replace(model(), small=small, small_here=True)
    told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05), {key: ReplyStats(3.0, 5, 0.5)})})
    plan = one(run_plans(pair, [PRECISION], told, 16), name)
    assert (plan.measured, plan.speed) == (True, pytest.approx(3.0 / 0.05 / 1.5))
    assert plan.candidate.here and plan.loaded_bytes > 2 * SEVEN.parameters + LITTLE.parameters


def test_rates_of_the_device_make_the_prediction() -> None:
    rates = Rates((1,), (1e-12,), (1e-4,))
    found = run_plans(model(), [PRECISION], Told(devices={("cuda:0", "bf16", "none"): rates}), 16)
    assert one(found, "none").speed == pytest.approx(1 / rates.forward(SEVEN, 1, CONTEXT))


# -- which one is taken ----------------------------------------------------------------------------------------------------


def plan(name: str, cost_effectiveness: float, *, measured: bool = False, size: int = 0, **more: object) -> RunPlan:
    """A plan whose M is given, on a GPU with room."""
    precision = more.pop("precision", PRECISION)
    source = more.pop("source", Source("org/medusa"))
    published = None if more.pop("here", True) else PublishedDrafter("medusa", source=source)  # type: ignore[arg-type]
    drafter = plain() if name == "none" else DrafterCandidate(
        name, size, Acceptance((0.5,), "by guess"), lambda nodes: 0.0, published=published
    )  # fmt: skip
    fits = more.pop("fits", True)
    return RunPlan(
        precision, drafter, 1, 1, GIB if fits else 99 * GIB, 10 * cost_effectiveness, measured, cost_effectiveness
    )  # type: ignore[arg-type]


def taken(*ranked: RunPlan, **how: bool) -> str | None:
    found = best(sorted(ranked, key=lambda plan: plan.cost_effectiveness, reverse=True), **how)
    return None if found is None else found.candidate.name


def test_a_drafter_must_be_clearly_better_than_a_simpler_one() -> None:
    plain_decoding = plan("none", 1.0)
    assert taken(plain_decoding, plan("phrases", 1.4), plan("medusa", 1.46, measured=True)) == "phrases"
    assert taken(plain_decoding, plan("phrases", 1.4), plan("medusa", 1.48, measured=True)) == "medusa"
    assert taken(plain_decoding, plan("medusa", 1.04, measured=True)) == "none"
    assert taken(plain_decoding, plan("medusa", 1.06, measured=True)) == "medusa"
    assert taken(plain_decoding, plan("phrases", 1.0)) == "phrases", "drafts that do not pay are cut to nothing"


def test_and_much_better_where_that_is_a_guess() -> None:
    plain_decoding, phrases = plan("none", 1.0), plan("phrases", 1.4)
    assert taken(plain_decoding, phrases, plan("medusa", 1.68)) == "phrases"
    assert taken(plain_decoding, phrases, plan("medusa", 1.70)) == "medusa"


def test_and_the_less_the_more_replies_told() -> None:
    few, many = (replace(plan("medusa", 1.1, measured=True, size=1), doubt=doubt) for doubt in (0.5, 0.05))
    assert (taken(plan("none", 1.0), few), taken(plan("none", 1.0), many)) == ("none", "medusa")


def test_phrases_that_take_much_of_a_step_are_a_drafter_like_others() -> None:
    def looked_for(cost_effectiveness: float, seconds: float, measured: bool = False) -> RunPlan:
        found = plan("phrases", cost_effectiveness, measured=measured)
        return replace(found, candidate=replace(found.candidate, draft_seconds=lambda nodes: seconds))

    plain_decoding = plan("none", 1.0)  # 10 tokens a second
    assert taken(plain_decoding, looked_for(1.0, 0.004)) == "phrases"
    assert taken(plain_decoding, looked_for(1.15, 0.02)) == "none", "it is a guess"
    assert taken(plain_decoding, looked_for(1.25, 0.02)) == "phrases"
    assert taken(plain_decoding, looked_for(1.03, 0.02, measured=True)) == "none"
    assert taken(plain_decoding, looked_for(1.1, 0.02, measured=True)) == "phrases"


def test_of_drafters_as_good_the_smaller_one() -> None:
    heads = [plan("medusa", 2.0, size=100), plan("s3d", 1.95, size=10), plan("semi", 1.5, size=1)]
    assert taken(plan("none", 1.0), *heads) == "s3d"


def test_of_as_many_bytes_the_one_with_phrases_unless_looking_for_them_takes_time(monkeypatch) -> None:
    monkeypatch.setattr(host_time, "PHRASES", 1e-4)
    plain_decoding, alone, both = plan("none", 1.0), plan("medusa", 2.0, size=9), plan("medusa+phrases", 1.95, size=9)
    assert taken(plain_decoding, alone, both) == "medusa+phrases"
    assert taken(plain_decoding, alone, plan("medusa+phrases", 1.8, size=9)) == "medusa", "it is clearly better"
    tiny = [replace(one, speed=1000.0) for one in (plain_decoding, alone, both)]
    assert taken(*tiny) == "medusa"


def test_what_does_not_fit_is_not_here_or_is_left_out_is_not_taken() -> None:
    plain_decoding = plan("none", 1.0)
    assert taken(plain_decoding, plan("medusa", 3.0, fits=False)) == "none"
    assert taken(plain_decoding, plan("medusa", 3.0, here=False)) == "none"
    assert taken(plain_decoding, plan("medusa", 3.0, here=False), here=False) == "medusa"
    assert taken(plain_decoding, plan("medusa", 3.0, here=False, source=None), here=False) == "none", (
        "nobody publishes it"
    )
    assert taken(plan("none", 1.0, fits=False), plan("phrases", 1.4, fits=False)) is None
    assert taken(plain_decoding, plan("phrases", 1.2), allow_plain=False) == "phrases"
    assert taken(plain_decoding, plan("phrases", 0.9), allow_plain=False) is None


def test_a_drafter_whose_m_is_below_plain_decoding_in_its_own_precision_is_never_taken() -> None:
    eight = Precision(GPU, "bf16", "int8")
    ranked = [plan("phrases", 1.8, precision=eight), plan("none", 1.9, precision=eight), plan("none", 1.0)]
    assert taken(*ranked) == "none"
    assert not pays(ranked[0], ranked) and pays(ranked[1], ranked) and pays(ranked[2], ranked)


# -- S3D's point -----------------------------------------------------------------------------------------------------------


def test_under_a_cap_a_drafter_without_weights_of_its_own_needs_no_quantisation() -> None:
    """Figure 3 of the S3D paper: 7B under 16 GiB, on a device where 8 bit has 0.4 of the speed of fp16.

    S3D stays in half precision; what needs gigabytes beside the target has to be quantised, and loses. Where there is
    room for both, the larger drafter may win.
    """
    large = PublishedDrafter(
        "parallelspec",
        source=Source("org/large"),
        parameters=1_500_000_000,
        accepted=PublishedLength(3.8, 10, "a paper"),
    )
    target = model(PublishedDrafter("s3d", source=Source("org/s3d")), large)

    def slower(times: float) -> Rates:
        weight = times * 2 / 480e9
        return Rates((1, 64), (weight, 1.6 * weight), (1.5e-4 * times,) * 2)

    told = Told(devices={("cuda:0", "bf16", "none"): slower(1), ("cuda:0", "bf16", "int8"): slower(2.5)})

    def under(cap: float) -> tuple[list[RunPlan], str]:
        device = gpu(cap, packings=("int8",))
        found = run_plans(target, natural_precisions(device), told, 16, context=512)
        chosen = best(found, here=False)
        assert chosen is not None and chosen.fits
        return found, f"{chosen.precision} {chosen.candidate.name}"

    found, chosen = under(16)
    assert chosen == "bf16 s3d+phrases"
    assert one(found, "s3d").fits and not one(found, "parallelspec").fits
    quantised = one(found, "parallelspec", "int8")
    assert quantised.fits and one(found, "s3d").cost_effectiveness > quantised.cost_effectiveness
    assert one(found, "s3d").speed > 1.5 * quantised.speed
    assert under(24)[1] == "bf16 parallelspec+phrases"
    assert under(12)[1].startswith("int8 ")


# -- the small model of a pair ---------------------------------------------------------------------------------------------


def test_a_draft_model_is_in_int8_on_a_processor_and_as_published_on_a_gpu() -> None:
    little, large = (
        Model(unfetched(shape, name="small"), shape, shape.parameters) for shape in (LITTLE, BILLION)
    )  # fmt: skip
    big_cpu = cpu(48)
    alone = cpu(48, packings=(), bf16=False)
    for small, where, form, at_most in (
        (little, big_cpu, ("bf16", "int8", "native"), 2), (large, big_cpu, ("bf16", "int8", "native"), 2),
        (large, GPU, ("bf16", "none", "cuda"), 2.1), (little, alone, ("fp32", "none", "cpu"), 5),
    ):  # fmt: skip
        precision = Precision(where, form[0], "none")
        found = run_plans(
            replace(model(PublishedDrafter("draft_model", accepted=PublishedLength(3, 5, "x"))), small=small),
            [precision],
            NoMeasurements(),
            16,
        )
        size = one(found, "draft_model:small").candidate.bytes
        cache = ranking.prediction.cache(small.shape, min(small.shape.context, 4096), form[0])
        tokenizer = ranking.prediction.tokenizer(small.shape, form[2])
        weights = ranking.prediction.weights(small.shape, *form)
        unread = ranking.prediction.unread(small.shape, form[1], form[2], min(small.shape.context, 4096))
        apart = where is big_cpu and not small.shape.tied
        assert (unread > 0) == apart, "a text does not ask for all of a mapped embedding"
        assert size == weights - unread + cache + tokenizer and small.parameters < weights < at_most * small.parameters
    assert not one(found, "draft_model:small").candidate.here, "the small model is not here"


# -- nodes ---------------------------------------------------------------------------------------------------------------


@each("at_33, at_65, nodes", [(1.0, 1.0, 64), (1.02, 1.1, 32), (1.06, 1.06, 16), (1.02, 1.04, 64)])
def test_trees_are_wider_where_further_rows_are_next_to_free(at_33: float, at_65: float, nodes: int) -> None:
    costs = ForwardCosts((1, 17, 33, 65), (256,), ((0.9, 1.0, at_33, at_65),))
    told = Told({("cuda:0", "none"): ModelMeasurements(costs)})
    assert {plan.most for plan in run_plans(model(), [PRECISION], told)} == {nodes}
    assert {plan.most for plan in run_plans(model(), [PRECISION], told, 8)} == {8}, "a number that was asked for"


def test_no_tree_is_wider_for_an_estimate() -> None:
    free = Told(devices={("cuda:0", "bf16", "none"): Rates((1, 64), (1e-12, 1e-12), (1e-4, 1e-4))})
    assert {plan.most for plan in run_plans(model(), [PRECISION], free)} == {AUTO_NODES}


# -- reasons ---------------------------------------------------------------------------------------------------------------


def test_a_reason_tells_precision_speed_m_and_what_they_rest_on() -> None:
    assert explained(plan("none", 1.0, measured=True), [plan("none", 1.0)]) == (
        "plain decoding in bf16: 10 tokens/s, M 1.00 (measured here)"
    )
    fast = plan("none", 857.0, measured=True)
    assert explained(fast, [fast]).startswith("plain decoding in bf16: 8,570 tokens/s, M")
    ranked = [plan("phrases", 1.4), plan("none", 1.0)]
    assert explained(ranked[0], ranked) == (
        "phrases in bf16: 14 tokens/s, M 1.40 (predicted; 1.50 tokens/step by guess)"
    )


def test_a_reason_tells_what_replies_brought_though_their_trees_should_be_smaller() -> None:
    told = Told({("cuda:0", "none"): ModelMeasurements(flat(0.05, slope=1.0), {"phrases": ReplyStats(1.3, 4.0, 0.0)})})
    ranked = run_plans(model(), [PRECISION], told, 16)
    found = one(ranked, "phrases")
    assert found.nodes == 0 and wording("measured_here_1_30_tokens_step") in explained(found, ranked)


def test_a_reason_for_plain_decoding_tells_what_does_not_pay() -> None:
    ranked = [plan("none", 1.0), plan("medusa", 0.8), plan("phrases", 0.7)]
    assert explained(ranked[0], ranked).endswith(wording("medusa_would_0_80_plain_decoding"))
    better = [plan("medusa", 2.0), plan("none", 1.0)]
    assert "left out" not in explained(better[1], better)
    elsewhere = [
        plan("none", 1.0),
        plan("medusa", 0.8, here=False),
        plan("s3d", 0.5, precision=Precision(GPU, "bf16", "int8")),
    ]
    assert explained(elsewhere[0], elsewhere[:2]).endswith(wording("medusa_which_here_would_0_80"))
    mac = plan("none", 1.0, precision=Precision(apple(), "bf16", "int4"))
    assert wording("speculation_off_apple_s_gpus") in explained(mac, [mac])


def test_a_draft_model_keeps_the_whole_text_too() -> None:
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters)
    pair = replace(
        model(PublishedDrafter("draft_model", accepted=PublishedLength(3, 5, "x"))), small=small, small_here=True
    )
    short, long = (
        one(run_plans(pair, [PRECISION], NoMeasurements(), 16, context=tokens), "draft_model:small")
        for tokens in (256, 1024)
    )
    assert long.candidate.bytes - short.candidate.bytes == LITTLE.cached(1024 - 256, 2)
    assert long.bytes - short.bytes == LITTLE.cached(1024 - 256, 2) + SEVEN.cached(1024 - 256, 2)


# -- a model that is here only packed --------------------------------------------------------------------------------------


@each("packed", [("int8",), ("int4",), ("int8", "int4")])
def test_nothing_is_in_question_but_what_was_packed_on_the_cpu_engine(packed: tuple[str, ...]) -> None:
    alone = replace(model(), packed=packed)
    for device in (cpu(48), cpu(48, bf16=False, packings=()), gpu(48), apple(48)):
        found = ranking.possible_precisions(alone, natural_precisions(device))
        assert [one.quantize for one in found] == (list(packed) if device.engine == "native" else [])


def test_a_draft_model_that_is_here_only_in_int4_drafts_in_it_where_the_cpu_engine_does() -> None:
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters, packed=("int4",))
    pair = replace(
        model(PublishedDrafter("draft_model", accepted=PublishedLength(3, 5, "x"))), small=small, small_here=True
    )
    assert [one.quantize for one in ranking.draft_precisions(small, cpu())] == ["int4"]
    assert [one.quantize for one in ranking.draft_precisions(replace(small, packed=()), cpu())] == ["int8"]
    assert "draft_model:small" in names(run_plans(pair, natural_precisions(cpu(48)), NoMeasurements(), 16))
    assert "draft_model:small" not in names(run_plans(pair, natural_precisions(GPU), NoMeasurements(), 16))


def test_where_torch_makes_packed_weights_dense_int4_is_for_want_of_room_alone() -> None:
    """As where something is trained on a CPU."""

    def precisions(gib: float) -> list[str]:
        device = replace(cpu(gib, bandwidth=1e9), engine="torch", dtypes=("fp32", "bf16"))
        found = run_plans(model(), natural_precisions(device), NoMeasurements(), 16)
        return sorted({plan.precision.quantize for plan in found})

    assert precisions(48) == ["int8", "none"] and precisions(11) == ["int4", "none"]


# -- a model that is read from its GGUF files ------------------------------------------------------------------------------

IN_BLOCKS = replace(
    model(), packed=("blocks", "int8", "int4", "none"), block_bytes=SEVEN.parameters * 6 // 10
)  # 4.8 bits per weight


def in_question(of: Model, device: Device) -> list[str]:
    """The packings in question for a model on a device, as `auto` leaves them open."""
    open_ones = ranking.possible_precisions(of, natural_precisions(ranking.as_computed(device, of)))
    return list(dict.fromkeys(plan.precision.quantize for plan in run_plans(of, open_ones, NoMeasurements(), 16)))


def test_a_file_is_taken_as_it_is_where_it_fits_and_else_what_is_smaller() -> None:
    assert in_question(IN_BLOCKS, cpu(48)) == ["blocks"]
    assert in_question(replace(IN_BLOCKS, packed=("int8", "blocks", "int4", "none")), cpu(48)) == ["int8"]
    large = replace(IN_BLOCKS, block_bytes=SEVEN.parameters * 17 // 16)  # Q8_0
    assert in_question(large, cpu(7.2)) == ["int4"]


def test_a_file_as_it_is_takes_its_own_bytes_and_time() -> None:
    device = ranking.as_computed(cpu(48), IN_BLOCKS)
    blocks, eight = (
        one(run_plans(IN_BLOCKS, [Precision(device, "bf16", packing)], NoMeasurements(), 16), "none", packing)
        for packing in ("blocks", "int8")
    )
    assert str(blocks.precision) == "4.8 bits per weight"
    assert blocks.loaded_bytes == IN_BLOCKS.block_bytes
    assert 1.4 < blocks.speed / eight.speed < 2
    rates = ranking.prediction.estimated_rates(device, "bf16", "blocks")
    growth = rates.weight[rates.rows.index(8)] / rates.weight[0]
    assert growth < 1.6 < 2 < in_avx2(device) < 3.2


def in_avx2(device: Device) -> float:
    """What 8 rows cost of one with AVX2, on two cores."""
    rates = ranking.prediction.estimated_rates(replace(device, capability="avx2", cores=2), "bf16", "blocks")
    return rates.weight[rates.rows.index(8)] / rates.weight[0]


def test_a_draft_model_in_gguf_drafts_as_it_answers() -> None:
    small = Model(
        unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters, packed=("blocks", "int8", "int4", "none"),
        block_bytes=LITTLE.parameters,
    )  # fmt: skip
    assert [one.quantize for one in ranking.draft_precisions(small, cpu())] == ["blocks"]
    assert ranking.draft_precisions(small, GPU) == []


def test_a_draft_model_without_blocks_beside_a_target_in_blocks_is_packed():
    target = ranking.as_computed(cpu(), IN_BLOCKS)
    small = Model(unfetched(LITTLE, name="small"), LITTLE, LITTLE.parameters)
    assert target.block_bits
    assert [one.quantize for one in ranking.draft_precisions(small, target)] == ["int8"]
