"""Files keep the names that they have always had, whatever the code calls its parameters."""

import torch

from localspec.nn.adapters import Adapters
from localspec.nn.small_model import fresh_weights
from localspec.nn.transformer import Transformer

QWEN3 = "qwen3-one-key-head-biases"  # has all parameters that a layer may have
LAYER = {
    "qkv.weight", "qkv.bias", "output.weight", "output.bias", "gate_up.weight", "down.weight",
    "attention_norm", "inner_norm", "query_norm", "key_norm",
}  # fmt: skip


def test_state_dicts_have_the_stored_names_and_parameters_our_own(tiny):
    transformer = tiny(QWEN3).target.transformer
    state = transformer.state_dict(prefix="model.")
    expected = {f"model.layers.{index}.{name}" for index in range(3) for name in LAYER}
    assert state.keys() == expected | {"model.embedding", "model.head.weight", "model.norm"}
    own = dict(transformer.named_parameters())
    assert {"embed_tokens", "lm_head.weight", "layers.2.qkv_proj.bias", "layers.0.input_layernorm"} < own.keys()
    assert state["model.layers.2.qkv.bias"].data_ptr() == own["layers.2.qkv_proj.bias"].data_ptr()
    assert state["model.layers.0.inner_norm"].data_ptr() == own["layers.0.post_attention_layernorm"].data_ptr()


def test_state_dicts_come_back(tiny):
    transformer = tiny(QWEN3).target.transformer
    weights = fresh_weights(transformer.config, torch.device("cpu"))
    holder = torch.nn.ModuleDict({"model": Transformer(transformer.config, transformer.rotary, weights)})
    state = {f"model.{name}": tensor for name, tensor in transformer.state_dict().items()}
    holder.load_state_dict(state, strict=True)
    theirs = dict(holder["model"].named_parameters())
    assert all(torch.equal(theirs[name], parameter) for name, parameter in transformer.named_parameters())


def test_adapters_have_the_stored_names(tiny):
    adapters, again = (Adapters(tiny(QWEN3).target.transformer, [1], 2, 4.0) for _ in range(2))
    linears = ("qkv", "output", "gate_up", "down")
    assert adapters.state_dict().keys() == {f"1_{linear}.{part}" for linear in linears for part in ("down", "up")}
    again.load_state_dict(adapters.state_dict(), strict=True)
    assert torch.equal(again[1]["o_proj"].lora_A, adapters[1]["o_proj"].lora_A)
    assert adapters.state_dict()["1_output.up"].data_ptr() == adapters[1]["o_proj"].lora_B.data_ptr()
