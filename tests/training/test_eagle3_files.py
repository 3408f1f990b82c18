"""Published EAGLE-3 heads: every layout of them, and what is refused, with files that the tests write."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.test_eagle3 import OWN, QWEN3, WIDE, check, eagle, watched
from drafting import perturbed, published, session_of
from each import each
from golden import matching
from safetensors.torch import save_file
from session_replies import reply
from tiny_models import FAMILIES, Tiny, prompt_ids, stock_reply

from localspec.decoding.budget import Budget
from localspec.drafters.trained import load_drafter
from localspec.errors import LocalspecError, NotHere
from localspec.models.drafter_cards import read_drafter
from localspec.published_heads import base_model, is_eagle3, kind_of_heads
from localspec.training.drafters.eagle3 import Trainable
from localspec.training.eagle3_files import read_published
from localspec.training.published_files import convert
from localspec.training.trainable import ConvertedDrafter

Make = Callable[[str], Tiny]
Tensors = dict[str, torch.Tensor]
LLAMA = FAMILIES[0]
PLAIN = {**WIDE, "hidden_size": 48, "model_type": "llama"}  # as wide as the target, without biases
NAMES = {
    "fc.weight": "fc.weight", "norm": "norm.weight", "head.weight": "lm_head.weight", "feature_norm": "{}hidden_norm.weight",
    "embedding_norm": "{}input_layernorm.weight", "mlp_norm": "{}post_attention_layernorm.weight",
    "q_norm": "{}self_attn.q_norm.weight", "k_norm": "{}self_attn.k_norm.weight", "embedding": "embed_tokens.weight",
    **{f"o.{part}": "{}self_attn.o_proj." + part for part in ("weight", "bias")},
    **{f"{one}.{part}": f"{{}}mlp.{one}_proj.{part}" for one in ("gate", "up", "down") for part in ("weight", "bias")},
}  # fmt: skip


def tensors_of(weights: Trainable, prefix: str) -> Tensors:
    """Return the same weights by the names of the published code."""
    own, found = weights.tensors(), {}
    for name, tensor in own.items():
        if name in NAMES:
            found[NAMES[name].format(prefix)] = tensor
    sizes = weights.sizes
    rows = [sizes.num_heads * sizes.head_dim, *[sizes.num_kv_heads * sizes.head_dim] * 2]
    for part in ("weight", "bias"):
        if f"qkv.{part}" in own:
            for which, one in zip("qkv", own[f"qkv.{part}"].split(rows), strict=True):
                found[f"{prefix}self_attn.{which}_proj.{part}"] = one
    if "kept" in own:
        found["d2t"] = own["kept"] - torch.arange(len(own["kept"]))
        found["t2d"] = torch.zeros(320, dtype=torch.bool).index_fill_(0, own["kept"], True)
    if weights.options.norms == "joined":
        found["input_norm.weight"] = own["states_norm"]
    if weights.options.norms == "each":
        found |= {f"fc_norm.{at}.weight": part for at, part in enumerate(own["states_norm"].chunk(3))}
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


def specforge(weights: Trainable, path: Path, pickled: bool = False, **more: Any) -> Path:
    """Write a head as SpecForge saves it, or, in a pickle, as yuhuili's heads are."""
    layer, names = json.loads(weights.options.config), tensors_of(weights, "midlayer.")
    config = {**layer, "architectures": ["LlamaForCausalLM" if pickled else "LlamaForCausalLMEagle3"]}
    config |= {"draft_vocab_size": weights.options.vocabulary or 320, "tie_word_embeddings": False, **more}
    return write(path, config, names, pickled)


def speculators(weights: Trainable, path: Path, **more: Any) -> Path:
    """Write a head as RedHatAI publishes them."""
    layer, names = json.loads(weights.options.config), tensors_of(weights, "layers.0.")
    names["verifier_norm.weight"] = torch.ones(48)
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
        "transformer_layer_config": {**layer, "num_hidden_layers": 1}, "draft_vocab_size": weights.options.vocabulary or 320,
        "norm_before_residual": weights.options.residual, "norm_output": weights.options.output,
        "norm_before_fc": weights.options.norms == "joined", "fc_norm": weights.options.norms == "each",
        "eagle_aux_hidden_state_layer_ids": [*weights.options.places],
        "speculators_config": {
            "algorithm": "eagle3", "verifier": {"name_or_path": "org/base", "architectures": ["LlamaForCausalLM"]},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        }, **more,
    }  # fmt: skip
    return write(path, config, names, False)


def write(path: Path, config: dict[str, Any], tensors: Tensors, pickled: bool) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, path / "pytorch_model.bin")
    else:
        save_file(tensors, path / "model.safetensors")
    return path


def embedding(model: Tiny) -> torch.Tensor:
    found: torch.Tensor = model.stock.get_input_embeddings().weight.detach()
    return found


def found_in(path: Path, model: Tiny) -> ConvertedDrafter:
    return read_published(path, model.target, lambda names: embedding(model))


