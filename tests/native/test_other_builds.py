"""Other builds of the same sources give the same bits: instructions that this CPU lacks, and another compiler."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from command import ROOT
from real.whole_matrix import WHOLE_MATRIX

from localspec.machine import compiled
from localspec.native import build

HOST = build.TARGETS.get(build.this_machine())
FLAG = "LS_TEST_VNNI_AS_AVX512"
LEVELS = {"-O0", "-O1"}  # instead of -O3
TESTS = tuple(f"tests/native/test_{name}.py" for name in ("bits", "linear", "blocks", "block_models"))
RUN = """
import sys
from pathlib import Path
from localspec.machine import compiled
compiled.FILE = Path(sys.argv[1])
library = compiled.library()
print("instructions:", *(name for number, name in enumerate(compiled.ISAS) if library.ls_isa_supported(number)))
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[2:]]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HOST is None, reason="no native library is made for this machine"),
]


def verdict(folder, objects) -> str:
    """Build the library as `build` is set up, and return the result of its tests of bits, linear layers and blocks."""
    library = build.build(HOST, folder / HOST.library, objects)
    assert library.read_bytes() != compiled.FILE.read_bytes()
    run = subprocess.run(
        [sys.executable, "-c", RUN, library, *TESTS], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@WHOLE_MATRIX
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_library_that_another_compiler_makes(tmp_path, monkeypatch):
    """Its kernels for AVX-VNNI use the encoding of AVX-512, where this CPU has it. The instruction is the same.

    CPUs with the encoding of AVX-VNNI are rare where tests run. Optimising takes most of the time. So only AVX-VNNI and
    plain C are optimised, and little: the other instruction sets are compiled from the same text. Objects are kept by
    text, flags and compiler.
    """
    monkeypatch.setenv("CXX", "g++")
    library, compiled_as_ever, run_as_ever = compiled.library(), build.compiled, build.run
    idle = [name for number, name in enumerate(compiled.ISAS) if not library.ls_isa_supported(number)]
    encoded = "avx512_vnni" not in idle
    if encoded and "avx_vnni" in idle:
        idle.remove("avx_vnni")

    def compiled_so(source, using, folder, headers, kernels):
        if encoded and FLAG in source.read_text("utf-8"):
            using = replace(using, compile=(*using.compile, f"-D{FLAG}"))
        if name := kernels.lower():
            level = "-O1" if name == "c" or (name == "avx_vnni" and name not in idle) else "-O0"
            using = replace(using, compile=(*using.compile, level))
        return compiled_as_ever(source, using, folder, headers, kernels)

    def run_so(command, task):
        return run_as_ever([word for word in command if word != "-O3" or not LEVELS & {*command}], task)

    monkeypatch.setattr(build, "compiled", compiled_so)
    monkeypatch.setattr(build, "run", run_so)
    said = verdict(tmp_path, build.OBJECTS.with_name("native-g++"))
    assert not encoded or " avx_vnni " in said
