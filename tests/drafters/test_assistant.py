"""Gemma 4's assistants: every tree is that of a plain loop and of transformers' module; the text is the target's."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drafting import session_of, watched
from each import each
from safetensors.torch import load_file, save_file
from session_replies import assert_plain, assert_two_turns, reply
from slow_cases import covering
from tiny_models import FAMILIES, Tiny, prompt_ids, stock_reply
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding, apply_rotary_pos_emb

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.assistant import AssistantOptions, Drafter
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.models.drafter_cards import read_drafter
from localspec.training.assistant_files import read_published
from localspec.training.published_files import convert

Make = Callable[[str], Tiny]
GEMMAS = [name for name in FAMILIES if name.startswith("gemma4")]
LOCAL, WHOLE = "sliding_attention", "full_attention"
FORMS: list[dict[str, Any]] = [
    {},
    {"use_ordered_embeddings": True, "num_centroids": 32, "centroid_intermediate_top_k": 6},
    {"layer_types": [WHOLE, LOCAL, WHOLE, WHOLE]},
]


def allow_assistants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers make an assistant: 5.23 refuses a model all of whose layers read another's keys."""
    own = Gemma4TextConfig.kv_sharing_modes

    def found(self: Gemma4TextConfig) -> list[str | None]:
        every = self.num_hidden_layers
        return ["reuse"] * every if self.num_kv_shared_layers == every else own.fget(self)  # type: ignore[attr-defined]

    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(found))


@pytest.fixture(autouse=True)
def modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers make assistants in each of these tests."""
    allow_assistants(monkeypatch)


def published(path: Path, target: Any, seed: int = 5, spread: float = 0.3, **form: Any) -> Path:
    """Write a directory as transformers writes an assistant, with random weights."""
    types = form.pop("layer_types", [LOCAL, LOCAL, WHOLE])
    same = (
        "num_attention_heads", "attention_k_eq_v", "sliding_window", "rope_parameters", "vocab_size",
        "max_position_embeddings", "attention_bias", "final_logit_softcapping",
    )  # fmt: skip
    local, whole = (target.per_layer_config[target.layer_types.index(kind)] for kind in (LOCAL, WHOLE))
    text = Gemma4TextConfig(
        **{name: getattr(target, name) for name in same}, num_key_value_heads=local.num_key_value_heads,
        head_dim=local.head_dim, num_global_key_value_heads=whole.num_key_value_heads, global_head_dim=whole.head_dim,
        hidden_size=24, intermediate_size=20, num_hidden_layers=len(types), layer_types=types,
        num_kv_shared_layers=len(types), hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, bos_token_id=None,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=target.hidden_size, **form)
    model = Gemma4AssistantForCausalLM(config)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.ndim > 1 else 1.0, spread, generator=chance)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, spread, generator=chance)
            if name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(len(buffer), generator=chance))
    model.save_pretrained(path)
    return path


def made(model: Tiny, path: Path, depth: int = 4, **form: Any) -> tuple[Drafter, Path]:
    """Return a drafter for a target, converted from a published directory, and that directory."""
    head = published(path / "head", model.stock.config, **form)
    convert(
        "assistant", head, model.path, path / "made", {"name": "tiny", "published": {"repo": "org/head", "commit": "c"}}
    )
    drafter = load_drafter(read_drafter(path / "made"), model.target)
    assert isinstance(drafter, Drafter) and drafter.depth == AssistantOptions().depth
    return drafter, head


# -- a plain loop ------------------------------------------------------------------------------------------------------


class Plain:
    """An assistant in plain torch; of transformers there are the rotation and the target."""

    def __init__(self, head: Path) -> None:
        self.w = load_file(head / "model.safetensors")
        self.config = Gemma4AssistantConfig.from_pretrained(head)
        self.text = self.config.text_config
        self.rotary = Gemma4TextRotaryEmbedding(self.text)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[name], self.text.rms_norm_eps)

    @torch.inference_mode()
    def read(self, stock: Any, text: Sequence[int]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the target's last state of a text [hidden_size], and keys and values by the kind of layer."""
        found, config = stock.model(torch.tensor([list(text)]), use_cache=True), stock.config
        own = config.layer_types[: config.num_hidden_layers - config.num_kv_shared_layers]
        last = {kind: len(own) - 1 - own[::-1].index(kind) for kind in set(own)}
        held = found.past_key_values.layers
        return found.last_hidden_state[0, -1], {kind: (held[at].keys, held[at].values) for kind, at in last.items()}

    @torch.inference_mode()
    def logits(self, stock: Any, text: Sequence[int], path: Sequence[int]) -> torch.Tensor:
        """Return the logits [vocabulary] after a text, whose last token is the root, and a drafted path."""
        state, lent = self.read(stock, text[:-1])
        for token in [text[-1], *path]:
            embedded = stock.get_input_embeddings()(torch.tensor(token))
            said = self.states(self.w["pre_projection.weight"] @ torch.cat([embedded, state]), lent, len(text) - 1)
            state = self.w["post_projection.weight"] @ said
        logits = self.w["model.embed_tokens.weight"] @ said
        if not self.config.use_ordered_embeddings:
            return logits
        near = (
            (self.w["masked_embedding.centroids.weight"] @ said).topk(self.config.centroid_intermediate_top_k).indices
        )
        members = self.w["masked_embedding.token_ordering"].view(self.config.num_centroids, -1)[near].flatten()
        return torch.full_like(logits, float("-inf")).scatter(0, members, logits[members])

    def states(self, x: torch.Tensor, lent: dict[str, Any], position: int) -> torch.Tensor:
        for index, kind in enumerate(self.text.layer_types):
            name = f"model.layers.{index}."
            keys, values = (one[0] for one in lent[kind])  # [heads, tokens, channels]
            h = self.norm(x, name + "input_layernorm.weight")
            q = self.w[name + "self_attn.q_proj.weight"] @ h + self.w.get(name + "self_attn.q_proj.bias", 0.0)
            q = self.norm(q.view(-1, keys.shape[-1]), name + "self_attn.q_norm.weight")
            cos, sin = self.rotary(x[None, None], torch.tensor([[position]]), kind)
            q = apply_rotary_pos_emb(q[None, None], cos, sin, unsqueeze_dim=2)[0, 0]
            first = max(keys.shape[1] - self.text.sliding_window + 1, 0) if kind == LOCAL else 0
            mixed = []
            for which, query in enumerate(q):
                group = which * len(keys) // len(q)
                mixed.append((keys[group, first:] @ query).softmax(0) @ values[group, first:])
            h = self.w[name + "self_attn.o_proj.weight"] @ torch.cat(mixed)
            h = h + self.w.get(name + "self_attn.o_proj.bias", 0.0)
            x = x + self.norm(h, name + "post_attention_layernorm.weight")
            h = self.norm(x, name + "pre_feedforward_layernorm.weight")
            gate, up = (self.w[f"{name}mlp.{part}_proj.weight"] @ h for part in ("gate", "up"))
            h = self.w[name + "mlp.down_proj.weight"] @ (F.gelu(gate, approximate="tanh") * up)
            x = (x + self.norm(h, name + "post_feedforward_layernorm.weight")) * self.w[name + "layer_scalar"]
        return self.norm(x, "model.norm.weight")


