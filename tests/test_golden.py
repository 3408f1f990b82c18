"""The file with the product's messages, and how `--rewrite-messages` updates it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import golden
import product_words
import pytest
from command import ROOT
from each import each

HEAD = "import re\nimport pytest\nfrom golden import matching, wording\nfrom product import say\n"
OLD = {
    "no_model": "There is no model {name}; did you mean {other}?",
    "full": "The disk is full: make room.",
    "tip": "did you mean",
}
SAY = 'def say(name): return f"localspec: There is no model {name}; did you mean demo?\\nNothing was done.\\n"\n'
NEW = 'def say(name): return f"localspec: No model is called {name}. Did you mean demo?\\nNothing was done.\\n"\n'


@pytest.fixture
def project(tmp_path):
    """Return a small project with this plugin, whose product is one function."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "golden.py").write_bytes((ROOT / "tests" / "golden.py").read_bytes())
    (tests / "product_words.py").write_text(
        "from golden import spelled\ndef sections(): return ['', '[product]', 'texts = []']\ndef products(): return set()\n"
    )
    (tests / "conftest.py").write_text('pytest_plugins = ["golden"]\n')
    (tests / "product.py").write_text(SAY)
    (tests / "messages.toml").write_text(
        "[tests]\n"
        + "".join(f"{key} = {golden.spelled(text)}\n" for key, text in OLD.items())
        + "\n[product]\ntexts = []\n"
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = tests\naddopts = --import-mode=importlib -p no:cacheprovider\n"
    )
    return tmp_path


