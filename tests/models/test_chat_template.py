"""Chat templates are programs: each rendering is limited in time, in memory, and in the length of its text."""

import sys
import threading
from pathlib import Path

import pytest
from each import each
from golden import matching, wording
from scripted_models import TEMPLATE, scripted_model

from localspec.errors import LocalspecError
from localspec.models import chat_template
from localspec.models.chat_template import render_template
from localspec.models.chat_tokenizer import ChatTokenizer
from localspec.models.encoding import Unwanted, is_abandoned, stopping_unless
from localspec.models.tokenizer import Tokenizer
from localspec.models.tokenizer_trial import Trial

ASKED = [{"role": "user", "content": "Hi"}]
RANGE = "{% set r = range(99999) %}"
LOOPS = f"{RANGE}{{% for a in r %}}{{% for b in r %}}{{% for c in r %}}{{% endfor %}}{{% endfor %}}{{% endfor %}}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scripted_model(tmp_path / "model", [b"Hel", b"lo"]).path


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the trial, so that each fault is found where the file is used."""
    monkeypatch.setattr("localspec.models.tokenizer.try_out", lambda *_: Trial())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)


def rendered(path: Path, template: str) -> str:
    (path / "chat_template.jinja").write_text(template)
    return ChatTokenizer(Tokenizer.open(path)).render(ASKED)


@pytest.mark.usefixtures("hurried")
def test_a_template_without_end_is_stopped_and_not_asked_again(model, monkeypatch):
    (model / "chat_template.jinja").write_text(LOOPS)
    chat = ChatTokenizer(Tokenizer.open(model))
    with pytest.raises(LocalspecError, match=matching("chat_template_cannot_used_takes")):
        chat.render(ASKED)
    monkeypatch.setattr(chat_template, "render_template", pytest.fail)
    with pytest.raises(LocalspecError, match=matching("it_takes_longer_than_5_seconds")):
        chat.render(ASKED)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@each(
    "template",
    [
        LOOPS,
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    ],
)
def test_the_thread_of_a_rendering_without_end_is_ended(template, monkeypatch):
    # a fast processor would reach the limit of characters before that of time
    monkeypatch.setattr(chat_template, "CHARACTERS", 2**62)
    with pytest.raises(TimeoutError):
        render_template(template, ASKED, True, {})
    assert not is_abandoned()


def test_a_rendering_that_nobody_waits_for_is_ended():
    with stopping_unless(lambda: False), pytest.raises(Unwanted):
        render_template(LOOPS, ASKED, True, {})
    assert not is_abandoned()


@each(
    "template, said",
    [
        ("{% for a in range(2000) %}" + "x" * 10_000 + "{% endfor %}", wording("a_text_of_20000000_characters")),
        ("{{ raise_exception('no\\nway') }}", "no"),
        ("{% for %}", "Expected"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ '\\ud800' }}", "halves of surrogate pairs"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_fails_says_why(model, template, said):
    with pytest.raises(LocalspecError, match=rf"chat template cannot be used \(.*{said}.*\); (fetch|correct)"):
        rendered(model, template)


@each(
    "template, limit",
    [
        ("{{ 'x' * 5 * 2**30 }}", wording("it_makes_more_than_268_million_characters")),
        ("{{ 3 ** 99999 }}", "the template makes a number of more than 4,096 bits"),
        ("{{ 'x' * 9999999 }}", " are allowed"),
    ],
)
def test_a_template_beyond_a_limit_names_it_and_is_not_to_be_fetched_again(model, template, limit):
    with pytest.raises(LocalspecError) as refused:
        rendered(model, template)
    assert limit in str(refused.value) and "fetch" not in str(refused.value) and "Error" not in str(refused.value)


DOUBLED = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x|length }}"
NESTED = DOUBLED.replace("'ab'", "['ab']").replace("STEP", "[ns.x] * 1000").replace("60", "4")


@pytest.mark.slow
@each(
    "template",
    [
        "{{ range(99999)|join('x' * 1000000) }}",
        "{{ range(99999)|map('string')|join('x' * 1000000) }}",
        "{{ ('x' * 1000000).join(range(99999)|map('string')) }}",
        "{{ 'x' * 5 * 2**30 }}",
        "{{ ('x' * 10**9)|length }}",
        "{{ 10 ** (10 ** 9) }}",
        DOUBLED.replace("'ab'", "10").replace("STEP", "ns.x * ns.x"),
        DOUBLED.replace("STEP", "ns.x + ns.x"),
        DOUBLED.replace("STEP", "ns.x ~ ns.x"),
        NESTED.replace("ns.x|length", "ns.x"),
        NESTED.replace("ns.x|length", "(ns.x ~ '')|length"),
        NESTED.replace("ns.x|length", "ns.x|tojson|length"),
        NESTED.replace("ns.x|length", "('%s' % (ns.x,))|length"),
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ ('%1000000000d'.encode() % 1)|length }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=1000000000) }}",
        "{{ 'a'.center(1000000000)|length }}",
        "{{ 'a'|center(1000000000)|length }}",
        "{{ 'a\n'|indent(1000000000, true)|length }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000)|length }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000)|length }}",
        "{{ (1).to_bytes(10000000000, 'big')|length }}",
        "{% set x = 'a' * 10000000 %}{% set ns = namespace(x=[]) %}"
        "{% for i in range(999) %}{% set ns.x = ns.x + [x[1:]] %}{% endfor %}",
        "{% for a in range(90000) %}" + "x" * 10_000 + "{% endfor %}",
    ],
)
def test_a_template_of_more_memory_than_there_is(model, template):
    before = most_memory()
    with pytest.raises(
        LocalspecError, match=r"the template makes (more than .* characters|a number of more than .* bits)"
    ):
        rendered(model, template)
    assert most_memory() - before < 600_000


def most_memory() -> int:
    """Return the most KiB that this process has had at once."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_what_templates_do_with_texts_and_numbers_is_what_it_was():
    template = (
        "{{ '%s %05d' % ('a', 1700000000) }} {{ '{} {:>10}'.format('a', 1700000000) }} {{ 'a'|center(3) }}"
        " {{ messages|tojson(indent=1) }} {{ 'aXb'.replace('X', '--') }} {{ ['a', 1]|join(', ') }} {{ {'a': [1]} }}"
        " {{ 3 * 4 ** 2 + 1 }} {{ [1] * 2 + [2] }} {{ 1700000000 * 1000 }} {{ messages[0:1][0].content[1:] ~ 1 ~ [2] }}"
    )
    assert render_template(template, ASKED, True, {}) == (
        'a 1700000000 a 1700000000  a  [\n {\n  "role": "user",\n  "content": "Hi"\n }\n] a--b a, 1 '
        "{'a': [1]} 49 [1, 1, 2] 1700000000000 i1[2]"
    )