def check(plain: Plain, model: Tiny, text: Sequence[int], tree: DraftTree) -> None:
    """Each node's chance is the plain loop's, and the first child of a node its likeliest."""
    assert tree.size > 2 and {*tree.source[1:]} == {"assistant"}
    for node in range(1, tree.size):
        path = [*tree.chain_to(node).tokens[1:-1]]
        chances = plain.logits(model.stock, text, path).softmax(-1)
        assert tree.chance[node] == pytest.approx(float(chances[tree.tokens[node]]), rel=5e-3, abs=1e-6)
        if tree.siblings[tree.parents[node]][0] == node:
            assert chances[tree.tokens[node]] >= chances.max() * 0.999


def unlearning(drafter: Drafter) -> None:
    """Disable calibration, so that the chances are the drafter's own."""
    drafter._trees.calibrate = lambda step: None  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, GEMMAS, fast=3), ids=str)
def test_every_tree_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, tmp_path, name, form):
    model = tiny(name)
    drafter, head = made(model, tmp_path, **form)
    unlearning(drafter)
    session, seen, plain = Session(model.target, drafter, Budget(7)), watched(drafter), Plain(head)
    _, statistics = assert_two_turns(model, session)
    assert statistics.drafted > 0
    for committed, tree in (seen[0], seen[3], seen[-1]):
        check(plain, model, committed, tree)


@each("form", [{**form, "name": GEMMAS[0]} for form in FORMS])
@torch.inference_mode()
def test_the_plain_loop_is_transformers_own_module(tiny: Make, tmp_path: Path, form: dict[str, Any]) -> None:
    own = dict(form)
    model, text = tiny(own.pop("name")), prompt_ids(5, seed=8)
    head = published(tmp_path, model.stock.config, **own)
    plain, stock = Plain(head), Gemma4AssistantForCausalLM.from_pretrained(head, attn_implementation="eager").eval()
    state, lent = plain.read(model.stock, text[:-1])
    embed, token = model.stock.get_input_embeddings(), text[-1]
    for path in ([], [7]):
        inputs = torch.cat([embed(torch.tensor(token)), state])[None, None]
        said = stock(inputs_embeds=inputs, position_ids=torch.tensor([[4]]), shared_kv_states=dict(lent))
        ours = plain.logits(model.stock, text, path)
        shown = ours > float("-inf")
        assert int(shown.sum()) >= 60
        torch.testing.assert_close(ours[shown], said.logits[0, 0][shown], atol=1e-4, rtol=1e-3)
        state, token = said.last_hidden_state[0, 0], 7


