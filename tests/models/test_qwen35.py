"""Qwen3.5: its config.json, the engine over a directory of it, and what is refused with an error."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import called
from each import each
from golden import matching
from invented_torch import invented_target
from machines import cpu, gpu, machine
from models.language_models import assert_language_model_is_served
from safetensors.torch import load_file, save_file
from slow_cases import covering
from tiny_models import RECURRENT, VOCABULARY, Tiny, byte_tokenizer, prompt_ids, save_filled, stock_reply
from transformers import CONFIG_MAPPING, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from localspec.choosing.choose import choose
from localspec.choosing.fit import BUCKET, RECENT, STATES, cache
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.decoding.tree import DraftTree
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.events import Done, Text
from localspec.families.architecture import TransformerConfig
from localspec.families.family import DeltaNet
from localspec.families.model_config import ModelConfig
from localspec.families.rope import Rope
from localspec.models.drafter_kinds import kinds
from localspec.models.registry import TargetCard
from localspec.models.shape import Shape
from localspec.models.small_model import masked_model
from localspec.nn.target import Target
from localspec.training.estimate import hours, needs, shadow
from localspec.training.trainable import make_drafter, trainable_class
from localspec.weights.checkpoint import inspect

NAME = "qwen3_5-grouped-shared-keys-interval"
every_config = each("name", RECURRENT)
SMALL = {
    "model_type": "qwen3_5_text", "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip


def card_of(path: Path) -> TargetCard:
    return TargetCard(path.name, path, None, "")


def test_what_a_config_leaves_out_is_as_its_class_has_it() -> None:
    stock, ours = CONFIG_MAPPING["qwen3_5_text"](), ModelConfig.of({"model_type": "qwen3_5_text"})
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
        "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "eos_token_id",
        "hidden_act",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(stock, name), name
    assert list(ours.layer_types or ()) == stock.layer_types
    said = {name: stock.rope_parameters[name] for name in ("rope_theta", "rope_type", "partial_rotary_factor")}
    assert said.items() <= dict(ours.rope_parameters).items()
    sizes = DeltaNet(tuple(kind == "linear_attention" for kind in stock.layer_types), 16, 32, 128, 128, 4)
    assert ours.delta == sizes and sizes.numbers == 24 * 32 * 128 * 128


@pytest.mark.slow
@every_config
def test_sizes_and_parameters_are_those_of_its_files(tiny, name: str) -> None:
    model: Tiny = tiny(name)
    found = inspect(model.path)
    assert found.parameters == sum(one.numel() for one in model.stock.parameters())
    shape, config = Shape.of(found.config), model.stock.config
    assert shape is not None and shape.recurrent
    layers = sum(kind == "linear_attention" for kind in config.layer_types)
    one = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    assert shape.delta is not None and shape.delta.numbers == layers * one
    vectors = sum(part.numel() for part in model.stock.parameters() if part.ndim != 2)
    assert shape.parameters + vectors == found.parameters + (2 * shape.num_layers + 1) * shape.hidden_size
    keys = 2 * (config.num_hidden_layers - layers) * config.num_key_value_heads * config.head_dim
    assert shape.cached(10, 4) == 10 * 4 * keys
    rows = STATES * (shape.delta.taps - 1) * shape.delta.channels + RECENT * shape.delta.read
    held = STATES * 4 * layers * one + layers * 4 * rows
    assert cache(shape, 10, "fp32") == shape.cached(BUCKET, 4) + held


@each(
    "wrong",
    [
        {"linear_num_value_heads": 3},
        {"linear_num_key_heads": 0},
        {"linear_conv_kernel_dim": "x"},
        {"linear_key_head_dim": None},
        {"full_attention_interval": 0},
        {"linear_value_head_dim": 2**31},
        {"layer_types": ["linear_attention"] * 3},
    ],
)
def test_what_is_not_possible_is_a_value_error(wrong) -> None:
    assert ModelConfig.of(SMALL).delta is not None
    with pytest.raises(ValueError, match=r"\w"):
        ModelConfig.of({**SMALL, **wrong})
    Shape.of({**SMALL, **wrong})  # which says nothing about it


def test_a_config_as_it_is_published_is_read() -> None:
    """The part for the language model, with rotations for pictures, and keys of parts that are not computed here."""
    rope = {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default",
    }  # fmt: skip
    inner = {
        **SMALL, "head_dim": 256, "attn_output_gate": True, "full_attention_interval": 2, "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1, "rope_parameters": rope, "tie_word_embeddings": True, "eos_token_id": 7,
    }  # fmt: skip
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": inner}
    config = ModelConfig.of({**outer, "vision_config": {"depth": 1}, "image_token_id": 9})
    assert (config.tie_word_embeddings, config.eos_token_id) == (True, 7)
    assert config.delta is not None and config.delta.layers == (True, False, True, False)
    frequencies = Rope.of(config, 512).inv_freq
    assert len(frequencies) == 32 and frequencies[1] == pytest.approx(1e7 ** (-1 / 32))


def test_layers_that_all_attend_are_no_recurrent_model() -> None:
    config = ModelConfig.of({**SMALL, "layer_types": ["full_attention"] * 4})
    sizes, shape = TransformerConfig.of(config), Shape.of({**SMALL, "layer_types": ["full_attention"] * 4})
    assert sizes.delta is None and sizes.gated and shape is not None and not shape.recurrent
    with pytest.raises(LocalspecError, match="layers of type 'sliding_attention'|'odd'"):
        TransformerConfig.of(ModelConfig.of({**SMALL, "layer_types": ["odd"] * 4}))


def test_a_model_that_is_invented_computes() -> None:
    target = invented_target(ModelConfig.of(SMALL), "cpu", "fp32", "none")
    assert target.forward(DraftTree.chain([1, 2, 3]), target.cache(9)).logits.finite()


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied"])
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny one as published: a language model within one that reads pictures, and a layer that is not read."""
    path = tmp_path_factory.mktemp("qwen") / "pictures"
    eyes = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
        "num_position_embeddings": 16,
    }  # fmt: skip
    inner = {**RECURRENT[NAME]().to_dict(), "tie_word_embeddings": request.param}
    config = Qwen3_5Config(text_config=inner, vision_config=eyes, tie_word_embeddings=request.param)
    save_filled(Qwen3_5ForConditionalGeneration(config), path, byte_tokenizer())
    weights = load_file(path / "model.safetensors") | {"mtp.fc.weight": torch.zeros(48, 96)}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.slow
