"""A new kind of drafter is a row, a file that drafts, and a file that trains if it has weights: all commands know it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import called, sentence
from golden import wording
from machines import Told, machine

from localspec.models.drafter_kinds import TABLE, DrafterKind
from localspec.models.registry import resolve
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.training.trainable import make_drafter, save_drafter
from localspec.weights.checkpoint import revision

ROW = DrafterKind(
    "toy", "shifts the target's last state", "weights", seconds=lambda cost, nodes: cost.product(cost.parameters, 1),
    module="toy_drafter", training_module="toy_training",
)  # fmt: skip
FILE = '''
from dataclasses import dataclass

from localspec.decoding.tree import DraftTree
from localspec.drafters.tensors import TensorSpec
from localspec.drafters.trained import TrainedDrafter


@dataclass(frozen=True)
class ToyOptions:
    """`depth` tokens a draft."""

    depth: int = 2


class Drafter(TrainedDrafter):
    """A vector for each depth, added to the target's last state before its head."""

    kind, Options = "toy", ToyOptions

    def __init__(self, target, options, tensors):
        super().__init__(target, options, tensors)
        self.shift = self.compute.rows(tensors["shift"])
        self._state = None

    @classmethod
    def tensor_specs(cls, target, options):
        return {"shift": TensorSpec((options.depth, target.compute.target.sizes.hidden_size))}

    @property
    def depth(self):
        return self.options.depth

    @property
    def nbytes(self):
        return self.shift.nbytes

    def observe(self, step):
        self._state = step.hidden.take([len(step.hidden) - 1]).rows

    def rewind(self, length):
        self._state = None

    def draft(self, context):
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        picks = self.compute.logits(self.compute.target.head(self._state + self.shift)).argmax()
        return DraftTree.chain([context.root, *picks[: context.nodes]], self.kind)
'''
TRAINING = '''
import torch
from toy_drafter import Drafter

from localspec.nn.losses import cross_entropy
from localspec.training.trainable import LossOutput, TrainableDrafter


class Trainable(TrainableDrafter):
    """The vectors."""

    Drafter = Drafter

    def __init__(self, target, options):
        super().__init__(target, options)
        self.shift = torch.nn.Parameter(torch.zeros(options.depth, target.transformer.config.hidden_size))

    @property
    def depth(self):
        return self.options.depth

    def loss(self, batch):
        by_depth = []
        for ahead, shift in enumerate(self.shift, start=2):
            known, states = batch.loss_mask[:, ahead:], batch.hidden[:, :-ahead] + shift
            by_depth.append(cross_entropy(states[known], self.target.head, batch.tokens[:, ahead:][known]))
        return LossOutput(sum(found.loss / max(found.count, 1) for found in by_depth), by_depth)
