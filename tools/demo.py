"""Ask a published model two questions: `make demo`.

SmolLM2-135M-Instruct is fetched once and imported. If that fails, for example without a network, the embedded model
answers instead.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from real_models import MODELS, NotFetched, fetch, find, folder

from localspec.cli.interrupt import INTERRUPTED
from localspec.cli.main import READER_GONE
from localspec.errors import LocalspecError
from localspec.models.registry import cards
from localspec.quantities import size, speedup, tokens_a_second

PUBLISHED, NAME = "smollm2", "smollm2-135m"
SAMPLING = ("--seed", "1")
PATIENCE = 10.0  # seconds that an interrupted child has to end by itself
FACT = "What is the capital of Japan? Answer in one sentence."  # answered correctly with every seed that was tried
REWRITE = '''Remove the variable `message` from this function:

```python
def greet(name, greeting="Hello"):
    """Return a greeting for a person."""
    if not name:
        raise ValueError("The name must not be empty.")
    message = greeting + ", " + name + "!"
    return message
```'''


def localspec(*arguments: str, captured: bool = False) -> subprocess.CompletedProcess[str]:
    """Run localspec in a child process. Its output is captured or shown.

    If the child was interrupted, or the program that reads its output ended, exit with the child's exit code.
    """
    sys.stdout.flush()
    command = [sys.executable, "-m", "localspec", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE if captured else None, text=True) as child:
        try:
            out, _ = child.communicate()
        except KeyboardInterrupt:  # the child was interrupted as well, and finishes what it must
            with suppress(subprocess.TimeoutExpired):
                out, _ = child.communicate(timeout=PATIENCE)
            child.terminate()
            if child.returncode != INTERRUPTED:
                raise
    if child.returncode in (INTERRUPTED, READER_GONE):
        sys.exit(child.returncode)
    return subprocess.CompletedProcess(command, child.returncode, out)


def prepare() -> None:
    """Fetch and import the model unless it is here. Raise NotFetched if that fails."""
    card = cards().get(NAME)
    if card is not None and card.here:
        return
    model = MODELS[PUBLISHED]
    if not find(PUBLISHED):
        print(f"Fetching {model.title}, {size(model.bytes)}, {model.license}, into {folder()} ...", flush=True)
    imported = localspec("import", str(fetch(PUBLISHED)), "--json", captured=True)
    if imported.returncode:  # the child printed the reason on standard error
        raise NotFetched(f"{model.title} could not be imported.")
    report = json.loads(imported.stdout)
    print(f"Imported as {report['name']}: {size(report['bytes'])} in {report['packing']}.")


def ask(question: str, *flags: str) -> int:
    """Show a question, its answer and the figures of the answer; return the exit code."""
    print(f"\n> {question}")
    return localspec("run", "--server", "off", "--no-log", "--stats", *flags, question).returncode


def compare(question: str) -> int:
    """Show a question, its answer and the measured speedup from drafts; return the exit code."""
    print(f"\n> {question}\n")
    raced = localspec("race", "-m", NAME, *SAMPLING, "--drafter", "phrases", "--json", question, captured=True)
    if raced.returncode:
        return raced.returncode
    report: dict[str, Any] = json.loads(raced.stdout)
    pace, plain = (tokens_a_second(report[half]["tokens_per_second"]) for half in ("speculative", "plain"))
    same = "the same text" if report["identical"] else "another text"
    print(report["speculative"]["text"])
    print(f"{speedup(report['speedup'])} with drafts copied from the question: {pace} instead of {plain}, {same}")
    return 0


def main() -> int:
    """Run the demo, without a traceback if it is interrupted or its output is closed. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    # Set by localspec.cli, so that Ctrl+C during imports is quiet.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = show()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
        return READER_GONE
    except KeyboardInterrupt:
        print("Interrupted. Run it again to continue.", file=sys.stderr)
        return INTERRUPTED
    return code


def show() -> int:
    """Ask the published model, or the embedded model if the published one cannot be fetched. Return the exit code."""
    try:
        prepare()
    except (NotFetched, LocalspecError) as trouble:
        print(f"{str(trouble).removesuffix('.')}; the small model that comes with localspec answers instead.")
        return ask("Tell me a story about a dog.", "-m", "demo", "--temp", "0")
    return ask(FACT, "-m", NAME, *SAMPLING) or compare(REWRITE)


if __name__ == "__main__":
    sys.exit(main())
