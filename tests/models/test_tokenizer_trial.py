"""A tokenizer and its template are tried in a child process, which they may end, before they are used here."""

import ast
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from each import each
from golden import matching, wording
from panicking import PANICS, panicking
from scripted_models import scripted_model

from localspec.errors import LocalspecError
from localspec.models import tokenizer_trial
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.tokenizer import Tokenizer
from localspec.paths import Paths

ASKED = [{"role": "user", "content": "Hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scripted_model(tmp_path / "model", [b"Hel", b"lo"]).path


def changed(path: Path, **parts: object) -> Path:
    file = path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    return path


@pytest.fixture
def unseen(fresh_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tokenizer_trial, "_tried", {})
    return Paths(fresh_home).tokenizers


@pytest.mark.slow
@each(
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


@pytest.mark.slow
def test_a_regular_expression_that_searches_without_end_is_found_by_the_trial(unseen, model, capfd):
    """If the first prompt found it, the library's own message about the panic would come before the sentence."""
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


@pytest.mark.slow
@each(
    "step, good",
    [
        ({**REPLACE, "content": "  "}, False),
        ({**REPLACE, "pattern": {"Regex": "a*[bc]"}}, False),
        (REPLACE, True),  # the last, since it leaves a mark
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
    monkeypatch.setattr("localspec.models.tokenizer.try_out", lambda *_: tokenizer_trial.Trial())
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
    assert calls == {"tokenizer.py", "trial_child.py"}


@pytest.mark.slow
@each("kind", ["WordLevel", "WordPiece"])
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


@pytest.mark.slow
def test_a_tokenizer_is_tried_once(unseen, model, monkeypatch):
    children: list[object] = []
    start = tokenizer_trial._started
    monkeypatch.setattr(tokenizer_trial, "_started", lambda: (children.append(1), start())[1])
    ChatTokenizer(Tokenizer.open(model)).render(ASKED)
    [mark] = unseen.iterdir()
    assert len(children) == 1 and mark.stat().st_size == 0
    if os.name == "posix":
        assert (mark.stat().st_mode & 0o777, unseen.stat().st_mode & 0o777) == (0o600, 0o700)
    Tokenizer.open(model)
    tokenizer_trial._tried.clear()  # as in another process
    ChatTokenizer(Tokenizer.open(model)).render(ASKED)
    assert len(children) == 1
    changed(model, normalizer={"type": "NFC"})
    Tokenizer.open(model)
    assert len(children) == 2
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    Tokenizer.open(model)
    assert len(children) == 3


@pytest.mark.slow
def test_a_hash_is_computed_once_and_again_for_another_version_of_the_library(unseen, model):
    tokenizer = Tokenizer.open(model)
    computed = tokenizer.hash
    assert computed == hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest()[:16]
    [mark] = unseen.iterdir()
    assert tokenizer.trial.hash(pytest.fail) == computed
    for said in ("", f"{tokenizers.__version__} {computed[:9]}", "0.0.1 0123456789abcdef", "\xff"):
        mark.write_bytes(said.encode("latin-1"))
        assert Tokenizer.open(model).hash == computed
        assert mark.read_text() == f"{tokenizers.__version__} {computed}"
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Tokenizer.open(model).hash == computed and len(list(unseen.iterdir())) == 2


@pytest.mark.slow
def test_a_child_that_was_started_ahead_tries_the_first_files_and_ends_without_any(unseen, model, monkeypatch):
    children: list[subprocess.Popen[bytes]] = []
    start = tokenizer_trial._started
    monkeypatch.setattr(tokenizer_trial, "_started", lambda: (children.append(start()), children[-1])[1])
    with tokenizer_trial.child_at_hand():
        assert len(children) == 1
        Tokenizer.open(model)
        assert len(children) == 1 and children[0].returncode == 0
        Tokenizer.open(changed(model, normalizer={"type": "NFC"}))
        assert [child.returncode for child in children] == [0, 0]
    with tokenizer_trial.child_at_hand():
        Tokenizer.open(model)  # which is known
    assert len(children) == 3 and children[2].returncode is not None and len(list(unseen.iterdir())) == 2


def test_a_child_that_cannot_be_started_ahead_is_missed_only_where_files_are_tried(unseen, model, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with tokenizer_trial.child_at_hand():
        pass
    with tokenizer_trial.child_at_hand(), pytest.raises(LocalspecError, match=matching("no_process_can_be_started")):
        Tokenizer.open(model)


@pytest.mark.slow
def test_a_vocabulary_is_handed_on_once_and_to_the_same_files_only(unseen, model):
    first = Tokenizer.open(model)
    first.hand_on()
    assert Tokenizer.open(model).backend is first.backend
    assert Tokenizer.open(model).backend is not first.backend
    first.hand_on()
    other = Tokenizer.open(changed(model, normalizer={"type": "NFC"}))
    assert other.backend is not first.backend and other.encode("abc")
    assert Tokenizer.open(model).backend is not first.backend


def test_what_comes_with_localspec_is_not_tried(unseen, monkeypatch):
    import localspec

    monkeypatch.setattr(tokenizer_trial, "_child_results", pytest.fail)
    Tokenizer.open(Path(localspec.__file__).parent / "demo")
    assert not unseen.exists()


@pytest.mark.slow
@each(
    "template, why",
    [
        (ENDLESS, wording("it_takes_longer_than_5_seconds")),
        ("{{ 'x' * 5 * 2**30 }}", wording("it_makes_more_than_268_million_characters")),
    ],
)
def test_a_template_that_fails_its_trial_is_never_rendered_here(unseen, model, monkeypatch, template, why):
    hurried = "from localspec.models import chat_template; chat_template.SECONDS = 0.3; from localspec"
    monkeypatch.setattr(tokenizer_trial, "_START", tokenizer_trial._START.replace("from localspec", hurried, 1))
    (model / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.open(model)
    assert tokenizer.encode("Hello") and not unseen.exists()
    with monkeypatch.context() as patch:
        patch.setattr("localspec.models.chat_template.render_template", pytest.fail)
        with pytest.raises(LocalspecError, match=f"chat template cannot be used .*{why}"):
            ChatTokenizer(tokenizer).render(ASKED)
        patch.setattr(tokenizer_trial, "_child_results", pytest.fail)
        assert Tokenizer.open(model).trial == tokenizer.trial


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="clocks of computing as on POSIX")
def test_a_template_that_python_cannot_interrupt_fails_its_trial(unseen, model, monkeypatch):
    """Comparing lists nested in each other takes years, in one step of the interpreter."""
    deep = "{% set a0 = ['a'] %}{% set b0 = ['a'] %}" + "".join(
        f"{{% set {x}{n} = [{x}{n - 1}, {x}{n - 1}] %}}" for n in range(1, 60) for x in "ab"
    )
    (model / "chat_template.jinja").write_text(deep + "{{ a59 == b59 }}")
    monkeypatch.setattr(tokenizer_trial, "_START", f"{tokenizer_trial._START}".replace(
        "import child;", "import child; import localspec.models.trial_child as t; t._TEMPLATE_SECONDS = 0.5;"
    ))  # fmt: skip
    with pytest.raises(LocalspecError, match=f"chat template cannot be used .*{matching('it_takes_too_long')}"):
        ChatTokenizer(Tokenizer.open(model)).render(ASKED)


def test_where_no_child_can_be_started_the_file_is_not_blamed(unseen, model, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(
            LocalspecError,
            match=rf"{matching('no_process_can_be_started')} \(No such file or directory\).* /nowhere/python",
        ):
            Tokenizer.open(model)
    assert "Hi" in ChatTokenizer(Tokenizer.open(model)).render(ASKED)
