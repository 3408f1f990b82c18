"""PARD-2: a small model that reads states of the target's layers; every draft is that of a plain loop over both."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change_config
from drafting import session_of
from each import each
from golden import matching
from safetensors.torch import save_file
from session_replies import assert_two_turns, reply
from slow_cases import covering
from tiny_models import (
    FAMILIES,
    VOCABULARY,
    Tiny,
    byte_tokenizer,
    prompt_ids,
    read,
    stock_logits,
    stock_reply,
    write,
)
from transformers import AutoModelForCausalLM, LlamaConfig

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.drafters.layers import Layers
from localspec.drafters.merged import Merged
from localspec.drafters.parallelspec import Drafter
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import read_drafter
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.models.target_map import target_map

Make = Callable[[str], Tiny]
MASK, SCALE, GREEDY = 317, 0.5, Sampling()
PLACES = [1, 3, -2]  # of four: before layer 1, after the final norm, before layer 2


def pair(path: Path, target: Tiny, bias: bool = False, tokenizer: Any = None, **config: Any) -> Path:
    """Return a small model for this target, with a map of large random numbers."""
    channels = len(config.get("pard2_target_layers", PLACES)) * target.stock.config.hidden_size
    described = LlamaConfig(**{
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": VOCABULARY, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": 0, "pard_token": MASK, "pard2": True, "pard2_scale": SCALE,
        "pard2_target_layers": PLACES, "pard2_target_dim": channels, "pard2_proj_bias": bias, **config,
    })  # fmt: skip
    write(path, described, tokenizer or byte_tokenizer(), seed=2)
    chance = torch.Generator().manual_seed(1)
    tensors = {"target_proj.weight": torch.randn(32, channels, generator=chance) * 0.2}
    if bias:
        tensors["target_proj.bias"] = torch.randn(32, generator=chance)
    save_file(tensors, path / "warp_model.safetensors")
    return path


def plain_loop(target: Tiny, path: Path, text: Sequence[int], masks: int) -> torch.Tensor:
    """Return the logits [1 + masks, vocabulary] after a text: AMD's arithmetic, over both stock models."""
    small = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    config, proj = small.config, torch.nn.functional.linear
    from safetensors.torch import load_file

    tensors = load_file(path / "warp_model.safetensors")
    with torch.inference_mode():
        hidden = target.stock(torch.tensor([list(text)]), output_hidden_states=True).hidden_states
        states = torch.cat([hidden[place][0] for place in config.pard2_target_layers], -1)
        features = torch.cat([states[:1] * 0, states[:-1]])  # one position before each token
        features = torch.cat([features, features[-1:].expand(masks, -1)])  # and the root's at the masks
        embeddings = small.get_input_embeddings()(torch.tensor([*text, *[MASK] * masks]))
        added = proj(features, tensors["target_proj.weight"], tensors.get("target_proj.bias")) * config.pard2_scale
        return small(inputs_embeds=(embeddings + added)[None]).logits[0, len(text) - 1 :]


def watched(drafter: Drafter) -> list[tuple[list[int], torch.Tensor]]:
    """Record each draft from now on: the text, and the logits of the draft."""
    seen: list[tuple[list[int], torch.Tensor]] = []
    predict = drafter._predict

    def watch(committed: Sequence[int], masks: int) -> Any:
        states = predict(committed, masks)
        seen.append((list(committed), torch.as_tensor(drafter._logits(states)).clone()))
        return states

    drafter._predict = watch  # type: ignore[method-assign]
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bias"), covering(FAMILIES, [False, False, True, True]))
def test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, bias):
    model = tiny(name)
    path = pair(tmp_path, model, bias)
    drafter = Drafter.from_model(path, model.target, depth=5)
    seen, session = watched(drafter), session_of(model.target, drafter, Budget(6))
    _, statistics = assert_two_turns(model, session, 20, 10)
    assert statistics.drafted > 0
    known = slice(0, 300)  # of the rest the tokenizer knows none
    for committed, logits in [*seen[:4], *seen[-3:]]:
        expected = plain_loop(model, path, committed, len(logits) - 1)
        torch.testing.assert_close(logits[:, known], expected[:, known], atol=3e-4, rtol=1e-3)
    committed, logits = seen[3]
    without = stock_logits(read(path).stock, [*committed, *[MASK] * (len(logits) - 1)])[len(committed) - 1 :]
    assert (logits - without)[:, known].abs().max() > 0.1, "what the target says matters"


