"""Write a home with imports, as a commit made it: python tests/upgrades/write_imports.py CHECKOUT COMMIT

CHECKOUT has that commit with its compiled library. In the archive of 66a34518 imports are in the cache directory, in that
of 561bc3b4 everything is filed under revisions. test_imports_upgrade.py and test_fingerprint_upgrade.py open them.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import tiny_models  # noqa: E402
from command import environment  # noqa: E402
from gguf_files import write_model  # noqa: E402
from scripted_models import random_model  # noqa: E402
from transformers import LlamaConfig  # noqa: E402

SHAPE = {
    **tiny_models._SHAPE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
}
SAID = ["-n", "24", "--seed", "1", "--temp", "1", "--drafter", "phrases"]
COMMANDS = [
    ["import", "here.gguf"],
    ["import", "gone.gguf"],
    ["run", "hello", "-m", "here", *SAID],
    ["run", "hello again", "-m", "gone", *SAID],
    ["run", "-c", "and more", *SAID],
    ["train", "medusa", "-m", "model", "--data", "text.jsonl", "--steps", "1", "--length", "32", "-O", "heads=1"],
]
CONFIG = 'model = "gone"\ntemperature = 0.5\n'
LEFT_OUT = (".lock", "-lock", "-wal", "-shm", "digests.json", "text.jsonl", "losses.svg")


def main() -> None:
    """Replace the archive."""
    checkout = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        random_model(home / "model")
        for seed, name in enumerate(("here", "gone")):
            tiny = tiny_models.write(home / "tiny", LlamaConfig(**SHAPE), tiny_models.byte_tokenizer(), seed)
            write_model(home / f"{name}.gguf", tiny, "Q8_0")
        (home / "text.jsonl").write_text(
            "".join(f'{{"text": "What is said to model {number}, which learns little."}}\n' for number in range(20))
        )
        (home / "config").mkdir()
        python_path = os.pathsep.join((str(checkout), str(checkout / "tui")))
        for command in COMMANDS:
            subprocess.run(
                [sys.executable, "-m", "localspec", *command],
                cwd=home, env={**environment(home), "PYTHONPATH": python_path}, stdin=subprocess.DEVNULL, check=True,
            )  # fmt: skip
        (home / "config" / "config.toml").write_text(CONFIG)
        (home / "gone.gguf").unlink()

        def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            out = entry.name.endswith(LEFT_OUT) or "/tiny" in entry.name or "/cache/tokenizers" in entry.name
            return None if out else entry

        with tarfile.open(HERE / f"imports-{sys.argv[2]}.tar.xz", "w:xz") as archive:
            archive.add(home, "home", filter=wanted)


if __name__ == "__main__":
    main()
