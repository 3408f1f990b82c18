"""Stage a: the part of the test suite that is for GPUs, a file at a time."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from figures import table

from gpu_stages.aims import EXACT, NEAR, NEAR_BYTES, Aim, failed, shares
from gpu_stages.asked import ROOT, Asked
from gpu_stages.record import Record, TimeUp, failure
from localspec.machine.memory import total_memory

FOLDER = ROOT / "tests" / "gpu"
OPTIONS = ("-o", "addopts=--import-mode=importlib", "-p", "no:logging", "-p", "no:cacheprovider", "-q")
# Texts need little of a card and take most of the time, so several processes share it, each with its own context.
SHARED, MOST_SHARERS, OF_EACH = ("test_1_lossless",), 12, 2 * 2**30  # bytes of the card
LONGEST = 400  # characters of a failure
LEAST = 30.0  # seconds
# A test and its property; tests/gpu/test_1_lossless.py and tests/gpu/test_4_memory.py have them.
EXACT_TEST, EXACT_TOLD = "test_in_the_exact_form", "replies that are the plain ones"
# What tests record, in the words of the page; other records stay in the stage's file.
MEANINGS = {
    EXACT_TOLD: "replies with `--exact` that equal plain decoding bit for bit",
    "exactness": "self-test of exactness",
    "of the prediction": "memory ÷ predicted memory",
}
RECORDS = (
    "The tests recorded these values. A case is a precision with a drafter, or with the fastest or the exact way of computing. "
    "The value of the self-test is the precision, the grade, and the largest difference between a row computed by itself and with "
    "others; *rows by 16* are filled up to a multiple of 16."
)
PEAK_TEST, PEAK_TOLD = "test_the_peak_is_what_was_predicted", "bytes at the peak, of those that were predicted"


def run(record: Record, asked: Asked) -> None:
    """Losslessness first, by the names of the files."""
    for file in sorted(FOLDER.glob("test_*.py")):
        record.measured(file.stem, lambda: tests(file, asked, record.left), least=LEAST)


def tests(file: Path, asked: Asked, seconds: float) -> dict[str, Any]:
    """Return the counts, failures and reports of the tests in one file. Raise TimeUp where they take too long."""
    report = asked.work / f"{file.stem}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", str(file)]
    command += ["-m", "not slow"] if asked.small else []
    if file.stem in SHARED and (count := sharers(asked)) > 1:
        command += ["-n", str(count)]
    try:
        where = {**os.environ, "LOCALSPEC_TEST_DEVICE": asked.device}
        done = subprocess.run(
            command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeUp(file.name) from None
    if not report.exists():
        raise RuntimeError((done.stdout + done.stderr).strip()[-LONGEST:])
    return counts(report)


def sharers(asked: Asked) -> int:
    """Return how many processes may share the GPU."""
    if asked.small or not asked.on_gpu or not find_spec("xdist"):
        return 1
    return min(MOST_SHARERS, os.cpu_count() or 1, total_memory(asked.device) // OF_EACH)


def counts(report: Path) -> dict[str, Any]:
    """Return the counts of a JUnit file."""
    found: dict[str, Any] = {"passed": 0, "wrong": {}, "skipped": {}, "told": {}, "seconds": 0.0}
    for case in ET.parse(report).getroot().iter("testcase"):  # our own file
        name = str(case.get("name"))
        found["seconds"] += float(case.get("time") or 0)
        trouble = [part for part in case if part.tag in ("failure", "error")]
        skipped = [part for part in case if part.tag == "skipped"]
        if trouble:
            found["wrong"][name] = str(trouble[0].get("message"))[:LONGEST]
        elif skipped:
            found["skipped"][name] = str(skipped[0].get("message"))[:LONGEST]
        else:
            found["passed"] += 1
        for told in case.iter("property"):
            found["told"][f"{name}: {told.get('name')}"] = str(told.get("value"))
    return found


def section(figures: dict[str, Any]) -> str:
    good = {name: one for name, one in figures.items() if not failure(one)}
    lines = [
        [name, str(one["passed"]), str(len(one["wrong"])), str(len(one["skipped"])), f"{one['seconds']:.0f}"]
        for name, one in good.items()
    ]
    parts = [table(["file", "passed", "failed", "skipped", "seconds of all processes"], lines)] if lines else []
    wrong = [
        f"- {name}: {why.splitlines()[0] if why else ''}" for one in good.values() for name, why in one["wrong"].items()
    ]
    left = sorted({why for one in good.values() for why in one["skipped"].values()})
    told = recorded(item for one in good.values() for item in one["told"].items())
    parts += ["Failed:\n\n" + "\n".join(wrong)] if wrong else []
    parts += ["Skipped, because: " + "; ".join(left) + "."] if left else []
    parts += [f"{RECORDS}\n\n{table(['recorded', 'value', 'cases'], told)}"] if told else []
    return "\n\n".join([*parts, *failed(figures)])


def recorded(items: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return a row for each record and value, with the parameters of all cases that recorded it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, value in items:
        case, _, what = name.partition(": ")
        if what in MEANINGS:
            found.setdefault((MEANINGS[what], value), []).append(case.partition("[")[2].removesuffix("]"))
    return [[meaning, value, ", ".join(cases)] for (meaning, value), cases in found.items()]


def aims(figures: dict[str, Any]) -> list[Aim]:
    good = [one for one in figures.values() if not failure(one)]
    wrong = sum(len(one["wrong"]) for one in good) + len(figures) - len(good) if figures else None
    return [
        Aim("tests that fail", wrong, 0, at_most=True),
        Aim("share of `--exact` replies that equal plain decoding bit for bit", exact(good), EXACT),
        Aim(
            f"share of memory predictions within {100 * NEAR:.0f} % or {NEAR_BYTES / 1e6:.0f} MB of the peak",
            shares(
                abs(said - peak) <= max(NEAR * peak, NEAR_BYTES) for peak, said in numbers(good, PEAK_TEST, PEAK_TOLD)
            ),
            1.0,
        ),
    ]


def exact(good: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of all replies that are equal; a test that ended before its report counts as one that differs."""
    told = numbers(good, EXACT_TEST, EXACT_TOLD)
    ended = [
        name
        for one in good
        for name in one["wrong"]
        if name.startswith(EXACT_TEST) and f"{name}: {EXACT_TOLD}" not in one["told"]
    ]
    of = sum(count for _, count in told) + len(ended)
    return sum(same for same, _ in told) / of if of else None


def numbers(good: Sequence[Mapping[str, Any]], test: str, what: str) -> list[tuple[int, int]]:
    """Return the two numbers that each of the tests of this name reported."""
    told = [
        value for one in good for name, value in one["told"].items() if name.startswith(test) and name.endswith(what)
    ]
    return [(int(first), int(second)) for first, second in (value.split(" of ") for value in told)]
