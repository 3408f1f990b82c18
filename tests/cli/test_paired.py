"""Draft models as a user names them: found, loaded, tuned once, reported, refused; the text stays the same."""

import json
import shutil
from pathlib import Path

import pytest
from checkpoints import change_config
from command import called, sentence
from each import each
from golden import wording
from measured_at_once import at_once
from safetensors.numpy import load_file, save_file
from scripted_models import random_model

from localspec.choosing.choose import choose
from localspec.choosing.cost import ForwardCosts
from localspec.choosing.measure import COSTS, MeasurementCache
from localspec.config import Settings
from localspec.decoding.exactness import Exactness
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.drafters.ingredients import Hyperparameters
from localspec.drafters.ouroboros_tuning import starting
from localspec.engine import assemble
from localspec.engine.engine import Engine
from localspec.engine.model_profile import EXACTNESS, ModelProfile
from localspec.events import Text
from localspec.models.registry import TargetCard, resolve
from localspec.paths import Paths
from localspec.store.store import Store

pytestmark = pytest.mark.slow

ASK = ("--temp", "0", "-n", "24", "--no-log")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model") / "model", context=2000)


@pytest.fixture(scope="module")
def small(tmp_path_factory, model):
    """Return another model with the same tokenizer and the same first layer, so that it is sometimes right."""
    place = shutil.copytree(model, tmp_path_factory.mktemp("small") / "small")
    weights = load_file(place / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name}
    save_file(kept, place / "model.safetensors", {"format": "pt"})
    return change_config(place, num_hidden_layers=1)


@pytest.fixture
def home(tmp_path, lived_in, model, small):
    return lived_in(tmp_path, model, small)


