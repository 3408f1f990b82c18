"""Finds the input channels of int8 layers that stand out in a text, which the layers then compute in fp32."""

import torch

from localspec.models.tokenizer import Tokenizer
from localspec.nn.linear import Int8Linear, outliers
from localspec.nn.transformer import Transformer

TEXT = (
    "The committee met on Tuesday, 14 March 2023, at 09:30 and heard 3 reports: costs had risen by 12.5 %, mostly for "
    'energy. "What do you suggest?" asked the chair. Nobody answered at first; then Dr. O\'Neill said: “We could wait.”'
    "\n\n```python\ndef mean(values: list[float]) -> float:\n    return sum(values) / len(values)\n```\n\n"
    "- Zürich, São Paulo, 北京, Москва\n- a² + b² = c²; 7 × 8 = 56\n"
)


@torch.inference_mode()
def protect_outliers(transformer: Transformer, tokenizer: Tokenizer, context: int) -> None:
    """Reads a text of at most `context` tokens, and protects in each int8 layer the channels that stand out in it.

    A layer is looked at as its input comes by, so the layers after it already see what it gives from then on. The head
    is given its input only: logits of a whole text take more memory than packing any weight.
    """

    def protect(layer: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        assert isinstance(layer, Int8Linear)
        layer.protect(outliers(inputs[0]))

    layers = [layer for layer in transformer.modules() if isinstance(layer, Int8Linear)]
    hooks = [layer.register_forward_pre_hook(protect) for layer in layers]
    try:
        known = [token for token in tokenizer.encode(TEXT) if token < transformer.config.vocab_size]
        tokens = torch.tensor(known[:context] or [0])
        causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril_()
        hidden = transformer(tokens[None], torch.arange(len(tokens)), causal)
        if isinstance(head := transformer.lm_head, Int8Linear):
            protect(head, (hidden,))
    finally:
        for hook in hooks:
            hook.remove()
