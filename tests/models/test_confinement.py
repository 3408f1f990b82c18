"""What models bring along that computes does so in a process of its own: it can be stopped, and can die alone."""

import ast
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import environment
from golden import matching, wording
from panicking import PANICS, panicking
from scripted_models import TEMPLATE, scripted_model

from localspec.errors import LocalspecError
from localspec.models import chat_tokenizer, tokenizer_trial
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.confinement import Confinement, NoProcess
from localspec.models.tokenizer import Tokenizer
from localspec.paths import Paths

posix = pytest.mark.skipif(os.name != "posix", reason="clocks of computing as on POSIX")
ASKED = [{"role": "user", "content": "Hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
WORKS = {
    "template": "{{ messages[0].content }}",
    "messages": ASKED,
    "waits": True,
    "tokens": {},
    "switches": {},
    "most": 99,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scripted_model(tmp_path / "model", [b"Hel", b"lo"]).path


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch):
    """A process for this test alone, which is given little time."""
    confinement = Confinement()
    ask = confinement.ask
    monkeypatch.setattr(confinement, "ask", lambda request, seconds=0.3: ask(request, min(seconds, 0.3)))
    monkeypatch.setattr(chat_tokenizer, "confinement", confinement)
    yield confinement
    confinement.end()


def rendered(path: Path, template: str) -> str:
    (path / "chat_template.jinja").write_text(template)
    return ChatTokenizer(Tokenizer.open(path)).render(ASKED)


@pytest.mark.slow
@posix
def test_a_template_without_end_is_stopped_and_not_asked_again(own, model):
    (model / "chat_template.jinja").write_text(ENDLESS)
    chat = ChatTokenizer(Tokenizer.open(model))
    with pytest.raises(LocalspecError, match=matching("chat_template_cannot_used_takes")):
        chat.render(ASKED)
    own.ask = pytest.fail
    with pytest.raises(LocalspecError, match=matching("it_takes_too_long")):
        chat.render(ASKED)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(2000) %}" + "x" * 10_000 + "{% endfor %}", wording("a_text_of_20000000_characters")),
        ("{{ raise_exception('no\\nway') }}", "no"),
        ("{% for %}", "Expected"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ '\\ud800' }}", "halves of characters"),
    ],
)
def test_a_template_that_fails_says_why(model, template, said):
    with pytest.raises(LocalspecError, match=rf"chat template cannot be used \(.*{said}.*\); fetch"):
        rendered(model, template)


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps the limit on Linux")
@pytest.mark.parametrize("template", ["{{ range(99999)|join('x' * 1000000) }}", "{{ 'x' * 5 * 2**30 }}"])
def test_a_template_of_more_memory_than_there_is(model, template):
    with pytest.raises(LocalspecError, match="MemoryError"):
        rendered(model, template)


@pytest.mark.parametrize("said", ["{{ raise_exception('no' * 2**20) }}", "{{ messages." + "a" * 2**20 + ".b }}"])
def test_what_a_template_says_when_it_fails_is_cut_before_it_is_sent(said):
    answer = chat_tokenizer.confinement.ask({**WORKS, "template": said})
    assert answer["error"] and len(answer["error"]) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False])
def test_a_process_that_was_killed_is_begun_again_without_a_word(model, monkeypatch, seen):
    """Such as by a system without memory, before it is asked or while; a chat or a server goes on with its model."""
    confinement = Confinement()
    monkeypatch.setattr(chat_tokenizer, "confinement", confinement)
    chat = ChatTokenizer(Tokenizer.open(model))
    said = chat.render(ASKED)
    first = confinement._process
    first.kill()
    first.wait()
    if not seen:
        monkeypatch.setattr(first, "poll", lambda: None)
    assert chat.render(ASKED) == said and confinement._process is not first
    confinement.end()


@pytest.mark.slow
@posix
def test_one_that_cannot_be_started_is_no_fault_of_the_template(model, monkeypatch):
    confinement = Confinement()
    monkeypatch.setattr(chat_tokenizer, "confinement", confinement)
    chat = ChatTokenizer(Tokenizer.open(model))
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(
            NoProcess,
            match=rf"{matching('no_process_can_be_started')} .* \(No such file or directory\): /nowhere/python",
        ):
            chat.render(ASKED)
    assert "Hi" in chat.render(ASKED)
    confinement.end()


