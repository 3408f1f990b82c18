import json

import pytest
from reply_statistics import said

from localspec.bench import figures
from localspec.bench.figures import RowCosts
from localspec.events import Memory, possible


def of(replies, plain, categories=None, read_bytes=1_000, bandwidth=100_000.0):
    return figures.of_row(replies, plain, categories or ["text"] * len(plain), read_bytes, bandwidth)


def test_speedup_is_the_median_of_pairs_and_not_of_medians():
    # 1.5, 4 and 0.5 times as fast as plain decoding of the same prompt, which itself is ever slower
    plain = [said(seconds=1.0), said(seconds=4.0), said(seconds=8.0)]
    ours = [said(seconds=1 / 1.5), said(seconds=1.0), said(seconds=16.0)]
    row = of(ours, plain)
    assert row["speedup"] == 1.5 and row["speedup_quartiles"] == [1.0, 2.75]
    assert row["tokens_per_second"] == 4.0 and row["tokens_per_second_quartiles"] == [2.125, 5.0]
    assert row["bandwidth_share"] == pytest.approx(4.0 * 1_000 / 100_000)
    assert row["prompts"] == 3 and row["tokens"] == 15


def test_costs_are_in_units_of_the_plain_step_of_the_same_prompt():
    plain = said(seconds=2.0, steps=4, verify=1.9)  # half a second a step
    ours = said(seconds=1.6, steps=2, draft=0.1, verify=1.2)
    row = of([ours], [plain])
    assert row["draft_cost"] == pytest.approx(0.1) and row["verify_cost"] == pytest.approx(1.2)
    assert row["host_cost"] == pytest.approx(0.3)
    parts = of([plain], [plain])
    assert (parts["draft_cost"], parts["verify_cost"], parts["host_cost"]) == (0.0, 0.95, 0.05)
    assert parts["speedup"] == parts["M"] == 1.0


def test_cost_effectiveness_is_speedup_over_memory_held():
    ours = said(seconds=0.5, memory=Memory(target=80, drafter=10, cache=35, peak=4000))
    row = of([ours], [said(seconds=1.0)])
    assert row["speedup"] == 2.0 and row["M"] == pytest.approx(2.0 / 1.25) and row["peak_bytes"] == 4000


def test_identical_counts_prompts_over_all_repetitions():
    plain = [said((1, 2, 3)), said((4, 5, 6))] * 2
    assert of(plain, plain, ["text"] * 2)["identical"] is True
    other = [said((1, 2, 3)), said((4, 5, 6)), said((1, 2, 3)), said((4, 5, 7))]
    row = of(other, plain, ["text"] * 2)
    assert row["identical"] is False and row["identical_prompts"] == 1 and row["prompts"] == 2
    # Where plain replies differ from each other, they are no reference, and the row says so.
    assert of(other, other, ["text"] * 2)["identical"] is False
    assert of([said((1, 2, 3, 4))], [said((1, 2, 3))])["identical"] is False


def test_acceptance_counts_steps_and_not_replies():
    ours = [said(range(9), steps=2), said(range(7), steps=6)]
    row = of(ours, ours)
    assert row["acceptance_length"] == pytest.approx(14 / 8)


def test_acceptance_by_depth_counts_a_reply_by_how_often_it_got_there():
    ours = [said(by_depth=[0.5, 1.0], drafted=30), said(by_depth=[0.9], drafted=10), said(by_depth=[], drafted=0)]
    assert of(ours, ours)["acceptance_by_depth"] == [0.6, 1.0]
    ours = [said(by_depth=[0.5, 0.2], drafted=20), said(by_depth=[1.0, 0.8], drafted=10)]
    assert of(ours, ours)["acceptance_by_depth"] == [pytest.approx(2 / 3, abs=1e-4), 0.5]
    assert of([said()], [said()])["acceptance_by_depth"] == []


def test_categories():
    plain = [said(seconds=1.0)] * 3
    ours = [said(seconds=0.5, steps=2), said(seconds=1.0), said(seconds=0.25, steps=1)]
    row = of(ours, plain, ["code", "chat", "code"])
    assert row["categories"] == {
        "code": {"speedup": 3.0, "speedup_limit": None, "acceptance_length": pytest.approx(8 / 3, abs=1e-4)},
        "chat": {"speedup": 1.0, "speedup_limit": None, "acceptance_length": 1.0},
    }


