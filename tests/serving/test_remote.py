"""`--server URL`: a server answers correctly or not, and the conversation is saved."""

import json
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
from clocks import PATIENCE
from command import called, sentence
from each import each
from golden import matching, wording
from serving.scripted_server import DONE, HELLO, USAGE, answer, ended, said, scripted, stream

from localspec.chat.figures import LiveStats
from localspec.config import Settings
from localspec.errors import LocalspecError
from localspec.events import Done, Reporter, Text
from localspec.serving import link, server_engine
from localspec.serving.server import Server
from localspec.serving.server_engine import ServerEngine
from localspec.store.store import Store


def run(home, server, *arguments, **variables):
    return called(home, "run", "Hi", "--server", server.url, *arguments, **variables)


def kept(home):
    with Store.open(home / "data" / "localspec.db", pytest.fail) as store:
        newest = store.history.latest()
        return [(turn.prompt, turn.reply, turn.reason) for turn in store.history.read(newest).turns] if newest else []


def events(server, settings=None, **how):
    engine = ServerEngine(Server.open(server.url), "there", Reporter())
    settings = settings or Settings()
    return engine, engine.chat([{"role": "user", "content": "Hi"}], engine.sampling(settings), **how)


# -- as it should -----------------------------------------------------------------------------------------------------


