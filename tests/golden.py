"""The product's words that tests expect, in one file: `wording(KEY)` is the text of that key in messages.toml.

With `--rewrite-messages` that file becomes what the product says. Each comparison of a wording is then recorded. Where a
test fails, the wording that was found nowhere becomes the text that resembles it most, and the test runs once more.
"""

import ast
import builtins
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cache, cached_property
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Self

import pytest
from _pytest.assertion import rewrite
from _pytest.runner import runtestprotocol

TESTS = Path(__file__).parent
FILE = TESTS / "messages.toml"
FLAG = "--rewrite-messages"
ALIKE = 0.45  # of two texts, by difflib: less is another message, and the test fails
MOST_RUNS = 40  # of a test: one for each wording in it
MOST_TEXTS = 20  # in which a wording is looked for again: a screen that is waited for was looked at often
PATIENCE = 30  # seconds, for what tests wait for: a wording that is gone never comes
_USE = re.compile(r"\b(?:wording|matching)\(\s*\"(\w+)\"")
_HOLE = re.compile(r"\{[\w…]*\}")
_BREAK = re.compile(r"(?<=[.;:!?])\s+|\n")
HEAD = """\
# First the texts that tests expect, by the keys that they use, then every text of the program and the help of every command.
# A new wording is made in the program. `python -m pytest --rewrite-messages` then puts it in here: see docs/building.md.

"""


def texts(path: Path = FILE) -> dict[str, str]:
    """Return the wordings that tests expect, by key. The rest of the file is left unread: it is longer."""
    found: dict[str, str] = tomllib.loads(path.read_text("utf-8").partition("\n[product]")[0])["tests"]
    return found


_known = cache(texts)
_rewriting: "Rewriting | None" = None


def wording(key: str, /, **values: object) -> str:
    """Return the text of `key`, in which each {name} of a value stands for that value."""
    if _rewriting is not None:
        return Expected(_rewriting, key, values)
    return filled(_known()[key], values)


def matching(key: str, /, **values: object) -> str:
    """Return the regular expression that matches this wording, for `match=` and `re`."""
    if _rewriting is not None:
        return Expected(_rewriting, key, values, escaped=True)
    return re.escape(filled(_known()[key], values))


def filled(template: str, values: dict[str, Any]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: str(values.get(name[1], name[0])), template)


def emptied(text: str, values: dict[str, Any], old: str = "") -> str:
    """Return the template of this text: the longest value first, each becomes its {name} where it is a whole word.

    A value without text stays at the end where the old template had it.
    """
    text += "".join(f"{{{name}}}" for name, value in values.items() if str(value) == "" and old.endswith(f"{{{name}}}"))
    spelled = sorted(((str(value), name) for name, value in values.items()), key=lambda pair: -len(pair[0]))
    names = {value: name for value, name in reversed(spelled) if value.strip()}
    if not names:
        return text
    words = (
        rf"(?<!\w){re.escape(value)}(?!\w)" if value.isalnum() else re.escape(value)
        for value, _ in spelled
        if value.strip()
    )
    return re.sub("|".join(words), lambda value: f"{{{names[value[0]]}}}", text)


