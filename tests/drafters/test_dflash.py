"""DFlash: every block is that of a plain loop over stock modules, by the published arithmetic, the text the target's."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drafting import session_of, torch_form
from each import each
from golden import matching
from safetensors.torch import save_file
from session_replies import assert_two_turns, reply
from slow_cases import covering
from tiny_models import FAMILIES, MIXTURES, RECURRENT, VOCABULARY, Tiny, prompt_ids, stock_reply
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.session import Session
from localspec.drafters.dflash import DFlashOptions, Drafter
from localspec.drafters.merged import Merged
from localspec.drafters.trained import load_drafter
from localspec.errors import UsageMistake
from localspec.models.drafter_cards import read_drafter
from localspec.training.published_files import convert

Make = Callable[[str], Tiny]
LLAMA, MASK = FAMILIES[0], 317
SLIDING, FULL = "sliding_attention", "full_attention"
# What a config.json says in addition to sizes: a plain one, windows that are causal or not, and changes of the logits.
FORMS: list[dict[str, Any]] = [
    {"block_size": 6},
    {"block_size": 5, "layer_types": [SLIDING, FULL], "sliding_window": 9, "use_sliding_window": True},
    {
        "layer_types": [SLIDING, SLIDING], "sliding_window": 3, "use_sliding_window": True, "is_causal": False,
        "attention_bias": True, "dflash_config": {"block_size": 6, "output_multiplier": 0.5, "final_logit_softcapping": 2.0},
    },
    {"block_size": 4, "is_causal": True, "dflash_config": {"input_embedding_scale": 1.5}},
]  # fmt: skip


def config_of(target: Any, **form: Any) -> dict[str, Any]:
    """Return a config.json as published."""
    places = [0, 1] if target.num_hidden_layers < 4 else [0, 2]
    inner = {"mask_token_id": MASK % target.vocab_size, "target_layer_ids": places, **form.pop("dflash_config", {})}
    return {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0, "dflash_config": inner,
        "hidden_act": "silu", "hidden_size": target.hidden_size, "intermediate_size": 28, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 10, "num_hidden_layers": 2, "layer_types": [FULL] * 2,
        "num_target_layers": target.num_hidden_layers, "vocab_size": target.vocab_size, "rms_norm_eps": 1e-4,
        "max_position_embeddings": 512, "rope_theta": 700.0, "sliding_window": None, "tie_word_embeddings": False, **form,
    }  # fmt: skip


def tensors_of(config: dict[str, Any], seed: int = 5, spread: float = 0.3) -> dict[str, torch.Tensor]:
    """Return random weights with the published names."""
    width, head, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    places = len(config["dflash_config"]["target_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, places * width), "hidden_norm.weight": (width,)}
    shapes["norm.weight"] = (width,)
    for layer in (f"layers.{index}." for index in range(config["num_hidden_layers"])):
        for name, rows, columns in (
            ("self_attn.q", queries, width), ("self_attn.k", keys, width), ("self_attn.v", keys, width),
            ("self_attn.o", width, queries), ("mlp.gate", inner, width), ("mlp.up", inner, width),
            ("mlp.down", width, inner),
        ):  # fmt: skip
            shapes[f"{layer}{name}_proj.weight"] = (rows, columns)
            if config["attention_bias"] and "attn" in name:
                shapes[f"{layer}{name}_proj.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (width,)
        shapes |= {f"{layer}self_attn.{name}.weight": (head,) for name in ("q_norm", "k_norm")}
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=chance) * spread + (1.0 if name.endswith("norm.weight") else 0.0)
        for name, shape in shapes.items()
    }


def published(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """Return a directory as published."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors or tensors_of(config), path / "model.safetensors")
    return path


def made(model: Tiny, path: Path, **form: Any) -> tuple[Drafter, Path]:
    """Return a drafter for a target, converted from a published directory, and that directory."""
    head = published(path / "head", config_of(model.stock.config, **form))
    about = {"name": "tiny", "published": {"repo": "org/head", "commit": "c"}}
    convert("dflash", head, model.path, path / "made", about)
    drafter = load_drafter(read_drafter(path / "made"), model.target)
    assert isinstance(drafter, Drafter)
    return drafter, head