def reply(home, model, *arguments):
    result = called(home, "run", "-m", str(model), *ASK, "hello", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_draft_model_is_named_and_the_text_is_the_targets_own(home, model, small):
    plain = reply(home, model, "--no-spec")
    for kind in ("draft_model:{}", "draft_model:{}+phrases", "ouroboros:{}", "lookahead", "lookahead+phrases"):
        found = reply(home, model, "--drafter", kind.format(small), "--draft-max", "6")
        assert (found["token_ids"], found["text"]) == (plain["token_ids"], plain["text"]), kind
        assert found["drafter"] == kind.replace(":{}", "")
        assert found["speculation"]["draft_n"] > 0
        assert found["memory"]["drafter_bytes"] > (
            0 if "lookahead" in kind else (small / "model.safetensors").stat().st_size // 2
        )
    itself = reply(home, model, "--drafter", f"draft_model:{model}", "--draft-max", "6")["speculation"]
    assert itself["acceptance_length"] > 5, "23 tokens behind the first, in four steps of at most seven"


def test_the_draft_model_of_an_entry_needs_no_name(home, model, small):
    toml = f'[mine]\npath = "{model}"\ndraft = "little"\n[little]\npath = "{small}"\n'
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text(toml)
    plain = reply(home, model, "--no-spec")
    for kind in ("ouroboros", "draft_model", "ouroboros:little"):
        found = reply(home, "mine", "--drafter", kind, "--draft-max", "4")
        assert found["drafter"] == kind.partition(":")[0] and found["token_ids"] == plain["token_ids"]
    shown = json.loads(called(home, "show", "mine", "--json").stdout)["drafters"]
    assert shown == ["none", "phrases", "lookahead", "layers", "draft_model:little", "ouroboros:little"]


@pytest.fixture
def with_draft(home, model, small, tmp_path):
    """Return the model with the small one in its directory `draft`, whose forwards cost next to nothing."""
    path = shutil.copytree(model, tmp_path / "with_draft")
    shutil.copytree(small, path / "draft")
    told(home, path)
    return path


def told(home, path):
    """Store new forward costs of the two models: a forward of the target takes one second, with any number of rows."""
    with Store.open(Paths(home).database, pytest.fail) as store:
        for one, seconds in ((path, 1.0), (path / "draft", 1e-3)):
            profile = ModelProfile.of(
                choose(TargetCard(str(one), one, None, ""), Settings(drafter="none")), MeasurementCache(store)
            )
            profile.remember(EXACTNESS, Exactness(False, 99))
            profile.remember(COSTS, ForwardCosts((1, 64), (256,), ((seconds, 1.1 * seconds),)))


def test_auto_drafts_with_a_small_model_in_the_targets_directory(home, with_draft, monkeypatch):
    monkeypatch.setattr(assemble, "searching", lambda *_: pytest.fail("a reply waits for no search"))
    plain = reply(home, with_draft, "--no-spec")
    found = reply(home, with_draft)
    assert found["drafter"] in ("draft_model+phrases", "ouroboros") and found["token_ids"] == plain["token_ids"]
    assert found["speculation"]["draft_n"] > 0
    assert reply(home, with_draft, "--drafter", "draft_model")["token_ids"] == plain["token_ids"], (
        "the same without a name"
    )


@pytest.mark.parametrize("damage", ["weights", "tokens", "config"])
def test_a_small_model_that_nobody_named_costs_no_reply(home, with_draft, damage):
    """Damage is found in its files before it is chosen, or when it is loaded; the target answers either way."""
    plain, draft = reply(home, with_draft, "--no-spec"), with_draft / "draft"
    if damage == "tokens":
        words = json.loads((draft / "tokenizer.json").read_text())
        words["model"]["vocab"] = {token: (index + 1) % 256 for token, index in words["model"]["vocab"].items()}
        (draft / "tokenizer.json").write_text(json.dumps(words))
    elif damage == "config":
        (draft / "config.json").write_text("[1]")
    else:
        weights = load_file(draft / "model.safetensors")
        weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
        save_file(weights, draft / "model.safetensors", {"format": "pt"})
        told(home, with_draft)
    result = called(home, "run", "-m", str(with_draft), *ASK, "hello", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["token_ids"] == plain["token_ids"] and found["drafter"] in ("phrases", "none")
    assert len(result.stderr.strip().splitlines()) == 1 and str(draft) in result.stderr, result.stderr


@each(
    "arguments, code, said",
    [
        (["--drafter", "ouroboros"], 3, "--drafter ouroboros:MODEL"),
        (["--drafter", "draft_model:nowhere"], 3, "'nowhere'"),
        (["--drafter", "ouroboros:{other}"], 2, "another tokenizer"),
        (["--drafter", "ouroboros:{damaged}"], 1, wording("damaged_holds_nan_or_inf")),
        (["--drafter", "ouroboros:{small}+phrases"], 2, "the same as"),
        (["--drafter", "ouroborus:{small}"], 2, wording("did_you_mean_ouroboros")),
        (["--drafter", "ouroboros:"], 2, "names no model"),
        (["--drafter", "{small}"], 3, "draft_model:MODEL"),
        (["--drafter", "lookahed"], 2, wording("did_you_mean_lookahead")),
        (["--drafter", "draft_model:{small}", "--accept", "rejection", "--temp", "1"], 2, "known distribution"),
        (["--drafter", "draft_model:{small}", "--draft-max", "65"], 2, "64 nodes"),
    ],
)
def test_what_cannot_be_meant_is_refused(home, model, small, tmp_path, arguments, code, said):
    other = shutil.copytree(small, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[65:67]
    words[first], words[second] = words[second], words[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    damaged = shutil.copytree(small, tmp_path / "damaged")
    weights = load_file(damaged / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
    save_file(weights, damaged / "model.safetensors", {"format": "pt"})
    given = [word.format(small=small, other=other, damaged=damaged) for word in arguments]
    result = called(home, "run", "-m", str(model), *ASK, "hello", *given)
    assert result.returncode == code, result.stderr
    assert said in sentence(result)


def test_a_missing_draft_model_is_reported_by_its_entry(home, model):
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text(f'[mine]\npath = "{model}"\ndraft = "gone"\n')
    result = called(home, "run", "-m", "mine", *ASK, "hello", "--drafter", "ouroboros")
    assert result.returncode == 3 and "draft = 'gone' of mine in models.toml" in sentence(result)
    assert json.loads(called(home, "show", "mine", "--json").stdout)["drafters"] == [
        "none",
        "phrases",
        "lookahead",
        "layers",
    ]


def test_a_draft_model_with_one_damaged_row_is_refused_before_a_word_is_said(home, model, small, tmp_path):
    rotten = shutil.copytree(small, tmp_path / "rotten")
    weights = load_file(rotten / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = float("nan")
    save_file(weights, rotten / "model.safetensors", {"format": "pt"})
    for kind in ("draft_model", "ouroboros"):
        result = called(home, "run", "-m", str(model), *ASK, "hello", "--drafter", f"{kind}:{rotten}")
        assert (result.returncode, result.stdout) == (1, "")
        assert f"embed_tokens of {rotten} has NaN" in sentence(result)


def engine(store: Store, model: Path, drafter: str, **more) -> Engine:
    settings = Settings(drafter=drafter, **{key: more.pop(key) for key in ("draft_max", "ouroboros") if key in more})
    return Engine(choose(resolve(str(model)), settings), store=store, **more)


def test_a_pair_is_tuned_only_where_that_is_asked(home, model, small, monkeypatch):
    found = [Hyperparameters(2, 0, 3, 1), Hyperparameters(1, 1, 4, 4)]
    asked: list[str] = []

    def search(build, workload, names):
        asked.append(" ".join(names))
        assert workload.exchanges and all(reply for _, reply in workload.exchanges)
        return found[len(asked) - 1]

    monkeypatch.setattr(assemble, "searching", at_once(search))
    with Store.open(Paths(home).database, pytest.fail) as store:
        first = engine(store, model, f"ouroboros:{small}")
        assert first.hyperparameters == starting(first.draft_model.costs)
        assert asked == []
        assert engine(store, model, f"ouroboros:{small}", tune=True).hyperparameters == found[0]
        assert engine(store, model, f"ouroboros:{small}").hyperparameters == found[0]
        engine(store, model, f"draft_model:{small}", tune=True)
        assert asked == ["draft window phrase phrases"], "a draft model decides in each step how far it drafts"
        assert engine(store, model, f"ouroboros:{small}", tune=True).hyperparameters == found[1]
        fixed = engine(store, model, f"ouroboros:{small}", draft_max=8)
        assert len(asked) == 2 and fixed.hyperparameters == found[1], "what was found serves a fixed tree, too"
        first = engine(store, model, f"ouroboros:{small}")
        assert engine(store, model, f"ouroboros:{small}", share_with=first).draft_model is first.draft_model


def test_parts_that_are_left_out_are_not_searched_for_and_not_used(home, model, small, monkeypatch):
    asked = []
    monkeypatch.setattr(assemble, "searching", at_once(lambda *given: asked.append(given[2]) or Hyperparameters()))
    with Store.open(Paths(home).database, pytest.fail) as store:
        alone = engine(store, model, f"ouroboros:{small}", ouroboros=("lengthening",), tune=True)
        assert asked == [["draft", "phrase", "phrases"]]
        assert alone.saved_phrases is None, "without history nothing of earlier sessions is looked at"
        both = engine(store, model, f"ouroboros:{small}", ouroboros=("accelerating", "history"), tune=True)
        assert both.saved_phrases is not None
        assert "window" in asked[1]


def test_drafts_of_a_fixed_size_begin_with_the_first_step(home, model, small):
    with Store.open(Paths(home).database, pytest.fail) as store:
        first = engine(store, model, f"draft_model:{small}", draft_max=3)
        prompt = [{"role": "user", "content": "all work and no play " * 30}]
        drafts = [
            draft
            for event in first.chat(prompt, Sampling(), Limits(12))
            if isinstance(event, Text)
            for draft in event.drafts
        ]
    assert {*drafts[0].sources[1:]} == {"draft_model"} and len(drafts[0].tokens) > 1


def test_bench_shows_how_a_pair_drafts_and_tune_saves_its_result(home, model, small, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\nwhat else\n")
    arguments = ["--drafter", f"ouroboros:{small},draft_model:{small}", "--prompts", str(prompts), "-n", "12", "--json"]
    result = called(home, "bench", "-m", str(model), *arguments, "--tune", "--details")
    assert result.returncode == 0, result.stderr
    plain, paired, _ = json.loads(result.stdout)["rows"]
    assert "draft_model" not in plain
    assert (paired["drafter"], paired["draft_model"], paired["identical"]) == ("ouroboros", str(small), True)
    assert {*paired["hyperparameters"]} == {"draft", "window", "phrase", "phrases"}
    assert f"drafts with {small}" in result.stderr.replace("\n", " ")
    with Store.open(Paths(home).database, pytest.fail) as store:
        kept = engine(store, model, f"ouroboros:{small}")
    assert kept.hyperparameters.as_json() == paired["hyperparameters"]
    both = [
        "--drafter",
        f"ouroboros:{small},ouroboros:{model}",
        "--nodes",
        "3,auto",
        "--prompts",
        str(prompts),
        "-n",
        "6",
    ]
    again = called(home, "bench", "-m", str(model), *both, "--json")
    rows = json.loads(again.stdout)["rows"][1:]
    assert [(row["draft_model"], row["nodes"]) for row in rows] == [
        (str(one), nodes) for one in (small, model) for nodes in (3, "auto")
    ]
    assert all(row["hyperparameters"] == paired["hyperparameters"] for row in rows[:2]), "what was kept serves both"
    for drafter, nodes, said in (("phrases", "auto", "a draft model"), (f"ouroboros:{small}", "8", "add auto")):
        refused = called(home, "bench", "-m", str(model), "--drafter", drafter, "--nodes", nodes, "--tune")
        assert (
            refused.returncode == 2 and wording("tune_has_no_effect") in sentence(refused) and said in sentence(refused)
        )


def test_a_vocabulary_that_both_have_is_read_once_and_a_template_is_its_own(home, model, small):
    """Reading 151,000 tokens once more takes a second, before the first word."""
    (small / "chat_template.jinja").write_text("{% for message in messages %}<{{ message['content'] }}>{% endfor %}")
    try:
        first = engine(None, model, f"draft_model:{small}")
        little = first.draft_model.target
        assert little.tokenizer.backend is first.target.tokenizer.backend
        assert little.chat.render([{"role": "user", "content": "Hi"}]) == "<Hi>"
        assert first.target.chat.render([{"role": "user", "content": "Hi"}]) != "<Hi>"
    finally:
        (small / "chat_template.jinja").unlink()
