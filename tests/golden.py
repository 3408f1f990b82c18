"""The messages that tests expect, in one file: `wording(KEY)` returns the text of that key in messages.toml.

`--rewrite-messages` updates that file from the product. Each comparison with a wording is then recorded. If a test
fails, the wording that no text contained is replaced by the most similar text, and the test runs again. Tests may
share a key until the program says different texts: `key@file.function` is then the text of one function.
"""

import ast
import builtins
import json
import re
import sys
import tomllib
from collections import Counter
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
SIMILAR = 0.45  # least similarity of two texts, by difflib; below it the text is another message, and the test fails
MOST_RUNS = 40  # runs of a test: one for each wording in it
MOST_TEXTS = 20  # texts that are compared with a missing wording; a test that waits for a screen reads many
PATIENCE = 30  # seconds that tests wait for a text, which may no longer exist
_USE = re.compile(r"[\"'](\w+)[\"']")  # a key may also be a parameter of the test
_HOLE = re.compile(r"\{[\w…]*\}")
_WORD = re.compile(r"\{[\w…]*\}|\w+")
_BREAK = re.compile(r"(?<=[.;:!?])\s+|\n")
HEAD = """\
# First the texts that tests expect, by the keys that they use, then every text of the program and the help of every command.
# A new wording is made in the program. `python -m pytest --rewrite-messages` then puts it in here: see docs/building.md.

"""


def texts(path: Path = FILE) -> dict[str, str]:
    """Return the wordings that tests expect, by key. The rest of the file is not parsed: it is longer."""
    found: dict[str, str] = tomllib.loads(path.read_text("utf-8").partition("\n[product]")[0])["tests"]
    return found


_known = cache(texts)
_rewriting: "Rewriting | None" = None


def wording(key: str, /, **values: object) -> str:
    """Return the text of `key`, in which each {name} of a value stands for that value."""
    use = _use(key)
    if _rewriting is not None:
        return Expected(_rewriting, use, values)
    return filled(_known().get(use) or _known()[key], values)


def matching(key: str, /, **values: object) -> str:
    """Return the regular expression that matches this wording, for `match=` and `re`."""
    use = _use(key)
    if _rewriting is not None:
        return Expected(_rewriting, use, values, escaped=True)
    return re.escape(filled(_known().get(use) or _known()[key], values))


def _use(key: str) -> str:
    """Return the key with the file and the function that called `wording` or `matching`."""
    code = sys._getframe(2).f_code
    return f"{key}@{Path(code.co_filename).stem}.{code.co_qualname.partition('.')[0]}"


def filled(template: str, values: dict[str, Any]) -> str:
    """Return the template with each {name} replaced by its value."""
    return re.sub(r"\{(\w+)\}", lambda name: str(values.get(name[1], name[0])), template)


