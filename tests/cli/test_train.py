"""`localspec train` as a command: the files that it writes, what it refuses, and how an interrupted run continues."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from command import called, environment, sentence
from each import each
from gguf_files import write_model
from golden import wording
from real.whole_matrix import WHOLE_MATRIX
from torture.cage import Signal
from transformers import LlamaConfig

from localspec import config
from localspec.choosing.choose import choose
from localspec.cli.main import main
from localspec.errors import DoesNotFit, LocalspecError
from localspec.models.drafter_cards import read_drafter, trained_drafters
from localspec.models.registry import resolve
from localspec.training import estimate, verdict
from localspec.training.directory import Lock
from localspec.weights.checkpoint import revision
from localspec.weights.fingerprint import weights_fingerprint

pytestmark = pytest.mark.slow

MODEL = "phi3-grouped-window-partial-rotary"
CHAT = [("the cat sat on", "the mat and the dog"), ("one two", "three four five"), ("sat on the log?", "the dog")]


@pytest.fixture(scope="module")
def model(tiny) -> Path:
    return tiny(MODEL).path


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("data") / "chat.jsonl"
    with file.open("w") as lines:
        for number in range(30):
            asked, said = CHAT[number % 3]
            roles = [("user", f"{asked} {number}"), ("assistant", said), ("user", "and?"), ("assistant", said * 2)]
            print(json.dumps({"messages": [{"role": r, "content": c} for r, c in roles]}), file=lines)
    return file


@pytest.fixture(scope="module", autouse=True)
def few_replies() -> Iterator[None]:
    """Do the same as `one_reply_of_each_kind`, also for fixtures of the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "SECONDS", 0.0)
        yield


@pytest.fixture
def train(tmp_path, monkeypatch, capfd, model, data):
    """Run `localspec train ARGUMENTS` in this process: (code, output, errors)."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", None)  # for `run`, which would read the one of these tests

    def call(kind: str, *arguments: object, text: object = data):
        capfd.readouterr()
        words = ["train", kind, "-m", str(model), "--batch", "256", "--length", "128", "--data", str(text)]
        code = main([*words, *map(str, arguments)])
        return code, *capfd.readouterr()

    return call


def losses(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "losses.jsonl").read_text().splitlines()]


def replies(capfd, target: Path, drafter: Path, *more: str) -> list[str]:
    """Return the target's replies without the drafter and with it."""
    said = []
    for one in ("none", str(drafter)):
        words = f"run -m {target} --drafter {one} -n 24 --temp 0 --no-log".split()
        assert main([*words, "the cat", *more]) == 0
        said.append(capfd.readouterr().out)
    return said


def test_what_it_writes_says_what_it_is_and_drafts(train, model, tmp_path, capfd):
    out = tmp_path / "made"
    code, text, errors = train("medusa", "--steps", 3, "-o", out, "-O", "heads=2", "--option", "decay=0.5")
    assert code == 0, errors
    assert wording("gib_of_memory") in errors and "about 3 steps" in errors and f"--drafter {out}" in text
    assert sorted(file.name for file in out.iterdir()) == ["drafter", "losses.jsonl", "losses.svg"]
    card = json.loads((out / "drafter" / "drafter.json").read_text())
    assert (card["kind"], card["options"]["heads"], card["options"]["decay"]) == ("medusa", 2, 0.5)
    assert card["target"] == {
        "name": model.name, "revision": revision(model), "weights": weights_fingerprint(model),
    }  # fmt: skip
    assert card["features"] == {"dtype": "fp32", "quantize": "int8"} and card["data"] == ["chat.jsonl"], "as it answers"
    assert len(card["tokenizer"]) == len(card["template"]) == 16
    assert card["command"].startswith(f"localspec train medusa -m {model.name} --data chat.jsonl -O heads=2")
    assert str(tmp_path) not in card["command"]
    assert card["versions"].keys() >= {"localspec", "torch", "transformers", "accelerate"}
    assert len(card["accuracy_by_depth"]) == 2 and all(len(line) == 10 for line in card["accuracy_by_depth"])
    said = card["acceptance"]
    assert 1 <= said["length"] <= 3 and said["nodes"] == 16 and said["tokens"] >= said["replies"] > 0
    assert wording("tokens_forward_16_nodes", said=f"{said['length']:.2f}") in text
    trained = card["trained"]
    assert (trained["steps"], trained["labels"], trained["batch"], trained["seed"]) == (3, "soft", 256, 0)
    assert trained["tokens"] > 300 and trained["held_out_tokens"] > 0
    assert trained["loss"] == pytest.approx(losses(out)[3]["loss"], abs=1e-3)
    assert len({*replies(capfd, model, out)}) == 1


