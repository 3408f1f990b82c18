#!/bin/sh
# Test the native library for ARM on an x86-64 Debian, with an ARM Python under qemu: `make test-aarch64`.
# It needs qemu-aarch64 (apt-get install qemu-user), apt-get, dpkg-deb, the dev extra, and the network once. It needs
# no root and installs nothing: all files are in build/aarch64. TESTS names the tests, CPU the machine for qemu (max,
# or cortex-a53, which has no dot products).
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}" TESTS="${TESTS:-tests/native}" CPU="${CPU:-max}"
work="$PWD/build/aarch64"
command -v qemu-aarch64 >/dev/null || { echo "There is no qemu-aarch64; on Debian, apt-get install qemu-user." >&2; exit 1; }
mkdir -p "$work"

# Debian's Python for ARM, unpacked
if ! [ -e "$work/debian/.complete" ]; then
    apt="$work/apt"
    rm -rf "$apt" "$work/debian"
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$work/debian"
    : >"$apt/status"
    set -- -qq -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Debug::NoLocking=1
    apt-get "$@" update
    apt-get "$@" install -y --no-install-recommends --download-only python3 libstdc++6
    for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$work/debian"; done
    touch "$work/debian/.complete"
fi
# Tests start this script as sys.executable, because the kernel cannot run a program for ARM. A .pth file leads to the
# packages below, because tests clear PYTHONPATH.
arm="$work/python"
cat >"$arm" <<END
#!/bin/sh
export PYTHONHOME="$work/debian/usr" PYTHONPYCACHEPREFIX="$work/bytecode"
unset PYTHONDONTWRITEBYTECODE
exec qemu-aarch64 -cpu $CPU -L "$work/debian" -0 "$arm" "$work/debian/usr/bin/python3" "\$@"
END
chmod +x "$arm"
echo "$work/packages" >"$work/debian/usr/lib/python3/dist-packages/packages.pth"
version="$("$arm" -c 'import sys; print("%d%d" % sys.version_info[:2])')"

# The packages that tests import, for ARM. This torch is the last one whose wheel for ARM has no CUDA.
if ! [ constraints.txt -ot "$work/packages/.complete" ]; then
    rm -rf "$work/packages"
    grep -Ev '^(#|(torch|bitsandbytes|accelerate|peft|ruff|mypy|librt|ast_serialize|import-linter|grimp|ziglang)=)' \
        constraints.txt >"$work/requirements.txt"
    echo "torch==2.8.0" >>"$work/requirements.txt"
    "$PYTHON" -m pip install --quiet --no-deps --target "$work/packages" --only-binary=:all: --implementation cp \
        --python-version "$version" --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 -r "$work/requirements.txt"
    touch "$work/packages/.complete"
fi

# The source tree of an sdist, with the library for ARM in it
rm -rf "$work/sdist" "$work/tree"
mkdir -p "$work/tree"
"$PYTHON" -m hatchling build -t sdist -d "$work/sdist" >/dev/null
tar -xzf "$work"/sdist/*.tar.gz -C "$work/tree" --strip-components=1
"$PYTHON" localspec/native/build.py --target linux-aarch64 --out "$work/tree/localspec/native/localspec_native.so"

cd "$work/tree"
unset PYTHONPATH
export OMP_NUM_THREADS=1
"$arm" -c 'from localspec.machine import compiled; print("instructions:", compiled.instruction_set() or compiled.missing())'
# qemu itself ends a forked child that starts threads
forks=tests/native/test_threads.py::test_a
exec "$arm" -m pytest -p no:cacheprovider -p no:syrupy -o timeout=0 --deselect "${forks}_forked_child_computes_alone" \
    --deselect "${forks}_child_that_was_forked_while_another_thread_computes_waits_for_nobody" $TESTS
