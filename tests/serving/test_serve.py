"""`localspec serve`, with requests as clients send them."""

import json
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from clocks import PATIENCE
from command import called, environment, localspec, sentence
from each import each
from golden import matching, wording
from serving.conftest import start

from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.events import Reporter
from localspec.serving.server import Server as RemoteServer
from localspec.serving.server_engine import ServerEngine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no sockets with a mode")


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")  # takes seconds of each process that collects tests
    return openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0, timeout=PATIENCE)


@pytest.mark.slow
def test_openais_own_client_gets_the_reply_that_run_gives(server, client, tmp_path):
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40}
    whole = client.chat.completions.create(**asked, temperature=0.8, seed=7)
    run = localspec(
        tmp_path, "run", "Tell me a story.", "-m", "demo", "-n", "40", "--temp", "0.8", "--seed", "7", "--json"
    )
    alone = json.loads(run.stdout)
    [choice] = whole.choices
    assert choice.message.content == alone["text"] and choice.finish_reason == alone["finish_reason"] == "length"
    assert whole.localspec["token_ids"] == alone["token_ids"] and whole.localspec["seed"] == 7
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (alone["prompt_tokens"], 40)
    assert len(whole.localspec["token_sources"]) == 40 and whole.localspec["exactness"] == alone["exactness"]
    pieces = [*client.chat.completions.create(**asked, temperature=0.8, seed=7, stream=True,
                                              stream_options={"include_usage": True})]  # fmt: skip
    said = [piece.choices[0] for piece in pieces if piece.choices]
    assert "".join(one.delta.content or "" for one in said) == alone["text"]
    assert said[0].delta.role == "assistant" and said[-1].finish_reason == "length"
    assert [one.finish_reason for one in said[:-1]] == [None] * (len(said) - 1)
    assert pieces[-1].choices == [] and pieces[-1].usage.completion_tokens == 40
    ids = [token for piece in pieces[1:-2] for token in piece.localspec["token_ids"]]
    assert ids == alone["token_ids"] and {piece.id for piece in pieces} == {pieces[0].id}


@pytest.mark.slow
def test_a_text_that_continues(server, client):
    whole = client.completions.create(model="demo", prompt="Once upon a", max_tokens=12, temperature=0)
    pieces = client.completions.create(model="demo", prompt="Once upon a", max_tokens=12, temperature=0, stream=True)
    assert whole.choices[0].text and "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    longer = client.completions.create(
        model="demo", prompt="Once upon a" + whole.choices[0].text, max_tokens=1, temperature=0
    )
    assert longer.usage.prompt_tokens_details.cached_tokens > 10, "what was read is not read again"


def test_stop_strings_end_a_reply_and_are_not_in_it(server):
    plain = server.chat("Tell me a story about a fox.", temperature=0, max_tokens=30).json
    text = plain["choices"][0]["message"]["content"]
    cut = text.split()[3]
    found = server.chat("Tell me a story about a fox.", temperature=0, max_tokens=30, stop=[cut]).json["choices"][0]
    assert found["finish_reason"] == "stop" and found["message"]["content"] == text[: text.index(cut)]


