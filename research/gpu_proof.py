"""Check and measure on one NVIDIA GPU what a CPU cannot show, and write docs/figures/gpu-figures.md.

    python research/gpu_proof.py --work DIR [--stages a d b f c e g] [--seconds 540] [--prompts DIR] [--data DIR]
    python research/gpu_proof.py --work DIR --device cpu --small    # a rehearsal with tiny shapes, in two to three minutes
    python research/gpu_proof.py --needs [--prompts DIR] [--data DIR]

Stages: a runs the tests in tests/gpu. b measures forwards by their rows, kernels and attention. c compares captured
steps with eager ones. d measures drafters on the widened demo model. e compares localspec with transformers. f measures
training steps. g trains the demo model again. Each stage is a separate process that ends after --seconds. Its figures
are saved in DIR/STAGE.json and are not measured again, so the same command continues. The page is written again after
each stage.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for machines where localspec is not installed
if INTERRUPTED := __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # nothing is measured during imports

import psutil
from experiment import positive, same_settings
from filelock import FileLock, Timeout
from gpu_stages.children import GRACE, last_line, run_script
from gpu_stages.record import DeviceLost, Record, TimeUp, read
from gpu_stages.request import MODELS, ROOT, Request, check

from localspec.errors import LocalspecError

ORDER = ("a", "d", "b", "f", "c", "e", "g")
AGAIN, OVER = 75, 76  # exit codes of a stage: it needs another process; its time is up
REFUSED = 2  # the exit code of a usage error
MOST_PROCESSES = 6  # of one stage in one call
SLACK = 15.0  # seconds that a stage may take beyond its time before it is ended
START = 20.0  # seconds; with less, another process is not worth its start
PATHS = ("--work", "--models", "--prompts", "--data", "--out")  # the page shows only the last part of these


def arguments(argv: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # the words of a stage are made of these flags
    )
    parser.add_argument("--stages", nargs="+", default=list(ORDER), metavar="STAGE", help=f"some of {' '.join(ORDER)}")
    parser.add_argument("--work", type=Path, help="where figures are kept, and what is worth bringing back")
    parser.add_argument("--models", type=Path, default=MODELS, help="where large models are made, which may go")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal: does all of it run?")
    parser.add_argument("--seconds", type=positive, default=540, help="of each stage")
    parser.add_argument("--factor", type=positive, help="how many times as wide the demo becomes; by the card's memory")
    parser.add_argument("--prompts", type=Path, help="a directory of .jsonl files, or one file; else the program's own")
    parser.add_argument("--data", type=Path, help="the folder with chat.jsonl.xz and text.jsonl.xz, for stage g")
    parser.add_argument("--again", action="store_true", help="measure once more what failed")
    parser.add_argument("--needs", action="store_true", help="say what the run needs, and measure nothing")
    parser.add_argument("--out", type=Path, help="docs/figures/gpu-figures.md; of a rehearsal a page in --work")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the one stage, in this process
    options = parser.parse_args(argv)
    for stage in options.stages:
        if stage not in ORDER:
            parser.error(f"There is no stage '{stage}'; use some of {' '.join(ORDER)}.")
    if not options.needs and options.work is None:
        parser.error("Nothing says where figures are kept; give --work DIR.")
    if options.out is None and options.work is not None:
        options.out = options.work / "gpu-figures.md" if options.small else ROOT / "docs" / "figures" / "gpu-figures.md"
    if not options.needs and (
        options.out.is_dir() or not writable(options.out.absolute().parent, options.work.absolute())
    ):
        parser.error(f"--out {options.out} is no place for a page; name a file in a directory that is there.")
    return parser, options


def writable(path: Path, work: Path) -> bool:
    """Return whether a page can be written in the directory `path`. The work directory may be missing until later."""
    return path == work or (path.is_dir() and os.access(path, os.W_OK))


def main(argv: Sequence[str] | None = None) -> int:
    parser, options = arguments(argv)
    if options.needs:
        from gpu_stages.needs import requirements

        print(requirements(options.data, options.prompts))
        return 0
    work = options.work.absolute()
    models = options.models.absolute()
    # Neither the user's settings nor the user's cache. Packed models are here, because they are large.
    os.environ["LOCALSPEC_HOME"] = str(models / "home")
    request = Request(options.device, options.small, work, models, options.prompts, options.data, options.factor)
    try:
        check(request)
        decisive = request.decisive()
    except LocalspecError as mistake:
        parser.error(str(mistake))
    same_settings(parser, work, decisive)
    try:
        for name in ORDER:
            read(work / f"{name}.json")
        with locked(parser, work, "running.lock"):  # a stage holds it, and may outlive its parent
            if options.here:
                return stage(options.stages[0], request, options.seconds, options.again, command_told(argv))
        with locked(parser, work, "stages.lock"):  # held between two stages, too
            return all_stages(argv, options)
    except LocalspecError as damaged:
        parser.error(str(damaged))


@contextmanager
def locked(parser: argparse.ArgumentParser, work: Path, name: str) -> Iterator[None]:
    """Lock a directory within this context, because two runs would disturb each other's figures and overwrite files."""
    lock = FileLock(work / name, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        parser.error(f"Another run measures in {work}; wait until it is over, or give another --work.")
    except OSError as error:
        parser.error(f"--work {work} cannot be used ({error.strerror}); name another directory.")
    try:
        yield
    finally:
        lock.release()


def all_stages(argv: Sequence[str] | None, options: argparse.Namespace) -> int:
    """Run each stage in a separate process, and write the page after each of them."""
    work = options.work.absolute()
    words = words_of(argv)
    for name in options.stages:
        print(f"stage {name}", flush=True)
        supervised(name, words, options)
        from gpu_stages import page

        page.write(work, options.out, options.small)
        print(f"{options.out} tells it", flush=True)
    return 0


def supervised(name: str, words: Sequence[str], options: argparse.Namespace) -> None:
    """Run one stage in a new process. If the process loses the device or ends early, continue in another one."""
    work, ends, again = options.work.absolute(), time.monotonic() + options.seconds, options.again
    file, log = work / f"{name}.json", work / f"{name}.log"
    for _ in range(MOST_PROCESSES):
        began, before = time.monotonic(), read(file)
        if ends - began < min(START, options.seconds / 2):
            return
        stage_words = absolute(words)
        for flag in ("--again", "--stages", "--seconds"):
            stage_words = without(stage_words, flag)
        stage_words += [
            "--stages",
            name,
            "--seconds",
            str(max(1, round(ends - began))),
            *(["--again"] if again else []),
            "--here",
        ]
        code = run_script([str(Path(__file__).resolve()), *stage_words], ends - began + SLACK, log, grace=GRACE + 5)
        print(f"  over with code {code}; {log} says how it went", flush=True)
        if code in (0, OVER):
            return
        if code == REFUSED:  # another process may be writing into its file
            print(f"  {last_line(log)}", flush=True)
            return
        if code != AGAIN:
            Record(file, 0.0).end(f"its process was over with code {code}: {last_line(log)}", time.monotonic() - began)
        after = read(file)
        if code is None or all(after[part] == before[part] for part in ("figures", "tries")):
            return  # another process would not get further
        again = False


def words_of(argv: Sequence[str] | None) -> list[str]:
    """Return the words of the command line, with `--flag=value` split into two words."""
    apart = (
        word.split("=", 1) if word.startswith("--") else [word] for word in (sys.argv[1:] if argv is None else argv)
    )
    return [word for words in apart for word in words]


def absolute(words: Sequence[str]) -> list[str]:
    """Return the arguments with absolute paths, because a stage runs in another directory."""
    before = ["", *words]
    return [str(Path(word).absolute()) if flag in PATHS else word for flag, word in zip(before, words, strict=False)]


def without(words: Sequence[str], flag: str) -> list[str]:
    """Return the arguments without a flag and its values."""
    rest: list[str] = []
    inside = False
    for word in words:
        inside = word == flag or (inside and not word.startswith("-"))
        rest += [] if inside else [word]
    return rest


def stage(name: str, request: Request, seconds: float, again: bool, command: str) -> int:
    """Measure the missing figures of one stage. Return the exit code: 0, OVER (time is up) or AGAIN (device lost)."""
    from gpu_stages.machine import machine
    from gpu_stages.page import MODULES

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(OVER))  # so that processes that this one started end with it
    imported = time.time() - psutil.Process().create_time()  # seconds in which torch was imported
    began, record = time.monotonic(), Record(request.work / f"{name}.json", seconds - imported, request.device)
    if again:
        record.forget_failed()
    record.begin({**machine(request), "command": command})
    ended, code = "all measured", 0
    try:
        MODULES[name].run(record, request)
    except TimeUp as over:
        ended, code = f"time was up before {over}", OVER
    except DeviceLost as lost:
        ended, code = f"the device was lost: {lost}", AGAIN
    except LocalspecError as error:
        ended, code = str(error), 0
    record.end(ended, time.monotonic() - began)
    print(ended, flush=True)
    return code


def command_told(argv: Sequence[str] | None) -> str:
    """Return the command of a stage for the page, with only the last part of each path."""
    words, waiting = [], iter(without(words_of(argv), "--here"))
    for word in waiting:
        words += [word, Path(next(waiting, "")).name] if word in PATHS else [word]
    return shlex.join(["python", "research/gpu_proof.py", *words])


if __name__ == "__main__":
    if INTERRUPTED:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # measurements are saved
        sys.exit(130)