def test_at_a_terminal_the_curve_of_the_loss_is_drawn(train, model, tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.cli.console.output_is_terminal", lambda: True)
    code, text, _ = train("medusa", "--steps", 3, "-o", tmp_path / "made")
    assert code == 0 and text.startswith(wording("loss_mean_of_neighbouring_steps")) and "steps 1 to 3\n" in text


def test_without_a_place_it_goes_where_the_model_finds_it(train, model, tmp_path):
    code, text, _ = train("medusa", "--steps", 1, "--json")
    report = json.loads(text)
    place = tmp_path / "home" / "data" / "drafters" / f"{model.name}-medusa"
    assert code == 0 and report["directory"] == str(place) and report["steps"] == 1
    assert "perplexity" not in report and report["changes_target"] is False
    assert read_drafter(place).kind == "medusa"
    found = called(tmp_path, "show", str(model), "--json", LOCALSPEC_HOME=str(tmp_path / "home"))
    assert "medusa" in json.loads(found.stdout)["drafters"]

    before = (place / "drafter" / "drafter.json").read_text()
    (place / "checkpoint").mkdir()
    (place / "checkpoint" / "step-1.safetensors").write_bytes(b"what a kill in the middle of its removal left")
    code, text, errors = train("medusa", "--steps", 2)
    assert (code, text) == (2, "") and wording("is_there_already") in errors and "--force" in errors
    assert (place / "drafter" / "drafter.json").read_text() == before and not (place / "checkpoint").exists()
    code, text, errors = train("medusa", "--steps", 2, "--force")
    assert code == 0 and json.loads((place / "drafter" / "drafter.json").read_text())["trained"]["steps"] == 2
    assert [line["step"] for line in losses(place) if "loss" in line] == [1, 2]


@pytest.mark.skipif(os.name != "posix", reason="modes as on POSIX")
def test_what_is_trained_is_private_whatever_the_umask(train, tmp_path):
    before = os.umask(0)
    try:
        assert train("medusa", "--steps", 1)[0] == 0
    finally:
        os.umask(before)
    made = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "home" / "data").rglob("*")}
    assert {path.name for path in made} >= {"drafters", "drafter.json", "drafter.safetensors", "losses.jsonl"}
    assert [(path, mode) for path, mode in made.items() if mode != (0o700 if path.is_dir() else 0o600)] == []


def test_a_form_that_changes_the_target_writes_the_changed_one(train, model, tmp_path, capfd):
    out = tmp_path / "joint"
    code, text, errors = train("medusa", "--steps", 12, "--lr", 0.02, "-o", out, "-O", "joint=true", "-O", "warmup=0.1")
    assert code == 0, errors
    card = json.loads((out / "drafter" / "drafter.json").read_text())
    own = card["target"]["revision"]
    assert own == revision(out / "target") != revision(model) == card["target"]["made_from"]["revision"]
    before, after = card["trained"]["perplexity"]
    assert before > 1 and after > 1 and before != after and "perplexity" in text
    assert resolve(str(out)).path == out / "target"
    assert sorted(f.name for f in out.iterdir()) == ["drafter", "losses.jsonl", "losses.svg", "target"]
    assert len({*replies(capfd, out, out), *replies(capfd, out / "target", out)}) == 1
    assert main(["run", "-m", str(model), "--drafter", str(out), "--no-log", "the cat"]) == 2
    assert wording("was_made_for") in capfd.readouterr().err


