"""Models stay loaded while there is room and somebody asks for them."""

import shutil
from types import SimpleNamespace

import pytest
from machines import GIB, SEVEN, cpu, gpu, machine, unfetched

from localspec.config import Settings
from localspec.engine import reconsidering
from localspec.errors import DoesNotFit, NotHere
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.registry import TargetCard, resolve
from localspec.policy.drafter_spec import named_drafter
from localspec.policy.selection import choose
from localspec.serving import loaded
from localspec.serving.loaded import LoadedModels, Taken


@pytest.fixture
def models(monkeypatch, fresh_home):
    """models(room): of which `room` fit at once, and the names in the order they were loaded in; time stands still."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loaded.time, "monotonic", lambda: clock.now)

    def make(room: int):
        opened: list[str] = []

        def open_engine(settings, card, **_):
            if len(found.names) >= room:
                raise DoesNotFit("There is no room.")
            opened.append(card.name)
            return SimpleNamespace(choice=SimpleNamespace(device="cpu"), held=("cpu", 0))

        found = LoadedModels(Settings(), resolve("demo"), None, 60.0, Reporter(), open_engine)
        return found, opened, clock

    return make


def test_one_that_is_loaded_is_not_loaded_again(models):
    found, opened, _ = models(2)
    one = found.get(None)
    assert found.get("demo") is one and found.get("demo-draft") is not one
    assert (opened == ["demo", "demo-draft"] and found.names == ["demo-draft"]) or found.names == ["demo", "demo-draft"]


@pytest.mark.slow
def test_the_one_used_longest_ago_goes_where_there_is_no_room(models, monkeypatch):
    found, opened, _ = models(1)
    for name in ("demo", "demo-draft", "demo"):
        found.get(name)
    assert opened == ["demo", "demo-draft", "demo"] and found.names == ["demo"]


@pytest.mark.parametrize(("gib", "stays"), [(12, False), (24, True)])
def test_a_second_model_takes_the_gpu_and_not_what_the_first_leaves_of_it(monkeypatch, fresh_home, gib, stays):
    """Each takes some 5 GiB of it in NF4: the second one would be left to the processor where both have no room."""
    held: dict[str, int] = {}

    def machine_now():
        return machine(gpu(gib, free=gib - sum(held.values()) / GIB), cpu(64))

    def would_take(settings, card, store, reporter, machine=None):
        device = choose(unfetched(SEVEN, card.name), settings, machine or machine_now()).device
        return SimpleNamespace(choice=SimpleNamespace(device=device))

    def open_engine(settings, card, **_):
        device = would_take(settings, card, None, None).choice.device
        held[card.name] = 8 * GIB if device != "cpu" else 0
        return SimpleNamespace(choice=SimpleNamespace(device=device), held=(device, held[card.name]))

    monkeypatch.setattr(loaded, "would_take", would_take)
    monkeypatch.setattr(reconsidering, "this_machine", machine_now)
    monkeypatch.setattr(loaded, "give_back", lambda _: held.clear())
    found = LoadedModels(Settings(), resolve("demo"), None, 60.0, Reporter(), open_engine)
    assert found.get("demo").engine.choice.device == "cuda:0"
    assert found.get("demo-draft").engine.choice.device == "cuda:0"
    assert found.names == (["demo", "demo-draft"] if stays else ["demo-draft"])


def test_what_does_not_fit_alone_is_told(models):
    found, _, _ = models(0)
    with pytest.raises(DoesNotFit):
        found.get("demo")


@pytest.mark.slow
def test_what_rests_is_let_go(models):
    found, _, clock = models(2)
    assert found.rest() is None
    found.get("demo")
    clock.now = 30.0
    found.get("demo-draft")
    assert found.rest() == 30.0
    clock.now = 60.0
    assert found.rest() == 30.0 and found.names == ["demo-draft"]
    found.get("demo-draft").touch()
    clock.now = 119.0
    assert found.rest() == 1.0
    clock.now = 120.0
    assert found.rest() is None and found.names == []


@pytest.mark.parametrize("name", ["/etc", "no-such", "../demo", ""])
def test_a_client_names_what_is_installed_and_no_directory(models, name):
    found, opened, _ = models(2)
    with pytest.raises(NotHere):
        found.get(name)
    assert opened == [] and "demo" in {card.name for card, _ in registry.installed()}


@pytest.mark.slow
def test_in_a_quiet_moment_after_a_reply_the_drafter_is_doubted(models, capfd):
    found, _, clock = models(2)
    doubted: list[object] = []

    def reconsider(engine, *_):
        doubted.append(engine)
        if len(doubted) == 3:
            raise ZeroDivisionError
        return engine if len(doubted) == 1 else SimpleNamespace(choice=engine.choice)

    found._reconsider = reconsider
    loaded = found.get("demo")
    first = loaded.engine
    assert found.rest() == 60.0 and doubted == []
    loaded.touch()
    assert found.rest() == 1.0 and doubted == []
    clock.now = 1.0
    assert found.rest() == 59.0 and doubted == [first] and found.get("demo").engine is first
    clock.now = 2.0
    loaded.touch()
    assert found.rest() == 59.0, "not at once again"
    clock.now = 61.0
    found.rest()
    second = found.get("demo").engine
    assert doubted == [first, first] and second is not first
    loaded.touch()
    clock.now = 120.9
    loaded.touch()
    clock.now = 121.9
    found.rest()
    assert doubted[2] is second is found.get("demo").engine and "ZeroDivisionError" in capfd.readouterr().err


def test_what_was_taken_is_compared_with_what_is_asked_for(tmp_path):
    demo = resolve("demo")
    choice = SimpleNamespace(
        target=demo, drafter="s3d", trained=named_drafter("s3d", demo).trained, draft=None, device="cpu", dtype="bf16",
        quantize="int8",
    )  # fmt: skip
    taken = Taken(choice, 1024)
    same = {"drafter": "s3d", "device": "cpu", "dtype": "bf16", "quantize": "int8", "context": 1024}
    other = {"drafter": "s3d+phrases", "device": "cuda", "dtype": "fp32", "quantize": "none", "context": 512}
    for name in same:
        assert taken.agrees(name, Settings(**{name: same[name]})), name
        assert not taken.agrees(name, Settings(**{name: other[name]})), name
    elsewhere = shutil.copytree(choice.trained[0].path, tmp_path / "mine")
    assert not taken.agrees("drafter", Settings(drafter=str(elsewhere))), "other weights may be of another training"
    paired = Taken(SimpleNamespace(**{**vars(choice), "drafter": "draft_model", "trained": ()}), 1024)
    assert not paired.agrees("drafter", Settings(drafter="draft_model")), "it drafts with another small model, or none"


def test_the_server_s_own_model_is_among_those_that_are_named_and_a_long_name_is_cut(fresh_home, tmp_path):
    found = LoadedModels(Settings(), TargetCard("/mine", tmp_path, None, ""), None, 60.0, Reporter())
    with pytest.raises(NotHere) as refused:
        found.card("u" * 10**6)
    assert len(str(refused.value)) < 300 and "; there are: /mine, demo" in str(refused.value)