def tried(project: Path, *options: str, body: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in this project, after giving it this test file."""
    if body is not None:
        (project / "tests" / "test_it.py").write_text(HEAD + body)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    # a file written within the same second with the same size would count as compiled already
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # their imports take most of a second
    command = [sys.executable, "-m", "pytest", "-q", *options]
    return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)


def kept(project: Path) -> dict[str, str]:
    return golden.texts(project / "tests" / "messages.toml")


FORMS = {
    "in": 'assert wording("in") in say()',
    "equal": 'assert say().splitlines()[0] == wording("equal")',
    "prefixed": 'said = wording("prefixed"); assert f"1: {say()}".startswith(f"{1}: {said}")',
    "in_a_list": 'assert say().splitlines()[:1] == [wording("in_a_list")]',
    "startswith": 'assert say().startswith(wording("startswith"))',
    "any": 'assert any(wording("any") in line for line in say().splitlines())',
    "helper": 'said(say(), wording("helper"))',
    "re": 'assert re.search(matching("re"), say())',
    "match": 'with pytest.raises(ValueError, match=matching("match")): raise ValueError(say())',
}
PARAMETRIZED = """
@pytest.mark.parametrize("said", [wording("parametrized"), wording("twice")])
def test_parametrized(said): assert said in say()
"""


@pytest.mark.slow
def test_a_new_wording_changes_the_file_and_no_test(project):
    """Each form of a comparison has a key, for a text that is the same."""
    keys = [*FORMS, "parametrized", "twice"]
    old, new = "No model is named so; did you mean it?", "There is no model of that name. Did you mean it?"
    (project / "tests" / "messages.toml").write_text(
        "[tests]\n" + "".join(f'{key} = "{old}"\n' for key in keys) + "[product]\ntexts = []\n"
    )
    (project / "tests" / "helper.py").write_text(
        "def said(text, *parts):\n    assert all(part in text for part in parts)\n"
    )
    (project / "tests" / "product.py").write_text(f'def say(): return "{old}\\nNothing was done."\n')
    body = (
        "from helper import said\n"
        + "".join(f"def test_{key}():\n    {form}\n" for key, form in FORMS.items())
        + PARAMETRIZED
    )
    assert "11 passed" in tried(project, body=body).stdout
    (project / "tests" / "product.py").write_text(f'def say(): return "{new}\\nNothing was done."\n')
    rewritten = tried(project, golden.FLAG)
    assert rewritten.returncode == 0 and "messages: 11 rewritten" in rewritten.stdout, rewritten.stdout
    assert kept(project) == dict.fromkeys(sorted(keys), new)
    assert "11 passed" in tried(project).stdout


@pytest.mark.slow
def test_two_values_in_two_workers_are_one_text(project):
    body = "".join(
        f'def test_{name}(): assert wording("no_model", name="{name}", other="demo") in say("{name}")\n'
        for name in ("dmo", "demi", "dem", "emo")
    )
    assert tried(project, body=body).returncode == 0
    (project / "tests" / "product.py").write_text(NEW)
    assert tried(project, golden.FLAG, "-p", "xdist", "-n", "2").returncode == 0
    assert kept(project) == {"no_model": "No model is called {name}. Did you mean {other}?"}
    assert tried(project).returncode == 0


@pytest.mark.slow
def test_a_key_of_two_sentences_gets_two_texts(project):
    """One of them is in other words now; the other stays."""
    body = "".join(
        f'def test_{name}(): assert wording("full") in "{said}"\n'
        for name, said in (("one", "The disk is full: make room."), ("two", "The disk is full now: make some room."))
    )
    body += "def test_three():\n    with pytest.raises(ValueError, match=f'{matching(\"full\")}.*room'):\n"
    body += '        raise ValueError("The disk is full now: make some room. Make room")\n'
    body += 'def test_four(): assert wording("full") in "Nothing was said."\n'
    tried(project, golden.FLAG, body=body)
    one, two = "The disk is full: make room.", "The disk is full now: make some room."
    assert kept(project) == {"full": two, "full@test_it.test_one": one}
    result = tried(project)
    assert "3 passed" in result.stdout and "1 failed" in result.stdout and "test_four" in result.stdout


@pytest.mark.slow
def test_what_resembles_nothing_fails_and_stays(project):
    body = 'def test_it(): assert wording("full") in say("dmo")\n'
    rewritten = tried(project, golden.FLAG, body=body)
    assert (
        rewritten.returncode == 1
        and "messages: full in test_it.test_it: nothing that was said resembles" in rewritten.stdout
    )
    assert kept(project) == {"full": OLD["full"]}


@pytest.mark.slow
def test_what_must_not_be_said_is_never_rewritten(project):
    body = 'def test_it(): assert wording("tip") not in say("dmo")\n'
    assert tried(project, golden.FLAG, body=body).returncode == 1
    assert kept(project) == {"tip": OLD["tip"]}


@pytest.mark.slow
def test_several_wordings_of_a_test_and_a_new_key(project):
    body = (
        'def test_it():\n    text = say("dmo")\n    assert wording("no_model", name="dmo", other="demo") in text\n'
        '    assert wording("nothing_was_done") in text and wording("tip") in text\n'
    )
    (project / "tests" / "product.py").write_text(NEW)
    assert tried(project, golden.FLAG, body=body).returncode == 0
    assert kept(project)["tip"] == "Did you mean" and kept(project)["nothing_was_done"] == "Nothing was done."
    assert tried(project).returncode == 0


@each(
    "text, values, template",
    [
        ("dmo is no model: dmo", {"name": "dmo"}, "{name} is no model: {name}"),
        ("1 of 12", {"count": 1}, "{count} of 12"),
        ("/a/b and /a", {"file": Path("/a"), "other": Path("/a/b")}, "{other} and {file}"),
        ("as it is", {"nothing": ""}, "as it is"),
    ],
)
def test_values_become_names_again(text, values, template):
    assert golden.emptied(text, values) == template and golden.filled(template, values) == text


def test_a_text_grows_to_the_ends_of_its_sentence():
    said = "localspec: Nothing was sent. The disk holds no more, so make room. It stays."
    assert golden.resembling("The disk is full: make room.", said, False)[1] == "The disk holds no more, so make room."


@each(
    "old, new",
    [
        ("it takes too long", "it did not finish in time"),
        ("was damaged in the cache", "was broken in the cache"),
        ("and was fetched again", "and has been downloaded again"),
        ("Nothing was deleted.", ""),
    ],
)
def test_a_text_of_the_program_leads_to_the_one_in_its_place(old, new):
    removed = ["it takes too long", "{name} was damaged in the cache and was fetched again.", "Nothing was deleted."]
    added = ["it did not finish in time", "{name} was broken in the cache and has been downloaded again.", "All stays."]
    said = "w.bin was broken in the cache and has been downloaded again. (it did not finish in time)"
    assert golden.guided(old, golden.pairs(removed, added), [said]) == new


@each(
    "old, new",
    [
        ("The whole limit of 5 tokens was thought", "All 5 tokens went into thinking; raise the limit"),
        ("(The whole limit of 5 tokens was thought; allow more.", "(All 5 tokens went into thinking; raise the limit."),
        ("Nothing was thought", ""),
    ],
)
def test_a_text_with_values_leads_to_the_one_in_its_place(old, new):
    pairs = [
        (
            "The whole limit of {count} tokens was thought; allow more.",
            "All {count} tokens went into thinking; raise the limit.",
        )
    ]
    assert golden.exchanged(old, pairs, ["(All 5 tokens went into thinking; raise the limit.)"]) == new
    assert golden.exchanged(old, pairs, ["", "There is another message."]) == ""


def test_a_value_without_text_stays_at_the_end():
    assert golden.emptied("The disk is full.", {"kept": ""}, "No room.{kept}") == "The disk is full.{kept}"


def test_every_key_is_used_and_every_key_that_is_used_is_there():
    keys, files = {use.partition("@")[0] for use in golden.texts()}, golden.TESTS.rglob("*.py")
    calls = "".join(file.read_text("utf-8") for file in files if file.name != "test_golden.py")
    assert set(re.findall(r"\b(?:wording|matching)\(\s*[\"'](\w+)[\"']", calls)) <= keys <= set(golden.used())


def test_the_program_s_texts_are_found_wherever_they_are(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""Says nothing of this."""\nraise NotHere(f"There is no model {card.name!r}; {self._hint(x)} or {1 + 1}.")\n'
        "print(f\"It lacks {counted(n, 'line')} of {len(rows)}: {', '.join(map(str, paths))}\")\n"
        'SQL = "SELECT a FROM b"\nprint("Nothing was done" " at all.")\n'
    )
    (tmp_path / "b.py").write_text('say("Nothing was done at all.")\n')
    (tmp_path / "c.py").write_text('def run(one: "Model | None", yes: A[bool, Option(help="Do not ask.")]): ...\n')
    counted = "It lacks {number_of_lines} of {number_of_rows}: {paths}"
    said = {counted, "There is no model {name}; {hint} or {…}.", "Nothing was done at all.", "Do not ask."}
    assert product_words.products((tmp_path,)) == said


@pytest.mark.slow
def test_the_file_holds_every_text_of_the_program():
    """`pytest tests/test_golden.py --rewrite-messages` writes the file again, whichever tests run."""
    text = golden.FILE.read_text("utf-8")
    assert text[text.index("\n[product]") :] == "\n".join(product_words.sections()) + "\n"
    assert tomllib.loads(text).keys() == {"tests", "product", "help"}


@pytest.mark.slow
def test_what_is_only_expected_not_to_be_said_is_a_text_of_the_program():
    """`not in` holds for every old text, so nothing else would show that the program now uses other words."""
    uses: dict[str, list[str]] = {}
    for file in golden.TESTS.rglob("test_*.py"):
        for key, then in re.findall(
            r"\b(?:wording|matching)\(\s*[\"'](\w+)[\"'][^()]*\)(\s+not\s+in\b)?", file.read_text("utf-8")
        ):
            uses.setdefault(key, []).append(then)
    texts = tomllib.loads(golden.FILE.read_text("utf-8"))
    unsaid = [key for key in texts["tests"] if all(uses.get(key, [""]))]
    program = texts["product"]["texts"]
    assert unsaid and [key for key in unsaid if not any(texts["tests"][key] in text for text in program)] == []