def test_of_a_model_that_reads_pictures_the_language_model_is_served(pictures: Path) -> None:
    target, found = assert_language_model_is_served(pictures, Qwen3_5ForConditionalGeneration)
    assert found.parameters == sum(one.numel() for one in target.transformer.parameters())


def engine_of(path: Path, drafter: str, packing: str, told: list[str]) -> Engine:
    """Return an engine on the CPU, in a packing or in fp32; without a drafter no method of one may be called."""
    dtype, quantize = ("fp32", "none") if packing == "fp32" else ("auto", packing)
    settings = Settings(device="cpu", context=256, drafter=drafter, dtype=dtype, quantize=quantize)
    settings = settings if drafter == "none" else replace(settings, draft_max=6)
    return Engine.open(settings, card_of(path), notice=told.append)


def conversation(engine: Engine, replies: int = 2) -> Iterator[tuple[list[int], list[int]]]:
    """Return each prompt and the ids of its reply; from the second on, only the new part of a prompt is read."""
    messages = [{"role": "user", "content": "the cat sat on the mat"}]
    for _ in range(replies):
        events = list(engine.chat(messages, engine.sampling(Settings(temperature=0.0)), Limits(20)))
        done = events[-1]
        assert isinstance(done, Done)
        yield engine.target.encode(messages), list(done.statistics.token_ids)
        text = "".join(event.text for event in events if isinstance(event, Text))
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "and the dog?"}]


@pytest.mark.slow
@each("name, drafter", covering(RECURRENT, ["phrases", "none", "draft_model"]))
def test_the_cpu_engine_answers_as_the_stock_model_does(tiny, name: str, drafter: str) -> None:
    model: Tiny = tiny(name)
    told: list[str] = []
    named = f"draft_model:{tiny(NAME).path}" if drafter == "draft_model" else drafter
    engine = engine_of(model.path, named, "fp32", told)
    assert (engine.choice.engine, engine.choice.dtype, engine.choice.quantize) == ("native", "fp32", "none")
    assert told == [] and engine.exactness.bitwise
    for prompt, ids in conversation(engine):
        assert ids == stock_reply(model.stock, prompt, 20)


@pytest.mark.slow
@each("name, packing", covering(RECURRENT, ["int8", "int4"]))
def test_in_few_bits_replies_are_the_same_with_every_drafter(tiny, name: str, packing: str) -> None:
    path, said = tiny(name).path, []
    for drafter in ("none", "phrases", f"draft_model:{path}", f"draft_model:{tiny(NAME).path}"):
        engine = engine_of(path, drafter, packing, [])
        assert (engine.choice.engine, engine.choice.precision) == ("native", packing)
        said.append(list(conversation(engine)))
    assert all(one == said[0] for one in said)


def test_unasked_it_is_computed_in_int8(tiny) -> None:
    choice = choose(card_of(tiny(NAME).path), Settings(device="cpu"), machine(cpu()))
    assert (choice.engine, choice.quantize) == ("native", "int8")


