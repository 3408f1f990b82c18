"""The run book for a GPU: what it keeps, what it refuses, what its page says; and, on a CPU, that all of it runs."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_proof
import pytest
import torch
from command import ROOT
from filelock import FileLock
from golden import matching, wording
from gpu_stages import (
    asked,
    attention,
    captured,
    children,
    costs,
    demo,
    needs,
    page,
    products,
    record,
    suite,
    timing,
    trainings,
    widened,
)
from gpu_stages.aims import Aim, aims_table
from gpu_stages.record import DeviceLost, Record, TimeUp, failure

from localspec.errors import UsageMistake
from localspec.nn.logits import TorchLogits


@pytest.fixture
def kept(tmp_path: Path) -> Record:
    return Record(tmp_path / "b.json", 100.0)


def again(one: Record, seconds: float = 100.0) -> Record:
    """The same file, as the next process opens it."""
    return Record(one.file, seconds)


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_figure_is_kept_at_once_and_measured_once(kept: Record) -> None:
    made: list[str] = []
    assert kept.measured("one", lambda: made.append("one") or 1) == 1

    def cut_off() -> None:
        assert again(kept).figures == {"one": 1}, "what was finished lies on the disk while the next is measured"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.measured("two", cut_off)
    later = again(kept)
    assert later.measured("one", lambda: made.append("one") or 2) == 1 and made == ["one"]
    assert later.measured("two", lambda: 3) == 3


def test_what_fails_is_told_and_costs_the_others_nothing(kept: Record) -> None:
    def fails() -> None:
        raise NotImplementedError("no kernel\nfor this card")

    assert failure(kept.measured("one", fails)) == "NotImplementedError: no kernel"
    assert kept.measured("two", lambda: 2) == 2
    assert failure(again(kept).measured("one", lambda: 1)), "and is not tried for ever"
    later = again(kept)
    later.forget_failed()
    assert later.measured("one", lambda: 1) == 1 and again(kept).figures == {"one": 1, "two": 2}


def test_nothing_is_begun_for_which_no_time_is_left(kept: Record) -> None:
    late = again(kept, seconds=3.0)
    with pytest.raises(TimeUp):
        late.measured("one", lambda: 1)
    assert late.measured("one", lambda: 1, least=1.0) == 1
    assert again(kept, seconds=0.0).measured("one", lambda: 2) == 1, "what is there needs no time"


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("how", [TimeUp, DeviceLost, KeyboardInterrupt, SystemExit])
def test_who_stops_it_may_go_on_as_often_as_he_likes(kept: Record, how: type[BaseException]) -> None:
    def stopped() -> None:
        raise how

    for _ in range(record.TRIES + 1):
        with pytest.raises(how):
            again(kept).measured("one", stopped)
    assert again(kept).measured("one", lambda: 1) == 1


def test_what_takes_more_than_all_the_time_twice_is_left_out(kept: Record) -> None:
    def ended() -> None:
        raise SystemExit(gpu_proof.OVER)

    for _ in range(record.TRIES):
        with pytest.raises(SystemExit):
            again(kept, seconds=-1.0).measured("one", ended, least=-2.0)
    assert "the process ended" in failure(again(kept).measured("one", lambda: 1))


def test_what_ends_the_process_twice_is_left_out(kept: Record) -> None:
    def ends() -> None:
        raise Killed

    for _ in range(record.TRIES):
        with pytest.raises(Killed):
            again(kept).measured("one", ends)
    assert "the process ended" in failure(again(kept).measured("one", ends))
    assert again(kept).measured("two", lambda: 2) == 2


def test_a_device_that_answers_no_more_asks_for_another_process(kept: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(record, "answers", lambda device: False)
    with pytest.raises(DeviceLost):
        kept.measured("one", fails)
    assert failure(again(kept).figures["one"])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stages", "a", "z"], "There is no stage 'z'; use some of a d b f c e g."),
        ([], "give --work DIR"),
        (["--work", "{}", "--device", "cpu"], "On a CPU there is only the rehearsal; give --small."),
        (["--work", "{}", "--device", "cuda:9", "--small"], "--device cuda:9 is not for this; give cuda or cpu"),
        (["--work", "{}", "--device", "cpu", "--small", "--data", "{}"], "holds no chat.jsonl.xz"),
        (["--work", "{}", "--device", "cpu", "--small", "--prompts", "{}/none.jsonl"], "cannot be read"),
        (["--work", "{}", "--out", "{}/none/gpu.md"], wording("place_page")),
        (["--work", "{}", "--out", "{}"], wording("place_page")),
        (["--work", "{}/file", "--device", "cpu", "--small"], "cannot be used (File exists); name another directory"),
        (["--work", "{}", "--device", "cpu", "--small", "--models", "{}/file"], wording("cannot_be_used_file_exists")),
        (["--work", "{}", "--factor", "0"], wording("give_whole_number_above_0")),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr(gpu_proof, "supervised", lambda *_: pytest.fail("it began"))
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as left:
        gpu_proof.main([word.format(tmp_path) for word in words])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_models_lie_where_nobody_else_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "models"
    monkeypatch.setattr(asked, "MODELS", place)
    asked.own(place)
    assert place.stat().st_mode & 0o777 == 0o700 and asked.own(place) is None
    for mode in (0o770, 0o777):
        place.chmod(mode)
        with pytest.raises(UsageMistake, match="others may write"):
            asked.own(place)
    place.chmod(0o700)
    (tmp_path / "link").symlink_to(place)
    links = os.lstat(tmp_path / "link").st_uid + 1
    lstat = Path.lstat
    theirs = os.stat_result([0o777, 0, 0, 1, links, 0, 0, 0, 0, 0])
    monkeypatch.setattr(Path, "lstat", lambda path: theirs if path.name == "link" else lstat(path))
    with pytest.raises(UsageMistake, match=matching("somebody_else_s")):
        asked.own(tmp_path / "link")


def test_figures_of_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_proof, "supervised", lambda *_: None)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    words = ["--device", "cpu", "--small", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "gpu.md")]
    assert gpu_proof.main(words) == 0
    assert gpu_proof.main([*words, "--seconds", "9", "--stages", "b"]) == 0, "how long, and which, may differ"
    with pytest.raises(SystemExit):
        gpu_proof.main([*words, "--factor", "3"])
    assert "holds results of other settings: factor was 2, and now it is 3" in capsys.readouterr().err


def test_a_card_decides_how_wide_the_demo_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        total_memory = 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    one = asked.Asked("cuda", False, Path(), Path(), None, None, None)
    for gigabytes, factor in ((80, 32), (24, 24), (8, 16)):
        Card.total_memory = gigabytes * 10**9
        assert one.width == factor
    with pytest.raises(UsageMistake):
        asked.check(one)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripted(codes): the processes of stage b, which end so; each measures one more figure unless it says so."""
    began: list[list[str]] = []

    def make(*codes: tuple[int | None, bool]) -> list[list[str]]:
        waiting = list(codes)

        def run(words: list[str], seconds: float, log: Path, **named: Any) -> int | None:
            began.append(words)
            log.write_text("boom\n")
            code, measures = waiting.pop(0)
            own = Record(tmp_path / "b.json", 1.0)
            own.begin({"when": "now", "command": "c", "load": 0.0})
            if measures:
                own.keep(f"figure {len(began)}", 1)
            return code

        monkeypatch.setattr(gpu_proof, "run_script", run)
        words = ["--work", str(tmp_path), "--stages", "a", "b", "--again", "--small"]
        gpu_proof.supervised("b", words, gpu_proof.arguments(words)[1])
        return began

    return make


