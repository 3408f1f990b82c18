"""Each dense family as a GGUF file that the package `gguf` wrote: the file itself, and what localspec makes of it.

Tests that compare with llama.cpp are skipped where llama-cpp-python is not installed. Those in F32 compare with transformers only.
"""

import ctypes
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf_families
import numpy as np
import pytest
import torch
from drafters.test_mtp import stock_layer
from gguf_families import F32, FAMILIES, QUANTISED, TEXTS
from gpu_models import random_numbers
from real.reference import divergence
from scripted_drafters import OffChain, RandomBranches, path_to, random_tree
from session_replies import reply
from slow_cases import cases, seldom

from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.dflash import DFlashOptions
from localspec.drafters.draft_model import build as draft_model
from localspec.drafters.eagle3 import Eagle3Options
from localspec.drafters.ingredients import Hyperparameters, Ingredients
from localspec.drafters.layers import Layers
from localspec.drafters.lookahead import build as lookahead
from localspec.drafters.medusa import MedusaOptions
from localspec.drafters.mtp import MtpOptions
from localspec.drafters.ouroboros import build as ouroboros
from localspec.drafters.parallelspec import ParallelSpecOptions
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.phrases import build as phrases
from localspec.drafters.pool import PhrasePool
from localspec.drafters.s3d import S3DOptions
from localspec.drafters.semi import SemiOptions
from localspec.engine.importing import import_gguf
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.families.architecture import TransformerConfig
from localspec.models.drafter_kinds import kind_of, kinds
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.models.shape import Shape
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.target import Target
from localspec.weights.gguf_model import GgufModel, GgufTensor
from localspec.weights.packed_file import BLOCKS

ROOM = 128  # tokens: more than positions have before they are scaled
NODES, HOT = 8, Sampling(0.9, top_p=0.95, seed=7)
EVERY = [(name, kind) for name, one in FAMILIES.items() for kind in (F32, *QUANTISED, *one.more)]
FAST = ["llama", "phi3", "qwen3_moe"]  # rotated by halves and by neighbours, split and fused, with experts
Opened = Callable[..., NativeTarget]


def text(length: int = 96, seed: int = 0) -> list[int]:
    """Return random ids without marks: all of them are normal tokens in each vocabulary."""
    return np.random.default_rng(seed).integers(280, 480, length).tolist()


@pytest.fixture(scope="module")
def opened(family_gguf: Callable[[str, str], Path]) -> Opened:
    """opened(name, kind): return the CPU engine's model of a file, in the file's own blocks, or in F32."""

    @cache
    def give(name: str, kind: str) -> NativeTarget:
        path, packing = import_gguf(family_gguf(name, kind), Settings(), Reporter()).path, BLOCKS
        if kind == F32:  # has no blocks: by default it would be computed in int8
            packing = "fp32"
        return NativeTarget.open(path, packing=packing, context=ROOM, threads=Threads(1))

    return give


def read(target: NativeTarget, tokens: list[int]) -> np.ndarray:
    return target.forward(DraftTree.chain(tokens), target.cache(0)).logits.numpy()


def test_the_page_has_a_row_for_each_family() -> None:
    page = Path(gguf_families.__file__).with_suffix(".md").read_text("utf-8")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in page.splitlines() if row.startswith("| `")]
    kinds = {name: ", ".join(filter(None, (one.kind, one.pre))) for name, one in FAMILIES.items()}
    assert [(row[0].strip("`"), row[2]) for row in rows] == [*kinds.items()]


def by_llama_cpp(file: Path, tokens: list[int], exactly: bool) -> np.ndarray:
    from llama_cpp_model import Gguf

    options: dict[str, Any] = {"flash": False, "wide_cache": True} if exactly else {}
    peer = Gguf(file, gguf_families.VOCABULARY, ROOM, **options)
    try:
        return np.array(peer.logits(tokens, 0))
    finally:
        peer.close()


def in_half(x: torch.Tensor) -> torch.Tensor:
    """Return GELU as ggml computes it on CPUs: by a table over numbers of 16 bits."""
    found = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x.abs() < 10, found, x.clamp(min=0))


