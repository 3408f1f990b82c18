"""Saves a model in NF4 as one safetensors file, with bitsandbytes' names for parts of matrices, and loads it from
there.

Reading this file takes a quarter of the time of reading the original, and nothing is packed again.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from localspec.choosing.choice import LoadSpec
from localspec.environment import home
from localspec.errors import LocalspecError, first_line, out_of_memory
from localspec.events import Reporter
from localspec.machine.memory import free_memory
from localspec.nn.linear_bitsandbytes import NF4Linear, PackedNF4
from localspec.nn.transformer import Transformer
from localspec.paths import Paths, private_directory
from localspec.quantities import size
from localspec.weights.checkpoint import revision, weight_files
from localspec.weights.fingerprint import fingerprints, identified, stamps
from localspec.weights.packed_file import DamagedFile, Origin
from localspec.weights.packed_files import GPU_SUFFIX, in_all_formats, lock_of, remove_abandoned
from localspec.weights.stored import LazyTensors

if TYPE_CHECKING:
    from localspec.nn.target import Target

Load = Callable[[Mapping[str, Any] | None], "Target"]  # from packed weights, or from the model's files

FORMAT = "2"  # version of the file format; files of other versions are made again
DIGEST = "sha256"  # of all tensors
SHAPE = ".shape"  # of a packed matrix before its columns were filled up: int64 [2]


def write(transformer: Transformer, file: Path, made_of: str, where: str) -> None:
    """Write a model, either completely or not at all. Raises OSError.

    `made_of` identifies the original weights, and `where` is the path of their directory.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in transformer.named_modules():
        if isinstance(layer, NF4Linear):
            tensors |= {f"{name}.weight{part}": tensor for part, tensor in layer.parts().items()}
            tensors[f"{name}.weight{SHAPE}"] = torch.tensor(layer.shape)
            if layer.bias is not None:
                tensors[f"{name}.bias"] = layer.bias
    tensors |= {name: parameter.detach() for name, parameter in transformer.named_parameters()}
    partial = file.with_name(file.name + ".partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        about = {
            "format": "pt",
            "localspec": FORMAT,
            "made_of": made_of,
            "where": where,
            DIGEST: _digest(sorted(tensors.items())),
        }
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata=about)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, SafetensorError):  # SafetensorError has no errno
            raise OSError(str(error)) from error
        raise


def _digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def damage(file: Path) -> str | None:
    """Read the whole file. Return a clause about the damage, or None for an undamaged file."""
    try:
        stored: Any = safe_open(file, "pt")
        names, about = stored.keys(), stored.metadata() or {}
        if about.get("localspec") != FORMAT:
            return "another version of localspec wrote the file"
        intact = _digest((name, stored.get_tensor(name)) for name in sorted(names)) == about.get(DIGEST)
    except (SafetensorError, OSError) as error:
        return f"the file cannot be read ({first_line(error)})"
    return None if intact else "the weights do not agree with their digest"


def former_files(file: Path, made_of: str, where: str) -> list[Path]:
    """Return older files next to `file`: of the model directory `where`, but made of other weights than `made_of`."""
    files = []
    for other in file.parent.glob(f"*{file.suffix}"):
        with suppress(SafetensorError, OSError):
            stored: Any = safe_open(other, "pt")
            about = stored.metadata() or {}
            if about.get("where") == where and about.get("made_of") != made_of:
                files.append(other)
    return files


class NF4Weights(LazyTensors):
    """The weights in a file that `write` made, by localspec's names.

    Each is read directly to its device when it is accessed.
    """

    def __init__(self, file: Path, made_of: str, device: str) -> None:
        """Open the file. Raises DamagedFile if it is damaged, or was made of other weights or by another version."""
        try:
            stored: Any = safe_open(file, "pt", device=device)  # safetensors has no type hints for it
            about = stored.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise DamagedFile(f"{file} is damaged ({error}); it is made again.") from None
        if (about.get("localspec"), about.get("made_of")) != (FORMAT, made_of):
            raise DamagedFile(f"{file} was made of other weights, or by another version; it is made again.")
        self._file, self._stored = file, stored
        super().__init__(set(stored.keys()), self._tensor)

    def _tensor(self, name: str) -> Any:
        try:
            if name + SHAPE not in self._names:
                return self._stored.get_tensor(name)
            parts = [part for part in self._names if part.startswith(name) and part != name + SHAPE]
            tensors = {part.removeprefix(name): self._stored.get_tensor(part) for part in parts}
            return PackedNF4(torch.Size(self._stored.get_tensor(name + SHAPE).tolist()), tensors)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise DamagedFile(f"{self._file} is damaged ({error}); it is made again.") from None


def load_saved(choice: LoadSpec, load: Load, reporter: Reporter) -> "Target":
    """Load a model in NF4 from its saved packed weights. If no such weights exist, load the model from its own files
    and save its packed weights.

    If saving fails, a notice says why. Raises the errors of `load`.
    """
    try:
        old_stamps = stamps(weight_files(choice.target.path))
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
        if stamps(weight_files(choice.target.path)) != old_stamps:
            file.unlink(missing_ok=True)
            raise LocalspecError("the model's weights changed meanwhile.")
    except (LocalspecError, OSError, MemoryError, RuntimeError) as trouble:
        reporter.notice(f"The packed model cannot be saved: {_reason(trouble)}.")
    return target


def _place(choice: LoadSpec) -> tuple[Path, str]:
    """Return the path of the packed weights, whether or not they exist, and a text that identifies their sources."""
    path, paths = choice.target.path, Paths(home())
    files, revision_now = weight_files(path), revision(path)
    places = []
    for identities in (identified(files, paths), fingerprints(files)):  # before and after their SHA-256 was known
        origin = Origin(choice.target.name, revision_now, files=identities)
        file = in_all_formats(origin, f"{choice.quantize}-{choice.dtype}", paths)[0].with_suffix(GPU_SUFFIX)
        places.append((file, " ".join(f"{name} {digest}" for name, (_, digest) in sorted(identities.items()))))
    return next((place for place in places if place[0].exists()), places[0])


def _keep(target: "Target", file: Path, made_of: str, choice: LoadSpec, reporter: Reporter) -> None:
    """Write the packed weights, unless another process writes them. Delete files of the model's former weights.

    Raises LocalspecError if disk or main memory lack room.
    """
    private_directory(file.parent)
    remove_abandoned(file.parent)
    if (needed := target.nbytes) > shutil.disk_usage(file.parent).free or needed > free_memory() // 2:
        raise LocalspecError(
            f"the file takes {size(needed)} of the disk, and the same amount of main memory while it is written."
        )
    reporter.progress(f"saving the packed weights of {choice.target.name} (needed only once)")
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
        return "there is no memory to write the file"
    reason = trouble.strerror if isinstance(trouble, OSError) and trouble.strerror else str(trouble)
    return reason.rstrip(".")