def test_it_answers_and_the_conversation_is_kept_and_continues(tmp_path):
    with scripted() as server:
        first = run(tmp_path, server, "-s", "Be kind.", "--temp", "0.5", "--stop", "x", "-n", "7", "--seed", "3")
        again = run(tmp_path, server, "--continue", LOCALSPEC_SERVER_KEY="a key")
        assert (first.stdout, first.returncode, again.stdout) == ("Hello.\n", 0, "Hello.\n")
        one, two = server.replies
        assert one["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
        asked = {name: one[name] for name in ("model", "stream", "temperature", "stop", "max_tokens", "seed")}
        assert asked == {
            "model": "there",
            "stream": True,
            "temperature": 0.5,
            "stop": ["x"],
            "max_tokens": 7,
            "seed": 3,
        }
        assert [message["content"] for message in two["messages"]] == ["Be kind.", "Hi", "Hello.", "Hi"]
        assert "temperature" not in two and "seed" not in two, "what nobody asked for is the server's own"
        assert server.asked[0][1].get("authorization") is None
        assert server.asked[-1][1]["authorization"] == "Bearer a key"
    assert kept(tmp_path) == [("Hi", "Hello.", "stop"), ("Hi", "Hello.", "stop")]


def test_in_json_missing_figures_are_null(tmp_path):
    with scripted() as server:
        found = json.loads(run(tmp_path, server, "--json").stdout)
        lines = [json.loads(line) for line in run(tmp_path, server, "--stream-json").stdout.splitlines()]
    assert found["text"] == "Hello." and found["engine"] == "server" and found["model"] == "there"
    assert (found["prompt_tokens"], found["completion_tokens"], found["finish_reason"]) == (9, 5, "stop")
    unknown = [found[name] for name in ("token_ids", "revision", "drafter", "device", "exactness", "lossless", "seed")]
    assert unknown == [None] * 7 and set(found["speculation"].values()) == set(found["memory"].values()) == {None}
    assert [line["event"] for line in lines] == ["start", "step", "step", "end"] and lines[-1]["text"] == "Hello."


def test_thoughts_and_figures_in_the_forms_of_several_servers(tmp_path):
    for name in ("reasoning_content", "reasoning"):
        thought = {"choices": [{"delta": {name: "Hm."}}]}
        timings = {"timings": {"draft_n": 8, "draft_n_accepted": 6}}
        with scripted(stream(thought, said("Yes."), {**ended("length"), **timings}, DONE)) as server:
            found = json.loads(run(tmp_path, server, "--json").stdout)
        assert (found["text"], found["reasoning"], found["finish_reason"]) == ("Yes.", "Hm.", "length")
        assert found["completion_tokens"] is None and found["timings"]["tokens_per_second"] is None
        assert (found["speculation"]["draft_n"], found["speculation"]["draft_n_accepted"]) == (8, 6)


@each(
    "pieces, text, reasoning",
    [
        (["<thi", "nk>\nHm", "m.\n</th", "ink>\n\nYes."], "Yes.", "Hmm."),
        (["Yes <think>no</think>."], "Yes <think>no</think>.", ""),
        (["<", "b>"], "<b>", ""),
        (["<think>never ends"], "", "never ends"),
    ],
)
def test_thoughts_that_a_server_leaves_in_the_text_are_separated(tmp_path, pieces, text, reasoning):
    with scripted(stream(*map(said, pieces), ended(), DONE)) as server:
        found = json.loads(run(tmp_path, server, "--json").stdout)
    assert (found["text"], found["reasoning"]) == (text, reasoning)


def test_a_server_that_does_not_stream(tmp_path):
    whole = {"choices": [{"message": {"content": "All at once."}, "finish_reason": "stop"}], "usage": USAGE["usage"]}
    with scripted(answer(whole)) as server:
        assert run(tmp_path, server).stdout == "All at once.\n"


@pytest.mark.slow
def test_a_conversation_that_is_too_long_there_loses_its_oldest_turns_and_says_so(tmp_path):
    words = {"error": {"message": "This model's maximum context length is 512 tokens.", "code": 400}}
    with scripted(HELLO, HELLO, answer(words, "400 Bad Request"), HELLO) as server:
        run(tmp_path, server)
        run(tmp_path, server, "--continue")
        third = run(tmp_path, server, "--continue")
        assert third.stdout == "Hello.\n" and wording("the_context_is_full") in third.stderr
        assert [len(body["messages"]) for body in server.replies] == [1, 3, 5, 1]
    with scripted(answer(words, "400 Bad Request")) as server:
        alone = run(tmp_path, server)
        assert alone.returncode == 2 and wording("room_prompt_reply") in alone.stderr


def test_what_was_left_out_for_a_server_stays_left_out(tmp_path):
    words = {"error": {"message": "This model's maximum context length is 512 tokens.", "code": 400}}
    said = [{"role": "user", "content": "Hi"}]
    with scripted(*[HELLO] * 5, answer(words, "400 Bad Request"), *[HELLO] * 9) as server:
        engine = ServerEngine(Server.open(server.url), "there", Reporter())
        found = []
        for _ in range(9):
            *_, done = engine.chat(said, engine.sampling(Settings()))
            found.append(done.statistics.dropped_turns)
            said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Hi again"}]
        sent = [len(body["messages"]) for body in server.replies]
    assert found[:5] == [0] * 5 and found[5] == found[6] == found[7] >= 3
    assert sent[:6] == [1, 3, 5, 7, 9, 11] and sent[6:9] == [11 - 2 * found[5] + 2 * turn for turn in range(3)]
    assert len(sent) == 10, "nothing was asked in vain once more"


def test_figures_while_it_comes_and_at_the_end(tmp_path):
    with scripted() as server:
        engine, reply = events(server)
        live, seen = LiveStats(engine), []
        for event in reply:
            live.take(event)
            seen.append(live.figures())
    assert seen[-2].tokens == 0 and seen[-2].tokens_per_second is None, "the server has not reported it yet"
    assert (seen[-1].tokens, seen[-1].used, seen[-1].memory.peak) == (5, 14, 0) and seen[-1].tokens_per_second > 0


@pytest.mark.slow
def test_chat_plain_over_a_server(tmp_path, monkeypatch, capsys):
    import io

    from localspec.cli.main import main

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    lines = b"One\n/again\n/model\n/think\n/set\nTwo\n"
    with scripted() as server:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        assert main(["chat", "--plain", "--server", server.url]) == 0
        out, errors = capsys.readouterr()
        assert out == "Hello.\n" * 3 and len(server.replies) == 3
        assert f"there (at 127.0.0.1:{server.port})" in errors and "* there" in errors and "/think auto" in errors
        assert [len(body["messages"]) for body in server.replies] == [1, 1, 3]
    with scripted(stream(said("Hi."), ended(), DONE)) as server:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"One\n")))
        assert main(["chat", "--plain", "--server", server.url]) == 0
        assert "()" not in capsys.readouterr().err, "where a server tells no figures, there are none"