@pytest.mark.parametrize("name", cases(FAMILIES, ["llama", "gemma4-e2b", "qwen3_5", "qwen3_moe", "gpt_oss"]))
def test_llama_cpp_computes_what_transformers_computes(family_gguf, monkeypatch, name):
    """The conversion is right: in F32 the largest difference is 2e-5 of the largest logit, with GELU 2e-3.

    ggml rounds what GELU reads to 16 bits, so a last bit in F32 may become a last bit of 16.
    """
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    stock = gguf_families.model(name)
    for module in stock.stock.modules():
        if "gelu" in type(getattr(module, "act_fn", None)).__name__.lower():
            monkeypatch.setattr(module.act_fn, "forward", in_half)
    theirs, expected = by_llama_cpp(family_gguf(name, F32), text(), True), stock.logits(text())
    assert np.abs(theirs - expected).max() < FAMILIES[name].off * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.ahead])
def test_llama_cpp_computes_the_layer_ahead_as_stock_modules_do(family_gguf, name):
    """The layer that predicts one more token, which the stock model leaves out, from the target's own states."""
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    model, tokens = gguf_families.model(name), text()
    layer = stock_layer(model.stock.config)
    layer.load_state_dict({key.removeprefix("mtp."): one for key, one in model.tensors.items() if "mtp." in key})
    with torch.no_grad():
        states = model.stock.model(torch.tensor([tokens[:-1]])).last_hidden_state
        embeddings = model.stock.get_input_embeddings()(torch.tensor([tokens[1:]]))
        both = layer["pre_fc_norm_embedding"](embeddings), layer["pre_fc_norm_hidden"](states)
        count = len(tokens) - 1
        causal = torch.full((count, count), float("-inf")).triu(1)[None, None]
        rotation = model.stock.model.rotary_emb(states, torch.arange(count)[None])
        said = layer["layers"][0](layer["fc"](torch.cat(both, -1)), position_embeddings=rotation, attention_mask=causal)
        expected = model.stock.lm_head(layer["norm"](said))[0].numpy()
    found = ahead_by_llama_cpp(family_gguf(name, F32), tokens[1:], states[0].numpy())
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def ahead_by_llama_cpp(file: Path, tokens: list[int], states: np.ndarray) -> np.ndarray:
    """Return the logits of the layer ahead for tokens, each with the state before it."""
    from llama_cpp_model import library

    count, width = states.shape
    settings = library().llama_model_default_params()
    settings.load_mtp = True
    model = library().llama_model_load_from_file(str(file).encode(), settings)
    options = library().llama_context_default_params()
    options.ctx_type, options.n_ctx, options.flash_attn_type = library().LLAMA_CONTEXT_TYPE_MTP, ROOM, 0
    options.type_k = options.type_v = library().GGML_TYPE_F32
    context = library().llama_init_from_model(model, options)
    batch, ids = library().llama_batch_init(count, width, 1), (ctypes.c_int32 * count)(*tokens)
    batch.n_tokens, batch.token = count, ctypes.cast(ids, type(batch.token))
    np.ctypeslib.as_array(batch.embd, states.shape)[:] = states
    for row in range(count):
        batch.pos[row], batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = row, 1, 0, 1
    assert library().llama_decode(context, batch) == 0
    found = np.ctypeslib.as_array(library().llama_get_logits(context), (count, gguf_families.VOCABULARY)).copy()
    batch.token = None  # it is not llama.cpp's memory to free
    library().llama_batch_free(batch)
    library().llama_free(context)
    library().llama_model_free(model)
    return found


@pytest.mark.parametrize("name", cases(FAMILIES, FAST))
def test_in_f32_logits_are_those_of_transformers(opened, name):
    expected = gguf_families.model(name).logits(text())
    found = read(opened(name, F32), text())
    off = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"{name}: {off:.1e} of the largest logit")
    assert off < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "qwen3_5_moe", "gemma4-26b"])
def test_in_pytorch_logits_of_mixtures_are_those_of_transformers(family_gguf, name):
    target = Target.load(import_gguf(family_gguf(name, F32), Settings(), Reporter()).path)
    expected, cache = gguf_families.model(name).logits(text()), target.cache(ROOM)
    found = target.forward(DraftTree.chain(text()), cache).logits.numpy()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [one for one in EVERY if one[1] != F32])
def test_in_few_bits_logits_are_as_near_as_those_of_llama_cpp(opened, family_gguf, name, kind):
    """Close to transformers with the file's dequantised weights: mean divergence over 4 texts."""
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    file, target = family_gguf(name, kind), opened(name, kind)
    exact, ours, theirs = gguf_families.dequantised(name, file), [], []
    for seed in range(4):
        tokens = text(seed=seed)
        expected = exact.logits(tokens)
        ours.append(divergence(expected, read(target, tokens)).mean())
        theirs.append(divergence(expected, by_llama_cpp(file, tokens, False)).mean())
    print(f"{name} {kind}: {1000 * np.mean(ours):.2f} / {1000 * np.mean(theirs):.2f} thousandths of a nat")
    assert np.mean(ours) <= 1.2 * np.mean(theirs)


