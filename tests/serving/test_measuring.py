"""`localspec bench --server URL` compares servers by their output and the clock."""

import json

import pytest
from command import called, sentence
from each import each
from golden import wording
from serving.scripted_server import DONE, HELLO, USAGE, answer, ended, said, scripted, stream

from localspec.bench import plot, server_table
from localspec.bench.prompts import BenchPrompt
from localspec.config import Settings
from localspec.events import Reporter
from localspec.serving import measuring
from localspec.serving.measuring import TimedReply, measure
from localspec.serving.server import Server
from localspec.serving.server_engine import ServerEngine

BYE = stream(said("Good"), said("bye."), ended(), USAGE, DONE)
UNTOLD = stream(said("Hello."), ended(), DONE)
TOO_LONG = answer({"error": {"message": "This model's maximum context length is 512 tokens."}}, "400 Bad Request")


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("One?\nTwo?\n")
    return file


def bench(home, *arguments):
    return called(home, "bench", *map(str, arguments))


def test_two_side_by_side(tmp_path, prompts):
    drawn = tmp_path / "drawn.svg"
    with scripted() as one, scripted(HELLO, HELLO, BYE) as other:
        asked = ("--server", one.url, "--server", other.url, "--prompts", prompts, "-n", "7")
        found = bench(tmp_path, *asked, "--json", "--plot", drawn)
        assert found.returncode == 0, found.stderr
        report = json.loads(found.stdout)
        for server in (one, other):
            assert [body["messages"][0]["content"] for body in server.replies] == ["Hi", "One?", "Two?"]
            assert [(body["max_tokens"], body["temperature"]) for body in server.replies] == [(4, 0), (7, 0), (7, 0)]
    first, second = report.pop("rows")
    assert report == {"prompts": 2, "left_out": 0, "repeat": 1, "max_tokens": 7, "temperature": 0.0, "seed": None}
    assert (first["server"], first["program"], first["model"], first["tokens"]) == (one.url, None, "there", 10)
    assert (first["speedup"], first["identical_prompts"], second["identical_prompts"]) == (1.0, None, 1)
    assert first["reply_tokens_per_second"] > 0 < second["first_token_s"]
    assert f" against the server at 127.0.0.1:{one.port}: " in " ".join(found.stderr.split())
    assert "1/2" in found.stderr and f"127.0.0.1:{other.port}" in drawn.read_text()


def test_the_figures(monkeypatch):
    """The test advances the clock."""
    asked = [TimedReply("a", 11, 1, 0.5, 2.0), TimedReply("b", 11, 1, 0.7, 1.0), TimedReply("c", 9, 3, 0.6, 0.01)]
    assert [one.speed for one in asked] == [5.0, 10.0, 0.0], "what comes in no time is no speed"
    assert asked[0].whole == pytest.approx(11 / 2.5) and TimedReply("", 0, 0, 0.0, 0.0).whole == 0
    twice = [
        *asked,
        TimedReply("a", 11, 1, 0.1, 0.4),
        TimedReply("x", 11, 1, 0.1, 0.4),
        TimedReply("c", 9, 3, 0.1, 0.4),
    ]
    found = measuring._figures(twice, [*asked, *asked], 3, comparable=True)
    assert (found["first_token_s"], found["identical_prompts"], found["tokens"]) == (0.3, 2, 62)
    assert found["tokens_per_second"] == 15.0, "the median of 5, 10, 15, 25 and 25"
    assert found["speedup"] == 1.11, "the median of 1, 1, 1, 1.22, 3.4 and 5"


def test_each_takes_its_turn_and_who_is_first_changes(monkeypatch):
    order = []

    def reply(engine, prompt, settings, most):
        order.append((engine.model, prompt))
        return TimedReply("x", 5, 1, 0.1, 1.0)

    monkeypatch.setattr(measuring, "_reply", reply)
    with scripted() as server:
        there = Server.open(server.url)
        engines = [ServerEngine(there, name, Reporter()) for name in ("a", "b")]
        told = []
        measure(engines, [BenchPrompt("1", "x", "One?")], 9, 2, Settings(temperature=0.0), told.append)
    assert order[2:] == [("a", "One?"), ("b", "One?"), ("b", "One?"), ("a", "One?")]
    assert "prompt 2 of 2" in told[-1] and "left" in told[-1]


def test_a_single_server_and_its_missing_figures(tmp_path, prompts):
    with scripted(HELLO, UNTOLD, UNTOLD) as server:
        found = bench(tmp_path, "--server", server.url, "--prompts", prompts)
    assert (
        found.returncode == 0 and wording("tells_tokens_replies") in found.stdout and "speedup" not in found.stdout[:80]
    )
    with scripted() as server:
        found = bench(tmp_path, "--server", server.url, "--prompts", prompts, "--repeat", "2", "--temp", "1")
        assert len(server.replies) == 5
    assert f"at 127.0.0.1:{server.port} gives" in found.stdout and wording(
        "which_servers_may_have_kept"
    ) in found.stdout.replace("\n", " ")