def test_models_are_listed_and_described_one_by_one(server, client):
    import openai

    assert {one.id for one in client.models.list()} >= {"demo", "demo-draft"}
    assert client.models.retrieve("demo").id == "demo" and client.models.retrieve("demo").created > 10**9
    other = server.chat("Hi", model="demo-draft", max_tokens=3).json
    assert other["model"] == other["localspec"]["model"] == "demo-draft"
    with pytest.raises(openai.NotFoundError, match="demo, demo-draft"):
        client.models.retrieve("gpt-7")
    with pytest.raises(openai.NotFoundError, match=matching("no_model_gpt_7")):
        client.chat.completions.create(model="gpt-7", messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b"\xff", 400, "not JSON"),
        ("/v1/chat/completions", b"[" * 100_000, 400, "nested"),
        ("/v1/chat/completions", b'{"seed": ' + b"9" * 10_000 + b"}", 400, "digits"),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
        ("/v1/chat/completions", b'{"\\udfff": [{}]}', 400, "surrogate"),
        ("/v1/chat/completions", b'{"messages": [[["\\ud800"]]]}', 400, "surrogate"),
        ("/v1/chat/completions", b'{"seed": 1, "model": "a", "model": "b"}', 400, "key 'model' twice"),
        ("/v1/completions", b'{"prompt": [{"\\ud800": 1, "\\ud800": 2}]}', 400, "key '\\ud800' twice"),
        ("/v1/chat/completions", {"n": 2, "messages": [{"role": "user", "content": "x"}]}, 400, "'n'"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 3000}]}, 400, "context"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": -1}, 400, "-1"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "/etc"}, 404, "/etc"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "high"}, 400,
         "no switch"),
        ("/v1/chat/completions", None, 405, "use POST"),
        ("/v1/embeddings", {"input": "x"}, 404, "embeddings"),
        ("/v2", None, 404, "no GET /v2 here"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_in_a_sentence(server, path, body, status, words):
    answer = server.ask(path, body)
    assert answer.status == status and words in answer.json["error"]["message"], answer.body
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": -1},
        {"temperature": 9999},
        {"seed": 1, "top_p": 2},
        {"min_p": 7},
        {"max_tokens": 9999},
        {"max_completion_tokens": 9999},
        {"reasoning_effort": "high"},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_what_is_wrong_names_the_field_that_was_sent(server, asked):
    answer = server.chat("Hi", **asked)
    assert (answer.status, answer.json["error"]["param"]) == (400, [*asked][-1])


def test_a_conversation_that_is_too_long_loses_nothing_in_silence(server):
    turns = [{"role": role, "content": "word " * 100} for _ in range(10) for role in ("user", "assistant")]
    answer = server.ask("/v1/chat/completions", {"messages": [*turns, {"role": "user", "content": "Hi"}]})
    assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded"


def test_a_client_may_let_the_oldest_turns_go_and_the_same_ones_stay_gone(server):
    turns = [{"role": role, "content": "word " * 60} for _ in range(12) for role in ("user", "assistant")]
    found = []
    for _ in range(3):
        asked = {"messages": [*turns, {"role": "user", "content": "Hi"}], "truncation": "auto", "max_tokens": 4}
        answer = server.ask("/v1/chat/completions", asked)
        assert answer.status == 200
        cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        found.append((answer.json["localspec"]["dropped_turns"], cached))
        turns += [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    assert len({dropped for dropped, _ in found}) == 1 and found[0][0] > 0
    assert all(cached > 100 for _, cached in found[1:])


def test_a_chat_over_this_server_drops_what_the_server_drops_also_after_a_restart(server, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_SERVER_KEY", server.key)
    turns = [{"role": role, "content": f"word {n} " * 30} for n in range(12) for role in ("user", "assistant")]
    found = []
    for _ in range(3):  # each in a new process
        engine = ServerEngine(RemoteServer.open(server.url), "demo", Reporter())
        for _ in range(2):
            turns.append({"role": "user", "content": "Hi"})
            first, *_, done = engine.chat(turns, engine.sampling(Settings()), Limits(4))
            assert first.dropped == done.statistics.dropped_turns
            found.append(first.dropped)
            turns.append({"role": "assistant", "content": "Yes."})
    assert len({*found}) == 1 and found[0] > 0


def test_clients_in_turns_continue_from_what_was_read(server):
    talks = [[{"role": "user", "content": f"{name}, tell me about the sea and the river. " * 4}] for name in "ABCD"]
    share = []
    for _ in range(3):
        for talk in talks:
            answer = server.ask("/v1/chat/completions", {"messages": talk, "max_tokens": 8, "temperature": 0}).json
            usage = answer["usage"]
            share.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
            talk += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            del talk[-2]["refusal"]
    assert min(share[4:]) > 0.8 and answer["localspec"]["memory"]["parked_bytes"] > 0


def test_an_unreachable_limit_is_refused_and_one_that_the_context_cuts_is_reported(server):
    asked = {"temperature": 1.5, "seed": 1}
    refused = server.chat("Hi", max_tokens=1025, **asked)
    error = refused.json["error"]
    assert (refused.status, error["param"], error["code"]) == (400, "max_tokens", None) and "1024" in error["message"]
    cut = server.chat("word " * 1018, max_tokens=1024, **asked).json  # with room for a token
    assert cut["choices"][0]["finish_reason"] == "length" and cut["usage"]["total_tokens"] == 1024


def test_without_the_key_or_from_a_page_nobody_gets_in(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for headers, status in (
        ({"Authorization": ""}, 401), ({"Authorization": "Bearer x"}, 401), ({"Authorization": f"Basic {server.key}"}, 401),
        ({"Authorization": f"Bearer {server.key}x"}, 401), ({"Host": "evil.example"}, 403),
        ({"Host": f"evil.example:{server.port}"}, 403), ({"Host": ""}, 403), ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403), ({"Origin": "file://localhost"}, 403), ({"Host": "localhost@evil.example"}, 403),
        ({"Host": f"127.0.0.1:{server.port}.evil.example"}, 403), ({"Host": f"me@127.0.0.1:{server.port}"}, 403),
        ({"Host": "localhost/evil"}, 403), ({"Origin": f"http://localhost:{server.port}.evil.example"}, 403),
        ({"Origin": "http://me@localhost"}, 403), ({"Origin": "http://localhost/"}, 403),
    ):  # fmt: skip
        answer = server.ask("/v1/chat/completions", body, headers=headers)
        assert answer.status == status and answer.json["error"]["message"], headers
    for path in ("/v1/models", "/metrics", "/nothing"):
        assert server.ask(path, headers={"Authorization": ""}).status == 401
    for headers in (
        {"Host": "localhost"},
        {"Origin": f"http://localhost:{server.port}"},
        {"Host": f"[::1]:{server.port}"},
        {"Host": "LocalHost"},
    ):
        assert server.ask("/v1/chat/completions", body, headers=headers).status == 200


def test_the_own_socket_needs_no_key_and_is_closed_to_others(server):
    assert server.ask("/v1/models", own=True).status == 200
    assert server.ask("/v1/models", own=True, headers={"Origin": "https://evil.example"}).status == 403
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700


def test_a_body_that_is_too_long_is_not_read(server):
    assert server.ask("/v1/chat/completions", b'"' + b"x" * (9 * 2**20)).status == 413, "and who sends it reads why"
    assert server.ask("/v1/models").status == 200


def test_a_body_in_chunks_that_turns_out_too_long_is_answered_before_its_connection_closes(server):
    """A connection that is reset while its client still sends loses the answer."""

    def pieces():
        for number in range(10 * 2**4):
            yield b" " * 2**16
            if number > 9 * 2**4:  # by this moment it was refused
                time.sleep(0.03)

    connection = server.connection()
    connection.request("POST", "/v1/chat/completions", pieces(), {"Authorization": f"Bearer {server.key}"})
    answer = connection.getresponse()
    assert answer.status == 413 and b"longer than 8 MiB" in answer.read()
    assert answer.getheader("Connection") == "close"
    connection.close()


def test_a_body_that_is_announced_too_long_is_refused_before_it_comes(server):
    """It is refused at once, not with another status after the time limit for a body."""
    for length in (9 * 2**20, 10**19):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {server.key}\r\n\r\n".encode())
            assert connection.recv(2**12).startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
def test_two_hundred_at_once_get_each_their_own_reply(server):
    """Half of them stream, and one in ten leaves in the middle."""
    prompts = [f"Tell me about the number {number}." for number in range(20)]
    asked = {"temperature": 0, "max_tokens": 16}
    alone = [server.chat(prompt, **asked).json["choices"][0]["message"]["content"] for prompt in prompts]
    assert len(set(alone)) > 5

    def one(number: int) -> bool:
        prompt, expected = prompts[number % 20], alone[number % 20]
        if number % 10 == 3:
            body = json.dumps({"messages": [{"role": "user", "content": prompt}], "stream": True}).encode()
            connection = server.connection()
            connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {server.key}"})
            connection.getresponse().read(1)
            connection.close()
            return True
        if number % 2:
            pieces = server.chat(prompt, **asked, stream=True).pieces
            return "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == expected
        return server.chat(prompt, **asked, user=str(number % 7)).json["choices"][0]["message"]["content"] == expected

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))


def test_who_reads_slowly_holds_up_nobody_and_who_leaves_is_not_answered(server):
    body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True, "temperature": 1}
    slow = server.connection()
    slow.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {server.key}"})
    assert server.chat("Hi", max_tokens=4).status == 200  # while nobody reads the other reply
    first = slow.getresponse()
    assert first.status == 200 and b"[DONE]" in first.read()
    before = tokens(server)
    gone = server.connection()
    gone.request(
        "POST", "/v1/chat/completions", json.dumps({**body, "stream": False}), {"Authorization": f"Bearer {server.key}"}
    )
    gone.close()
    assert server.chat("Hi", max_tokens=1).status == 200
    assert tokens(server) - before < 900, "a reply that nobody waits for ends early"