def content(tensor: GgufTensor, step: int = 99_991) -> bytes:
    """Return the bytes of a tensor, which are read piece by piece."""
    found = bytearray(tensor.bytes)
    for first in range(0, len(found), step):
        tensor.read(memoryview(found)[first : first + step], first)
    return bytes(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [F32, "Q8_0"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "qwen3_5_moe", "gemma4-26b"])
def test_gates_and_ups_in_one_tensor_are_those_in_two(tmp_path, name, kind):
    """llama.cpp's converter writes them this way with --fuse-gate-up-exps: for the layers, and for the layer ahead."""
    apart, fused = (
        GgufModel.open(gguf_families.write(tmp_path / f"{one}.gguf", name, one, kind)) for one in (False, True)
    )
    assert not any("gate_exps" in one or "up_exps" in one.replace("gate_up_exps", "") for one in fused.places)
    sizes = TransformerConfig.of(apart.config)
    assert apart.weights == fused.weights and bool(fused.ahead(sizes)) is FAMILIES[name].ahead
    for read_by in (GgufModel.tensors, GgufModel.ahead):
        one, other = read_by(apart, sizes), read_by(fused, sizes)
        assert one.keys() == other.keys()
        for ours, parts in one.items():
            for part, half in zip(parts, other[ours], strict=True):
                assert part.shape == half.shape and (content(part) == content(half)) is True, ours
                one_row = (part.shape[-1] * (len(part.shape) > 1), part.shape[-1])  # the second, if there are more
                assert np.array_equal(part.floats(*one_row), half.floats(*one_row)), ours


def their_ids(file: Path, texts: list[str]) -> list[list[int]]:
    from llama_cpp_model import ids_of

    return ids_of(file, texts)


@pytest.mark.parametrize("name", cases(FAMILIES, FAST))
def test_texts_have_the_ids_that_llama_cpp_gives_them(opened, family_gguf, name):
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    marks = gguf_families.MARKS if FAMILIES[name].kind == "gpt2" else gguf_families.PIECE_MARKS
    texts = [*TEXTS, f"{marks[-1]}Hello{marks[-2]} there {marks[-3]}\n", "日本語 🙂 naïve"]
    tokenizer = opened(name, F32).tokenizer
    for one, ids in zip(texts, their_ids(family_gguf(name, F32), texts), strict=True):
        assert tokenizer.encode(one, True) == ids, repr(one)


def of_family(target: NativeTarget) -> str:
    """Return the config of a DFlash block for this model."""
    return json.dumps({
        "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 1, "vocab_size": target.vocab_size,
        "max_position_embeddings": ROOM, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    })  # fmt: skip


OPTIONS: dict[str, Callable[[NativeTarget], Any]] = {
    "medusa": lambda target: MedusaOptions(heads=3),
    "semi": lambda target: SemiOptions(depth=3, vocabulary=0),
    "eagle3": lambda target: Eagle3Options(depth=3, vocabulary=0, states="0,1,2"),
    "parallelspec": lambda target: ParallelSpecOptions(masks=3),
    "s3d": lambda target: S3DOptions(depth=3, kept="0,2", adapters="none"),
    "dflash": lambda target: DFlashOptions(config=of_family(target), states="1,2", mask=7, block=5),
    "mtp": lambda target: MtpOptions(depth=3),
}


def layers_draft_alone(target: NativeTarget) -> bool:
    """Return whether some layers draft without the others. In Gemma 4 E2B and E4B layers share keys and values."""
    try:
        target.model.sizes.need_layers_alone("layers")
    except UsageMistake:
        return False
    return True


