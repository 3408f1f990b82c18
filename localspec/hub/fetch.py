"""Fetches planned files with the Hugging Face client, and compares each file with the server's digest."""

import os
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from localspec.environment import hub_places
from localspec.errors import DoesNotFit, LocalspecError
from localspec.hub.cache import cached, damage, discard, repository, size, snapshot
from localspec.hub.client import broke_off, client, localspec_errors, server
from localspec.hub.plan import Part, Plan, is_weights
from localspec.hub.records import ExpectedFile, folder, must_be_writable, record, remember
from localspec.hub.sources import Source
from localspec.paths import OWNER_WRITES, Paths, without_rights, write_anew
from localspec.quantities import distinct
from localspec.quantities import size as shown

_IN_VAIN = 3  # most attempts in a row that may break off after less than a tenth of the file


class Interrupted(KeyboardInterrupt):
    """An error: the user stopped a pull. The message says which data stay in the cache."""


def fetch(
    planned: Plan,
    progress: Callable[[int, int], None] = lambda done, total: None,
    paths: Paths | None = None,
    force: bool = False,
) -> list[str]:
    """Fetch missing or damaged files, compare every file with its digest, and record the pull. Return notices.

    `progress` is called with the number of bytes that are here, and their total.

    Before anything is fetched, raises DoesNotFit (unless `force`), and LocalspecError if no record can be written.
    Later raises Interrupted, NotAllowed, NotHere and LocalspecError; their messages say which data stay in the cache.
    """
    if not planned.fits_on_disk and not force:
        raise DoesNotFit(too_large(planned))
    if planned.parts:
        must_be_writable(paths)
    fetching = _Fetching(planned, progress)
    try:
        with warnings.catch_warnings(), without_rights(OWNER_WRITES):
            warnings.simplefilter("ignore")  # the client warns of a small disk, and the plan did so already
            for part in planned.parts:
                with localspec_errors(part.source, fetching.in_words), _private_locks(part.source):
                    fetching.part(part)
                    fetching.notices += _finish(part, paths)
    except KeyboardInterrupt:
        raise Interrupted(fetching.in_words()) from None
    return fetching.notices


def too_large(planned: Plan) -> str:
    needed, free = distinct(shown, planned.fetch_bytes, planned.disk_free)
    return (
        f"{needed} must be fetched, but only {free} are free on the disk of {hub_places().cache}; make room, or set "
        "HF_HOME to another disk."
    )