def test_a_reply_of_one_token_has_no_speed():
    short = said((1,), seconds=0.0, steps=0)
    row = of([short, said(seconds=0.5)], [short, said(seconds=1.0)], ["short", "long"])
    assert row["speedup"] == 2.0 and row["tokens_per_second"] == 8.0 and row["identical_prompts"] == 2
    assert row["categories"]["short"] == {"speedup": None, "speedup_limit": None, "acceptance_length": None}
    row = of([short], [short])
    nothing = [
        "speedup",
        "speedup_quartiles",
        "tokens_per_second",
        "M",
        "draft_cost",
        "bandwidth_share",
        "acceptance_length",
    ]
    assert {row[name] for name in nothing} == {None}


def test_the_reason_for_switching_off_is_reported():
    ours = [said(off="It was slow."), said()]
    assert of(ours, ours)["off_reason"] == "It was slow." and of([said()], [said()])["off_reason"] is None


def test_the_figures_are_json():
    row = of([said(seconds=0.7, by_depth=[0.5], drafted=3)], [said()])
    assert json.loads(json.dumps(row)) == row


COSTS = RowCosts(
    (1, 2, 4, 8, 16), (1.0, 1.0, 1.0, 1.2, 2.0), unit=0.2
)  # a fifth of a second for one row, and little more for 8


def judged(ours, plain, costs=COSTS):
    return figures.of_row(ours, plain, ["text"] * len(plain), 1_000, 100_000.0, costs=costs)


def test_no_speedup_is_reliable_that_acceptance_and_rows_do_not_allow():
    plain = [said(seconds=1.0, verify=1.0, rows={1: 4})] * 3
    for seconds, reliable in ((0.7, True), (0.6, True), (0.59, True), (0.56, False), (0.1, False)):
        row = judged([said(seconds=seconds, steps=2, rows={8: 2})] * 3, plain)
        assert row["speedup_limit"] == pytest.approx(2.0 / 1.2, abs=1e-4), "two tokens a step that costs 1.2"
        assert row["reliable"] is reliable, seconds
    assert judged([said(seconds=0.5, steps=4, rows={8: 4})], plain[:1])["reliable"] is False, (
        "one token a step is no speculation"
    )


def test_plain_decoding_is_reliable_in_rows_that_are_filled_up_too():
    for rows in (1, 4, 16):
        plain = [said(seconds=1.0, verify=0.9, rows={rows: 4})]
        row = judged(plain, plain)
        assert (row["speedup"], row["speedup_limit"], row["reliable"]) == (1.0, 1.0, True)


def test_the_limit_is_of_the_rows_that_were_verified_step_by_step():
    plain = [said(seconds=0.8, verify=0.8, rows={1: 4})]
    row = judged([said(seconds=0.6, steps=2, rows={1: 1, 16: 1})], plain)
    assert row["speedup_limit"] == pytest.approx(2.0 / 1.5, abs=1e-4)


def test_what_the_host_does_between_forwards_is_in_the_limit():
    """Where forwards take almost no time, the host limits the speed, however many rows a forward has."""
    plain = [said(seconds=1.0, verify=0.2, rows={1: 4})]
    row = judged([said(seconds=0.55, steps=2, rows={16: 2})], plain, RowCosts((1, 16), (1.0, 4.0), unit=0.05))
    assert row["speedup_limit"] == pytest.approx(2.0 * (0.05 + 0.2) / (0.2 + 0.2)) and row["reliable"] is False


def test_each_pair_has_its_own_limit():
    """A median over different texts may exceed the limit of their mean acceptance length, if most are easy."""
    plain = [said(range(13), seconds=12.0, verify=12.0, steps=12, rows={1: 12})] * 3
    easy, hard = (
        said(range(13), seconds=4.0, steps=4, rows={1: 4}),
        said(range(13), seconds=12.0, steps=12, rows={1: 12}),
    )
    row = judged([easy, easy, hard], plain)
    assert row["speedup"] == 3.0 and row["acceptance_length"] == pytest.approx(1.8) and row["reliable"] is True


def test_without_costs_nothing_is_judged():
    row = of([said(seconds=0.1)], [said()])
    assert row["speedup_limit"] is None and row["reliable"] is None


def test_quartiles_and_categories_have_limits_of_their_own():
    """One kind of text was disturbed, which the median of all does not show."""
    plain = [said(seconds=1.0, verify=1.0, rows={1: 4})] * 4
    fair, disturbed = said(seconds=0.8, steps=3, rows={1: 3}), said(seconds=0.2, steps=3, rows={1: 3})
    found = figures.of_row(
        [fair, fair, fair, disturbed], plain, ["code", "code", "code", "summary"], 1000, 100_000.0, costs=COSTS
    )
    assert found["reliable"] is True and found["speedup_limit_quartiles"] == [pytest.approx(4 / 3, abs=1e-3)] * 2
    code, summary = found["categories"]["code"], found["categories"]["summary"]
    assert possible(code["speedup"], code["speedup_limit"])
    assert not possible(summary["speedup"], summary["speedup_limit"])
