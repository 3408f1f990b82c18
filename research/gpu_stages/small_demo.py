"""A rehearsal of `train_demo.py`, which takes seconds: the same script with few texts and a tiny model.

python research/gpu_stages/small_demo.py train_demo.py STAGE …
"""

import json
import lzma
import random
import runpy
import sys
from pathlib import Path

import demo_model
import demo_progress
import demo_tokens
from demo_data import mixture, passes

ROOT = Path(__file__).resolve().parent.parent
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "bird", "under", "that", "old", "tree"]
TINY = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
EXAMPLES = 300


def write_data(folder: Path) -> None:
    """Write a folder of random training data, and the same chats in a file that `localspec train` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)

    def say(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count)) + "."

    turns = [[{"role": "user", "content": say(5)}, {"role": "assistant", "content": say(20)}] for _ in range(EXAMPLES)]
    chats = [{"source": "identity", "messages": messages} for messages in turns]
    texts = [{"source": "pratham-books", "text": say(30)} for _ in range(EXAMPLES)]
    for name, examples in (("chat", chats), ("text", texts)):
        with lzma.open(folder / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps(example) + "\n" for example in examples)
    (folder / "mixture.jsonl").write_text("".join(json.dumps(example) + "\n" for example in chats), "utf-8")


def shrink() -> None:
    """Reduce the examples of each source, the vocabulary and the model's shape."""
    for name, share in mixture.MADE.items():
        mixture.MADE[name] = mixture.Share(60, 60, share.why)
    passes.SET_ASIDE = 2
    demo_model.SHAPES["small"] = TINY
    demo_tokens.VOCABULARY = demo_model.VOCABULARY = 600  # type: ignore[attr-defined]
    demo_progress.SAID = 5


if __name__ == "__main__":
    shrink()
    script = ROOT / sys.argv[1]
    sys.argv = [str(script), *sys.argv[2:]]
    runpy.run_path(str(script), run_name="__main__")
