"""Everything in research/ imports, its programs answer --help, and experiments continue after any end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT

# Run in one child process: it leaves no module and no path behind, and imports torch once.
TRY_ALL = """
import contextlib, importlib, io, pathlib, runpy, sys
research = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(research))
failed = []
for file in sorted(research.rglob("*.py")):
    name = ".".join(file.relative_to(research).with_suffix("").parts).removesuffix(".__init__")
    out = io.StringIO()
    try:
        if file.parent == research and "__main__" in file.read_text("utf-8"):
            sys.argv = [str(file), "--help"]
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                runpy.run_path(str(file), run_name="__main__")
            if not out.getvalue().startswith(f"usage: {file.name}"):
                failed.append(f"{name}: no help")
        else:
            importlib.import_module(name)
    except BaseException as error:
        failed.append(f"{name}: {error!r}")
print(" | ".join(failed), end="")
"""


# The first results, then a line that a kill cut, then a later run, which may make nothing more, and one that may.
CONTINUE = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from experiment import OutOfTime, Results
file, made = pathlib.Path(sys.argv[2]), []
def make(name):
    return lambda: made.append(name) or {"name": name}
def late():
    raise OutOfTime
first = Results(file)
first.of("a", make("a")), first.of("b", make("b")), first.of("c", late)
with file.open("a") as cut:
    cut.write('{"key": "d", "va')
over = Results(file, minutes=1e-9)
print([over.of(key, make(key)) for key in "abcd"])
last = Results(file)
last.measuring = False
print(last.of("d", make("d")))
last.measuring = True
print(last.of("d", make("d")), made, len(file.read_text().splitlines()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
def test_results_of_an_experiment_continue_after_a_line_that_was_cut(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONTINUE, str(ROOT / "research"), str(tmp_path / "results.jsonl")]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert tried.stdout.splitlines() == [
        "[{'name': 'a'}, {'name': 'b'}, None, None]",
        "None",
        "{'name': 'd'} ['a', 'b', 'd'] 3",
    ], tried.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
@pytest.mark.skipif(os.name == "nt", reason="some programs need a pseudo-terminal")
def test_every_module_imports_and_every_program_answers_help() -> None:
    command = [sys.executable, "-c", TRY_ALL, str(ROOT / "research")]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stdout) == (0, ""), tried.stderr
