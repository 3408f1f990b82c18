"""Put small mistakes into the decoder, the drafters and the native engine, and count those that the tests catch.

The script changes a copy of a commit, one mutant (mistake) after another, and continues where it stopped. The draw
depends on the seed and on the lines of both commits. So `--commit A --like B` and `--commit B --like A` draw the same
mutants. pytest loads this file, too, as a plugin. The plugin puts fast tests first and limits the CPU time of each.
"""

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib.util
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "decoding": ["decoding"],
    "drafters": ["drafters", "decoding"],
    "native": ["native"],
    "weights": ["weights", "native"],
}  # of tests
MOST_CPP = 60
MEMORY = 8 << 30
REPLACED = ("not compiled", "same library")  # another mutant is drawn in their place
SIGNS = dict(
    zip(("<", "<=", ">", ">=", "==", "!="), (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq), strict=True)
)
SIGNS |= {"is": ast.Is, "is not": ast.IsNot, "in": ast.In, "not in": ast.NotIn}
COMPARISONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
COMPARISONS |= {"is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",)}
LOGGERS = re.compile(r"\b(log|logger|logging|warnings)\.")
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Raise, ast.Break, ast.Continue)
TIMES_UP = (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL)
UNREAD = ("annotation", "returns", "decorator_list", "bases")
ELSEWHERE = ("neon", "avx_vnni")  # sources for CPUs that the tests do not run on


@dataclass(frozen=True)
class Mutant:
    """A change at one place of a file. Its key is the same in all commits with the same lines around the place."""

    key: str
    file: str
    line: int
    operator: str
    old: str
    new: str
    start: int
    end: int


def altered(node: ast.AST, **fields: Any) -> str:
    """Return the source text of a syntax node after some of its fields were changed."""
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.expr) else text


def returned(value: ast.expr, returns: str) -> str:
    """Return the source text of a wrong result in place of `value`; it depends on the function's return annotation."""
    text = ast.unparse(value)
    return {"bool": f"not ({text})", "int": f"({text}) + 1", "float": f"({text}) + 1"}.get(returns, "None")


def dropped(node: ast.AST) -> bool:
    """Return whether a mutant may leave out this statement. Assignments stay, because later lines need the variables."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name() | ast.Tuple()]):
            return False
    return isinstance(node, DROPPED)


def mistakes(node: ast.AST, returns: str | None = None) -> Iterator[tuple[ast.AST, str, str]]:
    """Yield (node, operator, new text) of each possible mistake below `node`; `returns` is the return annotation."""
    match node:
        case ast.JoinedStr():  # places in f-strings are not known before Python 3.12
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Compare(left=ast.Name(id="__name__"))):
            return
        case ast.Expr(value=ast.Call(func=called)) if LOGGERS.match(ast.unparse(called)):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returns = ast.unparse(node.returns) if node.returns else ""
        case ast.Compare(ops=[op, *others]):
            sign = next(sign for sign, kind in SIGNS.items() if isinstance(op, kind))
            for new in COMPARISONS[sign]:
                yield node, "comparison", altered(node, ops=[SIGNS[new](), *others])
        case ast.BoolOp():
            yield node, "and/or", altered(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield node, "negation", f"({ast.unparse(node.operand)})"
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield node, "+/-", altered(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
        case ast.Constant(value=bool()):
            yield node, "negation", str(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield node, "constant", f"{value + 1!r}"
            yield node, "constant", f"({value - 1!r})"
        case ast.Return(value=ast.expr() as value) if returns is not None and ast.unparse(value) != "None":
            yield value, "return", f"({returned(value, returns)})"
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, "negation", f"(not {ast.unparse(test)})"
    for name, field in ast.iter_fields(node):
        if name in UNREAD or isinstance(node, ast.Raise):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                if returns is not None and dropped(child):
                    yield child, "statement", "pass"
                yield from mistakes(child, returns)


def python_places(text: bytes) -> Iterator[tuple[int, int, str, bytes]]:
    """Yield (start, end, operator, new text) of each possible mistake in a Python file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for place, operator, new in mistakes(ast.parse(text)):
        node: Any = place  # of a kind that has a line
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if not text[start:end].startswith(b"elif"):
            yield start, end, operator, new.encode()