def test_a_long_conversation_may_become_a_long_text():
    messages = [{"role": "user", "content": "x" * 2**25}] * 2
    template = "{% for one in messages %}{{ one.content.replace('y', 'z' * 20) + '\n' }}{% endfor %}"
    assert len(render_template(template, messages, True, {})) == 2 * (2**25 + 1)


@each("said", ["{{ raise_exception('no' * 2**20) }}", "{{ messages." + "a" * 2**20 + ".b }}"])
def test_what_a_template_says_when_it_fails_is_cut(model, said):
    with pytest.raises(LocalspecError) as failed:
        rendered(model, said)
    assert len(str(failed.value)) < 300


def test_threads_render_at_the_same_time():
    found: list[str] = []

    def ask(number: int) -> None:
        for _ in range(20):
            found.append(render_template(f"{{{{ '{number}' * 9 }}}}", ASKED, True, {}))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(str(number) * 9 for number in range(4) for _ in range(20))


def test_a_prompt_that_is_left_out_is_noticed(model):
    assert ChatTokenizer(Tokenizer.open(model)).prompt_loss() == ""
    content = "messages[0]['content']"
    for template, loss in (
        ("hello", "leaves out"),
        (TEMPLATE, ""),
        (f"{{{{ {content} | trim }}}}", ""),
        ("{% for %}", ""),
        (f"{{{{ {content} | upper }}}}", "changes"),
        (f"{{{{ {content} | e }}}}", "changes"),
        (f"{{{{ {content}[:10] }}}}", "changes"),
        (f"{{{{ {content} | replace('a', 'b') | replace('s', 'z') }}}}", "changes"),
        (f"{{{{ {content} }}}} {{{{ {content} }}}}", "changes"),
    ):
        (model / "chat_template.jinja").write_text(template)
        assert ChatTokenizer(Tokenizer.open(model)).prompt_loss() == loss, template
