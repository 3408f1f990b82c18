"""Write the files of this state of localspec, once a release or with each new format: python tests/upgrades/write.py NAME

tests/upgrades/NAME gets a tiny model, and a home with the files that commands wrote. test_upgrades.py opens them.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from command import environment  # noqa: E402
from scripted_models import random_model  # noqa: E402

COMMANDS = [
    ["run", "hello", "-m", "MODEL", "-n", "24", "--seed", "1", "--temp", "1", "--system", "Be brief.", "--drafter", "phrases"],
    ["run", "-c", "and again: ünïcode", "-m", "MODEL", "-n", "24", "--seed", "2", "--temp", "1", "--drafter", "phrases"],
    ["run", "another", "-m", "MODEL", "-n", "24", "--seed", "3", "--temp", "1", "--drafter", "phrases"],
    ["train", "medusa", "-m", "MODEL", "--data", "text.jsonl", "--steps", "1", "--length", "32", "-o", "drafter", "-O", "heads=1"],
]  # fmt: skip
CONFIG = """\
model = "demo"
temperature = 0.5
stop = ["END"]
[keymap]
"chat.new" = "f6"
"""
MODELS = """\
[mine]
repo = "someone/model"
revision = "0123456789012345678901234567890123456789"
"""


def main() -> None:
    """Replace the data of that name."""
    place = HERE / sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        random_model(home / "model")
        (home / "text.jsonl").write_text(
            "".join(f'{{"text": "What is said to model {number}, which learns little."}}\n' for number in range(20))
        )
        (home / "config").mkdir()

        def run(*arguments: str) -> str:
            return subprocess.run(
                [sys.executable, "-m", "localspec", *(word.replace("MODEL", "model") for word in arguments)],
                cwd=home, env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
            ).stdout  # fmt: skip

        for command in COMMANDS:
            run(*command)
        (home / "config" / "config.toml").write_text(CONFIG)
        (home / "config" / "models.toml").write_text(MODELS)
        run("config")
        (home / "history.md").write_text(run("history", "export"), encoding="utf-8")
        (home / "history.json").write_text(run("history", "export", "--json"), encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        unsaved = ("*-lock", "*.lock", "text.jsonl", "losses.*", "*-wal", "*-shm", "tokenizers", "digests.json")
        shutil.copytree(home, place, ignore=shutil.ignore_patterns(*unsaved))


if __name__ == "__main__":
    main()