def emptied(text: str, values: dict[str, Any], old: str = "") -> str:
    """Return the template of a text: each value that is a whole word becomes its {name}, the longest value first.

    An empty value stays at the end if the old template ended with its {name}.
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
    """Return the part of `actual` that is most similar to `old`, with the similarity: the whole text, or adjacent words.

    If `old` begins or ends like a sentence, the part begins or ends at a boundary of sentences or lines.
    """
    matcher = SequenceMatcher(None, "", old, autojunk=False)

    def similarity(text: str) -> float:
        if gettempdir() in text and gettempdir() not in old:
            return 0.0  # the path exists in this run only
        matcher.set_seq1(text)
        return matcher.ratio() if matcher.real_quick_ratio() > SIMILAR and matcher.quick_ratio() > SIMILAR else 0.0

    if whole:
        return similarity(actual), actual
    best = (0.0, "")
    for line in _lines(actual, old.count("\n") + 1):
        spans = [match.span() for match in re.finditer(r"\S+", line)]
        count = len(old.split())
        starts, ends = _edges(line, old)
        for first, (start, _) in enumerate(spans):
            if starts and start not in starts:
                continue
            for _, end in spans[first + max(0, count // 2 - 1) : first + 2 * count + 3]:
                if (not ends or end in ends) and (found := similarity(line[start:end])) > best[0]:
                    best = (found, line[start:end])
    return best


def pairs(removed: Iterable[str], added: Iterable[str]) -> list[tuple[str, str]]:
    """Pair each removed text of the program with its replacement: the pairs that share most, and rarest, words first."""
    old, new = ({text: set(_WORD.findall(text.lower())) for text in texts} for texts in (removed, added))
    counts = Counter(word for words in (*old.values(), *new.values()) for word in words)
    shared = (
        (sum(1 / counts[word] for word in one & two) / len(one | two), was, now)
        for was, one in old.items()
        for now, two in new.items()
        if one & two
    )
    found: dict[str, str] = {}
    for _, was, now in sorted(shared, reverse=True):
        if was not in found and now in new:
            found[was] = now
            del new[now]
    return list(found.items())


def guided(old: str, replaced: Iterable[tuple[str, str]], actual: Iterable[str]) -> str:
    """Return the part of a new text that replaces this part of an old text, if the test saw it; empty otherwise.

    Parts are searched between two values. A part at the end of such a section stays at its end.
    """
    part = old.strip()
    for was, now in replaced:
        same, pieces = _HOLE.findall(was) == _HOLE.findall(now), _HOLE.split(now)
        for at, before in enumerate(_HOLE.split(was)):
            if part not in before:
                continue
            like = max(pieces, key=lambda piece: SequenceMatcher(None, before, piece, False).ratio())
            after, start = pieces[at] if same else like, before.index(part)
            new = after[_place(before, after, start, False) : _place(before, after, start + len(part), True)].strip()
            if (len(new.split()) > 1 or len(new) > len(part) / 2) and any(new in text for text in actual):
                return new
    return ""


def exchanged(old: str, replaced: Iterable[tuple[str, str]], actual: Iterable[str]) -> str:
    """Return `old` with a text of the program exchanged for its replacement, if the test saw that; empty otherwise.

    If both texts have the same values, `old` may also be only a part that contains a value.
    """
    texts = list(actual)
    for was, now in replaced:
        pieces, others = _HOLE.split(was.strip()), _HOLE.split(now.strip())
        candidates = [(pieces, others)]
        if _HOLE.findall(was) == _HOLE.findall(now):
            candidates += [
                _cut(old, pieces[first:last], others[first:last])
                for first in range(len(pieces))
                for last in range(first + 2, len(pieces) + 1)
            ]
        for before, after in candidates:
            if len("".join(before)) < min(len(old) / 2, len("".join(pieces))):
                continue
            there, new = (re.compile(".*?".join(map(re.escape, some))) for some in (before, after))
            for found in (new.search(text) for text in texts) if (place := there.search(old)) else ():
                if found and (whole := old[: place.start()] + found[0] + old[place.end() :]) in found.string:
                    return whole
    return ""


def _cut(old: str, before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Return the pieces without what comes before and after `old`."""
    start = next(at for at in range(len(before[0]) + 1) if old.startswith(before[0][at:]))
    end = next(at for at in range(len(before[-1]), -1, -1) if old.endswith(before[-1][:at]))
    places = _place(before[0], after[0], start, False), _place(before[-1], after[-1], end, True)
    return (
        [before[0][start:], *before[1:-1], before[-1][:end]],
        [after[0][places[0] :], *after[1:-1], after[-1][: places[1]]],
    )


def _place(before: str, after: str, at: int, end: bool) -> int:
    """Return the index in `after` that corresponds to an index in `before`, at the edge of a word."""
    if not before[:at].strip():
        return 0
    if not before[at:].strip(" .;:,("):
        return len(after.rstrip(" .;:,("))
    words, others = re.findall(r"\S+\s*", before), re.findall(r"\S+\s*", after)
    edge = len(re.findall(r"\S+", before[:at]))
    for _, first, last, other_first, other_last in SequenceMatcher(None, words, others, False).get_opcodes():
        if first <= edge <= last:
            there = other_first + (
                edge - first
                if last - first == other_last - other_first
                else ((end and edge > first) or edge == last) and other_last - other_first
            )
            return len("".join(others[:there]))
    return len(after)


