"""Which drafters a model could have, and what each should bring and cost."""

from dataclasses import replace
from pathlib import Path

import pytest
from each import each
from golden import matching, wording
from machines import LITTLE, SEVEN, Told, flat, trained, unfetched

import localspec
from localspec.errors import UsageMistake
from localspec.families.delta_net import DeltaNet
from localspec.models.drafter_cards import DrafterCard, read_drafter
from localspec.models.drafter_kinds import DRAFT_TOKENS, FORWARDS_A_DRAFT
from localspec.models.entries import PublishedDrafter, PublishedLength
from localspec.models.s3d_prediction import Constants, KeptLayers, propose, share
from localspec.policy import host_time
from localspec.policy.candidates import (
    DRAWN_SHARE,
    PAIR,
    PHRASES,
    CostInputs,
    DrafterCandidate,
    DraftModelEstimate,
    candidates,
    drafter_bytes,
    reply_key,
)
from localspec.policy.measurements import NoMeasurements, ReplyStats
from localspec.policy.prediction import CONTEXT, Rates, cache, drafter_numbers

RATES = Rates((1, 64), (1e-12, 4e-12), (1e-4, 1e-4))
AT = CostInputs(SEVEN, flat(0.05), RATES, "bf16", (2, 2), 4096, {})
DEMO = Path(localspec.__file__).parent / "demo"
DOCS = Path(__file__).parents[2] / "docs" / "figures"
SAID = PublishedLength(2.32, 4, "a paper")
SMALL = DraftModelEstimate(unfetched(LITTLE, name="small"), 10**7, flat(0.004, slope=0.25))


def found(
    *published: PublishedDrafter,
    here: tuple[DrafterCard, ...] = (),
    small: DraftModelEstimate | None = None,
    at: CostInputs = AT,
    **more: bool,
) -> dict[str, DrafterCandidate]:
    card = unfetched(SEVEN, drafters=published)
    return {one.name: one for one in candidates(card, at, list(here), small, more.get("small_here", False))}


def seconds(kind: str, parameters: int | None = None) -> float:
    return found(PublishedDrafter(kind, parameters=parameters, accepted=SAID))[kind].draft_seconds(3)


# -- which there are -------------------------------------------------------------------------------------------------------


def test_every_model_has_phrases_which_weigh_nothing_and_cost_nothing() -> None:
    phrases = found()["phrases"]
    assert [*found()] == ["phrases"]
    assert (phrases.bytes, phrases.here, phrases.acceptance, phrases.draft_seconds(16)) == (0, True, PHRASES, 0.0)
    assert PHRASES.length(10) == pytest.approx(1.73) and "published" in PHRASES.origin


@each("kind, parameters", [("medusa", 7 * 10**8), ("parallelspec", 10**9), ("parallelspec", 10**8)])
def test_a_drafter_takes_as_much_before_it_is_fetched_as_afterwards(kind: str, parameters: int) -> None:
    model = parameters == 10**9  # as it was published; else heads or a layer that were made for the target
    here = trained(kind, parameters, 0.8, revision="" if model else "0" * 40)
    published = PublishedDrafter(kind, parameters=parameters, accepted=SAID)
    assert found(published)[kind].bytes == found(published, here=(here,))[kind].bytes


RECURRENT = DeltaNet((True,) * SEVEN.num_layers, 16, 32, 128, 128, 4)


def test_of_a_model_that_reads_chains_a_tree_is_foreseen_as_its_best_path() -> None:
    heads = replace(
        trained("medusa", 10**8, 0.8), about={"accuracy_by_depth": [[0.5, 0.3, 0.1], [0.2, 0.4], [0.3, 0.1]]}
    )
    tree = found(here=(heads,))
    chain = found(here=(heads,), at=replace(AT, shape=replace(SEVEN, delta=RECURRENT)))
    own = chain["medusa"].acceptance
    assert own is not None and own.gains == pytest.approx([0.85 * one for one in (0.5, 0.2, 0.06)])
    assert tree["medusa"].acceptance.length(16) > own.length(16) + 0.2
    both = chain["medusa+phrases"].acceptance
    assert both == max(own, PHRASES, key=lambda one: one.length(64)), "a chain is of the one or the other"
    assert tree["medusa+phrases"].acceptance.length(64) > both.length(64)


def test_a_trained_drafter_comes_alone_and_with_phrases_and_before_what_is_published() -> None:
    heads = trained("medusa", 10**8, 0.8)
    published = PublishedDrafter("medusa", accepted=SAID)
    assert [*found(published, PublishedDrafter("semi"), here=(heads,))] == [
        "phrases", "medusa", "medusa+phrases", "semi", "semi+phrases",
    ]  # fmt: skip
    assert found(published, here=(heads,))["medusa"].trained == (heads,)
    assert found(published, here=(heads,))["medusa"].here and not found(published)["medusa"].here
    assert found(published)["medusa"].published == found(published)["medusa+phrases"].published == published


