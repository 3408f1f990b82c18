"""`localspec run` while the same user runs `localspec serve`: the server answers, and the reply is the same."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from clocks import PATIENCE, until
from command import called, environment
from golden import matching, wording

from localspec import Sampling
from localspec.cli.console import Progress
from localspec.engine.engine import Engine
from localspec.serving import over_socket
from localspec.serving.socket_requests import THIS, Differs, ReplyRequest
from localspec.store.store import Store

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no sockets with a mode"),
    pytest.mark.usefixtures("timed_briefly"),
]
STORY = ("run", "Tell me a story.", "-m", "demo", "-n", "60", "--temp", "0.8", "--seed", "7")


def told(home, *arguments, **variables):
    """Return the answer of `run --json`."""
    found = called(home, *arguments, "--json", **variables)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def last_turn(home):
    with Store.open(home / "data" / "localspec.db", pytest.fail) as store:
        saved = store.history.read(store.history.latest())
        return saved.info.id, saved.turns[-1]


@pytest.mark.slow
def test_the_same_reply_the_same_history_and_no_engine_here(server, monkeypatch):
    alone = told(server.home, *STORY, "--server", "off")
    kept_alone = last_turn(server.home)[1]
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "open", lambda *_, **__: pytest.fail("an engine was loaded here"))
        warm = told(server.home, *STORY)
        plain = called(server.home, *STORY)
        lines = [json.loads(line) for line in called(server.home, *STORY, "--stream-json").stdout.splitlines()]
    assert (alone["engine"], warm["engine"]) == ("native", "server")
    same = [name for name in alone if name not in ("engine", "drafter", "timings", "memory", "speculation")]
    assert {name: warm[name] for name in same} == {name: alone[name] for name in same}
    assert set(warm) == set(alone) and set(warm["speculation"]) == set(alone["speculation"])
    assert plain.stdout.rstrip("\n") == alone["text"] and plain.returncode == 0
    assert [token for line in lines[1:-1] for token in line["token_ids"]] == alone["token_ids"]
    assert lines[0]["seed"] == 7 and lines[-1]["text"] == alone["text"]
    _, kept = last_turn(server.home)
    assert (kept.prompt, kept.reply, kept.reason) == (kept_alone.prompt, kept_alone.reply, kept_alone.reason)
    assert set(kept.figures) == set(kept_alone.figures) and kept.figures["seed"] == 7


@pytest.mark.slow
def test_nothing_is_called_loading_that_is_loaded(server, monkeypatch):
    called(server.home, *STORY)
    shown = []
    monkeypatch.setattr(Progress, "show", lambda _, words: shown.append(words))
    monkeypatch.setattr(over_socket, "LOOK", PATIENCE)  # otherwise a slow server seems to be loading
    called(server.home, *STORY)
    assert not [words for words in shown if "loading" in words]
    called(server.home, *STORY, "--server", "off")
    assert "loading demo" in shown


def test_a_conversation_continues_and_loses_its_oldest_turns_as_it_would_here(server):
    first = told(server.home, "run", "One. " * 40, "-m", "demo", "-n", "4", "--temp", "0")
    for _ in range(3):
        again = told(server.home, "run", "More. " * 150, "--continue", "-n", "4", "--temp", "0")
    found = called(server.home, "run", "More. " * 150, "--continue", "-n", "4", "--temp", "0")
    assert wording("no_longer_reads_the_oldest") in found.stderr and first["engine"] == again["engine"] == "server"


@pytest.mark.slow
def test_phrases_are_learned_once_and_belong_to_their_conversation(servers, tmp_path):
    """The server answers if the flags are those that it was started with."""
    servers("--drafter", "phrases", "--draft-max", "4")
    asked = ("run", "Count from one to twenty, twice.", "-m", "demo", "-n", "80", "--temp", "0", "--seed", "1")
    found = told(tmp_path, *asked, "--drafter", "phrases", "--draft-max", "4")
    assert (found["engine"], found["drafter"]) == ("server", "phrases") and found["speculation"]["steps"] < 80
    number, _ = last_turn(tmp_path)
    with Store.open(tmp_path / "data" / "localspec.db", pytest.fail) as store:
        [pool] = store.phrases.pools()
        kept = [*store.phrases.export(pool.pool)]
        assert kept and {phrase.conversation for phrase in kept} == {number}
    told(tmp_path, "run", "Hi", "-m", "demo", "-n", "3")
    with Store.open(tmp_path / "data" / "localspec.db", pytest.fail) as store:
        assert len([*store.phrases.export(pool.pool)]) >= len(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["--drafter", "lookahead"], ["--draft-max", "3"], ["--quantize", "none"], ["--threads", "1"], ["--context", "256"], ["--pool", "off"], ["--no-log"],
     ["--exact"], ["--dtype", "fp32"], ["--accept", "typical", "--temp", "1"], ["--server", "off"]],
)  # fmt: skip
def test_flags_that_differ_are_obeyed_in_a_process_of_its_own(server, flags):
    found = told(server.home, "run", "Hi", "-m", "demo", "-n", "3", *flags)
    assert found["engine"] != "server"


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [True, False])
def test_flags_that_ask_for_what_it_took_by_itself_are_no_others(server, servers, loaded):
    """Even if it has not loaded the model yet, and would choose the same."""
    taken = told(server.home, "run", "Hi", "-m", "demo", "-n", "3")
    flags = [part for name in ("device", "dtype", "quantize") for part in (f"--{name}", taken[name])]
    home = server.home if loaded else servers().home
    found = told(home, "run", "Hi", "-m", "demo", "-n", "3", *flags, "--context", "1024")
    assert taken["engine"] == found["engine"] == "server"


@pytest.mark.slow
def test_a_drafter_that_was_named_and_is_another_one_by_now(server):
    """A server that may choose then chooses again."""
    with pytest.raises(Differs, match=matching("drafts_with_phrases_by_now")):
        ReplyRequest.of(
            {"model": "demo", "path": "", "messages": [], "sampling": vars(Sampling()), "max_tokens": 1, "stop": [],
             "think": None, "name": "x", "kept": False, "server": THIS, "drafter": "s3d"}
        ).events(SimpleNamespace(choice=SimpleNamespace(drafter="phrases")))  # fmt: skip


@pytest.mark.slow
def test_mistakes_are_the_same_sentences(server):
    for flags in (["--think"], ["--temp", "0", "--top-p", "0.5"], ["--accept", "rejection", "--temp", "0"]):
        one = called(server.home, "run", "Hi", "-m", "demo", *flags)
        other = called(server.home, "run", "Hi", "-m", "demo", *flags, "--server", "off")
        assert (one.returncode, one.stderr, one.stdout) == (other.returncode, other.stderr, other.stdout) != (0, "", "")
    too_long = called(server.home, "run", "word " * 3000, "-m", "demo")
    assert too_long.returncode == 2 and "context holds" in too_long.stderr


@pytest.mark.slow
def test_a_model_in_a_directory_is_loaded_here(server, tmp_path):
    import shutil

    from localspec.models import registry

    shutil.copytree(registry.resolve("demo").path, tmp_path / "mine")
    assert told(server.home, "run", "Hi", "-m", str(tmp_path / "mine"), "-n", "3")["engine"] == "native"


@pytest.mark.slow
def test_ctrl_c_keeps_what_came(server):
    """The figures are those of the tokens that were seen."""
    process = subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", "Tell me a story.", "-m", "demo", "--temp", "1.5", "--stream-json"],
        env=environment(server.home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()  # not `communicate`, which ignores the stream's buffer
    assert process.wait(PATIENCE) in (0, 130), process.stderr.read()  # it may have ended just then
    start, *steps, end = map(json.loads, filter(None, [*lines, *rest.splitlines()]))  # a reply may be short
    assert start["engine"] == end["engine"] == "server"
    assert end["token_ids"] == [token for step in steps for token in step["token_ids"]]
    assert end["text"] == "".join(step["text"] for step in steps)
    assert end["completion_tokens"] == sum(end["speculation"]["sources"].values()) == len(end["token_ids"])
    reason = last_turn(server.home)[1].reason
    assert reason == end["finish_reason"] and (reason == "interrupted") == (process.returncode == 130)


@pytest.mark.slow
def test_without_torch_tokenizers_or_an_http_library(server):
    code = (
        "import sys; from localspec.cli.main import main; assert main(['run', 'Hi', '-m', 'demo', '-n', '3']) == 0; "
        "heavy = {'torch', 'numpy', 'tokenizers', 'transformers', 'http.client', 'httpx2', 'ssl', 'jinja2'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(server.home), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@contextmanager
def dying(home, real, lines):
    """Yield a socket that passes everything on to the server at `real`, and dies after `lines` lines of a reply."""
    place = home / "state" / "serve.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(place))
    listening.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, socket.socket(socket.AF_UNIX) as behind:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += connection.recv(2**16)
                head, _, body = request.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                while len(body) < length:
                    body += connection.recv(2**16)
                behind.connect(str(real))
                behind.sendall(head + b"\r\n\r\n" + body)
                answer = b""
                while piece := behind.recv(2**16):
                    answer += piece
                if b"/localspec/reply " in head:
                    whole = answer.split(b"\n")  # about six of the head's; the last ones tell the end
                    answer = b"\n".join(whole[: min(6 + lines, len(whole) - 6)]) + b"\n"
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        place.unlink()


@pytest.mark.slow
def test_a_server_that_dies_before_the_text_costs_nothing(server, tmp_path):
    (tmp_path / "state").mkdir()
    alone = told(tmp_path, *STORY, "--server", "off")
    with dying(tmp_path, server.socket, -6):
        found = told(tmp_path, *STORY)
    assert (found["engine"], found["text"], found["token_ids"]) == ("native", alone["text"], alone["token_ids"])
    assert found["timings"]["load_s"] > 0 and last_turn(tmp_path)[1].reply == alone["text"]


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_breaks_off_the_reply(server, tmp_path):
    (tmp_path / "state").mkdir()
    with dying(tmp_path, server.socket, 20):
        found = called(tmp_path, *STORY)
    assert found.returncode == 1 and wording("localspec_serve_ended_in_the_middle") in found.stderr
    assert found.stdout.strip() and last_turn(tmp_path)[1].reply.startswith(found.stdout.strip())


@pytest.mark.slow
def test_a_socket_that_nobody_listens_at(tmp_path):
    (tmp_path / "state").mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "state" / "serve.sock"))
    assert told(tmp_path, "run", "Hi", "-m", "demo", "-n", "3")["engine"] == "native"
    left.close()
    assert told(tmp_path, "run", "Hi", "-m", "demo", "-n", "3")["engine"] == "native"


@pytest.mark.slow
def test_a_socket_that_says_nothing_sensible(tmp_path):
    (tmp_path / "state").mkdir()
    for said in (
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}\n",
        b"HTTP/1.1 500 No\r\n\r\n",
    ):
        place = tmp_path / "state" / "serve.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place))
            listening.listen()

            def answer(listening=listening, said=said) -> None:
                connection, _ = listening.accept()
                connection.recv(2**16)
                connection.sendall(said)
                connection.close()

            threading.Thread(target=answer, daemon=True).start()
            assert told(tmp_path, "run", "Hi", "-m", "demo", "-n", "3")["engine"] == "native"
        place.unlink()


@pytest.mark.slow
def test_the_paths_of_own_commands_are_closed_to_the_port(server):
    for path in ("/localspec/open", "/localspec/reply", "/localspec/replies/x"):
        assert server.ask(path, {}).status == 404
        assert server.ask(path, {"version": 7}, own=True).status in (200, 400)
    assert server.ask("/localspec/open", b"{", own=True).status == 400
    assert server.ask("/localspec/open", {"settings": {"device": 7}, "origins": {}}, own=True).status == 400


@pytest.mark.slow
def test_one_that_is_left_behind_answers_and_ends_by_itself(tmp_path):
    first = told(tmp_path, *STORY, "--keep", "3s", "--drafter", "phrases")
    again = told(tmp_path, *STORY, "--drafter", "phrases")
    assert first["engine"] == again["engine"] == "server" and first["text"] == again["text"]
    assert again["timings"]["load_s"] < first["timings"]["load_s"]
    other = called(tmp_path, *STORY, "--keep", "3s", "--drafter", "none")
    assert other.returncode == 2 and re.search(
        r"another value of drafter\. .* stop process \d+ first \(kill \d+\)", other.stderr
    )
    assert not (tmp_path / "data" / "serving.key").exists()  # a limit that no user would set
    place = tmp_path / "state" / "serve.sock"
    until(lambda: not place.exists())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--keep", "soon"], "30s, 10m or 2h"),
        (["--keep", "1m", "--server", "off"], wording("keep_1m_has_no_effect")),
        (["--keep", "1m", "--server", "http://127.0.0.1:9"], wording("keep_1m_has_no_effect")),
    ],
)
def test_keep_without_effect(tmp_path, flags, words):
    found = called(tmp_path, "run", "Hi", *flags)
    assert found.returncode == 2 and words in found.stderr and found.stdout == ""
