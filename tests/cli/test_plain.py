"""`localspec chat --plain`: a line in, an answer out; everything but the answers goes to standard error."""

import contextlib
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.run.run_command import Gone, Result, interrupting, kept, said
from clocks import PATIENCE
from command import environment, what_is_kept
from each import each
from golden import wording
from hostile_text import NAME, commands
from machines import cpu, machine
from panicking import PANICS, panicking
from scripted_models import Script, scripted_model
from thinking_templates import switched_model

from localspec.chat.commands import COMMANDS
from localspec.chat.conversation import saved_conversation
from localspec.choosing.cost import ForwardCosts
from localspec.cli import plain
from localspec.cli.main import main
from localspec.cli.meanwhile import ANNOUNCED, TUNES, Meanwhile
from localspec.engine.model_profile import TIMING
from localspec.events import TUNING
from localspec.paths import Paths
from localspec.store.database import NoRoom
from localspec.store.history import History
from localspec.store.store import Store

pytestmark = pytest.mark.slow

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

Messages = list[list[tuple[str, str]]]
FIGURES = re.compile(r"\((?:[\d.]+ tok/s · )?(?:.* · )?context \d+ %(?: · .*)?\)")


class Terminal(io.TextIOWrapper):
    """A terminal with a user, where a mistake does not end the chat."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat-models")


@pytest.fixture(scope="session")
def hello(models: Path) -> Script:
    return scripted_model(models / "hello", [b"Hel", b"lo", b"!"])


@pytest.fixture(scope="session")
def endless(models: Path) -> Script:
    return scripted_model(models / "endless", [b"and ", b"so ", b"on "], again=0, context=10**8)


@pytest.fixture
def home(lived_in: Callable[..., Path], fresh_home: Path, hello: Script, endless: Script) -> Path:
    return lived_in(fresh_home, hello.path, endless.path)


@pytest.fixture
def talk(home: Path, hello: Script, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Callable[..., Result]:
    """talk(*lines): the chat with `hello` in this process. Rows cost next to nothing, on a busy machine too."""
    cheap = ForwardCosts((1, 64), (256,), ((1e-3, 1.1e-3),))
    monkeypatch.setattr("localspec.engine.model_profile.estimated_costs", lambda *_: cheap)

    def call(
        *lines: str | bytes,
        arguments: Sequence[object] = (),
        model: Path | None = hello.path,
        terminal: bool = False,
        end: bytes = b"\n",
    ) -> Result:
        typed = [line.encode() if isinstance(line, str) else line for line in lines]
        stdin = io.BytesIO(b"\n".join(typed) + end if typed else b"")
        monkeypatch.setattr(sys, "stdin", (Terminal if terminal else io.TextIOWrapper)(stdin, encoding="utf-8"))
        capfd.readouterr()
        named = ["-m", model] if model else []
        code = main(["chat", "--plain", *map(str, [*named, *arguments])])
        return Result(code, *capfd.readouterr())

    return call


def greeting(model: Script) -> str:
    return f"{model.path} (int8, cpu). /help lists the commands, Ctrl+D ends."


def told(result: Result, model: Script) -> list[str]:
    """Return the lines on standard error after this model's greeting; figures become '(figures)'."""
    first, *lines = result.err.removesuffix("\n").split("\n")
    assert first == greeting(model), result.err
    return ["(figures)" if FIGURES.fullmatch(line) else line for line in lines]


def keep(home: Path, *turns: tuple[str, str], model: str = "demo", system: str | None = None, source="pipe") -> int:
    """Save a conversation of these turns, by default one of a pipe, and return its id."""
    number = None
    with Store.open(Paths(home).database, pytest.fail) as store:
        for prompt, reply in turns:
            number, turn = store.history.say(number, prompt, model=model, system=system, source=source)
            store.history.write(turn, reply, "stop" if reply else "interrupted")
    assert number is not None
    return number


def prompts(messages: Messages) -> list[str]:
    """Return the last message of each request."""
    return [read[-1][1] for read in messages]


# -- prompts and answers -----------------------------------------------------------------------------------------------


def test_thoughts_are_announced_switched_and_shown_on_request(talk, home, tmp_path):
    model = switched_model(tmp_path / "thinker")
    result = talk("/think show", "one", "/think show", "/think", "/think off", "two", "/think show", model=model.path)
    assert (result.code, result.out) == (0, "Yes.\nYes.\n")
    first, *lines = told(result, model)
    assert first == wording("nothing_was_thought_yet") and re.search(
        r" thought for (0\.\d|under 0\.1) s", result.err.split("\n")[2]
    )
    thinks, answers = "The model thinks before it answers", "The model answers without thinking"
    assert lines == [
        "(figures)", "so it is.", f"{thinks} (/think auto). Other choices: /think on and /think off.",
        f"{answers} (/think off). Other choices: /think on and /think auto.", "(figures)", "so it is.",
    ]  # fmt: skip
    assert [turn.reasoning for turn in kept(home)[0].turns] == ["so it is.", ""]
    again = talk("/think perhaps", arguments=["-c"], model=model.path)
    assert again.code == 2 and wording("think_takes_off_auto_show") in again.err


def test_a_model_without_a_switch_says_so(talk, hello):
    assert told(talk("/think"), hello) == [wording("chat_template_model_switch")]
    refused = talk("/think on", "one")
    assert (refused.code, refused.out) == (2, "") and wording("think_on_has_no_effect") in refused.err
    assert wording("think_auto_takes_it_back") in refused.err


def test_each_line_is_answered_in_turn(talk, home, hello, messages):
    result = talk("one", "", " \t ", " two ")
    assert (result.code, result.out) == (0, "Hello!\nHello!\n")
    assert told(result, hello) == ["(figures)"] * 2
    assert messages == [[("user", "one")], [("user", "one"), ("assistant", "Hello!"), ("user", " two ")]]
    [conversation] = kept(home)
    assert said(conversation) == [("one", "Hello!", "stop"), (" two ", "Hello!", "stop")]
    assert conversation.info.model == str(hello.path) and conversation.system is None


