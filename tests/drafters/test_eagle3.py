"""EAGLE-3: every draft is that of a plain loop over the published arithmetic, and the text is the target's."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from drafting import drafting, path_tokens, perturbed, session_of, torch_form, train, watched
from each import each
from safetensors.torch import load_file, save_file
from session_replies import assert_two_turns, reply
from slow_cases import covering
from tiny_models import FAMILIES, MIXTURES, VOCABULARY, Tiny, prompt_ids, stock_logits, stock_reply
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.eagle3 import usual_places
from localspec.drafters.merged import Merged
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import read_drafter
from localspec.training.drafters.eagle3 import Trainable
from localspec.training.trainable import Batch, make_drafter, save_drafter

Make = Callable[[str], Tiny]
LLAMA = FAMILIES[0]
WIDE = {  # a layer of another shape than the target's, as a config.json of a published head describes it
    "hidden_size": 32, "intermediate_size": 28, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
    "rope_theta": 500.0, "rms_norm_eps": 1e-3,
}  # fmt: skip
OWN = json.dumps({**WIDE, "model_type": "llama", "attention_bias": True, "mlp_bias": True})
QWEN3 = json.dumps({**WIDE, "model_type": "qwen3", "hidden_size": 48})
FORMS: list[dict[str, Any]] = [
    {"depth": 3},
    {"depth": 3, "vocabulary": 150, "states": "0,2"},
    {"depth": 4, "config": OWN, "embedding": True, "norms": "each"},
    {"depth": 3, "config": QWEN3, "norms": "joined", "residual": True, "output": True, "vocabulary": 90},
]


def eagle(target: Any, seed: int = 0, **options: Any) -> Trainable:
    """Return an untrained drafter, the same for each seed."""
    torch.manual_seed(seed)
    if options.get("config") == QWEN3:  # it shares the target's embedding
        own = torch_form(target).transformer.config.hidden_size
        options["config"] = json.dumps({**json.loads(QWEN3), "hidden_size": own})
    made = make_drafter("eagle3", torch_form(target), options)
    assert isinstance(made, Trainable)
    if made.kept is not None:
        made.begin_training(torch.randperm(torch_form(target).vocab_size))
    if made.embedding is not None:
        made.embedding.normal_()
    return made


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def plain_loop(model: Tiny, drafter: Trainable, text: Sequence[int], path: Sequence[int]) -> torch.Tensor:
    """Return the logits [vocabulary] after a text and a drafted path, as published; -inf for unknown ids.

    Only chains, without a cache: each token of the path is read again with all tokens before it.
    """
    weights, options = drafter.tensors(), drafter.options
    own = json.loads(options.config) if options.config else {}
    shape = LlamaConfig(**own) if own.get("model_type") == "llama" else Qwen3Config(**own) if own else None
    gemma, gemma4 = (model.stock.config.model_type.startswith(name) for name in ("gemma", "gemma4"))
    # The last layer of Gemma 4 sees the whole text, and such layers have another number and size of heads.
    config = shape or (model.stock.config.per_layer_config[-1] if gemma4 else model.stock.config)
    eps, heads = config.rms_norm_eps, (config.num_attention_heads, config.num_key_value_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads[0]
    rotary = LlamaRotaryEmbedding(shape) if shape else model.stock.model.rotary_emb
    scale = model.stock.config.hidden_size**0.5 if gemma else getattr(model.stock.config, "embedding_multiplier", 1.0)
    embedding = weights.get("embedding", model.stock.get_input_embeddings().weight * scale)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def layer(tokens: Sequence[int], features: torch.Tensor) -> torch.Tensor:
        n = len(tokens)
        feature = normed(features, weights["feature_norm"], eps)
        both = torch.cat([normed(embedding[list(tokens)], weights["embedding_norm"], eps), feature], -1)
        q, k, v = linear("qkv", both).split([heads[0] * width, heads[1] * width, heads[1] * width], -1)
        q, k, v = (part.view(n, -1, width) for part in (q, k, v))
        if "q_norm" in weights:
            q, k = normed(q, weights["q_norm"], eps), normed(k, weights["k_norm"], eps)
        whole = {"layer_type": "full_attention"} if not shape and gemma else {}
        cos, sin = (part[0, :, None] for part in rotary(q[None], torch.arange(n)[None], **whole))
        turned = cos.shape[-1]

        def rotated(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x[..., :turned] * cos + rotate_half(x[..., :turned]) * sin, x[..., turned:]], -1)

        q, k = rotated(q), rotated(k)
        mixed = torch.empty(n, heads[0], width)
        for row in range(n):
            for head in range(heads[0]):
                group = head * heads[1] // heads[0]
                scores = k[: row + 1, group] @ q[row, head] / width**0.5
                mixed[row, head] = scores.softmax(-1) @ v[: row + 1, group]
        x = (feature if options.residual else features) + linear("o", mixed.view(n, -1))
        h = normed(x, weights["mlp_norm"], eps)
        return x + linear("down", F.silu(linear("gate", h)) * linear("up", h))

    with torch.inference_mode():
        hidden = model.stock(torch.tensor([list(text[:-1])]), output_hidden_states=True).hidden_states
        states = [hidden[place][0] for place in options.places]
        if options.norms == "each":
            states = [normed(part, torch.ones(1), eps) for part in states]
        joined = torch.cat(states, -1)
        if options.norms == "joined":
            joined = normed(joined, torch.ones(1), eps)
        features = linear("fc", joined * weights.get("states_norm", torch.ones(1)))
        tokens = list(text[1:])
        for following in [*path, None]:
            said = layer(tokens, features)[-1:]
            after = normed(said, weights["norm"], eps)
            features = torch.cat([features, after if options.output else said])
            tokens.append(following)  # type: ignore[arg-type]
        logits = linear("head", after)[0]
    if "kept" not in weights:
        return logits
    return torch.full((VOCABULARY,), float("-inf")).index_copy(0, weights["kept"], logits)


def check(model: Tiny, weights: Trainable, text: Sequence[int], tree: DraftTree) -> None:
    """Check that siblings are the likeliest tokens of the plain loop, with its chances: nothing was learned yet."""
    for node in range(tree.size):
        if below := tree.siblings[node]:
            chances = plain_loop(model, weights, text, path_tokens(tree, node)).softmax(-1)
            drafted = [tree.tokens[child] for child in below]
            assert [tree.chance[child] for child in below] == pytest.approx(
                chances[drafted].tolist(), rel=2e-3, abs=1e-6
            )
            assert min(chances[drafted]) >= chances.sort(descending=True).values[len(below) - 1] * 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, [*FAMILIES, *MIXTURES], fast=2), ids=str)
def test_every_draft_is_that_of_a_plain_loop_and_the_text_the_targets_own(tiny, name, form):
    model = tiny(name)
    weights = perturbed(eagle(model.target, **form))
    drafter = drafting(weights, model.target)
    session = session_of(model.target, drafter, Budget(9))
    seen = watched(drafter)
    calibrate, drafter._trees.calibrate = drafter._trees.calibrate, lambda step: None
    again, statistics = assert_two_turns(model, session)
    assert statistics.drafted > 0
    assert max(max(tree.depth) for _, tree in seen) >= 2
    for committed, tree in (seen[0], seen[3], seen[-2], max(seen, key=lambda one: max(one[1].depth))):
        assert tree.size == 10 and {*tree.source[1:]} == {"eagle3"}
        check(model, weights, committed, tree)
    drafter._trees.calibrate = calibrate
    assert reply(session, again, 12)[0] == stock_reply(model.stock, again, 12)


def test_a_long_prompt_is_read_in_parts_and_a_chain_goes_as_deep_as_it_may(tiny, monkeypatch):
    monkeypatch.setattr("localspec.drafters.eagle3.CHUNK", 7)
    monkeypatch.setattr("localspec.native.row_attention._PIECE", 500)
    model, prompt = tiny(LLAMA), prompt_ids(40, seed=3)
    weights = perturbed(eagle(model.target, depth=5))
    drafter = drafting(weights, model.target)
    seen = watched(drafter)
    for nodes in (1, 2):
        assert reply(session_of(model.target, drafter, Budget(nodes)), prompt, 4)[0] == stock_reply(
            model.stock, prompt, 4
        )
        committed, tree = seen[-1]
        assert tree.size == nodes + 1
        drafter.rewind(0)
    committed, tree = seen[0]
    check(model, weights, committed, tree)


@pytest.mark.slow
@each("name", [one for one in FAMILIES if "gemma4" in one])
def test_where_layers_differ_it_begins_as_the_last_of_its_own_sizes(tiny: Make, name: str) -> None:
    """Where keys are also the values, one projection computes both."""
    target = tiny(name).target
    weights, config = eagle(target).tensors(), target.transformer.config
    own = [layer for layer in config.attending if config.sizes_of(layer).keys_of is None]
    (last,) = [layer for layer in own if config.sliding_windows[layer] is None][-1:]
    qkv, keys = target.transformer.layers[last].qkv_proj.weight, config.num_kv_heads * config.head_dim
    queries = config.num_heads * config.head_dim
    read, projected = weights["qkv.weight"][:, config.hidden_size :], config.sizes_of(last).keys_are_values
    scale = (config.head_dim / config.query_scalar) ** 0.5
    assert torch.allclose(read[:queries], qkv[:queries] * scale)
    assert torch.equal(read[queries:-keys], qkv[queries : queries + keys])
    assert torch.equal(read[-keys:], qkv[queries if projected else queries + keys :][:keys])
    assert torch.equal(weights["o.weight"], target.transformer.layers[last].o_proj.weight * config.residual_scale)


def test_drawn_chains_say_what_each_node_was_drawn_from(tiny: Make) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(12, seed=3)
    weights = perturbed(eagle(model.target, depth=3, vocabulary=200))
    drafter = drafting(weights, model.target)
    seen = watched(drafter)
    reply(session_of(model.target, drafter, Budget(8)), prompt, 3, Sampling(1.0, seed=1, rule="rejection"))
    committed, tree = seen[0]
    assert tuple(tree.parents) == (-1, 0, 1, 2, 0, 4, 5, 0, 0)
    for node in range(1, tree.size):
        expected = plain_loop(model, weights, committed, path_tokens(tree, tree.parents[node]))
        row = torch.as_tensor(tree.draft_logits.rows[node])
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_among_several_drafters_each_gets_the_states_that_it_requested(tiny: Make) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(15, seed=6)
    weights = [perturbed(eagle(model.target, depth=2, states=states)) for states in ("0,1,2", "2,0")]
    drafters = [drafting(one, model.target) for one in weights]
    merged = Merged(drafters)
    assert [*merged.target_layers] == [0, 1, 2, 2, 0]
    seen = [watched(one) for one in drafters]
    assert reply(session_of(model.target, merged, Budget(6)), prompt, 6)[0] == stock_reply(model.stock, prompt, 6)
    for own, drafts in zip(weights, seen, strict=True):
        check(model, own, *drafts[0])


def test_the_states_are_those_of_the_published_code_where_there_are_layers_enough() -> None:
    assert usual_places(32) == (2, 16, 29) and usual_places(36) == (2, 18, 33) and usual_places(6) == (2, 3, 3)
    for few in range(1, 6):
        places = usual_places(few)
        assert [*places] == sorted(places) and places[-1] == few - 1 and places[0] >= 0


def test_of_a_large_vocabulary_the_frequent_tokens_are_drafted_unless_all_are_requested(tiny, monkeypatch):
    target = torch_form(tiny(LLAMA).target)
    monkeypatch.setattr("localspec.drafters.trained.LARGE", 319)
    monkeypatch.setattr("localspec.drafters.trained.FREQUENT", 40)
    made = make_drafter("eagle3", target, {})
    assert isinstance(made, Trainable) and made.options.vocabulary == len(made.tensors()["kept"]) == 40
    frequencies = torch.zeros(VOCABULARY, dtype=torch.long)
    frequencies[100:140] = 9
    made.begin_training(frequencies)
    assert made.tensors()["kept"].tolist() == [*range(100, 140)]
    assert torch.equal(made.head.weight, target.transformer.lm_head.weight[100:140])
    assert make_drafter("eagle3", target, {"vocabulary": 0}).options.vocabulary == 0


@each("form", FORMS)
def test_what_is_saved_drafts_as_before(tiny: Make, tmp_path: Path, form: dict[str, Any]) -> None:
    target, prompt = tiny(LLAMA).target, prompt_ids(9, seed=1)
    weights = perturbed(eagle(target, **form))
    save_drafter(weights, tmp_path, {"target": {"revision": "r", "name": "tiny"}})
    card = read_drafter(tmp_path)
    loaded = load_drafter(card, target)
    assert loaded.options == weights.options and loaded.depth == form["depth"]
    assert card.inner == 48 * len(weights.options.places)
    trees = []
    for drafter in (loaded, drafting(weights, target)):
        seen = watched(drafter)
        reply(session_of(target, drafter, Budget(8)), prompt, 4)
        trees.append([(tree.tokens, tree.parents) for _, tree in seen])
    assert trees[0] == trees[1]


def test_a_draft_vocabulary_that_the_model_does_not_have_is_refused(tiny: Make, tmp_path: Path) -> None:
    target = tiny(LLAMA).target
    save_drafter(eagle(target, vocabulary=5), tmp_path, {"target": {"revision": "r", "name": "tiny"}})
    file = tmp_path / "drafter.safetensors"
    numbers = load_file(file)
    save_file(numbers | {"kept": torch.tensor([1, 2, 3, 4, 320]).to(numbers["kept"].dtype)}, file)
    with pytest.raises(LocalspecError, match="'kept'"):
        load_drafter(read_drafter(tmp_path), target)


def batch_of(
    model: Tiny, drafter: Trainable, texts: Sequence[Sequence[int]], prompt: int, distill: bool = False
) -> Batch:
    """Return texts of one length, as the loop reads them; tokens after the first `prompt` ones count in the loss."""
    tokens = torch.tensor(texts)
    counts = torch.ones_like(tokens, dtype=torch.bool)
    counts[:, :prompt] = False
    with torch.no_grad():
        output = model.stock.model(tokens, output_hidden_states=True)
    inner = torch.cat([output.hidden_states[place] for place in drafter.options.places], -1)
    return Batch(tokens, counts, output.last_hidden_state, distill, inner=inner)


@pytest.mark.slow
@each("distill", [False, True])
@each("form", FORMS)
def test_each_step_of_the_loss_is_a_draft_of_the_texts_own_tokens(tiny, form, distill):
    """The mean cross-entropy of every root and depth that fit into the reply, by the plain loop, and its gradient."""
    model, text = tiny(LLAMA), prompt_ids(12, seed=5)
    weights = perturbed(eagle(model.target, **form), 0.2)
    batch = batch_of(model, weights, [text, prompt_ids(12, seed=6)], 6, distill)
    batch.loss_mask[1] = False  # training ignores texts that the assistant did not write
    found = weights.loss(batch)
    logits = stock_logits(model.stock, text)
    kept = weights.tensors().get("kept", torch.arange(VOCABULARY))
    for depth, one in enumerate(found.depth_losses):
        losses, right = [], 0
        for root in range(6, 11 - depth):
            said = plain_loop(model, weights, text[: root + 1], text[root + 1 : root + 1 + depth])[kept].log_softmax(-1)
            at = root + depth
            label = int(logits[at].argmax()) if distill else text[at + 1]
            if distill:
                losses.append(-(logits[at][kept].softmax(-1) * said).sum())
            elif label in kept.tolist():
                losses.append(-said[kept.tolist().index(label)])
            right += int(kept[said.argmax()]) == label
        assert one.count == 5 - depth
        assert float(one.loss.detach()) == pytest.approx(float(sum(losses)), rel=2e-3, abs=1e-5)
        assert int(one.hits[0]) == right
    weighted = sum(0.8**depth * one.loss.detach() / one.count for depth, one in enumerate(found.depth_losses))
    assert float(found.loss.detach()) == pytest.approx(float(weighted), rel=1e-5)
    found.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in weights.parameters())


def test_a_batch_without_a_reply_teaches_nothing(tiny: Make) -> None:
    model = tiny(LLAMA)
    weights = eagle(model.target, depth=2)
    found = weights.loss(batch_of(model, weights, [prompt_ids(9)], 9))
    found.loss.backward()
    assert [one.count for one in found.depth_losses] == [0, 0] and not weights.fc.weight.grad.any()


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"depth": 3}, {"depth": 3, "vocabulary": 200}], ids=str)
def test_trained_on_a_text_it_foresees_nearly_all_of_it(tiny: Make, form: dict[str, Any]) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(9, seed=6)
    text = stock_reply(model.stock, prompt, 24)
    weights = eagle(model.target, **form)
    if weights.kept is not None:
        weights.begin_training(torch.bincount(torch.tensor([*prompt, *text]), minlength=VOCABULARY))
    batch = batch_of(model, weights, [[*prompt, *text]], 9)

    def accepted() -> float:
        ids, statistics = reply(session_of(model.target, weights, Budget(6)), prompt, 24)
        assert ids == text
        return statistics.acceptance_length

    before = accepted()
    train(weights, batch, 60)
    assert accepted() > max(2.5, before + 0.8)
