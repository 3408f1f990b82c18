"""Simulated machines, models and measurements for the choice of plans, which is pure arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.choosing.cost import ForwardCosts
from localspec.choosing.measure import ModelMeasurements, NoMeasurements
from localspec.hub.sources import Source
from localspec.machine.machine import Device, Machine
from localspec.models.drafter_cards import DrafterCard
from localspec.models.entries import Entry, PublishedDrafter
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape

GIB = 2**30
LITTLE = Shape(4, 320, 864, 5, 5, 64, 8192, 1024)  # 11 M parameters
BILLION = Shape(16, 2048, 8192, 32, 8, 64, 128256, 131072, tied=True)  # 1.2 B: Llama-3.2-1B
SEVEN = Shape(32, 4096, 11008, 32, 32, 128, 32000, 4096)  # 6.7 B: Llama-2-7B
PHI = Shape(32, 3072, 8192, 32, 32, 96, 32064, 4096)  # 3.8 B: Phi-3-mini


def cpu(
    gib: float = 24,
    free: float | None = None,
    packings: tuple[str, ...] = ("int8", "int4"),
    bf16: bool = True,
    bandwidth: float | None = 20e9,
) -> Device:
    """Return a CPU with main memory, of which `free` GiB (by default all) are free. torch computes without bf16."""
    found = _device("cpu", gib, free, ("bf16", "fp32") if bf16 else ("fp32",), packings, bandwidth)
    return replace(found, engine="native" if bf16 else "torch", capability="avx512_vnni" if bf16 else "", cores=4)


def gpu(
    gib: float = 24,
    free: float | None = None,
    index: int = 0,
    packings: tuple[str, ...] = ("int8", "nf4"),
    bandwidth: float | None = 600e9,
) -> Device:
    """Return a GPU by NVIDIA."""
    return _device(f"cuda:{index}", gib, free, ("bf16", "fp16", "fp32"), packings, bandwidth)


def apple(gib: float = 16, free: float | None = None, bandwidth: float | None = 100e9) -> Device:
    """Return the GPU of a Mac."""
    return _device("mps", gib, free, ("bf16", "fp16", "fp32"), ("int8", "int4"), bandwidth)


def _device(
    name: str,
    gib: float,
    free: float | None,
    dtypes: tuple[str, ...],
    packings: tuple[str, ...],
    bandwidth: float | None,
) -> Device:
    left = gib if free is None else free
    missing = {
        packing: "its kernels are not invented" for packing in ("int8", "int4", "nf4") if packing not in packings
    }
    return Device(name, f"invented {name}", int(gib * GIB), int(left * GIB), dtypes, packings, "", bandwidth, missing)


def machine(*devices: Device) -> Machine:
    """Return a machine with these devices, and with a usual CPU if none of them is a CPU."""
    own = () if any(device.type == "cpu" for device in devices) else (cpu(),)
    return Machine((*devices, *own), 8)


def unfetched(
    shape: Shape | None = SEVEN, name: str = "big", draft: str = "", drafters: tuple[PublishedDrafter, ...] = ()
) -> TargetCard:
    """Return a registered model that is not downloaded, so that its sizes come from its entry only."""
    entry = Entry(name, source=Source("org/model"), draft=draft, shape=shape, drafters=drafters)
    return TargetCard(name, Path("not fetched") / name, None, "", draft, entry)


def trained(kind: str, parameters: int, *rates: float, revision: str = "0" * 40) -> DrafterCard:
    """Return an installed drafter. `rates` are the shares of held-out text in which it predicts each further token."""
    about = {"accuracy_by_depth": [[rate] for rate in rates]}
    return DrafterCard(kind, Path("drafters") / kind, {}, revision, "big", parameters, parameters * 4, about)


def flat(seconds: float, slope: float = 0.0) -> ForwardCosts:
    """Return costs of forwards: the seconds of one row, and the share by which each further row is slower."""
    return ForwardCosts((1, 65), (256,), ((seconds, seconds * (1 + 64 * slope)),))


@dataclass(frozen=True)
class Told(NoMeasurements):
    """Invented measurements: of models by (device, packing), and of the memory's bandwidth."""

    models: Mapping[tuple[str, str], ModelMeasurements] = field(default_factory=dict)
    memory: float | None = None
    on_disk: float | None = None

    def disk(self, card: TargetCard) -> float | None:
        return self.on_disk

    def of(self, card: TargetCard, device: str, dtype: str, quantize: str) -> ModelMeasurements:
        return self.models.get((device, quantize), ModelMeasurements())

    def bandwidth(self, device: str) -> float | None:
        return self.memory