def test_a_stage_that_loses_the_device_goes_on_in_another_process(scripted: Any) -> None:
    began = scripted((gpu_proof.AGAIN, True), (gpu_proof.AGAIN, True), (0, True))
    assert len(began) == 3
    assert [words[words.index("--stages") + 1] for words in began] == ["b"] * 3
    assert ["--again" in words for words in began] == [True, False, False], (
        "what failed in this call is not tried again"
    )
    assert all("--here" in words and "--small" in words and words.count("--stages") == 1 for words in began)


def test_a_process_that_comes_no_further_is_the_last_and_the_page_says_how_it_ended(
    scripted: Any, tmp_path: Path
) -> None:
    assert len(scripted((1, True), (1, False))) == 2
    runs = record.read(tmp_path / "b.json")["runs"]
    assert runs[-1]["ended"] == "its process was over with code 1: boom"
    assert "its process was over with code 1: boom" in page.runs_told(runs)


@pytest.mark.parametrize("code", [0, gpu_proof.OVER, None])
def test_a_stage_that_is_over_is_not_begun_again(scripted: Any, code: int | None) -> None:
    assert len(scripted((code, True), (0, True))) == 1


CHILD = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_script_whose_time_is_over_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    began = time.monotonic()
    assert children.run_script(["-c", CHILD, str(tmp_path)], 2.0, log, grace=5.0) is None
    assert time.monotonic() - began < 10 and children.last_line(log) == "begun"
    alive = [
        line for line in os.listdir("/proc")
        if line.isdecimal() and str(tmp_path) in _command(line)
    ]  # fmt: skip
    assert not alive
    assert children.run_script(["-c", "raise SystemExit(7)"], 60.0, log) == 7


