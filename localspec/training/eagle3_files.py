"""Converts published EAGLE-3 heads, in the layouts that exist, to a drafter of ours.

    SafeAILab    pytorch_model.bin    midlayer.{…}  fc norm lm_head d2t t2d   a Llama's config with draft_vocab_size
    SpecForge    model.safetensors    the same names                          eagle_config may count layers otherwise
    speculators  model.safetensors    layers.0.{…}  embed_tokens verifier_norm   transformer_layer_config

d2t [draft vocabulary] is what is added to a draft id to make it the target's, t2d [vocabulary] which are meant.
Sizes follow from config.json, and every tensor must fit them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from localspec.drafters.eagle3 import MOST_PLACES, Drafter, Eagle3Options
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.nn.target import Target
from localspec.published_heads import is_eagle3
from localspec.training.published_files import (
    Tensors,
    check_numbers,
    convert_published,
    fitted,
    read_tensors,
    stored_matrix,
)
from localspec.training.trainable import TrainableDrafter, make_drafter
from localspec.weights.checkpoint import PICKLED_INDEX, read_config

FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", PICKLED_INDEX)
_EMBEDDING = ("model.embed_tokens.weight",)  # of the target
_LAYER_KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "num_hidden_layers",
)  # fmt: skip
_OURS = {  # by the names of the published code, without `layers.0.`
    "fc.weight": "fc.weight", "norm.weight": "norm", "lm_head.weight": "head.weight",
    "hidden_norm.weight": "feature_norm", "input_layernorm.weight": "embedding_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    **{f"self_attn.{name}_norm.weight": f"{name}_norm" for name in "qk"},
    **{f"self_attn.o_proj.{part}": f"o.{part}" for part in ("weight", "bias")},
    **{f"mlp.{name}_proj.{part}": f"{name}.{part}" for name in ("gate", "up", "down") for part in ("weight", "bias")},
}  # fmt: skip
_QKV = tuple(f"self_attn.{name}_proj" for name in "qkv")
_NOT_READ = re.compile(
    r"verifier_(norm|lm_head)\.weight|.*rotary_emb\.\w+|t2d|d2t|embed_tokens\.weight|input_norm\.weight"
)
_PREFIX = re.compile(r"^(model\.)?(midlayer\.|layers\.0\.)?")


def convert(path: Path, model: Path, directory: Path, about: Mapping[str, Any]) -> None:
    """Write the heads of a directory to directory/drafter, as a drafter of ours for the model in `model`.

    Of the model only shapes and the embedding are read. `about` is what `convert_published` takes. Raises what
    `read_published` and `convert_published` do.
    """
    convert_published(
        model, directory, about, lambda target: read_published(path, target, stored_matrix(model, _EMBEDDING))
    )


def read_published(path: Path, target: Target, embedding: torch.Tensor) -> TrainableDrafter:
    """Return the head in a directory as a drafter for this target, in the precision of its files.

    `embedding` [vocab_size, hidden_size] is the target's: a head that has the same gets none of its own. Pickles are
    read as data, never run. Raises NotHere where there is no head, LocalspecError for one of another model or of a form
    that is not computed here, and damaged files.
    """
    config = read_config(path)
    if not is_eagle3(config):
        raise NotHere(f"{path / 'config.json'} is of no EAGLE-3 head; give a directory that holds one.")
    tensors, shape = _read(path), target.transformer.config
    filled = _renamed(tensors, path)
    options = _options(config, tensors, filled, path, target)
    filled |= _vocabulary(options, tensors, path, shape.vocab_size)
    if options.embedding:
        filled["embedding"] = tensors["embed_tokens.weight"]
        own = filled["embedding"]
        if own.shape == embedding.shape and torch.equal(own.to(embedding.dtype), embedding):
            options = replace(options, embedding=False)
    for name in ("q", "o", "gate", "up", "down"):  # a bias that only some of them have
        _fill_bias("qkv" if name == "q" else name, filled, options)
    try:
        expected = Drafter.tensor_specs(target, options)
    except LocalspecError as mistake:
        raise LocalspecError(f"The EAGLE-3 head in {path} cannot be used: {mistake}") from None
    filled = fitted(expected, filled, {}, "the EAGLE-3 head", path, ignored=".")
    drafter = make_drafter("eagle3", target, asdict(options))
    drafter.load_state_dict(filled, strict=False, assign=True)
    return drafter.eval().requires_grad_(False)


def _read(path: Path) -> Tensors:
    """Return the tensors of the directory's files, without the prefixes of layouts."""
    file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        raise NotHere(f"There is no EAGLE-3 head in {path}; give a directory that holds {FILES[0]} or {FILES[2]}.")
    found = {_PREFIX.sub("", name): tensor for name, tensor in read_tensors(file).items()}
    check_numbers(found, path, ("d2t", "t2d"))
    return found