@pytest.mark.slow
def test_among_several_drafters_each_gets_the_states_that_it_requested(tiny: Make, tmp_path: Path) -> None:
    """Phrases pass on the states that they get; of two drafters that read layers, each gets its own, in any order."""
    model, prompt = tiny(FAMILIES[0]), prompt_ids(15, seed=6)
    text = stock_reply(model.stock, prompt, 16)
    paths = [pair(tmp_path / "one", model), pair(tmp_path / "two", model, pard2_target_layers=[2])]
    first, second = (Drafter.from_model(path, model.target, depth=3) for path in paths)
    for inner in (
        Merged([first, Layers(model.target, MeasuredLayers((0, 2), (0.5,))), second]),
        Merged([second, first]),
    ):
        drafter = WithPhrases(inner, PhrasePool(model.target.special_tokens), anywhere=True)
        assert [*drafter.target_layers] == [place for one in inner.drafters for place in one.target_layers]
        seen = [watched(one) for one in (first, second)]
        assert reply(session_of(model.target, drafter, Budget(6)), prompt, 16)[0] == text
        for path, (committed, logits) in zip(paths, (one[-1] for one in seen), strict=True):
            expected = plain_loop(model, path, committed, len(logits) - 1)
            torch.testing.assert_close(logits[:, :300], expected[:, :300], atol=3e-4, rtol=1e-3)


@pytest.mark.slow
def test_only_a_drafter_that_reads_layers_asks_for_their_states(tiny, tmp_path, monkeypatch):
    model, prompt, asked = tiny(FAMILIES[0]), prompt_ids(9), list[tuple[int, ...]]()
    forward, path = model.target.forward, pair(tmp_path / "two", model)
    monkeypatch.setattr(
        model.target,
        "forward",
        lambda *given, **more: (asked.append(tuple(more.get("inner", ()))), forward(*given, **more))[1],
    )
    one = change_config(
        pair(tmp_path / "one", model), pard2=False
    )  # the same small model drafts without its target, too
    for place, wanted in ((one, ()), (path, (1, 3, 2))):
        asked.clear()
        drafter = Drafter.from_model(place, model.target, depth=3)
        assert reply(session_of(model.target, drafter, Budget(4)), prompt, 8)[0] == stock_reply(model.stock, prompt, 8)
        assert {*asked} == {wanted} and tuple(drafter.target_layers) == wanted


@pytest.mark.slow
def test_its_numbers_count_and_what_it_keeps_grows_with_the_text(tiny: Make, tmp_path: Path) -> None:
    model = tiny(FAMILIES[0])
    path = pair(tmp_path, model, bias=True)
    own, without = read_drafter(path), read_drafter(change_config(pair(tmp_path / "plain", model), pard2=False))
    width = model.stock.config.hidden_size
    assert own.parameters == without.parameters + 32 * 3 * width + 32
    assert (own.inner, without.inner) == (3 * width, 0)
    assert own.bytes == without.bytes + (path / "warp_model.safetensors").stat().st_size
    drafter = Drafter.from_model(path, model.target, depth=3)
    session = session_of(model.target, drafter, Budget(4))
    reply(session, prompt_ids(20), 4)
    kept, weights = drafter._features.nbytes, drafter._features._map.nbytes
    assert weights >= 32 * 3 * width and kept == weights + (len(session.tokens) - 1) * 32 * 4
    session.rewind(10)
    assert len(drafter._features) == 10


