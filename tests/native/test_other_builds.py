"""Other builds of the same sources give the same bits: what no processor here has, and another compiler."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from command import ROOT

from localspec.machine import compiled
from localspec.native import build

HOST = build.TARGETS.get(build.this_machine())
FLAG = "LS_TEST_VNNI_AS_AVX512"
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
    """What the tests of bits, linear layers and blocks say with a library that is built now, as `build` is set up."""
    library = build.build(HOST, folder / HOST.library, objects)
    assert library.read_bytes() != compiled.FILE.read_bytes()
    run = subprocess.run(
        [sys.executable, "-c", RUN, library, *TESTS], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.skipif("avx512_vnni" not in compiled.instruction_set(), reason="needs a CPU with AVX-512 VNNI")
def test_avx_vnni_in_the_encoding_of_avx_512(tmp_path, monkeypatch):
    """The instruction is the same; CPUs that have AVX-VNNI's own encoding of it are rare where tests run."""
    pytest.importorskip("ziglang", reason="part of the dev extra")
    monkeypatch.delenv("CXX", raising=False)
    if build.OBJECTS.is_dir():  # all but two sources are compiled as ever
        shutil.copytree(build.OBJECTS, tmp_path / "objects")
    compiled_as_ever = build.compiled

    def compiled_so(source, using, *rest):
        if FLAG in source.read_text("utf-8"):
            using = replace(using, compile=(*using.compile, f"-D{FLAG}"))
        return compiled_as_ever(source, using, *rest)

    monkeypatch.setattr(build, "compiled", compiled_so)
    assert " avx_vnni " in verdict(tmp_path, tmp_path / "objects")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_library_that_another_compiler_makes(tmp_path, monkeypatch):
    """What this CPU cannot run is compiled, too, but not optimised; objects are kept, by text, flags and compiler."""
    monkeypatch.setenv("CXX", "g++")
    library, compiled_as_ever, run_as_ever = compiled.library(), build.compiled, build.run
    idle = [name for number, name in enumerate(compiled.ISAS) if not library.ls_isa_supported(number)]

    def compiled_so(source, using, *rest):
        if any(name.startswith(source.stem.removeprefix("kernels_")) for name in idle):
            using = replace(using, compile=(*using.compile, "-O0"))
        return compiled_as_ever(source, using, *rest)

    def run_so(command, task):
        return run_as_ever([word for word in command if word != "-O3" or "-O0" not in command], task)

    monkeypatch.setattr(build, "compiled", compiled_so)
    monkeypatch.setattr(build, "run", run_so)
    verdict(tmp_path, build.OBJECTS.with_name("native-g++"))
