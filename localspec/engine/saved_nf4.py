"""Weights packed for a GPU, saved next to the packed models of the CPU engine and loaded instead of the originals."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from localspec.choosing.choice import LoadSpec
from localspec.environment import home
from localspec.errors import LocalspecError, out_of_memory
from localspec.events import Reporter
from localspec.machine.memory import free_memory
from localspec.paths import Paths, private_directory
from localspec.quantities import size
from localspec.weights.checkpoint import revision, weight_files
from localspec.weights.fingerprint import fingerprints, identified, stamps
from localspec.weights.packed_file import DamagedFile, Origin
from localspec.weights.packed_files import GPU_SUFFIX, in_all_formats, lock_of, remove_abandoned

if TYPE_CHECKING:
    from localspec.nn.target import Target

Load = Callable[[Mapping[str, Any] | None], "Target"]  # from packed weights, or from the model's files


def load_saved(choice: LoadSpec, load: Load, reporter: Reporter) -> "Target":
    """Load a model in NF4 from its saved packed weights. If there are none, load it from its files and save them.

    If they cannot be saved, a notice says so. Raises the errors of `load`.
    """
    from localspec.nn.nf4_file import NF4Weights

    try:
        before = stamps(weight_files(choice.target.path))
        file, made_of = _place(choice)
    except (LocalspecError, OSError) as trouble:
        reporter.notice(f"The packed model cannot be saved: {_reason(trouble)}.")
        return load(None)
    if file.exists():
        try:
            return load(NF4Weights(file, made_of, choice.device))
        except (DamagedFile, KeyError) as trouble:  # a KeyError is a missing tensor
            damaged = isinstance(trouble, DamagedFile)
            reporter.notice(str(trouble) if damaged else f"{file} lacks {trouble}; it is made again.")
            with suppress(OSError):
                file.unlink()
    target = load(None)
    try:
        _keep(target, file, made_of, choice, reporter)
        if stamps(weight_files(choice.target.path)) != before:
            file.unlink(missing_ok=True)
            raise LocalspecError("its weights changed meanwhile.")
    except (LocalspecError, OSError, MemoryError, RuntimeError) as trouble:
        reporter.notice(f"The packed model cannot be saved: {_reason(trouble)}.")
    return target


def saved_damage(file: Path) -> str | None:
    """Return a clause about the damage of such a file; None if every weight agrees with its digest."""
    from localspec.nn.nf4_file import damage

    return damage(file)


def _place(choice: LoadSpec) -> tuple[Path, str]:
    """Return the path of the packed weights, whether or not they exist, and a text that identifies their sources."""
    path, paths = choice.target.path, Paths(home())
    files, revision_now = weight_files(path), revision(path)
    places = []
    for of in (identified(files, paths), fingerprints(files)):  # before and after their SHA-256 was known
        origin = Origin(choice.target.name, revision_now, files=of)
        file = in_all_formats(origin, f"{choice.quantize}-{choice.dtype}", paths)[0].with_suffix(GPU_SUFFIX)
        places.append((file, " ".join(f"{name} {digest}" for name, (_, digest) in sorted(of.items()))))
    return next((place for place in places if place[0].exists()), places[0])


def _keep(target: "Target", file: Path, made_of: str, choice: LoadSpec, reporter: Reporter) -> None:
    """Write the packed weights if disk and main memory have room. Of several processes only one writes."""
    from localspec.nn.nf4_file import former_files, write

    private_directory(file.parent)
    remove_abandoned(file.parent)
    if (needed := target.nbytes) > shutil.disk_usage(file.parent).free or needed > free_memory() // 2:
        raise LocalspecError(
            f"it takes {size(needed)} of the disk, and the same amount of main memory while it is written."
        )
    reporter.progress(f"saving {choice.target.name} as packed, once")
    try:
        with FileLock(lock_of(file), timeout=0, mode=0o600):
            try:
                if not file.exists():
                    write(target.transformer, file, made_of, str(choice.target.path))
            finally:
                with suppress(OSError):
                    lock_of(file).unlink()
    except Timeout:  # another process writes them
        return
    for former in former_files(file, made_of, str(choice.target.path)):  # no other code would find them again
        with suppress(OSError):
            former.unlink()


def _reason(trouble: Exception) -> str:
    if out_of_memory(trouble):
        return "there is no memory to write it"
    reason = trouble.strerror if isinstance(trouble, OSError) and trouble.strerror else str(trouble)
    return reason.rstrip(".")