@pytest.mark.slow
def test_files_of_another_target_are_refused(tiny: Make, tmp_path: Path) -> None:
    model = tiny(FAMILIES[0])
    for name, config in (
        ("deep", {"pard2_target_layers": [1, 2, 4]}), ("few", {"pard2_target_layers": [1, 2]}),
        ("negative", {"pard2_target_layers": [1, 2, -5]}),
    ):  # fmt: skip
        path = change_config(pair(tmp_path / name, model), **config)
        with pytest.raises(LocalspecError, match=matching("one_3_layers_48_channels_name")) as refused:
            Drafter.from_model(path, model.target)
        assert refused.value.exit_code == 2


@each(
    "config, scale",
    [
        ({}, 0.02),
        ({"feat_scale": 0.5}, 0.5),
        ({"feat_scale": 0.5, "pard_scale": 2}, 2.0),
        ({"pard_scale": 2, "pard2_scale": 3}, 3.0),
    ],
)
def test_the_scale_is_the_first_that_its_config_has_else_what_published_code_has(tmp_path, config, scale):
    save_file({"target_proj.weight": torch.zeros(8, 16)}, tmp_path / "warp_model.safetensors")
    found = target_map({"pard2": True, "hidden_size": 8, "pard2_target_layers": [1], **config}, tmp_path)
    assert found is not None and (found.scale, found.states) == (scale, 16)


@pytest.mark.slow
@each(
    "config, said",
    [
        ({"pard2_target_layers": None}, "pard2_target_layers = None"),
        ({"pard2_target_layers": []}, "pard2_target_layers"),
        ({"pard2_target_layers": [1.5]}, "pard2_target_layers"),
        ({"pard2_target_layers": [True]}, "pard2_target_layers"),
        ({"pard2_target_layers": list(range(99))}, "pard2_target_layers"),
        ({"pard2_scale": "x"}, "pard2_scale = x"),
        ({"pard2_scale": 0}, "pard2_scale = 0"),
        ({"pard2_scale": 1e99}, "pard2_scale"),
        ({"pard2_target_dim": 5}, matching("does_fit_config_json")),
        ({"hidden_size": 33}, matching("does_fit_config_json")),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(tiny, tmp_path, config, said):
    path = change_config(pair(tmp_path, tiny(FAMILIES[0])), **config)
    with pytest.raises(LocalspecError, match=said) as refused:
        read_drafter(path)
    assert "\n" not in str(refused.value)


@each(
    "tensors, said",
    [
        ({"other": torch.zeros(32, 144)}, "does not fit"),
        ({"target_proj.weight": torch.zeros(144)}, "does not fit"),
        ({"target_proj.weight": torch.zeros(32, 144, dtype=torch.int64)}, "I64"),
        ({"target_proj.weight": torch.zeros(32, 144), "target_proj.bias": torch.zeros(31)}, "does not fit"),
    ],
)
def test_an_invalid_map_is_refused(tiny: Make, tmp_path: Path, tensors: dict[str, torch.Tensor], said: str) -> None:
    path = pair(tmp_path, tiny(FAMILIES[0]))
    save_file(tensors, path / "warp_model.safetensors")
    with pytest.raises(LocalspecError, match=said):
        read_drafter(path)


def test_a_map_that_is_damaged_or_a_pickle_is_refused(tiny: Make, tmp_path: Path) -> None:
    """A pickle is not read because it may run code; the error says how to convert it."""
    model = tiny(FAMILIES[0])
    path = pair(tmp_path, model)
    file = path / "warp_model.safetensors"
    save_file({"target_proj.weight": torch.full((32, 144), float("nan"))}, file)
    with pytest.raises(LocalspecError, match=matching("target_proj_weight_holds_nan_inf")):
        Drafter.from_model(path, model.target)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LocalspecError, match=r"warp_model\.safetensors"):
        read_drafter(path)
    file.unlink()
    with pytest.raises(LocalspecError, match=rf"lacks warp_model\.safetensors, .*{matching('states_fetch_it_again')}$"):
        read_drafter(path)
    (path / "warp_model.bin").write_bytes(pickle.dumps({"target_proj.weight": None}))
    with pytest.raises(
        LocalspecError, match=f"{matching('warp_model_bin_is_a_pickle')} .*{matching('in_that_directory_make_it_with')}"
    ) as refused:
        read_drafter(path)
    assert refused.value.exit_code == 3
