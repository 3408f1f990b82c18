"""Published models for the tests of this folder: found, imported once in a session, and shared by its processes."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import real_models
from filelock import FileLock
from real.reference import BytePairs, File

from localspec.config import Settings
from localspec.engine.importing import import_gguf
from localspec.events import Reporter

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder. Those of the whole matrix wait for others to import large models."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("real")
            if "WHOLE_MATRIX" in os.environ:
                item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def published() -> Callable[[str], Path]:
    """published(name): the file of a published model. A test of a model that is not here is skipped.

    All skips of one model have the same place and text, so pytest counts them in one line.
    """

    def file(name: str) -> Path:
        found = real_models.find(name)
        if found is None:
            title = real_models.MODELS[name].title
            pytest.skip(f"{title} is not in {real_models.folder()}; `make real-models` says how to get it.")
        return found

    return cache(file)


@pytest.fixture(scope="session")
def gguf_file(published: Callable[[str], Path]) -> Callable[[str], File]:
    """gguf_file(name): a model's file as the reference reads it."""
    return cache(lambda name: File(published(name)))


@pytest.fixture(scope="session")
def byte_pairs(gguf_file: Callable[[str], File]) -> Callable[[str], BytePairs]:
    """byte_pairs(name): the reference's tokenizer of a model."""
    return cache(lambda name: BytePairs(gguf_file(name)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder that the processes of this session share. It has gigabytes, so the last one to end deletes it."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real"
    mine = found / f"used-by-{os.getpid()}"
    found.mkdir(exist_ok=True)
    mine.touch()
    yield found
    mine.unlink()
    if not list(found.glob("used-by-*")):
        shutil.rmtree(found, ignore_errors=True)


@pytest.fixture(scope="session")
def imported(shared: Path, published: Callable[[str], Path]) -> Callable[[str, str], Path]:
    """imported(name, packing): return the packed file of a model, made once by the first test that needs it."""

    @cache
    def make(name: str, packing: str) -> Path:
        file = published(name)
        with FileLock(shared / f"{name}-{packing}.lock"), pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCALSPEC_HOME", str(shared / "home"))
            return import_gguf(file, Settings(quantize=packing), Reporter()).path

    return make
