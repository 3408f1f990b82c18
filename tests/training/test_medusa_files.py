"""Published Medusa heads: every layout of them, and what is refused, with files that the tests write."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from each import each
from golden import matching
from safetensors.torch import load_file, save_file
from tiny_models import SHARDED, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.medusa import Drafter as Medusa
from localspec.drafters.trained import load_drafter
from localspec.errors import DoesNotFit, LocalspecError, NotHere
from localspec.models.drafter_cards import read_drafter
from localspec.nn.target import Target
from localspec.training import medusa_files
from localspec.training.drafters.medusa import Trainable
from localspec.training.medusa_files import split
from localspec.training.published_files import convert
from localspec.training.trainable import make_drafter, save_drafter
from localspec.weights.checkpoint import PICKLED_INDEX, inspect, revision

Make = Callable[[str], Tiny]
Tensors = dict[str, torch.Tensor]

LLAMA = "llama-grouped-dynamic"
WIDTH, VOCABULARY, HEADS = 48, 320, 3


@pytest.fixture
def target(tiny: Make) -> Target:
    return tiny(LLAMA).target


def read_published(path: Path, target: Target) -> Trainable:
    """Return the heads in a file or directory as a drafter in fp32."""
    found = medusa_files.read_published(path, target, lambda _: target.transformer.lm_head.weight.detach())
    drafter = make_drafter(found.kind, target, asdict(found.options))
    assert isinstance(drafter, Trainable)
    drafter.load_tensors({name: tensor.float() for name, tensor in found.tensors().items()})
    return drafter.eval()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def official(layers: int = 1, heads: int = HEADS) -> Tensors:
    """Return the tensors {head}.{block}.linear.…, whose names v0.1 and v2 have in common."""
    made = {}
    for head in range(heads):
        for block in range(layers):
            made[f"{head}.{block}.linear.weight"] = random(WIDTH, WIDTH, seed=10 * head + block)
            made[f"{head}.{block}.linear.bias"] = random(WIDTH, seed=100 + 10 * head + block)
    return made


def private(names: str, heads: int = HEADS) -> Tensors:
    return {names.format(head): random(VOCABULARY, WIDTH, seed=1000 + head) for head in range(heads)}


def vllm(tensors: Tensors) -> Tensors:
    """Return the same blocks by the other names."""
    renamed = {}
    for name, tensor in tensors.items():
        head, block, _, kind = name.split(".")
        renamed[f"blocks.{head}.layers.{block}.{kind}"] = tensor
    return renamed


def expected(tensors: Tensors, state: torch.Tensor, head: int, layers: int, linear: torch.Tensor) -> torch.Tensor:
    """Return the result of the published code."""
    x = state
    for block in range(layers):
        weight, bias = (tensors[f"{head}.{block}.linear.{kind}"] for kind in ("weight", "bias"))
        x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, weight, bias))
    return x @ linear.T


def assert_drafts_as_published(
    drafter: object, blocks: Tensors, layers: int, matrices: list[torch.Tensor], close: float = 1e-5
) -> None:
    """Compare each head's logits with those of the published code."""
    state = random(1, WIDTH)
    found = logits(drafter, state)
    assert len(found) == len(matrices)
    for head, matrix in enumerate(matrices):
        wanted = expected(blocks, state[0], head, layers, matrix)
        torch.testing.assert_close(found[head], wanted, rtol=close, atol=close)


def logits(drafter: object, state: torch.Tensor) -> torch.Tensor:
    if isinstance(drafter, Medusa):
        return torch.as_tensor(drafter._draft_heads(state, 0, drafter.depth))
    assert isinstance(drafter, Trainable)
    return drafter._logits(state.expand(drafter.depth, 1, -1), slice(drafter.depth))[:, 0]