def resembling(old: str, actual: str, whole: bool) -> tuple[float, str]:
    """Return what in `actual` is most like `old`, and how like that is: all of it, or some words that follow each other.

    A text that begins or ends as a sentence does becomes one that begins or ends where a sentence or a line does.
    """
    matcher = SequenceMatcher(None, "", old, autojunk=False)

    def alike(text: str) -> float:
        if gettempdir() in text and gettempdir() not in old:
            return 0.0  # of this run only
        matcher.set_seq1(text)
        return matcher.ratio() if matcher.real_quick_ratio() > ALIKE and matcher.quick_ratio() > ALIKE else 0.0

    if whole:
        return alike(actual), actual
    best = (0.0, "")
    for line in _lines(actual, old.count("\n") + 1):
        spans = [match.span() for match in re.finditer(r"\S+", line)]
        count = len(old.split())
        starts, ends = _edges(line, old)
        for first, (start, _) in enumerate(spans):
            if starts and start not in starts:
                continue
            for _, end in spans[first + max(0, count // 2 - 1) : first + 2 * count + 3]:
                if (not ends or end in ends) and (found := alike(line[start:end])) > best[0]:
                    best = (found, line[start:end])
    return best


def pairs(removed: Iterable[str], added: Iterable[str]) -> list[tuple[str, str]]:
    """Return which text of the program came in which one's place: those first that share most of their words."""
    old, new = ({text: set(text.lower().split()) for text in texts} for texts in (removed, added))
    shared = (
        (len(one & two) / len(one | two), was, now) for was, one in old.items() for now, two in new.items() if one & two
    )
    found: dict[str, str] = {}
    for _, was, now in sorted(shared, reverse=True):
        if was not in found and now in new:
            found[was] = now
            del new[now]
    return list(found.items())


def guided(old: str, replaced: Iterable[tuple[str, str]], actual: Iterable[str]) -> str:
    """Return what this part of a text that the program had is in the text that it has instead, where that was said.

    Only the words between two values are looked at. Ends of those words stay ends.
    """
    part = old.strip()
    for was, now in replaced:
        for before in (piece for piece in _HOLE.split(was) if part in piece):
            after = max(_HOLE.split(now), key=lambda piece: SequenceMatcher(None, before, piece, False).ratio())
            start = before.index(part)
            new = after[_place(before, after, start) : _place(before, after, start + len(part))].strip()
            if len(new.split()) > 1 and any(new in text for text in actual):
                return new
    return ""


def _place(before: str, after: str, at: int) -> int:
    """Return where this place of one text is in another, at the edge of a word."""
    if not before[:at].strip():
        return 0
    if not before[at:].strip(" .;:,("):
        return len(after.rstrip(" .;:,("))
    words, others = re.findall(r"\S+\s*", before), re.findall(r"\S+\s*", after)
    edge = len(re.findall(r"\S+", before[:at]))
    for _, first, last, other_first, other_last in SequenceMatcher(None, words, others, False).get_opcodes():
        if first <= edge <= last:
            there = other_first + (
                edge - first if last - first == other_last - other_first else edge > first and other_last - other_first
            )
            return len("".join(others[:there]))
    return len(after)


def _edges(line: str, old: str) -> tuple[set[int], set[int]]:
    """Return where a text may begin and end in this line; an empty set is anywhere."""
    breaks = [match.span() for match in _BREAK.finditer(line)]
    named = re.match(r"\s*(?:localspec: )?", line)
    starts = {0, named.end() if named else 0, *(end for _, end in breaks)} if re.match(r"[A-Z`]", old) else set()
    ends = {len(line.rstrip()), *(start for start, _ in breaks)} if old.endswith((".", "!", "?")) else set()
    return starts, ends


def _lines(text: str, height: int) -> Iterator[str]:
    lines = text.splitlines()
    for first in range(max(1, len(lines) - height + 1)):
        yield "\n".join(lines[first : first + height])


class Expected(str):
    """A wording in a run that rewrites: it goes by the text that its key has now, and records what it is compared with."""

    __slots__ = ("after", "before", "escaped", "key", "rewriting", "values")

    def __new__(cls, rewriting: "Rewriting", key: str, values: dict[str, Any], escaped: bool = False) -> Self:
        text = filled(rewriting.text(key), values)
        self = super().__new__(cls, re.escape(text) if escaped else text)
        self.rewriting, self.key, self.values, self.escaped = rewriting, key, values, escaped
        self.before = self.after = ""
        return self

    def within(self, before: str, after: str) -> "Expected":
        """Return this wording as a part of a longer text."""
        longer = Expected(self.rewriting, self.key, self.values)
        longer.before, longer.after = before + self.before, self.after + after
        return longer

    def bare(self) -> str:
        return filled(self.rewriting.text(self.key), self.values)

    def now(self) -> str:
        return self.before + self.bare() + self.after

    def __eq__(self, other: object) -> bool:
        text = other.now() if isinstance(other, Expected) else other
        same = self.now() == text
        if isinstance(text, str):
            self.rewriting.note(self, text.removeprefix(self.before).removesuffix(self.after), same, whole=True)
        return same

    def __ne__(self, other: object) -> bool:
        return self.now() != (other.now() if isinstance(other, Expected) else other)

    __hash__ = str.__hash__


class Rewriting:
    """The wordings of a run that rewrites them; a pytest plugin."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.changed: dict[str, str] = {}
        self.refused: set[str] = set()
        self.seen: list[tuple[Expected, str, bool, bool]] = []
        self.awaited: list[Expected] = []  # by `match=`
        self.error: BaseException | None = None

    def text(self, key: str) -> str:
        """Return the text of this key; a new key is its own first approximation."""
        return self.changed.get(key) or self.texts.get(key) or key.replace("_", " ")

    @cached_property
    def replaced(self) -> list[tuple[str, str]]:
        """Return which texts of the program came in which ones' places since the file was written."""
        from product_words import products

        old, new = set(tomllib.loads(FILE.read_text("utf-8"))["product"]["texts"]), products()
        return pairs(sorted(old - new), sorted(new - old))

    def note(self, expected: Expected, actual: str, found: bool, whole: bool = False) -> None:
        self.seen.append((expected, actual, found, whole))

    def mend(self) -> bool:
        """Whether the wording that was last looked for in vain has a new text."""
        if isinstance(self.error, AssertionError) and (raised := self.error.__context__) is not None:
            for awaited in self.awaited:
                self.note(awaited, str(raised), awaited.now() in str(raised))
        good = {(one.key, one.now()) for one, _, found, _ in self.seen if found}
        missed = [entry for entry in self.seen if (entry[0].key, entry[0].now()) not in good]
        if not missed:
            return False
        last = missed[-1][0]
        tried = [entry[1:] for entry in missed if entry[0].key == last.key and entry[0].now() == last.now()]
        latest = list(dict.fromkeys(reversed(tried)))[:MOST_TEXTS]
        new = guided(last.bare(), self.replaced, [actual for actual, _, whole in latest if not whole])
        alike, new = (1.0, new) if new else max(resembling(last.bare(), text, whole) for text, _, whole in latest)
        template = emptied(new, last.values, self.text(last.key))
        if alike < ALIKE or template == self.text(last.key) or last.key in self.changed:
            self.refused.add(last.key)
            return False
        self.changed[last.key] = template
        return True

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None:
            self.error = call.excinfo.value

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for _ in range(MOST_RUNS):
            self.error = None
            self.seen.clear()
            self.awaited.clear()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            if self.error is None or isinstance(self.error, pytest.skip.Exception) or not self.mend():
                break
            item._initrequest()  # type: ignore[attr-defined]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["messages"] = (self.changed, sorted(self.refused))
        else:
            write(self.texts | self.changed, FILE)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist rewrote; of two texts for a key, that in which more values have names."""
        changed, refused = getattr(node, "workeroutput", {}).get("messages", ({}, []))
        self.refused.update(refused)
        for key, text in changed.items():
            self.changed[key] = max(text, self.changed.get(key, text), key=lambda text: (text.count("{"), text))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.line(f"messages: {len(self.changed)} rewritten")
        for key in sorted(self.refused - set(self.changed)):
            terminalreporter.line(f"messages: {key}: nothing that was said resembles {self.text(key)!r}")


def used(tests: Path = TESTS) -> set[str]:
    """Return the keys that tests use; those in this plugin's tests are made up."""
    files = (file for file in tests.rglob("*.py") if file.name != "test_golden.py")
    return {key for file in files for key in _USE.findall(file.read_text("utf-8"))}


def write(texts: dict[str, str], path: Path, sections: Callable[[], Iterable[str]] | None = None) -> None:
    """Write those wordings that some test uses, and what else the product says."""
    from product_words import sections as every

    wanted = used(path.parent)
    lines = [f"{key} = {spelled(text)}" for key, text in sorted(texts.items()) if key in wanted]
    path.write_text(HEAD + "\n".join(["[tests]", *lines, *(sections or every)()]) + "\n", "utf-8")


def spelled(text: str) -> str:
    """Return this text as TOML has it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Recorded(ast.NodeTransformer):
    """Lets `in`, the methods of strings and `match=` go through the functions below."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In):
            return _call("@contains", node, node.comparators[0], node.left)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        parts = (
            part.value
            if isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None
            else ast.JoinedStr([part])
            for part in node.values
        )
        return _call("@joined", node, *parts)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)  # what a format is made of stays as it is
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg == "match":
                keyword.value = _call("@awaited", keyword.value, keyword.value)
        if isinstance(node.func, ast.Attribute) and node.args and not node.func.attr.startswith("__"):
            node.func = ast.copy_location(_call("@method", node, node.func.value, ast.Constant(node.func.attr)), node)
        return node


def _call(name: str, place: ast.AST, *arguments: ast.expr) -> ast.Call:
    function = ast.Name(name, ast.Load())
    return ast.fix_missing_locations(ast.copy_location(ast.Call(function, list(arguments), []), place))


def _contains(container: Any, member: Any) -> bool:
    if not (isinstance(member, Expected) and isinstance(container, str)):
        return member in container
    text = container.now() if isinstance(container, Expected) else container
    member.rewriting.note(member, text, member.now() in text)
    return member.now() in text


def _joined(*parts: Any) -> str:
    texts = [part.now() if isinstance(part, Expected) else format(part) for part in parts]
    places = [at for at, part in enumerate(parts) if isinstance(part, Expected) and not part.escaped]
    if len(places) != 1:
        return "".join(texts)
    expected: Expected = parts[places[0]]
    return expected.within("".join(texts[: places[0]]), "".join(texts[places[0] + 1 :]))


def _awaited(pattern: Any) -> Any:
    if not isinstance(pattern, Expected):
        return pattern
    pattern.rewriting.awaited.append(pattern)
    return re.escape(pattern.now())


def _method(self: Any, name: str) -> Any:
    method = getattr(self, name)
    if not isinstance(self, str) and self is not re:
        return method

    def recorded(first: Any, *others: Any, **named: Any) -> Any:
        if not isinstance(first, Expected):
            return method(first, *others, **named)
        text = str(others[0] if self is re else self)
        first.rewriting.note(first, text, first.now() in text)
        return method(re.escape(first.now()) if first.escaped else first.now(), *others, **named)

    return recorded


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(FLAG, action="store_true", help="write into tests/messages.toml what the product says now")


def pytest_configure(config: pytest.Config) -> None:
    global _rewriting
    if not config.getoption(FLAG):
        return
    _rewriting = Rewriting(texts())
    config.pluginmanager.register(_rewriting)
    vars(builtins).update({"@contains": _contains, "@awaited": _awaited, "@joined": _joined, "@method": _method})
    with suppress(ImportError):
        import clocks

        clocks.PATIENCE = PATIENCE
    helpers = (
        file.relative_to(TESTS).with_suffix("") for file in TESTS.rglob("*.py") if not file.name.startswith("test_")
    )
    names = [".".join(file.parts) for file in helpers if file.name not in ("golden", "conftest")]
    pytest.register_assert_rewrite(*(name for name in names if name not in sys.modules))
    as_it_is = rewrite.rewrite_asserts
    rewrite.rewrite_asserts = lambda tree, *more: as_it_is(_Recorded().visit(tree), *more)
    rewrite._read_pyc = lambda *_: None  # that of a run that does not rewrite
    sys.dont_write_bytecode = True