def _renamed(tensors: Tensors, path: Path) -> dict[str, torch.Tensor]:
    """Return what has a place in our layer, by our names. Raises LocalspecError for what has none."""
    found = {_OURS[name]: tensor for name, tensor in tensors.items() if name in _OURS}
    if all(f"{name}.weight" in tensors for name in _QKV):
        weights = [tensors[f"{name}.weight"] for name in _QKV]
        biases = [tensors.get(f"{name}.bias", one.new_zeros(len(one))) for name, one in zip(_QKV, weights, strict=True)]
        found["qkv.weight"] = _stacked(weights, "Queries, keys and values", path)
        if any(f"{name}.bias" in tensors for name in _QKV):
            found["qkv.bias"] = _stacked(biases, "Biases of queries, keys and values", path)
    each = [name for name in (f"fc_norm.{index}.weight" for index in range(MOST_PLACES)) if name in tensors]
    if each:
        found["states_norm"] = _stacked([tensors[name] for name in each], "Norms (fc_norm)", path)
    elif "input_norm.weight" in tensors:
        found["states_norm"] = tensors["input_norm.weight"]
    known = {*_OURS, *each, *(f"{name}.{part}" for name in _QKV for part in ("weight", "bias"))}
    if others := [name for name in tensors if name not in known and not _NOT_READ.fullmatch(name)]:
        what = (
            "is of a head that drafts in parallel (P-EAGLE)" if "mask_hidden" in others else "is no part of one layer"
        )
        name = "mask_hidden" if "mask_hidden" in others else others[0]
        raise LocalspecError(f"'{name}' in {path} {what}, and localspec reads EAGLE-3's one layer; use another head.")
    return found


def _stacked(parts: Sequence[torch.Tensor], what: str, path: Path) -> torch.Tensor:
    """Return what layouts keep apart, in one. Raises LocalspecError, which says `what` it is, where it does not fit."""
    if len({one.shape[1:] for one in parts}) > 1:
        raise LocalspecError(
            f"{what} of the EAGLE-3 head in {path} have the shapes "
            f"{', '.join(str([*one.shape]) for one in parts)}, which do not fit each other; fetch it again."
        )
    return torch.cat([*parts])


