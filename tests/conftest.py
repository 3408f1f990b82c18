"""Fixtures of the whole suite. A model is made once in a session, if a test uses it."""

import gc
import locale
import math
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from slow_cases import share_out

from localspec.choosing.choose import choose
from localspec.choosing.cost import ForwardCosts
from localspec.config import Settings
from localspec.models.registry import TargetCard
from localspec.paths import Paths, private_directory
from localspec.store.store import Store

if TYPE_CHECKING:
    from recorded_operations import Graph
    from tiny_models import Tiny
    from torture.cage import Cage

pytest_plugins = ["golden"]

# torch's threads spin while they wait; with more tests than idle cores, they would do little else.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that `make test` leaves out."""
    share_out(items)


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set a separate home for this process, so that the user's own files, packed models above all, stay unchanged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def unicode_locale() -> Iterator[None]:
    """Draw marks as they are in every locale; in the C locale they would be ASCII."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LC_ALL", "LC_CTYPE"):
            patch.delenv(name, raising=False)
        patch.setenv("LANG", "C.UTF-8")
        patch.setattr(locale, "getencoding", lambda: "UTF-8")
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, because tiny models gain nothing from more. Tests without torch do not import it here.

    The random seed is set again for each test, so that no test depends on those before it.
    """
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Return a new store that must not print a notice."""
    with Store.open(tmp_path / "localspec.db", pytest.fail) as opened:
        yield opened


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> "type[Graph]":
    """Replace CUDA graphs by a stand-in."""
    from recorded_operations import in_place_of_cuda

    return in_place_of_cuda(monkeypatch)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "Tiny"]:
    """tiny(name): the model of that name in tiny_models.CONFIGS, RECURRENT or MIXTURES, on disk, as transformers reads it, and as we do."""
    import tiny_models

    tokenizer = tiny_models.byte_tokenizer()

    @cache
    def make(name: str) -> "Tiny":
        seed = tiny_models.SEEDS[name]
        shard = "20KB" if name == tiny_models.SHARDED else "1GB"
        path = tmp_path_factory.mktemp("model") / name
        config = {
            **tiny_models.CONFIGS,
            **tiny_models.RECURRENT,
            **tiny_models.MIXTURES,
            **tiny_models.RECURRENT_MIXTURES,
        }[name]()
        return tiny_models.read(tiny_models.write(path, config, tokenizer, seed, shard))

    return make


@pytest.fixture(scope="session")
def family_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """family_gguf(name, kind): the tiny model of a family in gguf_families.FAMILIES as a GGUF file of this type.

    llama.cpp makes every type except F32. Without it, a test that needs such a type is skipped.
    """
    import gguf_families

    folder = tmp_path_factory.mktemp("gguf")

    @cache
    def make(name: str, kind: str) -> Path:
        file = folder / f"{name}-{kind}.gguf"
        if kind == gguf_families.F32:
            return gguf_families.write(file, name)
        if not gguf_families.has_llama_cpp():
            pytest.skip("needs llama-cpp-python, which quantises the file")
        return gguf_families.quantise(make(name, gguf_families.F32), file, kind)

    return make


@pytest.fixture(scope="session")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """lived_in(home, *models): prepare a home that has the costs of these models and has shown its first notice.

    Nothing else is there, so each process that begins in it is spared seconds, and a sentence. The fastest form is
    numerical, which is always true, and rows cost next to nothing.
    """

    @cache
    def database(models: tuple[Path, ...]) -> Path:
        path = tmp_path_factory.mktemp("lived-in") / "localspec.db"
        with Store.open(path, pytest.fail) as store:
            conversation, _ = store.history.say(None, "hello", model="demo", system=None)
            store.history.remove([conversation])
            for model in models:
                from localspec.choosing.measure import COSTS, MeasurementCache
                from localspec.decoding.exactness import Exactness
                from localspec.engine.model_profile import EXACTNESS, ModelProfile

                card = TargetCard(str(model), model, None, "")
                profile = ModelProfile.of(choose(card, Settings(drafter="none")), MeasurementCache(store))
                profile.remember(EXACTNESS, Exactness(False, 99))
                profile.remember(COSTS, ForwardCosts((1, 64), (256,), ((1e-3, 1.1e-3),)))  # fast enough for int8
        return path

    def give(home: Path, *models: Path) -> Path:
        place = Paths(home).database
        private_directory(place.parent)
        shutil.copyfile(database(models), place)
        return home

    return give


@pytest.fixture
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of this process, empty as at the first start."""
    for name in [name for name in os.environ if name.startswith("LOCALSPEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def timed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the cost of a forward with the fewest repetitions, for tests that do not depend on speed."""
    from localspec.engine import model_profile

    monkeypatch.setattr(model_profile, "ENOUGH_SECONDS", 0.0)


@pytest.fixture
def one_reply_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate as little as possible at the end of a training, which takes most of a short one's time."""
    monkeypatch.setattr("localspec.training.verdict.SECONDS", 0.0)


@pytest.fixture(scope="session")
def training_cage() -> Iterator["Cage"]:
    """Return a process that runs trainings with common imports, most of the time of a short one, and may end them."""
    from torture.cage import open_cage

    imported = ("localspec.training.job", "localspec.training.answering", "torch._dynamo", "fewer_generated")
    with open_cage(None, *imported) as cage:
        yield cage


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """Record the messages that the models of this process read, prompt by prompt: roles and texts."""
    from localspec import Engine

    read: list[list[tuple[str, str]]] = []
    original = Engine.chat

    def chat(engine: Engine, given: Any, *more: Any) -> Any:
        read.append([(message["role"], message["content"]) for message in given])
        return original(engine, given, *more)

    monkeypatch.setattr(Engine, "chat", chat)
    return read


def pytest_configure() -> None:
    """Restore signals that are ignored: in the background a shell ignores Ctrl+C and Ctrl+\\, and `nohup` hanging up."""
    gc.disable()  # while modules are imported and tests collected, because nothing of it is freed
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):  # which Windows lacks
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start three workers for two cores, since some wait for a clock or a process; each one collects all tests.

    Fast tests seldom wait, and to import and collect takes as long as a third of them: a worker for each core.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if "not slow" in config.getoption("markexpr") else math.ceil(1.5 * cores)


def pytest_collection_finish() -> None:
    """Collect garbage rarely: there is little, and collecting as often as Python does takes a tenth of the time."""
    gc.freeze()  # imported modules stay, so garbage collection can skip them
    gc.set_threshold(100_000, 10, 10)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=4, help="how often a chat is killed in mid-reply")


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    count: int = request.config.getoption("--kills")
    return count


@pytest.fixture(autouse=True)
def busy_machines_name_no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no message about waiting appear in the output of a command, however busy the machine is."""
    console = sys.modules.get("localspec.cli.console")
    if console is not None:
        monkeypatch.setattr(console, "WAIT_SECONDS", 600.0)
