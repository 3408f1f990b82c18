"""The benchmark's own arithmetic: readings, speculation in llama.cpp's manner, the raw file and the page."""

import json
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

import bench_report
import numpy as np
import pytest
from benchmarks import load_child, loading, page, readings, sections
from benchmarks.llama_speculation import MOST, DraftModel, look_up, nothing, reply
from benchmarks.readings import figure, ratio, timed, turns
from clocks import PATIENCE
from golden import wording
from kernel_files import needs_own_memory
from widen_demo import widen

from localspec.errors import LocalspecError, UsageMistake

# -- readings ----------------------------------------------------------------------------------------------------------


def test_disturbed_readings_are_left_out_and_counted():
    taken = {"one|1": [[0, 10.0, 0.0], [1, 12.0, 0.05], [2, 99.0, 0.4], [3, 11.0, 0.1]]}
    found = figure(taken, "one", 1)
    assert (found.value, found.quiet, found.disturbed, found.marked) == (11.0, 3, 1, False)
    assert figure(taken, "one", 2) is None


def test_where_hardly_any_is_quiet_all_count_and_the_figure_is_marked():
    taken = {"one|1": [[0, 10.0, 0.0], [1, 20.0, 0.9], [2, 30.0, 0.9], [3, 40.0, 0.9]]}
    found = figure(taken, "one", 1)
    assert (found.value, found.quiet, found.disturbed, found.marked) == (25.0, 1, 3, True)


def test_a_ratio_is_the_median_of_the_turns_and_no_ratio_of_medians():
    taken = {
        "ours|1": [[0, 10.0, 0.0], [1, 20.0, 0.0], [2, 100.0, 0.0], [3, 1.0, 0.0]],
        "theirs|8": [[0, 20.0, 0.0], [1, 60.0, 0.0], [2, 100.0, 0.0], [3, 900.0, 0.5], [7, 5.0, 0.0]],
    }
    found = ratio(taken, "ours", "theirs", 1, 8)
    # 2, 3 and 1; the fourth turn was disturbed for one of the two, and the eighth is one's alone.
    assert (found.value, found.quiet, found.disturbed) == (2.0, 3, 1)