def drafters(target: NativeTarget, small: NativeTarget, whole: list[int], ahead: bool) -> dict[str, Drafter]:
    """Return one drafter of each kind that works with this model. Trained weights are random."""

    def pool() -> PhrasePool:
        return PhrasePool(target.special_tokens, vocabulary=target.vocab_size)

    def parts(*named: str) -> Ingredients:
        return Ingredients(target, pool(), False, small, None, Hyperparameters(), named)

    found: dict[str, Drafter] = {
        "phrases": phrases(parts()),
        "draft_model": draft_model(parts()),
        "ouroboros": ouroboros(parts("verification", "window", "phrases")),
    }
    if target.branches:
        found |= {
            "random branches": RandomBranches(whole, seed=1, vocabulary=480),
            "off the chain": WithPhrases(OffChain(whole, vocabulary=480), pool()),
            "lookahead": lookahead(parts()),
        }
    alone = layers_draft_alone(target)
    if target.branches and alone and target.model.sizes.experts is None:
        found["layers"] = Layers(target, MeasuredLayers((0, 2), (0.5, 0.1)), fixed=True)
    for kind, options in OPTIONS.items():
        shape = Shape.of(target.config.content)
        assert shape is not None
        if kind_of(kind).drafts_for(shape) and (kind != "mtp" or ahead) and (kind != "s3d" or alone):
            found[kind] = random_numbers(kind, target, options(target))
    return found


def test_every_kind_of_drafter_is_tried() -> None:
    elsewhere = {"assistant", "dspark"}  # tests/drafters and tests/native: neither drafts for every family
    assert {*OPTIONS} | elsewhere == {*kinds("weights"), *kinds("published")}


QUICK = [("llama", "Q4_K_M"), ("phi3", F32)]
SAID, MORE = (24, 8) if "WHOLE_MATRIX" in os.environ else (14, 5)  # tokens of a reply, and of the one after it


# In F32: rotated by neighbours and by halves, fused; layers that share keys, recurrent ones, experts of each kind.
UNLIKE = {"llama", "phi3", "gemma3", "gemma4-e2b", "qwen3_5", "qwen3_moe", "gpt_oss", "qwen3_5_moe"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), seldom(EVERY, {one for one in EVERY if one[1] != F32 or one[0] in UNLIKE}))
def test_no_drafter_changes_an_id(opened, name, kind):
    target, small = opened(name, kind), opened("llama", F32)

    def plainly(prompt: list[int], count: int, sampling: Sampling) -> list[int]:
        return reply(Session(target, Autoregressive(), Budget(0)), prompt, count, sampling)[0]

    # each family samples in one way, and the next one in the other; `make test-all` uses both
    ways = (Sampling(), HOT)
    for sampling in ways if "WHOLE_MATRIX" in os.environ else ways[[*FAMILIES].index(name) % 2 :][:1]:
        for seed in range(9):  # the reply to some prompts ends at once
            prompt = text(40, seed)
            plain = plainly(prompt, SAID, sampling)
            if len(plain) == SAID:
                break
        again = [*prompt, *plain[:5], *text(9, seed=3)]  # the cache is cut within the reply
        plain_again = plainly(again, MORE, sampling)
        for kind_of_drafter, drafter in drafters(target, small, prompt + plain, FAMILIES[name].ahead).items():
            session = Session(target, drafter, Budget(NODES, branches=target.branches))
            ids, statistics = reply(session, prompt, SAID, sampling)
            assert ids == plain, (kind_of_drafter, sampling)
            assert statistics.drafted > 0 or kind_of_drafter in ("phrases", "lookahead"), "it showed nothing"
            assert reply(session, again, MORE, sampling)[0] == plain_again, (kind_of_drafter, sampling)


@pytest.mark.parametrize(
    ("name", "kind"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in EVERY]
)
def test_trees_and_caches_that_are_cut_change_no_bit(opened, name, kind):
    target, tokens = opened(name, kind), text()
    before, root = tokens[:39], tokens[39]
    cache, deep = target.cache(0), 0.5 if target.branches else 1.0
    target.forward(DraftTree.chain(before), cache, last=True)
    cache.keep(range(39))
    tree = random_tree(root, 10, seed=4, vocabulary=480, deep=deep)
    found = target.forward(tree, cache).logits.numpy()
    for node in range(tree.size):
        path = [tree.tokens[one] for one in path_to(tree, node)]
        assert np.array_equal(found[node], read(target, before + path)[-1]), node
    path = path_to(tree, tree.size - 1)
    cache.keep(path)
    whole = [*before, *(tree.tokens[one] for one in path), *tokens[:20]]
    for length in (cache.length, 39, 20):
        cache.truncate(length)
        rest = whole[cache.length :]
        expected = read(target, whole)[cache.length :]
        assert np.array_equal(target.forward(DraftTree.chain(rest), cache).logits.numpy(), expected), length