def test_what_went_wrong_has_a_line_of_its_own(tmp_path, monkeypatch, capsys):
    import io

    from localspec.cli.main import main

    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    with scripted(stream(said("Half"))) as server:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"One\n")))
        main(["chat", "--plain", "--server", server.url])
    out, errors = capsys.readouterr()
    assert out == "Half\n" and wording("broke_off_in_the_middle") in errors


@pytest.mark.slow
def test_which_model_answers(tmp_path):
    two = {"data": [{"id": "one", "max_model_len": 4096}, {"id": "two"}]}
    with scripted(models=two) as server:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "config.toml").write_text(f'server = "{server.url}/v1"\nmodel = "phi3-s3d"\n')
        called(tmp_path, "run", "Hi")
        called(tmp_path, "run", "Hi", "-m", "two")
        called(tmp_path, "run", "Hi", "--continue")
        assert [body["model"] for body in server.replies] == ["one", "two", "two"]
        wrong = called(tmp_path, "run", "Hi", "-m", "tow")
        assert wrong.returncode == 3 and wording("did_you_mean_two") in wrong.stderr
        assert Server.open(server.url).models["one"].context == 4096
        told = json.loads(called(tmp_path, "doctor", "--server", server.url, "--json").stdout)
        assert [one["model"] for one in told["models"]] == ["one", "two"] and told["program"] is None
    with scripted(models=answer({}, "404 Not Found")) as server:
        assert run(tmp_path, server, "-m", "any").stdout == "Hello.\n"
        assert wording("name_one_with_m") in run(tmp_path, server).stderr
        told = called(tmp_path, "doctor", "--server", server.url).stdout
        assert wording("lists_no_models") in told and "OpenAI-compatible" not in told


# -- as it should not -------------------------------------------------------------------------------------------------