def test_v01_with_private_matrices_and_a_config_that_is_wrong_about_the_heads(tmp_path, target: Target) -> None:
    blocks, matrices = official(layers=2), private("{}.2.weight")
    torch.save({**blocks, **matrices}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    drafter = read_published(tmp_path, target)
    assert (drafter.options.heads, drafter.options.layers, drafter.options.private) == (HEADS, 2, True)
    assert_drafts_as_published(drafter, blocks, 2, [*matrices.values()])


@each("form", ["v0.1", "vllm", "vllm, one for all"])
def test_private_matrices_that_are_the_targets_own_are_shared(tmp_path, tiny: Make, form: str) -> None:
    """One different matrix makes all private."""
    target = tiny(LLAMA).target
    own = target.transformer.lm_head.weight.detach()
    blocks = official(heads=4)
    whole = {"v0.1": blocks, "vllm": vllm(blocks), "vllm, one for all": vllm(blocks)}[form]
    names = {"v0.1": "{}.1.weight", "vllm": "lm_heads.{}.weight", "vllm, one for all": "lm_head.weight"}[form]
    whole = {**whole, **{names.format(head): own.clone() for head in range(4)}}
    file = tmp_path / ("medusa_lm_head.pt" if form == "v0.1" else "model.safetensors")
    (torch.save if file.suffix == ".pt" else save_file)(whole, file)
    drafter = read_published(file, target)
    assert drafter.options.heads == 4 and not drafter.options.private
    assert sorted(drafter.tensors()) == ["blocks.0.bias", "blocks.0.weight"]
    for name in names.format(3), names.format(0):
        changed = {**whole, name: own + 0.01}
        (torch.save if file.suffix == ".pt" else save_file)(changed, file)
        assert read_published(file, target).options.private


@each("private_matrices", [True, False])
def test_heads_of_text_generation_inference(tmp_path, target: Target, private_matrices: bool) -> None:
    """Both classes of TGI read one file next to a config.json; in the first, each head ends in its own matrix."""
    blocks = official(heads=3)
    matrices = private("{}.1.weight", heads=3) if private_matrices else {}
    halved = {name: tensor.half() for name, tensor in {**blocks, **matrices}.items()}
    save_file(halved, tmp_path / "medusa_lm_head.safetensors")
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "org/base"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafter = read_published(tmp_path, target)
    assert (drafter.options.heads, drafter.options.layers, drafter.options.private) == (3, 1, private_matrices)
    assert_drafts_as_published(
        drafter, blocks, 1, [*matrices.values()] or [target.transformer.lm_head.weight] * 3, 1e-2
    )
    wider = {name: torch.zeros(WIDTH + 1, WIDTH + 1) if name.endswith("r.weight") else t for name, t in halved.items()}
    save_file(wider, tmp_path / "medusa_lm_head.safetensors")
    with pytest.raises(LocalspecError, match=matching("name_model_these_heads_made")):
        read_published(tmp_path, target)


@each("prefix", ["", "medusa_heads."])
def test_names_of_vllm_with_and_without_bias(tmp_path, target: Target, prefix: str) -> None:
    blocks, matrices = official(), private("lm_heads.{}.weight")
    if not prefix:
        blocks = {name: torch.zeros_like(tensor) if "bias" in name else tensor for name, tensor in blocks.items()}
    named = {
        prefix + name: tensor for name, tensor in {**vllm(blocks), **matrices}.items() if prefix or "bias" not in name
    }
    # A map onto fewer tokens is for cut matrices; these are whole.
    save_file({**named, "token_map": torch.arange(50)}, tmp_path / "model.safetensors")
    assert_drafts_as_published(read_published(tmp_path, target), blocks, 1, [*matrices.values()])


def test_one_matrix_under_the_name_of_the_first_head_is_that_of_all(tmp_path, target: Target) -> None:
    """vLLM writes `original_lm_head` so."""
    matrix = private("lm_heads.{}.weight", heads=1)
    save_file({**vllm(official()), **matrix}, tmp_path / "model.safetensors")
    drafter = read_published(tmp_path, target)
    assert torch.equal(drafter.tensors()["linears"], matrix["lm_heads.0.weight"].expand(HEADS, -1, -1))


def test_what_was_read_once_is_saved_as_a_drafter_of_ours(tmp_path, target: Target) -> None:
    torch.save(official(), tmp_path / "medusa_lm_head.pt")
    drafter = read_published(tmp_path, target)
    save_drafter(drafter, tmp_path / "ours", {"target": {"name": "tiny", "revision": "0"}})
    card = read_drafter(tmp_path / "ours")
    assert (card.kind, card.options["heads"], card.parameters) == ("medusa", HEADS, HEADS * (WIDTH**2 + WIDTH))


class Malicious:
    """An object that runs a command when it is unpickled."""

    def __init__(self, proof: str) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.system, (f"touch {self.proof}",)


@each("packed", [True, False])
def test_a_pickle_that_would_run_code_does_not(tmp_path, target: Target, packed: bool) -> None:
    file, proof = tmp_path / "medusa_lm_head.pt", tmp_path / "ran"
    content = {**official(), "0.1.weight": Malicious(str(proof))}
    torch.save(content, file, _use_new_zipfile_serialization=packed)
    with pytest.raises(LocalspecError, match=rf"medusa_lm_head\.pt .*{matching('would_run_code')}"):
        read_published(tmp_path, target)
    assert not proof.exists()
    torch.load(file, weights_only=False)
    assert proof.exists(), "it would have"


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        pytest.param({"model.norm.weight": torch.ones(4)}, NotHere, matching("holds_no_medusa_heads"), id="a model"),
        pytest.param(
            {**official(), **private("{}.1.weight", heads=2)}, LocalspecError, "3 heads, but 2 vocabulary", id="matrices"
        ),
        pytest.param(
            {name: tensor for name, tensor in official().items() if name != "1.0.linear.weight"},
            LocalspecError, matching("lacks_weight_block_0_head_1"), id="a block is missing",
        ),
        pytest.param({**official(), "fc.weight": torch.ones(4)}, LocalspecError, "'fc.weight'.*not a part", id="EAGLE"),
        pytest.param(
            {**vllm(official()), **{f"lm_heads.{i}.weight": random(50, WIDTH) for i in range(HEADS)},
             "token_map": torch.arange(50)},
            LocalspecError, r"truncated vocabulary \(token_map\)", id="truncated",
        ),
        pytest.param(
            {**official(), **{f"{i}.1.weight": random(VOCABULARY + 64, WIDTH) for i in range(HEADS)}},
            LocalspecError, r"another model.*\[384, 48\].*\[320, 48\]", id="another vocabulary",
        ),
        pytest.param(
            {"0.0.linear.weight": random(64, 64), "0.0.linear.bias": random(64)},
            LocalspecError, r"\[64, 64\].*48 channels", id="another width",
        ),
        pytest.param(
            {**official(), "2.0.linear.bias": torch.full((WIDTH,), float("nan"))},
            LocalspecError, "'2.0.linear.bias'.*has NaN or inf", id="not a number",
        ),
        pytest.param(
            {**official(), "0.0.linear.weight": torch.tensor(1.0)}, LocalspecError, "a single number", id="without rows"
        ),
        pytest.param({**official(), "token_map": torch.tensor(1)}, LocalspecError, "'token_map'.*a single", id="a map"),
        pytest.param(
            {**official(), "0.0.linear.bias": torch.ones(WIDTH).to(torch.float8_e4m3fn)},
            LocalspecError, "'0.0.linear.bias'.*of the type float8_e4m3fn, but", id="eight bits",
        ),
        pytest.param(
            {**official(), "0.0.linear.weight": torch.ones(WIDTH, WIDTH, dtype=torch.int64)},
            LocalspecError, "'0.0.linear.weight'.*of the type int64, but", id="no fractions",
        ),
    ],
)  # fmt: skip
@each("suffix", ["pt", "safetensors"])
def test_what_is_no_head_of_this_model_is_refused_by_name(
    tmp_path, target: Target, suffix: str, content: Tensors, error: type[LocalspecError], said: str
) -> None:
    file = tmp_path / f"medusa_lm_head.{suffix}"
    (torch.save if suffix == "pt" else save_file)(content, file)
    with pytest.raises(error, match=said) as raised:
        read_published(tmp_path, target)
    assert type(raised.value) is error and str(file) in str(raised.value)