@posix
def test_a_python_that_may_not_be_run_is_named_and_no_limit(own, tmp_path, monkeypatch):
    (tmp_path / "python").touch(0o600)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NoProcess, match=r"\(Permission denied\)") as refused:
        own.start()
    assert str(tmp_path / "python") in str(refused.value) and "ulimit" not in str(refused.value)


@pytest.mark.parametrize(
    ("number", "does"),
    [
        (errno.EAGAIN, wording("close_other_programs_raise_limit")),
        (errno.EMFILE, wording("raise_limit_shell_ulimit_n_1024")),
        (errno.ENFILE, "close other programs."),
        (errno.ENOMEM, "close other programs."),
    ],
)
def test_each_limit_is_told_as_itself(own, monkeypatch, number, does):
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(NoProcess) as told:
        own.start()
    assert str(told.value).endswith(f"({os.strerror(number)}); {does}")


def test_an_answer_that_nobody_waits_for_is_not_taken_for_the_next(own):
    own.start()

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    process = own._process
    reader = type("Reader", (), {"readline": staticmethod(interrupted), "close": process.stdout.close})()
    process.stdout = reader
    with pytest.raises(KeyboardInterrupt):
        own.ask(WORKS)
    assert own._process is None and process.poll() is not None


@pytest.mark.slow
def test_threads_take_turns(own):
    answers: list[str] = []

    def ask(number: int) -> None:
        for _ in range(20):
            found = own.ask(WORKS | {"messages": [{"role": "user", "content": str(number)}]}, 0.3)["text"]
            answers.append("" if found == str(number) else found)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [""] * 80


@posix
def test_it_ends_with_the_process_that_began_it(tmp_path):
    code = "from localspec.models.confinement import confinement as c; c.start(); print(c._process.pid, flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL
    child = int(result.stdout)
    from clocks import until

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{child}/stat")
        return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    until(gone)


def test_a_prompt_that_is_left_out_is_noticed(model):
    assert ChatTokenizer(Tokenizer.open(model)).keeps_prompts
    for template, keeps in (
        ("hello", False),
        (TEMPLATE, True),
        ("{{ messages[0]['content'] | trim }}", True),
        ("{% for %}", True),
    ):
        (model / "chat_template.jinja").write_text(template)
        assert ChatTokenizer(Tokenizer.open(model)).keeps_prompts == keeps


# -- tokenizers --------------------------------------------------------------------------------------------------------


def changed(path: Path, **parts: object) -> Path:
    file = path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    return path


@pytest.fixture
def unseen(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tokenizer_trial, "_tried", set())
    return Paths(fresh_home).tokenizers


@pytest.mark.slow
@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Precompiled", "precompiled_charsmap": ""},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAEAAAA="},
        {"type": "Precompiled", "precompiled_charsmap": "//////////8="},  # which aborts
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    ],
)
def test_tokenizers_that_panic_or_abort(unseen, model, normalizer, capfd):
    with pytest.raises(LocalspecError, match=f"{matching('tokenizer_in')} .*{matching('model_cannot_be')}"):
        Tokenizer.open(changed(model, normalizer=normalizer)).encode("abc")
    assert not unseen.exists() and capfd.readouterr() == ("", "")


