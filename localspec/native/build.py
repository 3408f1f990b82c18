"""Compiles src/*.cpp into the one library next to this file: `python localspec/native/build.py`.

Needs only the standard library: hatch_build.py runs it where localspec cannot be imported yet.
"""

import argparse
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
OBJECTS = HERE.parents[1] / "build" / "native"

# The source determines every bit: fma only where it is written, nothing reordered. Without exceptions, guards and
# `new`, no part of the C++ library is compiled (a minute), linked or exported.
COMPILE = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti"),
    *("-fno-threadsafe-statics", "-fvisibility=hidden", "-fPIC", "-pthread", "-g0", "-Wall", "-Wextra", "-c"),
)
KERNELS = ("C", "NEON", "AVX2", "AVX_VNNI", "AVX512")  # instruction sets: kernels.cpp is compiled for each
LINK = ("-shared", "-pthread", "-s")
LINK_ON_LINUX = ("-Wl,-z,defs",)  # otherwise the linker accepts undefined symbols


class BuildFailed(Exception):
    """An error that says what is wrong and what to do, followed by the compiler's output."""


@dataclass(frozen=True)
class Platform:
    """A platform for which the library is built."""

    name: str  # system and machine, as the platform itself names the machine
    triple: str  # as zig names it, with an old glibc so that one library works on every distribution
    wheel_tag: str
    library: str


TARGETS = {
    target.name: target
    for target in (
        Platform("linux-x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", "localspec_native.so"),
        Platform("linux-aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", "localspec_native.so"),
        Platform("macos-arm64", "aarch64-macos.11.0", "macosx_11_0_arm64", "localspec_native.dylib"),
        Platform("macos-x86_64", "x86_64-macos.11.0", "macosx_11_0_x86_64", "localspec_native.dylib"),
        Platform("windows-x86_64", "x86_64-windows-gnu", "win_amd64", "localspec_native.dll"),
    )
}


def this_machine() -> str:
    """Return the platform of this machine, such as linux-x86_64. If it is unsupported, TARGETS lacks it."""
    system = {"Darwin": "macos", "Windows": "windows", "Linux": "linux"}.get(platform.system(), platform.system())
    if system == "linux" and platform.libc_ver()[0] != "glibc":
        system = "linux without glibc"
    return f"{system}-{platform.machine().lower().replace('amd64', 'x86_64')}"


def wanted_target() -> Platform | None:
    """Return the platform in BUILD_NATIVE_FOR, by default this machine's; None to build no library."""
    name = os.environ.get("BUILD_NATIVE_FOR", "")
    if not name:
        return TARGETS.get(this_machine())
    if name == "none":
        return None
    if name not in TARGETS:
        raise BuildFailed(f"BUILD_NATIVE_FOR is {name!r}; it must be one of none, {', '.join(TARGETS)}.")
    return TARGETS[name]


def why_none() -> str:
    """Return the reason why no library is built, if `wanted_target` returned None."""
    if os.environ.get("BUILD_NATIVE_FOR") == "none":
        return "the environment variable BUILD_NATIVE_FOR is none; unset it to build the library."
    return f"the library is not made for {this_machine()}, only for {', '.join(TARGETS)}."


@dataclass(frozen=True)
class Compiler:
    compile: tuple[str, ...]
    link: tuple[str, ...]
    version: str


def compiler(target: Platform) -> Compiler:
    """Return zig from the package ziglang, or the compiler in CXX, which compiles only for this machine."""
    cxx = os.environ.get("CXX", "")
    if cxx and target.name == this_machine():
        command = tuple(shlex.split(cxx))
        return Compiler(command, command, run([*command, "--version"], f"CXX={cxx}"))
    try:
        version = metadata.version("ziglang")
    except metadata.PackageNotFoundError:
        raise BuildFailed(
            "There is no compiler; install one with `pip install -c constraints.txt ziglang`, or name one in CXX."
        ) from None
    # Without a target, zig would compile for this exact processor.
    zig = (sys.executable, "-m", "ziglang")
    link = ("cc", "-target", target.triple)  # not c++, which would first compile the whole C++ library
    return Compiler((*zig, "c++", "-target", target.triple), (*zig, *link), f"zig {version}")