def _edges(line: str, old: str) -> tuple[set[int], set[int]]:
    """Return the indexes at which a text may begin and end in this line; an empty set allows any."""
    breaks = [match.span() for match in _BREAK.finditer(line)]
    named = re.match(r"\s*(?:localspec: )?", line)
    starts = {0, named.end() if named else 0, *(end for _, end in breaks)} if re.match(r"[A-Z`]", old) else set()
    ends = {len(line.rstrip()), *(start for start, _ in breaks)} if old.endswith((".", "!", "?")) else set()
    if old.endswith((")", ":", "'", "`", '"')):
        ends = {match.end() for match in re.finditer(re.escape(old[-1]), line)}
    return starts, ends


def _lines(text: str, height: int) -> Iterator[str]:
    """Yield every run of `height` lines."""
    lines = text.splitlines()
    for first in range(max(1, len(lines) - height + 1)):
        yield "\n".join(lines[first : first + height])


class Expected(str):
    """A wording while messages are rewritten. It equals the current text of its key, and records each comparison."""

    __slots__ = ("after", "before", "escaped", "key", "rewriting", "values")

    def __new__(cls, rewriting: "Rewriting", key: str, values: dict[str, Any], escaped: bool = False) -> Self:
        text = filled(rewriting.text(key), values)
        self = super().__new__(cls, re.escape(text) if escaped else text)
        self.rewriting, self.key, self.values, self.escaped = rewriting, key, values, escaped
        self.before = self.after = ""
        return self

    def within(self, before: str, after: str) -> "Expected":
        """Return this wording as part of a longer text."""
        longer = Expected(self.rewriting, self.key, self.values)
        longer.before, longer.after = before + self.before, self.after + after
        return longer

    def bare(self) -> str:
        """Return the current text of the key."""
        return filled(self.rewriting.text(self.key), self.values)

    @staticmethod
    def said(text: str, actual: Iterable[tuple[str, bool, bool]]) -> bool:
        """Return whether the test saw this text."""
        return any(text == one if whole else text in one for one, _, whole in actual)

    def now(self) -> str:
        """Return the current text, with the text around it."""
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
    """A pytest plugin that rewrites the wordings."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts
        self.changed: dict[str, str] = {}  # by key@file.function, as below
        self.good: dict[str, str] = {}  # what a test found
        self.refused: set[str] = set()
        self.seen: list[tuple[Expected, str, bool, bool]] = []
        self.awaited: list[Expected] = []  # by `match=`
        self.error: BaseException | None = None

    def text(self, use: str) -> str:
        """Return the text of this use; if it has none, the latest text of its key, and the one in the file last."""
        return self.changed.get(use) or self.texts.get(use) or self.others(use)[-1]

    def others(self, use: str) -> list[str]:
        """Return the texts of this key that may be meant here; for a new key, its words as a first guess."""
        key = use.partition("@")[0]
        new = [text for other, text in self.changed.items() if other.partition("@")[0] == key]
        return [self.texts.get(use) or self.texts.get(key) or key.replace("_", " "), *new]

    @cached_property
    def replaced(self) -> list[tuple[str, str]]:
        """Return the texts of the program that were replaced since the file was written, with their replacements."""
        from product_words import products

        old, new = set(tomllib.loads(FILE.read_text("utf-8"))["product"]["texts"]), products()
        return pairs(sorted(old - new), sorted(new - old))

    def note(self, expected: Expected, actual: str, found: bool, whole: bool = False) -> None:
        self.seen.append((expected, actual, found, whole))
        if found:
            self.good[expected.key] = self.text(expected.key)

    def mend(self) -> bool:
        """Give the last wording that was not found a new text, and return whether that was possible."""
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
        parts = [actual for actual, _, whole in latest if not whole]
        first, *others = self.others(last.key)
        old, now = filled(first, last.values), self.text(last.key)
        said = (text for text in (first, *others) if text != now and last.said(filled(text, last.values), latest))
        new = exchanged(old, self.replaced, [actual for actual, *_ in latest]) or guided(old, self.replaced, parts)
        similarity, new = (1.0, new) if new else max(resembling(old, text, whole) for text, _, whole in latest)
        template = next(said, "") or emptied(new, last.values, first)
        again = last.key in self.changed and template.count("{") <= now.count("{")
        if similarity < SIMILAR or template == now or again:
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
        if self.error is None:
            self.good |= {awaited.key: self.text(awaited.key) for awaited in self.awaited}
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["messages"] = (self.changed, self.good, sorted(self.refused))
        else:
            write(self.settled(), FILE)

    def settled(self) -> dict[str, str]:
        """Return all texts: for each key the most frequent one, unless a use of the key needs another."""
        found: dict[str, dict[str, str]] = {}
        for use, text in (self.good | self.changed).items():
            found.setdefault(use.partition("@")[0], {})[use] = text
        settled = dict(self.texts)
        for key, uses in found.items():
            counts = Counter(uses.values())
            settled[key] = max(counts, key=lambda text: (counts[text], text == self.texts.get(key), text))
            settled |= uses
        return {use: text for use, text in settled.items() if "@" not in use or text != settled[use.partition("@")[0]]}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the texts that a worker of xdist rewrote; of two texts for a use, the one with more {names}."""
        changed, good, refused = getattr(node, "workeroutput", {}).get("messages", ({}, {}, []))
        self.refused.update(refused)
        self.good |= good
        for key, text in changed.items():
            self.changed[key] = max(text, self.changed.get(key, text), key=lambda text: (text.count("{"), text))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.line(f"messages: {len({use.partition('@')[0] for use in self.changed})} rewritten")
        for key in sorted(self.refused - set(self.changed)):
            terminalreporter.line(
                f"messages: {key.replace('@', ' in ')}: nothing that was said resembles {self.text(key)!r}"
            )


