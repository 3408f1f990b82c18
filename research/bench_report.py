"""Compare the CPU engine with llama.cpp and transformers on the widened demo: docs/figures/benchmarks.md and its drawings.

    python research/bench_report.py --work build/bench [--only rows,decode] [--seconds 300] [--models small,large]

Files are made in --work once (`--prepare` makes them and stops). Each section of each model is measured by itself, and
takes the place of its last measurement in the raw file; the page is drawn from that file (`--draw` does nothing else).
The page begins with the `summary` of the raw file, which is written by hand.
LOCALSPEC_ISA=avx2 measures our library with other instructions, and taskset with fewer cores.
"""

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("flags", "rows", "context", "prefill", "load", "decode")
PACKAGES = ("torch", "transformers", "llama-cpp-python")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="where models and files are kept")
    parser.add_argument("--models", default="small,large", help="the demo widened to 0.4 B, and to 1.4 B")
    parser.add_argument("--model", type=Path, action="append", help="a directory with a draft model, instead of those")
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of the sections")
    parser.add_argument("--seconds", type=float, default=300, help="for each section of each model; one turn at least")
    parser.add_argument("--peers", default="llama.cpp,transformers")
    parser.add_argument("--prompts", type=Path, help="JSONL or lines, as `localspec bench` reads them; some of our own")
    parser.add_argument("-n", "--max-tokens", type=int, default=96, help="of a reply")
    parser.add_argument("--raw", type=Path, default=ROOT / "docs" / "figures" / "benchmarks.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "figures" / "benchmarks.md")
    parser.add_argument("--prepare", action="store_true", help="make the files, and measure nothing")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    return parser.parse_args()


def chosen(given: str, known: tuple[str, ...], what: str) -> list[str]:
    """Return the parts of a list with commas. Raises UsageMistake for one that there is not."""
    from localspec.errors import UsageMistake

    parts = [part for part in given.split(",") if part]
    for part in parts:
        if part not in known:
            raise UsageMistake(f"{what} {part!r} is unknown; use some of {','.join(known)}.")
    return parts


def models(asked: argparse.Namespace) -> list[Any]:
    from benchmarks.workshop import FACTORS, Model, widened

    from localspec.machine.hardware import physical_cores

    threads = physical_cores()
    if asked.model:
        return [Model(path.resolve(), asked.work, threads) for path in asked.model]
    return [widened(name, asked.work, threads) for name in chosen(asked.models, tuple(FACTORS), "--models")]


def prepare(model: Any, sections: list[str], peers: list[str], progress: Callable[[str], None]) -> None:
    """Make all files that the sections need."""
    from benchmarks.contenders import OURS, THEIRS, Ours
    from benchmarks.sections import CONTEXTS, NEAR

    for packing in OURS:
        progress(f"{model.name}: packing {packing}")
        Ours(model, packing, NEAR).close()
    if "llama.cpp" in peers:
        for kind in THEIRS:
            for one in (model, model.draft) if "decode" in sections else (model,):
                progress(f"{one.path}: {kind}")
                one.gguf(kind)
        for section, tokens in (("rows", NEAR), ("context", max(CONTEXTS))):
            if section in sections:
                progress(f"{model.name}: llama.cpp reads {tokens} tokens")
                model.state(tokens)


def measure(model: Any, section: str, asked: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """One section of one model, with all that its figures are valid for."""
    from benchmarks import decoding, loading, sections

    from localspec.bench import prompts
    from localspec.machine import compiled, hardware

    loads = [os.getloadavg()[0]]

    def watched(line: str) -> None:
        loads.append(os.getloadavg()[0])
        progress(f"{model.name}, {section}: {line}")

    texts = prompts.read(asked.prompts) if asked.prompts else prompts.BUILT_IN
    wanted = sections.Wanted(
        asked.seconds, chosen(asked.peers, ("llama.cpp", "transformers"), "--peers"), watched,
        [prompt.text for prompt in prompts.spread(texts, None)], asked.max_tokens,
    )  # fmt: skip
    began = datetime.now(UTC)
    way = {"flags": sections.flags, "rows": sections.rows, "context": sections.context, "prefill": sections.prefill,
           "load": loading.measure, "decode": decoding.measure}[section]  # fmt: skip
    measured = way(model, wanted)
    return {
        "model": model.name, "parameters": model.parameters, "section": section, "isa": compiled.instruction_set(),
        "machine": f"{hardware.cpu_name()}, {hardware.physical_cores()} cores, {_memory()}, {platform.platform()}",
        "versions": ", ".join([hardware.versions(), f"Python {platform.python_version()}", *_versions()]),
        "threads": model.threads, "when": began.strftime("%Y-%m-%d %H:%M"), "command": _command(),
        "load_average": [round(min(loads), 2), round(max(loads), 2)],
        "notes": measured.notes, "readings": measured.readings,
    }  # fmt: skip


def _memory() -> str:
    import psutil

    return f"{psutil.virtual_memory().total / 2**30:.0f} GiB"


def _versions() -> list[str]:
    import checkout  # noqa: F401
    from llama_cpp_model import library

    told = library().llama_print_system_info().decode()
    used = ", ".join(part.split("=")[0].strip() for part in told.split("|") if part.strip().endswith("1"))
    return [*(f"{package} {version(package)}" for package in PACKAGES), f"llama.cpp with {used}"]


def _command() -> str:
    """Return the command as it was given, without the paths of this machine."""
    isa = os.environ.get("LOCALSPEC_ISA")
    words, given = [], iter(sys.argv[1:])
    for word in given:
        if word in ("--work", "--raw", "--page", "--prompts", "--model"):
            words += [word, Path(next(given)).name]
        else:
            words.append(word)
    return " ".join([*([f"LOCALSPEC_ISA={isa}"] if isa else []), "python research/bench_report.py", shlex.join(words)])


def flash(raw: Mapping[str, Any], model: str) -> bool:
    """Return whether llama.cpp is faster with flash attention, where that was measured for this model."""
    from benchmarks.sections import flash_is_faster

    found = [run["readings"] for run in raw["runs"].values() if (run["model"], run["section"]) == (model, "flags")]
    return flash_is_faster(found[-1]) if found else True


def merge(file: Path, run: Mapping[str, Any]) -> None:
    """Put a run in the place of the last one of its model, section and instructions; the file is whole at any time."""
    raw = read(file)
    raw["runs"][f"{run['model']}/{run['section']}/{run['isa']}"] = run
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(raw, ensure_ascii=False) + "\n", "utf-8")
    partial.replace(file)


def read(file: Path) -> dict[str, Any]:
    """Return the raw figures, empty before the first run."""
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {"runs": {}}


def draw(raw: Path, page: Path) -> None:
    """Write the page and its drawings."""
    from benchmarks import page as pages

    known = read(raw)
    page.write_text(pages.page(known), "utf-8")
    folder = page.parent / "plots"
    folder.mkdir(exist_ok=True)
    for name, content in pages.drawings(known).items():
        (folder / name).write_text(content, "utf-8")


def main() -> int:
    asked = arguments()
    asked.work = asked.work.resolve()
    asked.work.mkdir(parents=True, exist_ok=True)
    os.environ["LOCALSPEC_HOME"] = str(asked.work / "home")  # neither the user's settings nor the user's cache
    from compare_peers import KINDS, require

    from localspec.errors import LocalspecError

    def progress(line: str) -> None:
        print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, end="", file=sys.stderr, flush=True)
        if not sys.stderr.isatty():
            print(file=sys.stderr)

    try:
        if not asked.draw:
            sections = chosen(asked.only, SECTIONS, "--only")
            kinds = chosen(asked.peers, tuple(KINDS), "--peers")
            require(kinds)
            for model in models(asked):
                # Later sections use the flags of llama.cpp that this section finds best.
                if "flags" in sections and "llama.cpp" in kinds and not asked.prepare:
                    merge(asked.raw, measure(model, "flags", asked, progress))
                model = replace(model, flash=flash(read(asked.raw), model.name))
                others = [section for section in sections if section != "flags"]
                prepare(model, others, kinds, progress)
                for section in () if asked.prepare else others:
                    merge(asked.raw, measure(model, section, asked, progress))
        if not asked.prepare:
            draw(asked.raw, asked.page)
    except LocalspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