def test_a_pair_needs_a_small_model() -> None:
    pair = PublishedDrafter("draft_model")
    assert [*found(pair)] == ["phrases"]
    own = ["draft_model:small", "draft_model:small+phrases"]
    assert [*found(pair, small=SMALL)] == ["phrases", *own]
    assert [*found(pair, small=SMALL, small_here=True)] == ["phrases", *own, "ouroboros:small"]
    assert [*found(small=SMALL, small_here=True)] == ["phrases", *own, "ouroboros:small"], (
        "replies may tell what it brings"
    )
    both = found(PublishedDrafter("ouroboros"), small=SMALL, small_here=True)
    assert [*both] == ["phrases", "ouroboros:small", *own], "once"
    assert [both[name].drafter for name in own] == ["draft_model", "draft_model+phrases"]
    assert not found(pair, small=SMALL)["draft_model:small"].here
    assert found(pair, small=SMALL, small_here=True)["draft_model:small"].here


def test_figures_of_a_published_pair_are_not_those_of_another_small_model() -> None:
    pair = PublishedDrafter("ouroboros", accepted=SAID)
    named, other = (found(pair, small=replace(SMALL, named=one), small_here=True) for one in (True, False))
    assert [*named] == ["phrases", "ouroboros:small", *(f"draft_model:small{end}" for end in ("", "+phrases"))]
    assert {*other} == {*named}
    origins = [both["ouroboros:small"].acceptance.origin for both in (named, other)]  # type: ignore[union-attr]
    assert "a paper" in origins[0] and "a paper" not in origins[1] and "Spec-Bench" in origins[1]
    assert found(pair, small=replace(SMALL, named=False)).keys() == {"phrases"}, "nobody fetches one for a guess"


# -- what they bring -------------------------------------------------------------------------------------------------------


def test_held_out_text_tells_by_depth_what_a_trained_drafter_brings() -> None:
    heads = trained("medusa", 10**8, 0.8, 0.5)
    own = found(here=(heads,))["medusa"].acceptance
    assert own is not None and own.gains == pytest.approx((0.85 * 0.8, 0.85 * 0.4)) and "held-out" in own.origin


def test_a_trained_drafter_is_worth_the_tree_that_its_ranks_can_fill() -> None:
    heads = replace(trained("medusa", 10**8), about={"accuracy_by_depth": [[0.5, 0.25], [0.125, 0.5]]})
    own = found(here=(heads,))["medusa"].acceptance
    paths = [0.5, 0.25, 0.5 * 0.5, 0.25 * 0.5, 0.5 * 0.125, 0.25 * 0.125]
    assert own is not None and own.gains == pytest.approx([0.85 * one for one in sorted(paths, reverse=True)])


def test_what_was_measured_after_its_training_scales_the_whole_tree() -> None:
    heads = replace(
        trained("medusa", 10**8),
        about={"accuracy_by_depth": [[0.5, 0.25], [0.125, 0.5]], "acceptance": {"length": 1.8, "nodes": 3}},
    )
    own = found(here=(heads,))["medusa"].acceptance
    assert own is not None and own.length(3) == pytest.approx(1.8) and own.length(0) == 1
    assert own.length(1) == pytest.approx(1 + 0.8 * 0.5) and "measured" in own.origin


@each("kind", ["s3d", "semi", "parallelspec", "medusa"])
def test_the_demos_drafters_are_foreseen_as_they_were_measured(kind: str) -> None:
    """docs/figures/drafter-table.md has what fixed trees of them brought on 60 public prompts, greedily."""
    own = found(here=(read_drafter(DEMO / "drafters" / kind),))[kind].acceptance
    greedy = (DOCS / "drafter-table.md").read_text("utf-8").partition("Acceptance length")[2]
    sizes, measured = (
        [float(cell) for cell in line.split("|")[2:-1]]
        for line in greedy.splitlines()[:14]
        if line.startswith((f"| {kind} |", "| drafter |"))
    )
    assert own is not None and len(sizes) == 5
    assert own.length(16) == pytest.approx(dict(zip(sizes, measured, strict=True))[16], rel=0.1)
    assert [own.length(int(nodes)) for nodes in sizes] == pytest.approx(measured, rel=0.15)