CASES: dict[str, tuple[Callable[..., Path], dict[str, Any], dict[str, Any]]] = {
    "SafeAILab": (specforge, {"config": json.dumps(PLAIN), "vocabulary": 90, "states": "2,1,0"}, {"pickled": True}),
    "SpecForge": (
        specforge, {"config": json.dumps(PLAIN), "states": "1,2,0"},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, -1], "use_aux_hidden_state": True}},
    ),
    "SpecForge 3.1": (
        specforge, {"config": OWN, "embedding": True, "norms": "each", "states": "2,1,0", "vocabulary": 60},
        {"norm_output": True, "fc_norm": True},
    ),
    "speculators": (speculators, {"config": json.dumps(PLAIN), "vocabulary": 90, "residual": True}, {}),
    "speculators, qwen3": (
        speculators,
        {"config": QWEN3, "norms": "joined", "output": True, "states": "0,2", "embedding": True, "vocabulary": 200}, {},
    ),
}  # fmt: skip


@pytest.mark.slow
@each("case", CASES)
def test_every_layout_drafts_as_its_own_arithmetic_says(tiny: Make, tmp_path: Path, case: str) -> None:
    """The files have neither our names nor our switches: a file that follows a layout's description is read as meant."""
    layout, options, more = CASES[case]
    model, prompt = tiny(LLAMA), prompt_ids(14, seed=8)
    weights = perturbed(eagle(model.target, depth=3, **options))
    path = layout(weights, tmp_path / "head", **more)
    assert kind_of_heads(json.loads((path / "config.json").read_text())) == "eagle3"
    found = found_in(path, model)
    assert found.tensors().keys() == weights.tensors().keys()
    for name, tensor in weights.tensors().items():
        assert torch.equal(found.tensors()[name], tensor), name
    for name in ("places", "vocabulary", "embedding", "norms", "residual", "output"):
        assert getattr(found.options, name) == getattr(weights.options, name), name
    drafter = published(found, model.target)
    seen = watched(drafter)
    assert reply(session_of(model.target, drafter, Budget(7)), prompt, 6)[0] == stock_reply(model.stock, prompt, 6)
    check(model, weights, *seen[0])


@pytest.mark.slow
def test_it_is_converted_once_and_in_the_precision_of_its_files(tiny: Make, tmp_path: Path) -> None:
    """The embedding is the target's, so it is not saved."""
    model, prompt = tiny(LLAMA), prompt_ids(9, seed=2)
    weights = eagle(model.target, config=json.dumps(PLAIN), vocabulary=90, states="0,1,2")
    path = speculators(weights, tmp_path / "head")
    tensors = {**tensors_of(weights, "layers.0."), "embed_tokens.weight": embedding(model).clone()}
    save_file({n: one.bfloat16() if one.is_floating_point() else one for n, one in tensors.items() if n != "embed_tokens.weight"}
              | {"embed_tokens.weight": tensors["embed_tokens.weight"]}, path / "model.safetensors")  # fmt: skip
    about = {"name": "tiny", "published": {"repo": "org/head", "commit": "c"}}
    convert("eagle3", path, model.path, tmp_path / "made", about)
    card = read_drafter(tmp_path / "made")
    assert (card.kind, card.target, card.inner) == ("eagle3", "tiny", 3 * 48)
    assert card.options["depth"] == 3 and not card.options["embedding"]
    assert card.bytes < 2.1 * card.parameters + 8 * 90 + 4096
    drafter = load_drafter(card, model.target)
    assert reply(session_of(model.target, drafter, Budget(6)), prompt, 8)[0] == stock_reply(model.stock, prompt, 8)
    before = (tmp_path / "made" / "drafter" / "drafter.json").stat().st_mtime_ns
    convert("eagle3", path, model.path, tmp_path / "made", about)
    assert (tmp_path / "made" / "drafter" / "drafter.json").stat().st_mtime_ns == before


def test_a_bias_of_only_the_queries_is_not_left_out(tiny: Make, tmp_path: Path) -> None:
    model, bias = tiny(LLAMA), torch.arange(40.0)
    weights = eagle(model.target, config=json.dumps(PLAIN), states="2,1,0")
    rows = weights.sizes.num_heads * weights.sizes.head_dim
    path = specforge(weights, tmp_path)
    tensors = {**tensors_of(weights, "midlayer."), "midlayer.self_attn.q_proj.bias": bias[:rows]}
    save_file(tensors, path / "model.safetensors")
    found = found_in(path, model).tensors()
    assert torch.equal(found["qkv.bias"][:rows], bias[:rows]) and not found["qkv.bias"][rows:].any()


