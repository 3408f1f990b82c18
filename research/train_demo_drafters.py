"""Train the drafters that come with the demo model by `localspec train`, and copy them next to its weights.

    python research/train_demo_drafters.py --data DIR --work DIR --hours 1

Each kind is trained for the same time. The same command continues a stopped run. The weights are stored in bf16, and
may take 20 MB together. DATA is that of `research/train_demo.py`: drafters learn from the data of the demo model's last
stage.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from demo_data.passes import trained
from safetensors.torch import load_file, save_file

from localspec.models.drafter_cards import DIGEST, file_digest

# After 150,000 tokens Medusa's first guess was right 10 % of the time at 1e-3, 17 % at 5e-3, and with steps of 1,024
# tokens 23 % at 5e-3 and 22 % at 1.5e-2. EAGLE-3's loss after 12 steps was 22.7 at 3e-4 and 20.2 at 3e-3.
# Of all sets of four layers these guess best before any training: 42 % of 521 first guesses are right, and 32 % with
# 0,1,6,7. The probe's four (0,2,3,6: 44 %) do not differ significantly, and their second guess is right less often.
# 4,096 tokens are all that occur in 1,500 of its texts, and they halve the time of a level's head.
KINDS: dict[str, list[str]] = {  # and the arguments of each
    "medusa": ["--lr", "5e-3"],
    "s3d": ["--lr", "3e-3", "-O", "kept=0,2,4,6"],
    "parallelspec": ["--lr", "3e-3", "-O", "form=eagle", "-O", "drop=0.5"],
    "semi": ["--lr", "3e-3", "-O", "share=0.5"],
    "eagle3": ["--lr", "3e-3", "-O", "vocabulary=4096"],
}
MOST = 20_000_000  # bytes, all together
DEMO = Path(__file__).parent.parent / "localspec" / "demo"

CARD = """# {kind} for the demo model

A drafter for localspec's demo model: it proposes tokens, and the model decides. Made by

    {command}

on {tokens:,} tokens ({passes:.2f} passes, {hours:.2f} hours on {device}), with the demo model's own distribution as labels.
The data are those of the demo model, whose card names their sources and licences.

How often its first guess was right on {held_out:,} held-out tokens, by depth: {shares}.
"""


def mixture(data: Path, work: Path) -> Path:
    """Write the drafters' training data to a file for `localspec train`, with new generated examples. Return its path."""
    file = work / "mixture.jsonl"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text("".join(f"{json.dumps(example)}\n" for example in trained(data, "draft", 1)), "utf-8")
        new.replace(file)
    return file


def train(kind: str, flags: list[str], options: argparse.Namespace) -> Path:
    """Train one kind of drafter, unless it is trained already. Return the directory of the training."""
    directory: Path = options.work / kind
    if (directory / "drafter" / "drafter.json").exists():
        print(f"{kind} is trained already, in {directory}", flush=True)
        return directory
    limit = ["--steps", str(options.steps)] if options.steps else ["--hours", str(options.hours)]
    data = options.data if options.data.is_file() else mixture(options.data, options.work)
    words = ["train", kind, "-m", str(DEMO), "-o", str(directory), *limit, *flags]
    words += [
        "--batch",
        str(options.batch),
        "--length",
        str(options.length),
        "--data",
        str(data),
    ]
    subprocess.run([sys.executable, "-m", "localspec", *words], check=True)
    return directory


def put(kind: str, directory: Path, out: Path) -> int:
    """Copy a drafter to `out`, with its weights in bf16. Return the size of the weights in bytes."""
    card = json.loads((directory / "drafter" / "drafter.json").read_text("utf-8"))
    card["target"]["name"] = "demo"
    tensors = load_file(directory / "drafter" / "drafter.safetensors")
    halved = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in tensors.items()}
    target = out / kind
    target.mkdir(parents=True, exist_ok=True)
    save_file(halved, target / "drafter.safetensors", metadata={"format": "pt"})
    card[DIGEST] = file_digest(target / "drafter.safetensors")
    (target / "drafter.json").write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    trained = card["trained"]
    shares = " ".join(f"{100 * line[0]:.0f} %" for line in card["accuracy_by_depth"])
    text = CARD.format(
        kind=kind, command=card["command"], tokens=trained["tokens"], passes=trained["passes"], hours=trained["hours"],
        device=trained["device"], held_out=trained["held_out_tokens"], shares=shares,
    )  # fmt: skip
    (target / "README.md").write_text(text, "utf-8")
    return (target / "drafter.safetensors").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder with chat.jsonl.xz and text.jsonl.xz, or a file"
    )
    parser.add_argument("--work", type=Path, required=True, help="where trainings lie; outside git")
    parser.add_argument("--out", type=Path, default=DEMO / "drafters", help="where the drafters go")
    parser.add_argument("--hours", type=float, default=1.0, help="of each kind")
    parser.add_argument("--steps", type=int, help="of each kind, in place of hours")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS), help="these kinds")
    options = parser.parse_args()
    sizes = {kind: put(kind, train(kind, KINDS[kind], options), options.out) for kind in options.only}
    for kind, size in sizes.items():
        print(f"{kind}: {size / 1e6:.2f} MB")
    together = sum(file.stat().st_size for file in options.out.glob("*/drafter.safetensors"))
    if together > MOST:
        raise SystemExit(f"the drafters take {together / 1e6:.1f} MB, more than {MOST / 1e6:.0f}; choose smaller ones")


if __name__ == "__main__":
    main()
