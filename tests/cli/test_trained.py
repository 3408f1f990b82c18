"""Trained drafters as a user names them: found, loaded, reported, refused; the text stays the same."""

import json
import shutil

import pytest
import torch
from checkpoints import change_config
from command import called, sentence
from each import each
from golden import wording
from safetensors.torch import load_file, save_file
from scripted_models import random_model

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.engine.engine import Engine
from localspec.models.drafter_cards import find_drafter
from localspec.models.drafter_kinds import kinds
from localspec.models.registry import TargetCard
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.store.store import Store
from localspec.training.trainable import make_drafter, save_drafter
from localspec.weights.checkpoint import revision

pytestmark = pytest.mark.slow

ASK = ("--temp", "0", "-n", "24", "--no-log")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    """trained[kind]: a directory with a drafter of this kind whose weights are random."""
    target, place = Target.load(model), tmp_path_factory.mktemp("drafters")
    about = {"target": {"name": "model", "revision": revision(model)}, "accuracy_by_depth": [[0.5, 0.2]] * 4}
    torch.manual_seed(1)
    for kind in kinds("weights"):
        drafter = make_drafter(kind, target, {})
        for parameter in drafter.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
        save_drafter(drafter, place / kind / "drafter", about)
    return {kind: place / kind for kind in kinds("weights")}


@pytest.fixture
def home(tmp_path, lived_in, model):
    return lived_in(tmp_path, model)


def ask(home, model, *arguments):
    result = called(home, "run", "-m", str(model), *ASK, *arguments)
    assert result.returncode == 0, result.stderr
    return result


def reply(home, model, *arguments):
    return json.loads(ask(home, model, "hello", "--json", *arguments).stdout)


@pytest.mark.parametrize("kind", kinds("weights"))
def test_a_directory_names_itself_and_the_text_is_the_targets_own(home, model, trained, kind):
    plain = reply(home, model, "--no-spec")
    for name in (str(trained[kind]), str(trained[kind] / "drafter"), f"{trained[kind]}+phrases"):
        found = reply(home, model, "--drafter", name, "--draft-max", "6")
        assert found["token_ids"] == plain["token_ids"] and found["text"] == plain["text"]
        assert found["drafter"] == kind + ("+phrases" if name.endswith("+phrases") else "")
        assert found["memory"]["drafter_bytes"] > 0 and found["speculation"]["draft_n"] > 0
        assert (found["accept"], found["lossless"]) == ("exact", True)


def test_a_published_language_model_with_a_mask_token_drafts(home, model, tmp_path):
    """Weights of ParallelSpec are published in this form. Here it is the target itself, so its guesses are right."""
    small = shutil.copytree(model, tmp_path / "small")
    change_config(small, pard_token=1)
    found = reply(home, model, "--drafter", str(small), "--draft-max", "6")
    assert found["token_ids"] == reply(home, model, "--no-spec")["token_ids"]
    assert found["drafter"] == "parallelspec" and found["speculation"]["acceptance_length"] > 1.5
    change_config(small, pard_token=10**9)
    refused = called(home, "run", "-m", str(model), *ASK, "hello", "--drafter", str(small))
    assert refused.returncode in (1, 2) and "pard_token" in sentence(refused)


def test_a_kind_names_the_drafter_that_was_trained_here(home, model, trained):
    shutil.copytree(trained["semi"], Paths(home).drafters / "model-semi")
    assert reply(home, model, "--drafter", "semi", "--draft-max", "4")["drafter"] == "semi"
    shown = called(home, "show", str(model), "--json")
    assert json.loads(shown.stdout)["drafters"] == ["none", "phrases", "lookahead", "layers", "semi"]
    missing = called(home, "run", "-m", str(model), *ASK, "hello", "--drafter", "s3d")
    assert missing.returncode == 3 and "localspec train s3d" in sentence(missing)


def test_other_rules_say_what_they_keep(home, model, trained):
    warm = ("--temp", "0.8", "--seed", "3", "--drafter", str(trained["medusa"]), "--draft-max", "6")
    typical = ask(home, model, "hello", "--json", *warm, "--accept", "typical")
    told = json.loads(typical.stdout)
    assert (told["accept"], told["lossless"]) == ("typical", False)
    assert wording("exactly_what_model_alone_would") in typical.stderr
    assert (
        wording("text_may_differ_from_without")
        in ask(home, model, "hello", "--stats", *warm, "--accept", "typical").stderr
    )
    drawn = reply(home, model, *warm, "--accept", "rejection")
    assert (drawn["accept"], drawn["lossless"], drawn["exactness"]) == ("rejection", True, "numerical")
    assert told["exactness"] == "numerical", "their text is not that of plain decoding"
    assert (
        wording("same_probabilities_as_without")
        in ask(home, model, "hello", "--stats", *warm, "--accept", "rejection").stderr
    )
    assert drawn["token_ids"] == reply(home, model, *warm, "--accept", "rejection")["token_ids"]


