"""Trained drafters by name: which one is meant, and the errors where it is absent or broken."""

import json
import os
from dataclasses import replace

import pytest
import torch
from checkpoints import CONFIG
from each import each
from golden import matching, wording
from safetensors.torch import save_file

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.models import drafter_cards
from localspec.models.drafter_cards import damaged_drafters, file_digest, find_drafter, read_drafter, trained_drafters
from localspec.models.registry import TargetCard, cards, resolve
from localspec.paths import Paths
from localspec.weights.checkpoint import revision
from localspec.weights.fingerprint import weights_fingerprint


@pytest.fixture
def paths(tmp_path):
    return Paths(tmp_path / "home")


@pytest.fixture
def model(tmp_path):
    """Return a directory that passes for a model."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file({"model.embed_tokens.weight": torch.arange(1000.0)}, path / "model.safetensors")
    return TargetCard("mine", path, None, "")


def written(path, card, kind="medusa", age=0, **unlike):
    path.mkdir(parents=True, exist_ok=True)
    about = {
        "format": 1, "kind": kind, "options": {}, "target": {"name": card.name, "revision": revision(card.path)}, **unlike
    }  # fmt: skip
    (path / "drafter.json").write_text(json.dumps(about))
    os.utime(path / "drafter.json", (1e9 - age, 1e9 - age))
    save_file({"w": torch.zeros(3, 4)}, path / "drafter.safetensors")
    return path


def test_of_a_kind_the_users_newest_comes_first_and_then_the_models_own(paths, model):
    with pytest.raises(
        NotHere, match=f"{matching('no_drafter_medusa_for_mine_here')}.*{matching('localspec_train_medusa_m')}"
    ):
        find_drafter("medusa", model, paths)
    beside = written(model.path / "drafters" / "medusa", model)
    assert find_drafter("medusa", model, paths).path == beside
    older = written(paths.drafters / "a" / "drafter", model, age=9)
    assert find_drafter("medusa", model, paths).path == older
    newer = written(paths.drafters / "b" / "drafter", model)
    written(paths.drafters / "c" / "drafter", model, kind="semi")
    found = find_drafter("medusa", model, paths)
    assert (found.path, found.kind, found.parameters, found.target) == (newer, "medusa", 12, "mine")
    assert [drafter.kind for drafter in trained_drafters(model, paths)] == ["medusa", "semi"]


def test_one_that_came_with_localspec_comes_last_and_belongs_to_its_weights_only(paths, model, tmp_path, monkeypatch):
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "shipped")
    path = written(tmp_path / "shipped" / "mine-medusa", model)
    written(tmp_path / "shipped" / "other-medusa", model, kind="semi", target={"name": "other", "revision": "0" * 40})
    assert [drafter.path for drafter in trained_drafters(model, paths)] == [path]
    own = written(paths.drafters / "a" / "drafter", model, age=9)
    assert find_drafter("medusa", model, paths).path == own


def test_one_that_came_with_localspec_serves_every_published_file_of_its_registered_model(
    paths, model, tmp_path, monkeypatch
):
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "shipped")
    entries = {name: card.entry for name, card in cards(paths).items() if card.entry}
    name, other = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
    published = replace(model, name=name, entry=entries[name])
    shipped = written(tmp_path / "shipped" / name, published, target={"name": name, "revision": "0" * 40})
    assert find_drafter("medusa", published, paths).path == shipped
    users = replace(published, entry=replace(entries[name], path=model.path))
    for unlike in (users, replace(model, name=other, entry=entries[other]), replace(model, name=name)):
        assert trained_drafters(unlike, paths) == []
    shipped.rename(tmp_path / "moved")
    assert trained_drafters(published, paths) == []


def test_a_damaged_one_that_came_with_localspec_cannot_be_trained_again(paths, model, tmp_path, monkeypatch):
    monkeypatch.setattr(drafter_cards, "PACKAGE", tmp_path / "installed")
    monkeypatch.setattr(drafter_cards, "SHIPPED", tmp_path / "installed" / "trained")
    name = "qwen2.5-coder-0.5b"
    published = replace(model, name=name, entry=cards(paths)[name].entry)
    shipped = written(drafter_cards.SHIPPED / name, published, target={"name": name, "revision": "0" * 40})
    (shipped / "drafter.safetensors").write_bytes(b"no")
    for file in ("drafter.safetensors", "drafter.json"):
        (shipped / file).write_bytes(b"no")
        with pytest.raises(LocalspecError, match=f"{shipped / file}.*{matching('install_localspec_again')}"):
            find_drafter("medusa", published, paths)
        assert trained_drafters(published, paths) == []
        (told,) = damaged_drafters(published, paths)
        assert str(shipped / file) in told and told.endswith(f"{wording('install_localspec_again')}.")
    (shipped / "drafter.json").unlink()
    with pytest.raises(LocalspecError, match=f"{shipped / 'drafter.json'} .*{matching('install_localspec_again')}"):
        find_drafter("medusa", published, paths)


def test_each_drafter_that_comes_with_localspec_has_the_digest_of_its_weights():
    demo = drafter_cards.PACKAGE / "demo" / "drafters"
    places = [file.parent for root in (drafter_cards.SHIPPED, demo) for file in root.glob("*/drafter.json")]
    assert len(places) == 7
    for place in places:
        assert read_drafter(place).about["sha256"] == file_digest(place / "drafter.safetensors")


def test_each_drafter_that_comes_with_localspec_can_be_read_and_has_a_card():
    places = sorted(file.parent for file in drafter_cards.SHIPPED.glob("*/drafter.json"))
    assert places and sum(file.stat().st_size for place in places for file in place.iterdir()) < 15e6
    names = cards().keys()
    for place in places:
        drafter = read_drafter(place)
        assert drafter.target == place.name and place.name in names and drafter.weights and drafter.generated
        page = (place / "README.md").read_text("utf-8")
        assert all(word in page for word in ("license:", "## Data", "ship_drafter.py", "## Acceptance", "## Speed"))


def test_one_that_was_made_for_another_model_is_not_meant_by_its_kind_and_refused_by_its_directory(paths, model):
    path = written(paths.drafters / "a" / "drafter", model, target={"name": "other", "revision": "0" * 40})
    assert trained_drafters(model, paths) == []
    with pytest.raises(NotHere):
        find_drafter("medusa", model, paths)
    with pytest.raises(UsageMistake, match=matching("made_for_other")):
        find_drafter(str(path), model, paths)


def test_weights_that_were_trained_on_make_another_model(paths, model):
    path = written(paths.drafters / "a" / "drafter", model)
    assert find_drafter("medusa", model, paths).path == path
    save_file({"model.embed_tokens.weight": torch.arange(1000.0) * 1.001}, model.path / "model.safetensors")
    with pytest.raises(NotHere):
        find_drafter("medusa", model, paths)


def test_a_directory_of_train_names_its_drafter_and_its_target(tmp_path, paths, model):
    place = tmp_path / "trained"
    path = written(place / "drafter", model)
    assert find_drafter(str(place), model, paths).path == find_drafter(str(path), model, paths).path == path
    (place / "target").mkdir()
    (place / "target" / "config.json").write_text("{}")
    assert resolve(str(place), paths).path == place / "target"


def test_a_broken_drafter_is_reported_if_it_is_named_and_hides_nothing_else(paths, model):
    broken = written(paths.drafters / "a" / "drafter", model)
    (broken / "drafter.safetensors").write_bytes(b"no")
    written(paths.drafters / "b" / "drafter", model, kind="s3d", age=5)
    assert [drafter.kind for drafter in trained_drafters(model, paths)] == ["s3d"]
    with pytest.raises(LocalspecError, match="safetensors"):
        find_drafter("medusa", model, paths)


def test_damaged_ones_spoil_no_other(paths, model):
    sound = written(paths.drafters / "a" / "drafter", model, age=9)
    unreadable = written(paths.drafters / "b" / "drafter", model, age=5)
    (unreadable / "drafter.json").write_text("{")
    (written(paths.drafters / "c" / "drafter", model) / "drafter.safetensors").write_bytes(b"no")
    assert find_drafter("medusa", model, paths).path == sound
    assert [drafter.path for drafter in trained_drafters(model, paths)] == [sound]
    with pytest.raises(NotHere):
        find_drafter("semi", model, paths)
    with pytest.raises(LocalspecError, match=f"{matching('not_json')}.*{matching('train_the_drafter_again_2')}"):
        find_drafter(str(unreadable), model, paths)
    (sound / "drafter.json").unlink()
    with pytest.raises(LocalspecError, match=f"drafters/c.*{matching('train_the_drafter_again_2')}"):
        find_drafter("medusa", model, paths)


@each("accuracies", [5, ["ab"], [["x"]], [[]], [[1.5]], [[float("nan")]], [[True]], None])
def test_invalid_accuracies_are_reported(tmp_path, model, accuracies):
    path = written(tmp_path / "drafter", model, accuracy_by_depth=accuracies)
    with pytest.raises(LocalspecError, match="accuracy_by_depth"):
        read_drafter(path)


@each(
    "acceptance",
    [5, [], {}, {"length": 2}, {"length": 0.5, "nodes": 4}, {"length": float("nan"), "nodes": 4},
     {"length": 6, "nodes": 4}, {"length": 1, "nodes": 0}, {"length": "2", "nodes": 4}],
)  # fmt: skip
@each("name", ["acceptance", "acceptance_elsewhere"])
def test_an_impossible_acceptance_is_reported(tmp_path, model, name, acceptance):
    path = written(tmp_path / "drafter", model, **{name: acceptance})
    with pytest.raises(LocalspecError, match=rf"^The table {name} in .*; train the drafter again\."):
        read_drafter(path)


def test_what_it_brings_is_the_less_of_its_own_text_and_others(tmp_path, model):
    def read(**known):
        return read_drafter(written(tmp_path / f"drafter {len(list(tmp_path.iterdir()))}", model, **known)).generated

    own, others = {"length": 2.5, "nodes": 16}, {"length": 1.75, "nodes": 16}
    assert read() is None
    assert read(acceptance=own) == (2.5, 16), "of a version before"
    assert read(acceptance=own, acceptance_elsewhere=others) == (1.75, 16)
    assert read(acceptance=others, acceptance_elsewhere=own) == (1.75, 16)


@each("content", [[], {}, {"kind": "medusa"}, {"kind": "evil", "options": {}, "target": {}, "format": 1}, "x"])
def test_an_invalid_card_is_reported(tmp_path, content):
    (tmp_path / "drafter.json").write_text(json.dumps(content))
    with pytest.raises(
        LocalspecError, match=matching("does_say_what_drafter") + ".*" + matching("drafter_json_does_say_what")
    ):
        read_drafter(tmp_path)


def test_a_newer_format_and_missing_weights_are_reported(tmp_path, model):
    with pytest.raises(NotHere, match=matching("no_trained_drafter")):
        read_drafter(tmp_path)
    path = written(tmp_path / "newer", model, format=2)
    with pytest.raises(LocalspecError, match="format 2"):
        read_drafter(path)
    with pytest.raises(LocalspecError, match="format True"):
        read_drafter(written(tmp_path / "edited", model, format=True))
    path = written(tmp_path / "empty", model)
    (path / "drafter.safetensors").unlink()
    with pytest.raises(NotHere, match=matching("lacks_drafter_safetensors")):
        read_drafter(path)


@pytest.mark.slow
def test_the_choice_knows_the_weights(paths, model, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(paths.home))
    path = written(paths.drafters / "a" / "drafter", model)

    def chosen(name, **settings):
        return choose(model, Settings(drafter=name, device="cpu", **settings))

    assert (chosen("medusa").drafter, chosen("medusa").trained[0].path) == ("medusa", path)
    assert chosen(str(path)).drafter == "medusa"
    with_phrases = chosen("medusa+phrases")
    assert (with_phrases.drafter, with_phrases.trained[0].path) == ("medusa+phrases", path)
    assert chosen(f"{path}+phrases").drafter == "medusa+phrases"
    assert chosen("medusa").loaded_bytes == chosen("none").loaded_bytes + round(1.0625 * 12)
    assert chosen("medusa", draft_max=0).trained == ()
    assert chosen("phrases").trained == ()
    monkeypatch.chdir(paths.drafters)
    written(paths.drafters / "semi" / "drafter", model)
    for name in ("a", "a+phrases"):
        assert (chosen(name).drafter, chosen(name).trained[0].path) == (name.replace("a", "medusa", 1), path)
    with pytest.raises(NotHere):  # the name of a kind is never read as a directory
        chosen("semi")
    with pytest.raises(UsageMistake, match=matching("no_drafter_b")):
        chosen("b")
    for name in ("phrases+phrases", "none+phrases"):
        with pytest.raises(UsageMistake, match=matching("say_so")):
            chosen(name)


@each(
    "settings, said",
    [
        ({"drafter": "phrases", "accept": "rejection"}, "known distribution"),
        ({"drafter": "medusa+phrases", "accept": "rejection"}, "known distribution"),
        ({"drafter": "none", "accept": "typical"}, "no effect"),
        ({"drafter": "meduza"}, matching("did_you_mean_medusa_2")),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(paths, model, monkeypatch, settings, said):
    monkeypatch.setenv("LOCALSPEC_HOME", str(paths.home))
    written(paths.drafters / "a" / "drafter", model)
    with pytest.raises(UsageMistake, match=said):
        choose(model, Settings(device="cpu", **settings))
    assert choose(model, Settings(device="cpu", drafter="medusa", accept="rejection")).drafter == "medusa"


@pytest.mark.slow
def test_several_drafters_are_found_in_any_order(paths, model, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(paths.home))
    path = written(paths.drafters / "a" / "drafter", model)
    semi = written(paths.drafters / "b" / "drafter", model, kind="semi")

    def chosen(name):
        return choose(model, Settings(drafter=name, device="cpu"))

    for name in ("medusa+semi+phrases", "semi+phrases+medusa", f"phrases+semi+{path}"):
        both = chosen(name)
        assert both.drafter == "medusa+semi+phrases"
        assert [card.path for card in both.trained] == [path, semi]
        assert both.loaded_bytes == chosen("none").loaded_bytes + 2 * round(1.0625 * 12)
    assert chosen("semi+layers").drafter == "layers+semi"
    assert chosen("phrases+medusa").drafter == "medusa+phrases"


@each(
    "name, said",
    [
        ("medusa+semi+medusa", matching("medusa_twice_name_each_drafter")),
        ("medusa+medusa", "has medusa twice"),
        ("medusa+phrases+phrases", "has phrases twice"),
        ("medusa+{path}", "has medusa twice"),
        ("medusa+semmi", "no drafter 'semmi' .did you mean 'semi'"),
        ("medusa+", "no drafter ''"),
        ("auto+phrases", matching("auto_phrases_leaves_nothing")),
        (
            "auto+medusa",
            "'auto' cannot be combined with other drafters; these can: layers, eagle3, medusa, .*, phrases",
        ),
        ("medusa+none", matching("none_cannot_be_merged")),
        ("lookahead+medusa", matching("lookahead_cannot_be_merged")),
        ("medusa+draft_model:demo", matching("draft_model_demo_cannot_merged")),
        ("ouroboros+medusa", matching("ouroboros_cannot_be_merged")),
        ("layers+medusa+semi+s3d", matching("n4_drafters_merge_3_most")),
    ],
)
def test_what_cannot_draft_together_is_refused(paths, model, monkeypatch, name, said):
    monkeypatch.setenv("LOCALSPEC_HOME", str(paths.home))
    path = written(paths.drafters / "a" / "drafter", model)
    for kind in ("semi", "s3d"):
        written(paths.drafters / kind / "drafter", model, kind=kind)
    with pytest.raises(UsageMistake, match=said):
        choose(model, Settings(device="cpu", drafter=name.format(path=path)))


@each("name", ["medusa+semi", "layers+medusa"])
def test_several_have_no_distribution(paths, model, monkeypatch, name):
    monkeypatch.setenv("LOCALSPEC_HOME", str(paths.home))
    for kind in ("medusa", "semi"):
        written(paths.drafters / kind / "drafter", model, kind=kind)
    with pytest.raises(UsageMistake, match=matching("known_distribution")):
        choose(model, Settings(device="cpu", drafter=name, accept="rejection"))


def test_a_drafter_belongs_to_its_weights_wherever_they_lie_and_whatever_their_texts(paths, model, tmp_path):
    about = {"name": "mine", "revision": revision(model.path), "weights": weights_fingerprint(model.path)}
    written(paths.drafters / "a" / "drafter", model, target=about)
    named = written(tmp_path / "named" / "drafter", model, target=about)
    (model.path / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 99}))
    moved = TargetCard("moved", model.path.rename(tmp_path / "moved"), None, "")
    assert revision(moved.path) != about["revision"]
    assert find_drafter("medusa", moved, paths).path == paths.drafters / "a" / "drafter"
    assert find_drafter(str(named), moved, paths).weights == about["weights"]
    save_file({"model.embed_tokens.weight": torch.arange(1000.0) + 1}, moved.path / "model.safetensors")
    with pytest.raises(NotHere):
        find_drafter("medusa", moved, paths)
    with pytest.raises(UsageMistake, match=about["weights"][:12]):
        find_drafter(str(named), moved, paths)
