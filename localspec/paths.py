"""The paths of all files and directories of localspec. A directory is created only when something is written there."""

import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import PlatformDirs

_PLATFORM = PlatformDirs("localspec", appauthor=False)


class _Directory:
    """One of the four directories of `Paths`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: "Paths", _: object = None) -> Path:
        default: Path = getattr(_PLATFORM, f"user_{self._name}_path")
        return paths.home / self._name if paths.home else default


class _Place:
    """A file or folder in one of the four directories of `Paths`."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._name = directory, name

    def __get__(self, paths: "Paths", _: object = None) -> Path:
        directory: Path = getattr(paths, self._directory)
        return directory / self._name


@dataclass(frozen=True)
class Paths:
    """The places of files: below `home` if it is given, otherwise where this platform keeps such files."""

    home: Path | None = None

    config_dir = _Directory("config")
    data_dir = _Directory("data")
    state_dir = _Directory("state")
    cache_dir = _Directory("cache")

    config_file = _Place("config_dir", "config.toml")
    user_models_file = _Place("config_dir", "models.toml")

    database = _Place("data_dir", "localspec.db")
    copied = _Place("data_dir", "copied.txt")  # the last text that was copied while no clipboard could be reached
    choice = _Place("data_dir", "model.json")  # the model that was chosen last
    former_names = _Place("data_dir", "former-names.json")  # of imports that conversations and phrases still refer to
    drafters = _Place("data_dir", "drafters")
    answers = _Place("data_dir", "answers")  # replies of models to prompts of localspec, to train drafters
    pulled = _Place("data_dir", "pulled")
    imports = _Place("data_dir", "imported")  # packed models that are the only copy of their weights
    serving_key = _Place("data_dir", "serving.key")  # for requests over TCP

    socket = _Place("state_dir", "serve.sock")  # of `localspec serve` for its own user
    # the last notice about the answering model, so that it is repeated only once a day
    last_notice = _Place("state_dir", "last-notice.txt")
    logs = _Place("state_dir", "logs")

    packed = _Place("cache_dir", "packed")  # packed models that can be made again from weights on this machine
    tokenizers = _Place("cache_dir", "tokenizers")
    kernels = _Place("cache_dir", "kernels")  # code compiled for GPUs

    def answers_of(self, model: str) -> list[Path]:
        """Return the directories of a model's saved answers for training drafters: a directory for each packing."""
        stem = file_stem(model)
        return [
            folder
            for folder in self.answers.glob(f"{stem}-*")
            if re.fullmatch("-[0-9a-f]{12}", folder.name[len(stem) :])
        ]


def file_stem(name: str) -> str:
    """Return a name with only characters that are allowed in file names on every system."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")


def private_directory(path: Path) -> Path:
    """Make `path` and its missing parents with mode 0700. Change an existing directory to that mode. Raises OSError."""
    _make(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        with suppress(PermissionError):  # another user's directory stays as it is
            path.chmod(mode & 0o700)
    return path


def _make(path: Path) -> None:
    if not path.parent.exists():
        _make(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # created by another process meanwhile, or `missing/..`, which is not ours
        if not path.is_dir():
            raise
    else:
        if stat.S_IMODE(path.stat().st_mode) & 0o700 != 0o700:  # a umask removed permissions that its owner needs
            path.chmod(0o700)


def write_anew(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file so that no reader ever sees part of it. Remove unfinished files of killed processes.

    Raises OSError; the previous content then stays.
    """
    begin, end = f".{file.name}.", ".new"
    new = file.parent / f"{begin}{os.getpid()}-{threading.get_ident()}{end}"
    for name in os.listdir(file.parent):
        if name.startswith(begin) and name.endswith(end) and (name == new.name or _writer_is_gone(name[len(begin) :])):
            with suppress(OSError):
                os.unlink(file.parent / name)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(new, mode)
        os.replace(new, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def _writer_is_gone(writer: str) -> bool:
    """Return whether the process that wrote an unfinished file has ended. `writer` begins with the process's id."""
    import psutil  # seldom needed

    process = writer.partition("-")[0]
    return process.isdecimal() and not psutil.pid_exists(int(process))


OWNER_READS, OWNER_WRITES = 0o077, 0o022  # for `without_rights`: only the owner reads files, or only the owner writes


@contextmanager
def without_rights(bits: int) -> Iterator[None]:
    """Remove the permission `bits` from all files that this process or its libraries create within this context."""
    before = os.umask(bits)
    os.umask(before | bits)
    try:
        yield
    finally:
        os.umask(before)


def disk_of(place: Path) -> Path:
    """Return `place` if it exists, or else the nearest existing directory above it, on the same disk."""
    return next(parent for parent in (place, *place.absolute().parents) if parent.exists())


def mount_of(place: Path) -> Path:
    """Return the mount point of the disk of a place that exists.

    Unlike a device number, it is the same after a reboot.
    """
    whole = place.resolve()
    return next((parent for parent in (whole, *whole.parents) if os.path.ismount(parent)), Path(whole.anchor))


def free_disk(place: Path) -> int:
    """Return the free bytes on the disk of a place, which need not exist yet."""
    return shutil.disk_usage(disk_of(place)).free