def run(command: Sequence[str], task: str) -> str:
    """Run a command and return its output, including warnings."""
    try:
        process = subprocess.run(command, cwd=SOURCES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        raise BuildFailed(f"{task}: {command[0]} cannot be run ({error.strerror}).") from None
    output = process.stdout.decode("utf-8", "replace")
    if process.returncode:
        raise BuildFailed(f"{task} failed: {shlex.join(command)} ended with {process.returncode} and said:\n{output}")
    return output


def digest(*parts: str | bytes) -> str:
    lengths = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in lengths)).hexdigest()


def replace(part: Path, file: Path) -> None:
    """Rename the file `part` to `file`. Processes that have opened the former file can still read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part.replace(file)


def compiled(source: Path, using: Compiler, folder: Path, headers: str, kernels: str = "") -> Path:
    """Compile a source, or the source's `kernels` for an instruction set. Return the object file.

    An object file in `folder` is used again if it is of the same text, headers, flags and compiler.
    """
    flags = (*COMPILE, f"-DLS_KERNELS_{kernels}") if kernels else COMPILE
    name = f"{source.stem}_{kernels.lower()}" if kernels else source.stem
    key = digest(source.read_bytes(), headers, *using.compile, using.version, *flags)
    file = folder / f"{name}-{key[:16]}.o"
    if not file.is_file():
        part = folder / f"{file.name}.{os.getpid()}.partial.o"
        output = run([*using.compile, *flags, source.name, "-o", str(part)], f"Compiling {source.name}")
        sys.stderr.write(output)
        for old in folder.glob(f"{name}-{'[0-9a-f]' * 16}.o"):
            old.unlink(missing_ok=True)
        replace(part, file)
    return file


def build(target: Platform, output: Path | None = None, objects: Path = OBJECTS) -> Path:
    """Build the library for `target`, unless it is up to date. Return its path: `output`, by default next to this file.

    Raises BuildFailed with a sentence and the compiler's output.
    """
    output = output or HERE / target.library
    sources = sorted(SOURCES.glob("*.cpp"))
    if not sources:
        raise BuildFailed(f"The sources of the native library are not in {SOURCES}: this is not a source tree.")
    using = compiler(target)
    folder = objects / target.name
    folder.mkdir(parents=True, exist_ok=True)
    headers = digest(*(part for file in sorted(SOURCES.glob("*.h")) for part in (file.name, file.read_bytes())))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        units = [(file, kernels) for file in sources for kernels in (KERNELS if file.stem == "kernels" else ("",))]
        object_files = list(pool.map(lambda unit: compiled(unit[0], using, folder, headers, unit[1]), units))
    link = [*using.link, *LINK, *(LINK_ON_LINUX if target.name.startswith("linux-") else ()), *map(str, object_files)]
    linked_from = digest(using.version, *link)
    stamp = folder / "linked"
    if output.is_file() and stamp.is_file() and stamp.read_text() == linked_from + digest(output.read_bytes()):
        return output
    part = folder / f"{os.getpid()}.partial-{target.library}"
    run([*link, "-o", str(part)], f"Linking {target.library}")
    stamp.write_text(linked_from + digest(part.read_bytes()))
    replace(part, output)
    return output


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds localspec's native library.")
    parser.add_argument(
        "--target", choices=TARGETS, help="another platform (default: BUILD_NATIVE_FOR, or this machine)"
    )
    parser.add_argument("--out", type=Path, help="where to put the library (default: next to this file)")
    arguments = parser.parse_args()
    try:
        target = TARGETS[arguments.target] if arguments.target else wanted_target()
        if target is None:
            print(f"localspec: the native library is not built: {why_none()}")
        else:
            print(f"localspec: {build(target, arguments.out and arguments.out.resolve())}")
    except BuildFailed as failed:
        print(f"localspec: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