def test_without_that_the_figure_of_its_publisher_and_without_any_nobody_knows() -> None:
    heads = trained("medusa", 10**8)
    said = found(PublishedDrafter("medusa", accepted=SAID), here=(heads,))["medusa"].acceptance
    assert (
        said is not None and said.length(4) == pytest.approx(2.32) and said.origin == "from 2.32 as published, a paper"
    )
    assert found(here=(heads,))["medusa"].acceptance is None is found(here=(heads,))["medusa+phrases"].acceptance
    assert found(PublishedDrafter("medusa"))["medusa"].acceptance is None


def test_a_small_model_that_is_here_is_tried_for_what_such_pairs_are_published_to_bring() -> None:
    alone, both = (found(small=SMALL, small_here=True)[f"draft_model:small{end}"] for end in ("", "+phrases"))
    assert alone.acceptance is PAIR and PAIR.length(99) == pytest.approx(2.28)
    assert both.acceptance is not None and both.acceptance.length(99) > 2.28
    assert found(PublishedDrafter("draft_model"), small=SMALL)["draft_model:small"].acceptance is None, "not here"
    replies = {reply_key("draft_model", (), SMALL.card): ReplyStats(1.1, 2.0, 0.1)}
    corrected = found(small=SMALL, small_here=True, at=replace(AT, replies=replies))["draft_model:small"]
    assert corrected.acceptance is not None and corrected.acceptance.length(99) == pytest.approx(1.1)


def test_what_a_search_decoded_again_serves_until_there_are_replies() -> None:
    key = reply_key("draft_model", (), SMALL.card)
    at = replace(AT, replays={key: ReplyStats(1.5, 2.0, 0.25)})
    again = found(small=SMALL, small_here=True, at=at)["draft_model:small"]
    assert again.acceptance is not None and again.acceptance.length(99) == pytest.approx(1.5)
    assert "decoded again" in again.acceptance.origin
    assert again.draft_seconds(2) == pytest.approx(0.25 * at.costs.at(3, CONTEXT)) and again.draft_seconds(0) == 0
    at = replace(at, replies={key: ReplyStats(1.1, 2.0, 0.1)})
    measured = found(small=SMALL, small_here=True, at=at)["draft_model:small"].acceptance
    assert measured is not None and measured.origin == wording("as_measured_here")


def test_a_small_models_forward_is_priced_as_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = found(small=SMALL, small_here=True)["draft_model:small"].draft_seconds(3)
    monkeypatch.setattr(host_time, "STEP", 0.5)
    steps = found(small=SMALL, small_here=True)["draft_model:small"].draft_seconds(3)
    assert steps - alone == pytest.approx(0.5 * FORWARDS_A_DRAFT)


def test_what_was_measured_here_comes_before_all_figures() -> None:
    own = trained("medusa", 10**8, 0.8)
    at = replace(
        AT, replies={reply_key("medusa", (own,), None): ReplyStats(3.0, 8, 0.1), "phrases": ReplyStats(2.0, 8, 0.0)}
    )
    told = found(PublishedDrafter("medusa", accepted=SAID), here=(own,), at=at)
    for name, length in (("medusa", 3.0), ("phrases", 2.0)):
        measured = told[name].acceptance
        assert measured is not None and measured.length(99) == pytest.approx(length)
        assert measured.origin == wording("as_measured_here")
    both = told["medusa+phrases"].acceptance
    assert both is not None and both.length(99) == pytest.approx(4.0), "together they are as measured apart"
    at = replace(at, replies={**at.replies, reply_key("medusa+phrases", (own,), None): ReplyStats(3.2, 8, 0.1)})
    both = found(here=(own,), at=at)["medusa+phrases"].acceptance
    assert both is not None and both.length(99) == pytest.approx(3.2), "until that is measured too"
    another = replace(own, bytes=own.bytes + 1)
    both = found(here=(another,), at=at)["medusa"].acceptance
    assert both is not None and both.origin != wording("as_measured_here"), (
        "of one that was trained again nothing is known"
    )


def test_a_window_is_foreseen_by_its_replies_and_by_nothing_else() -> None:
    assert not [name for name in found() if name.startswith("lookahead")]
    told = found(at=replace(AT, replies={"lookahead": ReplyStats(1.4, 12.0, 0.1)}))
    alone, both = (told[name].acceptance for name in ("lookahead", "lookahead+phrases"))
    assert alone is not None and alone.length(99) == pytest.approx(1.4) and alone.origin == wording("as_measured_here")
    assert both is not None and both.length(99) == pytest.approx(1.4 + 0.73)
    drawn = found(at=replace(AT, decoding="sampled", replies={"lookahead": ReplyStats(1.4, 12.0, 0.1)}))
    assert drawn["lookahead"].acceptance.length(99) == pytest.approx(1 + DRAWN_SHARE * 0.4)  # type: ignore[union-attr]