def test_a_reading_repeats_what_is_short_and_believes_what_tells_its_own_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(readings.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(readings, "OtherPrograms", lambda: lambda: 0.25)
    called = []

    def action():
        called.append(clock[0])
        clock[0] += 0.06 if len(called) > 1 else 5.0

    assert timed(action) == (pytest.approx(60.0), 0.25)
    assert len(called) == 5  # one that is not counted, then 0.24 seconds
    assert timed(lambda: action() or 0.001) == (pytest.approx(1.0), 0.25)
    called.clear()
    assert timed(action, warm=False)[0] == pytest.approx(5000.0) and len(called) == 1


def test_other_programs_are_all_that_is_busy_and_not_ours(monkeypatch):
    seen = iter([(0.0, 100.0, 10.0), (2.0, 103.0, 12.0), (3.0, 103.0, 13.0)])
    monkeypatch.setattr(readings.OtherPrograms, "_read", staticmethod(lambda: next(seen)))
    others = readings.OtherPrograms()
    assert others() == pytest.approx(0.5)  # one of three busy seconds was not ours, in two seconds
    assert others() == 0.0


def test_who_comes_first_changes_and_one_turn_is_taken_in_any_case():
    assert list(turns(3, 0)) == [(0, [0, 1, 2])]
    several = turns(3, 60)
    assert [order for _, order in (next(several) for _ in range(4))] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


# -- replies in llama.cpp's manner -------------------------------------------------------------------------------------

VOCABULARY, STOP = 50, 49


def after(tokens, seed: int = 3) -> int:
    """The next token of a model that is nothing but a rule; it repeats itself, and ends."""
    return STOP if len(tokens) == 40 else (sum(tokens[-2:]) + seed * (len(tokens) % 5)) % 7


class Scripted:
    """As much of a GGUF file as a reply asks for, with a cache that is checked."""

    def __init__(self, next_token=after, sure: float = 20.0) -> None:
        self.text, self.next_token, self.sure, self.forwards = [], next_token, sure, 0

    def logits(self, tokens, start, last=False):
        assert start <= len(self.text), "a hole in the cache"
        self.text[start:] = tokens
        self.forwards += 1
        rows = np.zeros((len(tokens), VOCABULARY), np.float32)
        for row in range(len(tokens)):
            rows[row, self.next_token(self.text[: start + row + 1])] = self.sure
        return rows[-1:] if last else rows

    def read(self, tokens):
        return self.logits(tokens, 0, last=True)


PROMPT = [1, 2, 3, 4]


def expected(limit: int) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + limit and (token := after(tokens)) != STOP:
        tokens.append(token)
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("limit", [1, 7, 20, 100])
def test_speculation_changes_no_reply_and_takes_fewer_forwards(limit):
    plain = reply(Scripted(), PROMPT, limit, {STOP}, nothing)
    assert plain.tokens == expected(limit)
    assert plain.steps == min(limit - 1, len(plain.tokens))
    same, other = DraftModel(Scripted()), DraftModel(Scripted(lambda tokens: after(tokens, 4)))
    for propose in (same, other, lambda tokens: [9] * 5):
        for _ in range(2):  # a draft model goes on with the next prompt
            found = reply(Scripted(), PROMPT, limit, {STOP}, propose)
            assert found.tokens == plain.tokens and found.steps <= plain.steps
    if limit == 100:
        assert reply(Scripted(), PROMPT, limit, {STOP}, same).steps < plain.steps / 4


@pytest.mark.skipif(not find_spec("llama_cpp"), reason="needs the extra 'peers'")
def test_the_look_up_is_that_of_llama_cpp_python():
    propose = look_up(3)
    assert propose([5, 6, 7, 8, 9, 5, 6]) == [7, 8, 9]
    assert propose([1, 2, 3]) == []
    assert reply(Scripted(), PROMPT, 30, {STOP}, propose).tokens == expected(30)


def test_a_draft_model_stops_where_it_is_not_sure():
    # One in ten of the likeliest: e^x / (e^x + 9) is 0.75 at 3.3.
    assert len(DraftModel(Scripted(sure=3.2))(PROMPT)) == 1
    assert len(DraftModel(Scripted(sure=3.4))(PROMPT)) == MOST


def test_a_draft_model_reads_only_what_is_new():
    gguf = Scripted()
    draft = DraftModel(gguf)
    first = draft(PROMPT)
    gguf.forwards = 0
    draft([*PROMPT, *first[:3], 6, 6])  # three were right, then the target said something else
    assert gguf.forwards == 1 + MOST - 1 and gguf.text[:9] == [*PROMPT, *first[:3], 6, 6]


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_own_memory
@pytest.mark.long
def test_a_child_tells_seconds_and_its_own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    ballast = bytearray(800 * 2**20)  # of the process that starts it: none of it may be counted
    ballast[:: 2**12] = b"x" * len(ballast[:: 2**12])
    demo = Path(bench_report.ROOT) / "localspec" / "demo"
    model = type("AsMuchAsIsAsked", (), {"path": demo, "threads": 1, "flash": True})
    found = loading._child(loading.Loaded("localspec int8", "int8", ()), model)
    assert 0 < found["seconds"] < PATIENCE
    assert 20 * 2**20 < found["own"] < found["peak"] < 300 * 2**20


@pytest.mark.slow
def test_a_child_that_fails_says_why(tmp_path):
    model = type("AsMuchAsIsAsked", (), {"path": tmp_path, "threads": 1, "flash": True})
    with pytest.raises(LocalspecError, match=r"localspec int8 cannot be loaded: .*no config\.json"):
        loading._child(loading.Loaded("localspec int8", "int8", ()), model)


def test_files_are_dropped_and_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * (2 * loading.PIECE + 5))
    loading.drop([file])
    loading.read_through(file)
    assert file.stat().st_size == 2 * loading.PIECE + 5
    assert load_child.PROMPT == 16


# -- the raw file and the page -----------------------------------------------------------------------------------------


def run(section: str, cells: dict, isa: str = "avx512_vnni", notes: dict | None = None) -> dict:
    return {
        "model": "small", "parameters": 369_000_000, "section": section, "isa": isa, "machine": "A CPU", "threads": 2,
        "versions": "native 1", "when": "2026-01-01 00:00", "command": "python scripts/bench_report.py",
        "load_average": [1.0, 2.0], "notes": notes or {}, "readings": cells,
    }  # fmt: skip