'''


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("timed_briefly")]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the files and the row of the toy drafter, and import again what was imported without them."""
    for name, text in (("toy_drafter", FILE), ("toy_training", TRAINING)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "localspec.cli.train", raising=False)
    TABLE.append(ROW)
    yield
    TABLE.remove(ROW)


def answer(home: Path, *arguments: str) -> dict:
    result = called(home, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def home(tmp_path: Path, toy: None) -> Path:
    """Return a home with a toy drafter for the demo model, whose recorded acceptance is nearly perfect."""
    home = tmp_path / "home"
    home.mkdir()
    card = resolve("demo")
    about = {"target": {"name": "demo", "revision": revision(card.path)}, "accuracy_by_depth": [[0.99]] * 8}
    drafter = make_drafter("toy", Target.load(card.path), {})
    save_drafter(drafter, Paths(home).drafters / "demo-toy" / "drafter", about)
    return home


def test_it_is_run_and_the_text_stays_the_targets_own(home: Path) -> None:
    ask = ("run", "-m", "demo", "--temp", "0", "-n", "16", "--no-log", "--json", "Tell me a story.")
    plain = answer(home, *ask, "--no-spec")["token_ids"]
    for name in ("toy", "toy+phrases"):
        drafted = answer(home, *ask, "--drafter", name, "--draft-max", "4")
        assert drafted["drafter"] == name and drafted["speculation"]["draft_n"] > 0
        assert drafted["token_ids"] == plain


def test_it_is_compared_with_plain_decoding(home: Path) -> None:
    report = answer(
        home, "bench", "-m", "demo", "--drafter", "toy", "--nodes", "2", "--limit", "1", "-n", "8", "--json"
    )
    assert [(row["drafter"], row["identical"]) for row in report["rows"]] == [("none", True), ("toy", True)]


def test_it_is_shown_listed_and_chosen_where_it_pays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(home, "show", "demo", "--json")["drafters"] == [
        "none", "phrases", "lookahead", "layers", "eagle3", "medusa", "parallelspec", "s3d", "semi", "toy", "draft_model:demo-draft",
        "ouroboros:demo-draft",
    ]  # fmt: skip
    assert "demo" in [model["name"] for model in answer(home, "list", "--json")]
    measurements = Told()
    monkeypatch.setattr("localspec.cli.doctor.this_machine", lambda bandwidth: machine())
    monkeypatch.setattr("localspec.cli.doctor.Measurements", lambda *_: measurements)
    chosen = [one["drafter"] for one in answer(home, "doctor", "--json")["choices"] if one["model"] == "demo"]
    assert any(drafter.startswith("toy") for drafter in chosen), chosen


def test_it_is_a_kind_to_train(home: Path) -> None:
    shown = called(home, "train", "--help")
    assert wording("toy_shifts_target_s_last_state") in " ".join(shown.stdout.split())


@pytest.mark.usefixtures("one_reply_of_each_kind")
def test_it_is_trained(home: Path) -> None:
    lines = [json.dumps({"text": f"The fox jumps over {number} dogs. " * 8}) for number in range(8)]
    (home / "text.jsonl").write_text("\n".join(lines))
    report = answer(home, "train", "toy", "-m", "demo", "--data", "text.jsonl", "--steps", "1", "--force", "--json")
    assert report["kind"] == "toy" and len(report["accuracy_by_depth"]) == 2


def test_an_entry_may_name_it_and_a_kind_without_a_row_is_refused(tmp_path: Path, toy: None) -> None:
    home, file = tmp_path, Paths(tmp_path).user_models_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[mine]\nrepo = "org/model"\n[[mine.drafters]]\nkind = "toy"\n')
    assert called(home, "list").returncode == 0
    file.write_text(file.read_text().replace("toy", "toyy"))
    assert wording("did_you_mean_toy") in sentence(called(home, "list"))


REPEAT = '''
from localspec.decoding.tree import DraftTree


class Repeat:
    """Proposes the last token again."""

    nbytes, target_layers = 0, ()

    def observe(self, step):
        pass

    def rewind(self, length):
        pass

    def draft(self, context):
        return DraftTree.chain([context.root] * (1 + context.nodes), "repeat")


def build(ingredients):
    return Repeat()
'''
OTHERS = {
    "repeat": (DrafterKind("repeat", "the last token again", "nothing", lambda *_: 0.0, module="repeat_file"), REPEAT),
    "twin": (
        DrafterKind("twin", "a small model, again", "draft model", lambda *_: 1.0, module="twin_file"),
        "from localspec.drafters.draft_model import build\n",
    ),
}


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a kind of OTHERS by its name: its file, and its row."""
    row, text = OTHERS[request.param]
    (tmp_path / f"{row.file}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, row.file, raising=False)
    TABLE.append(row)
    yield row.name
    TABLE.remove(row)


@pytest.mark.parametrize("other", OTHERS, indirect=True)
def test_a_kind_without_weights_is_one_file_and_one_row_too(other: str, tmp_path: Path) -> None:
    ask = ("run", "-m", "demo", "--temp", "0", "-n", "12", "--no-log", "--json", "Tell me a story.")
    plain = answer(tmp_path, *ask, "--no-spec")["token_ids"]
    drafted = answer(tmp_path, *ask, "--drafter", other, "--draft-max", "3")
    assert drafted["drafter"] == other and drafted["speculation"]["draft_n"] > 0 and drafted["token_ids"] == plain


@pytest.mark.parametrize("other", ["twin"], indirect=True)
def test_the_hyperparameters_of_a_pair_are_searched_for_a_new_kind_too(other: str, tmp_path: Path) -> None:
    bench = ("bench", "-m", "demo", "--drafter", other, "--tune", "--limit", "1", "-n", "4", "--json")
    _, row = answer(tmp_path, *bench)["rows"]
    assert row["draft_model"] == "demo-draft" and row["identical"] and row["hyperparameters"]["draft"] >= 1