@each(
    "typed, found",
    [
        (b"one\\\n  two\\\nthree\nfour\n", ["one\n  two\nthree", "four"]),
        (b"one\\\n\\\ntwo\n", ["one\n\ntwo"]),
        (b"one\\\n", ["one"]),  # the input ends within a prompt
        (b"one\\", ["one"]),
        (b"one\ntwo", ["one", "two"]),
        (b"\\\n \\\n\n", []),
        (b"one\r\ntwo\\\r\nthree\r\n", ["one", "two\nthree"]),
        (b"caf\xe9 \xe2\x82\nna\xc3\xafve", ["caf\ufffd \ufffd", "naïve"]),
        (b"//quit\n///\n //new\n /help\n", ["/quit", "//", " //new", " /help"]),
        (b"", []),
        (b"\n\n", []),
    ],
)
@each("terminal", [False, True])
def test_what_a_prompt_is(talk, hello, messages, typed, found, terminal):
    messages.clear()
    result = talk(typed, end=b"", terminal=terminal)
    assert (result.code, result.out) == (0, "Hello!\n" * len(found))
    assert prompts(messages) == found and told(result, hello) == ["(figures)"] * len(found)


def test_a_mark_that_programs_of_windows_begin_with_is_no_part_of_what_they_say(talk, messages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_bytes(b"\xef\xbb\xbfnotes")
    assert talk(b"\xef\xbb\xbf/help\nhi @notes\n", end=b"").code == 0
    assert prompts(messages) == ["notes\n\nhi @notes"]


def test_lines_that_continue_without_end(talk, messages, monkeypatch):
    monkeypatch.setattr(plain, "LONGEST", 5)
    result = talk("on\\", "and\\", "on")
    assert result.code == 2 and "longer than 64 MiB" in result.err and not messages


def test_input_that_is_no_utf_8_terminal(talk, messages, monkeypatch):
    monkeypatch.setattr(
        Terminal, "__init__", lambda self, stream, encoding: io.TextIOWrapper.__init__(self, stream, "latin-1")
    )
    talk(b"caf\xe9", terminal=True)
    assert prompts(messages) == ["café"]


@each(
    "pieces, out",
    [
        ([b"a", b"\n"], "a\n"),
        ([b"a", b"\n", b"\n"], "a\n\n"),
        ([b"\n", b"a"], "\na\n"),
        ([b"a", b"\n", b""], "a\n"),  # a token without any text
    ],
)
def test_the_newline_behind_an_answer(talk, tmp_path, pieces, out):
    assert talk("hi", model=scripted_model(tmp_path / "model", pieces).path).out == out


def test_a_model_that_says_nothing(talk, home, models):
    silent = scripted_model(models / "silent", [b"x"], follows={258: 259})
    assert talk("one", model=silent.path).out == ""
    result = talk("two", model=silent.path, arguments=["-c"])
    assert result.out == "" and "> one\n(no answer)\n" in result.err
    assert said(kept(home)[0]) == [("two", "", "stop")]


def test_an_answer_that_is_cut_off_is_said_to_be(talk, home, hello):
    result = talk("one", "two", arguments=["-n", "2"])
    assert result.out == "Hello\nHello\n"
    assert told(result, hello) == [wording("cut_off_limit_tokens"), "(figures)"] * 2
    assert said(kept(home)[0])[0] == ("one", "Hello", "length")
    stopped = talk("one", arguments=["--stop", "o!"])
    assert stopped.out == "Hell\n" and told(stopped, hello) == ["(figures)"]


def test_a_full_context_is_reported(talk, models):
    small = scripted_model(models / "small", [b"a", b"b"], context=64)
    result = talk("x" * 20, "y" * 20, "z" * 20, model=small.path)
    assert result.out == "ab\nab\nab\n"
    assert told(result, small) == [
        "(figures)",
        wording("localspec_context_full_model"),
        "(figures)",
        wording("localspec_context_full_model_2"),
        "(figures)",
    ]


def test_what_was_said_is_learned_and_what_was_measured_is_known(talk, home, hello, monkeypatch):
    monkeypatch.setattr(
        "localspec.engine.model_profile.checking_exactness", lambda *_: pytest.fail("it was measured again")
    )
    for arguments, learned in ((["--no-log"], 0), (["--pool", "off"], 0), ([], 1)):
        assert talk("hi", arguments=arguments).out == "Hello!\n"
        with Store.open(Paths(home).database, pytest.fail) as store:
            assert len([pool for pool in store.phrases.pools() if pool.phrases]) == learned


def test_long_waits_are_shown_as_lines(talk, home, hello, endless, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(plain._LineProgress, "show", lambda self, what: told.append(what))
    talk("x" * 2000, "x" * 900, "hi", f"/model {endless.path}", arguments=["-n", "1", "--no-spec"])
    packing = [f"packing {model.path} in int8 (needed only once)" for model in (hello, endless)]
    assert told == [f"loading {hello.path}", packing[0], "reading 2,003 tokens", f"loading {endless.path}", packing[1]]


def test_the_first_start_says_what_is_kept(talk, home, hello):
    shutil.rmtree(home)
    assert talk().err == what_is_kept(home) + greeting(hello) + "\n"
    assert talk("hi").err.startswith(what_is_kept(home) + greeting(hello) + "\n")
    assert told(talk(), hello) == []
    shutil.rmtree(home)
    assert told(talk("hi", "/new", "hi", "/resume", arguments=["--no-log"]), hello) == [
        "(figures)", wording("a_new_conversation"), "(figures)", wording("conversations_kept_here_yet")
    ]  # fmt: skip
    assert not (home / "data").exists()


# -- what comes before the first line ----------------------------------------------------------------------------------


def test_a_prompt_as_an_argument(talk, hello, messages):
    result = talk("two", arguments=["one"])
    assert told(result, hello) == ["> one", "(figures)", "(figures)"] and result.out == "Hello!\nHello!\n"
    assert told(talk(arguments=["/help"]), hello) == ["> /help", "(figures)"]
    assert prompts(messages) == ["one", "two", "/help"]
    for nothing in ("", " \n"):
        assert told(talk(arguments=[nothing]), hello) == []


def test_continuing(talk, home, hello, messages):
    talk("one", "two")
    result = talk("four", arguments=["-c", "three"], model=None)
    assert told(result, hello) == [
        wording("going_after_2_turns_last_one"), "> two", "Hello!", "> three", "(figures)", "(figures)"
    ]  # fmt: skip
    assert [text for role, text in messages[-1] if role == "user"] == ["one", "two", "three", "four"]
    [conversation] = kept(home)
    other = keep(home, ("lost", ""))
    assert told(talk(arguments=["-c"]), hello) == [wording("going_after_1_turn_last_one"), "> lost", "(no answer)"]
    talk("five", arguments=["--conversation", conversation.info.id])
    assert [text for role, text in messages[-1] if role == "user"] == ["one", "two", "three", "four", "five"]
    assert [conversation.info.turns for conversation in kept(home)] == [5, 1]
    talk("six", arguments=["--conversation", other, "--no-log"])
    assert messages[-1] == [("user", "six")] and [conversation.info.turns for conversation in kept(home)] == [5, 1]


def test_text_of_files_goes_before_the_first_prompt_only(talk, hello, tmp_path, messages):
    (tmp_path / "notes").write_text("some notes\n")
    talk("/help", "one", "two", "/new", "three", arguments=["-f", tmp_path / "notes"])
    assert prompts(messages) == ["some notes\n\none", "two", "three"]
    messages.clear()
    talk("two", arguments=["-f", tmp_path / "notes", "one"])
    assert prompts(messages) == ["some notes\n\none", "two"]


def test_files_that_a_prompt_names(talk, home, hello, tmp_path, messages, monkeypatch):
    (tmp_path / "notes").write_text("some notes\n")
    (tmp_path / "null").write_bytes(b"\0")
    monkeypatch.chdir(tmp_path)
    result = talk("one @notes", "me@notes", "/again", "see @null", "/edit two @notes", terminal=True)
    lines = [line for line in told(result, hello) if "answer" not in line]
    assert lines == [
        "+ notes (11 bytes, 11 tokens)", "(figures)", "(figures)", "(figures)",
        wording("localspec_null_holds_nul_bytes"),
        "+ notes (11 bytes, 11 tokens)", "(figures)",
    ]  # fmt: skip
    framed = "some notes\n\n{}"
    assert prompts(messages) == [framed.format("one @notes"), "me@notes", "me@notes", framed.format("two @notes")]
    [*_, oldest] = kept(home)
    assert oldest.info.title == "one @notes" and oldest.turns[0].typed == "one @notes"
    recalled = told(talk(arguments=["--conversation", kept(home)[0].info.id]), hello)
    assert recalled[1:4] == ["+ notes (11 bytes)", "> two @notes", "Hello!"]


def test_files_that_were_not_read_go_before_the_next_prompt(talk, models, home, tmp_path, messages, monkeypatch):
    from localspec.decoding import session

    (tmp_path / "notes").write_text("notes\n")
    small = scripted_model(models / "smaller", [b"a"], context=200)
    result = talk("x" * 300, "one", "two", model=small.path, arguments=["-f", tmp_path / "notes"], terminal=True)
    assert result.code == 0 and wording("prompt_310_tokens_long") in result.err
    assert prompts(messages)[1:] == ["notes\n\none", "two"]
    monkeypatch.setattr(session, "prefill_step", interrupting(session.prefill_step, 1))
    talk("lost", "three", model=small.path, arguments=["-f", tmp_path / "notes"])
    assert messages[-1] == [("user", "notes\n\nthree")]
    assert said(kept(home)[0]) == [("notes\n\nthree", "a", "stop")]


@each(
    "arguments, code, words",
    [
        (["-m", "dmo"], 3, "'dmo'"),
        (["-c"], 2, wording("no_conversation_to_continue")),
        (["--conversation", "77"], 2, "no conversation 77"),
        (["--top-k", "5"], 2, wording("localspec_top_k_effect")),
    ],
)
def test_what_it_cannot_begin_with(talk, arguments, code, words):
    for terminal in (False, True):
        result = talk("hi", arguments=arguments, terminal=terminal)
        assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
        assert result.err.startswith("localspec: ") and words in result.err


# -- commands ----------------------------------------------------------------------------------------------------------


def test_help_knows_every_command(talk, hello):
    lines = told(talk("/help"), hello)
    assert "\n".join(lines) == plain.HELP
    known = {line.split()[0] for line in lines if line.startswith("/")}
    assert known == {f"/{command.name}" for command in COMMANDS}
    for command in known:
        assert wording("there_is_no_command") not in talk(command, terminal=True).err


@each("line", ["/quit", "/quit ", "/quit\t", b"/quit\\\n"])
def test_quit(talk, hello, messages, line):
    result = talk(line, "hi")
    assert (result.code, result.out, told(result, hello)) == (0, "", []) and messages == []


@each(
    "line, code, sentence",
    [
        ("/resume 7", 2, wording("there_conversation_7_here")),  # first: fewer conversations are saved
        ("/resume -1", 2, wording("there_conversation_1_here")),
        ("/nwe", 2, wording("there_command_nwe_did_mean_new")),
        ("/qiut", 2, wording("there_command_qiut_did_mean_quit")),
        ("/", 2, wording("there_command_help_lists_them")),
        ("/usr/bin/env", 2, wording("there_command_usr_bin_env_help")),
        ("/new one", 2, wording("new_takes_nothing_one_given_leave")),
        ("/help  me out", 2, wording("help_takes_nothing_me_out_given")),
        ("/quit now", 2, wording("quit_takes_nothing_now_given")),
        ("/resume last", 2, wording("last_number_conversation_resume")),
        ("/resume 7 8", 2, wording("n7_8_number_conversation_resume")),
        ("/resume " + "9" * 5000, 2, wording("number_conversation_resume_shows", value="9" * 79)),
        ("/model dmo", 3, wording("there_model_dmo_did_mean_demo")),
    ],
)
def test_mistakes(talk, hello, messages, line, code, sentence):
    """In a pipe a mistake ends the chat, because the next lines may depend on the one that failed."""
    messages.clear()
    result = talk("one", line, "two")
    assert (result.code, result.out, prompts(messages)) == (code, "Hello!\n", ["one"])
    messages.clear()
    figures, mistake = told(result, hello)
    assert figures == "(figures)" and mistake.startswith(f"localspec: {sentence}")
    result = talk(line, "two", terminal=True)
    assert (result.code, result.out, prompts(messages)) == (0, "Hello!\n", ["two"])
    assert told(result, hello) == [mistake, "(figures)"]


@pytest.fixture(scope="session")
def words(models: Path) -> Script:
    """Return a model that repeats itself without end."""
    return scripted_model(models / "words", [b"one ", b"two ", b"three ", b"four "], again=0, context=2000)


def test_a_loop_is_stopped_and_kept_as_it_was_cut(talk, home, words, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    result = talk("one", arguments=["-n", 900], model=words.path)
    assert wording("stopped_reply_repeated_itself_set") in result.err
    [turn] = kept(home)[0].turns
    assert turn.reason == "repetition" and turn.reply.split() == result.out.split() and len(turn.reply) < 1200


def test_a_pipe_gets_the_whole_of_a_loop(talk, home, words):
    result = talk("one", arguments=["-n", 900], model=words.path)
    [turn] = kept(home)[0].turns
    assert turn.reason == "length" and turn.reply == result.out.removesuffix("\n")
    assert len(turn.reply.split()) == 900


def test_another_answer_and_another_prompt_leave_what_was_said(talk, home, hello, messages):
    result = talk("one", "two", "/again", "/edit  three", "/title Named", "four")
    assert result.out == "Hello!\n" * 5
    _, first = (conversation.info.id for conversation in kept(home))
    drawn = wording("temperature_0_answer_would_same")
    stays = wording("answer_before_stays_conversation")
    assert told(result, hello) == [
        *["(figures)"] * 2,
        drawn,
        "(figures)",
        wording("answer_came_out_same_one_before"),
        "(figures)",
        stays.format(first),
        "(figures)",
    ]
    assert prompts(messages) == ["one", "two", "two", "three", "four"]
    assert [[prompt for prompt, *_ in said(conversation)] for conversation in kept(home)] == [
        ["one", "three", "four"],
        ["one", "two"],
    ]
    assert [conversation.info.title for conversation in kept(home)] == ["Named", "one"]


@each(
    "line, sentence",
    [
        ("/again", wording("there_reply_yet_say_something")),
        ("/race", wording("race_takes_prompt_both_answer")),
        ("/xray", wording("there_reply_session_yet_say")),
        ("/edit more", wording("there_reply_yet_say_something")),
        ("/edit", wording("edit_takes_what_said_instead_last")),
        ("/title Named", wording("conversation_kept_yet_title_say")),
        ("/set top-k 5", wording("set_top_k_5_effect_temperature_0_2")),
        ("/set tempratur 1", wording("there_setting_tempratur_did_mean")),
        ("/set model", wording("model_decided_when_chat_begins")),
    ],
)
def test_impossible_requests_are_reported(talk, hello, line, sentence):
    [mistake] = told(talk(line, terminal=True), hello)
    assert mistake.startswith(f"localspec: {sentence}")


def test_a_race_is_shown_and_leaves_the_conversation_unchanged(talk, home, words, messages):
    result = talk("one", "/race Count!", "two", arguments=["-n", 24], model=words.path)
    assert result.code == 0 and result.out == f"{'one two three four ' * 6}\n" * 2
    [race] = re.findall(r"^.* with phrases \(.*\)$", result.err, re.MULTILINE)
    assert wording("both_texts_are_the_same") in result.err and race
    assert [[prompt for prompt, *_ in said(conversation)] for conversation in kept(home)] == [["one", "two"]]


def test_sampling_is_changed(talk, home, hello, messages):
    result = talk("one", "/set temperature 0.5", "/set max-tokens 2", "two", "/set max-tokens default", "/set", "three")
    assert result.out == "Hello!\nHello\nHello!\n"
    assert told(result, hello) == [
        "(figures)",
        "temperature  0.5         /set",
        "max-tokens   2           /set",
        wording("cut_off_limit_tokens"),
        "(figures)",
        wording("max_tokens_limit_but_context"),
        "temperature  0.5         /set",
        wording("top_p_1_model_s_file"),
        wording("top_k_0_model_s_file"),
        wording("min_p_0_model_s_file"),
        wording("max_tokens_limit_but_context"),
        wording("seed_new_for_each_reply"),
        "(figures)",
    ]
    figures = [turn.figures for turn in kept(home)[0].turns]
    assert [one["temperature"] for one in figures] == [0.0, 0.5, 0.5]
    assert ["top_k" in one for one in figures] == [False, True, True]


def test_what_another_model_contradicts_is_taken_back(talk, hello, models, endless):
    warm = scripted_model(models / "warm", [b"x"], generation={"do_sample": True, "temperature": 0.9})
    result = talk("/set top-k 5", f"/model {hello.path}", "/set top-k", "hi", model=warm.path)
    assert wording("set_top_k_5_effect_temperature_0") in result.err
    assert wording("top_k_0_model_s_file") in result.err and result.out == "Hello!\n"


def test_who_proposed_the_last_reply(talk, hello):
    lines = told(talk("one", "/xray"), hello)
    assert lines[1].startswith("3 tokens in ") and "the model" in lines[1]
    assert lines[2:] == ['0 to 2: "Hello!" the model']


def test_the_phrases_that_are_kept(talk, home, hello):
    assert told(talk("/phrases"), hello) == [wording("phrases_kept_model_yet")]
    talk("one")
    with Store.open(Paths(home).database, pytest.fail) as store:
        store._database.save(lambda connection: connection.execute("UPDATE pool SET model = './hello'"))
    lines = told(talk("/phrases", "/phrases nowhere"), hello)
    assert all(" → " in line and "(used once, last in “one”)" in line for line in lines[:-1]) and len(lines) > 1
    assert lines[-1] == wording("no_phrase_holds_that")


def test_a_chat_fed_from_a_pipe_counts_as_a_piped_run(talk, home, hello, messages, monkeypatch):
    def sources() -> list[str | None]:
        return [conversation.info.source for conversation in kept(home)]

    mine = keep(home, ("by a person", "Hello!"), source="chat")
    assert talk("one", "/new", "two", "/edit three").code == 0
    assert sources() == ["pipe"] * 3 + ["chat"]  # even after /new and in a branch
    talk("four", arguments=["-c"], model=None)  # not the conversation of a person
    assert prompts(messages)[-1] == "four" and messages[-1][0] == ("user", "three")
    with Store.open(Paths(home).database, pytest.fail) as store:
        assert saved_conversation(store.history, "last").info.id == mine
    talk("five", arguments=["--conversation", mine], model=str(hello.path))
    assert sorted(sources()) == ["chat", "pipe", "pipe", "pipe"], "what a person began stays a chat"
    newest = kept(home)[1].info.id
    talk(f"/resume {newest}", "again")
    assert sorted(sources()) == ["chat", "pipe", "pipe", "pipe"], "a pipe continues its own conversation"
    monkeypatch.setattr(plain, "piped", lambda: False)
    assert talk("six", f"/resume {newest}", "seven").code == 0
    assert sorted(sources(), key=str) == [None, "chat", "chat", "pipe", "pipe"], "a person continued one of them"


def test_words_are_found_in_the_conversation(talk, home, hello):
    keep(home, ("What of the sea?", "The *Sea* is deep."), ("And hills?", "High."))
    lines = told(talk("/find SEA", "/find hills high", "/find nowhere", arguments=["-c"]), hello)
    assert lines[-4:] == [
        "1, the reply: The *Sea* is deep.",
        "1, the prompt: What of the sea?",
        "2, the prompt: And hills?",
        wording("message_conversation_holds"),
    ]
    refused = talk("/find")
    assert refused.code == 2 and wording("find_takes_words_message") in refused.err


def test_a_new_conversation(talk, home, hello, messages):
    result = talk("one", "/new", "two", "/new", "/new", arguments=["-s", "Be kind."])
    assert told(result, hello) == [
        "(figures)",
        wording("a_new_conversation"),
        "(figures)",
        *[wording("a_new_conversation")] * 2,
    ]
    assert messages[-1] == [("system", "Be kind."), ("user", "two")]
    assert [conversation.info.title for conversation in kept(home)] == ["two", "one"]


def test_resuming(talk, home, hello, messages):
    first, second = keep(home, ("one", "eins"), ("two", "zwei")), keep(home, ("three", "drei"), system="Be kind.")
    result = talk("/resume", f"/resume {first}", "go on", f"/resume  {second}", "on", "/resume")
    assert told(result, hello) == [
        f"{second}: three (1)",
        f"{first}: one (2)",
        wording("going_after_2_turns_last_one"),
        "> two",
        "zwei",
        "(figures)",
        wording("going_after_1_turn_last_one"),
        "> three",
        "drei",
        "(figures)",
        f"{second}: three (2)",
        f"{first}: one (3)",
    ]
    assert [text for _, text in messages[0]] == ["one", "eins", "two", "zwei", "go on"]
    assert [text for _, text in messages[1]] == ["Be kind.", "three", "drei", "on"]
    assert [conversation.info.model for conversation in kept(home)] == [str(hello.path)] * 2
    before = kept(home)
    talk(f"/resume {first}", "and on", arguments=["--no-log"])
    assert len(messages[-1]) == 7 and kept(home) == before


def test_the_list_is_short(talk, home, hello):
    numbers = [keep(home, (f"number {n}", "yes")) for n in range(plain.LISTED + 3)]
    lines = told(talk("/resume"), hello)
    assert len(lines) == plain.LISTED and lines[0] == f"{numbers[-1]}: number {plain.LISTED + 2} (1)"


def test_the_system_prompt(talk, home, hello, messages):
    result = talk("/system", "one", "/system Be  kind.", "two", "/system\tBe\\", "brief.", "/system", "three")
    assert told(result, hello) == [
        "System prompt: none", "(figures)", "System prompt: Be  kind.", "(figures)",
        "System prompt: Be", "brief.", "System prompt: Be", "brief.", "(figures)",
    ]  # fmt: skip
    assert [read[0] for read in messages] == [("user", "one"), ("system", "Be  kind."), ("system", "Be\nbrief.")]
    assert kept(home)[0].system == "Be\nbrief."
    assert told(talk("/system", arguments=["-s", "Be loud."]), hello) == ["System prompt: Be loud."]


# -- another model -----------------------------------------------------------------------------------------------------


@pytest.fixture
def named(home: Path, hello: Script, endless: Script) -> Path:
    """Register both models by name, and a missing one."""
    (home / "config").mkdir()
    file = home / "config" / "models.toml"
    file.write_text(
        f'[greeter]\npath = "{hello.path}"\ndescription = "Says hello."\n'
        f'[talker]\npath = "{endless.path}"\ndescription = "Never ends."\n[lost]\npath = "/nowhere/at/all"\n'
    )
    return file


def test_another_model(talk, home, hello, named, endless, messages, monkeypatch):
    monkeypatch.setattr("localspec.chat.model_list.this_machine", lambda bandwidth: machine(cpu()))
    result = talk("one", "/model", "/model talker", "two", "/model greeter", "three", arguments=["-n", "3"])
    assert result.out == "Hello!\nand so on \nHello!\n"
    *listed, switch, cut, _, back, again, _ = told(result, hello)
    for name, about in (("greeter", "Says hello"), ("talker", "Never ends")):
        assert any(re.fullmatch(rf"{name}: .* parameters · .* tokens/s · (.* · )?{about}", line) for line in listed)
    assert wording("lost_there_directory_nowhere_all") in listed
    assert any(line.startswith(f"{hello.path} (answers now): ") for line in listed)
    assert wording("these_fit_machine_here_localspec") in listed
    assert any(line.startswith("qwen3-0.6b: 609.8 MiB download · ") for line in listed)
    assert (switch, back) == (wording("talker_answers_from_here_on"), wording("greeter_answers_from_here_on"))
    assert cut == again == wording("cut_off_limit_tokens")
    assert [text for _, text in messages[-1]] == ["one", "Hello!", "two", "and so on ", "three"]
    assert kept(home)[0].info.model == "greeter"


def test_the_model_before_is_gone_before_the_next_is_loaded(talk, named, monkeypatch):
    from localspec import Engine

    load, loaded = Engine.open, []

    def watched(*arguments: Any, **options: Any) -> Any:
        assert [target() for target in loaded] == [None] * len(loaded)
        engine = load(*arguments, **options)
        loaded.append(weakref.ref(engine.target))
        return engine

    monkeypatch.setattr(Engine, "open", watched)
    assert talk("one", "/model talker", "two", "/model greeter", arguments=["-n", "3"]).code == 0
    assert len(loaded) == 3


@pytest.fixture
def broken(named: Path, hello: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """broken(how): return the name of a model that cannot be loaded."""

    def make(how: str) -> str:
        if how == "too large":
            from localspec import DoesNotFit, Engine

            load = Engine.open

            def refuse(settings: Any, card: Any, **options: Any) -> Any:
                if card.name == "talker":
                    raise DoesNotFit("talker needs 99.0 GiB of memory.")
                return load(settings, card, **options)

            monkeypatch.setattr(Engine, "open", refuse)
            return "talker"
        path = Path(shutil.copytree(hello.path, tmp_path / "damaged"))
        (path / ("config.json" if how == "damaged" else "tokenizer.json")).write_text("{")
        return str(path)

    return make


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("too large", 4, "99.0 GiB"), ("damaged", 1, "config.json"), ("no tokenizer", 1, "tokenizer")],
)
def test_a_model_that_cannot_be_had(talk, home, hello, messages, broken, how, code, words):
    name = broken(how)
    result = talk("one", f"/model {name}", "two", terminal=True)
    assert (result.code, result.out) == (0, "Hello!\nHello!\n")
    _, mistake, *on, _ = told(result, hello)
    assert mistake.startswith("localspec: ") and words in mistake
    assert on == ([] if how == "damaged" else [f"localspec: {hello.path} continues."])
    assert [text for _, text in messages[-1]] == ["one", "Hello!", "two"]
    assert kept(home)[0].info.model == str(hello.path)
    before = set(threading.enumerate())
    result = talk("one", f"/model {name}", "two")
    assert (result.code, result.out) == (code, "Hello!\n") and told(result, hello)[1:] == [mistake]
    timers = [
        thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and thread not in before
    ]
    assert all(timer.finished.is_set() for timer in timers)  # none will name a wait that is over


def test_the_one_before_continues_and_not_the_first(talk, home, hello, broken):
    name = broken("no tokenizer")
    result = talk("/model talker", f"/model {name}", "two", arguments=["-n", "3"], terminal=True)
    assert result.out == "and so on \n" and "localspec: talker continues." in told(result, hello)
    assert kept(home)[0].info.model == "talker"


def test_settings_that_the_other_model_cannot_take(talk, models, hello):
    own = scripted_model(models / "own", [b"Hi"], generation={"do_sample": True, "temperature": 0.5})
    result = talk("one", f"/model {hello.path}", "two", model=own.path, arguments=["--top-k", "5"], terminal=True)
    assert (result.code, result.out) == (0, "Hi\nHi\n")
    _, measuring, mistake, on, _ = told(result, own)
    assert measuring == ANNOUNCED
    assert mistake.startswith(wording("localspec_top_k_effect_2")) and on == f"localspec: {own.path} continues."


def test_loading_another_model_can_be_stopped(talk, hello, named, monkeypatch):
    from localspec import Engine

    load = Engine.open

    def slow(settings: Any, card: Any, **options: Any) -> Any:
        if card.name == "talker":
            signal.raise_signal(signal.SIGINT)
        return load(settings, card, **options)

    monkeypatch.setattr(Engine, "open", slow)
    result = talk("one", "/model talker", "two", terminal=True)
    assert (result.code, result.out) == (0, "Hello!\nHello!\n")
    assert told(result, hello) == ["(figures)", "", "Ctrl+D ends.", "(figures)"]


# -- Ctrl+C and other ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "terminal"), [("take", False), ("decode_step", True)])
def test_a_reply_that_is_stopped_is_kept_and_the_chat_continues(
    talk, home, endless, messages, monkeypatch, place, terminal
):
    from localspec.decoding import session

    owner: Any = plain.LiveStats if place == "take" else session
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), 6))
    result = talk("one", "/model", model=endless.path, terminal=terminal)
    [turn] = kept(home)[0].turns
    assert (turn.prompt, turn.reason) == ("one", "interrupted")
    assert result.out == turn.reply + "\n" and ("and so on " * 99).startswith(turn.reply) and len(turn.reply) > 8
    assert turn.figures["completion_tokens"] >= 3
    assert result.code == 0 and told(result, endless)[:2] == ["(stopped)", "(figures)"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(owner, place, interrupting(getattr(owner, place), 3))
    talk("two", model=endless.path, arguments=["-c"])
    assert messages[-1] == [("user", "one"), ("assistant", turn.reply), ("user", "two")]
    assert [turn.reason for turn in kept(home)[0].turns] == ["interrupted"] * 2


def test_a_second_interrupt_does_not_wait(talk, home, endless, hello, monkeypatch):
    from localspec.decoding import session

    monkeypatch.setattr(session, "decode_step", interrupting(session.decode_step, 4, times=2))
    result = talk("one", f"/model {hello.path}", "two", model=endless.path, arguments=["--no-spec"])
    assert (result.code, result.out) == (0, "and so on and \nHello!\n")
    assert told(result, endless)[:2] == ["(stopped)", "(figures)"]
    assert [turn.reply for turn in kept(home)[0].turns] == ["and so on and ", "Hello!"]


def test_a_long_prompt_can_be_stopped(talk, home, endless, messages, monkeypatch):
    from localspec.decoding import session

    monkeypatch.setattr(session, "prefill_step", interrupting(session.prefill_step, 2))
    result = talk("x" * 2000, "two", model=endless.path, arguments=["-n", "3"])
    assert (result.code, result.out) == (0, "and so on \n")
    assert told(result, endless) == ["(stopped)", "(figures)", wording("cut_off_limit_tokens"), "(figures)"]
    assert messages[-1] == [("user", "two")] and said(kept(home)[0]) == [("two", "and so on ", "length")]


def test_an_interrupt_behind_the_last_word_stops_nothing(talk, home, hello, monkeypatch):
    from localspec.events import Done

    original = plain.LiveStats.take

    def take(live: Any, event: Any) -> None:
        original(live, event)
        if isinstance(event, Done):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(plain.LiveStats, "take", take)
    result = talk("one", "two")
    assert (result.code, result.out) == (0, "Hello!\nHello!\n") and told(result, hello) == ["(figures)"] * 2
    assert [turn.reason for turn in kept(home)[0].turns] == ["stop"] * 2


def test_an_interrupt_at_the_prompt_ends_nothing(talk, hello, messages, monkeypatch):
    lines = iter(["one\\\n", KeyboardInterrupt, "two\n", KeyboardInterrupt, ""])

    def readline(_: Terminal, limit: int = -1) -> str:
        line = next(lines)
        if not isinstance(line, str):
            raise line
        return line

    monkeypatch.setattr(Terminal, "readline", readline)
    result = talk(terminal=True)
    assert (result.code, told(result, hello)) == (0, ["", "Ctrl+D ends.", "(figures)", "", "Ctrl+D ends."])
    assert prompts(messages) == ["two"]


def test_interrupted_while_the_first_model_is_loaded(talk, monkeypatch):
    monkeypatch.setattr("localspec.engine.engine.choices", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert talk("one", terminal=True) == (130, "", "localspec: Interrupted.\n")


def test_a_prompt_that_is_too_long_ends_a_pipe_with_its_code(talk, home, models):
    small = scripted_model(models / "tight", [b"a"], context=50)
    result = talk("one", "x" * 100, "two", model=small.path)
    assert (result.code, result.out) == (2, "a\n") and wording("prompt_103_tokens_long") in result.err
    assert said(kept(home)[0]) == [("one", "a", "stop")]
    assert talk("two", model=small.path, arguments=["x" * 100], terminal=True).code == 2


def test_the_unexpected_ends_it_and_what_was_said_stays(talk, home, endless, monkeypatch):
    from localspec.decoding import session

    steps = iter([session.decode_step] * 2)
    monkeypatch.setattr(session, "decode_step", lambda *arguments: next(steps)(*arguments))
    result = talk("one", "two", model=endless.path, arguments=["--no-spec"], terminal=True)
    assert result.code == 1 and "Unexpected" in result.err.splitlines()[-1]
    assert said(kept(home)[0]) == [("one", "and so on ", "interrupted")]


def test_a_reader_that_leaves(talk, home, endless, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # this process still uses descriptor 1
    result = talk("one", "two", model=endless.path)
    assert (result.code, told(result, endless)) == (141, [])
    [turn] = kept(home)[0].turns
    assert turn.reason == "interrupted" and 30 < len(turn.reply) < 100


def test_no_input_at_all(talk, hello, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    capfd.readouterr()
    assert main(["chat", "--plain", "-m", str(hello.path), "hi"]) == 0
    assert capfd.readouterr().out == "Hello!\n"
    with open(tmp_path / "write-only", "wb") as stream, contextlib.suppress(OSError):
        reader = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(stream.fileno()), "r")))
        monkeypatch.setattr(sys, "stdin", reader)
        assert main(["chat", "--plain", "-m", str(hello.path)]) == 2
        assert capfd.readouterr().err.splitlines()[-1].startswith(wording("localspec_standard_input_cannot"))


# -- text that would command the terminal ------------------------------------------------------------------------------

EVIL = "evil\x1b[2J\x07\x9b31m\u202e\x08\x7f"


def test_hostile_text(talk, home, models, tmp_path):
    pieces = [*(bytes([byte]) for byte in range(256)), b"\xc2", b"\x9b", b"31m", EVIL.encode(), b"end"]
    script = scripted_model(models / "hostile", pieces)
    path = tmp_path / NAME
    shutil.copytree(script.path, path)
    (home / "config").mkdir()
    evil = json.dumps(EVIL).replace("\x7f", "\\u007f")
    (home / "config" / "models.toml").write_text(f'[{evil}]\npath = "{script.path}"\ndescription = {evil}\n')
    number = keep(home, (EVIL + "\r", EVIL + "\r\n" + EVIL), system=EVIL, model=EVIL)
    lines = [
        EVIL, "/resume", f"/resume {number}", f"/resume {EVIL}", "/model", f"/model {EVIL}", f"/model x{EVIL}",
        "/system", f"/system {EVIL}", f"/{EVIL}", f"/new {EVIL}", f"//{EVIL}",
    ]  # fmt: skip
    result = talk(*lines, arguments=[EVIL + "\r"], model=path, terminal=True)
    assert result.code == 0 and result.out.count("evil") == result.out.count("end\n") == 3
    again = talk(arguments=["--conversation", number, "-m", path])
    gone = talk(arguments=["--conversation", number], model=None)
    for told, places in ((result.err, 15), (again.err, 3), (gone.err, 3)):
        assert told.count("evil") >= places
    for shown in (result.out, result.err, again.err, gone.err):
        assert commands(shown.encode()) == set()


# -- at a real terminal ------------------------------------------------------------------------------------------------


class Typist:
    """A user at a terminal, with a chat."""

    def __init__(self, home: Path, *arguments: object, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "chat", *map(str, arguments)],
            env=environment(home, **{"TERM": "xterm", **variables}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl+C reaches it
        )
        os.close(theirs)
        self.shown, self._seen = b"", 0

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, words: str) -> None:
        """Wait until these words are shown after those of the last wait."""
        while (place := self.shown.find(words.encode(), self._seen)) < 0:
            assert self._read(), self.shown[self._seen :]
        self._seen = place + len(words.encode())

    def interrupt_typing(self, words: str) -> None:
        """Send Ctrl+C until these words are shown, since readline may notice one only with the next key."""
        while self.shown.find(words.encode(), self._seen) < 0:
            self.type("\x03")
            while select.select([self._ours], [], [], 3)[0]:
                assert self._read(), self.shown[self._seen :]
        self.wait_for(words)

    def leave(self) -> int:
        """Send Ctrl+D at the next prompt, and return the exit code."""
        self.wait_for("> ")
        self.type("\x04")
        while self._read():
            pass
        return self.process.wait(timeout=PATIENCE)

    def go(self) -> None:
        """End the chat, whatever has happened."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        """Return the next output; False at its end."""
        try:
            part = os.read(self._ours, 65536) if select.select([self._ours], [], [], 120)[0] else b""
        except OSError:  # Linux reports this once no process has the terminal open
            part = b""
        self.shown += part
        return bool(part)


@pytest.fixture
def somebody() -> Iterator[Callable[..., Typist]]:
    typists: list[Typist] = []

    def sit_down(*arguments: Any, **variables: str) -> Typist:
        typists.append(Typist(*arguments, **variables))
        return typists[-1]

    yield sit_down
    for typist in typists:
        typist.go()


def test_somebody_types(somebody, home, endless):
    somebody = somebody(home, "--plain", "--no-spec", "-m", endless.path)
    somebody.wait_for(f"loading {endless.path} …\r\n")
    somebody.wait_for("Ctrl+D ends.\r\n")
    somebody.wait_for("> ")
    somebody.type("ab\x02X\r")  # Ctrl+B moves back by one
    somebody.wait_for("and so on")
    somebody.type("\x03")
    somebody.wait_for("\r\n(stopped)\r\n(")
    somebody.wait_for("> ")
    somebody.type("\x1b[A\r")  # the previous prompt
    somebody.wait_for("and so on")
    somebody.type("\x03")
    somebody.wait_for("(stopped)")
    somebody.wait_for("> ")
    somebody.type("/tit\t")
    somebody.wait_for("/title ")
    somebody.type("\x15/qiut\r")
    somebody.wait_for("did you mean '/quit'?")
    somebody.wait_for("> ")
    somebody.type("no")
    somebody.wait_for("no")
    somebody.interrupt_typing("Ctrl+D ends.")
    somebody.wait_for("> ")
    somebody.type("one\\\r")
    somebody.wait_for("… ")
    somebody.type("two\r")
    somebody.wait_for("and so on")
    somebody.type("\x03")
    somebody.wait_for("(stopped)")
    assert somebody.leave() == 0
    assert [(turn.prompt, turn.reason) for turn in kept(home)[0].turns] == [
        ("aXb", "interrupted"), ("aXb", "interrupted"), ("one\ntwo", "interrupted")
    ]  # fmt: skip
    assert b"> \r\n" in somebody.shown and re.search(rb"\r\n\S+ is saved; continue with: ", somebody.shown)
    assert b"\x1b[K" not in somebody.shown.partition(b"Ctrl+D ends.")[0]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_that_is_ended_from_outside_says_how_to_continue(somebody, home, endless, sent):
    somebody = somebody(home, "--plain", "--no-spec", "-m", endless.path)
    somebody.wait_for("> ")
    somebody.type("one\r")
    somebody.wait_for("and so on")
    os.kill(somebody.process.pid, sent)
    somebody.wait_for("“one” is saved; continue with: localspec chat --conversation ")
    assert somebody.process.wait(timeout=PATIENCE) == -sent
    (turn,) = kept(home)[0].turns
    assert turn.reason == "interrupted" and turn.reply.count("and so on") > 0


def test_at_a_terminal_without_standard_input_one_prompt_is_answered(home, hello, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["chat", "--plain", "-m", str(hello.path), "one"]) == 0
    assert wording("one_kept_go_localspec_chat") in capsys.readouterr().err


def test_an_unsaved_reply_is_reported_each_time_and_when_another_continues(home, talk, monkeypatch):
    said = []

    def say(history, *given, real=History.say, **how):
        said.append(how["prompt"])
        if said.count("two") and said[-1] != "four":
            raise NoRoom("The disk is full.")
        return real(history, *given, **how)

    monkeypatch.setattr(History, "say", say)
    result = talk("one", "two", "three", "/new", "four")
    assert re.findall(r"not saved: (.*)\)", result.err) == [wording("its_last_turn"), "the last 2 turns"]
    assert wording("what_said_now_kept_disk_full_2") in result.err
    assert wording("one_left_without_last_2_turns") in result.err
    monkeypatch.undo()
    assert [[turn.prompt for turn in one.turns] for one in kept(home)] == [["four"], ["one"]]


def test_a_dumb_terminal_gets_lines_without_being_asked(somebody, home, hello):
    somebody = somebody(home, "-m", hello.path, "one", TERM="dumb")
    somebody.wait_for("> one\r\nHello!\r\n(")
    somebody.wait_for("> ")
    somebody.type("two\r")
    somebody.wait_for("Hello!\r\n(")
    assert somebody.leave() == 0
    assert commands(somebody.shown.replace(b"\r\n", b"\n")) == set()


def test_a_pipe_and_no_interface(home, hello):
    code = """
