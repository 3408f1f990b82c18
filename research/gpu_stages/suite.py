"""Stage a: runs the tests for GPUs, one file at a time."""

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
from gpu_stages.record import Record, TimeUp, failure
from gpu_stages.request import ROOT, Request
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
FILES = "A line is a file of tests. *Seconds* adds up the times of all tests, some of which ran at the same time."
RECORDS = (
    "In the next table a line is a value that tests recorded. *Cases* names these tests, by precision and drafter (`fp32-medusa`) or by precision and "
    "way of computing (`fp32-fastest`; `fp32-exact` is with `--exact`).\n\n"
    "- The *self-test of exactness* computes a row by itself and together with other rows. `fp32: numerical, 2.9e-07, rows by 1` means that in fp32 "
    "the two results differ, by up to 2.9e-07. Without a difference the word is `bitwise`. With `rows by 16` each pass was filled up to a multiple of 16 rows.\n"
    "- *Memory ÷ predicted memory* is best near 1. *Peak* is the most memory used, and *loading* the most while the model was loaded."
)
PEAK_TEST, PEAK_TOLD = "test_the_peak_is_what_was_predicted", "bytes at the peak, of those that were predicted"


def run(record: Record, request: Request) -> None:
    """Run all files of tests in the order of their names, which begins with losslessness."""
    for file in sorted(FOLDER.glob("test_*.py")):
        record.measured(file.stem, lambda: tests(file, request, record.left), least=LEAST)


def tests(file: Path, request: Request, seconds: float) -> dict[str, Any]:
    """Run the tests in one file, and return their counts, failures and recorded values. Raises TimeUp after `seconds`."""
    report = request.work / f"{file.stem}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", str(file)]
    command += ["-m", "not slow"] if request.small else []
    if file.stem in SHARED and (count := sharers(request)) > 1:
        command += ["-n", str(count)]
    try:
        where = {**os.environ, "LOCALSPEC_TEST_DEVICE": request.device}
        done = subprocess.run(
            command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeUp(file.name) from None
    if not report.exists():
        raise RuntimeError((done.stdout + done.stderr).strip()[-LONGEST:])
    return counts(report)


def sharers(request: Request) -> int:
    """Return how many test processes may share the GPU."""
    if request.small or not request.on_gpu or not find_spec("xdist"):
        return 1
    return min(MOST_SHARERS, os.cpu_count() or 1, total_memory(request.device) // OF_EACH)


def counts(report: Path) -> dict[str, Any]:
    """Return the counts, failures and recorded values in a report of tests (JUnit XML)."""
    result: dict[str, Any] = {"passed": 0, "wrong": {}, "skipped": {}, "told": {}, "seconds": 0.0}
    for case in ET.parse(report).getroot().iter("testcase"):  # our own file
        name = str(case.get("name"))
        result["seconds"] += float(case.get("time") or 0)
        trouble = [part for part in case if part.tag in ("failure", "error")]
        skipped = [part for part in case if part.tag == "skipped"]
        if trouble:
            result["wrong"][name] = str(trouble[0].get("message"))[:LONGEST]
        elif skipped:
            result["skipped"][name] = str(skipped[0].get("message"))[:LONGEST]
        else:
            result["passed"] += 1
        for prop in case.iter("property"):
            result["told"][f"{name}: {prop.get('name')}"] = str(prop.get("value"))
    return result


def section(figures: dict[str, Any]) -> str:
    good = {name: result for name, result in figures.items() if not failure(result)}
    lines = [
        [
            name,
            str(result["passed"]),
            str(len(result["wrong"])),
            str(len(result["skipped"])),
            f"{result['seconds']:.0f}",
        ]
        for name, result in good.items()
    ]
    parts = [f"{FILES}\n\n{table(['file', 'passed', 'failed', 'skipped', 'seconds'], lines)}"] if lines else []
    wrong = [
        f"- {name}: {why.splitlines()[0] if why else ''}"
        for result in good.values()
        for name, why in result["wrong"].items()
    ]
    left = sorted({why for result in good.values() for why in result["skipped"].values()})
    rows = recorded(item for result in good.values() for item in result["told"].items())
    parts += ["Failed:\n\n" + "\n".join(wrong)] if wrong else []
    parts += ["Skipped, because: " + "; ".join(left) + "."] if left else []
    parts += [f"{RECORDS}\n\n{table(['recorded', 'value', 'cases'], rows)}"] if rows else []
    return "\n\n".join([*parts, *failed(figures)])


def recorded(items: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return a table row for each recorded value, with the parameters of all test cases that recorded it."""
    by_record: dict[tuple[str, str], list[str]] = {}
    for name, value in items:
        case, _, kind = name.partition(": ")
        if kind in MEANINGS:
            by_record.setdefault((MEANINGS[kind], value), []).append(case.partition("[")[2].removesuffix("]"))
    return [[meaning, value, ", ".join(cases)] for (meaning, value), cases in by_record.items()]


def aims(figures: dict[str, Any]) -> list[Aim]:
    good = [result for result in figures.values() if not failure(result)]
    wrong = sum(len(result["wrong"]) for result in good) + len(figures) - len(good) if figures else None
    return [
        Aim("tests that fail", wrong, 0, at_most=True),
        Aim("share of `--exact` replies that equal plain decoding bit for bit", exact(good), EXACT),
        Aim(
            f"share of memory predictions that were wrong by at most {100 * NEAR:.0f} % or {NEAR_BYTES / 1e6:.0f} MB",
            shares(
                abs(predicted - peak) <= max(NEAR * peak, NEAR_BYTES)
                for peak, predicted in numbers(good, PEAK_TEST, PEAK_TOLD)
            ),
            1.0,
        ),
    ]


def exact(good: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of replies that equal plain decoding's. A test that ended early counts as a reply that differs."""
    pairs = numbers(good, EXACT_TEST, EXACT_TOLD)
    ended = [
        name
        for result in good
        for name in result["wrong"]
        if name.startswith(EXACT_TEST) and f"{name}: {EXACT_TOLD}" not in result["told"]
    ]
    total = sum(count for _, count in pairs) + len(ended)
    return sum(same for same, _ in pairs) / total if total else None


def numbers(good: Sequence[Mapping[str, Any]], test: str, ending: str) -> list[tuple[int, int]]:
    """Return the two numbers in each value that the tests of this name recorded, such as `3 of 4`."""
    values = [
        value
        for result in good
        for name, value in result["told"].items()
        if name.startswith(test) and name.endswith(ending)
    ]
    return [(int(first), int(second)) for first, second in (value.split(" of ") for value in values)]