def tokens(server) -> int:
    lines = server.ask("/metrics").body.decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("localspec_completion_tokens_total ")))


def test_figures_for_prometheus(server):
    before = tokens(server)
    server.chat("Hi", max_tokens=3, temperature=0)
    text = server.ask("/metrics").body.decode()
    assert tokens(server) - before in (1, 2, 3) and 'localspec_requests_total{status="200"}' in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert names == [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]


@pytest.mark.slow
def test_what_is_no_http_costs_nobody_a_word(server):
    for sent in (b"\x16\x03\x01" + bytes(range(256)), b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(sent)
    assert server.ask("/v1/models").status == 200  # and at the end of the module nothing may have been printed


# -- how it begins and ends ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_key_is_made_once_and_closed_to_others(servers, tmp_path):
    one = servers(LOCALSPEC_SERVE_KEY="")
    key = tmp_path / "data" / "serving.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(one.key) > 40
    assert one.ask("/v1/models").status == 200
    assert one.stop() == 0 and not one.socket.exists()
    again = servers(LOCALSPEC_SERVE_KEY="")
    assert again.key == one.key


@pytest.mark.slow
def test_a_model_that_rests_is_let_go_and_comes_again(servers):
    one = servers("--keep-alive", "1s")

    def loaded() -> str:
        return one.ask("/metrics").body.decode().rpartition("localspec_loaded_models ")[2].strip()

    assert one.chat("Hi", max_tokens=1).status == 200
    until = time.monotonic() + PATIENCE
    while loaded() != "0":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert one.chat("Hi", max_tokens=1).status == 200


@pytest.mark.slow
def test_a_second_one_is_refused_and_one_that_was_killed_stands_in_nobodys_way(servers, tmp_path):
    one = servers()
    second = localspec(tmp_path, "serve", "-m", "demo")
    assert second.returncode == 1 and f"stop process {one.process.pid} first" in second.stderr
    assert one.ask("/v1/models", own=True).status == 200
    one.process.kill()
    one.process.wait()
    assert one.socket.exists()
    assert servers().ask("/v1/models", own=True).status == 200


@pytest.mark.slow
def test_what_lies_at_the_sockets_path_and_is_no_socket_stays(tmp_path):
    (tmp_path / "state").mkdir()
    place = tmp_path / "state" / "serve.sock"
    place.write_text("mine")
    found = localspec(tmp_path, "serve", "-m", "demo")
    assert found.returncode == 1 and f"{place} is not a socket" in sentence(found) and place.read_text() == "mine"
    kept = localspec(tmp_path, "run", "Hi", "-m", "demo", "-n", "3", "--keep", "1m")
    assert kept.returncode == 0 and kept.stdout and place.read_text() == "mine"
    assert wording("server_stays_behind_process", place=place) in kept.stderr


@pytest.mark.slow
def test_a_reply_under_way_does_not_hold_up_the_end(servers):
    one = servers()
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "temperature": 1.5}
    connections = [one.connection() for _ in range(5)]
    for connection in connections:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {one.key}"})
    began = time.monotonic()
    assert one.stop() == 0 and time.monotonic() - began < PATIENCE / 2


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 0), (signal.SIGTERM, 0)])
def test_however_it_is_ended_nothing_is_left(servers, sent, code):
    one = servers()
    one.process.send_signal(sent)
    assert one.process.wait(PATIENCE) == code and not one.socket.exists()
    assert one.process.stderr.read() in ("", "localspec: Interrupted.\n")