@pytest.mark.slow
def test_torch_computes_it_only_with_dense_weights(tiny) -> None:
    """On a GPU, and on a CPU without the library."""
    card, without = card_of(tiny(NAME).path), machine(cpu()).as_torch_has_it()
    for here, device in ((machine(gpu()), "cuda"), (without, "cpu")):
        for packing in ("int8", "int4", "nf4"):
            with pytest.raises(
                UsageMistake, match=f"{packing} does not work on {device}.*: .*needs dense weights .*; use .*none"
            ):
                choose(card, Settings(quantize=packing, device=device), here)
        choice = choose(card, Settings(device=device), here)
        assert (choice.engine, choice.quantize) == ("torch", "none")


@pytest.mark.slow
@each("name", [NAME])
def test_trees_and_layers_without_the_others_are_refused_with_what_to_do(tiny, name: str) -> None:
    path = tiny(name).path
    card = card_of(path)
    for drafter in ("lookahead", "layers"):
        with pytest.raises(
            UsageMistake, match=f"'{drafter}' cannot draft for {NAME}, .*recurrent.*use one of none, phr"
        ):
            choose(card, Settings(drafter=drafter, device="cpu"))
    for drafter in ("s3d", "s3d+phrases"):  # which is not here, and could not be trained
        with pytest.raises(UsageMistake, match=f"'s3d' cannot draft for {NAME}, .*use one of"):
            choose(card, Settings(drafter=drafter, device="cpu"))
    choice = choose(card, Settings(drafter="none", device="cpu"))
    with pytest.raises(UsageMistake, match=f"'s3d' cannot be trained for {NAME}, .*recurrent.* eagle3, medusa, par"):
        shadow("s3d", card, {}, choice)
    for kind in (kind for kind in kinds("weights") if kind != "s3d"):
        with pytest.raises(NotHere, match=f"no drafter '{kind}' for .*train one with `localspec train {kind} -m"):
            choose(card, Settings(drafter=kind, device="cpu"))
        drafter = shadow(kind, card, {}, choice)
        assert needs(drafter, choice, 64).token > 0 and hours(drafter, 1e-9, 1000) > 0
    proposed = trainable_class("medusa").propose(Target.load(path))
    assert proposed is None or make_drafter("medusa", Target.load(path), proposed[0])
    config = (path / "config.json").read_text()
    with pytest.raises(UsageMistake, match=matching("recurrent_layers_do_draft_mask")):
        masked_model(json.dumps({**json.loads(config), "pard_token": 3}), 256)


@pytest.mark.slow
@pytest.mark.usefixtures("one_reply_of_each_kind")
def test_what_train_makes_of_it_drafts_on_both_engines(tiny, tmp_path: Path) -> None:
    """Trained by the command; ids are those of the stock model, and in int8 those without a drafter."""
    model: Tiny = tiny(NAME)
    texts = [f"{n} the cat sat on the mat" + " and saw the dog" * (n % 3) for n in range(20)]
    (tmp_path / "text.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    words = ["--data", str(tmp_path / "text.jsonl"), "--steps", "2", "--length", "48", "--batch", "128"]
    made = tmp_path / "made"
    trained = called(tmp_path, "train", "eagle3", "-m", str(model.path), *words, "--json", "-o", str(made))
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["acceptance"]["nodes"] == 16
    prompt = prompt_ids(20, seed=23)
    for packing in ("fp32", "int8"):
        ids = []
        for drafted_by in (str(made), "none"):
            engine = engine_of(model.path, drafted_by, packing, [])
            *_, done = engine.session.generate(prompt, engine.sampling(Settings(temperature=0.0)), Limits(20))
            assert isinstance(done, Done) and (done.statistics.drafted > 19) == (drafted_by != "none")
            ids.append(list(done.statistics.token_ids))
        assert ids[0] == ids[1] and (packing != "fp32" or ids[0] == stock_reply(model.stock, prompt, 20))


def test_a_small_one_that_drafts_for_another_target_is_computed_by_the_cpu_engine(tiny) -> None:
    """Two copies of one model, as the target and as the drafter."""
    path = tiny(NAME).path
    choice = choose(card_of(path), Settings(drafter=f"draft_model:{path}", device="cpu"))
    assert choice.draft is not None and (choice.draft.engine, choice.draft.quantize) == ("native", "int8")


def test_show_says_what_can_draft_and_of_no_engine_that_it_lacks_it(tiny, tmp_path: Path) -> None:
    path = shutil.copytree(tiny(NAME).path, tmp_path / "model")
    facts = json.loads(called(tmp_path, "show", str(path), "--json").stdout)
    assert facts["drafters"] == ["none", "phrases"]
    assert "torch" not in called(tmp_path, "show", str(path)).stdout
