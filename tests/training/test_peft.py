"""peft reads the adapters that we write: they act on the stock model as on ours. The only use of peft."""

import json

import pytest
import torch
from each import each
from safetensors.torch import save_file
from tiny_models import prompt_ids, read

from localspec.nn.adapters import Adapters

CASES = [
    ("llama-many-heads-biases-llama3", "all"),
    ("llama-grouped-dynamic", "vko"),
    ("qwen3-many-heads-tied-llama3", "all"),
    ("qwen3-grouped-mixed-window-wide-heads", "vko"),
    ("phi3-grouped-window-partial-rotary", "all"),
    ("phi3-one-key-head-tied", "vko"),
]


@pytest.mark.slow
@each("name, which", CASES)
def test_peft_gives_the_same_logits(tiny, tmp_path, name, which):
    peft = pytest.importorskip("peft")  # seconds, which only this slow test need pay
    model = read(tiny(name).path)  # a separate copy, since peft changes the stock model
    torch.manual_seed(0)
    adapters = Adapters(model.target.transformer, [0, 2], rank=3, alpha=7.0, which=which)
    for parameter in adapters.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    for layer in adapters.values():
        for adapter in layer.values():
            adapter.lora_B.data.mul_(adapter.block_mask)  # elsewhere nothing is trained
    save_file(adapters.tensors(), tmp_path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(model.path),
        "r": 3,
        "lora_alpha": 7.0,
        "target_modules": sorted({name.rpartition(".lora")[0].rpartition(".")[2] for name in adapters.tensors()}),
        "layers_to_transform": [0, 2],
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))

    tokens = torch.tensor(prompt_ids(20))
    n = len(tokens)
    plain = model.stock(tokens[None]).logits[0]
    loaded = peft.PeftModel.from_pretrained(model.stock, tmp_path)
    with torch.no_grad():
        theirs = loaded(tokens[None]).logits[0]
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        states = model.target.transformer(tokens[None], torch.arange(n), mask, adapters=adapters)
        ours = model.target.head(states)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
    assert (theirs - plain).abs().max() > 0.05 * plain.abs().max(), "adapters that do nothing would prove nothing"

    # And back: what peft would save, we read.
    again = Adapters(model.target.transformer, [0, 2], rank=3, alpha=7.0, which=which)
    again.load_tensors({name: tensor.clone() for name, tensor in adapters.tensors().items()})
    with torch.no_grad():
        states = model.target.transformer(tokens[None], torch.arange(n), mask, adapters=again)
    torch.testing.assert_close(model.target.head(states)[0], ours, rtol=0, atol=0)