@pytest.mark.slow
@each(
    "arguments, code, words",
    [
        (["--port", "99999"], 2, "65535"),
        (["--keep-alive", "soon"], 2, "30s, 10m or 2h"),
        (["-m", "no-such"], 3, "no-such"),
        (["-m", "demo", "--drafter", "nope"], 2, "no drafter 'nope'"),
        (["-m", "demo", "--device", "cuda:99"], 2, "no device 'cuda:99'"),
        (["-m", "demo", "--context", "999999999"], 2, "more than the 1024"),
        (["-m", "demo", "--device", "cpu", "--quantize", "nf4"], 2, wording("quantize_nf4_cannot_be_had")),
        (["--temp", "1"], 2, "No such option"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, arguments, code, words):
    found = called(tmp_path, "serve", *arguments)
    assert found.returncode == code and words in found.stderr and found.stdout == ""


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = localspec(tmp_path, "serve", "-m", "demo", "--port", str(taken.getsockname()[1]))
    assert found.returncode == 2 and wording("cannot_be_used") in found.stderr


@pytest.mark.slow
def test_a_key_that_could_be_guessed(tmp_path):
    found = localspec(tmp_path, "serve", "-m", "demo", "--port", "0", LOCALSPEC_SERVE_KEY="short")
    assert found.returncode == 2 and "16 or more" in found.stderr and "short" not in found.stderr.replace("shorter", "")


@pytest.mark.slow
def test_nothing_that_was_asked_is_kept(servers, tmp_path):
    one = servers()
    assert one.chat("A secret that nobody wrote before: xyzzy-plugh", max_tokens=4).status == 200
    one.stop()
    found = [file for file in tmp_path.rglob("*") if file.is_file() and b"xyzzy-plugh" in file.read_bytes()]
    assert found == []


@pytest.mark.slow
def test_where_there_is_no_torch_it_answers(tmp_path):
    code = "import sys; from localspec.cli.main import main; import localspec.serving.app, localspec.cli.serve; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=True, timeout=PATIENCE)


@pytest.mark.slow
def test_where_the_engines_cannot_continue_the_server_says_so_and_ends(tmp_path):
    """The waiting client gets an error instead of waiting forever."""
    code = (
        "from localspec.serving import loaded\n"
        "def fails(device): raise RuntimeError('CUDA error: unspecified launch failure')\n"
        "loaded.give_back = fails\n"
        "import sys; from localspec.cli.main import main; sys.exit(main())"
    )
    one = start(tmp_path, "--keep-alive", "1s", program=("-c", code))
    assert one.chat("Hi", max_tokens=1).status == 200
    assert one.process.wait(PATIENCE) == 1 and not one.socket.exists()
    last = one.process.stderr.read().splitlines()[-1]
    assert "(RuntimeError: CUDA error: unspecified launch failure)" in last and wording("start_it_again") in last
