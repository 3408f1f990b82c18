"""Mixtures of experts: valid entries of a config.json, which drafters work, and how the weights are stored."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf_families
import numpy as np
import pytest
import torch
from command import called
from each import each
from models.test_drafter_cards import written
from tiny_models import FROM_GGUF, MIXTURES, RECURRENT_MIXTURES, Tiny, byte_tokenizer, copied, prompt_ids, write

from localspec.choosing.choose import choose
from localspec.choosing.named import check_layers, named_drafter
from localspec.config import Settings
from localspec.decoding.tree import DraftTree
from localspec.engine.importing import import_gguf
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig
from localspec.families.family import KEYS_IN_GGUF, MOST_EXPERTS, MixtureSizes, from_gguf
from localspec.families.model_config import ModelConfig
from localspec.families.table import text_config
from localspec.models.default_draft import step_bytes
from localspec.models.drafter_cards import accepted_kinds, trained_drafters
from localspec.models.drafter_kinds import TABLE, kinds
from localspec.models.registry import TargetCard, resolve
from localspec.models.shape import Shape
from localspec.native.model import expert_sizes
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.paths import Paths
from localspec.weights.checkpoint import inspect
from localspec.weights.gguf_model import GgufModel
from localspec.weights.stored import read_config

Make = Callable[[str], Tiny]
QWEN3 = {
    "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "norm_topk_prob": True,
}  # fmt: skip
DRAFT = {
    "none",
    "phrases",
    "lookahead",
    "eagle3",
    "medusa",
    "dflash",
    "dspark",
    "assistant",
    "mtp",
    "draft_model",
    "ouroboros",
}


@each("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_the_name_of_published_files_or_of_saved_ones(key: str) -> None:
    said = {**QWEN3, key: 6}
    if key == "num_local_experts":
        del said["num_experts"]
    assert ModelConfig.of(said).experts == MixtureSizes(6, 2, 32, normalised=True)


@each("normalised", [False, True])
def test_whether_weights_of_chosen_experts_sum_to_one_reaches_the_library(normalised: bool) -> None:
    config = ModelConfig.of({**QWEN3, "norm_topk_prob": normalised})
    assert config.experts is not None and config.experts.normalised is normalised
    assert expert_sizes(TransformerConfig.of(config)).normalised == normalised


@pytest.mark.slow
@each("name", ["qwen3_moe", "gpt_oss", "gemma4-26b", "qwen3_5_moe"])
def test_in_gguf_weights_of_chosen_experts_sum_to_one(name: str, tmp_path: Path) -> None:
    found = GgufModel.open(gguf_families.write(tmp_path / "tiny.gguf", name, kind="Q8_0")).config.experts
    assert found is not None and found.normalised
    assert (found.count, found.used, found.size) == (8, 2, 256)


@each("key, value", [("num_experts", MOST_EXPERTS), ("moe_intermediate_size", 2**30)])
def test_a_config_with_more_experts_than_the_files_have_weights_is_refused_at_once(
    tiny: Make, tmp_path: Path, key: str, value: int
) -> None:
    path = copied(tiny(next(iter(MIXTURES))), tmp_path / "many", lambda tensors: tensors)
    said = json.loads((path / "config.json").read_text())
    said |= {"num_experts": 8, key: value}
    said.pop("num_local_experts", None)
    (path / "config.json").write_text(json.dumps(said))
    with pytest.raises(LocalspecError, match=rf"claims \d+ layers of {said['num_experts']} experts and a vocabulary"):
        read_config(inspect(path))


def test_a_router_may_choose_all_experts() -> None:
    assert ModelConfig.of({**QWEN3, "num_experts_per_tok": 8}).experts == MixtureSizes(8, 8, 32)


@each("missing", KEYS_IN_GGUF)
def test_a_gguf_file_that_does_not_say_a_size_of_its_experts_is_refused(missing: str) -> None:
    known = dict(zip(KEYS_IN_GGUF, (8, 2, 64), strict=True))
    assert from_gguf(SimpleNamespace(number=known.get), "num_experts", "top_k", "width") == {  # type: ignore[arg-type]
        "num_experts": 8, "top_k": 2, "width": 64,
    }  # fmt: skip
    del known[missing]
    with pytest.raises(ValueError, match=f"the file has no value for {missing}$"):
        from_gguf(SimpleNamespace(number=known.get), "num_experts", "top_k", "width")  # type: ignore[arg-type]


@each("shape", [(2048, 256), (256, 8, 256), (8, 128, 512)])
def test_experts_of_another_shape_with_as_many_weights_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    whole = GgufModel.open(gguf_families.write(tmp_path / "tiny.gguf", "qwen3_moe"))
    name, sizes = "blk.0.ffn_down_exps.weight", TransformerConfig.of(whole.config)
    file, place = whole.places[name]
    assert whole.tensors(sizes) and place.shape == (8, 256, 256)
    vars(whole)["places"] = {**whole.places, name: (file, replace(place, shape=shape))}
    with pytest.raises(LocalspecError, match=re.escape(f"the shape {[*shape]} where [8, 256, 256] is expected")):
        whole.tensors(sizes)


def test_more_used_experts_than_there_are_have_the_names_of_the_file_s_keys() -> None:
    known = dict(zip(KEYS_IN_GGUF, (1, 2, 64), strict=True))
    with pytest.raises(ValueError, match="expert_used_count = 2 is more than expert_count = 1$"):
        from_gguf(SimpleNamespace(number=known.get), "num_experts", "top_k", "width")  # type: ignore[arg-type]


@each(
    "wrong, why",
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9 is more than num_experts = 8"),
        ({"num_experts": 0}, "num_experts = 0 is not possible"),
        ({"num_experts": 4097}, "4097 experts in a layer, more than 4096, which localspec does not compute"),
        ({"moe_intermediate_size": 40}, "experts of 40 channels in a model of 64 channels"),
        ({"hidden_size": 48}, "experts of 32 channels in a model of 48 channels"),
        ({"decoder_sparse_step": 2}, "layers without experts"),
        ({"mlp_only_layers": [0]}, "layers without experts"),
    ],
)
def test_what_is_not_possible_or_not_computed_is_a_clause(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ModelConfig.of({**QWEN3, **wrong})


def test_a_step_of_more_rows_reads_more_experts_and_never_more_than_all() -> None:
    shape = Shape.of(ModelConfig.of(QWEN3).content)
    assert shape is not None and shape.experts is not None
    one = 3 * 64 * 32 * 2  # an expert of each layer
    assert shape.matrices - shape.read(1) == 6 * one
    assert shape.read(1) < shape.read(2) < shape.read(8) < shape.read(10**4) == shape.matrices
    assert shape.read(2) == shape.matrices - round(8 * one * (6 / 8) ** 2)


@pytest.mark.slow
@each("name", MIXTURES)
def test_a_draft_model_is_compared_with_the_experts_that_a_step_reads(name: str, tiny: Make) -> None:
    path = tiny(name).path
    found = inspect(path)
    shape = Shape.of(found.config)
    assert shape is not None and shape.experts is not None
    unread = round(shape.in_experts * (1 - shape.experts.used / shape.experts.count))
    embedding = 0 if text_config(found.config).get("tie_word_embeddings") else found.embedding
    assert unread > 0 and step_bytes(path) == found.parameters - embedding - unread


@each("name", [*MIXTURES, *RECURRENT_MIXTURES, *FROM_GGUF])
def test_drafters_with_layers_like_the_target_are_refused_and_others_named(name: str) -> None:
    config = {**MIXTURES, **RECURRENT_MIXTURES, **FROM_GGUF}[name]()
    card, shape = TargetCard("mixture", Path("not here"), None, ""), Shape.of(config.to_dict())
    assert shape is not None
    alone = {"lookahead", "assistant"} if shape.recurrent else set()  # these propose trees
    assert {kind.name for kind in TABLE if kind.drafts_for(shape)} == DRAFT - alone
    for kind in ("layers", "s3d", "parallelspec", "semi"):
        with pytest.raises(UsageMistake, match=rf"'{kind}' cannot draft for mixture.*eagle3.*ouroboros\.$"):
            check_layers(kind, card, shape)
    check_layers("phrases", card, shape)


def test_a_drafter_that_is_named_is_refused_before_it_is_looked_for(tiny: Make) -> None:
    card = TargetCard("mixture", tiny(next(iter(MIXTURES))).path, None, "")
    for name in ("s3d", "medusa+s3d"):
        with pytest.raises(
            UsageMistake, match="'s3d' cannot draft for mixture, because the model's layers have experts"
        ):
            named_drafter(name, card)


IN_FILES = {"qwen3_moe": (), "gpt_oss": (), "gemma4-26b": ("assistant",), "qwen3_5_moe": ("mtp",)}


@pytest.mark.slow
@each("name", IN_FILES)
def test_every_sentence_about_a_mixture_names_only_drafters_that_it_accepts(
    name: str, tmp_path: Path, fresh_home: Path
) -> None:
    file = gguf_families.write(tmp_path / "tiny.gguf", name, kind="Q8_0")
    card = resolve(import_gguf(file, Settings(), Reporter()).name)
    recurrent = name == "qwen3_5_moe"
    accepted = DRAFT - {"assistant", "mtp", *["lookahead"] * recurrent} | {*IN_FILES[name]}
    assert {*accepted_kinds(card)} == accepted
    asked = (
        ["run", "Hi", "--drafter", "nope"],
        ["run", "Hi", "--drafter", "semi"],
        ["run", "Hi", "--drafter", "medusa+s3d"],
        ["run", "Hi", "--drafter", "medusa+auto"],
        ["run", "Hi", "--drafter", str(tmp_path)],
        ["run", "Hi", "--drafter", "phrases", "--accept", "rejection"],
        *([["run", "Hi", "--drafter", "lookahead"]] if recurrent else []),
        ["bench", "--drafter", "parallelspec"],
        ["train", "nope"],
        ["train", "semi"],
    )
    for words in asked:
        said = called(fresh_home, *words, "-m", card.name)
        hint = said.stderr.rpartition("; ")[2]
        named = {*re.findall(r"\w+", hint)} & {*kinds()}
        assert said.returncode in (2, 3) and "medusa" in named <= accepted, (words, said.stderr)
    shown = json.loads(called(fresh_home, "show", card.name, "--json").stdout)["drafters"]
    assert {*shown} <= accepted and "phrases" in shown


def test_show_lists_no_drafter_of_a_mixture_that_it_refuses(tiny: Make, fresh_home: Path) -> None:
    card = TargetCard("mixture", tiny(next(iter(MIXTURES))).path, None, "")
    for kind in ("semi", "medusa"):
        written(Paths(fresh_home).drafters / kind / "drafter", card, kind=kind)
    assert [one.kind for one in trained_drafters(card)] == ["medusa", "semi"]
    shown = json.loads(called(fresh_home, "show", str(card.path), "--json").stdout)["drafters"]
    assert "medusa" in shown and "semi" not in shown


@each("name", FROM_GGUF)
def test_gpt_oss_in_safetensors_is_refused_and_its_gguf_files_are_named(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model", FROM_GGUF[name](), byte_tokenizer(), seed=0)
    with pytest.raises(
        LocalspecError, match=r"a form of gpt_oss that localspec does not read.*ggml-org/gpt-oss-20b-GGUF"
    ):
        read_config(inspect(path))


@pytest.mark.slow
def test_gpt_oss_from_gguf_takes_the_context_that_is_named(tmp_path: Path, fresh_home: Path) -> None:
    file = gguf_families.write(tmp_path / "oss.gguf", "gpt_oss", kind="Q8_0")
    assert GgufModel.open(file).config.rope_parameters["truncate"] is False, "as published; the file does not say it"
    card = resolve(import_gguf(file, Settings(), Reporter()).name)
    assert choose(card, Settings(context=100, drafter="none")).context == 100
    with pytest.raises(UsageMistake, match="more than the 512 tokens that this model was made for"):
        choose(card, Settings(context=1000, drafter="none"))


def logits(path: Path, packing: str) -> np.ndarray:
    target = NativeTarget.open(path, packing=packing, threads=Threads(1))
    return target.forward(DraftTree.chain(prompt_ids(40)), target.cache(0)).logits.numpy()


@each("packing", ["fp32", "int8", "int4"])
def test_experts_that_are_stored_in_one_tensor_are_those_that_are_stored_one_by_one(
    tiny: Make, tmp_path: Path, packing: str
) -> None:
    model = tiny(next(iter(MIXTURES)))

    def together(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {name: one for name, one in tensors.items() if ".experts." not in name}
        for layer in range(model.stock.config.num_hidden_layers):
            of = f"model.layers.{layer}.mlp.experts."
            gates, ups, downs = (
                torch.stack([tensors[f"{of}{expert}.{part}_proj.weight"] for expert in range(8)])
                for part in ("gate", "up", "down")
            )
            found |= {f"{of}gate_up_proj": torch.cat([gates, ups], 1), f"{of}down_proj": downs}
        return found

    assert np.array_equal(logits(copied(model, tmp_path / "fused", together), packing), logits(model.path, packing))


def test_sizes_of_the_library_are_those_of_the_config() -> None:
    assert TransformerConfig.of(ModelConfig.of(QWEN3)).experts == MixtureSizes(8, 2, 32)
