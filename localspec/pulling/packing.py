"""Packs a fetched model into localspec's own file format. The packed file can replace the download."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.choosing.fetching import LOSSLESS, saved_packing
from localspec.choosing.fit import weights
from localspec.choosing.measure import MeasurementSource
from localspec.config import Settings
from localspec.environment import home
from localspec.errors import DoesNotFit, LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.families.model_config import ModelConfig, least_parameters
from localspec.hub.cache import discard, find_snapshot, repository, snapshot
from localspec.hub.cached_gguf import tidy
from localspec.hub.plan import Part, Plan, is_weights
from localspec.hub.records import forget
from localspec.hub.sources import Source
from localspec.machine import compiled
from localspec.machine.machine import Machine
from localspec.models.shape import Shape
from localspec.paths import Paths
from localspec.quantities import distinct, size
from localspec.weights.checkpoint import revision, weight_files
from localspec.weights.packed_file import Origin, read
from localspec.weights.packed_files import FILED, packed_files


@dataclass(frozen=True)
class Installed:
    """An event: a model is now installed, in this directory or file.

    `weights` is the precision and size of weights that are read directly from the file; otherwise empty.
    """

    source: Source
    path: Path
    weights: str = ""


@dataclass(frozen=True)
class Packed:
    """An event: a model was packed into the file `path`. `deleted` bytes of its download were then deleted.

    With --packed-only, `stays` is the size in bytes of older weights of the model, which are not deleted.
    """

    source: Source
    path: Path
    bytes: int
    deleted: int = 0
    stays: int = 0


def packing_of(part: Part, settings: Settings, machine: Machine, measurements: MeasurementSource) -> str | None:
    """Return the packing (form of weights) in which the CPU engine would load a model; None if it would not load it.

    The model need not be on this machine.
    """
    if part.heads or (shape := Shape.of(part.config)) is None:
        return None
    return saved_packing(str(part.source), part.license, shape, settings, machine, measurements)


def packing_to_keep(plan: Plan, packing: str | None, settings: Settings) -> str:
    """Return the packing to use for --packed-only: the one in the settings, or else `packing`, or else int8.

    Raises UsageMistake or LocalspecError if the model cannot be kept without its original weights, and DoesNotFit if
    the disk is too small.
    """
    model = plan.parts[0]
    trouble = ""
    if model.heads:
        raise UsageMistake(
            f"--packed-only works only for models, but {model.source} is a drafter; leave --packed-only out."
        )
    if model.whole:
        raise UsageMistake(
            f"--packed-only works only for safetensors files, but {model.source} has pickle files; leave "
            "--packed-only out."
        )
    form = settings.dtype if settings.quantize == "auto" else settings.quantize  # as `run` understands them
    if form not in ("auto", *FILED):
        raise UsageMistake(
            f"--packed-only can keep a model only in {' or '.join(FILED)}, but you asked for {form}; give --quantize "
            f"{' or --quantize '.join(FILED)}, or leave --packed-only out."
        )
    packing = settings.quantize if settings.quantize != "auto" else packing or LOSSLESS
    if "tokenizer.json" not in {file.name for file in model.files}:
        trouble = "the repository has no tokenizer.json"
    from localspec.families.architecture import TransformerConfig
    from localspec.families.rope import Rope  # numpy

    try:
        config = ModelConfig.of(model.config)
        TransformerConfig.of(config)
        Rope.of(config, config.contexts[0])
        if least_parameters(config) > model.weights:  # each parameter takes a byte at least
            trouble = f"config.json describes more weights than {model.weights} bytes can hold"
    except (ValueError, LocalspecError) as error:
        trouble = str(error).rstrip(".")
    shape = Shape.of(model.config)
    if missing := compiled.missing():
        trouble = f"only the CPU engine can read a packed file, and {missing}"
    if trouble:
        raise LocalspecError(f"{model.source} cannot be kept in packed form only: {trouble}; leave --packed-only out.")
    needed = plan.fetch_bytes + (weights(shape, "bf16", packing, "native") if shape else model.weights)
    if needed > plan.disk_free:
        shown, left = distinct(size, needed, plan.disk_free)
        raise DoesNotFit(
            f"Packing {model.source} needs {shown}, but only {left} are free on the disk; make room, or set HF_HOME "
            "and LOCALSPEC_HOME to another disk."
        )
    return packing


def packed_only_copy(part: Part, packing: str) -> Packed | None:
    """Return the packed file of the commit in `part`, if the commit's weight files are not here; otherwise None."""
    if part.here & {file.name for file in part.files if file.name.endswith(".safetensors")}:
        return None
    for copy in packed_files(Paths(home())):
        origin = copy.header.origin
        if (origin.repo, origin.commit, copy.header.packing) == (str(part.source), part.commit, packing):
            return Packed(part.source, copy.path, copy.path.stat().st_size)
    return None