def readings_of(values: dict[str, float], others: float = 0.0) -> dict[str, list[list[float]]]:
    return {name: [[turn, value, others] for turn in range(3)] for name, value in values.items()}


def measured() -> dict:
    by_rows = {f"localspec int8|{rows}": 10.0 + rows for rows in (1, 2, 4, 8)}
    by_rows |= {f"llama.cpp Q8_0|{rows}": 20.0 * rows for rows in (1, 2, 4, 8)}
    by_rows |= {"localspec int4|1": 6.0, "llama.cpp Q4_0|1": 9.0, "llama.cpp Q4_K_M|1": 12.0}
    by_rows |= {"memory read of localspec int8|1": 9.9}
    replies = {"localspec int8|plain": 20.0, "localspec int8|phrases": 10.0, "localspec int8|s3d+phrases": 8.0}
    replies |= {"llama.cpp Q8_0|plain": 25.0, "llama.cpp Q8_0|look-up 2": 20.0}
    counted = {name: {"replies": 3, "tokens": 90, "steps": 45, "same": 3} for name in replies}
    loads = {"localspec int8|warm": 100.0, "localspec int8|cold": 300.0, "localspec int8|peak": 500.0}
    sizes = {"bytes": {"localspec int8": 400 * 2**20}}
    runs = [
        run("rows", readings_of(by_rows)),
        run("decode", readings_of(replies, others=1.5), notes={"replies": counted}),
        run("load", readings_of(loads), notes=sizes),
        run("rows", readings_of({"localspec int8|1": 30.0}), isa="avx2"),
    ]
    return {"runs": {str(number): one for number, one in enumerate(runs)}}


def test_a_run_takes_the_place_of_the_last_one_of_its_kind(tmp_path):
    file = tmp_path / "raw.json"
    bench_report.merge(file, run("rows", {"one|1": [[0, 1.0, 0.0]]}))
    bench_report.merge(file, run("rows", {"one|1": [[0, 2.0, 0.0]]}, isa="avx2"))
    bench_report.merge(file, run("rows", {"one|1": [[0, 3.0, 0.0]]}))
    found = json.loads(file.read_text())["runs"]
    assert {key: one["readings"]["one|1"][0][1] for key, one in found.items()} == {
        "small/rows/avx512_vnni": 3.0,
        "small/rows/avx2": 2.0,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["raw.json"]


def test_the_page_says_what_was_measured():
    told = page.page(measured())
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in told.splitlines() if line.startswith("| ")}
    assert "## 0.37 B parameters, avx512_vnni" in told and "## 0.37 B parameters, avx2" in told
    assert lines["1 row"].startswith("| 1 row | 1.82 | 1.50 (Q4_0) |")
    assert lines["8 rows"].startswith("| 8 rows | 8.89 |")
    assert lines["of the memory's limit, 1 row"].startswith(wording("memory_s_limit_1_row_0_90"))
    assert lines["8 rows, in steps of the fastest of 1, 2 and 4"].split(" | ")[1] == "1.64"
    assert "2.50\\* (s3d+phrases; Q8_0 look-up 2)" in lines["best speculation of each"]
    assert "125.0\\*" in lines["localspec int8, s3d+phrases"] and "2.50\\*" in lines["localspec int8, s3d+phrases"]
    assert "transformers" not in lines  # was not measured
    assert "| 15 | 15 |" in told  # of the replies all were disturbed


def test_drawings_are_svg_and_the_page_shows_each(tmp_path):
    drawn = page.drawings(measured())
    assert set(drawn) == {
        "rows-small-avx512-vnni.svg", "replies-small-avx512-vnni.svg", "rows-small-avx2.svg"
    }  # fmt: skip
    told = page.page(measured())
    for name, content in drawn.items():
        assert f"(plots/{name})" in told
        assert ET.fromstring(content).tag.endswith("svg")
    assert "localspec int8, s3d+phrases" in drawn["replies-small-avx512-vnni.svg"]


def test_drawing_alone_needs_the_raw_file_and_nothing_else(tmp_path):
    raw, out = tmp_path / "raw.json", tmp_path / "docs" / "page.md"
    out.parent.mkdir()
    raw.write_text(json.dumps(measured()))
    bench_report.draw(raw, out)
    assert out.read_text() == page.page(measured())
    assert len(list((tmp_path / "docs" / "figures" / "plots").iterdir())) == 3