def test_prompts_that_one_has_no_room_for_are_left_out_of_all(tmp_path, prompts):
    with scripted() as one, scripted(HELLO, TOO_LONG, BYE, HELLO) as other:
        asked = ("--server", one.url, "--server", other.url, "--prompts", prompts, "--repeat", "2", "--json")
        report = json.loads(bench(tmp_path, *asked).stdout)
        assert (report["prompts"], report["left_out"]) == (1, 1) and report["rows"][1]["identical_prompts"] == 0
        assert [body["messages"][0]["content"] for body in one.replies] == ["Hi", "One?", "Two?", "Two?"]
    with scripted(HELLO, TOO_LONG, TOO_LONG) as server:
        found = bench(tmp_path, "--server", server.url, "--prompts", prompts)
        assert found.returncode == 2 and wording("room_prompt_reply") in sentence(found)


@each(
    "flags",
    [
        ["--drafter", "auto"],
        ["--nodes", "4"],
        ["--accept", "exact"],
        ["--exact"],
        ["--context", "512"],
        ["--device", "cpu"],
        ["--dtype", "bf16"],
        ["--quantize", "int8"],
        ["--tune"],
    ],
)
def test_what_has_no_meaning_there_is_refused_by_name(tmp_path, flags):
    found = bench(tmp_path, "--server", "http://127.0.0.1:9", *flags)
    assert found.returncode == 2 and wording("effect_where_server_answers", flags=flags[0]) in sentence(found)


def test_which_servers(tmp_path, prompts):
    with scripted() as server:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "config.toml").write_text(f'server = "{server.url}"\n')
        assert f"127.0.0.1:{server.port} gives" in bench(tmp_path, "--prompts", prompts).stdout
        wrong = bench(tmp_path, "--prompts", prompts, "-m", "their")
        assert wrong.returncode == 3 and wording("did_you_mean_there") in sentence(wrong)
        twice = bench(tmp_path, "--server", server.url, "--server", server.url)
        assert twice.returncode == 2 and wording("stands_there_twice") in sentence(twice)
        both = bench(tmp_path, "--server", server.url, "--server", "off")
        assert both.returncode == 2 and "cannot be combined" in sentence(both)
        here = bench(tmp_path, "--server", "off", "-m", "no-such")
        assert here.returncode == 3 and "no-such" in sentence(here), "the model is looked for here"


def test_two_servers_at_one_port_are_distinguished(tmp_path, prompts):
    with scripted() as server, scripted() as other:
        here, there, beside = f"{server.url}/one/v1", f"{server.url}/two/v1", other.url
        found = bench(tmp_path, "--prompts", prompts, "--json",
                      *(f"--server={url}" for url in (here, there, beside)))  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert [one["name"] for one in json.loads(found.stdout)["rows"]] == [here, there, beside.removeprefix("http://")]


def row(**more):
    known = {
        "server": "https://a.very.long.name.of.a.machine.somewhere.example:8000", "name": "a.very.long.name.of.a.machine.somewhere.example",
        "program": "vLLM", "model": "Some/Long-Name-Of-A-Model-32B-Instruct-AWQ", "prompts": 10, "tokens": 1280, "counted": "tokens",
        "reply_tokens_per_second": 1052.3, "reply_tokens_per_second_quartiles": [1000.1, 1101.2], "first_token_s": 0.123,
        "first_token_s_quartiles": [0.1, 0.2], "tokens_per_second": 1062.1, "tokens_per_second_quartiles": [1011.0, 1110.0],
        "speedup": 1.0, "speedup_quartiles": [1.0, 1.0], "identical_prompts": None,
    }  # fmt: skip
    return {**known, **more}


def report(*rows):
    return {"prompts": 10, "left_out": 1, "repeat": 3, "max_tokens": 128, "temperature": 0.7, "seed": 5, "rows": rows}


def test_the_page():
    faster = row(speedup=2.0, reply_tokens_per_second=2104.6, identical_prompts=9)
    silent = row(tokens=0, reply_tokens_per_second=None, reply_tokens_per_second_quartiles=None, speedup=None,
                 tokens_per_second=None, tokens_per_second_quartiles=None, speedup_quartiles=None)  # fmt: skip
    at_once = row(tokens_per_second=None, tokens_per_second_quartiles=None)
    for rows in (
        [row()],
        [row(), faster],
        [row(), silent],
        [silent],
        [silent, silent],
        [at_once],
        [row(), faster, silent, at_once],
    ):
        assert max(map(len, server_table.of(report(*rows)).splitlines())) <= 100
        assert plot.figure_of_servers(report(*rows)).count("<rect") == 1 + sum(one["tokens"] > 0 for one in rows)
    assert server_table.label({**report(), "prompts": 1}).startswith("1 prompt ×")
    assert ": 2.0× faster (" in server_table.sentence([row(), faster])
    assert wording("no_two_can_be_compared") in server_table.sentence([row(), silent])
    assert wording("all_at_once") in server_table.of(report(at_once)) and wording(
        "none_has_a_speed"
    ) in server_table.sentence([silent])
