"""Stage g: trains the demo model and its drafters at full length by their own scripts, and saves the results.

Each part continues from its last checkpoint, which may come from another machine.
"""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train_demo_drafters import DEMO, KINDS

from gpu_stages.aims import Aim, shares
from gpu_stages.children import GRACE, last_line, run_script
from gpu_stages.record import Record, TimeUp
from gpu_stages.request import ROOT, Request
from gpu_stages.small_demo import write_data

# As in the Makefile; the draft model as in its script.
TOKENS = {"long": 25e6, "last": 4e6, "draft": 4e6}
SMALL_TOKENS = dict.fromkeys(TOKENS, 4096.0)
SMALL_STEPS = 1
KEPT = ("checkpoint.pt", "held_out.jsonl", "samples.jsonl")  # of a stage of the model's training
LEAST = 45.0  # seconds in which anything can be learned, including the start of a script


def run(record: Record, request: Request) -> None:
    """Train the model, its draft model and its drafters, as far as the time allows."""
    data = request.data
    if data is None and request.small:
        data = request.models / "small-data"
        write_data(data)
    if data is None:
        record.keep("data", {"failed": "no --data was given: the folder with chat.jsonl.xz and text.jsonl.xz"})
        return
    record.figures.pop("data", None)
    saved, work = request.work / "demo", request.models / "demo-training"
    bring(saved, work)
    try:
        for stage, tokens in (SMALL_TOKENS if request.small else TOKENS).items():
            part(record, request, stage, train_words(request, data, stage, tokens, work), saved, work)
        for kind in [*KINDS][: 1 if request.small else None]:
            part(record, request, kind, drafter_words(request, data, kind, work), saved, work)
    finally:
        bring(work, saved)


def part(record: Record, request: Request, name: str, words: Sequence[str], saved: Path, work: Path) -> None:
    """Run one script, which continues where it stopped. Raises TimeUp if it did not finish."""
    if record.figures.get(name, {}).get("done"):
        return
    if record.left < LEAST:
        raise TimeUp(name)
    print(f"  {name}", flush=True)
    log, began = request.work / f"demo-{name}.log", time.monotonic()
    # Otherwise the smallest models are trained on the CPU.
    environment = {"LOCALSPEC_DEVICE": request.device} if request.on_gpu else {}
    code = run_script(words, record.left - GRACE, log, environment)
    spent = record.figures.get(name, {}).get("seconds", 0.0) + time.monotonic() - began
    bring(work, saved)
    record.keep(
        name, {"done": code == 0, "seconds": spent, "reached": reached(work, name), "said": last_line(log)[:300]}
    )
    if code is None:
        raise TimeUp(name)


def train_words(request: Request, data: Path, stage: str, tokens: float, work: Path) -> list[str]:
    scripts = ROOT / "research"
    words = [str(scripts / "train_demo.py")]
    if request.small:
        words = [str(scripts / "gpu_stages" / "small_demo.py"), "train_demo.py"]
    words += [stage, "--data", str(data), "--work", str(work)]
    words += ["--tokens", str(tokens), "--device", request.device, "--saved", "30"]
    words += ["--towards", str(work / "model")] if stage == "draft" else []
    return [*words, *(["--batch", "2048", "--micro", "1024", "--float32"] if request.small else [])]


def drafter_words(request: Request, data: Path, kind: str, work: Path) -> list[str]:
    steps, texts = (SMALL_STEPS, data / "mixture.jsonl") if request.small else (trained_before(kind), data)
    words = [str(ROOT / "research" / "train_demo_drafters.py"), "--data", str(texts), "--work", str(work / "trainings")]
    return [*words, "--out", str(work / "drafters"), "--only", kind, "--steps", str(steps)]


def trained_before(kind: str) -> int:
    """Return the number of steps for which the shipped drafter was trained, which is the full length."""
    card = json.loads((DEMO / "drafters" / kind / "drafter.json").read_text("utf-8"))
    return int(card["trained"]["steps"])


def reached(work: Path, name: str) -> dict[str, Any]:
    """Return how far a part came, from the files that it wrote."""
    if name in TOKENS:
        lines = (work / name / "held_out.jsonl", work / ("draft-model.json" if name == "draft" else "model.json"))
        records = [json.loads(file.read_text("utf-8").strip().splitlines()[-1]) for file in lines[:1] if file.exists()]
        progress = {"tokens": records[-1]["tokens"], "held_out": records[-1]["held_out"]} if records else {}
        if lines[1].exists():
            progress |= {"tokens": json.loads(lines[1].read_text("utf-8")).get(name, {}).get("tokens")}
        return progress
    card, losses = work / "drafters" / name / "drafter.json", work / "trainings" / name / "losses.jsonl"
    if card.exists():
        content = json.loads(card.read_text("utf-8"))
        return {"steps": content["trained"]["steps"], "right": [level[0] for level in content["accuracy_by_depth"]]}
    steps = (
        [json.loads(line).get("step", 0) for line in losses.read_text("utf-8").splitlines()] if losses.exists() else []
    )
    return {"steps": max(steps, default=0)}


def bring(source: Path, out: Path) -> None:
    """Copy the files to save: checkpoints, models, drafters and logs. Texts are not copied: they can be made again."""
    files = [source / stage / name for stage in TOKENS for name in KEPT]
    for folder in ("model", "draft-model", "drafters", "tokenizer", "trainings"):
        files += [
            file for file in sorted((source / folder).rglob("*")) if file.is_file() and file.name != "mixture.jsonl"
        ]
    files += sorted(source.glob("*.json"))
    for file in files:
        copied = out / file.relative_to(source)
        if file.exists() and (not copied.exists() or file.stat().st_mtime > copied.stat().st_mtime):
            copied.parent.mkdir(parents=True, exist_ok=True)
            half = copied.with_name(copied.name + ".part")
            shutil.copy2(file, half)
            half.replace(copied)


def section(figures: dict[str, Any]) -> str:
    if "data" in figures:
        return f"- {figures['data']['failed']}"
    lines = []
    for name, result in figures.items():
        far = ", ".join(f"{key} {value}" for key, value in result["reached"].items()) or result["said"]
        lines.append(f"- {name}: {'done' if result['done'] else 'not done'} after {result['seconds']:.0f} s; {far}")
    return "\n".join(lines) + "\n\nCheckpoints, models and drafters lie in `demo` of the work, and go on from there."


def aims(figures: dict[str, Any]) -> list[Aim]:
    parts = [*TOKENS, *KINDS]
    done = (
        shares(figures.get(name, {}).get("done", False) for name in parts)
        if figures and "data" not in figures
        else None
    )
    return [Aim("share of the demo's trainings that came to their end", done, 1.0)]
