"""Models that are read from their GGUF files: registered, opened in the files' own blocks, and packed on request."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from each import each
from gguf_files import Stored, metadata_of, pairs, tensors_of, write_model, written
from native.packings import assert_plain_text
from scripted_drafters import OffChain, Oracle
from session_replies import reply
from transformers import LlamaConfig, Phi3Config, Qwen2Config
from weights.test_gguf_model import CONFIGS as OTHER_FAMILIES
from weights.test_gguf_model import SHAPE as OTHER_SHAPE

from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.engine.importing import ready
from localspec.errors import DoesNotFit, LocalspecError, NotHere
from localspec.events import Reporter
from localspec.models import tokenizer_trial
from localspec.models.tokenizer import Tokenizer
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn import packing as packing_names
from localspec.nn import weights as torch_weights
from localspec.nn.linear_bitsandbytes import LLMInt8Linear
from localspec.nn.linear_mps import Int8WeightOnlyLinear
from localspec.nn.target import Target
from localspec.paths import Paths
from localspec.weights import packed_file
from localspec.weights import source as packer
from localspec.weights.checkpoint import inspect, packings
from localspec.weights.fingerprint import fingerprints
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_source, registration
from localspec.weights.matrices import BlockMatrix, BlockStack, PackedMatrix
from localspec.weights.opened import PackedModel
from localspec.weights.opening import load, register
from localspec.weights.packed_file import BLOCKS, RECORDS, DamagedFile, Header, Origin, PackedFile, forms, read
from localspec.weights.recipe import STAND_INS, stand_in

OTHERS = [name for name in OTHER_FAMILIES if not name.startswith(("llama", "mistral", "qwen2", "phi3"))]
UNLIKE = [
    "gemma3-windows-linear",
    "gemma4-shared-double-wide-layer-inputs",
    "qwen3_5-shared-keys",
]  # shared keys, states
SHAPE = {**tiny_models._SHAPE, "hidden_size": 256, "intermediate_size": 512, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """directory(FAMILY): a model of that family whose widths are whole blocks of every type."""
    made: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("tiny")

    def of(family: str) -> Path:
        config: Any = {
            "llama": lambda: LlamaConfig(**SHAPE),
            "tied": lambda: LlamaConfig(**{**SHAPE, "tie_word_embeddings": True}),
            "qwen2": lambda: Qwen2Config(**SHAPE),
            "phi3": lambda: Phi3Config(**SHAPE),
        }
        config |= {  # those whose widths are whole blocks, too
            name: partial(kind, **{**OTHER_SHAPE, **unlike})
            for name, (kind, unlike) in OTHER_FAMILIES.items()
            if name in OTHERS
        }
        config = config[family]
        if family not in made:
            made[family] = tiny_models.write(folder / family, config(), tiny_models.byte_tokenizer(), 0)
        return made[family]

    return of


@pytest.fixture(autouse=True)
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Paths(tmp_path / "home")


def mixed(file: Path, path: Path, **kinds: str) -> Path:
    """Write a model as a GGUF file: types by a part of the name of a matrix, else Q4_K."""
    tensors = tensors_of(path, "Q4_K")
    for name, kind in kinds.items():
        tensors |= tensors_of(path, kind, named=name)
    file.write_bytes(written(metadata_of(path, "gpt-2"), tensors))
    return file


def registered(file: Path, paths: Paths, answers: str = BLOCKS) -> PackedFile:
    model = GgufModel.open(file)
    files = [part.path for part in model.parts]
    found = fingerprints(files)
    origin = Origin("tiny", "0" * 40, files={str(one): found[one.name] for one in files})
    return read(register(registration(gguf_source(model), origin, answers), model.texts, Reporter(), paths))


def open_blocks(found: PackedFile, threads: int, drafts: bool = False) -> PackedModel:
    return load(found.path, BLOCKS, "", threads, Reporter(), drafts=drafts)


def numbers(model: PackedModel, name: str) -> np.ndarray:
    found = model.tensors[name]
    return found.rows(range(found.out)) if isinstance(found, BlockStack) else found


def as_read(file: Path) -> dict[str, np.ndarray]:
    """Return the parameters of a file's tensors, in fp32."""
    source = gguf_source(GgufModel.open(file))
    return {
        name: np.concatenate([part.floats(0, int(np.prod(part.shape))).reshape(part.shape) for part in parts])
        for name, parts in source.made_of.items()
    }