CALL = {"choices": [{"delta": {"content": None, "tool_calls": [{"index": 0, "function": {"name": "look\x1b"}}]}}]}
HOSTILE = {
    "an endless line": (stream(said("Well"), b"data: " + b"x" * (2**20 + 2**16)), 1, "a line of more than 1 MiB"),
    "no JSON": (stream(said("Well"), b"data: {\n\n"), 1, "instead of JSON"),
    "deep JSON": (stream(said("Well"), b"data: " + b"[" * 100_000 + b"\n\n"), 1, "instead of JSON"),
    "no object": (stream(said("Well"), b"data: 7\n\n"), 1, wording("should_be_an_object")),
    "malformed choices": (stream(said("Well"), {"choices": {"a": 1}}), 1, wording("piece_of_a_reply")),
    "an error in the middle": (stream(said("Well"), {"error": {"message": "out of\x1b[2J cards"}}), 1, "cards"),
    "a number for a text": (stream(said("Well"), said(17)), 1, wording("what_should_text")),
    "a picture for a text": (stream(said("Well"), said([{"type": "image_url"}])), 1, wording("what_should_text")),
    "choices that are no objects": (stream(said("Well"), {"choices": [7]}), 1, wording("piece_of_a_reply")),
    "pieces of nothing": (stream({"object": "chat.completion.chunk"}, USAGE, DONE), 1, wording("no_reply_before_it")),
    "pieces of another reply": (stream({"choices": [{**ended()["choices"][0], "index": 1}]}, DONE), 1, "ended without a reply"),
    "death in the middle": (stream(said("Well")), 1, wording("broke_off_in_the_middle")),
    "death in a chunk": (
        [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
         b'60\r\ndata: {"choices": [{"delta": {"content": "Well"}}]}\n\n'], 1, "closed the connection"),
    "death at once": ([b""], 1, "closed the connection"),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n"], 1, wording("or_speaks_no_http")),
    "headers without end": ([b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200], 1, "closed the connection"),
    "a page": (answer(b"<html>log in</html>", kind="text/html"), 1, "answers with text/html"),
    "a compressed answer": (answer(b"\x1f\x8b", Content_Encoding="gzip"), 1, "compressed"),
    "another address": (answer(b"", "307 See there", Location="http://evil.example/"), 1, "does not follow"),
    "no key": (answer({"error": {"message": "Bad key"}}, "401 No"), 5, "wants a key, but you have set none: Bad key"),
    "only an end": (stream(DONE), 1, wording("no_reply_before_it")),
    "a tool that nobody offered": (stream(CALL, ended("tool_calls"), DONE), 1, "calls a tool 'look"),
    "a tool without a name": (stream(ended("tool_calls"), DONE), 1, wording("calls_tool_which_nobody_offered")),
    "no such model": (answer({"detail": "Not Found"}, "404 No"), 3, "Not Found"),
    "a refusal": (answer({"error": {"message": "top_k must be\nsmall"}}, "400 No"), 2, "top_k must be small"),
    "a refusal without words": (answer(b"\xff\xfe", "422 No"), 2, "status 422"),
    "too busy": (answer({"error": "later"}, "503 No"), 1, "try again later"),
    "broken inside": (answer(b"Traceback", "500 No"), 1, "status 500"),
}  # fmt: skip


@pytest.mark.slow
@each("name", HOSTILE)
def test_what_a_server_gets_wrong_is_a_sentence(name, tmp_path):
    script, code, words = HOSTILE[name]
    with scripted(script) as server:
        found = run(tmp_path, server)
    last = found.stderr.splitlines()[-1]
    assert found.returncode == code and words in last and last.startswith("localspec: "), found.stderr
    assert "\x1b" not in found.stderr and found.stdout in ("", "Well\n")
    if found.stdout:
        assert kept(tmp_path) == [("Hi", "Well", "interrupted")]
    else:
        assert kept(tmp_path) == [], "a prompt that was not taken leaves no trace"


def test_what_a_model_says_cannot_steer_the_terminal(tmp_path):
    with scripted(stream(said("a\x1b]52;c;x\x07b\u202e\r"), ended(), DONE)) as server:
        out = run(tmp_path, server).stdout
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(out) and "a" in out


@pytest.mark.slow
def test_a_stream_that_ends_with_nothing_in_it_is_asked_why(tmp_path):
    """llama-cpp-python's server ends a stream this way when the prompt does not fit."""
    begun = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"]
    for empty in (begun, stream()):
        words = answer({"error": {"message": "maximum context length is 1024", "code": 400}}, "400 Bad Request")
        with scripted(HELLO, empty, words, HELLO) as server:
            run(tmp_path, server)
            found = run(tmp_path, server, "--continue")
            assert found.stdout == "Hello.\n" and wording("longer_reads_oldest_turn") in found.stderr
            assert [body["stream"] for body in server.replies] == [True, True, False, False]
        with scripted(empty, empty) as server:
            assert run(tmp_path, server).returncode == 1 and len(server.replies) == 2


def test_an_end_without_a_reason_is_reported(tmp_path):
    """llama-cpp-python's server ends a reply this way when another client sends a request."""
    with scripted(stream(said("In a small"), DONE)) as server:
        found = run(tmp_path, server)
        assert found.stdout == "In a small\n" and wording("may_be_cut_off") in found.stderr
        assert "cut off" not in run(tmp_path, server).stderr