NOT_CODE = re.compile(
    rb"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ ]*\#(?:\\\n|[^\n])*"
    rb"|static_assert\([^;]*;|\btemplate\s*<[^\n]*",
    re.DOTALL | re.MULTILINE,
)
CPP = {
    "comparison": rb"(?<= )(?:<=|>=|==|!=|<|>)(?= )",
    "and/or": rb"(?<= )(?:&&|\|\|)(?= )",
    "+/-": rb"(?<= )[+-](?= |=)",
    "negation": rb"\b(?:true|false)\b|(?<![\w)\]])!(?=[\w(])",
    "constant": rb"(?<![\w.])\d+(?![\w.])",
    "return": rb"(?<=\breturn )[^;{}\n]+(?=;)",
    "statement": rb"(?<=\n)[ ]+(?:[\w.\[\]>*-]+ [-+*/|&^]?= [^;{}\n]*|[\w.:>-]+\([^;{}\n]*\));(?=\n)",
}
SWAPPED = {"&&": "||", "||": "&&", "+": "-", "-": "+", "true": "false", "false": "true", "!": ""}


def cpp_places(text: bytes) -> Iterator[tuple[int, int, str, bytes]]:
    """Yield (start, end, operator, new text) of each possible mistake in a C++ file."""
    code = NOT_CODE.sub(lambda match: re.sub(rb"[^\n]", b" ", match[0]), text)
    for operator, pattern in CPP.items():
        for match in re.finditer(pattern, code):
            old = match[0].decode()
            if operator == "comparison":
                replacements = COMPARISONS[old]
            elif operator == "constant":
                replacements = (str(int(old) + 1), f"({int(old) - 1})")
            else:
                replacements = (
                    ({"return": "{}", "statement": ";"}.get(operator) or SWAPPED[old],) if old != "!" else ("",)
                )
            for new in replacements:
                yield *match.span(), operator, new.encode()


def mutants_of(file: str, text: bytes, seed: int) -> Iterator[Mutant]:
    """Yield the mutants of a file. A place is left out if another one has the same text and the same lines around it."""
    mutants = []
    for start, end, operator, new in (python_places if file.endswith(".py") else cpp_places)(text):
        before, after = text[:start].split(b"\n"), text[end:].split(b"\n")
        around = (b"\n".join(before[-3:]), text[start:end], b"\n".join(after[:3]))
        key = hashlib.sha256(repr((seed, file, operator, around, new)).encode()).hexdigest()[:16]
        mutants.append(Mutant(key, file, len(before), operator, text[start:end].decode(), new.decode(), start, end))
    count = Counter(mutant.key for mutant in mutants)
    yield from (mutant for mutant in mutants if count[mutant.key] == 1)


def archive(commit: str, *paths: str) -> tarfile.TarFile:
    """Return the files of a commit as a tar file."""
    done = subprocess.run(["git", "-C", ROOT, "archive", commit, *paths], stdout=subprocess.PIPE, check=True)
    return tarfile.open(fileobj=io.BytesIO(done.stdout))


def every_mutant(commit: str, seed: int) -> dict[str, Mutant]:
    """Return all mutants of a commit by their keys."""
    files = archive(commit, *(f"localspec/{package}" for package in FOLDERS))
    names = [name for name in files.getnames() if name.endswith((".py", ".cpp", ".h"))]
    names = [name for name in names if not any(word in name for word in ELSEWHERE)]
    texts = {name: file.read() for name in names if (file := files.extractfile(name))}
    return {m.key: m for name, text in texts.items() for m in mutants_of(name, text, seed)}


def drawn(commit: str, like: str, seed: int) -> list[Mutant]:
    """Return the mutants of both commits in random order, at most one per line. Operators take turns; a fifth is C++."""
    others = every_mutant(like, seed)
    candidates, lines, ranks = [], set[tuple[str, int]](), Counter[tuple[str, int]]()
    for mutant in sorted(every_mutant(commit, seed).values(), key=lambda mutant: mutant.key):
        if mutant.key in others and (place := (mutant.file, mutant.line)) not in lines:
            lines.add(place)
            share = 1 if mutant.file.endswith(".py") else 4
            kind = mutant.operator, share
            candidates.append((ranks[kind] * share, mutant.key, mutant))
            ranks[kind] += 1
    return [mutant for *_, mutant in sorted(candidates, key=lambda row: row[:2])]


