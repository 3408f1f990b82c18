"""Scripted models, a home, and `localspec run` in this process."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.run.run_command import LONG, Result
from scripted_models import Script, random_model, scripted_model

from localspec.choosing.cost import ForwardCosts
from localspec.cli.main import main


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def hello(models: Path) -> Script:
    """Return a model whose reply has two characters split over tokens, and no newline at the end."""
    return scripted_model(models / "hello", [b"Hel", b"lo", b" w", b"\xc3", b"\xb6rld \xe4\xb8", b"\x96", b"!"])


@pytest.fixture(scope="session")
def long(models: Path) -> Script:
    return scripted_model(models / "long", LONG)


@pytest.fixture(scope="session")
def endless(models: Path) -> Script:
    return scripted_model(models / "endless", [b"and ", b"so ", b"on "], again=0, context=10**8)


@pytest.fixture(scope="session")
def noise(models: Path) -> Path:
    return random_model(models / "noise")


@pytest.fixture
def home(
    lived_in: Callable[..., Path], fresh_home: Path, hello: Script, long: Script, endless: Script, noise: Path
) -> Path:
    return lived_in(fresh_home, hello.path, long.path, endless.path, noise)


@pytest.fixture
def first_start(home: Path) -> Path:
    """Return an empty home."""
    shutil.rmtree(home)
    return home


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `localspec run ARGUMENTS` in this process, so that torch is imported once; `piped` is standard input.

    Rows cost next to nothing, so that the results do not depend on how busy the machine is.
    """
    cheap = ForwardCosts((1, 64), (256,), ((1e-3, 1.1e-3),))
    monkeypatch.setattr("localspec.engine.model_profile.estimated_costs", lambda *_: cheap)

    def call(*arguments: object, piped: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        capfd.readouterr()
        code = main(["run", *map(str, arguments)])
        return Result(code, *capfd.readouterr())

    return call