import sys
from localspec.cli.main import main
code = main(sys.argv[1:])
print(*(name for name in ("textual", "localspec_tui", "readline") if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, "chat", "--plain", "-m", hello.path],
        env=environment(home, PYTHONIOENCODING="ascii"),
        input="one\nzwölf".encode(),
        capture_output=True,
    )
    assert (result.returncode, result.stdout) == (0, b"Hello!\nHello!\n")
    assert result.stderr.count(b"\n") == 4 and result.stderr.endswith(b")\n\n")
    assert [turn.prompt for turn in kept(home)[0].turns] == ["one", "zwölf"]


def test_a_prompt_on_which_the_tokenizer_panics_costs_nothing_that_was_said(talk, home, hello, tmp_path):
    model = panicking(hello.path, tmp_path / "panicking")
    result = talk("Hi", PANICS, "never read", model=model)
    assert result.code == 1 and result.out.startswith("Hello!")
    last = result.err.splitlines()[-1]
    assert last.startswith(wording("localspec_tokenizer_cannot_read_2", model=model)) and "retry-limit" in last
    assert "Traceback" not in result.err and [said(one) for one in kept(home)] == [[("Hi", "Hello!", "stop")]]


def test_what_is_measured_while_the_user_types_is_reported_once_and_so_is_a_search(capsys):
    """A search takes minutes, so it has its own message."""

    class Engine:
        stages = iter([TIMING, TIMING, TUNING, f"{TUNING}: 1 of 4, about 3 s left"])

        def measure(self):
            yield next(self.stages)

    meanwhile, engine = Meanwhile(), Engine()
    for _ in range(3):
        with meanwhile.measuring(engine):
            pass
    assert capsys.readouterr().err.split("\n") == [ANNOUNCED, TUNES, ""]