class Copy:
    """A copy of a commit in a folder, with the results and seconds of its tests before any change."""

    def __init__(self, commit: str, folder: Path) -> None:
        """Write the copy and build its native library."""
        self.folder, self.tree = folder, folder / "tree"
        self.library = self.tree / "localspec/native/localspec_native.so"
        archive(commit).extractall(self.tree, filter="data")
        (folder / "plugin").mkdir(exist_ok=True)
        shutil.copy(__file__, folder / "plugin")
        if not self.built():
            raise SystemExit(f"The native library of {commit} does not build in {self.tree}.")
        shutil.copytree(self.tree / "build", folder / "clean", dirs_exist_ok=True)
        self.unchanged = self.library.read_bytes()
        self.base = {name: self.measured(name) for name in FOLDERS}

    def built(self) -> bool:
        """Return whether the native library compiles."""
        command = [sys.executable, "localspec/native/build.py"]
        return not subprocess.run(command, cwd=self.tree, capture_output=True, check=False).returncode

    def measured(self, name: str) -> dict[str, Any]:
        """Run a folder's tests without any change. Return their seconds, and the tests that fail."""
        place = self.folder / f"base-{name}.json"
        if not place.is_file():
            print(f"mutants: measuring tests/{name}", flush=True)
            began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            status, ended = self.tested([name], {}, 4 * 3600, "unlimited")
            if status not in (0, 1):
                raise SystemExit(f"The tests of {name} end with {status}. Read {self.folder / 'output.txt'}.")
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds: Counter[str] = Counter()
            for test, took, _ in ended:
                seconds[test] += took
            failed = sorted({test for test, _, outcome in ended if outcome == "failed"})
            cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            base = {"wall": time.monotonic() - began, "cpu": cpu, "failed": failed, "seconds": seconds}
            place.write_text(json.dumps(base))
        return json.loads(place.read_text())

    def tested(self, names: list[str], order: dict[str, Any], wall: float, cpu: int | str) -> tuple[int, list[Any]]:
        """Run the tests of some folders. With an `order`, stop at the first failure.

        Returns:
            The exit status of pytest, and (test, seconds, outcome) of each stage of each test.
        """
        progress = self.folder / "progress.jsonl"
        progress.write_text("")
        (self.folder / "order.json").write_text(json.dumps(order))
        path = os.pathsep.join(map(str, (self.tree, self.tree / "tui", self.folder / "plugin")))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LOCALSPEC_HOME": str(self.folder / "home")}
        env["MUTANTS"] = str(self.folder)
        limits = f'ulimit -c 0 -v {MEMORY >> 10} -t {cpu}; exec "$@"'
        command = ["bash", "-c", limits, "limits", sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "mutants"]
        stall = 900 if order else 0  # seconds of a test that waits; on a busy machine, a computing test may need some
        command += ["-p", "no:cacheprovider", "-o", f"timeout={stall}", "-o", "timeout_method=thread"]
        command += [
            "--hypothesis-seed=0",
            f"--basetemp={self.folder / 'tmp'}",
            *(f"tests/{name}" for name in names),
        ] + ["-x"] * bool(order)
        with (self.folder / "output.txt").open("w") as output:
            done = subprocess.Popen(command, cwd=self.tree, env=env, stdout=output, stderr=output, process_group=0)
            try:
                status = done.wait(wall)
            except subprocess.TimeoutExpired:
                status = -signal.SIGXCPU
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(done.pid, signal.SIGKILL)
                done.wait()
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)
        return status, [json.loads(line) for line in progress.read_text().splitlines()]

    def tried(self, mutant: Mutant, first: list[str]) -> dict[str, Any]:
        """Make the change of a mutant, run the tests (`first` ones first), undo the change, and return the result."""
        file, cpp = self.tree / mutant.file, not mutant.file.endswith(".py")
        text, began = file.read_bytes(), time.monotonic()
        names = FOLDERS[Path(mutant.file).parts[1]]
        changed = text[: mutant.start] + mutant.new.encode() + text[mutant.end :]
        try:
            file.write_bytes(changed)
            if not (self.built() if cpp else compiles(changed)):
                return {"outcome": "not compiled"}
            if cpp and self.library.read_bytes() == self.unchanged:
                return {"outcome": "same library"}
            bases = [self.base[name] for name in names]
            order = {
                "first": first,
                "failed": [test for base in bases for test in base["failed"]],
                "seconds": {test: seconds for base in bases for test, seconds in base["seconds"].items()},
            }
            wall, cpu = sum(base["wall"] for base in bases), sum(base["cpu"] for base in bases)
            status, ended = self.tested(list(names), order, 5 * wall + 300, int(3 * cpu + 60))
            return {**verdict(status, ended), "seconds": round(time.monotonic() - began, 1)}
        finally:
            file.write_bytes(text)
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
            if cpp:
                shutil.rmtree(self.tree / "build")
                shutil.copytree(self.folder / "clean", self.tree / "build")
                self.library.unlink(missing_ok=True)
                self.library.write_bytes(self.unchanged)
                self.library.chmod(0o755)


def compiles(text: bytes) -> bool:
    """Return whether a text is valid Python."""
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def verdict(status: int, ended: list[Any]) -> dict[str, Any]:
    """Return the outcome by pytest's exit status, and the test that failed or was interrupted."""
    test = next((row[0] for row in ended if row[2] == "failed"), None)
    if status == 0:
        outcome = "survived"
    elif test or status > 1:  # above 1 the tests could not be collected
        outcome = "caught"
    else:  # pytest-timeout ends the process with 1 before the test has an outcome
        outcome = "timed out" if status in (1, *(-number for number in TIMES_UP)) else "crashed"
    return {"outcome": outcome, "caught": status != 0, "by": test or (ended[-1][0] if status and ended else None)}


