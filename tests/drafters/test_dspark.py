"""DSpark: every tree is that of a plain loop over stock modules, by the published arithmetic, the text the target's."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drafters.test_dflash import Block, config_of, published, tensors_of
from drafting import session_of, torch_form, watched
from each import each
from safetensors.torch import load_file
from session_replies import assert_two_turns, reply
from slow_cases import covering
from tiny_models import FAMILIES, RECURRENT, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.dspark import Drafter, DSparkOptions
from localspec.drafters.trained import load_drafter
from localspec.errors import UsageMistake
from localspec.models.drafter_cards import read_drafter
from localspec.training.published_files import convert

Make = Callable[[str], Tiny]
LLAMA, RANK, DEPTH = FAMILIES[0], 6, 4
# What a config.json says in addition to sizes: both heads, a confidence by the state, no confidence, and neither head.
FORMS: list[dict[str, Any]] = [
    {"enable_confidence_head": True, "confidence_head_with_markov": True},
    {"enable_confidence_head": True, "confidence_head_with_markov": False, "target_layer_ids": [-1, 1]},
    {"enable_confidence_head": False},
    {"enable_confidence_head": False, "markov_rank": 0},
]


def spark_config(target: Any, nested: bool = False, **form: Any) -> dict[str, Any]:
    """Return a config.json as DeepSpec writes it, or with its words in dflash_config as SpecForge does."""
    config = config_of(target, block_size=DEPTH)
    inner = config.pop("dflash_config")
    words = {**inner, "markov_rank": RANK, "markov_head_type": "vanilla", **form}
    if nested:
        return {**config, "dflash_config": {**words, "projector_type": "dspark", "confidence_head_alpha": 1.0}}
    return {**config, "architectures": ["Qwen3DSparkModel"], "num_anchors": 512, **words}


def spark_tensors(config: dict[str, Any], seed: int = 5, spread: float = 0.3) -> dict[str, torch.Tensor]:
    """Return random weights with the published names, and copies of the target's embedding and head."""
    words = config.get("dflash_config", config)
    found = tensors_of({**config, "dflash_config": words}, seed, spread)
    vocabulary, width, rank = config["vocab_size"], config["hidden_size"], words["markov_rank"]
    shapes = {"embed_tokens.weight": (vocabulary, width), "lm_head.weight": (vocabulary, width)}
    if rank:
        shapes |= {f"markov_head.markov_{name}.weight": (vocabulary, rank) for name in ("w1", "w2")}
    if words["enable_confidence_head"]:
        inputs = width + (rank if words["confidence_head_with_markov"] else 0)
        shapes |= {"confidence_head.proj.weight": (1, inputs), "confidence_head.proj.bias": (1,)}
    chance = torch.Generator().manual_seed(seed + 1)
    return found | {name: torch.randn(shape, generator=chance) for name, shape in shapes.items()}


def made(
    model: Tiny, path: Path, nested: bool = False, tensors: dict[str, torch.Tensor] | None = None, **form: Any
) -> tuple[Drafter, Path]:
    """Return a drafter for a target, converted from a published directory, and that directory."""
    config = spark_config(model.stock.config, nested, **{**FORMS[0], **form})
    head = published(path / "head", config, spark_tensors(config) | (tensors or {}))
    convert(
        "dspark", head, model.path, path / "made", {"name": "tiny", "published": {"repo": "org/head", "commit": "c"}}
    )
    drafter = load_drafter(read_drafter(path / "made"), model.target)
    assert isinstance(drafter, Drafter)
    return drafter, head


class Spark:
    """The plain loop: a block of stock modules, and the two heads."""

    def __init__(self, head: Path) -> None:
        said, weights = json.loads((head / "config.json").read_text()), load_file(head / "model.safetensors")
        self.words = said.get("dflash_config", said)
        names = ("mask_token_id", "target_layer_ids", "num_anchors", "dflash_config")
        own = {name: one for name, one in said.items() if name not in names and "markov" not in name}
        self.block = Block({**own, "is_causal": False, "block_size": DEPTH, "dflash_config": self.words})
        heads = {
            name: weights.pop(name) for name in [*weights] if name.startswith(("markov_head.", "confidence_head."))
        }
        self.heads = {name.partition(".")[2]: one for name, one in heads.items()}
        missing, extra = self.block.load_state_dict(weights, strict=False)
        assert {*extra} == {"embed_tokens.weight", "lm_head.weight"} and all("rotary" in name for name in missing)

    @torch.inference_mode()
    def level(self, stock: Any, text: Sequence[int], path: Sequence[int]) -> tuple[torch.Tensor, float]:
        """Return the logits [vocabulary] after a text and a drafted path, and the confidence in them."""
        state, before = self.block.states(stock, text)[len(path)], [*text[-1:], *path][-1]
        logits, read = stock.lm_head(state), state
        if self.words["markov_rank"]:
            embedded = self.heads["markov_w1.weight"][before]
            logits = logits + self.heads["markov_w2.weight"] @ embedded
            read = torch.cat([state, embedded]) if self.words.get("confidence_head_with_markov") else state
        if not self.words["enable_confidence_head"]:
            return logits, 1.0
        sure = F.linear(read, self.heads["proj.weight"], self.heads["proj.bias"])
        return logits, float(sure.sigmoid())


