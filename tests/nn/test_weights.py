"""Weights are read exactly, once, into newly allocated memory; files that changed meanwhile are named in an error."""

import ctypes
import errno
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import ROOT
from each import each
from golden import matching
from kernel_files import needs_peaks
from safetensors.torch import load_file, save_file
from tiny_models import SHARDED, Tiny, copied

from localspec.errors import LocalspecError
from localspec.families.architecture import TransformerConfig, in_features, weight_map
from localspec.families.model_config import ModelConfig
from localspec.nn import weights
from localspec.nn.target import Target
from localspec.nn.weights import Weights, freed_at_once
from localspec.weights import stored
from localspec.weights.checkpoint import inspect, tensor_headers, tensor_start
from localspec.weights.stored import read_config, stored_parts

Make = Callable[[str], Tiny]
NAME = "qwen2-grouped-yarn"


def reading(path: Path, dtype: torch.dtype = torch.float32) -> Weights:
    checkpoint = inspect(path)
    sizes = TransformerConfig.of(read_config(checkpoint))
    return Weights(stored_parts(checkpoint, sizes), sizes, dtype, "cpu")


@pytest.mark.slow
@each("piece, dtype", [(weights.PIECE, torch.float32), (7, torch.bfloat16), (1000, torch.float32)])
@each("made", [(SHARDED, torch.float32), *((NAME, one) for one in (torch.bfloat16, torch.float16, torch.float64))])
def test_each_parameter_is_what_the_files_hold(tiny, tmp_path, monkeypatch, made, dtype, piece):
    monkeypatch.setattr(weights, "PIECE", piece)
    name, stored = made
    model = tiny(name)
    path = model.path
    if stored != torch.float32:
        path = copied(model, tmp_path / "model", lambda tensors: {n: t.to(stored) for n, t in tensors.items()})
    files = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    ours = reading(path, dtype)
    assert [*ours] == [*weight_map(model.target.transformer.config)] and len(ours) == len([*ours])
    for parameter, made_of in weight_map(model.target.transformer.config).items():
        right = torch.cat([files[part] for part, _ in made_of]).to(dtype)
        read = ours[parameter]
        assert read.dtype == dtype and torch.equal(read, right), parameter
        assert read.is_contiguous() and read.untyped_storage().nbytes() == read.nbytes, (
            "a separate allocation of the same size"
        )


@pytest.mark.skipif(sys.platform != "linux", reason="where a process can look at its maps")
def test_no_file_stays_open_or_mapped(tiny, tmp_path):
    path = copied(tiny(NAME), tmp_path / "model", lambda tensors: tensors)  # the stock model holds its own mapped
    target = Target.load(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert not any(
        str(path) in str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    )
    assert target.nbytes


def test_a_device_without_a_number_gets_no_number(tiny, monkeypatch):
    """Training loads a large model this way to read only its shapes."""
    target = Target.load(tiny(NAME).path)  # another test may have changed the shared one
    monkeypatch.setattr(stored, "FileIO", None)
    shadow = Target.load(tiny(NAME).path, device="meta")
    assert shadow.device == "meta" and shadow.nbytes == target.nbytes


@each("dtype", [torch.float32, torch.bfloat16])
def test_a_file_that_was_cut_after_its_header_was_read_is_reported_by_name(tiny, tmp_path, dtype):
    path = copied(tiny(NAME), tmp_path / "model", lambda tensors: tensors)
    ours, file = reading(path, dtype), path / "model.safetensors"
    last = max(tensor_headers(file).items(), key=lambda entry: entry[1]["data_offsets"])[0]
    name = next(name for name, parts in weight_map(tiny(NAME).target.transformer.config).items() if last in dict(parts))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(LocalspecError, match=matching("model_safetensors_damaged_ends")):
        ours[name]
    file.unlink()
    with pytest.raises(
        LocalspecError, match=f"{matching('model_safetensors_cannot_be_read_no')} .*{matching('correct_that_2')}"
    ):
        ours[name]


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tiny, tmp_path, monkeypatch):
    ours = reading(copied(tiny(NAME), tmp_path / "model", lambda tensors: tensors), torch.float32)

    def full(file: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(file))

    monkeypatch.setattr(stored, "FileIO", full)
    with pytest.raises(LocalspecError, match=f"^{matching('no_more_files_can_be_opened')} .*ulimit"):
        ours[next(iter(ours))]