def _options(config: Mapping[str, Any], tensors: Tensors, filled: Tensors, path: Path, target: Target) -> Eagle3Options:
    """Return what config.json says of the head, and its tensors. Raises LocalspecError for what is not read."""
    newer = "speculators_model_type" in config
    layer = config.get("transformer_layer_config") if newer else config
    family = layer.get("model_type", "qwen3" if newer else "llama") if isinstance(layer, dict) else None
    if not isinstance(layer, dict) or family not in ("llama", "qwen3"):
        raise LocalspecError(
            f"{path / 'config.json'} describes no layer of Llama or Qwen3; localspec reads no other EAGLE-3 heads."
        )
    if not newer and config.get("norm_output", True) is False:
        raise LocalspecError(
            f"{path / 'config.json'} says norm_output = false, a form that localspec does not compute."
        )
    described = {name: layer[name] for name in _LAYER_KEYS if layer.get(name) is not None}
    described = {"num_hidden_layers": 1, **described, "model_type": family}
    described["attention_bias"] = "qkv.bias" in filled or "o.bias" in filled
    if family == "llama":
        described["mlp_bias"] = any(f"{name}.bias" in filled for name in ("gate", "up", "down"))
    if described.get("vocab_size", target.vocab_size) != target.vocab_size:
        raise LocalspecError(
            f"The EAGLE-3 head in {path} is of a model with {described['vocab_size']} tokens, and this one has "
            f"{target.vocab_size}; name the model that it was made for."
        )
    described["vocab_size"] = target.vocab_size
    places = _places(config, target.transformer.config.num_layers, path)
    norms = "none"
    if "states_norm" in filled:
        norms = "joined" if "input_norm.weight" in tensors else "each"
    draft = len(tensors["d2t"]) if "d2t" in tensors else 0
    draft = 0 if draft == target.vocab_size else draft  # the maps are there all the same, and say nothing
    try:
        return Eagle3Options(
            depth=_tokens(config), vocabulary=draft, states=places, config=json.dumps(described, sort_keys=True),
            embedding="embed_tokens.weight" in tensors, norms=norms,
            residual=config.get("norm_before_residual") is True, output=newer and config.get("norm_output") is True,
        )  # fmt: skip
    except UsageMistake as mistake:
        raise LocalspecError(f"{path / 'config.json'} cannot be used: {mistake}") from None


def _places(config: Mapping[str, Any], num_layers: int, path: Path) -> str:
    """Return the states that the head reads, by their indices in hidden_states, as options have them.

    vLLM and speculators count as Hugging Face does, SpecForge and SGLang by the layers that states leave.
    """
    nested = config.get("eagle_config")
    after = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    here = config.get("eagle_aux_hidden_state_layer_ids")
    said = here or after or [2, num_layers // 2, num_layers - 3]
    if not isinstance(said, list) or not all(type(place) is int for place in said):
        raise LocalspecError(
            f"eagle_aux_hidden_state_layer_ids in {path / 'config.json'} are no layers; fetch it again."
        )
    if after and not here:
        said = [place + 1 for place in said]
    if any(not 0 <= place < num_layers for place in said):
        raise LocalspecError(
            f"The EAGLE-3 head in {path} reads the states {', '.join(map(str, said))}, and this model has {num_layers} "
            "layers; name the model that it was made for."
        )
    return ",".join(map(str, said))


def _tokens(config: Mapping[str, Any]) -> int:
    """So many tokens a draft are proposed where the head is used as it was published; ours where nothing is said."""
    try:
        tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        return Eagle3Options().depth
    return min(max(tokens, 1), 16) if type(tokens) is int else Eagle3Options().depth


def _vocabulary(options: Eagle3Options, tensors: Tensors, path: Path, vocab_size: int) -> dict[str, torch.Tensor]:
    """Return the target's ids of a draft vocabulary. Raises LocalspecError where the maps are not of this target."""
    if not options.vocabulary:
        return {}
    kept = tensors["d2t"].long() + torch.arange(options.vocabulary)
    known = tensors.get("t2d")
    fits = int(kept.min()) >= 0 and int(kept.max()) < vocab_size and len(torch.unique(kept)) == len(kept)
    if fits and known is not None:
        fits = len(known) == vocab_size and bool(known.bool()[kept].all()) and int(known.bool().sum()) == len(kept)
    if not fits:
        raise LocalspecError(
            f"The draft vocabulary of the EAGLE-3 head in {path} (d2t, t2d) is not one of a model with {vocab_size} "
            "tokens; name the model that it was made for."
        )
    return {"kept": kept}


def _fill_bias(name: str, filled: dict[str, torch.Tensor], options: Eagle3Options) -> None:
    """Where some layers have a bias and this one has none, it gets zeros: our config has one switch for them all."""
    described = json.loads(options.config)
    switch = described["attention_bias"] if name in ("qkv", "o") else described.get("mlp_bias", False)
    weight = filled.get(f"{name}.weight")
    if switch and weight is not None and f"{name}.bias" not in filled:
        filled[f"{name}.bias"] = weight.new_zeros(len(weight))
