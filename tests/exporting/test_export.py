"""Drafters for other engines: their files draft as ours do, by the stock models or those engines' sources."""

import copy
import errno
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from command import called, sentence
from drafting import published
from each import each
from golden import matching, wording
from safetensors.torch import load_file, save_file
from tiny_models import LATER, Tiny, byte_tokenizer, prompt_ids, read, stock_logits, word_tokenizer, write
from transformers import AutoModelForCausalLM, LlamaConfig

from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.trained import load_drafter
from localspec.errors import DoesNotFit, LocalspecError, NotHere, UsageMistake
from localspec.exporting.engines import ENGINES, no_counterpart
from localspec.exporting.export import Exported, export
from localspec.models.drafter_cards import read_drafter
from localspec.models.drafter_kinds import TABLE, kinds
from localspec.training.eagle3_files import read_published as read_head
from localspec.training.medusa_files import read_published
from localspec.training.trainable import make_drafter, save_drafter
from localspec.weights.checkpoint import revision

Make = Callable[[str], Tiny]

LLAMA = "llama-grouped-dynamic"
FAMILIES = [
    "llama-one-key-head-tied-linear",
    "mistral-grouped-window-wide-heads",
    "qwen2-many-heads-mixed-window-tied",
    "qwen3-grouped-mixed-window-wide-heads",
    "phi3-grouped-window-partial-rotary",
    "gemma3-grouped-mixed-window-linear",
    *(name for name in LATER if not name.startswith("gemma4-")),  # of Gemma 4 they are refused
]
MASK = 305
NGRAM = {"vllm": '"method": "ngram"', "sglang": "--speculative-algorithm NGRAM"}


def small_model(path: Path, vocabulary: int = 320, **unlike: Any) -> Path:
    """Return a small language model with a mask token."""
    config = LlamaConfig(**{
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": vocabulary, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0, "pard_token": MASK, **unlike,
    })  # fmt: skip
    return write(path, config, byte_tokenizer(), seed=2)


def trained(of: Tiny, kind: str, path: Path, **options: Any) -> Path:
    """Return a drafter with weights so large that every error shows, in a directory as of `train`."""
    torch.manual_seed(3)
    made = make_drafter(kind, of.target, {"linear": False, **options} if kind == "medusa" else options)
    for parameter in made.parameters():
        parameter.data += torch.randn(parameter.shape) * 0.1
    about = {"target": {"name": str(of.path), "revision": revision(of.path)}}
    save_drafter(made, path, about)
    return path


def test_heads_that_read_the_root_are_nobody_elses(tiny: Make, tmp_path: Path) -> None:
    drafter = trained(tiny(LLAMA), "medusa", tmp_path / "drafter", linear=True)
    with pytest.raises(UsageMistake, match="in other engines heads read only the state"):
        export("vllm", str(drafter), None, tmp_path / "out")


def ours(path: Path, model: Tiny) -> Any:
    return load_drafter(read_drafter(path), model.target)


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def config_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return found


def speculative_config(done: Exported) -> dict[str, Any]:
    """Return the configuration that the command passes to vLLM."""
    found: dict[str, Any] = json.loads(done.command[done.command.index("--speculative-config") + 1])
    return found


# -- Medusa heads ------------------------------------------------------------------------------------------------------


