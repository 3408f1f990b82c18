"""`localspec verify NAME`: compares a model's files with their recorded digests."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from localspec.cli.console import Progress
from localspec.environment import home
from localspec.errors import LocalspecError, NotHere
from localspec.hub.cache import Verified, find_snapshot, verify
from localspec.hub.cache import size as bytes_of
from localspec.hub.cached_gguf import verify_gguf
from localspec.hub.records import packed_sources
from localspec.hub.sources import Source
from localspec.models.drafter_cards import DIGEST, drafter_directories, file_digest, read_drafter, remedy
from localspec.models.names import repository_of, sources_of
from localspec.models.only_copies import is_only_copy
from localspec.models.registry import NOWHERE, is_import, is_path, resolve
from localspec.paths import Paths
from localspec.quantities import counted, size
from localspec.text import one_line
from localspec.weights.checkpoint import inspect, is_packed
from localspec.weights.fingerprint import fingerprints, forget, recognised, reread
from localspec.weights.packed_file import SUFFIX, of_same_weights, read
from localspec.weights.packed_files import GPU_SUFFIX, packed_of

app = typer.Typer()


@app.command("verify")
def verify_model(
    name: Annotated[str, typer.Argument(help="A registered name, org/repo[@revision], a directory, or a packed file.")],
) -> None:
    """Compare every file of a model with its digest; needs no network."""
    is_file_or_import = is_path(name) or is_import(name)
    sources = [] if is_file_or_import else sources_of(name, here=True)
    model = None if is_file_or_import else repository_of(name)
    problems: list[str] = []
    if model is None:
        problems += _verify_unfetched(name)
    damaged = _verify_packed(name, sources, model) + _verify_drafters(name)
    for source in sources:
        try:
            result = _verify_source(source)
        except NotHere:
            if source == model and not packed_of(NOWHERE, str(source), Paths(home())):
                raise  # its drafters may belong to another model too
            continue
        for problem in result.problems:
            typer.echo(one_line(f"{source}: {problem}"))
        problems += [
            f"{problem}; fetch the damaged or missing files again with `localspec pull {name}`"
            for problem in result.problems
        ]
        if not result.problems:
            files = f"{counted(result.files, 'file')} {'agrees' if result.files == 1 else 'agree'}"
            basis = "the digests that `pull` recorded" if result.recorded else "the digests in the cache's file names"
            typer.echo(one_line(f"{source} ({result.commit[:12]}): {files} with {basis}."))
    if problems or damaged:
        raise LocalspecError(f"{(problems + damaged)[0]}.")


def _verify_unfetched(name: str) -> list[str]:
    """Check the weights of a model that was not fetched. Return a clause for each file whose content has changed,
    although its date and size are the same. Delete packed files made from the old content."""
    path, paths = resolve(name).path, Paths(home())
    checkpoint = inspect(path)
    if checkpoint.packing:
        return _verify_imported(name, path, paths)
    typer.echo(one_line(f"{name}: the weights ({size(checkpoint.bytes)}) are complete, according to their headers."))
    changed = _changed_files(name, checkpoint.weight_files, paths)
    if changed:  # the model may have been packed from other weights; the present ones count from now on
        forget(checkpoint.weight_files, (mark for _, mark in fingerprints(checkpoint.weight_files).values()), paths)
        for file in packed_of(path, "", paths):
            if file.parent == paths.packed:
                file.unlink(missing_ok=True)
    return [
        f"The content of {file} of {name} has changed, although the file's size is the same; the model is packed again "
        "when it is next loaded"
        for file in changed
    ]


def _verify_imported(name: str, path: Path, paths: Paths) -> list[str]:
    """Check the GGUF files of an import. Return a clause for each file whose content, but not date or size, changed.

    Raises NotHere if a registered file is missing or has changed; a packed form of the model may still be usable.
    """
    from localspec.weights.gguf_weights import files_of  # numpy

    packed = read(path)
    originals = packed.header.origin.files
    files = files_of(packed) if packed.header.registered else [Path(file) for file in originals if os.path.isabs(file)]
    if not files or not all(file.is_file() for file in files) or not recognised(files, originals, paths):
        return []
    changed = _changed_files(name, files, paths, listed=True)
    return [
        f"The content of {file} of {name} has changed, although the file's size is the same; to use the new content, "
        f"delete {name} with `localspec rm {name}`, and import it again"
        for file in changed
    ]


def _changed_files(name: str, files: Sequence[Path], paths: Paths, listed: bool = False) -> list[str]:
    """Check files, print the result, and return the files whose content, but not date or size, has changed.

    With `listed`, also print each file's digest and fingerprint, for an entry in models.toml.
    """
    marks = {file: mark for file, (_, mark) in fingerprints(files).items()}
    with _reading(name) as show:
        results = reread(files, marks, paths, show)
    for file, result in results.items():
        if result.hidden_change:
            typer.echo(one_line(f"{name}: the content of {file} has changed, although the file's size is the same."))
        if listed:
            typer.echo(one_line(f"{name}: {file} has the SHA-256 {result.digest} and the fingerprint {marks[file]}."))
    if not any(result.hidden_change for result in results.values()):
        all_files = counted(len(results), "file")
        if all(result.before == result.digest for result in results.values()):
            typer.echo(one_line(f"{name}: {all_files} read, with the same content as last time."))
        else:
            typer.echo(one_line(f"{name}: {all_files} read and recorded, so the next `verify` notices any change."))
    return [file for file, result in results.items() if result.hidden_change]


def _verify_packed(name: str, sources: list[Source], model: Source | None) -> list[str]:
    """Compare the packed files of a model with their digests. Return a clause for each damaged file."""
    paths = Paths(home())
    snapshots = [(find_snapshot(source) or NOWHERE, str(source)) for source in sources]
    path = resolve(name).path if model is None else NOWHERE
    if is_packed(path):
        files = [path] if is_packed(Path(os.path.expanduser(name))) else sorted({path, *of_same_weights(path)})
    else:
        snapshots += [(path, "")] if model is None else []
        candidates = {file for snapshot in snapshots for file in packed_of(*snapshot, paths)}
        files = sorted(file for file in candidates if file.suffix in (SUFFIX, GPU_SUFFIX))
    damaged = []
    for file in files:
        try:
            with _reading(file) as show:
                if file.suffix == GPU_SUFFIX:
                    from localspec.engine.backends import saved_damage

                    problems = [*filter(None, [saved_damage(file)])]
                else:
                    problems = read(file).verify(show)
        except LocalspecError as error:
            problems = [str(error)]
        for problem in problems:
            typer.echo(one_line(f"{name}, packed: {problem}"))
        if problems:
            damaged.append(_delete_damaged(file, paths))
        else:
            typer.echo(one_line(f"{name}, {file.name}: every part agrees with its digest."))
    return damaged


def _delete_damaged(file: Path, paths: Paths) -> str:
    """Delete a damaged packed file if it can be made again. Return a clause that reports this, or else gives advice."""
    with suppress(LocalspecError, OSError):
        header = read(file).header
        if file.parent == paths.packed and not header.registered and not is_only_copy(header.origin, paths):
            file.unlink()
            return f"{file} was damaged and is deleted; it is made again when the model is next loaded"
    advice = "localspec makes it again from the model's files; if those are gone, pull or import the model again"
    return f"{file} is damaged; delete the file, and {advice}"


def _verify_drafters(name: str) -> list[str]:
    """Compare the weights of a model's drafters with the digests in their drafter.json. Return a clause for each
    damaged drafter."""
    try:
        drafters = [*drafter_directories(resolve(name))]
    except LocalspecError:  # the model is damaged or not here, which is reported elsewhere
        return []
    damaged = []
    for path, content in drafters:
        file, digest = path / "drafter.safetensors", content.get(DIGEST)
        try:
            kind = read_drafter(path).kind
            if digest is None:
                typer.echo(
                    one_line(f"{name}, {kind} in {path}: its weights are complete, according to the file's header.")
                )
            elif file_digest(file) == digest:
                typer.echo(one_line(f"{name}, {kind} in {path}: its weights agree with their digest."))
            else:
                raise LocalspecError(
                    f"{file} has changed since it was written: its sha256 was {digest}; {remedy(file)}."
                )
        except LocalspecError as error:
            typer.echo(one_line(f"{name}, a drafter: {error}"))
            damaged.append(str(error).removesuffix("."))
    return damaged


def _verify_source(source: Source) -> Verified:
    packed = packed_sources(Paths(home())).get(str(source))
    if packed and (missing := packed.missing) and bytes_of(missing) != packed.header.origin.files[str(missing)][0]:
        problem = f"{missing.name} is missing, or has the wrong length"
        return Verified(packed.header.origin.commit, 0, False, (problem,))
    with _reading(source) as show:
        if packed and packed.header.registered:
            return verify_gguf(source, packed.header.origin.commit, show)
        return verify(source, progress=show)


@contextmanager
def _reading(subject: object) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how much of `subject` is read; its arguments are the bytes read and all bytes."""
    with Progress() as progress:
        progress.show(f"reading {subject}")
        yield lambda read, whole: progress.show(f"reading {subject}: {size(read)} of {size(whole)}")
