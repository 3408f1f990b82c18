"""Random stock models of transformers, in memory."""

from typing import Any

from tiny_models import filled
from transformers import AutoModelForCausalLM


def stock_of(config: Any, seed: int, spread: float = 0.18) -> Any:
    return filled(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval(), seed, spread)