def test_what_there_is_not_is_refused_by_name():
    with pytest.raises(UsageMistake, match="'speed' is unknown; use some of flags,rows,context"):
        bench_report.chosen("rows,speed", bench_report.SECTIONS, "--only")
    assert bench_report.chosen("load,rows", bench_report.SECTIONS, "--only") == ["load", "rows"]


def test_llama_cpp_is_given_the_attention_that_is_faster_on_the_whole():
    one, other = (sections.with_flags("llama.cpp Q8_0", way) for way in sections.FLASH_OR_NOT)
    taken = readings_of({f"{one}|prompt": 10.0, f"{other}|prompt": 30.0, f"{one}|256/1": 4.0, f"{other}|256/1": 2.0})
    assert sections.flash_is_faster(taken)  # 3 and 1/2 times as fast
    slower = taken | readings_of({f"{one}|256/8": 4.0, f"{other}|256/8": 2.0})
    assert not sections.flash_is_faster(slower)
    raw = {"runs": {"small/flags/avx512_vnni": run("flags", slower)}}
    assert bench_report.flash(raw, "large") and not bench_report.flash(raw, "small")
    assert "flash attention is slower" in page.page(raw)


def test_the_command_is_told_without_where_files_are(monkeypatch):
    words = ["bench_report.py", "--work", "/home/somebody/bench", "--only", "rows", "--model", "/home/somebody/wide"]
    monkeypatch.setattr(bench_report.sys, "argv", words)
    monkeypatch.setenv("LOCALSPEC_ISA", "avx2")
    assert bench_report._command() == (
        "LOCALSPEC_ISA=avx2 python scripts/bench_report.py --work bench --only rows --model wide"
    )


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("llama_cpp") and find_spec("gguf")), reason="needs the extra 'peers'")
def test_everything_is_measured_of_a_small_model(tmp_path, monkeypatch):
    """One turn of each section, on the demo as it is, with shorter texts."""
    monkeypatch.setattr(sections, "CONTEXTS", (256, 512))
    monkeypatch.setattr(sections, "PROMPTS", (64, 600))
    monkeypatch.setattr(sections, "FLAG_CONTEXTS", (512, 256))
    widen(tmp_path / "demo", 1)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))  # so that what the program sets is undone
    words = ["--work", tmp_path, "--model", tmp_path / "demo", "--seconds", 0, "-n", 8, "--raw", tmp_path / "raw.json"]
    words += ["--page", tmp_path / "page.md"]
    monkeypatch.setattr(bench_report.sys, "argv", ["bench_report.py", *map(str, words)])
    assert bench_report.main() == 0
    found = page.grouped(json.loads((tmp_path / "raw.json").read_text()))[0]
    assert set(found.runs) == set(bench_report.SECTIONS)
    for section, columns in {
        "rows": ["1", "2", "4", "8", "16", "32"],
        "context": ["256/1", "256/8", "512/1", "512/8"],
        "prefill": ["64", "600"],
    }.items():
        for name in page.CONTENDERS:
            assert page.columns_of(found.readings(section), name) == columns, (section, name)
    assert figure(found.readings("rows"), "memory read of localspec int4", 1).value > 0
    flags = {name.split("|")[0] for name in found.readings("flags")}
    assert len(flags) == 2 * 3 and "### llama.cpp's flags" in (tmp_path / "page.md").read_text()
    loads = found.readings("load")
    assert all(figure(loads, name, column) for name in page.CONTENDERS for column in ("warm", "cold", "peak", "own"))
    assert figure(loads, "localspec int8", "packing").value > 0
    told = found.runs["decode"]["notes"]["replies"]
    assert len([name for name in told if name.startswith("llama.cpp")]) == 3 * 4
    ours = {name: one for name, one in told.items() if name.startswith("localspec")}
    assert len(ours) == 2 * 7 and all(one["same"] == one["replies"] for one in ours.values())
    # Ours stop drafting where the machine is busy; llama.cpp never does.
    assert all(one["steps"] <= one["tokens"] for one in ours.values())
    assert told["llama.cpp Q8_0|draft model"]["steps"] < told["llama.cpp Q8_0|plain"]["steps"]