def test_what_several_bring_in_one_tree_only_their_replies_tell() -> None:
    heads, layer, recurrent = (trained(kind, 10**8, 0.6) for kind in ("medusa", "s3d", "semi"))
    every = (heads, layer, recurrent)
    assert not [name for name in found(here=every) if "+" in name.removesuffix("+phrases")]
    key = reply_key("s3d+semi", (layer, recurrent), None)
    at = replace(AT, replies={key: ReplyStats(2.6, 12.0, 0.4)})
    told = found(here=every, at=at)
    assert [name for name in told if "+" in name.removesuffix("+phrases")] == ["s3d+semi", "s3d+semi+phrases"]
    both, phrases = told["s3d+semi"], told["s3d+semi+phrases"]
    assert both.acceptance is not None and both.acceptance.length(99) == pytest.approx(2.6) and both.here
    assert phrases.acceptance is not None and phrases.acceptance.length(99) == pytest.approx(2.6 + 0.73)
    assert both.trained == phrases.trained == (layer, recurrent) and both.key == key
    assert both.bytes == phrases.bytes == told["s3d"].bytes + told["semi"].bytes
    again = found(here=(heads, layer, replace(recurrent, bytes=recurrent.bytes + 1)), at=at)
    assert "s3d+semi" not in again, "of one that was trained again nothing is known"
    assert "s3d+semi" not in found(here=(heads, layer), at=at), "nor can it be had without one of them"


def test_layers_of_the_target_count_among_several() -> None:
    own = trained("semi", 10**8, 0.6)
    replies = {reply_key("layers+semi+phrases", (own,), None): ReplyStats(2.6, 12.0, 0.4)}
    assert "layers+semi+phrases" not in found(here=(own,), at=replace(AT, replies=replies)), "before they are probed"
    told = found(here=(own,), at=replace(AT, replies=replies, layers=[KeptLayers((0, 31), (0.5,))]))
    assert told["layers+semi+phrases"].bytes == told["semi"].bytes and "layers+semi" not in told


def test_s3d_is_foreseen_by_the_formula_of_its_paper() -> None:
    own = found(PublishedDrafter("s3d"))["s3d"].acceptance
    head = SEVEN.embedding / SEVEN.layer
    assert own is not None and len(own.gains) == propose(32, head, Constants()).gamma
    assert own.origin == wording("formula_s3d_paper") and 2 < own.length(5) < 4
    said = found(PublishedDrafter("s3d", accepted=SAID))["s3d"].acceptance
    assert said is not None and said.origin == "from 2.32 as published, a paper"


def test_ouroboros_brings_phrases_beside_what_its_small_model_does() -> None:
    own = PublishedDrafter("ouroboros", accepted=SAID), PublishedDrafter("draft_model", accepted=SAID)
    both = found(*own, small=SMALL)
    lengths = [both[f"{kind}:small"].acceptance.length(99) for kind in ("draft_model", "ouroboros")]  # type: ignore[union-attr]
    assert lengths == pytest.approx([2.32, 2.32 + 0.73])
    assert found(PublishedDrafter("ouroboros"), small=SMALL)["ouroboros:small"].acceptance is None


