"""`localspec run` with thinking models: only the answer is printed; the thoughts are in the JSON and in the history."""

import json
import re
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from cli.run.run_command import kept, kept_tokens, refused, said
from golden import wording
from scripted_models import ASSISTANT, TEMPLATE, Script, scripted_model
from thinking_templates import GRANITE, switched_model

from localspec.paths import Paths

pytestmark = pytest.mark.slow

LONG = [f"{word} ".encode() for word in ("one", "two", "three", "four") * 8]


@pytest.fixture(scope="session")
def switched(models: Path) -> Script:
    return switched_model(models / "switched")


@pytest.fixture(scope="session")
def always(models: Path) -> Script:
    """Return a template in which the prompt ends in the opening mark, as DeepSeek-R1's."""
    template = TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")
    return scripted_model(models / "always", [*LONG, b"</think>", b"\n\n", b"Yes", b".\n"], template=template)


@pytest.fixture(scope="session")
def granite(models: Path) -> Script:
    """Return a template with marks around the answer, too, as Granite 3.3's."""
    return scripted_model(
        models / "granite", [b"<think>", b"hm", b"</think><resp", b"onse>Yes.</", b"response>"], template=GRANITE
    )


@pytest.fixture
def home(
    lived_in: Callable[..., Path], fresh_home: Path, switched: Script, always: Script, granite: Script, hello: Script
) -> Path:
    return lived_in(fresh_home, switched.path, always.path, granite.path, hello.path)


def test_only_the_answer_goes_to_standard_output(run, home, switched):
    for flags in ([], ["--think"], ["--no-spec"], ["--drafter", "phrases"]):
        assert run("-m", switched.path, "hi", *flags) == (0, "Yes.\n", "")
    result = run("-m", switched.path, "hi", "--stats")
    assert result.out == "Yes.\n" and re.search(
        r"9 tokens, 7 of them for thinking \((0\.\d|under 0\.1) s\)", result.err
    )
    conversation = kept(home)[0]
    assert said(conversation) == [("hi", "Yes.", "stop")] and conversation.turns[0].reasoning == "so it is."
    assert conversation.turns[0].figures["reasoning_tokens"] == 7
    assert {*switched.ids[:7]} <= kept_tokens(Paths(home).database)  # phrases of thoughts are phrases, too


def test_the_json_has_both_apart_and_all_tokens(run, switched):
    on = run("-m", switched.path, "hi", "--json").json
    assert (on["text"], on["reasoning"], on["token_ids"]) == ("Yes.", "so it is.", switched.ids)
    assert (on["completion_tokens"], on["reasoning_tokens"]) == (9, 7) and on["timings"]["reasoning_s"] > 0
    off = run("-m", switched.path, "hi", "--json", "--no-think").json
    assert (off["text"], off["reasoning"], off["reasoning_tokens"]) == ("Yes.", "", 0)
    assert off["timings"]["reasoning_s"] == 0 and off["prompt_tokens"] > on["prompt_tokens"]
    assert run("-m", switched.path, "hi", "--json", "--think").json["prompt_tokens"] == on["prompt_tokens"]