def _command(process: str) -> str:
    try:
        return Path("/proc", process, "cmdline").read_text()
    except OSError:
        return ""


# -- figures -----------------------------------------------------------------------------------------------------------


def test_calls_of_the_runtime_are_told_apart() -> None:
    seen = {
        "cudaLaunchKernel": 5, "cudaLaunchKernelExC": 2, "cuLaunchKernelEx": 1, "cudaGraphLaunch": 3, "cudaMemcpyAsync": 4,
        "cudaStreamSynchronize": 6, "cudaDeviceSynchronize": 1, "aten::mm": 99, "void kernel()": 99,
    }  # fmt: skip
    assert timing.counted(seen) == {"kernels": 8, "graphs": 3, "waits": 7, "copies": 4, "seen": 22}


def test_spans_that_overlap_are_counted_once() -> None:
    assert timing.covered([]) == 0
    assert timing.covered([(5, 9), (0, 2), (1, 4), (6, 7)]) == 8


def test_what_the_device_waits_is_what_its_work_leaves_of_a_step() -> None:
    def one(busy: float) -> dict[str, Any]:
        calls = {str(rows): {"busy": busy, "seconds": 0.01, "seen": 0} for rows in costs.PROFILED}
        return {"calls": calls, "seconds": [[0.01]], "rows": [1], "read": 1, "held": 1}

    assert costs.waits(one(0.008))[8] == pytest.approx(0.2)
    assert set(costs.waits(one(0.0)).values()) == {None} and set(costs.waits(one(0.02)).values()) == {0.0}
    told = {aim.what: aim.verdict for aim in costs.aims({"Llama-2-7B bf16": one(0.008), "Llama-2-7B nf4": one(0.0096)})}
    waits = "share of a step in which the device waits for the host"
    assert told[f"Llama-2-7B in bf16: {waits}"] == "**missed**" and told[f"Llama-2-7B in nf4: {waits}"] == "met"
    assert "is not measured" in costs.waits_told({"Llama-2-7B bf16": one(0.0)})[0]
    assert "| Llama-2-7B bf16 | 20 % | 20 % | 20 % |" in costs.waits_told({"Llama-2-7B bf16": one(0.008)})[1]