def test_a_called_tool_is_reported_in_addition_to_the_text(tmp_path):
    with scripted(stream(said("Let me look."), CALL, ended("tool_calls"), DONE)) as server:
        found = run(tmp_path, server)
    assert (found.returncode, found.stdout) == (0, "Let me look.\n") and wording("which_nobody_offered") in found.stderr
    with scripted(stream(said("\n\n"), CALL, ended("tool_calls"), DONE)) as server:
        _, reply = events(server)
        with pytest.raises(LocalspecError, match=matching("which_nobody_offered")):
            list(reply)


def test_tokens_and_sources_that_cannot_be_are_not_believed(tmp_path):
    own = {"models": {"data": [{"id": "there", "owned_by": "localspec"}]}}
    bad = [{"token_ids": [2**40], "token_sources": ["a"]}, {"token_ids": [1], "token_sources": []},
           {"token_ids": "x", "token_sources": "y"}, {"token_ids": [True], "token_sources": [7]},
           {"token_ids": [1], "token_sources": ["x" * 10_000]}]  # fmt: skip
    figures = {"timings": 7, "speculation": {"acceptance_by_depth": "x", "steps": -3}, "memory": {"peak_bytes": "all"}}
    pieces = [said("x", localspec=one) for one in bad]
    with scripted(stream(*pieces, {**ended(), "localspec": figures}, DONE), **own) as server:
        found = json.loads(run(tmp_path, server, "--json").stdout)
    assert found["text"] == "xxxxx" and not found["token_ids"] and found["speculation"]["steps"] == 0


def test_silence_is_reported_and_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "TICK", 0.01)
    monkeypatch.setattr(server_engine, "FIRST_NOTICE", 0.02)
    monkeypatch.setattr(server_engine, "NEXT_SECONDS", 0.1)
    told, never = [], threading.Event()
    with scripted(stream(said("Well"), b": I am alive\n\n", never)) as server:
        engine = ServerEngine(Server.open(server.url), "there", Reporter(progress=told.append))
        reply = engine.chat([{"role": "user", "content": "Hi"}], engine.sampling(Settings()))
        with pytest.raises(LocalspecError, match="in the middle|said nothing"):
            list(reply)
        assert server.gone.wait(PATIENCE), "and it learns that nobody waits"
    assert any(f"waiting for 127.0.0.1:{server.port}" in words for words in told)


@pytest.mark.parametrize("before", [[], stream(said("Well"))])
def test_who_does_not_want_the_reply_any_more_does_not_wait(before, monkeypatch):
    monkeypatch.setattr(link, "TICK", 0.01)
    with scripted([*before, threading.Event()]) as server:
        engine, reply = events(server)
        looks = iter([True] * 5)
        engine.wanted = lambda: next(looks, False)
        assert not any(isinstance(event, Done) for event in reply)
        assert server.gone.wait(PATIENCE)


def test_whoever_closes_a_reply_is_gone_for_the_server():
    with scripted(stream(said("Well"), threading.Event())) as server:
        _, reply = events(server)
        assert any(isinstance(event, Text) for event in reply)
        reply.close()
        assert server.gone.wait(PATIENCE)


def test_there_is_no_server(tmp_path):
    with scripted() as server:
        pass
    found = run(tmp_path, server)
    assert found.returncode == 1 and wording("cannot_be_reached") in sentence(found)
    found = called(tmp_path, "run", "Hi", "--server", "http://no.such.invalid")
    assert found.returncode == 1 and wording("cannot_be_found") in sentence(found)
    with scripted(models=answer(b"<html>")) as server:
        found = run(tmp_path, server)
        assert found.returncode == 1 and wording("lists_no_models") in sentence(found)
    with scripted(models=answer({"data": [{"id": "a\x1b[2J"}, 7, {"id": 7}]})) as server:
        assert Server.open(server.url).models == {}
        assert (
            "Not listed, because their names cannot be typed here: 3 models"
            in called(tmp_path, "doctor", "--server", server.url).stdout
        )
        named = server.url.replace("://", "://me:secret@")
        found = run(tmp_path, server, "--server", named)
        assert found.returncode == 2 and "…@" in sentence(found) and "secret" not in found.stderr