def test_it_drafts_for_a_text_that_is_read_in_parts_and_again(tiny: Make, tmp_path: Path) -> None:
    model, prompt = tiny(GEMMAS[0]), prompt_ids(30, seed=3)
    drafter, head = made(model, tmp_path)
    unlearning(drafter)
    session, seen = session_of(model.target, drafter, Budget(4)), watched(drafter)
    for count in (30, 20, 25):
        ids, _ = reply(session, prompt[:count], 6)
        assert ids == stock_reply(model.stock, prompt[:count], 6)
        check(Plain(head), model, *seen[-1])


@pytest.mark.parametrize("sampling", [Sampling(0.8, top_p=0.95, seed=3), Sampling(1.0, seed=2**63 + 5)], ids=str)
def test_a_seed_gives_the_same_ids_with_and_without_it(tiny: Make, tmp_path: Path, sampling: Sampling) -> None:
    model, prompt = tiny(GEMMAS[0]), prompt_ids(10, seed=4)
    drafter, _ = made(model, tmp_path, **FORMS[1])
    assert_plain(model.target, Session(model.target, drafter, Budget(8)), prompt, 14, sampling)


def test_without_a_state_or_nodes_there_is_only_the_root(tiny: Make, tmp_path: Path) -> None:
    model = tiny(GEMMAS[0])
    drafter, _ = made(model, tmp_path)
    for committed, nodes in (([5, 6], 8), ([5], 8), ([5, 6], 0)):
        assert drafter.draft(Context(committed, model.target.cache(8), nodes, Sampling())).tokens == (committed[-1],)


def with_config(path: Path, **words: Any) -> Path:
    """Change keys of config.json; those of `text_config` are merged into it."""
    config = json.loads((path / "config.json").read_text())
    words["text_config"] = config["text_config"] | words.get("text_config", {})
    (path / "config.json").write_text(json.dumps(config | words))
    return path


@pytest.mark.slow
@each(
    "config, tensors, said",
    [
        ({"backbone_hidden_size": 64}, {}, "made for a model of 64 channels, but this model has 48"),
        ({"text_config": {"vocab_size": 300}}, {}, "a Gemma 4 of 300 tokens, .* and has 320"),
        ({"text_config": {"head_dim": 10}}, {}, "key heads of 10 channels in a layer, but this model has 4 of 12"),
        ({"text_config": None}, {}, "no text_config"),
        ({"use_ordered_embeddings": True, "num_centroids": 7}, {}, "nearest = 32"),
        ({"use_ordered_embeddings": True, "num_centroids": 33}, {}, "320 tokens cannot form 33 clusters"),
        (
            {"use_ordered_embeddings": True, "num_centroids": 64},
            {},
            "'masked_embedding.centroids.weight' .* is missing",
        ),
        (
            {},
            {"pre_projection.weight": torch.zeros(24, 95)},
            r"'pre_projection.weight' .* has the shape \[24, 95\] \(expected: \[24, 96\]\)",
        ),
        ({}, {"model.layers.1.mlp.up_proj.weight": None}, "'model.layers.1.mlp.up_proj.weight' .* is missing"),
        ({}, {"model.layers.0.router.weight": torch.zeros(2)}, "'model.layers.0.router.weight' .* is a tensor that"),
        ({}, {"model.norm.weight": torch.full((24,), float("nan"))}, "'model.norm.weight' .* NaN"),
    ],
)
def test_what_belongs_to_another_model_or_is_of_another_form_is_refused_in_a_sentence(
    tiny: Make, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    model = tiny(GEMMAS[0])
    path = published(tmp_path / "head", model.stock.config)
    if config.get("text_config", {}) is None:
        whole = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**whole, "text_config": None}))
    else:
        with_config(path, **config)
    own = load_file(path / "model.safetensors") | tensors
    save_file({name: one for name, one in own.items() if one is not None}, path / "model.safetensors")
    with pytest.raises(LocalspecError, match=said) as refused:
        read_published(path, model.target)
    assert "\n" not in str(refused.value)


def test_another_directory_and_another_family_have_no_assistant(tiny: Make, tmp_path: Path) -> None:
    gemma, llama = tiny(GEMMAS[0]), tiny(FAMILIES[0])
    with pytest.raises(NotHere, match="does not describe an assistant"):
        read_published(gemma.path, gemma.target)
    path = published(tmp_path, gemma.stock.config)
    with pytest.raises(LocalspecError, match="this model is of the family llama"):
        read_published(path, llama.target)


@each(
    "options, said",
    [
        ({"depth": 17}, "depth = 17"),
        ({"clusters": -1}, "clusters = -1"),
        ({"clusters": 4, "nearest": 5}, "nearest = 5"),
        ({"clusters": 4}, "nearest = 0"),
        ({"nearest": 2}, "nearest = 2"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageMistake, match=f"{said} of assistant is not possible"):
        AssistantOptions(**options)