def test_the_stream_separates_them_step_by_step(run, switched):
    lines = [json.loads(line) for line in run("-m", switched.path, "hi", "--stream-json").out.splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert "".join(step["reasoning"] for step in steps) == "so it is." == lines[-1]["reasoning"]
    assert "".join(step["text"] for step in steps) == "Yes." == lines[-1]["text"]
    assert [token for step in steps for token in step["token_ids"]] == switched.ids


def test_the_marks_of_other_families(run, always, granite):
    found = run("-m", always.path, "hi", "--json").json
    assert (found["text"], found["reasoning"]) == ("Yes.\n", b"".join(LONG).decode().strip())
    found = run("-m", granite.path, "hi", "--json", "--think").json
    assert (found["text"], found["reasoning"]) == ("Yes.", "hm")
    assert found["prompt_tokens"] > run("-m", granite.path, "hi", "--json").json["prompt_tokens"] + 50


def test_a_template_without_a_switch_is_reported(run, hello, always, granite, monkeypatch):
    for path, flag in ((hello.path, "--think"), (hello.path, "--no-think"), (always.path, "--no-think")):
        refused(
            run("-m", path, "hi", flag), 2, wording("effect_chat_template", flag=flag), "has no switch", "leave it out"
        )
    refused(
        run("-m", granite.path, "hi", "--think", "-s", "Be brief."), 2, "--think has no effect with a system prompt"
    )
    # A setting for all models applies to those that can follow it.
    monkeypatch.setenv("LOCALSPEC_THINK", "off")
    assert run("-m", hello.path, "hi").code == 0


def test_config_toml_says_it_for_all_models_and_a_flag_for_this_one(run, home, switched):
    file = Paths(home).config_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("think = false\n")
    assert run("-m", switched.path, "hi", "--json").json["reasoning"] == ""
    assert run("-m", switched.path, "hi", "--json", "--think").json["reasoning"] == "so it is."
    file.write_text('think = "perhaps"\n')
    refused(run("-m", switched.path, "hi"), 2, "think = 'perhaps'", wording("must_true_false_auto"))


def test_a_stop_string_ends_the_answer_and_never_the_thinking(run, always, switched):
    stopped = run("-m", always.path, "hi", "--json", "--stop", "three", "--stop", "e").json
    assert (stopped["text"], stopped["finish_reason"]) == ("Y", "stop")
    assert stopped["reasoning"] == b"".join(LONG).decode().strip() and len(stopped["token_ids"]) == len(LONG) + 2
    assert run("-m", switched.path, "hi", "--json", "--stop", "is").json["text"] == "Yes."


@pytest.mark.parametrize("most", [1, 5, 33])
def test_a_limit_within_the_thinking_says_so(run, home, always, most):
    result = run("-m", always.path, "hi", "-n", most)
    assert (result.code, result.out) == (0, "\n")
    count = f"{most} token{'' if most == 1 else 's'}"
    assert result.err == (wording("localspec_thinking_took_whole", count=count))
    cut = run("-m", always.path, "hi", "-n", most, "--json").json
    assert (cut["finish_reason"], cut["text"], cut["reasoning_tokens"]) == ("length", "", most)
    assert b"".join(LONG).decode().startswith(cut["reasoning"]) and cut["token_ids"] == always.ids[:most]
    assert run("-m", always.path, "hi", "-n", 35).err == ""


def test_a_conversation_continues_without_what_was_thought(run, switched, home):
    run("-m", switched.path, "hi")
    first = run("-m", switched.path, "well", "-c", "--json").json
    plain = run("-m", switched.path, "well", "--json", "--no-log").json
    frame = len("hi") + len("Yes.") + 4  # marks around two more messages
    assert first["prompt_tokens"] == plain["prompt_tokens"] + frame
    assert ASSISTANT not in first["token_ids"] and len(kept(home)[0].turns) == 2


def test_the_demo_model_with_a_template_that_opens_the_thinking(run, tmp_path):
    """The demo never closes the mark: all its text is a thought, with the same tokens with drafts and without."""
    demo = tmp_path / "demo"
    shutil.copytree(files("localspec") / "demo", demo, ignore=shutil.ignore_patterns("draft*", "*.md", "*.txt"))
    template = demo / "chat_template.jinja"
    opened = template.read_text("utf-8").replace("'<|assistant|>'", "'<|assistant|><think>\\n'")
    template.write_text(opened, "utf-8")
    asked = (demo, "Tell me a story about a fox.", "--temp", "0", "-n", "40", "--json")
    found = run("-m", *asked, "--drafter", "phrases")
    assert found.code == 0 and found.json["text"] == "" and len(found.json["reasoning"].split()) > 10
    assert wording("so_there_is_no_answer") in found.err
    assert found.json["reasoning_tokens"] == found.json["completion_tokens"]
    plain = run("-m", *asked, "--no-spec").json
    assert (plain["token_ids"], plain["reasoning"]) == (found.json["token_ids"], found.json["reasoning"])
