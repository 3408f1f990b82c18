"""Low-rank adapters: they act where they are passed, equal a merged weight, and keep their names."""

import pytest
import torch
from drafting import add_changes
from each import each
from tiny_models import DRAFTING, FAMILIES, prompt_ids

from localspec.errors import LocalspecError
from localspec.nn.adapters import Adapters
from localspec.nn.cache import TextPrefix
from localspec.nn.target import Target

every_family = each("name", FAMILIES)


def stirred(target: Target, layers: list[int], which: str = "all", rank: int = 4) -> Adapters:
    torch.manual_seed(7)
    adapters = Adapters(target.transformer, layers, rank, 8.0, which)
    for parameter in adapters.parameters():
        parameter.data.normal_(0, 0.1)
    return adapters


def states(target: Target, adapters: Adapters | None = None, tokens: list[int] | None = None) -> torch.Tensor:
    ids = torch.tensor([tokens or prompt_ids(12)])
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril_()
    brought = {} if adapters is None else {"adapters": adapters}
    return target.transformer(ids, torch.arange(ids.shape[1]), causal, **brought)


def read_before(target: Target, tokens: list[int]) -> TextPrefix:
    prefix, causal = TextPrefix(), torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril_()
    target.transformer(torch.tensor([tokens]), torch.arange(len(tokens)), causal, prefix)
    return prefix.closed()


@pytest.mark.slow
@every_family
@each("which", ["all", "vko"])
def test_what_is_merged_is_what_was_brought_along(tiny, name, which):
    target = Target.load(tiny(name).path)
    adapters, plain = stirred(target, [0, 2], which), states(target)
    changed = states(target, adapters)
    assert not torch.allclose(changed, plain, atol=1e-2)
    torch.testing.assert_close(states(target), plain, rtol=0, atol=0)
    add_changes(adapters, target.transformer)
    torch.testing.assert_close(states(target), changed, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
@every_family
def test_new_adapters_change_nothing(tiny, name):
    target = tiny(name).target
    torch.testing.assert_close(
        states(target, Adapters(target.transformer, range(3), 4, 8.0)), states(target), rtol=0, atol=0
    )


@pytest.mark.slow
@every_family
@each("which", ["all", "vko"])
def test_what_was_saved_comes_back(tiny, name, which):
    target = tiny(name).target
    saved = stirred(target, [1, 2], which)
    again = Adapters(target.transformer, [1, 2], 4, 8.0, which)
    again.load_tensors(saved.tensors())
    torch.testing.assert_close(states(target, again), states(target, saved), rtol=1e-6, atol=1e-6)
    parts = {tensor.rpartition(".lora")[0].rpartition(".")[2] for tensor in saved.tensors()}
    fused = name.startswith("phi3")
    if which == "vko":
        assert parts == ({"qkv_proj", "o_proj"} if fused else {"k_proj", "v_proj", "o_proj"})
    else:
        assert len(parts) == (4 if fused else 6 if name.startswith(("granitemoehybrid", "glm4")) else 7)


def test_queries_stay_as_they_are_without_an_adapter_of_their_own(tiny):
    target = tiny("phi3-grouped-window-partial-rotary").target
    shape, adapters = target.transformer.config, stirred(target, [0], "vko")
    rows = adapters[0]["qkv_proj"].product()
    assert not rows[: shape.num_heads * shape.head_dim].any()
    assert rows[shape.num_heads * shape.head_dim :].any(1).all()


def test_what_does_not_fit_is_refused(tiny):
    target = tiny(FAMILIES[0]).target
    adapters = stirred(target, [0])
    tensors = adapters.tensors()
    name = next(iter(tensors))
    with pytest.raises(LocalspecError, match="have no"):
        adapters.load_tensors({key: value for key, value in tensors.items() if key != name})
    with pytest.raises(LocalspecError, match="shapes"):
        adapters.load_tensors({**tensors, name: tensors[name][:1]})


def test_projections_learn_apart(tiny):
    target = tiny(FAMILIES[0]).target
    adapters = stirred(target, [0])
    stack = adapters[0]["qkv_proj"]
    with torch.no_grad():
        stack.lora_B.mul_(stack.block_mask)
    states(target, adapters).square().sum().backward()
    assert stack.lora_B.grad is not None
    assert not stack.lora_B.grad[stack.block_mask == 0].any()
    assert stack.lora_B.grad[stack.block_mask == 1].any() and stack.lora_A.grad is not None and stack.lora_A.grad.any()


@pytest.mark.slow
@each("name", [name for name in FAMILIES if name in DRAFTING])
def test_rows_after_a_text_are_those_of_the_cache_and_gradients_flow(tiny, name):
    target, tokens = tiny(name).target, prompt_ids(30)
    cache, positions = target.cache(64), torch.arange(26, 30)
    causal = torch.ones(26, 26, dtype=torch.bool).tril_()
    with torch.inference_mode():
        target.forward_tensors(torch.tensor(tokens[:26]), torch.arange(26), causal, cache)
    cache.keep(range(26))
    chain, own = torch.ones(4, 4, dtype=torch.bool).tril_(), stirred(target, [0, 2])
    arguments = (positions, chain)
    with torch.inference_mode():
        wanted = target.transformer(torch.tensor([tokens[26:]]), *arguments, cache, [0, 2], own).clone()
    embedded = target.embed(torch.tensor([tokens[26:]])).clone().requires_grad_()
    behind = read_before(target, tokens[:26])
    seen = target.transformer(embedded, *arguments, behind, [0, 2], own)
    torch.testing.assert_close(seen.detach(), wanted, rtol=1e-4, atol=1e-4)
    seen.sum().backward()
    assert embedded.grad is not None and embedded.grad.abs().sum() > 0
    assert cache.length == 26 and behind.length == 26


def test_a_mask_over_the_text_says_which_tokens_are_seen(tiny):
    target, tokens = tiny("qwen3-grouped-mixed-window-wide-heads").target, prompt_ids(20)
    places = torch.tensor([4, 11, 19])
    mask = torch.zeros(3, 23, dtype=torch.bool)
    for row, place in enumerate(places.tolist()):
        mask[row, :place] = True
        mask[row, 20 + row] = True
    found = target.transformer(
        torch.tensor([[tokens[place] for place in places]]), places, mask, read_before(target, tokens[:20])
    )
    whole = states(target, tokens=tokens)
    torch.testing.assert_close(found[0], whole[0, places], rtol=1e-4, atol=1e-4)
