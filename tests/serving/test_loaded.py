"""Models stay loaded while there is memory and they are used."""

import shutil
from types import SimpleNamespace

import pytest
from machines import GIB, SEVEN, cpu, gpu, machine, unfetched

from localspec.choosing.choose import choices, requested_drafter
from localspec.choosing.measure import NoMeasurements
from localspec.choosing.named import named_drafter
from localspec.config import Settings
from localspec.errors import DoesNotFit, NotHere
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.model import model_of
from localspec.models.registry import resolve
from localspec.serving import loaded
from localspec.serving.loaded import LoadedModels, ServedChoice, model_named, models_here


def engine(*stages: str) -> SimpleNamespace:
    """Return an engine for which this is still to be measured."""
    left = [*stages]
    measure = lambda: (left.pop(0) for _ in range(len(left)))  # noqa: E731
    choice, forgotten = SimpleNamespace(device="cpu"), list[bool]()
    return SimpleNamespace(
        choice=choice, freed_memory=("cpu", 0), measure=measure, left=left, forgotten=forgotten,
        forget_parked=lambda: forgotten.append(True),
    )  # fmt: skip


@pytest.fixture
def models(monkeypatch, fresh_home):
    """models(room): a loader with room for `room` models, and the names in the order of loading; time stands still."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loaded.time, "monotonic", lambda: clock.now)

    def make(room: int):
        opened: list[str] = []

        def open_engine(settings, card, **_):
            if len(found.names) >= room:
                raise DoesNotFit("There is no room.")
            opened.append(card.name)
            return engine()

        found = LoadedModels(Settings(), resolve("demo"), None, 60.0, Reporter(), open_engine)
        return found, opened, clock

    return make


def test_one_that_is_loaded_is_not_loaded_again(models):
    found, opened, _ = models(2)
    one = found.get(None)
    assert found.get("demo") is one and found.get("demo-draft") is not one
    assert (opened == ["demo", "demo-draft"] and found.names == ["demo-draft"]) or found.names == ["demo", "demo-draft"]


def test_parked_texts_go_before_another_model_is_chosen_and_no_sooner(models):
    found, *_ = models(2)
    one = found.get("demo").engine
    assert found.get("demo").engine is one and not one.forgotten
    found.get("demo-draft")
    assert one.forgotten


@pytest.mark.slow
def test_the_one_used_longest_ago_goes_where_there_is_no_room(models, monkeypatch):
    found, opened, _ = models(1)
    for name in ("demo", "demo-draft", "demo"):
        found.get(name)
    assert opened == ["demo", "demo-draft", "demo"] and found.names == ["demo"]


def test_what_an_engine_says_and_nobody_reads_is_not_kept_without_end(models):
    found, *_ = models(1)
    opening = found._open
    found._open = lambda *asked, notice, **more: said.append(notice) or opening(*asked, **more)
    said = []
    one = found.get("demo")
    for number in range(10_000):
        said[0](str(number))
    kept = one.news()
    assert len(kept) < 1000 and kept[-1] == "9999" and one.news() == []


def test_a_model_that_does_not_fit_by_itself_is_reported(models):
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


def test_a_model_given_by_its_directory_answers_to_the_directorys_name_where_no_other_does(fresh_home, tmp_path):
    for name in ("mine", "demo"):
        (tmp_path / name).mkdir()
    own, namesake = (resolve(str(tmp_path / name)) for name in ("mine", "demo"))
    assert model_named("mine", own) is own and [*models_here(own)][:2] == [str(tmp_path / "mine"), "demo"]
    assert model_named("demo", namesake).path == resolve("demo").path != namesake.path
    with pytest.raises(NotHere):
        model_named("ghost", resolve("demo"))


def test_an_unknown_model_is_reported_with_all_others_and_a_shortened_name(fresh_home, tmp_path):
    with pytest.raises(NotHere) as refused:
        model_named("x" * 10**6, resolve(str(tmp_path)))
    assert f"the models here are: {tmp_path}, demo" in str(refused.value) and len(str(refused.value)) < 1000


@pytest.mark.slow
def test_in_a_quiet_moment_after_a_reply_the_drafter_is_doubted(models, capfd):
    found, _, clock = models(2)
    doubted: list[object] = []

    def reconsider(engine, *_):
        doubted.append(engine)
        if len(doubted) == 3:
            raise ZeroDivisionError
        return engine if len(doubted) == 1 else SimpleNamespace(choice=engine.choice, measure=engine.measure)

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


def test_while_nobody_asks_a_model_is_measured_until_somebody_does(models):
    found, _, clock = models(1)
    found._reconsider = lambda engine, *_: doubted.append(engine) or engine
    doubted: list[object] = []
    loaded = found.get("demo")
    loaded.engine = engine("one", "two", "three", "four")
    loaded.touch()
    found.rest()
    assert len(loaded.engine.left) == 4, "a moment must have passed"
    clock.now, asked = 1.0, iter((False, True))
    assert found.rest(lambda: next(asked)) == 0
    assert loaded.engine.left == ["three", "four"]
    assert doubted == []
    assert found.rest() == 59.0
    assert loaded.engine.left == []
    assert doubted == [loaded.engine]


def test_what_was_taken_is_compared_with_what_is_requested(tmp_path):
    demo = resolve("demo")
    choice = SimpleNamespace(
        target=demo, drafter="s3d", trained=named_drafter("s3d", demo).trained, draft=None, device="cpu", dtype="bf16",
        quantize="int8",
    )  # fmt: skip
    taken = ServedChoice(choice, 1024)
    same = {"drafter": "s3d", "device": "cpu", "dtype": "bf16", "quantize": "int8", "context": 1024}
    other = {"drafter": "s3d+phrases", "device": "cuda", "dtype": "fp32", "quantize": "none", "context": 512}
    for name in same:
        assert taken.agrees(name, Settings(**{name: same[name]})), name
        assert not taken.agrees(name, Settings(**{name: other[name]})), name
    elsewhere = shutil.copytree(choice.trained[0].path, tmp_path / "mine")
    assert not taken.agrees("drafter", Settings(drafter=str(elsewhere))), "other weights may be of another training"
    paired = ServedChoice(SimpleNamespace(**{**vars(choice), "drafter": "draft_model", "trained": ()}), 1024)
    assert not paired.agrees("drafter", Settings(drafter="draft_model")), "it drafts with another small model, or none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "left"), [(12, ["third"]), (20, ["second", "third"]), (60, ["first", "second", "third"])]
)
def test_one_goes_before_another_takes_a_slower_device_for_its_sake(monkeypatch, memory, left):
    """On a GPU of 12 GiB a second model of 7 billion parameters would otherwise be loaded on the CPU, and stay there.

    The models that were used longest ago are unloaded, as few as possible, and a model is loaded as it was predicted.
    """
    settings, taken = Settings(), {}

    def now():
        held = sum(engine.freed_memory[1] for engine in (one.engine for one in found._loaded.values()))
        return machine(gpu(memory, memory - held / GIB), cpu(48))

    def open_engine(settings, card, **_):
        choice = choices(model_of(card), requested_drafter(settings, card), settings, now())[0]
        taken[card.name] = (choice.device, choice.quantize)
        return SimpleNamespace(choice=choice, freed_memory=(choice.device, choice.bytes), forget_parked=lambda: None)

    cards = {name: unfetched(SEVEN, name) for name in ("first", "second", "third")}
    found = LoadedModels(settings, cards["first"], None, 60.0, Reporter(), open_engine)
    monkeypatch.setattr(loaded, "this_machine", now)
    monkeypatch.setattr(loaded, "Measurements", lambda *_: NoMeasurements())
    monkeypatch.setattr(loaded, "model_named", lambda name, _: cards[name])
    monkeypatch.setattr(loaded, "inspect", lambda _: None)
    monkeypatch.setattr(loaded, "read_config", lambda _: SimpleNamespace(context_for=lambda _: 0))
    for card in cards.values():
        told = found.choice_of(card.name, str(card.path)).choice
        found._of(card)
        assert taken[card.name] == (told.device, told.quantize) and told.device == "cuda:0"
    assert found.names == left
