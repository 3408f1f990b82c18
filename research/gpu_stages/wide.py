"""The demo model, widened to billions of weights on this machine, so that no large model must be copied to it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment import questions
from widen_demo import widen

from gpu_stages.request import Request
from localspec import config
from localspec.bench import prompts
from localspec.config import Settings
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.weights.checkpoint import inspect

CONTEXT = 4096
PRECISIONS = {"bf16": {"dtype": "bf16", "quantize": "none"}, "nf4": {"dtype": "bf16", "quantize": "nf4"}}
SMALL_PRECISIONS = {"bf16": PRECISIONS["bf16"]}


def precisions(request: Request) -> dict[str, dict[str, str]]:
    """Return the precisions in which the widened demo is measured, as settings."""
    return PRECISIONS if request.on_gpu else SMALL_PRECISIONS


def wide_demo(request: Request) -> TargetCard:
    """Return the widened demo, which is made if it is not there yet."""
    path = request.models / f"demo-{request.width}"
    if not path.exists():
        for other in request.models.glob("demo-*"):  # unfinished, or of another width: each takes gigabytes
            shutil.rmtree(other)
        widen(path, request.width, CONTEXT)
    return registry.resolve(str(path))


def settings_of(request: Request, precision: str, **more: Any) -> Settings:
    """Return the settings for measuring in a precision: greedy, with a fixed seed."""
    flags = {"device": request.device, "temperature": 0.0, "seed": 0, **precisions(request)[precision], **more}
    return config.load(flags=flags)


def questions_of(request: Request, count: int) -> list[prompts.BenchPrompt]:
    """Return `count` prompts of all kinds of text."""
    if request.prompts is None:
        return prompts.spread(prompts.BUILT_IN, count)
    return questions(request.prompts, count)


def prompts_place(request: Request) -> Path:
    """Return the path of the prompts for `speedups.py`: the named ones, or else a folder of the built-in ones by kind."""
    if request.prompts is not None:
        return request.prompts
    folder = request.work / "prompts"
    folder.mkdir(exist_ok=True)
    for prompt in prompts.BUILT_IN:
        file = folder / f"{prompt.category}.jsonl"
        others = [other for other in prompts.BUILT_IN if other.category == prompt.category]
        file.write_text("".join(json.dumps({"id": o.id, "prompt": o.text}) + "\n" for o in others), "utf-8")
    return folder


def parameters(card: TargetCard) -> int:
    return inspect(card.path).parameters


def without_phrases(settings: Settings, drafter: str) -> Settings:
    """Return these settings with this drafter."""
    return replace(settings, drafter=drafter)