def test_a_key_that_others_can_read_is_reported(monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SERVER_KEY", "a key")
    for url, told in (("http://gpu-box", True), ("https://gpu-box", False), ("http://127.0.0.1", False)):
        where = link.ServerAddress.of(url)
        assert bool(Server(where, link.key_for(where), {}).unencrypted_key) == told
        assert not Server(where, None, {}).unencrypted_key


# -- what is asked ----------------------------------------------------------------------------------------------------


@each(
    "flags",
    [
        ["--device", "cpu"],
        ["--quantize", "int8"],
        ["--dtype", "bf16"],
        ["--drafter", "phrases"],
        ["--no-spec"],
        ["--exact"],
        ["--draft-max", "4"],
        ["--accept", "typical"],
        ["--pool", "off"],
        ["--context", "512"],
    ],
)
def test_flags_without_effect_are_refused_by_name(flags, tmp_path):
    for command in ("run", "chat"):
        found = called(tmp_path, command, "Hi", "--server", "http://127.0.0.1:9", *flags)
        assert found.returncode == 2 and wording("effect_where_server_answers", flags=flags[0]) in sentence(found)


@each(
    "url",
    [
        "localhost:80",
        "ftp://x",
        "http://me:secret@x/",
        "http://x/?key=1",
        "http://x y",
        "http://",
        "http://x:0",
        "http://x:99999",
        "\x1b",
    ],
)
def test_what_is_no_address(url, tmp_path):
    found = called(tmp_path, "run", "Hi", "--server", url)
    assert found.returncode == 2 and sentence(found)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://localhost:8000", (False, "localhost", 8000, "/v1", "localhost:8000")),
        ("https://x.example/api/v1/", (True, "x.example", 443, "/api/v1", "x.example")),
        ("http://[::1]:8000/", (False, "::1", 8000, "/v1", "[::1]:8000")),
    ],
)
def test_addresses(url, parts):
    found = link.ServerAddress.of(url)
    assert (found.secure, found.host, found.port, found.base, found.name) == parts


def test_off_is_off(tmp_path):
    found = called(tmp_path, "run", "Hi", "-m", "no-such", "--server", "off", LOCALSPEC_SERVER="http://127.0.0.1:9")
    assert found.returncode == 3, "the model is looked for here"


def test_the_key_of_the_keyring_and_of_the_environment(monkeypatch):
    asked = []
    ring = SimpleNamespace(get_password=lambda *names: asked.append(names) or "kept")
    monkeypatch.setitem(sys.modules, "keyring", ring)
    where = link.ServerAddress.of("https://x.example")
    assert link.key_for(where) == "kept" and asked == [("localspec", "https://x.example")]
    monkeypatch.setenv("LOCALSPEC_SERVER_KEY", "given")
    assert link.key_for(where) == "given"
    monkeypatch.setenv("LOCALSPEC_SERVER_KEY", "a\nb: c")
    with pytest.raises(LocalspecError, match="printable"):
        link.key_for(where)
    monkeypatch.delenv("LOCALSPEC_SERVER_KEY")
    ring.get_password = lambda *_: 1 / 0  # it is locked
    assert link.key_for(where) is None


@pytest.mark.slow
def test_ctrl_c_while_nothing_comes(tmp_path):
    """Ctrl+C in a separate process, as a user presses it."""
    import subprocess

    from command import environment

    gate = threading.Event()
    with scripted(stream(said("Well"), gate)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "run", "Hi", "--server", server.url], env=environment(tmp_path),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout.read(4) == "Well"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130 and server.gone.wait(PATIENCE)
    assert kept(tmp_path) == [("Hi", "Well", "interrupted")]
