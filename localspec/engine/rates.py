"""What a device takes for a weight and for a layer in each precision: measured once, for models that are not here."""

from types import SimpleNamespace

import torch
from transformers import LlamaConfig

from localspec.engine.attention import fastest
from localspec.engine.packing import DTYPES, head_kind, layer_kind
from localspec.engine.small import fresh
from localspec.engine.target import Target
from localspec.engine.transformer import Architecture, Rotary, Transformer
from localspec.forward_costs import forward_costs
from localspec.hardware import physical_cores
from localspec.prediction import Rates

# Two models with layers alike but for their matrices: of the one nearly all time goes into those, which no cache of a
# processor holds, of the other nearly none.
WIDE = {"num_hidden_layers": 2, "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 2048}
SLIM = {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
CONTEXT = 512


@torch.inference_mode()
def measured_rates(device: str, dtype: str, quantize: str) -> Rates:
    """By rows, in some seconds; the matrices of the large model take 0.4 GB at most."""
    threads = torch.get_num_threads()
    torch.set_num_threads(physical_cores())
    try:
        wide, slim = (forward_costs(_model(sizes, device, dtype, quantize)) for sizes in (WIDE, SLIM))
    finally:
        torch.set_num_threads(threads)
    layer = [seconds / SLIM["num_hidden_layers"] for seconds in slim.seconds[0]]
    weights = _matrices(WIDE)
    weight = [
        max(seconds - WIDE["num_hidden_layers"] * beside, seconds / 10) / weights
        for seconds, beside in zip(wide.seconds[0], layer, strict=True)
    ]
    return Rates(wide.rows, tuple(weight), tuple(layer))


def _model(sizes: dict[str, int], device: str, dtype: str, quantize: str) -> Target:
    """With weights at random, and without text."""
    config = LlamaConfig(**sizes, **HEADS, max_position_embeddings=CONTEXT, tie_word_embeddings=False)
    shape, place = Architecture.of(config), torch.device(device)
    weights = {name: tensor.to(DTYPES[dtype]) for name, tensor in fresh(shape, place).items()}
    kinds = layer_kind(quantize, device), fastest, head_kind(quantize, device)
    transformer = Transformer(shape, Rotary(config, CONTEXT, place), weights, *kinds)
    return Target(transformer, config, SimpleNamespace(eos_token_id=None, chat_template=None), CONTEXT, {})


def _matrices(sizes: dict[str, int]) -> int:
    """Weights that one forward reads."""
    width, inner, head = sizes["hidden_size"], sizes["intermediate_size"], HEADS["head_dim"]
    attention = width * head * 2 * (HEADS["num_attention_heads"] + HEADS["num_key_value_heads"])
    return sizes["num_hidden_layers"] * (attention + 3 * width * inner) + sizes["vocab_size"] * width