def used(tests: Path = TESTS) -> dict[str, set[str]]:
    """Return every quoted word of the tests, a key or not, with its files; the tests of this plugin have examples only."""
    found: dict[str, set[str]] = {}
    for file in (file for file in tests.rglob("*.py") if file.name != "test_golden.py"):
        for key in _USE.findall(file.read_text("utf-8")):
            found.setdefault(key, set()).add(file.stem)
    return found


def write(texts: dict[str, str], path: Path, sections: Callable[[], Iterable[str]] | None = None) -> None:
    """Write the wordings that tests use, and all texts of the product."""
    from product_words import sections as every

    wanted, lines = used(path.parent), ["[tests]"]
    for use, text in sorted(texts.items()):
        key, _, place = use.partition("@")
        if key in wanted and (not place or place.partition(".")[0] in wanted[key]):
            lines.append(f"{spelled(use) if place else key} = {spelled(text)}")
    path.write_text(HEAD + "\n".join([*lines, *(sections or every)()]) + "\n", "utf-8")


def spelled(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Recorded(ast.NodeTransformer):
    """A transformer that routes `in`, f-strings, methods and `match=` through the functions below."""

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
        node.value = self.visit(node.value)  # a format specification stays unchanged
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
    texts = [_spelled(part) if isinstance(part, Expected) else format(part) for part in parts]
    places = [at for at, part in enumerate(parts) if isinstance(part, Expected) and not part.escaped]
    for part in parts:
        if isinstance(part, Expected) and part.escaped:
            _awaited(part)
    if not places:
        return "".join(texts)
    at = max(places, key=lambda at: len(texts[at]))
    expected: Expected = parts[at]
    return expected.within("".join(texts[:at]), "".join(texts[at + 1 :]))


def _awaited(pattern: Any) -> Any:
    if not isinstance(pattern, Expected):
        return pattern
    pattern.rewriting.awaited.append(pattern)
    return _spelled(pattern)


def _spelled(expected: Expected) -> str:
    return re.escape(expected.now()) if expected.escaped else expected.now()


def _method(self: Any, name: str) -> Any:
    method = getattr(self, name)
    if not isinstance(self, str) and self is not re:
        return method

    def recorded(first: Any, *others: Any, **named: Any) -> Any:
        if not isinstance(first, Expected):
            return method(first, *others, **named)
        text = str(others[0] if self is re else self)
        first.rewriting.note(first, text, first.now() in text)
        return method(_spelled(first), *others, **named)

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