# -- what they cost --------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_its_own_weights() -> None:
    ours = trained("medusa", 10**8, 0.8)
    assert found(here=(ours,))["medusa"].bytes == found(here=(ours,))["medusa+phrases"].bytes == 2 * 10**8
    on_cpu = replace(AT, numbers=drafter_numbers("bf16", "int8", "native"))
    partly = replace(ours, others=1000)
    assert found(here=(partly,), at=on_cpu)["medusa"].bytes == round((10**8 - 1000) * 1.0625) + 4000
    s3d = replace(ours, kind="s3d")
    assert found(here=(s3d,), at=on_cpu)["s3d"].bytes == 4 * 10**8, "adapters are not packed"
    assert found(here=(s3d,))["s3d"].bytes == 2 * 10**8
    layer_cache = cache(SEVEN, 4096, "bf16") // SEVEN.num_layers
    layer = replace(ours, kind="parallelspec")
    assert found(here=(layer,))["parallelspec"].bytes == 2 * 10**8 + layer_cache
    assert found(here=(layer,), at=on_cpu)["parallelspec"].bytes == round(10**8 * 1.0625) + layer_cache
    assert found(PublishedDrafter("medusa", parameters=10**9))["medusa"].bytes == 2 * 10**9
    assert found(PublishedDrafter("parallelspec"))["parallelspec"].bytes == 2 * SEVEN.layer + layer_cache
    assert found(PublishedDrafter("s3d"))["s3d"].bytes == 2 * (SEVEN.matrices // 20)
    assert found(PublishedDrafter("draft_model"), small=SMALL)["draft_model:small"].bytes == 10**7


def test_states_of_inner_layers_take_room_in_a_forward() -> None:
    plain = replace(trained("parallelspec", 10**9, 0.8), inner=0)
    more = drafter_bytes(replace(plain, inner=3 * 4096), SEVEN, "bf16", (1.0, 4), 4096)
    assert more - drafter_bytes(plain, SEVEN, "bf16", (1.0, 4), 4096) == 512 * 3 * 4096 * 4


def test_a_draft_of_s3d_reads_the_layers_that_are_proposed_and_the_head() -> None:
    head = SEVEN.embedding / SEVEN.layer
    part = share(32, len(propose(32, head, Constants()).kept), head)
    assert seconds("s3d") == pytest.approx(part * AT.costs.at(DRAFT_TOKENS, CONTEXT)) and 0.4 < part < 0.55


def test_a_draft_of_heads_reads_them_and_the_vocabulary_that_they_share() -> None:
    small, large = 10**7, 10**9
    assert seconds("medusa", large) == pytest.approx(RATES.product(large, 1) + 1e-4)
    assert seconds("medusa", small) == pytest.approx(RATES.product(small, 1) + RATES.product(SEVEN.embedding, 4) + 1e-4)


def test_a_draft_of_one_layer_borrows_the_head_and_one_of_a_model_has_its_own_layers() -> None:
    layer = RATES.product(SEVEN.layer + SEVEN.embedding, 2 * DRAFT_TOKENS) + 1e-4
    assert seconds("parallelspec") == seconds("parallelspec", SEVEN.layer) == pytest.approx(layer)
    assert seconds("parallelspec", 10**9) == pytest.approx(RATES.product(10**9, 2 * DRAFT_TOKENS) + 32e-4)


def test_semi_goes_depth_by_depth_with_the_head_each_time() -> None:
    assert seconds("semi", 10**6) == pytest.approx(4 * (RATES.product(10**6 + SEVEN.embedding, 1) + 2e-4))


def test_a_pair_drafts_a_forward_a_token_as_long_as_that_pays() -> None:
    both = found(PublishedDrafter("draft_model"), PublishedDrafter("ouroboros"), small=SMALL)
    plainly, accelerated = both["draft_model:small"].draft_seconds, both["ouroboros:small"].draft_seconds
    assert [plainly(nodes) for nodes in (0, 1, 3, 5, 16)] == pytest.approx([0, 0.004, *[FORWARDS_A_DRAFT * 0.004] * 3])
    four = SMALL.costs.at(4, CONTEXT)
    assert [accelerated(nodes) for nodes in (0, 7)] == pytest.approx([0, FORWARDS_A_DRAFT * four])


@each("kind", ["s3d", "medusa", "parallelspec", "semi"])
def test_what_reads_weights_reads_them_for_a_draft_of_any_size(kind: str) -> None:
    drafting = found(PublishedDrafter(kind, accepted=SAID))[kind].draft_seconds
    assert drafting(0) == drafting(16) > 0


# -- replies ---------------------------------------------------------------------------------------------------------------


def test_tokens_a_second_are_a_steps_tokens_over_its_verification_and_drafting() -> None:
    assert ReplyStats(3.0, 7.0, 0.25).speed(flat(0.1, slope=0.5)) == pytest.approx(3.0 / (0.1 * 4.5 * 1.25))
    assert ReplyStats(1.5, 0.4, 0.0).speed(flat(0.1, slope=0.5)) == pytest.approx(15.0), (
        "of rows there is a whole number"
    )


def test_where_nothing_was_measured_nothing_is_known() -> None:
    known = NoMeasurements().of(unfetched(), "cpu", "bf16", "none")
    assert (known.costs, known.replies, NoMeasurements().rates("cpu", "bf16", "none")) == (None, {}, None)
    assert Told().of(unfetched(), "cpu", "bf16", "none") == known


def test_a_kind_that_there_is_not_is_refused_not_priced_as_another() -> None:
    for unknown in (
        lambda: found(PublishedDrafter("medusae")),
        lambda: found(here=(trained("medusae", 10**8, 0.8),)),
        lambda: drafter_bytes(trained("medusae", 10**8), SEVEN, "bf16", 2, 4096),
    ):
        with pytest.raises(
            UsageMistake, match=f"{matching('no_drafter_medusae')}.*{matching('did_you_mean_medusa_2')}"
        ):
            unknown()
