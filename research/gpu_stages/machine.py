"""Facts about the machine and the versions of packages, for the head of the page and the runs of each stage."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from gpu_stages.request import ROOT, Request
from localspec.machine.hardware import cpu_name, nvidia_driver, physical_cores
from localspec.machine.memory import free_memory, total_memory

PACKAGES = ("torch", "transformers", "bitsandbytes", "triton", "accelerate", "numpy")


def machine(request: Request) -> dict[str, Any]:
    """Return facts about the GPU, the CPU, the load and the versions, as they are now."""
    driver = nvidia_driver()
    card = torch.cuda.get_device_properties(request.device) if request.on_gpu else None
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "card": f"{card.name}, {card.multi_processor_count} multiprocessors" if card else "none: a rehearsal",
        "memory": total_memory(request.device), "free": free_memory(request.device),
        "driver": driver.version if driver else "", "cuda": torch.version.cuda or "",
        "cpu": f"{cpu_name()}, {physical_cores()} cores, {platform.platform()}",
        "python": platform.python_version(),
        "versions": {name: number for name in PACKAGES if (number := _version(name))},
        "commit": _commit(), "load": os.getloadavg()[0],
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