@torch.inference_mode()
def check(loop: Spark, model: Tiny, text: Sequence[int], tree: DraftTree) -> None:
    """Each node's chance is the plain loop's, and no likelier token was left out before it."""
    assert tree.size > 2 and {*tree.source[1:]} == {"dspark"}
    cap = getattr(model.stock.config, "final_logit_softcapping", None)
    for node in range(1, tree.size):
        path = [*tree.chain_to(node).tokens[1:-1]]
        logits, share = loop.level(model.stock, text, path)
        if cap:  # the head that drafts bends them, too
            base = loop.block.states(model.stock, text)[len(path)]
            plain = model.stock.lm_head(base).detach()
            logits = logits - plain + torch.tanh(plain / cap) * cap
        chances = logits.softmax(-1)
        assert tree.chance[node] == pytest.approx(float(chances[tree.tokens[node]]) * share, rel=4e-3, abs=1e-6)
        if tree.siblings[tree.parents[node]][0] == node:
            assert chances[tree.tokens[node]] >= chances.max() * 0.999


def unlearning(drafter: Drafter) -> None:
    """Disable calibration, so that the chances are the drafter's own."""
    drafter._trees.calibrate = lambda step: None  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, [*FAMILIES, *RECURRENT], fast=4), ids=str)
def test_every_tree_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model = tiny(name)
    drafter, head = made(model, tmp_path, **form)
    assert drafter.depth == DEPTH
    unlearning(drafter)
    session = Session(model.target, drafter, Budget(7, branches=model.target.branches))
    seen, loop = watched(drafter), Spark(head)
    _, statistics = assert_two_turns(model, session)
    assert statistics.drafted > 0
    for committed, tree in (seen[0], seen[3], seen[-1]):
        check(loop, model, committed, tree)


def test_both_layouts_draft_the_same(tiny: Make, tmp_path: Path) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(12, seed=3)
    trees = []
    for nested in (False, True):
        drafter, _ = made(model, tmp_path / str(nested), nested)
        seen = watched(drafter)
        assert reply(session_of(model.target, drafter, Budget(6)), prompt, 8)[0] == stock_reply(model.stock, prompt, 8)
        trees.append([(tree.tokens, tree.parents, tree.chance) for _, tree in seen])
    assert trees[0] == trees[1] and len(trees[0]) > 2


def test_what_is_not_believed_is_not_proposed_deep(tiny: Make, tmp_path: Path) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(12, seed=3)
    chances = []
    for bias in (30.0, -30.0):
        sure = {
            "confidence_head.proj.weight": torch.zeros(1, 48 + RANK),
            "confidence_head.proj.bias": torch.tensor([bias]),
        }
        drafter, _ = made(model, tmp_path / str(bias), tensors=sure)
        seen = watched(drafter)
        reply(session_of(model.target, drafter, Budget(6)), prompt, 4)
        chances.append(seen[0][1].chance[1])
    assert chances[0] > 1e-3 and chances[1] < 1e-6


def test_its_numbers_are_known_before_it_is_loaded(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    drafter, head = made(model, tmp_path)
    card = read_drafter(tmp_path / "made")
    weights = load_file(head / "model.safetensors")
    numbers = sum(one.numel() for name, one in weights.items() if name not in ("embed_tokens.weight", "lm_head.weight"))
    assert (card.kind, card.target, card.inner, card.parameters) == ("dspark", "tiny", 96, numbers)
    specs = Drafter.tensor_specs(torch_form(model.target), drafter.options)
    assert sum(torch.Size(one.shape).numel() for one in specs.values()) == numbers
    assert card.others > model.stock.config.vocab_size * RANK


@each(
    "options, said",
    [
        ({"block": 1}, "block = 1"),
        ({"rank": -1}, "rank = -1"),
        ({"confidence": "half"}, "confidence = 'half'"),
        ({"rank": 0, "confidence": "both"}, "confidence = 'both'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageMistake, match=f"{said} of dspark is not possible"):
        DSparkOptions(**{"config": "{}", "states": "1", **options})
