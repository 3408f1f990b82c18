"""The packed form of a model that was fetched: made right after, and kept alone where that was asked for."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.checkpoint import revision
from localspec.config import home
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.hub.cache import discard, repository, snapshot
from localspec.hub.plan import Part, Plan
from localspec.hub.records import forget
from localspec.hub.sources import Source
from localspec.machine import compiled
from localspec.machine.machine import Machine
from localspec.models.model import model_of
from localspec.models.model_config import ModelConfig
from localspec.models.packed_files import packed_files
from localspec.models.registry import TargetCard, license_of
from localspec.models.shape import Shape
from localspec.packed_file import Origin, read
from localspec.paths import Paths
from localspec.policy.measurements import NoMeasurements
from localspec.policy.survey import recommend

ALONE = "int8"  # the packing that is kept alone: it loses next to nothing
_BYTES = 1.1  # of a weight in it, with scales and what is not packed


@dataclass(frozen=True)
class Packed:
    """A model's packed form is here; `deleted` bytes of what was fetched for it are not any more."""

    source: Source
    path: Path
    bytes: int
    deleted: int = 0


def check_packable(plan: Plan) -> None:
    """Raises UsageMistake or LocalspecError for what cannot be kept packed alone, DoesNotFit for a disk too small."""
    model = plan.parts[0]
    trouble = ""
    if model.heads:
        raise UsageMistake(f"--packed-only is for models, and {model.source} is a drafter; leave it out.")
    if "tokenizer.json" not in {file.name for file in model.files}:
        trouble = "it has no tokenizer.json"
    from localspec.models.architecture import TransformerConfig
    from localspec.models.rope import Rope  # numpy

    try:
        config = ModelConfig.of(model.config)
        TransformerConfig.of(config)
        Rope.of(config, config.contexts[0])
    except (ValueError, LocalspecError) as error:
        trouble = str(error).rstrip(".")
    if missing := compiled.missing():
        trouble = f"the CPU engine would read it, and {missing}"
    if trouble:
        raise LocalspecError(f"{model.source} cannot be kept packed alone: {trouble}; leave --packed-only out.")
    shape = Shape.of(model.config)
    needed = plan.fetch_bytes + int(_BYTES * (shape.parameters if shape else model.weights))
    if needed > plan.disk_free:
        raise DoesNotFit(
            f"{needed / 2**30:.2f} GiB are needed while it is packed, and {plan.disk_free / 2**30:.2f} GiB are free on "
            "the disk; make room, or set HF_HOME and LOCALSPEC_HOME to another disk."
        )


def packed_alone(part: Part) -> Packed | None:
    """The packed form of exactly this commit, where that is all there is of it already."""
    if part.here & {file.name for file in part.files if file.name.endswith(".safetensors")}:
        return None
    for one in packed_files(Paths(home())):
        if (one.header.origin.repo, one.header.origin.commit) == (str(part.source), part.commit):
            return Packed(part.source, one.path, one.path.stat().st_size)
    return None


def pack_where_used(part: Part, machine: Machine, reporter: Reporter) -> Packed | None:
    """Packs a model that was fetched, where the CPU engine would be chosen for it; None where it would not.

    That it cannot be written is a notice: it is made, or said, again when the model is loaded.
    """
    from localspec.native.packed_cache import FILED, CannotWrite  # numpy

    path = snapshot(part.source, part.commit)
    try:
        found = recommend(model_of(_card(part, path)), machine, NoMeasurements(), here=True)
        precision = found.plan.precision if found.plan else None
        if precision is None or precision.device.name != "cpu" or precision.quantize not in FILED:
            return None
        if compiled.missing():
            return None
        return _pack(part, path, precision.quantize, machine, reporter)
    except (CannotWrite, DoesNotFit) as error:
        reporter.notice(str(error))
    except LocalspecError:  # what is wrong with the model is told when it is loaded
        pass
    return None


def pack_alone(part: Part, machine: Machine, reporter: Reporter) -> Packed:
    """Packs a model that was fetched and deletes what was fetched for it; what was there before stays.

    Raises CannotWrite, DoesNotFit, and LocalspecError for a model that cannot be packed; what was fetched stays then.
    """
    packed = _pack(part, snapshot(part.source, part.commit), ALONE, machine, reporter)
    fetched = [file for file in part.files if file.name not in part.here]
    for file in fetched:
        discard(part.source, part.commit, file)
    if len(fetched) == len(part.files):
        forget(part.source, part.commit)
        place = repository(part.source)
        with suppress(OSError):  # what others have in it stays
            (place / "refs" / part.source.revision).unlink(missing_ok=True)
            for directory in (f"snapshots/{part.commit}", "snapshots", "blobs", "refs", "."):
                (place / directory).rmdir()
    return Packed(part.source, packed.path, packed.bytes, sum(file.bytes for file in fetched))


def _pack(part: Part, path: Path, packing: str, machine: Machine, reporter: Reporter) -> Packed:
    """The packed file of a commit; those of what this source was before go."""
    from localspec.native.packed_cache import make

    source = str(part.source)
    origin = Origin(source, revision(path), license_of(path), source, part.commit)
    file = make(path, packing, origin, machine.cores, reporter)
    for one in packed_files(Paths(home())):
        if one.header.origin.repo == source and one.header.origin.commit != part.commit:
            one.path.unlink(missing_ok=True)
    return Packed(part.source, file, read(file).path.stat().st_size)


def _card(part: Part, path: Path) -> TargetCard:
    return TargetCard(str(part.source), path, part.license, "")
