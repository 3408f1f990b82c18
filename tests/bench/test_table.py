import copy

import pytest
from bench_reports import report, row
from each import each
from golden import wording
from reply_statistics import said

from localspec.bench import table


@pytest.fixture
def two():
    fast = [said(seconds=0.5, steps=2, by_depth=[0.5, 0.25], drafted=8), said(seconds=0.4, steps=2)]
    return [row("none", 0, [said(), said()]), row("phrases", 8, fast)]


def test_a_row_a_line_under_its_heads(two):
    lines = table.of(report(two), details=True).splitlines()
    heads = next(line for line in lines if line.startswith("drafter"))
    plain, fast = lines[lines.index(heads) + 1 : lines.index(heads) + 3]
    assert plain.split()[:4] == ["none", "0", "4.0", "4–4"]
    assert fast.split()[:7] == ["phrases", "8", "9.0", "8–10", "2.25", "2.12–2.38", "2.00"]
    assert fast.split()[-1] == "2/2"
    for head, cell in (("nodes", "8"), ("speedup", "2.25"), ("same", "2/2")):
        assert heads.index(head) + len(head) == fast.index(f" {cell}") + len(cell) + 1
    assert any(line == "phrases 8: 0.50 0.25" for line in lines)


def test_without_details_it_is_a_sentence_a_chart_and_one_table(two):
    lines = table.of(report(two)).splitlines()
    heads = next(line for line in lines if line.startswith("kind of text"))
    rows = [line.split() for line in lines[lines.index(heads) + 1 : lines.index(heads) + 4]]
    assert rows == [["all", "2.25", "(2.0)"], ["code", "2.00", "(2.0)"], ["chat", "2.50", "(2.0)"]]
    assert lines[lines.index(heads) - 1].startswith("Speedup over plain decoding"), (
        "what the two figures are comes first"
    )
    text = "\n".join(lines)
    assert "acceptance rate" not in text and "2.12–2.38" not in text and "`--details`" in lines[-1]
    assert len(lines) <= 14
    one = [row | {"categories": {"chat": row["categories"]["chat"]}} for row in two]
    assert not any(line.startswith("chat") for line in table.of(report(one)).splitlines()), "it would be `all` again"


def test_it_says_on_what_and_how_it_was_measured(two):
    text = " ".join(table.of(report(two, left_out=3, repeat=2, quantize="int8"), details=True).split())
    for part in (
        "demo",
        "int8, bitwise",
        "2 prompts × 2",
        "3 too long",
        "64 tokens at most, greedy",
        "16 GiB, read at 61.7 GB/s",
        "Some Processor",
    ):
        assert part in text
    assert "temperature 0.8, seed 1" in " ".join(table.of(report(two, temperature=0.8)).split())


def test_a_sentence_and_bars_come_first(two):
    first, second, empty, *rest = table.of(report(two)).splitlines()
    assert f"{first} {second}" == (wording("phrases_8_nodes_2_2_faster_than"))
    assert empty == "" and rest[0].split()[:2] == ["plain", "decoding"] and rest[0].endswith(" 4.0 tokens/s")
    assert rest[1].split()[:3] == ["phrases,", "8", "nodes"] and rest[1].endswith(" 9.0 tokens/s  2.2× faster")
    plain, fast = (line.count("█") for line in rest[:2])
    assert fast == table.LONGEST_BAR and plain == int(table.LONGEST_BAR * 4 / 9)


@each(
    "unlike, said_first",
    [
        ({"speedup": 1.004}, wording("nothing_here_faster_than_plain_3")),
        ({"speedup": 0.8}, wording("nothing_here_faster_than_plain_4")),
        ({"identical": False}, wording("phrases_8_nodes_2_2_faster_than_2")),
        ({"identical": None}, wording("phrases_8_nodes_2_2_faster_than_3")),
        ({"reliable": False}, wording("plain_decoding_gave_4_0_tokens_s_2")),
        ({"speedup": None}, wording("plain_decoding_gives_4_0_tokens_s_3")),
        ({"drafter": "none", "nodes": "auto", "speedup": 0.73}, wording("plain_decoding_gives_4_0_tokens_s_4")),
    ],
)
def test_the_sentence_is_true(two, unlike, said_first):
    assert table.sentence([two[0], two[1] | unlike]).startswith(said_first)
    assert table.sentence([two[0]]).startswith(wording("plain_decoding_gives_4_0_tokens_s"))
    assert table.sentence([two[0] | {"tokens_per_second": None}]).startswith(wording("no_reply_was_long_enough"))


def test_what_auto_does_without_a_drafter_is_not_compared_with_itself(two):
    text = table.of(report([two[0], two[1] | {"drafter": "none", "nodes": "auto", "speedup": 0.73}]))
    bar = next(line for line in text.splitlines() if line.startswith("  auto: plain decoding  "))
    assert "faster" not in bar and "slower" not in bar and wording("kind_of_text") not in text


@each("width, left_out", [(100, ""), (80, "host, limit"), (60, "M, draft, verify, host, limit")])
def test_at_a_narrow_terminal_nothing_is_broken(two, width, left_out):
    two[1] |= {"drafter": "parallelspec", "off_reason": "word " * 30}
    lines = table.of(report(two), width, details=True).splitlines()
    assert max(map(len, lines)) <= width
    assert max(map(len, table.of(report(two), width).splitlines())) <= width
    heads = next(line for line in lines if line.startswith("drafter"))
    text = " ".join(" ".join(lines).split())
    assert (wording("room_which_json", left_out=left_out) in text) is bool(left_out)
    for head, meaning in (
        ("limit", "limit: share of"),
        ("M", "M: speedup"),
        ("draft", "in units of a whole step without drafts"),
    ):
        assert (head in heads.split()) is (meaning in text) is (head not in left_out.split(", "))
    plain, fast = (line.count("█") for line in lines if "█" in line)
    assert 0 < plain < fast <= table.LONGEST_BAR