@pytest.mark.slow
@each(
    "config, tensors, said",
    [
        ({"vocab_size": 400}, {}, matching("n400_tokens_one_320")),
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, {}, matching("reads_states_2_16_29_model_3")),
        ({"eagle_aux_hidden_state_layer_ids": ["x"]}, {}, "must be numbers of layers"),
        ({}, {"fc.weight": torch.zeros(48, 99)}, r"'fc.weight' .* has the shape \[48, 99\] \(expected: \[48, 144\]\)"),
        ({}, {"midlayer.mlp.up_proj.weight": None}, "'mlp.up_proj.weight' .* is missing"),
        ({}, {"d2t": torch.full((90,), 300)}, r"draft vocabulary .* does not suit a model of 320"),
        ({}, {"t2d": torch.zeros(320, dtype=torch.bool)}, "draft vocabulary"),
        ({}, {"t2d": torch.ones(400, dtype=torch.bool)}, "draft vocabulary"),
        ({}, {"d2t": torch.tensor(3)}, "'d2t' .* a single number"),
        ({}, {"t2d": torch.tensor(True)}, "'t2d' .* a single number"),
        ({}, {"d2t": torch.zeros(90).to(torch.float8_e4m3fn)}, "'d2t' .* float8_e4m3fn"),
        ({}, {"midlayer.self_attn.q_proj.weight": torch.tensor(1.0)}, "'self_attn.q_proj.weight' .* a single number"),
        (
            {},
            {"midlayer.self_attn.k_proj.weight": torch.zeros(24, 7)},
            r"'self_attn.q_proj.weight' .* and \[24, 7\] and",
        ),
        ({}, {"midlayer.self_attn.q_proj.bias": torch.ones(1, 40)}, r"'self_attn.q_proj.bias' .*\[1, 40\] and"),
        (
            {},
            {"fc_norm.0.weight": torch.ones(48), "fc_norm.1.weight": torch.ones(1, 48)},
            r"'fc_norm.0.weight' .*\[48\] and \[1, 48\]",
        ),
        (
            {},
            {"midlayer.mlp.up_proj.weight": torch.ones(28, 48, dtype=torch.int8)},
            "'mlp.up_proj.weight' .* type int8, but",
        ),
        ({}, {"norm.weight": torch.ones(48, dtype=torch.float64)}, "'norm.weight' .* type float64, but"),
        ({"rope_scaling": {"rope_type": "odd"}}, {}, "The EAGLE-3 head in .* cannot be used: .*'odd'"),
        ({}, {"mask_hidden": torch.zeros(1, 1, 144)}, "P-EAGLE"),
        ({}, {"layers.1.mlp.up_proj.weight": torch.zeros(28, 48)}, matching("no_part_of_the_eagle_3_head")),
        ({}, {"norm.weight": torch.full((48,), float("nan"))}, "'norm.weight' .* NaN"),
        ({"model_type": "phi3"}, {}, matching("layer_llama_qwen3")),
        ({"norm_output": False}, {}, "norm_output = false"),
        ({"num_hidden_layers": 2}, {}, "has 2 layers"),
        ({"hidden_act": "gelu"}, {}, "gelu"),
        ({"hidden_size": 64}, {}, matching("n64_channels_wide_model_48")),
    ],
)
def test_what_belongs_to_another_model_or_is_of_another_form_is_refused_in_a_sentence(
    tiny: Make, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    model = tiny(LLAMA)
    path = specforge(eagle(model.target, config=json.dumps(PLAIN), vocabulary=90, states="2,1,0"), tmp_path, **config)
    if tensors:
        own = {
            **tensors_of(eagle(model.target, config=json.dumps(PLAIN), vocabulary=90, states="2,1,0"), "midlayer."),
            **tensors,
        }
        save_file({name: one for name, one in own.items() if one is not None}, path / "model.safetensors")
    with pytest.raises(LocalspecError, match=said) as refused:
        found_in(path, model)
    assert "\n" not in str(refused.value)


class Harmful:
    def __reduce__(self) -> Any:
        return (eval, ("1 / 0",))


def test_a_pickle_is_never_run_and_damage_is_reported(tiny: Make, tmp_path: Path) -> None:
    model = tiny(LLAMA)
    path = specforge(eagle(model.target, config=json.dumps(PLAIN), states="2,1,0"), tmp_path, pickled=True)
    torch.save({"fc.weight": Harmful()}, path / "pytorch_model.bin")
    with pytest.raises(LocalspecError, match=rf"pytorch_model\.bin .*{matching('would_run_code')}"):
        found_in(path, model)
    (path / "pytorch_model.bin").write_bytes(b"x" * 99)
    with pytest.raises(LocalspecError, match=matching("pytorch_model_bin_is_damaged")):
        found_in(path, model)
    (path / "pytorch_model.bin").unlink()
    with pytest.raises(NotHere, match=matching("there_eagle_3_head")):
        found_in(path, model)
    (path / "config.json").write_text("{}")
    with pytest.raises(NotHere, match=matching("of_no_eagle_3_head")):
        found_in(path, model)


def test_a_config_distinguishes_heads_from_models_and_names_the_model() -> None:
    assert not is_eagle3({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    assert not is_eagle3({"speculators_model_type": "peagle", "draft_vocab_size": 9})
    assert not is_eagle3({"architectures": ["DFlashDraftModel"], "draft_vocab_size": 9})
    assert kind_of_heads({"architectures": ["MedusaModel"]}) == "medusa" and kind_of_heads({}) is None
    assert base_model({"speculators_config": {"verifier": {"name_or_path": "org/base"}}}) == "org/base"
    assert base_model({"base_model_name_or_path": "org/base"}) == "org/base"
    assert base_model({"speculators_config": []}) is None
