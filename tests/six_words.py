"""A model of six words: few enough to count every continuation of three tokens, and drafts for it are often right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from session_replies import reply
from tiny_models import Tiny, read, stock_distribution, stock_logits, word_tokenizer, write
from transformers import Gemma4TextConfig, LlamaConfig, Qwen3_5TextConfig

from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session

WORDS = list("abcdef")
PROMPT = [0, 3, 1, 5, 2]


_SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": len(WORDS), "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def six_words(path: Path, reading: Callable[[Path], Tiny] = read, layers: int = 3, seed: int = 3) -> Tiny:
    """Return a Llama of random weights; nothing stops a reply."""
    return _written(path, LlamaConfig(**_SMALL, num_hidden_layers=layers), reading, seed)


def six_words_qwen35(
    path: Path, reading: Callable[[Path], Tiny] = read, kinds: Sequence[str] = ("linear_attention", "full_attention")
) -> Tiny:
    """Return a Qwen3.5 of random weights with layers of these kinds; one with recurrent layers reads only chains."""
    config = Qwen3_5TextConfig(
        **_SMALL, head_dim=8, num_hidden_layers=len(kinds), layer_types=[*kinds], linear_num_key_heads=1,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    return _written(path, config, reading, seed=3)


def six_words_gemma4(path: Path, reading: Callable[[Path], Tiny] = read) -> Tiny:
    """Return a Gemma 4 of random weights, one layer of which has a window."""
    config = Gemma4TextConfig(
        **_SMALL, head_dim=8, global_head_dim=8, num_hidden_layers=2, hidden_size_per_layer_input=0, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    return _written(path, config, reading, seed=3)


def _written(path: Path, config: Any, reading: Callable[[Path], Tiny], seed: int) -> Tiny:
    return reading(write(path / f"six-words-{seed}", config, word_tokenizer(WORDS), seed=seed, spread=0.6))


def joint_chances(stock: Any, prompt: Sequence[int], sampling: Sampling, count: int = 3) -> torch.Tensor:
    """Return the chance of each continuation by `count` tokens, [words] * count, by transformers' model and processors."""
    following = stock_distribution(stock_logits(stock, prompt)[-1].double(), sampling).double()
    if count == 1:
        return following
    return torch.stack([
        chance * joint_chances(stock, [*prompt, token], sampling, count - 1) for token, chance in enumerate(following)
    ])  # fmt: skip


@dataclass
class Drawn:
    """Counts of each continuation, [words] * count, with the numbers of steps and of accepted draft tokens."""

    counts: torch.Tensor
    steps: int = 0
    accepted: int = 0


def drawn(session: Session, prompt: Sequence[int], sampling: Sampling, draws: int, count: int = 3) -> Drawn:
    """Reply of `count` tokens by consecutive seeds."""
    found = Drawn(torch.zeros([len(WORDS)] * count))
    for seed in range(draws):
        ids, statistics = reply(session, prompt, count, replace(sampling, seed=seed))
        assert len(ids) == count
        found.counts[tuple(ids)] += 1
        found.steps += statistics.steps
        found.accepted += statistics.accepted
    return found