def test_a_packed_target_may_stay_as_it_is(train, tmp_path):
    code, _, errors = train("medusa", "--steps", 1, "--quantize", "int4", "-o", tmp_path / "a")
    assert code == 0, errors
    card = json.loads((tmp_path / "a" / "drafter" / "drafter.json").read_text())
    assert card["features"] == {"dtype": "fp32", "quantize": "int4"}


def test_a_packed_target_that_learns_is_written_unrounded(train, model, tmp_path, capfd):
    """Of one kind; tests/training/test_changed_targets.py has the others."""
    out, options = tmp_path / "out", ["-O", "full=true", "-O", "kept=0,2"]
    code, _, errors = train("s3d", "--steps", 12, "--lr", 0.02, "--quantize", "int8", "-o", out, *options)
    assert code == 0, errors
    assert wording("learns_and_teaches_in_int8") in errors and wording("its_own_weights") in errors
    card = json.loads((out / "drafter" / "drafter.json").read_text())
    assert card["target"]["revision"] == revision(out / "target") != revision(model)
    before, after = card["trained"]["perplexity"]
    assert before > 1 and after > 1 and before != after
    assert sorted(f.name for f in out.iterdir()) == ["drafter", "losses.jsonl", "losses.svg", "target"]
    assert (out / "target" / "model.safetensors").stat().st_size > 0.9 * (model / "model.safetensors").stat().st_size
    for precision in ("int8", "none"):
        assert len({*replies(capfd, out, out, "--quantize", precision)}) == 1, precision


def test_a_proposal_of_s3d_is_timed_where_replies_are_decoded_and_learns_from_the_drafters_before(train, model):
    """The training is in fp32, by torch; what decodes may be another engine in another precision."""
    code, _, errors = train("s3d", "--steps", 12, "--lr", 0.02)
    assert code == 0, errors
    precision = choose(resolve(str(model)), config.load(flags={"drafter": "none"})).precision
    assert wording("plain_steps_timed_here", precision=precision) in errors and wording("as_in_the_paper") in errors
    assert wording("where_all_before_right") in errors and "a tree of drafts yielded" in errors
    (card,) = trained_drafters(resolve(str(model)))
    assert card.about["features"]["dtype"] == "fp32" and all(0 <= rate <= 1 for rate in card.right_after_right)
    assert card.right_after_right[0] == card.about["accuracy_by_depth"][0][0], "before the first nothing can be wrong"
    marginal = [level[0] for level in card.about["accuracy_by_depth"]]
    assert len(marginal) == 1 or card.right_after_right != marginal
    code, _, errors = train("s3d", "--steps", 1, "--force")
    assert code == 0 and wording("as_fitted_to_this_model") in errors


def test_labels_and_seed_and_precision_reach_the_loop(train, tmp_path):
    flags = {"soft": [], "text": ["--labels", "text"], "seed": ["--seed", 5], "bf16": ["--dtype", "bf16"]}
    for name, given in flags.items():
        code, _, errors = train("medusa", "--steps", 2, "-o", tmp_path / name, *given)
        assert code == 0, errors
    found = {name: [line["loss"] for line in losses(tmp_path / name) if "loss" in line] for name in flags}
    assert len({line[1] for line in found.values()}) == 4
    assert found["bf16"] == pytest.approx(found["soft"], rel=0.05)


def test_several_files_may_follow_data(train, tmp_path, data):
    more = tmp_path / "more.txt"
    more.write_text("the dog sat on the log and the cat on the mat\n\n" * 40)
    code, _, errors = train("medusa", more, "--steps", 1, "-o", tmp_path / "a")  # added to the `--data` of `train`
    assert code == 0, errors
    assert json.loads((tmp_path / "a" / "drafter" / "drafter.json").read_text())["data"] == ["chat.jsonl", "more.txt"]


def test_too_little_text_is_refused(train, tmp_path):
    (tmp_path / "short.txt").write_text("a few words")
    code, text, errors = train("medusa", "-o", tmp_path / "out", text=tmp_path / "short.txt")
    assert (code, text) == (2, "") and "too little text" in errors and not (tmp_path / "out").exists()


