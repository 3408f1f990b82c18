"""Check the list of files that ruff's D401 exempts, docstrings.toml: it may only shrink.

    python tools/exempt_docstrings.py            fails if a file in the list passes D401
    python tools/exempt_docstrings.py --shrink   removes such files from the list

D401 demands that a docstring begins with an imperative verb. `ruff check` refuses it in files outside of the list.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docstrings.toml"


def failing() -> set[str]:
    """Return the files of the repository that fail D401."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "D401", "--output-format", "json", "."]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    return {Path(one["filename"]).relative_to(ROOT).as_posix() for one in json.loads(found)}


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shrink", action="store_true", help="remove files that pass from the list")
    shrink = parser.parse_args().shrink
    lines = LIST.read_text("utf-8").splitlines(keepends=True)
    passing = tomllib.loads("".join(lines))["lint"]["extend-per-file-ignores"].keys() - failing()
    if shrink:
        LIST.write_text(
            "".join(line for line in lines if line.split('"')[1:2] not in [[one] for one in passing]), "utf-8"
        )
    elif passing:
        print(
            *sorted(passing), "pass D401. Run `python tools/exempt_docstrings.py --shrink`.", sep="\n", file=sys.stderr
        )
    return int(bool(passing) and not shrink)


if __name__ == "__main__":
    sys.exit(main())
