"""Text over HTTP and from `run` is unchanged; only code that draws it makes it safe for a terminal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import called, localspec
from golden import wording
from scripted_models import FRAME, TEMPLATE, scripted_model

SAID = [b"a\x1b[31m", b"\r\n", "\u202eb\u2066 ".encode(), b"\x07\x00", "\u00e9".encode()]
UNSYSTEM = TEMPLATE.replace("in messages %}", "in messages if message.role != 'system' %}")
SEVERE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('take turns, please') }}{% endif %}{% endfor %}" + TEMPLATE
)


@pytest.fixture
def serving(servers: Any, tmp_path: Path) -> Callable[..., Any]:
    """serving(reply, template): a server over a scripted model."""

    def start(reply: list[bytes], template: str = TEMPLATE) -> Any:
        path = scripted_model(tmp_path / "model", reply, template=template).path
        return servers("-m", str(path))

    return start


@pytest.mark.slow
def test_the_api_sends_what_the_model_wrote_and_a_terminal_gets_safe_text(serving: Any, tmp_path: Path) -> None:
    server, text = serving(SAID), b"".join(SAID).decode()
    whole = server.chat("Hi", temperature=0).json["choices"][0]["message"]["content"]
    assert whole == text
    pieces = server.chat("Hi", temperature=0, stream=True).pieces
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == text
    found = localspec(tmp_path, "run", "-m", str(tmp_path / "model"), "--json", "Hi")
    assert json.loads(found.stdout)["text"] == text
    drawn = localspec(tmp_path, "run", "-m", str(tmp_path / "model"), "Hi").stdout
    assert not {*"\x1b\x07\x00\r\u202e\u2066"} & {*drawn} and drawn.startswith("a␛[31m\nb ")


@pytest.mark.slow
def test_a_limit_within_a_character_removes_all_of_it(tmp_path: Path) -> None:
    face = "\U0001f642".encode()
    path = scripted_model(tmp_path / "model", [b"a", face[:2], face[2:], b"b", face[:3]]).path

    def reply(*flags: str) -> Any:
        return json.loads(called(tmp_path, "run", "-m", str(path), "--json", *flags, "Hi").stdout)

    for limit, text in (("1", "a"), ("2", "a"), ("3", "a\U0001f642"), ("4", "a\U0001f642b"), ("5", "a\U0001f642b")):
        for drafter in ("none", "auto"):
            found = reply("-n", limit, "--drafter", drafter)
            assert (found["text"], found["completion_tokens"]) == (text, int(limit))
            assert found["finish_reason"] == "length"
    assert reply()["text"] == "a\U0001f642b\ufffd", "the model itself left it so"


@pytest.mark.slow
def test_a_system_prompt_reaches_the_model_even_if_its_template_has_no_place_for_it(serving: Any) -> None:
    server = serving([b"a"], UNSYSTEM)
    asked = [{"role": "system", "content": "Brief"}, {"role": "user", "content": "Hi"}]
    answer = server.ask("/v1/chat/completions", {"messages": asked})
    assert answer.json["usage"]["prompt_tokens"] == FRAME + len("Brief\n\nHi")
    later = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *asked]
    answer = server.ask("/v1/chat/completions", {"messages": later})
    assert answer.json["usage"]["prompt_tokens"] == FRAME + 4 + len("ab") + len("Brief\n\nHi")


@pytest.mark.slow
def test_what_a_template_refuses_is_the_clients_mistake_in_the_templates_words(serving: Any) -> None:
    server, hi = serving([b"a"], SEVERE), {"role": "user", "content": "Hi"}
    for stream in (False, True):
        refused = server.ask("/v1/chat/completions", {"messages": [hi, hi], "stream": stream})
        assert refused.status == 400 and "take turns, please" in refused.json["error"]["message"]
        assert wording("fetch_the_model_again") not in refused.json["error"]["message"]
        assert (refused.json["error"]["type"], refused.json["error"]["param"]) == ("invalid_request_error", "messages")
    assert server.ask("/v1/chat/completions", {"messages": [hi]}).status == 200