def test_a_speedup_that_cannot_be_is_marked_wherever_it_stands_and_explained(two):
    two[1] |= {"speedup": 7.28, "speedup_limit": 1.21, "reliable": False, "M": 7.0}
    text = table.of(report(two), details=True)
    line = next(line for line in text.splitlines() if line.startswith("phrases") and "7.28" in line)
    assert "7.28!" in line.split() and "7.00!" in line.split()
    assert "7.28!" in next(line for line in text.splitlines() if line.startswith("all")).split()
    bar = next(line for line in text.splitlines() if "█" in line and "phrases" in line)
    assert bar.endswith(" tokens/s, unreliable") and "faster" not in bar
    told = " ".join(text.split())
    assert wording("phrases_8_unreliable_acceptance") in told
    assert "unreliable" not in table.of(report([{**row, "reliable": True, "speedup": 1.0} for row in two]))


def test_every_printed_speedup_that_cannot_be_is_marked(two):
    """Speedups of quartiles and categories, too, even where the median of the row is possible."""
    two[1] |= {"reliable": True, "speedup_limit": 2.3, "speedup_limit_quartiles": [1.9, 1.9]}
    two[1]["categories"]["chat"] |= {"speedup": 1.4, "speedup_limit": 1.45}
    assert wording("marks_quartiles_kinds_text") not in table.of(report(two))
    two[1]["categories"]["code"] |= {"speedup": 3.68, "speedup_limit": 1.45}
    assert wording("marks_quartiles_kinds_text") in table.of(report(two))
    text = table.of(report(two), details=True)
    words = text.split()
    assert "2.12–2.38!" in words and "3.68!" in words and "1.40" in words and "2.25" in words
    assert wording("marks_quartiles_kinds_text") in text
    two[1] |= {"speedup_limit_quartiles": [2.3, 2.3]}
    two[1]["categories"]["code"] |= {"speedup_limit": 3.68}
    assert "!" not in table.of(report(two), details=True)


def test_more_than_the_bandwidth_of_the_memory_is_explained(two):
    two[0] |= {"bandwidth_share": 1.35}
    text = table.of(report(two), details=True)
    assert "135%*" in text.split() and wording("above_100_memory_s_bandwidth_2") in text
    assert "*" not in table.of(report([{**row, "bandwidth_share": 0.97} for row in two]), details=True)


def test_the_load_is_shown(two):
    assert "Other programs" not in " ".join(table.of(report(two)).split())
    busy = report(two)
    busy["machine"]["others"] = 1.26
    assert wording("other_programs_kept_1_3_2_cores_2") in " ".join(table.of(busy).split())


def test_a_tampered_reply_shows(two):
    two[1] = row("phrases", 8, [said(), said((1, 2, 3, 4, 6))])
    assert any(line.endswith(" 1/2") for line in table.of(report(two), details=True).splitlines())
    assert wording("phrases_8_gave_same_text_1_2") in table.of(report(two))


def test_never_wider_than_100_columns(two):
    wide = copy.deepcopy(two[1])
    wide |= {
        "drafter": "draft_model:some-organisation/some-model", "nodes": 64, "tokens_per_second": 12345.6,
        "tokens_per_second_quartiles": [10000.0, 99999.0], "speedup": 10.25, "speedup_quartiles": [10.0, 12.5],
        "acceptance_length": 12.34, "draft_cost": 10.11, "verify_cost": 10.11, "host_cost": 10.11, "bandwidth_share": 12.5,
        "identical_prompts": 1000, "prompts": 1000, "off_reason": "word " * 60, "acceptance_by_depth": [0.5] * 60,
    }  # fmt: skip
    for some in (two, wide):
        some = some if isinstance(some, list) else [some]
        for one in some:
            one["categories"] = {
                f"category {'x' * 90} {n}": {"speedup": 10.2, "acceptance_length": 11.3} for n in range(20)
            }
    machine = {"versions": "torch " + "x" * 150, "cores": 128, "memory": 2**42, "bandwidth": 10**12, "others": 127.9}
    for details in (False, True):
        text = table.of(report([*two, *[wide] * 8], machine=machine, model="m" * 130), details=details)
        assert max(map(len, text.splitlines())) <= 100
        assert "8 more kinds" in text


def test_what_could_not_be_measured_is_a_dash():
    short = [said((1,), seconds=0.0, steps=0)] * 2
    nothing = {**row("none", 0, short), "identical_prompts": 2}
    line = next(line for line in table.of(report([nothing]), details=True).splitlines() if line.startswith("none"))
    assert line.split() == ["none", "0", *["-"] * 8, "2/2"]


def test_reasons(two):
    two[1]["off_reason"] = wording("drafts_do_not_pay_here")
    assert wording("phrases_8_switched_drafting_off") in table.of(report(two)).splitlines()


def test_nothing_that_a_terminal_would_obey(two):
    two[1]["categories"] = two[0]["categories"] = dict.fromkeys(("chat", "\x1b[31mred\n"), two[1]["categories"]["code"])
    text = table.of(report(two, model="a\x1b[31m\nb"))
    assert "\x1b" not in text and "red" in text and all(text.splitlines()[:2])
