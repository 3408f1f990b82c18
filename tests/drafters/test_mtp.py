"""MTP: the layer in the files of Qwen3.5. Every draft is that of a plain loop over stock modules, the text the target's."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change_config
from drafting import watched
from each import each
from gguf_files import write_model
from golden import matching
from machines import Told, cpu, flat, machine
from safetensors.torch import load_file, save_file
from session_replies import assert_two_turns, reply
from six_words import PROMPT, six_words_qwen35
from tiny_models import RECURRENT, Tiny, prompt_ids, stock_reply
from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeDecoderLayer

from localspec.choosing.choose import choose
from localspec.choosing.drafters import PUBLISHED
from localspec.choosing.measure import ModelMeasurements
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.mtp import Drafter, MtpOptions
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.events import Reporter
from localspec.models.drafter_cards import find_drafter, trained_drafters
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.weights.fingerprint import fingerprints
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_source, registration
from localspec.weights.opening import register
from localspec.weights.packed_file import Origin

Make = Callable[[str], Tiny]
NAME = "qwen3_5-grouped-shared-keys-interval"
every_config = pytest.mark.parametrize("name", RECURRENT)


def stock_layer(config: Any, seed: int = 7, spread: float = 0.25) -> nn.ModuleDict:
    """Return the layer of the published code, made of stock modules with the published names and random weights."""
    width, eps = config.hidden_size, config.rms_norm_eps
    attends = config.layer_types.index("full_attention")
    config._attn_implementation = "eager"
    of_config = Qwen3_5MoeDecoderLayer if config.model_type == "qwen3_5_moe_text" else Qwen3_5DecoderLayer
    layer = nn.ModuleDict({
        "fc": nn.Linear(2 * width, width, bias=False),
        "layers": nn.ModuleList([of_config(config, attends)]),
        **{name: Qwen3_5RMSNorm(width, eps) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")},
    })  # fmt: skip
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, spread, generator=chance)
    return layer.eval()


def published(model: Path, path: Path, layer: nn.ModuleDict, **config: Any) -> Path:
    """Return a model with such a layer among its weights, and changed keys in its config.json."""
    shutil.copytree(model, path)
    weights = load_file(path / "model.safetensors")
    weights |= {f"mtp.{name}": one.detach().contiguous() for name, one in layer.state_dict().items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return change_config(path, **{"mtp_num_hidden_layers": 1, **config})


@pytest.fixture
def make(tiny: Make, tmp_path: Path) -> Callable[[str], tuple[Tiny, nn.ModuleDict]]:
    """make(name): a model with its layer, as we read it and as the stock modules compute it."""

    def made(name: str) -> tuple[Tiny, nn.ModuleDict]:
        model = tiny(name)
        layer = stock_layer(model.stock.config)
        return Tiny(published(model.path, tmp_path / name, layer), model.stock, model.target), layer

    return made


@torch.inference_mode()
def plain_loop(model: Tiny, layer: nn.ModuleDict, text: Sequence[int], path: Sequence[int]) -> torch.Tensor:
    """Return the logits [vocabulary] after a text and a drafted path, without a cache."""
    stock = model.stock
    states = stock.model(torch.tensor([list(text[:-1])])).last_hidden_state
    tokens = list(text[1:])
    for following in [*path, None]:
        embeddings = stock.get_input_embeddings()(torch.tensor([tokens]))
        x = layer["fc"](
            torch.cat([layer["pre_fc_norm_embedding"](embeddings), layer["pre_fc_norm_hidden"](states)], -1)
        )
        count = len(tokens)
        causal = torch.full((count, count), float("-inf")).triu(1)[None, None]
        rotation = stock.model.rotary_emb(x, torch.arange(count)[None])
        said = layer["norm"](layer["layers"][0](x, position_embeddings=rotation, attention_mask=causal))
        states = torch.cat([states, said[:, -1:]], 1)
        tokens.append(following)  # type: ignore[arg-type]
    return stock.lm_head(said[0, -1])  # type: ignore[no-any-return]


def check(model: Tiny, layer: nn.ModuleDict, text: Sequence[int], chain: DraftTree) -> None:
    """Check that each token is the likeliest of the plain loop, with its chance: nothing was learned yet."""
    assert [*chain.parents] == [*range(-1, chain.size - 1)] and {*chain.source[1:]} == {"mtp"}
    for node in range(1, chain.size):
        chances = plain_loop(model, layer, text, chain.tokens[1:node]).softmax(-1)
        assert chances[chain.tokens[node]] >= chances.max() * 0.999
        assert chain.chance[node] == pytest.approx(float(chances[chain.tokens[node]]), rel=2e-3, abs=1e-6)


@pytest.mark.slow
@every_config
def test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own(make: Any, name: str) -> None:
    model, layer = make(name)
    drafter = Drafter.from_model(model.path, model.target, depth=4)
    session, seen = Session(model.target, drafter, Budget(6, branches=model.target.branches)), watched(drafter)
    calibrate, drafter._trees.calibrate = drafter._trees.calibrate, lambda step: None
    again, statistics = assert_two_turns(model, session)
    assert statistics.drafted > 20
    for committed, chain in (seen[0], seen[3], seen[-1]):
        assert chain.size == 5
        check(model, layer, committed, chain)
    drafter._trees.calibrate = calibrate
    assert reply(session, again, 12)[0] == stock_reply(model.stock, again, 12)


@pytest.mark.slow
def test_a_long_prompt_is_read_in_parts_and_a_chain_has_no_more_than_is_asked(make, monkeypatch):
    monkeypatch.setattr("localspec.drafters.mtp.CHUNK", 7)
    model, layer = make(NAME)
    prompt = prompt_ids(40, seed=3)
    drafter = Drafter.from_model(model.path, model.target, depth=5)
    seen = watched(drafter)
    for nodes in (1, 2):
        ids, _ = reply(Session(model.target, drafter, Budget(nodes, branches=False)), prompt, 4)
        assert ids == stock_reply(model.stock, prompt, 4)
        assert seen[-1][1].size <= nodes + 1
        drafter.rewind(0)
    check(model, layer, *seen[0])


@pytest.mark.slow
def test_drawn_chains_say_what_each_node_was_drawn_from(make: Any) -> None:
    model, layer = make(NAME)
    drafter = Drafter.from_model(model.path, model.target, depth=3)
    seen = watched(drafter)
    session = Session(model.target, drafter, Budget(8, branches=False))
    reply(session, prompt_ids(12, seed=3), 3, Sampling(1.0, seed=1, rule="rejection"))
    committed, chain = seen[0]
    assert tuple(chain.parents) == (-1, 0, 1, 2)
    for node in range(1, chain.size):
        expected = plain_loop(model, layer, committed, chain.tokens[1:node])
        torch.testing.assert_close(chain.draft_logits.rows[node], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["exact", "rejection"])
def test_for_a_model_that_reads_trees_it_drafts_a_chain_all_the_same(tmp_path: Path, rule: Any) -> None:
    """Its own rows cannot branch."""
    letters = six_words_qwen35(tmp_path, kinds=["full_attention"] * 2)
    path = published(letters.path, tmp_path / "whole", stock_layer(letters.stock.config))
    drafter = Drafter.from_model(path, letters.target, depth=3)
    seen = watched(drafter)
    reply(Session(letters.target, drafter, Budget(8)), PROMPT, 8, Sampling(1.0, seed=1, rule=rule))
    assert letters.target.branches and {tuple(tree.parents) for _, tree in seen} == {(-1, 0, 1, 2)}


def card_of(path: Path) -> TargetCard:
    return TargetCard(path.name, path, None, "")


@pytest.mark.slow
@pytest.mark.parametrize("named", ["mtp", "mtp+phrases"])
def test_the_engine_finds_it_in_the_models_own_files(make: Any, named: str) -> None:
    model, layer = make(NAME)
    [found] = trained_drafters(card_of(model.path))
    numbers = sum(one.numel() for one in layer.parameters())
    assert (found.kind, found.path, found.parameters, found.bytes) == ("mtp", model.path, numbers, 4 * numbers)
    assert found.others == sum(one.numel() for one in layer.parameters() if one.ndim == 1)
    settings = Settings(drafter=named, device="cpu", draft_max=4, dtype="fp32", quantize="none")
    engine = Engine.open(settings, card_of(model.path))
    prompt = prompt_ids(20, seed=23)
    ids, statistics = reply(engine.session, prompt, 20)
    assert ids == stock_reply(model.stock, prompt, 20) and statistics.drafted > 19
    in_int8 = Engine.open(Settings(drafter=named, device="cpu", draft_max=4), card_of(model.path))
    assert (in_int8.choice.engine, in_int8.choice.quantize) == ("native", "int8")
    plain = Engine.open(Settings(drafter="none", device="cpu"), card_of(model.path))
    ids, statistics = reply(in_int8.session, prompt, 20)
    assert ids == reply(plain.session, prompt, 20)[0] and statistics.drafted > 19
    specs = Drafter.tensor_specs(engine.target, MtpOptions())
    assert sum(torch.Size(one.shape).numel() for one in specs.values()) == numbers


@pytest.mark.slow
def test_auto_drafts_with_it_where_measured_forwards_let_it_pay_and_says_why_not_elsewhere(
    make: Any, monkeypatch: Any
) -> None:
    model, _ = make(NAME)
    monkeypatch.setitem(PUBLISHED, "mtp", (3.4, 3, "for a layer that is a quarter of its model, as here"))
    for row, expected in ((0.01, "mtp"), (0.9, "phrases")):  # what a further row adds to a forward
        measured = ModelMeasurements(flat(0.2, row), {})
        known = Told({("cpu", packing): measured for packing in ("none", "int8", "int4")})
        choice = choose(card_of(model.path), Settings(device="cpu"), machine(cpu(24)), known)
        assert choice.drafter.partition("+")[0] == expected, choice.reason
        assert "mtp" in choice.reason and ("is not used" in choice.reason) == (expected != "mtp")


@pytest.mark.slow
def test_of_a_gguf_file_it_drafts_what_it_drafts_of_the_directory(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    model, layer = make(NAME)
    file = GgufModel.open(write_model(tmp_path / "a.gguf", model.path, "F32"))
    found, source = fingerprints([file.path]), gguf_source(file)
    origin = Origin("tiny", "0" * 40, files={str(file.path): found["a.gguf"]})
    path = register(registration(source, origin), file.texts, Reporter(), Paths(tmp_path / "home"))
    [card] = trained_drafters(card_of(path))
    numbers = sum(one.numel() for one in layer.parameters())
    assert (card.kind, card.path, card.parameters, card.bytes) == ("mtp", path, numbers, 4 * numbers)
    prompt, replies = prompt_ids(20, seed=23), []
    for place in (path, model.path):
        settings = Settings(drafter="mtp", device="cpu", draft_max=4, dtype="fp32", quantize="none")
        engine = Engine.open(settings, card_of(place))
        replies.append(reply(engine.session, prompt, 20))
    assert replies[0][0] == replies[1][0] == stock_reply(model.stock, prompt, 20)
    assert replies[0][1].drafted == replies[1][1].drafted > 19


def test_a_model_without_it_names_the_missing_part(tiny: Make) -> None:
    card = card_of(tiny(NAME).path)
    assert trained_drafters(card) == []
    with pytest.raises(NotHere, match=matching("hold_layer_predicts_further_ahead")):
        find_drafter("mtp", card)
    with pytest.raises(UsageMistake, match=matching("drafts_only_models_files")):
        choose(card_of(tiny("llama-grouped-dynamic").path), Settings(drafter="mtp", device="cpu"))


@each(
    "config, said",
    [
        ({"mtp_num_hidden_layers": 2}, matching("mtp_layer_mtp_num_hidden_layers_2")),
        ({"mtp_use_dedicated_embeddings": True}, matching("mtp_layer_embedding_own")),
    ],
)
def test_a_layer_of_another_form_is_refused_and_passed_over(tiny, tmp_path, config, said):
    model = tiny(NAME)
    path = published(model.path, tmp_path / "model", stock_layer(model.stock.config), **config)
    assert trained_drafters(card_of(path)) == []
    for refusing in (lambda: find_drafter("mtp", card_of(path)), lambda: Drafter.from_model(path, model.target)):
        with pytest.raises(LocalspecError, match=said):
            refusing()
    choice = choose(card_of(path), Settings(drafter="auto", device="cpu"))
    assert choice.drafter in ("none", "phrases")


@pytest.mark.slow
def test_a_layer_that_is_damaged_or_another_models_is_refused(tiny: Make, tmp_path: Path) -> None:
    model = tiny(NAME)
    layer = stock_layer(model.stock.config)
    for name, change, said in (
        ("missing", {"mtp.norm.weight": None}, r"lack 'mtp\.norm\.weight'; fetch"),
        ("wide", {"mtp.fc.weight": torch.zeros(48, 90)}, r"'mtp\.fc\.weight' .* has the shape \[48, 90\] but config"),
        ("nan", {"mtp.fc.weight": torch.full((48, 96), float("nan"))}, r"'mtp\.fc\.weight' has NaN or inf"),
    ):
        path = published(model.path, tmp_path / name, layer)
        weights = {**load_file(path / "model.safetensors"), **change}
        save_file({key: one for key, one in weights.items() if one is not None}, path / "model.safetensors")
        with pytest.raises(LocalspecError, match=said):
            Drafter.from_model(path, model.target)
    other = tiny("qwen3_5-many-heads-biases-tied-half-rotated")
    path = published(other.path, tmp_path / "other", stock_layer(other.stock.config))
    with pytest.raises(LocalspecError, match=r"'mtp\.\S+' in .* has the shape|lack 'mtp"):
        Drafter.from_model(path, model.target)


@each("depth", [0, 17])
def test_a_depth_that_cannot_be_is_refused(depth: int) -> None:
    with pytest.raises(UsageMistake, match=matching("depth_mtp_possible_give_1_16", depth=depth)):
        MtpOptions(depth)