@dataclass
class _Fetching:
    """The progress of a pull: finished bytes and files, and the file that is being received with its bytes so far."""

    plan: Plan
    progress: Callable[[int, int], None]
    done: int = 0
    whole: list[str] = field(default_factory=list)
    coming: ExpectedFile | None = None
    of_coming: int = 0
    notices: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """Return sentences about the files that stay in the cache after a failure; empty if there are none."""
        sentences = []
        if self.whole:
            names = ", ".join(self.whole) if len(self.whole) <= 6 else f"{len(self.whole)} files"
            sentences.append(f"These files stay in the cache: {names}.")
        if self.coming:
            progress = f" ({self.of_coming:,} of {self.coming.bytes:,} bytes were fetched)" if self.of_coming else ""
            sentences.append(f"A later pull fetches {self.coming.name} from the start{progress}.")
        elif sentences:
            sentences.append("A later pull fetches the rest.")
        return " ".join(sentences)

    def part(self, part: Part) -> None:
        """Fetch the files of one repository. Weights come last, so that an interrupted pull does not look like a model.

        Files that are in the cache already are compared with their digests.
        """
        hub, places = client(), hub_places()
        for file in sorted(part.files, key=lambda file: (is_weights(file.name), file.bytes)):
            offset, here, damaged = self.done, cached(part.source, part.commit, file), False

            def show(read: int, offset: int = offset) -> None:
                self._show(offset + read)

            if here and damage(here, file, show):
                discard(part.source, part.commit, file)
                here, damaged = None, True
            self.coming, self.of_coming = file, 0
            if not here:
                self._clear(part.source, part.commit, file)
            try:
                hub.hf_hub_download(
                    part.source.repo,
                    file.name,
                    revision=part.commit,
                    cache_dir=places.cache,
                    endpoint=places.endpoint,
                    tqdm_class=self._bar(file),
                )
            except RecursionError:  # the client calls itself each time that a connection breaks off
                raise LocalspecError(broke_off(file.name, "repeatedly")) from None
            pointer = snapshot(part.source, part.commit) / file.name
            if not here and (problem := damage(pointer, file, lambda _: self._show(self.done + self.of_coming))):
                discard(part.source, part.commit, file)
                self.of_coming = 0
                raise LocalspecError(
                    f"{problem}; {server()} sent this file of {part.source}, and it was deleted. Pull again."
                )
            if damaged:
                self.notices.append(f"{file.name} of {part.source} was damaged in the cache and was fetched again.")
            self.whole.append(file.name)
            self.coming, self.done = None, offset + file.bytes
            self._show(self.done)

    def _show(self, done: int) -> None:
        self.progress(done, self.plan.bytes)

    def _clear(self, source: Source, commit: str, file: ExpectedFile) -> None:
        """Remove the remains of a killed pull, and a file of the wrong length, which the client would accept."""
        from filelock import Timeout

        blob = repository(source) / "blobs" / file.digest
        pointer = snapshot(source, commit) / file.name
        if any(os.path.lexists(path) and size(path) != file.bytes for path in (blob, pointer)):
            discard(source, commit, file)
        pattern = f"{file.digest}.*.incomplete"
        lock = hub_places().cache / ".locks" / folder(source) / f"{file.digest}.lock"
        if any(blob.parent.glob(pattern)) and lock.exists():
            with suppress(Timeout, OSError), client().utils.WeakFileLock(lock, timeout=0.1):
                left = list(blob.parent.glob(pattern))  # the lock is held, so no other pull is writing them
                freed = sum(max(size(path), 0) for path in left)
                for path in left:
                    path.unlink(missing_ok=True)
                if left:
                    self.notices.append(f"Removed {freed:,} bytes of {file.name} that an interrupted pull had left.")

    def _bar(self, file: ExpectedFile) -> type:
        """Return a class for the client to use as its progress bar.

        It draws nothing, but reports the received bytes. It raises an error if the download differs from the plan.
        """
        state, most, in_vain = self, 0, 0

        class Bar:
            def __init__(self, *_: Any, total: int | None = None, **__: Any) -> None:
                if total is not None and total != file.bytes:
                    raise LocalspecError(
                        f"{server()} now announces {total:,} bytes for {file.name}, but {file.bytes:,} "
                        "were planned; try again."
                    )

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *exception: object) -> None:
                pass

            def update(self, count: float | None = 1) -> None:
                nonlocal most, in_vain
                if (count or 0) < 0:  # the client asked for the rest, but the server starts again
                    in_vain = 0 if state.of_coming > most + file.bytes // 10 else in_vain + 1
                    most = max(most, state.of_coming)
                    if in_vain >= _IN_VAIN:
                        raise LocalspecError(broke_off(file.name, f"repeatedly, and never beyond {most:,} bytes"))
                state.of_coming += int(count or 0)
                if state.of_coming > file.bytes:
                    raise LocalspecError(
                        f"{server()} sends more of {file.name} than the {file.bytes:,} bytes it announced; try again."
                    )
                state._show(state.done + state.of_coming)

            def _ignore(self, *_: Any, **__: Any) -> None:
                pass

            close = refresh = update_transfer = set_postfix_str = set_transfer_postfix_str = _ignore
            set_description_str = set_description = reset = _ignore

        return Bar


@contextmanager
def _private_locks(source: Source) -> Iterator[None]:
    """Take away other users' permission to write new lock files, which the client creates in spite of the umask."""
    place = hub_places().cache / ".locks" / folder(source)
    before = set(place.glob("*.lock"))
    try:
        yield
    finally:
        for lock in set(place.glob("*.lock")) - before:
            with suppress(OSError):  # the file belongs to another user, or is gone
                lock.chmod(stat.S_IMODE(lock.stat().st_mode) & ~0o022)


def _delete_test_files(blobs: Path) -> None:
    """Delete files that a killed process left when huggingface_hub tested the umask and symbolic links.

    If another process is testing now, its test still succeeds, because the tested link works without a target.
    """
    for left in (*blobs.glob("tmp_*-*-*-*-*"), *hub_places().cache.glob("tmp????????/dummy_file_*")):
        with suppress(OSError):
            if left.name == "dummy_file_dst" and os.readlink(left) == "dummy_file_src":
                left.with_name("dummy_file_src").unlink(missing_ok=True)
                left.unlink()
                left.parent.rmdir()
            elif (left.name == "dummy_file_src" or left.parent == blobs) and not left.lstat().st_size:
                left.unlink()


def _finish(part: Part, paths: Paths | None) -> list[str]:
    """Record the pull, and note the revision's commit in the cache for other programs. Return notices."""
    _delete_test_files(repository(part.source) / "blobs")
    if part.source.gguf or part.texts_only:  # the registration says where a model is from
        return []
    source, former = part.source, record(part.source, paths)
    if source.revision != part.commit:
        ref = repository(source) / "refs" / source.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        write_anew(ref, part.commit.encode(), 0o644)
    notice = remember(source, part.commit, part.files, paths)
    if former and former.commit != part.commit and snapshot(source, former.commit).exists():
        old = Source(source.repo, former.commit)
        return [
            *filter(None, [notice]),
            f"The earlier version of {source} is still here; `localspec rm {old}` deletes it.",
        ]
    return [notice] if notice else []