def test_a_regular_expression_that_searches_without_end_is_found_by_the_trial(unseen, model, capfd):
    """What the library prints of its panic would come before the sentence, were it the first prompt that finds it."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    endless = {**split, "pattern": {"Regex": "(?=((?:zq|z|q)+)+$)((z+)+)+#"}}
    with pytest.raises(
        LocalspecError, match=f"{matching('tokenizer_in')} .*{matching('model_cannot_be_used')} .*retry-limit-in-match"
    ):
        Tokenizer.open(changed(model, pre_tokenizer={"type": "Sequence", "pretokenizers": [endless]}))
    assert not unseen.exists() and capfd.readouterr() == ("", "")
    common = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
    Tokenizer.open(changed(model, pre_tokenizer={**split, "pattern": {"Regex": common}}))
    assert len(list(unseen.iterdir())) == 1


REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}


@pytest.mark.parametrize(
    ("step", "good"),
    [
        (REPLACE, True),
        ({**REPLACE, "content": "  "}, False),
        ({**REPLACE, "pattern": {"Regex": "a*[bc]"}}, False),
    ],
)
def test_text_is_made_of_ids_by_steps_that_end(unseen, model, step, good):
    """Nothing could interrupt them: the library keeps the interpreter meanwhile."""
    decoder = {"type": "Sequence", "decoders": [step, {"type": "Fuse"}]}
    if good:
        assert Tokenizer.open(changed(model, decoder=decoder))
    else:
        with pytest.raises(LocalspecError, match=matching("makes_text_ids_expression_makes")):
            Tokenizer.open(changed(model, decoder=decoder))
    assert unseen.exists() == good


@pytest.mark.slow
def test_a_panic_after_the_trial_is_a_sentence(unseen, model, monkeypatch):
    monkeypatch.setattr("localspec.models.tokenizer.try_out", lambda *_: None)
    with pytest.raises(LocalspecError, match=f"{matching('tokenizer_in')} .*{matching('model_cannot_be_read')}"):
        Tokenizer.open(
            changed(model, normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "x"})
        ).encode("abc")


@pytest.mark.slow
def test_a_panic_on_a_text_that_the_trial_does_not_have_is_a_sentence_each_time(unseen, model, tmp_path):
    tokenizer = Tokenizer.open(panicking(model, tmp_path / "panicking"))
    for _ in range(2):
        with pytest.raises(
            LocalspecError,
            match=f"{matching('tokenizer_in')} .*{matching('panicking_cannot_be_read')} .*retry-limit-in-match",
        ):
            tokenizer.encode(PANICS)
        assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


@pytest.mark.slow
def test_nothing_else_calls_what_may_panic():
    """Text and ids go through Tokenizer, whatever is done with them."""
    calls, package = set(), Path(tokenizer_trial.__file__).parents[1]
    for root in (package, package.parent / "tui" / "localspec_tui"):
        for file in root.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Attribute) and re.fullmatch(r"(en|de)code\w*", node.attr):
                    owner = ast.unparse(node.value)
                    calls |= {file.name} if owner.endswith("backend") else set()
                named = node.module if isinstance(node, ast.ImportFrom) else None
                if named == "tokenizers" and any(one.name == "Tokenizer" for one in node.names):
                    calls.add(file.name)
    assert calls == {"tokenizer.py", "confined.py"}  # the second is the trial's


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_a_word_that_a_tokenizer_does_not_know(unseen, model, kind):
    parts = {
        "type": kind,
        "vocab": {"a": 0},
        "unk_token": "zz",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
    }
    tokenizer = Tokenizer.open(changed(model, model=parts))
    with pytest.raises(LocalspecError, match=r"Missing \[UNK\] token"):
        tokenizer.encode("unheard of")


def test_ctrl_c_stays_what_it_is(model):
    tokenizer = Tokenizer.open(model)

    class Interrupted:
        def encode_batch(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    tokenizer.backend = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("a")


def test_a_tokenizer_is_tried_once(unseen, model, monkeypatch):
    asked: list[object] = []
    ask = tokenizer_trial.confinement.ask
    monkeypatch.setattr(tokenizer_trial.confinement, "ask", lambda *given: (asked.append(given), ask(*given))[1])
    Tokenizer.open(model)
    [mark] = unseen.iterdir()
    assert len(asked) == 1 and mark.stat().st_size == 0
    if os.name == "posix":
        assert (mark.stat().st_mode & 0o777, unseen.stat().st_mode & 0o777) == (0o600, 0o700)
    Tokenizer.open(model)
    tokenizer_trial._tried.clear()  # as in another process
    Tokenizer.open(model)
    assert len(asked) == 1
    changed(model, normalizer={"type": "NFC"})
    Tokenizer.open(model)
    assert len(asked) == 2


def test_what_comes_with_localspec_is_not_tried(unseen, monkeypatch):
    import localspec

    monkeypatch.setattr(tokenizer_trial.confinement, "ask", pytest.fail)
    Tokenizer.open(Path(localspec.__file__).parent / "demo")
    assert not unseen.exists()