def pack_and_keep(part: Part, packing: str, machine: Machine, reporter: Reporter) -> Packed | None:
    """Pack a fetched model, and keep the download. Return None if packing fails.

    If the file cannot be written, a notice says so. Loading the model will then pack it again, or report the reason.
    """
    from localspec.weights.opening import CannotWrite  # numpy

    try:
        return _pack(part, snapshot(part.source, part.commit), packing, machine, reporter)
    except (CannotWrite, DoesNotFit) as error:
        reporter.notice(str(error))
    except LocalspecError:  # loading the model will say what is wrong
        pass
    return None


def pack_and_delete(part: Part, packing: str, machine: Machine, reporter: Reporter) -> Packed:
    """Pack a fetched model, and then delete the files that this pull has fetched, but not older ones.

    Raises CannotWrite, DoesNotFit, and LocalspecError for a model that cannot be packed, or cannot be opened
    afterwards. In these cases the download stays.
    """
    from localspec.native.target import NativeTarget  # numpy

    try:
        packed = _pack(part, snapshot(part.source, part.commit), packing, machine, reporter, only_copy=True)
        NativeTarget.open(packed.path, packing=packing)  # including its tokenizer, because no other file will remain
    except LocalspecError as error:
        problem = str(error).rstrip(".")
        raise type(error)(
            f"{problem}; the fetched files stay on the disk until you run `localspec rm {part.source}`."
        ) from None
    stays = sum(file.bytes for file in part.files if file.name in part.here and is_weights(file.name))
    return Packed(part.source, packed.path, packed.bytes, discard_fetched(part), stays)


def discard_fetched(part: Part) -> int:
    """Delete the files in `part` that this pull has fetched, and the record of their commit if no other files remain.

    Return the number of deleted bytes.
    """
    fetched = [file for file in part.files if file.name not in part.here]
    for file in fetched:
        discard(part.source, part.commit, file)
    if len(fetched) == len(part.files):
        if not part.texts_only:  # such a part has no record and no ref
            forget(part.source, part.commit)
            with suppress(OSError):
                (repository(part.source) / "refs" / part.source.revision).unlink(missing_ok=True)
        tidy(part.source, part.commit, [file.name for file in part.files])
    return sum(file.bytes for file in fetched)


def forget_damaged(path: Path) -> None:
    """Delete packed files that are older than the weights in `path`, because they may come from damaged weights.

    A pull compares weights with their digests. Loading a model does not: it trusts the file names in the shared cache.
    """
    with suppress(LocalspecError, OSError):  # such a model was never packed
        changed, here = max(file.stat().st_ctime_ns for file in weight_files(path)), revision(path)
        for copy in packed_files(Paths(home())):
            origin = copy.header.origin
            if not origin.commit and origin.revision == here and copy.path.stat().st_mtime_ns < changed:
                copy.path.unlink(missing_ok=True)


def _pack(
    part: Part, path: Path, packing: str, machine: Machine, reporter: Reporter, *, only_copy: bool = False
) -> Packed:
    """Pack the weights in `path` into a file. Delete packed files of earlier commits of the same repository."""
    from localspec.weights.opening import make, with_files

    source = str(part.source)
    origin = Origin(source, revision(path), repo=source, commit=part.commit)
    identified = with_files(origin, path, Paths(home()), reporter)
    origins = (copy.header.origin for copy in packed_files(Paths(home())) if copy.header.packing == packing)
    others = (old.repo for old in origins if (old.revision, old.files) == (identified.revision, identified.files))
    other = next((repo for repo in others if repo not in ("", source)), None)
    if other and find_snapshot(Source.parse(other)) is None:  # this packed file is its only copy
        raise LocalspecError(
            f"{source} has the same weights as {other}, and packing them would replace the only copy of {other}; use "
            f"{other}, or delete it first with `localspec rm {other}`."
        )
    file = make(path, packing, origin, machine.cores, reporter, only_copy=only_copy)
    for copy in packed_files(Paths(home())):
        if copy.header.origin.repo == source and copy.header.origin.commit != part.commit:
            copy.path.unlink(missing_ok=True)
    return Packed(part.source, file, read(file).path.stat().st_size)