@each(
    "arguments, code, said",
    [
        (["--accept", "typical", "--drafter", "{medusa}"], 2, wording("no_effect_at_temperature_0")),
        (["--accept", "rejection", "--temp", "1", "--drafter", "{medusa}+phrases"], 2, "known distribution"),
        (["--accept", "rejection", "--temp", "1", "--drafter", "phrases"], 2, "known distribution"),
        (["--accept", "typical", "--temp", "1", "--no-spec"], 2, wording("no_effect_without_a_drafter")),
        (["--drafter-rule", "memory", "--no-spec"], 2, wording("drafter_rule_without_effect")),
        (["--drafter-rule", "speed", "--drafter", "phrases"], 2, "effect with --drafter phrases"),
        (["--drafter-rule", "speed", "--draft-max", "0"], 2, "effect with --draft-max 0"),
        (["--accept", "lucky"], 2, wording("one_of_exact_rejection_typical")),
        (["--drafter", "semy"], 2, wording("did_you_mean_semi")),
        (["--drafter", "medusa+phrase"], 2, "no drafter 'phrase' (did you mean 'phrases'?)"),
        (["--drafter", "/nowhere/at/all"], 3, "no drafter.json"),
    ],
)
def test_what_cannot_be_meant_is_refused(home, model, trained, arguments, code, said):
    given = [word.format(**{kind: str(path) for kind, path in trained.items()}) for word in arguments]
    result = called(home, "run", "-m", str(model), *ASK, "hello", *given)
    assert result.returncode == code
    assert said in sentence(result)


def broken(path, how):
    """Make a directory wrong in one way."""
    card, weights = path / "drafter" / "drafter.json", path / "drafter" / "drafter.safetensors"
    about, tensors = json.loads(card.read_text()), load_file(weights)
    name = next(iter(tensors))
    match how:
        case "missing tensor":
            del tensors[name]
        case "extra tensor":
            tensors["more"] = torch.zeros(2)
        case "shape":
            tensors[name] = torch.zeros(3, 5)
        case "not a number":
            tensors[name] = torch.full_like(tensors[name], float("nan"))
        case "type":
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        case "accuracies":
            about["options"]["tree"], about["accuracy_by_depth"] = "static", ["ab"]
        case "option":
            about["options"]["heads"] = "many"
        case "unknown option":
            about["options"]["haeds"] = 3
        case "other model":
            about["target"]["revision"] = "0" * 40
        case "kind":
            about["kind"] = "oracle"
    card.write_text(json.dumps(about))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, weights)
    if how == "cut short":
        weights.write_bytes(weights.read_bytes()[:-40])
    if how == "no weights":
        weights.unlink()


@each(
    "how, code, said",
    [
        ("missing tensor", 1, "lacks"),
        ("extra tensor", 1, wording("not_a_part_of_it")),
        ("shape", 1, "has the shape"),
        ("not a number", 1, "NaN or inf"),
        ("type", 1, "is of type F8_E4M3 instead of float32"),
        ("accuracies", 1, "accuracy_by_depth in "),
        ("option", 1, wording("must_be_of_type_int")),
        ("unknown option", 1, wording("did_you_mean_heads")),
        ("other model", 2, wording("was_made_for_model")),
        ("kind", 1, wording("does_say_what_drafter")),
        ("cut short", 1, wording("train_the_drafter_again")),
        ("no weights", 3, "lacks drafter.safetensors"),
    ],
)
def test_a_broken_directory_is_reported_in_one_sentence(home, model, trained, tmp_path, how, code, said):
    path = tmp_path / "broken"
    shutil.copytree(trained["medusa"], path)
    broken(path, how)
    result = called(home, "run", "-m", str(model), *ASK, "hello", "--drafter", str(path))
    assert result.returncode == code
    assert said in sentence(result)


def test_what_confidence_is_worth_is_remembered(tmp_path, model, trained, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    card = TargetCard("model", model, None, "")
    choice = choose(card, Settings(drafter=str(trained["medusa"]), draft_max=6))
    assert choice.trained == (find_drafter(str(trained["medusa"]), card),)
    with Store.open(Paths(tmp_path).database, pytest.fail) as store:
        engine = Engine(choice, store=store, phrases="readonly")
        assert engine.session.drafter.accuracies == [[0.5, 0.2]] * 4
        assert engine.session.drafter.calibration.as_json() == []
        list(engine.chat([{"role": "user", "content": "hello"}], engine.sampling(Settings(max_tokens=20))))
        learned = engine.session.drafter.calibration.as_json()
        again = Engine(choice, store=store, phrases="readonly", share_with=engine)
    assert learned and sorted(again.session.drafter.calibration.as_json()) == sorted(learned)