@pytest.mark.slow
@each("family", ["llama", "tied", "qwen2", *OTHERS])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_weight_is_that_of_the_file(directory, tmp_path, paths, family, threads, monkeypatch):
    monkeypatch.setattr(packed_file, "PIECE", 5000)  # many pieces of few rows
    kinds = {"attn_q": "Q5_0", "attn_v": "Q6_K", "ffn_down": "Q8_0", "token_embd": "Q4_1", "attn_output": "Q4_0"}
    file = mixed(tmp_path / "tiny.gguf", directory(family), **kinds, ffn_gate="Q5_K", ffn_up="Q5_1")
    model, wanted = open_blocks(registered(file, paths), threads), as_read(file)
    assert model.tensors.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.array_equal(numbers(model, name), values), name
    stacked = next(one for name, one in model.tensors.items() if name.endswith("qkv_proj.weight"))
    assert isinstance(stacked, BlockStack) and [part.type for part in stacked.parts] == ["Q5_0", "Q4_K", "Q6_K"]
    once = model.tensors["lm_head.weight"] is model.tensors["embed_tokens"]
    assert once == ("output.weight" not in GgufModel.open(file).places)


def apart(tensors: dict[str, Stored]) -> dict[str, Stored]:
    """Return the tensors of a phi3 file as llama has them: queries, keys, values, gate and up by themselves."""
    found: dict[str, Stored] = {}
    heads, keys = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
    per_head, inner = SHAPE["hidden_size"] // heads, SHAPE["intermediate_size"]
    names = {
        "attn_qkv": {"attn_q": heads * per_head, "attn_k": keys * per_head, "attn_v": keys * per_head},
        "ffn_up": {"ffn_gate": inner, "ffn_up": inner},
    }
    for name, one in tensors.items():
        rows, first = np.frombuffer(one.content, np.uint8).reshape(one.shape[0], -1), 0
        whole = name.split(".")[-2]
        for own, count in names.get(whole, {whole: one.shape[0]}).items():
            part = rows[first : first + count]
            if own in ("attn_q", "attn_k"):
                part = pairs(part, count // per_head)
            shape = (count, *one.shape[1:])
            found[name.replace(whole, own)], first = Stored(one.kind, shape, part.tobytes()), first + count
    return found


@pytest.mark.slow
@each("kind", ["Q4_K", "Q5_0", "F16"])
def test_gate_and_up_in_one_tensor_are_two_parts(directory, tmp_path, paths, kind, monkeypatch):
    monkeypatch.setattr(packed_file, "PIECE", 5000)
    tensors = tensors_of(directory("phi3"), "Q6_K")
    tensors |= {name: one for name, one in tensors_of(directory("phi3"), kind).items() if "ffn_up" in name}
    rows = []
    for family, own in (("phi3", tensors), ("llama", apart(tensors))):
        said = {key.replace("phi3.", f"{family}."): one for key, one in metadata_of(directory("phi3"), "gpt-2").items()}
        (tmp_path / "tiny.gguf").write_bytes(written({**said, "general.architecture": family}, own))
        found = registered(tmp_path / "tiny.gguf", paths)
        model, wanted = load(found.path, BLOCKS, "", 2, Reporter(), paths), as_read(tmp_path / "tiny.gguf")
        stack = model.tensors["layers.1.gate_up_proj.weight"]
        assert isinstance(stack, BlockStack) and [part.out for part in stack.parts] == [512, 512]
        equal = {name for name, values in wanted.items() if np.array_equal(numbers(model, name), values)}
        rounded = {f"layers.{layer}.gate_up_proj.weight" for layer in range(SHAPE["num_hidden_layers"])}
        assert wanted.keys() - equal == (rounded if kind == "F16" else set())
        held = {id(one): one.nbytes for one in model.tensors.values()}
        assert found.header.weight_bytes == sum(held.values()) and found.header.default_packing == BLOCKS
        target = NativeTarget.open(found.path, packing=BLOCKS)
        rows.append(target.forward(DraftTree.chain([*range(1, 40)]), target.cache(64)).logits.rows)
        found.path.unlink()
    assert np.array_equal(*rows) and np.ptp(rows[0]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [{}, {"ffn_down": "IQ2_XS", "token_embd": "F16"}])
def test_a_registration_says_what_its_weights_take(directory, tmp_path, paths, kinds):
    file = mixed(tmp_path / "tiny.gguf", directory("tied"), **kinds)
    found = registered(file, paths)
    model = load(found.path, BLOCKS, "", 1, Reporter(), paths)
    held = {id(one): one.nbytes for one in model.tensors.values()}
    assert found.header.weight_bytes == sum(held.values())
    target = NativeTarget.open(found.path, packing=BLOCKS)
    assert target.nbytes == target.read_bytes == found.header.weight_bytes
    assert found.path.stat().st_mode & 0o777 == 0o600


def test_phrases_change_no_token(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"), ffn_down="Q6_K", token_embd="Q8_0")
    target = NativeTarget.open(registered(file, paths).path, packing=BLOCKS)
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
    assert_plain_text(target, WithPhrases(Autoregressive(), PhrasePool(())), prompt)


class WrongAtLast(Oracle):
    """A chain that ends in a wrong token, as a model reads it whose states cannot branch."""

    def tree(self, context: Context) -> DraftTree:
        chain = self.coming(context)[: context.nodes]
        return DraftTree.chain([context.root, *chain[:-1], *(token ^ 1 for token in chain[-1:])])


@pytest.mark.slow
@each("family", ["llama", *UNLIKE])
def test_drafts_that_are_partly_wrong_change_no_token(directory, tmp_path, paths, family):
    file = mixed(tmp_path / "tiny.gguf", directory(family), ffn_down="Q6_K", token_embd="Q8_0")
    drafts_change_no_token(NativeTarget.open(registered(file, paths).path, packing=BLOCKS))


def drafts_change_no_token(target: NativeTarget | Target) -> None:
    prompt = tiny_models.prompt_ids(12)
    for sampling in (Sampling(), Sampling(0.8, top_p=0.95, seed=1)):
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 16, sampling)
        drafter = (OffChain if target.branches else WrongAtLast)([*prompt, *plain])
        ids, statistics = reply(Session(target, drafter, Budget(6, branches=target.branches)), prompt, 16, sampling)
        assert ids == plain and statistics.drafted > 0


def test_its_logits_are_those_of_the_numbers_in_the_file(directory, tmp_path, paths):
    path = registered(mixed(tmp_path / "tiny.gguf", directory("llama"), attn_q="Q6_K", ffn_up="F16"), paths).path
    rows = []
    for packing in (BLOCKS, "fp32"):
        target = NativeTarget.open(path, packing=packing)
        rows.append(target.forward(DraftTree.chain([*range(1, 40)]), target.cache(64)).logits.rows)
    assert np.abs(rows[0] - rows[1]).max() < 0.05 * np.abs(rows[1]).max()  # inputs of products have 8 bits


@pytest.mark.slow
@each("family", ["llama", "tied", "phi3", *UNLIKE])
def test_torch_has_every_weight_of_the_file_and_computes_what_the_library_does(
    directory, tmp_path, paths, family, monkeypatch
):
    monkeypatch.setattr(torch_weights, "BLOCK_PIECE", 3000)  # many pieces of few rows
    kinds = {"attn_q": "Q5_0", "attn_v": "Q6_K", "ffn_down": "Q8_0", "token_embd": "Q4_1", "attn_output": "IQ4_XS"}
    file = mixed(tmp_path / "tiny.gguf", directory(family), **kinds, ffn_gate="Q5_K", ffn_up="MXFP4")
    path, wanted = registered(file, paths).path, as_read(file)
    target, native = Target.load(path), NativeTarget.open(path, packing="fp32")
    tied = "output.weight" not in GgufModel.open(file).places
    assert target.transformer.config.tied == tied and target.stop_tokens == native.stop_tokens
    found = dict(target.transformer.named_parameters())
    assert {*wanted} - {*found} == ({"lm_head.weight"} if tied else set())
    coarse = dict(Target.load(path, dtype=torch.bfloat16).transformer.named_parameters())
    for name, parameter in found.items():
        values = torch.from_numpy(wanted[name]).reshape(parameter.shape)
        assert torch.equal(parameter, values) and torch.equal(coarse[name], values.bfloat16()), name
    tree, rows = DraftTree.chain(tiny_models.prompt_ids(30)), []
    for one in (target, native):
        logits = one.forward(tree, one.cache(64)).logits
        rows.append(logits.numpy() if one is native else logits.rows.numpy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-4 * np.abs(rows[1]).max()
    light = Target.load(path, device="meta")
    assert light.transformer.lm_head.weight.shape == found["embed_tokens"].shape


@pytest.mark.slow
@each("kind", [LLMInt8Linear, Int8WeightOnlyLinear])
def test_on_a_gpu_int8_is_near_the_numbers_of_the_file(directory, tmp_path, paths, kind, monkeypatch):
    monkeypatch.setitem(packing_names._CLASSES, ("int8", "cpu"), kind)
    path, tokens = registered(mixed(tmp_path / "tiny.gguf", directory("qwen2")), paths).path, torch.arange(1, 40)
    mask = torch.ones(39, 39, dtype=torch.bool).tril()
    dense, ours = (Target.load(path, quantize=quantize) for quantize in ("none", "int8"))
    right, found = (one.forward_tensors(tokens, torch.arange(39), mask).logits for one in (dense, ours))
    assert isinstance(ours.transformer.layers[0].qkv_proj, kind) and 2 * ours.nbytes < dense.nbytes
    assert 0 < float((found - right).norm() / right.norm()) < 0.02


@pytest.mark.slow
def test_what_is_here_only_packed_has_shapes_in_torch_and_no_weights(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    path = registered(file, paths).path
    packed = load(path, "int8", "", 1, Reporter(), paths)
    shapes = {name: one.shape for name, one in Target.load(path).transformer.named_parameters()}
    file.unlink()
    [alone] = paths.packed.glob("*-int8-*.packed")
    for here in (path, alone):
        light = Target.load(here, device="meta")
        assert {name: one.shape for name, one in light.transformer.named_parameters()} == shapes
        assert light.tokenizer.hash == Tokenizer.decoded(packed.texts, here).hash
        with pytest.raises(NotHere):
            Target.load(here)


def test_parts_are_one_model(directory, tmp_path, paths):
    metadata, tensors = metadata_of(directory("llama"), "gpt-2"), tensors_of(directory("llama"), "Q4_K")
    names = sorted(tensors)
    for number, part in enumerate((names[:7], names[7:])):
        said = {"split.no": number, "split.count": 2}
        content = written({**(metadata if number == 0 else {}), **said}, {name: tensors[name] for name in part})
        (tmp_path / f"tiny-{number + 1:05}-of-00002.gguf").write_bytes(content)
    file, whole = tmp_path / "tiny-00002-of-00002.gguf", tmp_path / "whole.gguf"
    whole.write_bytes(written(metadata, tensors))
    found, wanted = open_blocks(registered(file, paths), 2), as_read(whole)
    assert all(np.array_equal(numbers(found, name), values) for name, values in wanted.items())
    (tmp_path / "tiny-00001-of-00002.gguf").unlink()
    with pytest.raises(NotHere, match="tiny-00001-of-00002.gguf, which is not there"):
        open_blocks(read(registered_path(paths)), 1)


def registered_path(paths: Paths) -> Path:
    [file] = paths.imports.glob("*-blocks-*.packed")
    return file


def test_what_is_requested_is_packed_in_the_cache_and_found_again(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    path = registered(file, paths).path
    for packing in ("int8", "int4"):
        assert load(path, packing, "", 1, Reporter(), paths).header.packing == packing
    packed = sorted(one.name.split("-")[1] for one in paths.packed.glob("*.packed"))
    assert packed == ["int4", "int8"] and [path] == [*paths.imports.glob("*.packed")]
    file.unlink()
    said: list[str] = []
    assert load(path, "int8", "", 1, Reporter(said.append), paths).header.packing == "int8"
    assert len(said) == 1 and "tiny.gguf, which is not there" in said[0]


@each("packing", ["fp32", "bf16"])
def test_dense_weights_are_those_of_the_file(directory, tmp_path, paths, packing):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    found = load(registered(file, paths).path, packing, "", 1, Reporter(), paths)
    values = as_read(file)["layers.0.down_proj.weight"]
    unpacked = found.tensors["layers.0.down_proj.weight"].unpack()
    assert found.header.packing == packing
    assert np.array_equal(unpacked, values) if packing == "fp32" else np.allclose(unpacked, values, rtol=0.01)


def test_a_width_without_whole_blocks_is_in_int8(tmp_path, paths):
    shape = {**tiny_models._SHAPE, "hidden_size": 48, "intermediate_size": 64, "num_key_value_heads": 2}
    path = tiny_models.write(tmp_path / "narrow", LlamaConfig(**shape), tiny_models.byte_tokenizer(), 0)
    found = registered(write_model(tmp_path / "tiny.gguf", path, "F16"), paths)
    target = NativeTarget.open(found.path, packing=BLOCKS)
    assert found.header.default_packing == BLOCKS and target.nbytes == found.header.weight_bytes
    assert isinstance(target.model.weights["layers.0.qkv_proj.weight"], PackedMatrix)
    assert isinstance(target.model.weights["layers.0.down_proj.weight"], BlockStack)
    assert_plain_text(target, WithPhrases(Autoregressive(), PhrasePool(())), [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3])


# -- types without kernels ---------------------------------------------------------------------------------------------

COARSE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")


def without_kernels(tmp_path: Path, width: int, coarse: Sequence[str]) -> Path:
    """Write a model of this width with a coarse type in each layer, all types of any width, and some with kernels."""
    shape = {**SHAPE, "hidden_size": width, "num_attention_heads": width // 64, "num_key_value_heads": 1}
    shape |= {"intermediate_size": 256, "num_hidden_layers": len(coarse)}
    path = tiny_models.write(tmp_path / f"wide-{width}", Qwen2Config(**shape), tiny_models.byte_tokenizer(), 0)
    kinds = {f"blk.{layer}.ffn_down": kind for layer, kind in enumerate(coarse)}
    kinds |= {"attn_q": "NVFP4", "attn_k": "Q5_0", "attn_output": "BF16", "ffn_gate": "Q8_0", "token_embd": "NVFP4"}
    return mixed(tmp_path / f"{width}.gguf", path, **kinds, ffn_up="F32", attn_v="F16")


@pytest.mark.slow
@pytest.mark.parametrize("coarse", [COARSE[:3], COARSE[3:6], COARSE[6:]])
@pytest.mark.parametrize("width", [576, 896])
def test_types_without_kernels_are_rounded_to_their_stand_ins(tmp_path, paths, width, coarse):
    file = without_kernels(tmp_path, width, coarse)
    source, found = gguf_source(GgufModel.open(file)), registered(file, paths)
    model = load(found.path, BLOCKS, "", 2, Reporter(), paths)
    dense: dict[str, np.ndarray] = {}
    for name, parts in source.made_of.items():
        values = numbers(model, name)
        first = 0
        for part in parts:
            rows, exact = values[first : first + part.shape[0]], part.floats(0, int(np.prod(part.shape)))
            exact, first = exact.reshape(part.shape), first + part.shape[0]
            kind = part.block.name
            if len(part.shape) > 1 and kind not in RECORDS:
                stood = BlockMatrix.empty(*part.shape, stand_in(kind, part.shape[1]) or "")
                stood.fill_rounded(exact)
                assert not np.array_equal(rows, exact) or kind.startswith("TQ"), (name, kind)
                exact = stood.numbers()
            assert np.array_equal(rows, exact), (name, kind)
        dense[name] = values
    target = NativeTarget.open(found.path, packing=BLOCKS)
    sizes = target.model.sizes
    matrices = {
        name: PackedMatrix.pack(values, "fp32", interleave="gate_up" in name) if name.endswith(".weight") else values
        for name, values in dense.items()
    }
    loop = NativeModel(sizes, target.model.rope, matrices, Threads(1), "fp32")
    tokens = [*range(1, 40)]
    wanted = loop.forward(tokens, None, loop.cache(64))[0].numpy()
    logits = target.forward(DraftTree.chain(tokens), target.cache(64)).logits.rows
    assert np.abs(logits - wanted).mean() < 0.1 * wanted.std()  # inputs of products have 8 bits
    assert_plain_text(target, WithPhrases(Autoregressive(), PhrasePool(())), [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3], 64)


def test_they_are_packed_once(directory, tmp_path, paths, monkeypatch):
    file, done = mixed(tmp_path / "tiny.gguf", directory("llama"), ffn_down="IQ2_XS"), list[str]()
    path, opened = registered(file, paths).path, partial(load, packing=BLOCKS, name="", threads=1, paths=paths)
    reporter = Reporter(progress=done.append)
    first = opened(path, reporter=reporter)
    [packed] = paths.packed.glob("*-rounded-*.packed")
    assert (
        done == ["writing the weights of tiny to a file (needed only once)"] and packed.stat().st_mode & 0o777 == 0o600
    )
    again = opened(path, reporter=reporter)
    assert len(done) == 1 and again.header == first.header and not again.header.registered
    assert packings(path)[0] == BLOCKS and forms(path)[BLOCKS] == path
    monkeypatch.setitem(STAND_INS, "IQ2_XS", "Q8_0")
    assert opened(path, reporter=reporter).header != first.header and len(done) == 2
    with packed.open("r+b") as stream:  # its texts are at its end
        stream.seek(packed.stat().st_size - 10)
        stream.write(b"damaged")
    assert opened(path, reporter=reporter).texts and len(done) == 3


@pytest.mark.slow
def test_what_was_packed_answers_without_the_file(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("tied"), ffn_down="IQ3_S", token_embd="F16")
    path, said = registered(file, paths).path, list[str]()
    with_file = NativeTarget.open(path, packing=BLOCKS)
    file.unlink()
    assert packings(path) == (BLOCKS,)
    assert inspect(path).embedding == with_file.vocab_size * SHAPE["hidden_size"]
    without = NativeTarget.open(path, packing=BLOCKS, reporter=Reporter(said.append))
    assert len(said) == 1 and "tiny.gguf, which is not there" in said[0]
    assert without.nbytes == with_file.nbytes and without.read_bytes == with_file.read_bytes


def test_a_file_that_moved_is_not_packed_again(directory, tmp_path, paths):
    file, done = mixed(tmp_path / "tiny.gguf", directory("llama"), ffn_down="IQ2_XS"), list[str]()
    first = registered(file, paths).path
    load(first, BLOCKS, "", 1, Reporter(progress=done.append), paths)
    (tmp_path / "elsewhere").mkdir()
    second = registered(file.rename(tmp_path / "elsewhere" / "tiny.gguf"), paths).path
    first.unlink()
    load(second, BLOCKS, "", 1, Reporter(progress=done.append), paths)
    assert len(done) == 1 and len([*paths.packed.glob("*.packed")]) == 1


def test_a_registration_of_an_earlier_version_keeps_answering(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"), ffn_down="F16")
    now = registered(file, paths)
    texts = {name: now.text(name) for name in now.header.texts}
    now.path.unlink()
    before = replace(now.header, default_packing="int8", weight_bytes=0)
    path = register(before, texts, Reporter(), paths)
    assert packings(path)[0] == "int8" and BLOCKS not in packings(path)
    assert load(path, "int8", "", 1, Reporter(), paths).header.packing == "int8"
    file.unlink()
    assert packings(path) == ("int8",)
    assert load(path, "int8", "", 1, Reporter(), paths).header.packing == "int8"


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_file_that_changed_or_is_missing_is_reported(directory, tmp_path, paths):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    found, content = registered(file, paths), file.read_bytes()
    file.write_bytes(content[:-4] + b"\1\2\3\4")
    for now in (content[:-4] + b"\1\2\3\4", content[:-4]):
        file.write_bytes(now)
        with pytest.raises(NotHere, match="has changed since it was imported; restore the earlier file"):
            open_blocks(found, 1)
    file.unlink()
    with pytest.raises(NotHere, match=r"tiny\.gguf, which is not there; put the file back"):
        open_blocks(found, 1)


def test_a_file_that_changes_while_it_is_read_is_reported(directory, tmp_path, paths, monkeypatch):
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    found, before = registered(file, paths), packer._fill_blocks

    def touching(*given: Any) -> bool:
        os.utime(file, ns=(1, 1))
        return before(*given)

    monkeypatch.setattr(packer, "_fill_blocks", touching)
    with pytest.raises(LocalspecError, match="The weights of .+ changed while they were read"):
        open_blocks(found, 1)


@each(
    "name, kind, number, said",
    [
        ("blk.0.ffn_down.weight", "Q4_K", np.float16("nan"), r"layers\.0\.down_proj\.weight"),
        ("blk.0.ffn_down.weight", "F32", np.float32("nan"), r"layers\.0\.down_proj\.weight"),
        ("output_norm.weight", "Q4_K", np.float32("inf"), "norm"),
    ],
)
def test_a_weight_that_is_no_number_is_refused(directory, tmp_path, paths, name, kind, number, said):
    tensors = tensors_of(directory("llama"), kind)
    bad = tensors[name]
    tensors[name] = Stored(bad.kind, bad.shape, number.tobytes() + bad.content[number.nbytes :])
    file = tmp_path / "tiny.gguf"
    file.write_bytes(written(metadata_of(directory("llama"), "gpt-2"), tensors))
    with pytest.raises(LocalspecError, match=f"{said} of .* has NaN or inf"):
        load(registered(file, paths).path, BLOCKS, "", 1, Reporter(), paths)


def test_memory_that_is_not_there_is_reported(directory, tmp_path, paths, monkeypatch):
    found = registered(mixed(tmp_path / "tiny.gguf", directory("llama")), paths)

    def none(*given: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(PackedModel, "in_memory", none)
    with pytest.raises(DoesNotFit, match="tiny takes .* of memory"):
        open_blocks(found, 1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts address space as on Linux")
def test_memory_that_the_tokenizer_would_lack_is_reported(directory, tmp_path, paths):
    import resource

    found = registered(mixed(tmp_path / "tiny.gguf", directory("llama")), paths)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**27, before[1]))
        with pytest.raises(DoesNotFit, match="tiny takes .* of memory"):
            open_blocks(found, 1)
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**29, before[1]))
        assert open_blocks(found, 1).tensors
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def part(**changes: Any) -> Callable[[Header], Header]:
    """Return a function that changes a part of a registration."""

    def change(header: Header) -> Header:
        name = "layers.0.down_proj.weight"
        [one] = header.blocks[name]
        return replace(header, blocks={**header.blocks, name: (replace(one, **changes),)})

    return change


UNREADABLE = {
    "another file": part(file=1),
    "before the file": part(offset=-1),
    "behind the file": part(offset=2**40),
    "longer than the file": part(bytes=2**40),
    "no sizes": part(shape=()),
    "three sizes": part(shape=(2, 2, 2)),
    "a size of nothing": part(shape=(0, 256)),
    "a size without end": part(shape=(2**40, 256)),
    "an offset that is no number": part(offset="7"),
    "a packing that nothing has": lambda header: replace(header, default_packing="int7"),
    "weights of no number": lambda header: replace(header, weight_bytes=-1),
}
UNUSABLE = {
    "an unknown type": part(type="Q9_9"),
    "another type": part(type="Q6_K"),
    "another shape": part(shape=(128, 1024)),
    "heads of odd rows": part(head_rows=3),
    "heads that do not fit": part(head_rows=100),
    "fewer bytes": part(bytes=144),
    "a parameter too few": lambda header: replace(
        header, blocks={name: parts for name, parts in header.blocks.items() if name != "norm"}
    ),
    "a parameter too many": lambda header: replace(header, blocks={**header.blocks, "more": header.blocks["norm"]}),
}


@pytest.mark.slow
@each("name", [*UNREADABLE, *UNUSABLE])
def test_a_hostile_registration_is_a_sentence(directory, tmp_path, paths, name):
    found = registered(mixed(tmp_path / "tiny.gguf", directory("llama")), paths)
    header = {**UNREADABLE, **UNUSABLE}[name](found.header)
    content = found.path.read_bytes()[found.start :]
    found.path.write_bytes(header.encoded() + content)
    if name in UNREADABLE:
        with pytest.raises(DamagedFile):
            read(found.path)
        return
    with pytest.raises(LocalspecError, match="The registration of tiny .* import .* again"):
        open_blocks(read(found.path), 1)


def test_a_registration_in_json_has_only_what_it_needs(directory, tmp_path, paths):
    found = registered(mixed(tmp_path / "tiny.gguf", directory("llama")), paths)
    said = json.loads(found.path.read_bytes()[48:].partition(b"\0")[0])
    assert (said["format"], said["packing"], said["tensors"]) == (2, "blocks", {})
    assert found.path.stat().st_size < 200_000


@pytest.mark.slow
def test_a_file_never_seen_before_is_read_and_tried_once(directory, tmp_path, paths, monkeypatch):
    started: list[Any] = []
    start = tokenizer_trial._started
    monkeypatch.setattr(tokenizer_trial, "_tried", {})
    monkeypatch.setattr(tokenizer_trial, "_started", lambda: (started.append(start()), started[-1])[1])
    built: list[Any] = []
    build = Tokenizer.__init__
    monkeypatch.setattr(Tokenizer, "__init__", lambda self, *given: (built.append(self), build(self, *given))[1])
    file = mixed(tmp_path / "tiny.gguf", directory("llama"))
    card = ready(str(file), Settings(), Reporter())
    target = NativeTarget.open(card.path, packing=BLOCKS)
    assert target.tokenizer.backend is built[0].backend
    assert (len(built), [child.returncode for child in started]) == (1, [0])