def note(*row: object) -> None:
    """Append a line to the file of progress."""
    with Path(os.environ["MUTANTS"], "progress.jsonl").open("a") as progress:
        progress.write(json.dumps(row) + "\n")


ORDER = pytest.StashKey[dict[str, Any]]()


def pytest_configure(config: pytest.Config) -> None:
    """Read the file that says in which order to run the tests."""
    config.stash[ORDER] = json.loads(Path(os.environ["MUTANTS"], "order.json").read_text())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that fail without a mutant. Put fast tests first, and tests of a file next to each other."""
    if order := config.stash[ORDER]:
        first, seconds = set(order["first"]), order["seconds"]
        items[:] = [item for item in items if item.nodeid not in order["failed"]]
        bands = {test: sum(took > limit for limit in (0.1, 1, 5)) for test, took in seconds.items()}
        items.sort(key=lambda item: (item.nodeid not in first, bands.get(item.nodeid, 0)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process if a test takes longer than 20 CPU seconds plus ten times its usual time."""
    note(item.nodeid, 0, "started")
    if order := item.config.stash[ORDER]:
        signal.setitimer(signal.ITIMER_PROF, 20 + 10 * order["seconds"].get(item.nodeid, 0))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a stage of a test (setup, call or teardown)."""
    note(report.nodeid, report.duration, report.outcome)


def table(rows: list[dict[str, Any]], against: dict[str, Any]) -> str:
    """Return a table of outcomes by package, and a list of mutants that survived here but not in the run `against`."""
    outcomes = ("caught", "crashed", "timed out", "survived")
    lines = ["| package | mutants | " + " | ".join(outcomes) + " |", "|---|" + "--:|" * 5]
    for package in (*FOLDERS, ""):
        results = [row["outcome"] for row in rows if row["file"].startswith(f"localspec/{package}")]
        counts = " | ".join(str(results.count(outcome)) for outcome in outcomes)
        lines.append(f"| {package or 'all'} | {len(results)} | {counts} |")
    against = {key: row for key, row in against.items() if row["outcome"] not in REPLACED}
    if pairs := [(row, against[row["key"]]) for row in rows if row["key"] in against]:
        caught = [sum(pair[at]["caught"] for pair in pairs) for at in (0, 1)]
        lines.append(f"\nOf {len(pairs)} mutants in both files, {caught[0]} are caught here and {caught[1]} there.")
        lost = [here for here, there in pairs if there["caught"] and not here["caught"]]
        lines += [f"caught there only: {m['file']}:{m['line']} {m['old']!r} -> {m['new']!r}" for m in lost]
    return "\n".join(lines)


def read(path: Path | None) -> dict[str, Any]:
    """Return the rows of a results file by the keys of their mutants; {} if there is no file."""
    lines = path.read_text().splitlines() if path and path.is_file() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the small mistakes that the tests catch.")
    parser.add_argument("--commit", required=True, help="what is changed and tested")
    parser.add_argument("--like", help="only lines that this commit has too")
    parser.add_argument("--into", required=True, type=Path, help="a folder for the copy, outside every checkout")
    parser.add_argument(
        "--results", required=True, type=Path, help="a JSON line for each mutant; goes on after the last"
    )
    parser.add_argument("--against", type=Path, help="results of another commit, to compare with")
    parser.add_argument("--seed", type=int, default=47)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--hours", type=float, default=2, help="for mutants, without the unchanged tests")
    options = parser.parse_args()
    into, stop = options.into.resolve(), 0.0
    if ROOT in (into, *into.parents):
        parser.error(f"--into is {into}, in the checkout. Name a folder outside.")
    into.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running tests are ended, too
    done = {key: row for key, row in read(options.results).items() if row["commit"] == options.commit}
    here: Copy | None = None
    rows: list[dict[str, Any]] = []
    for mutant in drawn(options.commit, options.like or options.commit, options.seed):
        cpp = not mutant.file.endswith(".py")
        if cpp and sum(not row["file"].endswith(".py") for row in rows) == MOST_CPP:
            continue
        if mutant.key not in done:
            here = here or Copy(options.commit, into)
            stop = stop or time.monotonic() + options.hours * 3600
            if time.monotonic() > stop:
                break
            first = [row["by"] for row in rows if row.get("by") and row["file"] == mutant.file]
            row = {**asdict(mutant), "commit": options.commit, **here.tried(mutant, first)}
            done[mutant.key] = row
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")
        if done[mutant.key]["outcome"] not in REPLACED:
            rows.append(done[mutant.key])
        if len(rows) == options.count:
            break
    print(table(rows, read(options.against)))


if __name__ == "__main__":
    main()
