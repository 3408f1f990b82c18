"""Everything in research/ imports, and its programs answer --help."""

import os
import subprocess
import sys

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


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
@pytest.mark.skipif(os.name == "nt", reason="some programs need a pseudo-terminal")
def test_every_module_imports_and_every_program_answers_help() -> None:
    command = [sys.executable, "-c", TRY_ALL, str(ROOT / "research")]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stdout) == (0, ""), tried.stderr
