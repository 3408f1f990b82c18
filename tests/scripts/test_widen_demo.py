"""The widened demo says what the demo says, and everything that drafts for it drafts the same."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from golden import matching, wording
from safetensors.torch import load_file, save_file
from widen_demo import DEMO, widen

from localspec import Done, Engine, Limits, Sampling, config
from localspec.errors import LocalspecError, UsageMistake
from localspec.models import drafter_cards, registry
from localspec.nn.target import Target
from localspec.policy.selection import choose
from localspec.training.trainable import make_drafter, save_drafter

pytestmark = pytest.mark.usefixtures("timed_briefly")  # sizes of drafts are fixed

QUESTIONS = ("Who are you?", "Tell me about the sea.", wording("write_python_function_says"))
SHIPPED = sorted(path.name for path in (DEMO / "drafters").iterdir())
FLAGS = {"dtype": "fp32", "quantize": "none"}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wide") / "twice"
    widen(out, 2)
    return out


@cache
def replies(model: str, drafter: str, tokens: int) -> list[tuple[list[int], int, int, int]]:
    """Of each question: the reply's tokens, its steps, and how many tokens were drafted and accepted."""
    flags = {**FLAGS, "drafter": drafter} | ({} if drafter == "none" else {"draft_max": 8})
    choice = choose(registry.resolve(model), config.load(flags=flags))
    assert (choice.engine, choice.dtype) == ("native", "fp32")
    engine = Engine(replace(choice, fixed=True), phrases="off")
    found = []
    for number, question in enumerate(QUESTIONS):
        sampling = Sampling() if number % 2 == 0 else Sampling(0.7, seed=number)
        *_, done = engine.chat([{"role": "user", "content": question}], sampling, Limits(tokens))
        assert isinstance(done, Done)
        told = done.statistics
        found.append((list(told.token_ids), told.steps, told.drafted, told.accepted))
    return found


@pytest.mark.slow
def test_the_text_is_the_demos_and_the_sizes_are_the_factors(wide):
    told = replies(str(wide), "none", 48)
    assert told == replies("demo", "none", 48)
    assert max(len(ids) for ids, *_ in told) > 20
    demo, grown = (load_file(path / "model.safetensors") for path in (DEMO, wide))
    assert grown["model.embed_tokens.weight"].shape == (8192, 512)
    assert {name: t.numel() for name, t in grown.items() if "proj" in name} == {
        name: 4 * t.numel() for name, t in demo.items() if "proj" in name
    }


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", SHIPPED)
def test_each_drafter_drafts_the_same(wide, kind):
    expected = replies("demo", kind, 32)
    assert sum(accepted for *_, accepted in expected) > 3
    assert replies(str(wide), kind, 32) == expected


EXTRA = {  # options that the demo's drafters may have, and the tensors of each
    "medusa": ({"private_rank": 4}, {"own.down": (4, 4, 256), "own.up": (4, 8192, 4)}),
    "parallelspec": (
        {"correction": 8},
        {
            "correction.near.weight": (8, 256), "correction.near.bias": (8,), "correction.far.weight": (8, 256),
            "correction.out.weight": (256, 8),
        },
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", EXTRA)
def test_parts_that_a_drafter_may_have_draft_the_same(tmp_path, kind):
    source, (options, shapes) = tmp_path / "demo", EXTRA[kind]
    shutil.copytree(DEMO, source)
    place = source / "drafters" / kind
    card, tensors = json.loads((place / "drafter.json").read_text()), load_file(place / "drafter.safetensors")
    card["options"] |= options
    random = torch.Generator().manual_seed(0)
    tensors |= {name: 0.3 * torch.randn(shape, generator=random) for name, shape in shapes.items()}
    (place / "drafter.json").write_text(json.dumps(card))
    save_file(tensors, place / "drafter.safetensors")
    widen(tmp_path / "wide", 2, source=source)
    expected = replies(str(source), kind, 32)
    assert expected != replies("demo", kind, 32)  # or nothing of it would be tested
    assert replies(str(tmp_path / "wide"), kind, 32) == expected


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"vocabulary": 4096, "depth": 3}], ids=str)
def test_an_eagle3_head_drafts_the_same(tmp_path, options):
    """As it is before training, where it says what the model's last layer makes of the states, and of its own again."""
    source, target = tmp_path / "demo", Target.load(DEMO)
    shutil.copytree(DEMO, source)
    torch.manual_seed(0)
    made = make_drafter("eagle3", target, options)
    made.begin_training(torch.arange(target.vocab_size, 0, -1).roll(50).float())  # a low id is a frequent token
    about = {
        "target": {"name": "demo", "revision": drafter_cards.read_drafter(source / "drafters" / "s3d").revision},
        "accuracy_by_depth": [[0.5]] * made.depth,
    }
    shutil.rmtree(source / "drafters" / "eagle3", ignore_errors=True)
    save_drafter(made, source / "drafters" / "eagle3", about)
    widen(tmp_path / "wide", 2, source=source)
    expected = replies(str(source), "eagle3", 32)
    assert sum(accepted for *_, accepted in expected) > 0
    assert replies(str(tmp_path / "wide"), "eagle3", 32) == expected


@pytest.mark.slow
def test_the_draft_model_drafts_the_same(wide):
    expected = replies("demo", f"draft_model:{DEMO / 'draft'}", 32)
    assert sum(accepted for *_, accepted in expected) > 3
    assert replies(str(wide), f"draft_model:{wide / 'draft'}", 32) == expected


def test_the_drafters_belong_to_the_widened_model_and_to_no_other(wide):
    model = registry.resolve(str(wide))
    own = drafter_cards.trained_drafters(model)
    assert [drafter.kind for drafter in own] == SHIPPED
    assert {drafter.target for drafter in own} == {"twice"}
    assert [drafter_cards.find_drafter(str(wide / "drafters" / drafter.kind), model) for drafter in own] == own
    with pytest.raises(UsageMistake, match=matching("was_made_for_twice")):
        drafter_cards.find_drafter(str(wide / "drafters" / "s3d"), registry.resolve("demo"))


@pytest.mark.slow
def test_a_longer_context_changes_the_claim_alone(wide, tmp_path):
    widen(tmp_path / "long", 2, context=8192)
    card = registry.resolve(str(tmp_path / "long"))
    assert choose(card, config.load(flags={**FLAGS, "drafter": "none", "context": 8192})).context == 8192
    one, other = (load_file(path / "model.safetensors") for path in (wide, tmp_path / "long"))
    assert all(torch.equal(one[name], other[name]) for name in one | other)


def test_a_directory_that_is_there_is_left_alone(wide, tmp_path):
    before = (wide / "config.json").read_bytes()
    with pytest.raises(UsageMistake, match=matching("nothing_is_overwritten")):
        widen(wide, 2)
    assert (wide / "config.json").read_bytes() == before
    for factor, context in ((0, None), (2, 0)):
        with pytest.raises(UsageMistake, match="too small"):
            widen(tmp_path / "out", factor, context)


def test_what_cannot_be_widened_leaves_nothing_behind(tmp_path):
    demo = tmp_path / "demo"
    (demo / "drafters").mkdir(parents=True)
    for name in ("config.json", "README.md", "NOTICES.txt"):
        (demo / name).write_bytes((DEMO / name).read_bytes())
    save_file({"model.strange.weight": torch.zeros(256, 256)}, demo / "model.safetensors")
    with pytest.raises(LocalspecError, match="Nobody has said how 'model.strange.weight' is widened"):
        widen(tmp_path / "out", 2, source=demo)
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
