"""The predicted memory of a model against what the CPU engine reports that it holds."""

import json
import subprocess
import sys
from pathlib import Path

import gguf_families
import pytest
import tiny_models
from command import ROOT
from each import each
from gguf_files import write_model
from invented_native import invented_target
from kernel_files import needs_shares
from machines import cpu
from transformers import LlamaConfig

from localspec.choosing.drafters import drafter_bytes
from localspec.choosing.fit import BUCKET, CHUNK, cache, drafter_numbers, unread, weights
from localspec.choosing.measure import NoMeasurements
from localspec.choosing.plans import Precision, as_computed, run_plans
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.trained import load_drafter
from localspec.engine.importing import import_gguf
from localspec.events import Reporter
from localspec.families.architecture import in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.machine import compiled
from localspec.models.drafter_cards import trained_drafters
from localspec.models.model import Model, model_of
from localspec.models.registry import resolve
from localspec.models.shape import Shape
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.paths import Paths
from localspec.weights.matrices import PackedMatrix
from localspec.weights.packed_file import BLOCKS, read
from localspec.weights.packed_files import packed_in
from localspec.weights.recipe import read_bytes

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")


@pytest.mark.slow
@each("packing", ["int8", "int4", "bf16", "fp32"])
def test_the_demo_s_drafters_hold_what_is_predicted(packing, monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    card = resolve("demo")
    target = NativeTarget.open(card.path, packing=packing)
    shape = Shape.of(target.config.content)
    assert shape is not None
    dtype, quantize = (packing, "none") if packing in ("bf16", "fp32") else ("bf16", packing)
    numbers = drafter_numbers(dtype, quantize, "native")
    found = trained_drafters(card)
    assert {one.kind for one in found} == {"eagle3", "medusa", "parallelspec", "s3d", "semi"}
    for one in found:
        held = load_drafter(one, target).nbytes
        read = CHUNK * one.inner * numbers[1]  # of the target's states, while a prompt is read
        names = 4 * (one.options["vocabulary"] if one.kind == "eagle3" else 0)  # the tokens of its head
        assert drafter_bytes(one, shape, dtype, numbers, 0) == held + read + names, one.kind


@pytest.mark.slow
def test_a_drafter_holds_after_a_text_what_is_predicted_for_its_tokens(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    card, tokens = resolve("demo"), 2 * BUCKET
    target = NativeTarget.open(card.path, packing="int8")
    shape = Shape.of(target.config.content)
    assert shape is not None
    (eagle,) = (one for one in trained_drafters(card) if one.kind == "eagle3")
    drafter = load_drafter(eagle, target)
    empty = drafter.nbytes
    prompt = [*target.encode([{"role": "user", "content": "Tell me about the sea. " * 66}])]
    assert tokens - 100 < len(prompt) < tokens - 32
    *_, done = Session(target, drafter, Budget(4)).generate(prompt, Sampling(), Limits(max_tokens=32))
    assert done.statistics.drafted
    numbers = drafter_numbers("bf16", "int8", "native")
    predicted, nothing = (drafter_bytes(eagle, shape, "bf16", numbers, planned) for planned in (tokens, 0))
    assert predicted - nothing == pytest.approx(drafter.nbytes - empty, rel=0.15)


GEMMA4 = {
    "model_type": "gemma4_text", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4,
    "num_attention_heads": 4, "head_dim": 32, "global_head_dim": 64, "vocab_size": 320,
    "vocab_size_per_layer_input": 384, "sliding_window": 7, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
OWN_KEYS = {
    "num_key_value_heads": 4, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
SHARED_KEYS = {
    "num_key_value_heads": 1, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 64,
}  # fmt: skip


@each("packing", ["int8", "int4", "bf16", "fp32"])
@each("unlike", [OWN_KEYS, SHARED_KEYS])
def test_a_model_whose_layers_differ_holds_what_is_predicted(unlike, packing):
    """Exact to the byte where no matrix and no head is padded; a cache also stores a position for each slot."""
    content = {**GEMMA4, **unlike}
    target, shape = invented_target(ModelConfig.of(content), packing), Shape.of(content)
    assert shape is not None
    sizes = target.model.sizes
    parameters = sum(sum(rows for _, rows in made_of) * (in_features(name, sizes) or 1)
                     for name, made_of in weight_map(sizes).items())  # fmt: skip
    dtype, quantize = (packing, "none") if packing in ("bf16", "fp32") else ("bf16", packing)
    assert weights(shape, dtype, quantize, "native", parameters) == target.nbytes
    assert unread(shape, quantize, "native", 0) == (target.nbytes - target.read_bytes if quantize != "none" else 0)
    positions = 256 * 4
    assert cache(shape, 256, dtype) == target.cache(256).nbytes - positions


MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320, "num_experts": 32,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
BESIDE = {
    **GEMMA4, **OWN_KEYS, "enable_moe_block": True, "num_experts": 32, "top_k_experts": 2, "moe_intermediate_size": 64,
}  # fmt: skip


@each("packing", ["int8", "int4", "bf16", "fp32"])
@each("content", [MIXTURE, BESIDE])
def test_a_mixture_holds_what_is_predicted_and_a_row_reads_the_experts_that_it_chooses(content, packing):
    target, shape = invented_target(ModelConfig.of(content), packing), Shape.of(content)
    assert shape is not None
    parameters = sum(sum(rows for _, rows in made_of) * (in_features(name, target.model.sizes) or 1)
                     for name, made_of in weight_map(target.model.sizes).items())  # fmt: skip
    dtype, quantize = (packing, "none") if packing in ("bf16", "fp32") else ("bf16", packing)
    assert weights(shape, dtype, quantize, "native", parameters) == target.nbytes
    held = {name: one.nbytes for name, one in target.model.weights.items()}
    experts = sum(count for name, count in held.items() if ".experts." in name)
    assert target.read_bytes == target.nbytes - held["embed_tokens"] - experts * 30 // 32
    assert cache(shape, 512, dtype) == target.cache(512).nbytes - 512 * 4, "layers with a window hold all tokens, too"
    assert shape.in_experts == sum(3 * 64 * 128 * 32 for _ in range(shape.num_layers)) > 0.6 * parameters


def step_of(file: Path) -> tuple[tuple[float, float], Model, NativeTarget]:
    """Return the bytes that the header of an imported file predicts, with the model and the loaded target."""
    path = import_gguf(file, Settings(), Reporter()).path
    model = model_of(resolve(str(path)))
    assert model.block_reads is not None
    target = NativeTarget.open(path, packing=BLOCKS, context=64, threads=Threads(1))
    return model.block_reads, model, target


@pytest.mark.slow
@each("kind", ["F32", "Q8_0"])
@each("family", ["qwen3_moe", "gpt_oss", "qwen3_5_moe", "gemma4-26b", "qwen3"])
def test_the_tensors_in_a_header_say_which_bytes_a_step_reads(family, kind, fresh_home, tmp_path):
    (always, experts), model, target = step_of(gguf_families.write(tmp_path / "tiny.gguf", family, kind=kind))
    held = {name: one.nbytes for name, one in target.model.weights.items()}
    assert experts == sum(count for name, count in held.items() if ".experts." in name)
    assert always + experts * model.shape.chosen(1) == target.read_bytes
    assert (experts > 0) == (model.shape.chosen(1) == 0.25) == (family != "qwen3")
    if family != "qwen3_5_moe":  # whose states are allocated by the first forward
        assert cache(model.shape, 512, "bf16") == target.cache(512).nbytes - 512 * 4, "with a window of 32, too"
    files = read(model.card.path).header.origin.files
    every = packed_in(Paths(fresh_home).packed)  # which answer if a GGUF file is gone
    laid_out = [one for one in every if one.header.origin.files == files]
    assert len(laid_out) == ((family, kind) != ("qwen3", "Q8_0"))
    assert all(read_bytes(one.header) == (always, experts) for one in laid_out)


def test_a_width_that_no_block_divides_is_predicted_in_int8(fresh_home, tmp_path):
    shape = {**tiny_models._SHAPE, "hidden_size": 48, "intermediate_size": 64, "num_key_value_heads": 2}
    made = tiny_models.write(tmp_path / "narrow", LlamaConfig(**shape), tiny_models.byte_tokenizer(), 0)
    (always, experts), _, target = step_of(write_model(tmp_path / "narrow.gguf", made, "F16"))
    assert (always, experts) == (target.read_bytes, 0)
    assert isinstance(target.model.weights["layers.0.qkv_proj.weight"], PackedMatrix)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
@each("shape, unlike", [("30b-a3b", 1.0), ("gpt-oss-20b", 1.2)])
def test_a_step_of_the_timed_shapes_reads_what_their_header_says(shape, unlike, fresh_home, tmp_path, monkeypatch):
    """Their embedding, head and attention have more bits than experts; an average over the file counts too few."""
    monkeypatch.syspath_prepend(str(ROOT / "research"))
    import experts_speed

    name, *_, of_attention, of_experts, of_tables = experts_speed.SHAPES[shape]
    small = (name, 2, 256, 4, 2, 64, 8, 2, 256, 512, of_attention, of_experts, of_tables)
    monkeypatch.setitem(experts_speed.SHAPES, shape, small)
    words = gguf_families.write(tmp_path / "words.gguf", "qwen3_moe")
    experts_speed.write(shape, tmp_path / "small.gguf", words, None)
    (always, experts), model, target = step_of(tmp_path / "small.gguf")
    assert always + experts * model.shape.chosen(1) == target.read_bytes
    by_average = model.block_bytes * model.shape.read(1) / model.shape.parameters
    assert target.read_bytes > unlike * by_average
    device = as_computed(cpu(bandwidth=1e6), model)  # so slow that only reading counts
    (plan, *_) = run_plans(model, [Precision(device, "bf16", BLOCKS)], NoMeasurements())
    assert 1 / plan.speed == pytest.approx(target.read_bytes / (0.9 * 1e6), rel=0.02)


TOUCHES = """
import json, os, sys, time
from pathlib import Path
from localspec.weights.opened import PackedModel
import numpy as np

model = PackedModel.open(Path(sys.argv[1]))
whole = np.frombuffer(model.content, np.uint8)
whole[::4096].sum()  # every page
print("read", flush=True)
sys.stdin.readline()
wanted = {"Pss:", "Rss:", "Shared_Clean:", "Private_Dirty:"}
found, ours = {}, False
for line in open("/proc/self/smaps"):
    first = line.split()[0]
    if "-" in first and not first.endswith(":"):
        ours = line.rstrip().endswith(".packed")
    elif ours and first in wanted:
        found[first] = found.get(first, 0) + int(line.split()[1]) * 1024
print(json.dumps(found))
"""


@pytest.mark.slow
@needs_shares
def test_two_processes_share_one_copy_of_a_packed_model(tmp_path, monkeypatch):
    from localspec.weights.opening import load
    from localspec.weights.packed_files import packed_files

    load(resolve("demo").path, "int8", "demo", 1, Reporter(), Paths(tmp_path))
    (file,) = (one.path for one in packed_files(Paths(tmp_path)))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TOUCHES, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in both:
        assert one.stdout is not None and one.stdout.readline() == "read\n"
    told = []
    for one in both:  # the first still has it mapped, since it waits until its pipe is closed
        assert one.stdin is not None and one.stdout is not None
        one.stdin.write("\n")
        one.stdin.flush()
        told.append(json.loads(one.stdout.readline()))
        if one is both[0]:
            continue
    for one in both:
        one.communicate()
    size = file.stat().st_size
    assert told[0]["Rss:"] >= size and told[0]["Pss:"] <= 0.51 * told[0]["Rss:"], "half of it each"
    assert all(one["Private_Dirty:"] == 0 for one in told)