def as_vllm_computes(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Logits [heads, rows, vocab_size] by vLLM's names, as its `Medusa` computes them (vLLM 0.32)."""
    found = []
    for head in range(config["num_heads"]):
        state = x
        for layer in range(config["num_hidden_layers"]):
            name = f"blocks.{head}.layers.{layer}"
            bias = tensors[f"{name}.bias"] if config["medusa_fc_bias"] else None
            state = state + F.silu(F.linear(state, tensors[f"{name}.weight"], bias))
        own = "lm_head.weight" if config["original_lm_head"] else f"lm_heads.{head}.weight"
        found.append(F.linear(state, tensors[own]))
    return torch.stack(found)


@pytest.mark.slow
@each(
    "options, shared",
    [
        ({"private_rank": 0}, True),
        ({"private_rank": 5, "layers": 2, "heads": 3}, False),
        ({"private": True, "private_rank": 0, "heads": 2}, False),
    ],
)
@each("family", [LLAMA, "llama-one-key-head-tied-linear"])
def test_medusa_heads_are_ours_by_vllms_names(tiny: Make, tmp_path: Path, family: str, options: Any, shared: bool):
    model = tiny(family)
    done = export("vllm", str(trained(model, "medusa", tmp_path / "drafter", **options)), None, tmp_path / "out")
    config, tensors, drafter = config_of(done.directory), tensors_of(done.directory), ours(tmp_path / "drafter", model)
    assert (config["model_type"], config["architectures"]) == ("medusa", ["MedusaModel"])
    assert config["truncated_vocab_size"] == config["vocab_size"] == 320 and config["original_lm_head"] == shared
    assert [name for name in config if "num" in name and ("heads" in name or "layers" in name)] == [
        "num_heads", "num_hidden_layers",
    ]  # fmt: skip
    named = {name for name in tensors if not name.startswith("blocks.")}
    assert named == ({"lm_head.weight"} if shared else {f"lm_heads.{head}.weight" for head in range(drafter.depth)})
    states = torch.randn(4, 48)
    theirs = as_vllm_computes(tensors, config, states)
    for row in range(4):
        own = torch.from_numpy(drafter._draft_heads(states[row : row + 1], 0, drafter.depth).numpy())
        torch.testing.assert_close(theirs[:, row], own, rtol=1e-4, atol=1e-4)
    assert speculative_config(done) == {
        "method": "medusa", "model": str(tmp_path / "out"), "num_speculative_tokens": drafter.depth,
    }  # fmt: skip
    assert done.command[:3] == ("vllm", "serve", str(model.path))
    assert done.form == "medusa heads" and done.tokens == drafter.depth
    logits = model.target.transformer.lm_head.weight.detach()
    read = read_published(done.directory, model.target, lambda _: logits)
    assert read.options.heads == drafter.depth  # what we read of vLLM's


@pytest.mark.slow
def test_heads_have_the_precision_of_the_model(tiny: Make, tmp_path: Path):
    model = tiny(LLAMA)
    half = tmp_path / "half"
    copy.deepcopy(model.stock).half().save_pretrained(half)  # the model itself is everybody's, and to round it stays
    model.target.tokenizer.save(half)
    done = export("vllm", str(trained(read(half), "medusa", tmp_path / "drafter")), None, tmp_path / "out")
    assert {tensor.dtype for tensor in tensors_of(done.directory).values()} == {torch.float16}
    assert config_of(done.directory)["dtype"] == "float16"


# -- layers and small models -------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("family", [name for name in LATER if name.startswith("gemma4-")])
def test_layers_like_the_last_of_a_model_whose_layers_differ_are_refused(tiny: Make, tmp_path: Path, family: str):
    path = trained(tiny(family), "parallelspec", tmp_path / "drafter", form="medusa", layers=2, masks=2)
    with pytest.raises(UsageMistake, match=matching("layers_model_differ_from_each")):
        export("vllm", str(path), None, tmp_path / "out")


@pytest.mark.slow
@each("engine", ["vllm", "sglang"])
@each("family", FAMILIES)
def test_layers_become_a_model_whose_rows_are_the_roots(tiny: Make, tmp_path: Path, engine: str, family: str):
    model = tiny(family)
    path = trained(model, "parallelspec", tmp_path / "drafter", form="medusa", layers=2, masks=2)
    done = export(engine, str(path), None, tmp_path / "out")
    stock = AutoModelForCausalLM.from_pretrained(done.directory, attn_implementation="eager", dtype=torch.float32)
    assert stock.config.num_hidden_layers == 2 and done.form == "draft model"
    text, drafter = prompt_ids(24), ours(path, model)
    own = drafter._logits(drafter._predict(text, 2))
    torch.testing.assert_close(stock_logits(stock, text)[-1], own[0], rtol=1e-3, atol=1e-3)
    assert any(wording("token_by_token") in note for note in done.notes)


@pytest.mark.slow
def test_a_trained_small_model_drafts_in_parallel(tiny: Make, tmp_path: Path):
    model, small = tiny(LLAMA), small_model(tmp_path / "small")
    path = trained(model, "parallelspec", tmp_path / "drafter", form="model", model=str(small), masks=3)
    done = export("vllm", str(path), None, tmp_path / "out")
    assert done.form == wording("parallel_draft_model") and config_of(done.directory)["pard_token"] == MASK
    assert speculative_config(done) == {
        "method": "draft_model", "model": str(tmp_path / "out"), "num_speculative_tokens": 4, "parallel_drafting": True,
    }  # fmt: skip
    stock, text = AutoModelForCausalLM.from_pretrained(done.directory, dtype=torch.float32), prompt_ids(20)
    drafter = ours(path, model)
    own, theirs = drafter._logits(drafter._predict(text, 3)), stock_logits(stock, [*text, MASK, MASK, MASK])[-4:]
    can = own[0].isfinite()  # ids that no text has are nothing to us; an engine may draft them, in vain
    torch.testing.assert_close(theirs[:, can], own[:, can], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@each("tied", [True, False])
@each("vocabulary", [310, 320, 336])
def test_published_small_models_get_as_many_ids_as_the_model(tiny: Make, tmp_path: Path, vocabulary: int, tied: bool):
    model, small = tiny(LLAMA), small_model(tmp_path / "small", vocabulary, tie_word_embeddings=tied)
    (small / "LICENSE").write_text("Yours.")
    text, known = prompt_ids(20), min(vocabulary, 320)
    theirs = stock_logits(AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32), [*text, MASK])
    for engine, drafter, parallel in (
        ("vllm", str(small), True),
        ("sglang", str(small), False),
        ("vllm", f"draft_model:{small}", False),
    ):
        out = tmp_path / f"{engine}-{parallel}"
        done = export(engine, drafter, str(model.path), out)
        stock = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        assert stock.config.vocab_size == 320
        torch.testing.assert_close(stock_logits(stock, [*text, MASK])[:, :known], theirs[:, :known])
        assert (done.form == wording("parallel_draft_model")) == parallel
        assert any("now has" in note for note in done.notes) == (vocabulary != 320)
        assert (out / "LICENSE").read_text() == "Yours."
        assert {file: (out / file).read_bytes() for file in ("tokenizer.json",)} == {
            file: (model.path / file).read_bytes() for file in ("tokenizer.json",)
        }


@pytest.mark.slow
def test_what_is_too_large_for_one_file_gets_an_index(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localspec.nn.weights.SHARD", 20_000)
    model, small = tiny(LLAMA), small_model(tmp_path / "small")
    done = export("vllm", f"draft_model:{small}", str(model.path), tmp_path / "out")
    assert len([file for file in done.files if file.endswith(".safetensors")]) > 2
    stock = AutoModelForCausalLM.from_pretrained(done.directory, dtype=torch.float32)
    text = prompt_ids(9)
    own = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    torch.testing.assert_close(stock_logits(stock, text), stock_logits(own, text))
    assert done.bytes == sum(file.stat().st_size for file in done.directory.iterdir())


def test_a_model_with_other_tokens_is_refused(tiny: Make, tmp_path: Path):
    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=320
    )
    other = write(tmp_path / "other", config, word_tokenizer([f"w{n}" for n in range(310)]), seed=1)
    with pytest.raises(UsageMistake, match=matching("has_another_tokenizer")):
        export("sglang", f"draft_model:{other}", str(tiny(LLAMA).path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- EAGLE-3 heads -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("engine", ["vllm", "sglang"])
@each("options", [{"depth": 4}, {"vocabulary": 90, "states": "0,2"}])
def test_an_eagle3_head_is_ours_by_the_published_names(tiny: Make, tmp_path: Path, engine: str, options: Any):
    """The exported file is read again as a published head: every number and every switch."""
    model = tiny("llama-one-key-head-tied-linear")
    path = trained(model, "eagle3", tmp_path / "drafter", **options)
    done = export(engine, str(path), None, tmp_path / "out")
    config, own = config_of(done.directory), load_file(path / "drafter.safetensors")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["draft_vocab_size"] == len(
        own["head.weight"]
    )
    places = [*map(int, json.loads((path / "drafter.json").read_text())["options"]["states"].split(","))]
    assert config["eagle_aux_hidden_state_layer_ids"] == places
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [place - 1 for place in places]
    again = read_head(done.directory, model.target, lambda _: model.stock.get_input_embeddings().weight.detach())
    assert again.tensors().keys() == own.keys()
    for name, tensor in again.tensors().items():
        assert torch.equal(tensor, own[name]), name
    prompt = prompt_ids(9)
    said = [hidden_reply(model, one, prompt) for one in (ours(path, model), published(again, model.target))]
    assert said[0] == said[1], "the rotation is the target's, too"
    assert (done.form, done.tokens) == ("eagle3 head", options.get("depth", 5))
    if engine == "vllm":
        assert speculative_config(done)["method"] == "eagle3"
    else:
        assert done.command[done.command.index("--speculative-algorithm") + 1] == "EAGLE3"


def hidden_reply(model: Tiny, drafter: Any, prompt: list[int]) -> list[tuple[int, ...]]:
    """Return the drafts along a reply."""
    seen, draft = list[tuple[int, ...]](), drafter.draft
    drafter.draft = lambda context: (found := draft(context), seen.append(tuple(found.tokens)))[0]
    list(Session(model.target, drafter, Budget(6)).generate(prompt, Sampling(), Limits(max_tokens=6)))
    return seen


@pytest.mark.slow
def test_an_eagle3_head_that_engines_would_misread_or_have_already_is_refused(tiny: Make, tmp_path: Path):
    for family, named in (
        ("llama-grouped-dynamic", "'dynamic'"),
        ("phi3-grouped-window-partial-rotary", matching("a_part_of_each")),
    ):
        path = trained(tiny(family), "eagle3", tmp_path / family)
        with pytest.raises(UsageMistake, match=named):
            export("vllm", str(path), None, tmp_path / "out")
    model = tiny("llama-one-key-head-tied-linear")
    layer = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "vocab_size": 320}  # fmt: skip
    path = trained(model, "eagle3", tmp_path / "published", config=json.dumps(layer))
    with pytest.raises(UsageMistake, match=matching("give_it_that")):
        export("sglang", str(path), None, tmp_path / "out")


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_for_several_cards(tiny: Make, tmp_path: Path):
    model, small = tiny(LLAMA), small_model(tmp_path / "small")
    done = export("vllm", f"draft_model:{small}", str(model.path), tmp_path / "vllm", tensor_parallel=2)
    assert done.command[3:5] == ("--tensor-parallel-size", "2")
    assert speculative_config(done) == {
        "method": "draft_model", "model": str(tmp_path / "vllm"), "num_speculative_tokens": 5,
        "draft_tensor_parallel_size": 2,
    }  # fmt: skip
    done = export("sglang", f"draft_model:{small}", str(model.path), tmp_path / "sglang", tensor_parallel=2)
    assert shlex.join(done.command) == (
        f"python -m sglang.launch_server --model-path {model.path} --speculative-algorithm STANDALONE "
        f"--speculative-draft-model-path {tmp_path / 'sglang'} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --tp-size 2"
    )
    with pytest.raises(
        UsageMistake, match=matching("n4_does_share_2_attention_heads")
    ):  # the small model's; the target has 4
        export("vllm", f"draft_model:{small}", str(model.path), tmp_path / "four", tensor_parallel=4)
    with pytest.raises(UsageMistake, match=matching("n3_does_share_4_attention_heads")):
        export("vllm", f"draft_model:{small}", str(model.path), tmp_path / "three", tensor_parallel=3)


# -- what has no counterpart -------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("engine", ["vllm", "sglang"])
@each("kind", [row.name for row in TABLE if row.name not in ("eagle3", *kinds("published"))])
def test_what_has_no_counterpart_names_the_nearest(tmp_path: Path, engine: str, kind: str):
    if kind == "draft_model" or (engine, kind) == ("vllm", "medusa"):
        export(engine, kind, "demo", tmp_path / "out")
        return
    with pytest.raises(UsageMistake) as refused:
        export(engine, kind, "demo", tmp_path / "out")
    told = str(refused.value)
    nearest = {
        "phrases": NGRAM[engine],
        "lookahead": NGRAM[engine],
        "none": "no drafter to export",
        "parallelspec": "form=",
    }
    assert nearest.get(kind, "draft_model") in told and not (tmp_path / "out").exists()


def test_what_others_publish_is_served_where_it_is():
    for kind, engine, flag in (
        ("mtp", "vllm", "in the model's own files, .* with the method mtp"), ("mtp", "sglang", "NEXTN"),
        ("dflash", "vllm", "in the repository that it came from, .* the method dflash"), ("dflash", "sglang", "DFLASH"),
    ):  # fmt: skip
        assert re.search(flag, str(no_counterpart(ENGINES[engine], kind)))


def test_names_of_no_one_drafter_are_refused(tmp_path: Path):
    for name, why in (
        ("auto", matching("auto_does_not_name")),
        ("medusa+s3d", "names several"),
        ("medusa+phrases", "names several"),
    ):
        with pytest.raises(UsageMistake, match=why):
            export("vllm", name, "demo", tmp_path / "out")
    with pytest.raises(UsageMistake, match="-m MODEL"):
        export("vllm", "medusa", None, tmp_path / "out")


def test_what_reads_the_targets_states_is_refused(tiny: Make, tmp_path: Path):
    small = small_model(tmp_path / "small", pard2=True, pard2_target_layers=[-1])
    save_file({"target_proj.weight": torch.zeros(32, 48)}, small / "warp_model.safetensors")
    with pytest.raises(UsageMistake, match="PARD-2"):
        export("vllm", str(small), str(tiny(LLAMA).path), tmp_path / "out")


# -- files -------------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tiny: Make, tmp_path: Path):
    drafter, out = str(trained(tiny(LLAMA), "medusa", tmp_path / "drafter")), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    for taken in (out, out / "mine"):
        with pytest.raises(UsageMistake, match=matching("nothing_is_overwritten")):
            export("vllm", drafter, None, taken)
    assert (out / "mine").read_text() == "mine" and len(list(out.iterdir())) == 1
    (out / "mine").unlink()
    assert export("vllm", drafter, None, out).files == ("config.json", "model.safetensors")  # an empty one is filled


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_no_half_directory_stays(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException):
    drafter = str(trained(tiny(LLAMA), "medusa", tmp_path / "drafter"))

    def write(*_: Any, **__: Any) -> None:
        raise trouble

    monkeypatch.setattr("localspec.nn.weights.save_file", write)
    with pytest.raises((DoesNotFit, KeyboardInterrupt)):
        export("vllm", drafter, None, tmp_path / "new" / "out")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_export_left_goes_with_the_next(tiny: Make, tmp_path: Path):
    drafter = str(trained(tiny(LLAMA), "medusa", tmp_path / "drafter"))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    for process in (gone.stdout.strip(), "1", "mine"):
        (tmp_path / f".out.{process}.new" / "within").mkdir(parents=True)
    export("vllm", drafter, None, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.glob(".out*")) == [".out.1.new", ".out.mine.new"]


def test_damage_is_reported_before_a_server_reads_it(tiny: Make, tmp_path: Path):
    path = trained(tiny(LLAMA), "medusa", tmp_path / "drafter")
    tensors = load_file(path / "drafter.safetensors")
    tensors["blocks.0.bias"][1, 3] = float("nan")
    save_file(tensors, path / "drafter.safetensors")
    with pytest.raises(LocalspecError, match="NaN"):
        export("vllm", str(path), None, tmp_path / "out")
    del tensors["blocks.0.bias"]
    save_file(tensors, path / "drafter.safetensors")
    with pytest.raises(LocalspecError, match=matching("blocks_0_bias_is_missing")):
        export("vllm", str(path), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_drafter_knows_its_model(tiny: Make, tmp_path: Path):
    model, path = tiny(LLAMA), trained(tiny(LLAMA), "medusa", tmp_path / "run" / "drafter")
    assert export("vllm", str(path.parent), None, tmp_path / "one").model == str(model.path)
    other = tiny("qwen2-one-key-head")
    with pytest.raises(UsageMistake, match=matching("was_made_for")):
        export("vllm", str(path), str(other.path), tmp_path / "two")
    card = json.loads((path / "drafter.json").read_text())
    (path / "drafter.json").write_text(json.dumps({**card, "target": {**card["target"], "name": "gone"}}))
    with pytest.raises(NotHere, match="-m MODEL"):
        export("vllm", str(path), None, tmp_path / "three")


def test_vllm_misreads_some_paths(tiny: Make, tmp_path: Path):
    drafter = str(trained(tiny(LLAMA), "medusa", tmp_path / "drafter"))
    with pytest.raises(UsageMistake, match="'dflash'"):
        export("vllm", drafter, None, tmp_path / "my-DFlash")
    with pytest.raises(UsageMistake, match="'eagle3'"):
        export("vllm", drafter, None, tmp_path / "eagle3")
    small = f"draft_model:{small_model(tmp_path / 'small')}"
    for engine, own in (("vllm", drafter), ("sglang", small)):
        with pytest.raises(UsageMistake, match=matching("no_command_line_shows")):
            export(engine, own, str(tiny(LLAMA).path), tmp_path / "red\x1b[31m")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_size_and_command_line(tmp_path: Path):
    result = called(tmp_path, "export", "vllm", "medusa", "-m", "demo", "--out", "heads")
    assert result.returncode == 0 and result.stderr == ""
    first, *notes, last = result.stdout.splitlines()
    assert first.startswith("medusa for vLLM: medusa heads, ") and first.endswith(str(tmp_path / "heads"))
    assert "MiB" in first and any("0.32" in note for note in notes)
    words = shlex.split(last)
    assert words[:2] == ["vllm", "serve"] and json.loads(words[-1])["model"] == str(tmp_path / "heads")
    told = json.loads(
        called(tmp_path, "export", "vllm", "draft_model", "-m", "demo", "--out", "small", "--json").stdout
    )
    assert told["form"] == "draft model" and told["command"][0] == "vllm" and told["tokens"] == 5
    assert told["bytes"] == sum((tmp_path / "small" / file).stat().st_size for file in told["files"])


def test_mistakes_are_sentences(tmp_path: Path):
    for words, told in (
        (("vlm", "medusa"), "did you mean"),
        (("vllm", "medusa", "--tensor-parallel", "0"), "tensor-parallel"),
        (("vllm", "medussa"), "medusa"),
    ):
        result = called(tmp_path, "export", *words, "-m", "demo", "--out", "out")
        assert result.returncode == 2 and told in sentence(result)