def test_a_tensor_of_a_type_nobody_knows_is_named(tiny, tmp_path):
    path = copied(tiny(NAME), tmp_path / "model", lambda tensors: tensors)
    file = path / "model.safetensors"
    content, start = file.read_bytes(), tensor_start(file)
    header = json.loads(content[8:start])
    header["model.norm.weight"]["dtype"] = "F4"
    changed = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(changed)) + changed + content[start:])
    with pytest.raises(LocalspecError, match=r"'model\.norm\.weight' in .* is of the type F4"):
        reading(path)


@each("error", [OSError, AttributeError, TypeError])
def test_another_systems_allocator_is_not_changed(monkeypatch, error):
    def missing(name: str | None) -> None:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    passed = []
    with freed_at_once():
        passed.append(1)
    with pytest.raises(ValueError, match="inside"), freed_at_once():
        raise ValueError("inside")
    assert passed


PEAK = """
import json, os, sys
from pathlib import Path
import torch
from localspec.nn import packing
from localspec.nn.linear_mps import Int8WeightOnlyLinear
from localspec.nn.target import Target

packing._CLASSES["int8", "cpu"] = Int8WeightOnlyLinear
small = Path(sys.argv[1])
torch.set_num_threads(1)
status = lambda name: next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(name))


def measured(path, dtype, quantize):
    asked = {"dtype": getattr(torch, dtype), "quantize": quantize}
    Target.load(small, **asked)  # what the first use of anything takes is not the model's
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    target = Target.load(Path(path), **asked)
    return {"nbytes": target.nbytes, "held": status("VmRSS") - before, "peak": status("VmHWM") - before}


for case in json.loads(sys.argv[2]):
    if (child := os.fork()) == 0:  # each in a process that has loaded no other
        print(json.dumps(measured(*case)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a model of 30 million parameters, of which 8 are its head, in both formats."""
    from tiny_models import byte_tokenizer
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=16384, max_position_embeddings=512, bos_token_id=None, eos_token_id=4, pad_token_id=0,
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    shape, paths = TransformerConfig.of(ModelConfig.of(config.to_dict())), {}
    for name in ("float32", "bfloat16"):
        path = paths[name] = tmp_path_factory.mktemp("model") / name
        byte_tokenizer().save_pretrained(path)
        config.save_pretrained(path)
        tensors = {
            part: torch.full([rows, *[n for n in [in_features(ours, shape)] if n]], 0.01, dtype=getattr(torch, name))
            for ours, made_of in weight_map(shape).items()
            for part, rows in made_of
        }
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return paths


KINDS_OF_LOADING = [
    ("float32", "float32", "none"),
    ("bfloat16", "bfloat16", "none"),
    ("float32", "bfloat16", "none"),
    ("bfloat16", "bfloat16", "int8"),
]


@pytest.fixture(scope="module")
def peaks(tiny: Make, large: dict[str, Path]) -> dict[tuple[str, str, str], dict[str, int]]:
    """Return the memory of each kind of loading. All are forked from one process, because importing torch is slow."""
    kinds = json.dumps([(str(large[stored]), dtype, quantize) for stored, dtype, quantize in KINDS_OF_LOADING])
    result = subprocess.run(
        # first one of the same family: what transformers imports for it is not the model's memory either
        [sys.executable, "-c", PEAK, tiny("llama-grouped-dynamic").path, kinds],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return dict(zip(KINDS_OF_LOADING, map(json.loads, result.stdout.splitlines()), strict=True))


@pytest.mark.slow
@needs_peaks
@each("kind", KINDS_OF_LOADING)
def test_loading_takes_the_model_and_at_most_one_parameter_more(peaks, kind):
    told, slack = peaks[kind], 8 << 20  # the tokenizer, a piece of a weight, what a forward takes
    _, dtype, quantize = kind
    # Of the largest parameter: itself and its steps.
    one = 16384 * 512 * (getattr(torch, dtype).itemsize + 1) if quantize == "int8" else 0
    assert told["nbytes"] < told["held"] + slack, "the figure that is shown is no more than what is held"
    assert told["held"] < told["nbytes"] + slack
    assert told["peak"] < told["nbytes"] + one + slack