# -- whole models with heads inside (Medusa 1.0) -------------------------------------------------------------------------


def whole_model(model: Path, directory: Path, form: str, heads: Tensors) -> Path:
    """As the authors of Medusa publish theirs: the model's own tensors and medusa_head.…, in shards with an index.

    Theirs are pickles, `pytorch_model-00001-of-00002.bin`; the forms with safetensors are what converters make of them.
    """
    directory.mkdir(exist_ok=True)
    for file in model.iterdir():
        if file.suffix in (".json", ".jinja") and "index" not in file.name:
            shutil.copyfile(file, directory / file.name)
    config = json.loads((model / "config.json").read_text())
    config |= {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.5"}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        tensors |= load_file(file)
    tensors |= {f"medusa_head.{name}": tensor for name, tensor in heads.items()}
    names = sorted(tensors)
    if form == "one file":
        save_file(tensors, directory / "model.safetensors")
        return directory
    shards = [names[0::2], names[1::2]]  # so that both shards have heads
    suffix, index = ("bin", PICKLED_INDEX) if form == "pickles" else ("safetensors", "model.safetensors.index.json")
    begin, table = "pytorch_model" if form == "pickles" else "model", {}
    for number, some in enumerate(shards, start=1):
        file = f"{begin}-{number:05}-of-00002.{suffix}"
        write = torch.save if form == "pickles" else save_file
        write({name: tensors[name].clone() for name in some}, directory / file)
        table |= dict.fromkeys(some, file)
    (directory / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": table}))
    return directory


@pytest.mark.slow
@each("form", ["one file", "shards"])
@each("own", ["private", "the target's"])
def test_a_whole_model_in_safetensors_is_target_and_heads_where_it_is(
    tmp_path, tiny: Make, form: str, own: str
) -> None:
    """The heads are private matrices, or the target's own; the target is read without the heads' tensors."""
    model = tiny(LLAMA)
    matrices = private("{}.1.weight")
    if own != "private":
        matrices = dict.fromkeys(matrices, model.target.transformer.lm_head.weight.detach())
    heads = {**official(), **{name: matrix.clone() for name, matrix in matrices.items()}}
    path = whole_model(model.path, tmp_path / "whole", form, heads)
    assert inspect(path).parameters == inspect(model.path).parameters
    convert(
        "medusa", path, path, tmp_path / "ours", {"name": "tiny", "published": {"repo": "org/whole", "commit": "c"}}
    )
    card, target = read_drafter(tmp_path / "ours"), Target.load(path)
    assert card.options["private"] == (own == "private") and card.revision == revision(path)
    drafter = load_drafter(card, target)
    assert_drafts_as_published(drafter, heads, 1, [*matrices.values()], 1e-4)
    prompt = prompt_ids(12, seed=4)
    *_, done = Session(target, drafter, Budget(8)).generate(prompt, Sampling(), Limits(max_tokens=20))
    assert list(done.statistics.token_ids) == stock_reply(model.stock, prompt, 20)


@pytest.mark.slow
def test_a_whole_model_in_pickles_is_split_once(tmp_path, tiny: Make, monkeypatch) -> None:
    model, heads = tiny(LLAMA), {**official(), **private("{}.1.weight")}
    path = whole_model(model.path, tmp_path / "whole", "pickles", heads)
    about = {"name": "org/whole", "published": {"repo": "org/whole", "commit": "c"}}
    split(path, tmp_path / "ours", about)
    target = tmp_path / "ours" / "target"
    assert sorted(file.name for file in target.glob("*.*")) == sorted(
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
        + [file.name for file in path.iterdir() if file.suffix in (".json", ".jinja") and "index" not in file.name]
    )
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o700
    again, own = Target.load(target), model.target
    for name, parameter in own.transformer.named_parameters():
        assert torch.equal(parameter, again.transformer.get_parameter(name)), name
    card = read_drafter(tmp_path / "ours")
    assert card.revision == revision(target) and card.options["heads"] == HEADS
    matrices = [heads[f"{head}.1.weight"] for head in range(HEADS)]
    assert_drafts_as_published(load_drafter(card, again), heads, 1, matrices, 1e-4)
    before = (target / "model.safetensors.index.json").stat().st_mtime_ns
    split(path, tmp_path / "ours", about)
    assert (target / "model.safetensors.index.json").stat().st_mtime_ns == before
    split(path, tmp_path / "ours", {**about, "published": {"repo": "org/whole", "commit": "d"}})
    assert (target / "model.safetensors.index.json").stat().st_mtime_ns > before


def test_a_whole_model_that_would_run_code_does_not(tmp_path, tiny: Make) -> None:
    path = whole_model(tiny(LLAMA).path, tmp_path / "whole", "pickles", official())
    shard, proof = path / "pytorch_model-00002-of-00002.bin", tmp_path / "ran"
    torch.save({**torch.load(shard), "model.more": Malicious(str(proof))}, shard)
    with pytest.raises(LocalspecError, match=rf"00002\.bin .*{matching('would_run_code')}"):
        split(path, tmp_path / "ours", {"name": "x", "published": {}})
    assert not proof.exists() and not (tmp_path / "ours" / "target").exists()


@each("name", ["../other.bin", "model.pkl", "a/b.safetensors"])
def test_an_index_that_leads_elsewhere_is_refused(tmp_path, target: Target, name: str) -> None:
    index = {"weight_map": {"model.norm.weight": name, "medusa_head.0.0.linear.weight": name}}
    (tmp_path / PICKLED_INDEX).write_text(json.dumps(index))
    with pytest.raises(LocalspecError, match=matching("holds_no_weights_beside_it")):
        read_published(tmp_path, target)


def test_files_that_are_broken_or_no_weights_or_not_there(tmp_path, target: Target) -> None:
    with pytest.raises(NotHere, match=matching("no_medusa_head_in")):
        read_published(tmp_path, target)
    for name in ("medusa_lm_head.pt", "medusa_lm_head.safetensors"):
        file = tmp_path / name
        (torch.save if name.endswith("pt") else save_file)(official(), file)
        file.write_bytes(file.read_bytes()[:-700])
        with pytest.raises(LocalspecError, match=matching("is_damaged")):
            read_published(file, target)
        file.write_bytes(b"")
        with pytest.raises(LocalspecError, match=matching("is_damaged")):
            read_published(file, target)
    for content in ([torch.zeros(3)], {"0.0.linear.weight": "text"}):
        torch.save(content, tmp_path / "medusa_lm_head.pt")
        with pytest.raises(LocalspecError, match=matching("other_than_tensors")):
            read_published(tmp_path / "medusa_lm_head.pt", target)


# -- converted once, without the weights of the model -------------------------------------------------------------------


@pytest.mark.slow
@each("form", ["v0.1", "v2", "the target's own", "one is another"])
@each("name", [LLAMA, "llama-one-key-head-tied-linear", SHARDED])
def test_converted_heads_are_the_ones_that_are_read(tmp_path, tiny: Make, name: str, form: str) -> None:
    """The drafter computes the same bytes as with the whole model in memory."""
    model, target = tiny(name).path, tiny(name).target
    blocks, own = official(layers=2), target.transformer.lm_head.weight.detach()
    matrices = {
        "v0.1": private("{}.2.weight"),
        "v2": {},
        "the target's own": {f"{head}.2.weight": own.clone() for head in range(HEADS)},
        "one is another": {f"{head}.2.weight": own + 0.01 * (head == 1) for head in range(HEADS)},
    }[form]
    torch.save({key: tensor.half() if form == "v0.1" else tensor for key, tensor in {**blocks, **matrices}.items()},
               tmp_path / "medusa_lm_head.pt")  # fmt: skip
    convert(
        "medusa",
        tmp_path,
        model,
        tmp_path / "ours",
        {"name": "tiny", "published": {"repo": "org/heads", "commit": "c"}},
    )
    card = read_drafter(tmp_path / "ours")
    assert card.revision == revision(model) and card.about["published"]["repo"] == "org/heads"
    assert card.options["private"] == (form in ("v0.1", "one is another"))
    converted, read, state = load_drafter(card, target), read_published(tmp_path, target), random(1, WIDTH)
    assert converted.options == read.options
    assert torch.equal(logits(converted, state), logits(read.drafter(), state))
    assert card.bytes < 1.1 * (tmp_path / "medusa_lm_head.pt").stat().st_size + 4096  # in the precision of the file


@pytest.mark.slow
def test_what_was_converted_once_stays_until_heads_or_model_change(tmp_path, tiny: Make) -> None:
    torch.save(official(), tmp_path / "medusa_lm_head.pt")
    about = {"name": "tiny", "published": {"repo": "org/heads", "commit": "c"}}
    weights = tmp_path / "ours" / "drafter" / "drafter.safetensors"

    def made(model: str, about: dict) -> int:
        convert("medusa", tmp_path, tiny(model).path, tmp_path / "ours", about)
        return weights.stat().st_mtime_ns

    first = made(LLAMA, about)
    assert made(LLAMA, about) == first and weights.parent.parent.stat().st_mode & 0o777 == 0o700
    second = made(LLAMA, {**about, "published": {"repo": "org/heads", "commit": "d"}})
    third = made(SHARDED, {**about, "published": {"repo": "org/heads", "commit": "d"}})
    assert len({first, second, third}) == 3
    (weights.parent / "drafter.json").write_text("{")  # damaged: made again
    assert made(SHARDED, about) != third and read_drafter(tmp_path / "ours")


def test_converting_reads_no_weights_of_the_model_but_the_vocabulary(tmp_path, tiny: Make, monkeypatch) -> None:
    torch.save(official(), tmp_path / "medusa_lm_head.pt")
    model, asked = tiny(LLAMA).path, []
    monkeypatch.setattr(Target, "load", lambda path, load=Target.load, **how: asked.append(how) or load(path, **how))
    convert("medusa", tmp_path, model, tmp_path / "ours", {"name": "tiny", "published": {}})
    assert [how["device"] for how in asked] == ["meta"]


def test_a_full_disk_is_reported_and_no_half_written_file_stays(tmp_path, tiny: Make, monkeypatch) -> None:
    torch.save(official(), tmp_path / "medusa_lm_head.pt")

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full)
        with pytest.raises(DoesNotFit, match=matching("make_room")):
            convert("medusa", tmp_path, tiny(LLAMA).path, tmp_path / "ours", {"name": "tiny", "published": {}})
    assert list((tmp_path / "ours" / "drafter").iterdir()) == []