class Attention(nn.Module):
    """Attention as in the published code: queries of the block, keys and values of the text's features and of the block."""

    def __init__(self, config: Qwen3Config, index: int, causal: bool | None) -> None:
        super().__init__()
        width, head, bias = config.hidden_size, config.head_dim, config.attention_bias
        rows = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        for name, heads in rows.items():
            setattr(self, f"{name}_proj", nn.Linear(width, heads * head, bias=bias))
        self.o_proj = nn.Linear(config.num_attention_heads * head, width, bias=bias)
        self.q_norm, self.k_norm = (Qwen3RMSNorm(head, config.rms_norm_eps) for _ in range(2))
        sliding = config.layer_types[index] == SLIDING
        self.config, self.window = config, config.sliding_window if sliding else None
        self.causal = sliding if causal is None else causal

    def forward(self, x: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        head, text = self.config.head_dim, len(features)
        both = torch.cat([features, x])
        q = self.q_norm(self.q_proj(x).view(len(x), -1, head))
        k = self.k_norm(self.k_proj(both).view(len(both), -1, head))
        v = self.v_proj(both).view(len(both), -1, head)
        cos, sin = cos[:, None], sin[:, None]
        q = q * cos[text:] + rotate_half(q) * sin[text:]
        k = k * cos + rotate_half(k) * sin
        group = q.shape[1] // k.shape[1]
        mixed = torch.empty_like(q)
        for row in range(len(x)):
            for which in range(q.shape[1]):
                scores = k[:, which // group] @ q[row, which] / head**0.5
                for other in range(len(both)):
                    ahead = other - (text + row)
                    hidden = self.causal and ahead > 0
                    hidden |= self.window is not None and abs(ahead) >= self.window
                    if hidden:
                        scores[other] = float("-inf")
                mixed[row, which] = scores.softmax(0) @ v[:, which // group]
        return self.o_proj(mixed.view(len(x), -1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """The whole drafter, of stock norms and feed-forward networks."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__()
        own = {key: value for key, value in said.items() if key not in ("architectures", "auto_map", "dflash_config")}
        config = Qwen3Config(**own)
        self.said, self.inner, width, eps = said, said["dflash_config"], config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(self.inner["target_layer_ids"]) * width, width, bias=False)
        self.hidden_norm, self.norm = Qwen3RMSNorm(width, eps), Qwen3RMSNorm(width, eps)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "self_attn": Attention(config, index, said.get("is_causal")), "mlp": Qwen3MLP(config),
                "input_layernorm": Qwen3RMSNorm(width, eps), "post_attention_layernorm": Qwen3RMSNorm(width, eps),
            })
            for index in range(config.num_hidden_layers)
        )  # fmt: skip
        self.rotary = Qwen3RotaryEmbedding(config)

    @property
    def size(self) -> int:
        return int(self.inner.get("block_size", self.said.get("block_size", 16)))

    @torch.inference_mode()
    def states(self, stock: Any, text: Sequence[int]) -> torch.Tensor:
        """Return the states [block, channels] after a text, read from its first token."""
        hidden = stock(torch.tensor([list(text[:-1])]), output_hidden_states=True).hidden_states
        states = torch.cat([hidden[place + 1][0] for place in self.inner["target_layer_ids"]], -1)
        features = self.hidden_norm(self.fc(states))
        tokens = torch.tensor([text[-1], *[self.inner["mask_token_id"]] * (self.size - 1)])
        x = F.embedding(tokens, stock.get_input_embeddings().weight) * self.inner.get("input_embedding_scale", 1.0)
        cos, sin = (part[0] for part in self.rotary(x[None], torch.arange(len(features) + len(x))[None]))
        for layer in self.layers:
            x = x + layer["self_attn"](layer["input_layernorm"](x), features, cos, sin)
            x = x + layer["mlp"](layer["post_attention_layernorm"](x))
        return self.norm(x)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, stock: Any, text: Sequence[int]) -> torch.Tensor:
        """Return the logits [block - 1, vocabulary] after a text."""
        logits = stock.lm_head(self.states(stock, text)[1:]) * self.inner.get("output_multiplier", 1.0)
        cap = self.inner.get("final_logit_softcapping")
        return torch.tanh(logits / cap) * cap if cap else logits  # type: ignore[no-any-return]


def plain_loop(head: Path) -> Block:
    from safetensors.torch import load_file

    block = Block(json.loads((head / "config.json").read_text()))
    missing, extra = block.load_state_dict(load_file(head / "model.safetensors"), strict=False)
    assert not extra and all("rotary" in name for name in missing)
    return block.eval()


def watched(drafter: Drafter) -> list[tuple[list[int], torch.Tensor]]:
    """Record each draft from now on: the text, and the logits of the block."""
    seen: list[tuple[list[int], torch.Tensor]] = []
    draft, predict = drafter.draft, drafter._predict
    texts: list[list[int]] = []

    def watch(context: Context) -> Any:
        texts.append(list(context.committed))
        return draft(context)

    def predicted(root: int, text: int) -> Any:
        logits, states = predict(root, text)
        seen.append((texts[-1], torch.as_tensor(logits).clone()))
        return logits, states

    drafter.draft, drafter._predict = watch, predicted  # type: ignore[method-assign]
    return seen


def bent_twice(name: str, form: dict[str, Any]) -> bool:
    """Return whether target and drafter cap logits at different values, for which no layout defines a result."""
    return "final_logit_softcapping" in form.get("dflash_config", {}) and name.startswith("gemma4")


def check(block: Block, model: Tiny, text: Sequence[int], logits: torch.Tensor) -> None:
    """Check that the logits are those of the plain loop; if the model caps its logits, the drafting head does too."""
    expected = block.logits(model.stock, text)
    cap = getattr(model.stock.config, "final_logit_softcapping", None)
    expected = torch.tanh(expected / cap) * cap if cap else expected
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, [*FAMILIES, *RECURRENT, *MIXTURES], fast=5), ids=str)
def test_every_block_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model = tiny(name)
    drafter, head = made(model, tmp_path, **form)
    block = plain_loop(head)
    session = Session(model.target, drafter, Budget(7, branches=model.target.branches))
    seen = watched(drafter)
    _, statistics = assert_two_turns(model, session)
    assert statistics.drafted > 0
    assert drafter.depth == block.size - 1
    if bent_twice(name, form):
        return
    for committed, logits in (seen[0], seen[3], seen[-1]):
        check(block, model, committed, logits)


@pytest.mark.slow
def test_a_long_prompt_is_read_in_parts(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.drafters.dflash.CHUNK", 7)
    model, prompt = tiny(LLAMA), prompt_ids(40, seed=3)
    drafter, head = made(model, tmp_path, **FORMS[1])
    seen = watched(drafter)
    assert reply(session_of(model.target, drafter, Budget(4)), prompt, 4)[0] == stock_reply(model.stock, prompt, 4)
    check(plain_loop(head), model, *seen[0])


@pytest.mark.slow
def test_among_several_drafters_each_gets_the_states_that_it_requested(tiny: Make, tmp_path: Path) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(11, seed=6)
    drafters = [
        made(model, tmp_path / str(one), dflash_config={"target_layer_ids": places, "block_size": 4})
        for one, places in enumerate(([0, 2], [1]))
    ]
    merged = Merged([drafter for drafter, _ in drafters])
    assert [*merged.target_layers] == [1, 3, 2]
    seen = [watched(drafter) for drafter, _ in drafters]
    assert reply(session_of(model.target, merged, Budget(6)), prompt, 6)[0] == stock_reply(model.stock, prompt, 6)
    for (_, head), blocks in zip(drafters, seen, strict=True):
        check(plain_loop(head), model, *blocks[0])


@each(
    "options, said",
    [
        ({"block": 1}, "block = 1"),
        ({"block": 65}, "block = 65"),
        ({"mask": -1}, "mask = -1"),
        ({"states": "2,x"}, "states = '2,x'"),
        ({"causal": "no"}, "causal = 'no'"),
        ({"cap": -1.0}, "cap = -1.0"),
        ({"scale": 0.0}, "scale = 0.0"),
        ({"multiplier": float("nan")}, "multiplier = nan"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageMistake, match=matching("dflash_possible_give", said=said)):
        DFlashOptions(**{"config": "{}", "states": "1", **options})


def test_its_numbers_are_known_before_it_is_loaded(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    drafter, head = made(model, tmp_path)
    card, numbers = read_drafter(tmp_path / "made"), sum(one.numel() for one in plain_loop(head).parameters())
    assert (card.kind, card.target, card.inner, card.parameters) == ("dflash", "tiny", 96, numbers)
    assert sum(torch.Size(one.shape).numel() for one in Drafter.tensor_specs(torch_form(model.target), drafter.options).values()) == numbers  # fmt: skip
    assert VOCABULARY == 320