def test_what_does_not_fit_is_refused_before_anything_is_loaded(train, tmp_path, monkeypatch):
    def never(*_: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("localspec.training.job.load_target", never)
    monkeypatch.setattr("localspec.training.estimate.free_memory", lambda _: 100 * 2**20)
    code, text, errors = train("medusa", "-o", tmp_path / "out")
    assert (code, text) == (4, "") and wording("gib_of_memory") in errors and "--at-once" in errors
    assert errors.count("\n") == 1
    monkeypatch.undo()
    monkeypatch.setattr("localspec.training.job.load_target", never)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    code, text, errors = train("medusa", "-o", tmp_path / "out")
    assert (code, text) == (4, "") and wording("on_that_disk") in errors and not (tmp_path / "out").exists()


def test_layers_are_computed_twice_where_not_even_a_row_fits_and_the_losses_are_the_same(train, tmp_path, monkeypatch):
    found = {}
    words = ["--steps", 3, "-O", "kept=0,2", "--dtype", "fp32", "--quantize", "none", "--at-once", 128]
    for name in ("plain", "twice"):
        code, _, errors = train("s3d", "-o", tmp_path / name, *words)
        assert code == 0, errors
        assert (wording("computed_a_second_time") in errors) == (name == "twice")
        found[name] = losses(tmp_path / name)
        needs = estimate.needs

        def just(*given, needs=needs, **more):
            needed = needs(*given, **more)
            monkeypatch.setattr(estimate, "free_memory", lambda _: needed.memory(128, recomputed=True))
            return needed

        monkeypatch.setattr(estimate, "needs", just)
    assert found["plain"] == found["twice"]


def test_own_layers_learn_in_bf16(train, model, tmp_path, capfd):
    """Where fp32 does not fit or was not requested; the drafter is lossless for the changed target."""
    code, _, errors = train("s3d", "--steps", 2, "--dtype", "bf16", "-O", "full=true", "-o", tmp_path / "out")
    assert code == 0, errors
    card = json.loads((tmp_path / "out" / "drafter" / "drafter.json").read_text())
    assert card["features"] == {"dtype": "bf16", "quantize": "none"}
    assert card["target"]["revision"] == revision(tmp_path / "out" / "target") != revision(model)
    out = tmp_path / "out"
    assert len({*replies(capfd, out, out, "--quantize", "none", "--dtype", "fp32")}) == 1


def test_the_last_values_that_are_taken(train, tmp_path, monkeypatch):
    """They reach the loop, which would fail on a seed that torch does not take or on a share of 0."""
    most = ["--seed", 2**63 - 1, "--steps", 10**9, "--hours", 10**6, "--epochs", 10**6]
    losses = iter([1.0, 1.0])
    monkeypatch.setattr("localspec.training.train.Training._step", lambda *_: next(losses, None) or refuse())
    code, _, errors = train("medusa", "-o", tmp_path / "out", *most)
    assert code == 1 and "refuses this" in errors and next(losses, None) is None, errors


def test_a_disk_that_is_full_at_the_end_keeps_the_checkpoint(train, tmp_path, monkeypatch):
    from localspec.training import result

    out, honest = tmp_path / "out", result.save_drafter
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(*arguments: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        try:
            honest(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(result, "save_drafter", full)
    code, text, errors = train("medusa", "--steps", 2, "-o", out)
    assert (code, text) == (4, "") and wording("cannot_be_written") in errors
    assert not list(out.glob("**/*.new")) and not (out / "drafter" / "drafter.json").exists()
    monkeypatch.setattr(result, "save_drafter", honest)
    code, _, errors = train("medusa", "--steps", 2, "-o", out)
    assert code == 0 and wording("going_on_after_step_2") in errors and (out / "drafter" / "drafter.json").exists()


def test_a_place_that_is_taken(train, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        code, _, errors = train("medusa", "-o", place)
        assert code == 2 and errors.count("\n") == 1 and wording("give_another_o") in errors
    monkeypatch.chdir(tmp_path)
    code, _, errors = train("medusa", "-o", "")
    assert code == 2 and "-o ''" in errors and [file.name for file in tmp_path.iterdir()] == ["file"]
    (tmp_path / "dir" / "target").mkdir(parents=True)
    code, _, errors = train("medusa", "-o", tmp_path / "dir")
    assert code == 2 and wording("is_there_already") in errors


def test_a_second_training_in_one_directory_is_refused(train, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "losses.jsonl").write_text("the first one's\n")
    with Lock(out) as lock:
        lock.take()
        for more in ([], ["--force"]):
            code, text, errors = train("medusa", "--steps", 1, "-o", out, *more)
            assert (
                (code, text) == (2, "") and wording("another_training_is_running") in errors and errors.count("\n") == 1
            )
    assert [file.read_text() for file in out.iterdir()] == ["the first one's\n"]

    def begins(*_: object) -> None:
        with Lock(tmp_path / "new") as second:
            second.take()  # refused, as a real training would be

    monkeypatch.setattr("localspec.training.job.Training", begins)
    code, _, errors = train("medusa", "--steps", 1, "-o", tmp_path / "new")
    assert code == 2 and wording("another_training_is_running") in errors
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"readings"}, "what was read is not read again"


def test_other_faults_are_not_reported_as_faults_of_the_disk(train, tmp_path, monkeypatch):
    monkeypatch.setattr("localspec.training.curves.draw", lambda _, drawn, __: drawn.mkdir() or drawn.read_text())
    code, _, errors = train("medusa", "--steps", 1, "-o", tmp_path / "out")
    assert code == 1 and wording("cannot_be_written") in errors and "make room" not in errors


def test_figures_of_few_tokens_say_so_and_omitted_texts_are_reported(train, model, tmp_path, monkeypatch):
    _, text, errors = train("medusa", "--steps", 1, "-o", tmp_path / "a")
    tokens = int(re.search(r"right in .*\(on (\d+) tokens only\)", text)[1])
    card = json.loads((tmp_path / "a" / "drafter" / "drafter.json").read_text())
    assert 0 < tokens <= card["trained"]["held_out_tokens"] and "left out" not in errors
    mixed = tmp_path / "mixed.jsonl"
    said = [{"messages": [{"role": "assistant", "content": f"hello {number}"}]} for number in range(3)]
    texts = [{"text": f"the cat {number} sat on the mat and the dog sat on the log"} for number in range(40)]
    mixed.write_text("\n".join(map(json.dumps, said + texts)))
    monkeypatch.setattr("localspec.models.chat_tokenizer.ChatTokenizer.render_apart", refuse)
    _, _, errors = train("medusa", "--steps", 1, "-o", tmp_path / "b", text=mixed)
    assert wording("n3_of_the_texts") in errors and "left out" in errors


def refuse(*_: object, **__: object) -> str:
    raise LocalspecError("The model's chat template refuses this.")


# -- models without a directory ----------------------------------------------------------------------------------------


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    shape = {**tiny_models._SHAPE, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
    path = tiny_models.write(tmp_path / "model", LlamaConfig(**shape), tiny_models.byte_tokenizer(), 0)
    return write_model(tmp_path / "Tiny-Chat.gguf", path, "Q4_1")


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_gguf_file_teaches_as_it_is(train, tmp_path, capfd, gguf, kind):
    code, text, errors = train(kind, "-m", gguf, "--steps", 1)
    assert code == 0, errors
    card, place = resolve("Tiny-Chat"), tmp_path / "home" / "data" / "drafters" / f"Tiny-Chat-{kind}"
    about = json.loads((place / "drafter" / "drafter.json").read_text())
    assert about["target"]["name"] == "Tiny-Chat" and about["target"]["weights"] == weights_fingerprint(card.path)
    quantize = "none" if kind == "eagle3" else "blocks"  # other kinds learn from the model as it answers
    assert about["features"] == {"dtype": "fp32", "quantize": quantize} and f"-m Tiny-Chat --drafter {place}" in text
    assert [one.kind for one in trained_drafters(card)] == [kind]
    assert len({*replies(capfd, gguf, place)}) == 1


def test_so_does_what_is_here_only_packed(train, tmp_path, capfd, gguf):
    assert main(["import", str(gguf), "--quantize", "int8"]) == 0
    gguf.unlink()
    code, _, errors = train("medusa", "-m", "Tiny-Chat", "--steps", 1)
    assert code == 0, errors
    place = tmp_path / "home" / "data" / "drafters" / "Tiny-Chat-medusa"
    assert json.loads((place / "drafter" / "drafter.json").read_text())["features"]["quantize"] == "int8"
    assert len({*replies(capfd, "Tiny-Chat", place)}) == 1


def test_blocks_teach_where_dense_weights_have_no_room(train, tmp_path, monkeypatch, gguf):
    monkeypatch.setattr("localspec.training.job.choose", _no_room_for_dense_weights)
    code, _, errors = train("medusa", "-m", gguf, "--steps", 1, "-o", tmp_path / "made")
    assert code == 0, errors
    card = json.loads((tmp_path / "made" / "drafter" / "drafter.json").read_text())
    assert card["features"] == {"dtype": "fp32", "quantize": "blocks"}


def _no_room_for_dense_weights(card, settings, machine):
    if settings.quantize == "none":
        raise DoesNotFit("no room")
    return choose(card, settings, machine)


# -- ends ------------------------------------------------------------------------------------------------------------


GOES_ON = wording("same_command_goes_from_there")
STEPS = 16


def steps_made(directory: Path) -> int:
    file = directory / "losses.jsonl"
    return file.read_text().count('"loss"') if file.exists() else 0


def asked(model: Path, data: Path, out: Path, *more: object) -> list[str]:
    words = ["train", "medusa", "-m", model, "--data", data, "-o", out, "--steps", STEPS, "--batch", 256]
    return [str(word) for word in (*words, "--length", 128, *more)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model, data) -> list[dict]:
    """Return the losses of an uninterrupted training."""
    home = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)  # as each test does, and each process that a test starts
    result = called(home, *asked(model, data, home / "out"))
    assert result.returncode == 0, result.stderr
    return losses(home / "out")


def test_killed_it_continues_to_the_same_losses(training_cage, tmp_path, model, data, whole):
    out, kills = tmp_path / "out", 0
    for steps in (3, 9):
        words = asked(model, data, out, "--save-every", 0.2)
        sent = Signal(signal.SIGKILL, when=lambda steps=steps: steps_made(out) >= steps)
        kills += training_cage.run(tmp_path, *words, sent=sent).code == -signal.SIGKILL
    assert kills == 2 and not (out / "drafter").exists()
    result = called(tmp_path, *asked(model, data, out, "--save-every", 0.2))
    assert result.returncode == 0 and losses(out) == whole
    assert not (out / "checkpoint").exists() and (out / "drafter" / "drafter.json").exists()


@pytest.mark.parametrize(("ended", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_ended_it_keeps_a_checkpoint_and_says_how_to_continue(training_cage, tmp_path, model, data, whole, ended, code):
    """Ctrl+C, a logout or a closed terminal ends it; the exit code says which."""
    out = tmp_path / "out"
    told = training_cage.run(tmp_path, *asked(model, data, out), sent=Signal(ended, when=lambda: steps_made(out) >= 5))
    assert told.code == code and GOES_ON in told.errors and "Traceback" not in told.errors
    step = json.loads((out / "checkpoint" / "state.json").read_text())["step"]
    assert 5 <= step < STEPS and not (out / "training.lock").exists()
    other = called(tmp_path, *asked(model, data, out, "--lr", 0.5))
    assert other.returncode == 2 and wording("lr_0_001_one_lr_0_5") in sentence(other) and "--force" in sentence(other)
    result = called(tmp_path, *asked(model, data, out))
    assert result.returncode == 0 and wording("going_on_after_step", step=step) in result.stderr
    assert losses(out) == whole


LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1",
          "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]  # fmt: skip


def launched(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run `accelerate launch` with two processes on this machine."""
    return subprocess.run(
        [*LAUNCH, *map(str, words)], cwd=home, env=environment(home, OMP_NUM_THREADS="1"), capture_output=True,
        text=True, timeout=250,
    )  # fmt: skip


FORKED = """
import os, socket, sys
from localspec.cli.main import main
import accelerate.utils, torch._dynamo, torch.distributed
from localspec.training import job, verdict  # with these, most of what a process imports
verdict.SECONDS = 0.0  # one reply of each kind
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
started = []
for rank in "01":
    started.append(os.fork())
    if not started[-1]:
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
sys.exit(any([os.waitpid(one, 0)[1] for one in started]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_two_processes_learn_what_one_learns(tmp_path, model, data, whole):
    """The next test starts them with `accelerate launch`. Here they share their imports."""
    out = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-c", FORKED, *asked(model, data, out, "--device", "cpu")], cwd=tmp_path,
        env=environment(tmp_path, OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    card = json.loads((out / "drafter" / "drafter.json").read_text())
    assert card["trained"]["processes"] == 2
    assert result.stdout.count("use it:") == 1 and result.stderr.count(wording("gib_of_memory")) == 1
    one, two = ([line["loss"] for line in lines if "loss" in line] for lines in (whole, losses(out)))
    assert len(two) == STEPS and two == pytest.approx(one, rel=0.02)
    assert [line["step"] for line in losses(out)] == [line["step"] for line in whole]


DIVIDED = """
import sys
from localspec.cli.main import main
from localspec.nn.target import Target
from localspec.training import job

def load_target(*given):
    read.append(own(*given))
    return read[-1]

read, own = [], job.load_target
job.load_target = load_target
code = main(sys.argv[1:])
layers = [weight for layer in read[0].transformer.layers for weight in layer.parameters()]
held = sum(weight.to_local().numel() for weight in layers)
print(f"[holds {held} of {sum(weight.numel() for weight in layers)}]", flush=True)
sys.exit(code)
"""


@WHOLE_MATRIX
def test_processes_that_share_the_model_learn_what_one_learns(tmp_path):
    """Each process holds one half of the demo's layers, before and after their use; their steps differ in work."""
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"text": f"{'one two three ' * n} and {n}"}) + "\n" for n in range(1, 40)))
    asked = ["train", "parallelspec", "-m", "demo", "--data", chats, "--steps", 3, "--batch", 192, "--length", 96,
             "--at-once", 96, "--device", "cpu", "--dtype", "fp32", "-O", "form=eagle"]  # fmt: skip
    single = called(tmp_path, *map(str, asked), "-o", "single")
    assert single.returncode == 0, single.stderr
    (tmp_path / "divided.py").write_text(DIVIDED)
    result = launched(tmp_path, "--use_fsdp", "divided.py", *asked, "-o", tmp_path / "shared")
    assert result.returncode == 0, result.stderr
    shares = [tuple(map(int, found)) for found in re.findall(r"\[holds (\d+) of (\d+)\]", result.stdout)]
    assert len(shares) == 2 and all(0.49 < held / of < 0.51 for held, of in shares)
    one, two = ([line["loss"] for line in losses(tmp_path / out) if "loss" in line] for out in ("single", "shared"))
    assert len(two) == 3 and two == pytest.approx(one, rel=1e-3)
    card = json.loads((tmp_path / "shared" / "drafter" / "drafter.json").read_text())
    assert card["trained"]["processes"] == 2 and "acceptance" not in card
    again = called(tmp_path, "run", "-n", "4", "--drafter", str(tmp_path / "shared"), "one two", "--draft-max", "4")
    assert again.returncode == 0, again.stderr


@each(
    "words, message",
    [
        (["s3d"], "cannot be divided"),
        (["medusa", "-O", "joint=true"], "cannot be divided"),
        (["medusa", "--quantize", "int8"], wording("int8_cannot_be_divided")),
    ],
)
def test_what_cannot_be_divided_is_refused(tmp_path, model, data, words, message):
    result = called(
        tmp_path, "train", *words, "-m", str(model), "--data", str(data), "-o", "out", "--device", "cpu",
        WORLD_SIZE="2", ACCELERATE_USE_FSDP="true",
    )  # fmt: skip
    assert result.returncode == 2 and message in sentence(result) and not (tmp_path / "out").exists()