def test_work_in_turns_is_timed_by_its_quickest_round() -> None:
    calls: list[int] = []

    def work(number: int) -> None:
        calls.append(number)
        time.sleep(0.02 if len(calls) < 5 else 0.002)

    seconds = timing.seconds_each([lambda: work(0), lambda: work(1)], "cpu")
    assert 0.002 <= seconds < 0.006
    assert calls == [0, 1] * (len(calls) // 2)
    assert isinstance(timing.captured_seconds_each([lambda: None], "cpu"), str)


def test_rows_whose_bits_depend_on_others_are_seen() -> None:
    x = torch.randn(32, 8)
    assert products.differing(lambda rows: rows * 2, x) == []
    assert products.differing(lambda rows: rows * (2 if len(rows) < 9 else 2.0001), x) == [9, 16, 17, 32]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["dense bf16", "our NF4", "our int8", "torch _weight_int8pack_mm", "torch _weight_int4pack_mm", "torch _int_mm"],
)
def test_a_candidate_computes_the_product(name: str) -> None:
    build, _ = products.KERNELS[name]
    torch.manual_seed(0)
    weight, x = torch.randn(64, 256, dtype=torch.bfloat16), torch.randn(8, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        right = x.float() @ weight.float().t()
        assert float((build(weight)(x).float() - right).norm() / right.norm()) < 0.15


def test_what_computes_another_product_is_no_rival() -> None:
    (matrix, *_), one = products.MATRICES, {"us": {"8": 10.0}, "captured": {"8": 4.0}, "error": 0.1}
    figures = {
        f"product {matrix}, our NF4": one,
        f"product {matrix}, torch _int_mm": one | {"captured": {"8": 2.0}},
        f"product {matrix}, dense bf16": one | {"captured": {"8": 0.5}},
        f"product {matrix}, torch _weight_int8pack_mm": {"failed": "no such kernel"},
    }
    assert products.beside_others(figures, 8) == pytest.approx(0.5), "a packing, and the time of its graph"
    figures[f"product {matrix}, torch _int_mm"]["error"] = 1.4
    assert products.beside_others(figures, 8) is None


def test_a_tree_sees_the_text_and_its_ancestors() -> None:
    mask = attention.tree_mask(4, 16, 2, "cpu")
    assert mask.shape == (8, 16) and torch.equal(mask[:4], mask[4:])
    assert (mask[3] == 0).nonzero().flatten().tolist() == [*range(8), 8, 9, 11], "root, its first child, and itself"


class OneForm:
    """A model as versions without other forms of a step have it."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        if name in ("use_step_form", "step_form"):
            raise AttributeError(name)
        return getattr(self.model, name)


class Forms(OneForm):
    """A model with forms of a step, one of which is off by a little where rows are many."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.step_form = "eager"

    def use_step_form(self, form: str) -> None:
        self.step_form = form

    def forward(self, tree: Any, cache: Any) -> Any:
        found = self.model.forward(tree, cache)
        off = self.step_form == "captured" and tree.size > 8
        return replace(found, logits=TorchLogits(found.logits.rows + 1e-4)) if off else found


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> captured.Steps:
    monkeypatch.setattr(timing, "ENOUGH", 0.0)
    return captured.Steps(asked.Asked("cpu", True, tmp_path, tmp_path, None, None, None), captured.LLAMA2, "fp32")


def test_a_version_with_one_form_of_a_step_is_told(steps: captured.Steps) -> None:
    vars(steps)["target"] = OneForm(steps.target)
    found = captured.measured(steps, "captured", "cpu")
    assert found == {"none": "no captured step in this version"}
    assert "- no captured step in this version" in captured.section({"Llama-2-7B bf16 captured": found})
    assert {aim.verdict for aim in captured.aims({"Llama-2-7B bf16 captured": found})} == {"not measured"}


@pytest.mark.slow
def test_a_form_that_changes_a_bit_is_found(steps: captured.Steps) -> None:
    vars(steps)["target"] = Forms(steps.target)
    assert captured.measured(steps, "static", "cpu")["differing"] == []
    found = captured.measured(steps, "captured", "cpu")
    assert found["differing"] == [16, 32] and set(found["ms"]) == {"1", "8", "16", "32"}
    figures = {"Llama-2-7B bf16 captured": found}
    assert "differ at 16, 32 rows" in captured.section(figures)
    assert captured.aims(figures)[-1].verdict == "**missed**"


JUNIT = """<testsuites><testsuite>
<testcase name="good" time="1.5"><properties><property name="exactness" value="bitwise"/></properties></testcase>
<testcase name="bad" time="0.5"><failure message="assert 1 == 2"/></testcase>
<testcase name="broken" time="0"><error message="no room"/></testcase>
<testcase name="left" time="0"><skipped message="there is no GPU here"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(("gib", "cores", "count"), [(140, 16, 12), (140, 4, 4), (8, 16, 4), (1, 16, 0)])
def test_as_many_processes_share_a_card_as_it_and_the_processor_have_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, cores: int, count: int
) -> None:
    monkeypatch.setattr(suite, "total_memory", lambda device: gib * 2**30)
    monkeypatch.setattr(suite, "find_spec", lambda name: name)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    one = asked.Asked("cuda", False, tmp_path, tmp_path, None, None, None)
    assert suite.sharers(one) == count
    assert suite.sharers(replace(one, device="cpu")) == suite.sharers(replace(one, small=True)) == 1


def test_what_the_tests_found_is_counted_and_told(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(JUNIT)
    found = suite.counts(tmp_path / "report.xml")
    assert (found["passed"], found["wrong"], found["seconds"]) == (
        1,
        {"bad": "assert 1 == 2", "broken": "no room"},
        2.0,
    )
    told = suite.section({"test_one": found})
    assert (
        "- bad: assert 1 == 2" in told
        and wording("there_is_no_gpu_here") in told
        and "good: exactness: bitwise" in told
    )
    assert suite.aims({"test_one": found})[0].verdict == "**missed**"
    assert suite.aims({"test_one": found | {"wrong": {}}})[0].verdict == "met"
    assert suite.aims({"test_one": {"failed": "it did not begin"}})[0].verdict == "**missed**"


@pytest.mark.parametrize(
    ("told", "wrong", "verdict"),
    [
        ({"bf16-s3d": "6 of 6", "bf16-medusa": "6 of 6"}, {}, "met"),
        ({"bf16-s3d": "6 of 6", "bf16-medusa": "5 of 6"}, {}, "**missed**"),
        ({"bf16-s3d": "6 of 6"}, {"test_in_the_exact_form[bf16-semi]": "boom"}, "**missed**"),
        ({}, {}, "not measured"),
    ],
)
def test_replies_of_the_exact_form_are_counted(told: dict[str, str], wrong: dict[str, str], verdict: str) -> None:
    replies = {f"test_in_the_exact_form[{name}]: {suite.EXACT_TOLD}": value for name, value in told.items()}
    found = {"passed": 0, "wrong": wrong, "skipped": {}, "told": replies, "seconds": 0.0}
    assert suite.aims({"test_1_lossless": found})[1].verdict == verdict


@pytest.mark.parametrize(
    ("peak", "predicted", "verdict"),
    [
        (10 * 10**9, 10.4 * 10**9, "met"),
        (10 * 10**9, 9.4 * 10**9, "**missed**"),
        (10**9, 0.91 * 10**9, "met"),
        (10**9, 1.11 * 10**9, "**missed**"),
    ],
)
def test_predictions_of_memory_are_held_against_the_peak(peak: int, predicted: float, verdict: str) -> None:
    name = f"test_the_peak_is_what_was_predicted[nf4]: {suite.PEAK_TOLD}"
    found = {"passed": 1, "wrong": {}, "skipped": {}, "told": {name: f"{peak} of {predicted:.0f}"}, "seconds": 0.0}
    assert suite.aims({"test_4_memory": found})[2].verdict == verdict


def test_the_tests_tell_what_the_aims_ask_them_for() -> None:
    folder = ROOT / "tests" / "gpu"
    for file, words in (
        ("test_1_lossless.py", (suite.EXACT_TEST, suite.EXACT_TOLD)),
        ("test_4_memory.py", (suite.PEAK_TEST, suite.PEAK_TOLD)),
    ):
        assert all(word in (folder / file).read_text() for word in words)


def test_the_best_method_is_one_of_five_that_take_little_memory_beside_recorded_plain_steps() -> None:
    def verdict(form: str, **drafters: tuple[float, int]) -> str:
        plain = {"tokens_per_second": 10.0, "peak": 100, "form": form}
        others = {f"bf16 {name}": {"tokens_per_second": fast, "peak": peak} for name, (fast, peak) in drafters.items()}
        return widened.aims({"bf16 none": plain, **others})[0].verdict

    assert verdict("captured", s3d=(21.0, 104)) == "met"
    assert verdict("captured", s3d=(21.0, 107)) == "**missed**", "it takes too much memory"
    assert verdict("captured", s3d=(15.0, 100), phrases=(40.0, 100), eagle3=(40.0, 100)) == "**missed**"
    assert verdict("eager", s3d=(21.0, 104)) == "not measured", "plain steps were not recorded"
    assert verdict("captured", phrases=(40.0, 100)) == "not measured"


def test_the_tests_compute_on_the_device_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def run(command: list[str], env: dict[str, str], **named: Any) -> Any:
        devices.append(env["LOCALSPEC_TEST_DEVICE"])
        (tmp_path / "test_one.xml").write_text(JUNIT)

    monkeypatch.setattr(subprocess, "run", run)
    for device in ("cpu", "cuda"):
        suite.tests(Path("test_one.py"), asked.Asked(device, True, tmp_path, tmp_path, None, None, None), 60.0)
    assert devices == ["cpu", "cuda"]


def test_m_is_the_speedup_over_relative_memory() -> None:
    plain = {"tokens_per_second": 10.0, "peak": 100}
    assert widened.ratios({"tokens_per_second": 30.0, "peak": 150}, plain) == (3.0, 2.0)


def test_a_turn_keeps_whether_a_reply_differs_and_not_its_tokens() -> None:
    turn = {
        "category": "chat",
        "replies": {"none": {"ids": [[1, 2]], "tokens": 1}, "s3d": {"ids": [[1, 3]], "tokens": 1}},
    }
    assert widened.without_ids(turn)["replies"] == {
        "none": {"tokens": 1, "differs": False}, "s3d": {"tokens": 1, "differs": True},
    }  # fmt: skip


def test_random_rows_are_what_a_training_reads() -> None:
    rows = trainings.RandomRows(50, 16, 64)
    batch, *_ = next(rows.batches(trainings.Cursor()))
    assert [len(row.tokens) for row in batch] == [16] * 4 and all(row.worth for row in batch)
    assert max(max(row.tokens) for row in batch) < 50 and len(rows.frequencies()) == 50


def test_only_what_is_newer_comes_back_and_no_texts(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for name in ("long/checkpoint.pt", "long/pass-0.npz", "model/config.json", "trainings/mixture.jsonl"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("first")
    demo.bring(work, out)
    assert {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()} == {
        "long/checkpoint.pt",
        "model/config.json",
    }
    (out / "long" / "checkpoint.pt").write_text("from another machine")
    os.utime(out / "long" / "checkpoint.pt", (0, 0))
    demo.bring(work, out)
    assert (out / "long" / "checkpoint.pt").read_text() == "first"
    (out / "long" / "checkpoint.pt").write_text("later")
    os.utime(out / "long" / "checkpoint.pt", (2**31, 2**31))
    demo.bring(work, out)
    assert (out / "long" / "checkpoint.pt").read_text() == "later"


def test_what_a_package_requires_comes_along_and_extras_do_not() -> None:
    found = needs.closure(["typer"])
    assert "typer" in found and "rich" in found
    assert "pytest" not in needs.closure(["accelerate"])
    assert needs.closure(["there-is-no-such-package"]) == []
    files, libraries = needs.files_of("bitsandbytes")
    assert not any("rocm" in file.name or "cuda" in file.suffix for file in files)
    assert all(file.name.startswith(needs.CUDA) for file in libraries)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_an_aim_is_met_missed_or_not_measured() -> None:
    aims = [
        Aim("fast", 0.9, 0.8),
        Aim("slow", 0.7, 0.8),
        Aim("small", 0.7, 0.8, at_most=True),
        Aim("unknown", None, 1.0),
    ]
    assert [aim.verdict for aim in aims] == ["met", "**missed**", "met", "not measured"]
    assert "| b: small | ≤ 0.8 | 0.70 | met |" in aims_table([("b", aims[2])])


def test_a_figure_is_told_with_the_commits_that_measured_it(kept: Record) -> None:
    for commit in ("abc", "def"):
        kept.begin({"commit": commit})
        kept.keep("turns", commit)
        kept.measured("one", lambda: 1)
    kept.keep("two", {"failed": "no kernel"})
    kept.forget_failed()
    kept.begin({"commit": "last"})
    kept.keep("two", 2)
    assert page.commits_of(record.read(kept.file)) == {"abc": ["turns", "one"], "def": ["turns"], "last": ["two"]}
    assert page.commits_of({"figures": {"old": 1}, "runs": [{"commit": "abc"}]}) == {"abc": ["old"]}


def test_the_page_has_machine_commands_aims_and_what_failed(tmp_path: Path) -> None:
    own = Record(tmp_path / "b.json", 100.0)
    facts = {
        "when": "2026-01-01 00:00", "card": "a card", "memory": 80 * 2**30, "driver": "580", "cuda": "13.0", "cpu": "a CPU",
        "python": "3.12", "versions": {"torch": "2.13"}, "commit": "abc", "load": 0.5, "command": "python gpu_proof.py",
    }  # fmt: skip
    own.begin(facts)
    own.end("time was up before x", 539.0)
    seconds = [[0.01, 0.01, 0.01, 0.01, 0.02, 0.03, 0.04]]
    calls = {str(rows): {"kernels": 300, "graphs": 0, "waits": 1, "copies": 2, "seen": 303} for rows in costs.PROFILED}
    model = {
        "read": 10**10,
        "held": 10**10,
        "rows": [1, 2, 4, 8, 16, 32, 64],
        "contexts": [256],
        "seconds": seconds,
        "calls": calls,
    }
    own.keep("bandwidth", {"copy": 2e12, "read": 2e12})
    own.keep("Llama-2-7B bf16", model)
    own.keep("Llama-2-7B nf4", {"failed": "RuntimeError: no kernel"})
    out = tmp_path / "gpu.md"
    page.written(tmp_path, out, False)
    text = out.read_text()
    assert "- card: a card, 80.0 GiB, driver 580, CUDA 13.0" in text and "rehearsal" not in text
    assert "localspec at abc\n" in text and "more than one commit" not in text
    own.begin(facts | {"commit": "def", "when": "2026-01-02 00:00"})
    own.keep("Phi-3-mini bf16", model)
    page.written(tmp_path, out, False)
    text = out.read_text()
    assert "**figures of more than one commit**, abc and def" in text
    assert "- abc: bandwidth, Llama-2-7B bf16, Llama-2-7B nf4\n- def: Phi-3-mini bf16\n" in text
    assert "`python gpu_proof.py`: 539 s, load average 0.5, time was up before x" in text
    assert "10.00 (50 %)" in text and "300 / 0 / 1 / 2" in text
    assert (
        "| b: Llama-2-7B in bf16: one row reads at 85 % of the memory's speed or more | ≥ 0.85 | 0.50 | **missed** |"
        in text
    )
    assert "| b: Llama-2-7B in bf16: 16 rows cost at most 1.15 of one | ≤ 1.15 | 2.00 | **missed** |" in text
    assert "- Llama-2-7B nf4: RuntimeError: no kernel" in text
    page.written(tmp_path, out, True)
    assert "none of these figures means anything" in out.read_text()


NAMES = {  # of figures of each stage, all of which fail
    "a": ["test_1_lossless"], "b": ["bandwidth", "Llama-2-7B nf4", "product gate_up, our NF4", "attention Llama-2-7B, math"],
    "c": ["Llama-2-7B bf16 eager", "Llama-2-7B bf16 captured"], "d": ["bf16 none", "bf16 medusa", "bf16 side by side"],
    "e": ["first transformers", "turn 0"], "f": ["medusa"], "g": ["data"],
}  # fmt: skip


@pytest.mark.parametrize("stage", NAMES)
def test_a_stage_of_which_all_fails_has_its_section_and_no_aim_is_met(stage: str) -> None:
    figures = {name: {"failed": "RuntimeError: nothing works"} for name in NAMES[stage]}
    module = page.MODULES[stage]
    assert "nothing works" in module.section(figures)
    assert all(aim.verdict != "met" for aim in module.aims(figures))
    assert all(aim.verdict != "met" for aim in module.aims({}))


WORDS = ["--device", "cpu", "--small"]


DAMAGED = ["", "{", "[1]", '{"figures": 3, "tries": {}, "runs": []}', '{"figures": {}, "tries": {}, "runs": [1]}']


@pytest.mark.parametrize("name", ["b.json", "g.json", "settings.json"])
@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.setattr(gpu_proof, "supervised", lambda *_: pytest.fail("it measures"))
    (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit) as ended:
        gpu_proof.main([*WORDS, "--work", str(tmp_path), "--models", str(tmp_path / "models")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert (name in said and "damaged" in said) or "holds results of other settings" in said


@pytest.mark.parametrize("lock", ["running.lock", "stages.lock"])
def test_two_runs_do_not_measure_into_one_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr(gpu_proof, "supervised", lambda *_: pytest.fail("it measures"))
    with FileLock(tmp_path / lock), pytest.raises(SystemExit) as ended:
        gpu_proof.main([*WORDS, "--work", str(tmp_path), "--models", str(tmp_path / "models")])
    assert ended.value.code == 2 and "Another run measures in" in capsys.readouterr().err


def test_a_stage_measures_under_the_lock_and_another_stage_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, "--work", str(tmp_path), "--models", str(tmp_path / "models"), "--stages", "b"]

    def measures(*_: object) -> int:
        with pytest.raises(SystemExit):
            gpu_proof.main(words)
        with pytest.raises(SystemExit):
            gpu_proof.main([*words, "--here"])
        return 0

    monkeypatch.setattr(gpu_proof, "stage", measures)
    assert gpu_proof.main([*words, "--here"]) == 0
    assert capsys.readouterr().err.count("Another run measures in") == 2


def test_a_stage_that_was_refused_writes_nothing_into_the_file_of_the_other(scripted: Any, tmp_path: Path) -> None:
    assert len(scripted((gpu_proof.REFUSED, False))) == 1
    assert "ended" not in record.read(tmp_path / "b.json")["runs"][-1]


@pytest.mark.slow
@pytest.mark.long
def test_who_stops_the_run_stops_its_stage_and_sees_no_traceback(tmp_path: Path) -> None:
    words = [*WORDS, "--work", str(tmp_path), "--models", str(tmp_path / "models"), "--stages", "b"]
    script = [sys.executable, str(ROOT / "scripts" / "gpu_proof.py"), *words]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        ends = time.monotonic() + 60.0
        while not (tmp_path / "b.json").exists() and time.monotonic() < ends:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60.0)
    assert run.returncode == 130 and said == ""
    assert not any(record.read(tmp_path / "b.json")["tries"].values())
    with FileLock(tmp_path / "running.lock", timeout=0):
        pass


def test_places_mean_the_same_where_a_stage_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = gpu_proof.words_of(["--work=one", "--out", "two/page.md", "--stages", "b", "--seconds=5"])
    assert gpu_proof.absolute(words) == [
        "--work", f"{tmp_path}/one", "--out", f"{tmp_path}/two/page.md", "--stages", "b", "--seconds", "5",
    ]  # fmt: skip


def test_a_rehearsal_has_a_page_of_its_own(tmp_path: Path) -> None:
    assert gpu_proof.arguments([*WORDS, "--work", str(tmp_path)])[1].out == tmp_path / "gpu-figures.md"
    assert gpu_proof.arguments(["--work", str(tmp_path)])[1].out == ROOT / "docs" / "figures" / "gpu-figures.md"


def test_a_command_is_told_without_where_files_lie() -> None:
    told = gpu_proof.command_told(
        ["--work", "/some/where/else/work", "--small", "--stages", "b", "--seconds", "60", "--here"]
    )
    assert gpu_proof.command_told(["--work=/some/where/else/work"]) == "python scripts/gpu_proof.py --work work"
    assert told == "python scripts/gpu_proof.py --work work --small --stages b --seconds 60"


@pytest.mark.slow
@pytest.mark.long
def test_all_stages_run_on_a_cpu_and_the_same_command_measures_nothing_again(tmp_path: Path) -> None:
    words = [str(ROOT / "scripts" / "gpu_proof.py"), "--device", "cpu", "--small", "--work", str(tmp_path / "work")]
    words += ["--models", str(tmp_path / "models"), "--out", str(tmp_path / "gpu.md")]
    log = tmp_path / "log"
    assert children.run_script(words, 560.0, log) == 0, log.read_text()
    found = {stage: record.read(tmp_path / "work" / f"{stage}.json") for stage in gpu_proof.ORDER}
    for stage, one in found.items():
        assert one["figures"] and one["runs"][-1]["ended"] == "all measured", (stage, one["runs"])
    fine = {
        stage: [name for name, figure in one["figures"].items() if not failure(figure)] for stage, one in found.items()
    }
    assert {"Phi-3-mini bf16", "product gate_up, our NF4", "attention Llama-2-7B, math"} <= {*fine["b"]}
    assert {"bf16 medusa", wording("bf16_side_by_side")} <= {*fine["d"]} and {"turn 0"} <= {*fine["e"]}
    assert {*fine["f"]} == {"eagle3", "medusa", "parallelspec", "s3d", "semi"} and {"long", "last", "draft"} <= {
        *fine["g"]
    }
    assert all(one["wrong"] == {} for one in found["a"]["figures"].values())
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"## {stage}: " in text for stage in gpu_proof.ORDER) and "A rehearsal" in text
    before = json.dumps(found["f"]["figures"])
    assert children.run_script([*words, "--stages", "f"], 100.0, log) == 0
    assert json.dumps(record.read(tmp_path / "work" / "f.json")["figures"]) == before
