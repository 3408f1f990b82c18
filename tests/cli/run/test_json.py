"""`localspec run --json` and `--stream-json`: the keys of the contract, and figures that agree with each other."""

import json

import pytest
from cli.run.run_command import SHAPE, assert_consistent, assert_shape, decoded, tokens_of


@pytest.mark.slow
def test_the_object(run, hello):
    result = run("-m", hello.path, "hi", "--json")
    reply = result.json
    assert (result.code, result.err) == (0, "")
    assert_shape(reply, SHAPE)
    assert_consistent(reply)
    assert reply["text"] == hello.text and reply["token_ids"] == hello.ids
    assert reply["finish_reason"] == "stop" and reply["prompt_tokens"] == tokens_of("hi")
    assert reply["model"] == str(hello.path) and len(reply["revision"]) == 40
    assert (reply["drafter"], reply["accept"], reply["lossless"]) == ("phrases", "exact", True)
    assert reply["exactness"] in ("bitwise", "numerical")
    plain = run("-m", hello.path, "hi", "--json", "--no-spec").json
    assert_consistent(plain)
    assert plain["drafter"] == "none" and plain["token_ids"] == hello.ids
    assert plain["speculation"]["sources"] == {"target": 7} and plain["speculation"]["acceptance_length"] == 1
    cut = run("-m", hello.path, "hi", "--json", "-n", "2").json
    assert (cut["finish_reason"], cut["text"], cut["token_ids"]) == ("length", "Hello", hello.ids[:2])
    stopped = run("-m", hello.path, "hi", "--json", "--stop", "never", "--stop", " w").json
    assert (stopped["finish_reason"], stopped["text"], stopped["token_ids"]) == ("stop", "Hello", hello.ids[:2])


@pytest.mark.parametrize("arguments", [[], ["--stop", "four five"], ["--no-spec"], ["-n", "50"]])
def test_the_stream(run, long, arguments):
    result = run("-m", long.path, "hi", "--stream-json", *arguments)
    assert (result.code, result.err) == (0, "")
    start, *steps, end = (json.loads(line) for line in result.out.splitlines())
    assert start.pop("event") == "start" and end.pop("event") == "end"
    assert {step.pop("event") for step in steps} == {"step"}
    assert_shape(end, SHAPE)
    assert_consistent(end)
    assert start.items() <= end.items()
    for step in steps:
        assert_shape(step, {"text": str, "reasoning": str, "token_ids": [int], "sources": [str]})
        assert len(step["token_ids"]) == len(step["sources"])
    assert "".join(step["text"] for step in steps) == end["text"] == decoded(long.path, end["token_ids"])
    assert [token for step in steps for token in step["token_ids"]] == end["token_ids"]
    sources = [source for step in steps for source in step["sources"]]
    assert {name: sources.count(name) for name in set(sources)} == {
        name: count for name, count in end["speculation"]["sources"].items() if count
    }
    assert len(steps) >= 3
