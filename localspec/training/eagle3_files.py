"""Converts published EAGLE-3 heads, in three layouts, into localspec's drafters.

The layouts, by trainer, file, names of tensors, and what config.json has:

    SafeAILab    pytorch_model.bin    midlayer.{…}  fc norm lm_head d2t t2d   a Llama's config with draft_vocab_size
    SpecForge    model.safetensors    the same names                          eagle_config may number layers otherwise
    speculators  model.safetensors    layers.0.{…}  embed_tokens verifier_norm   transformer_layer_config

A draft id plus its entry in d2t [draft vocabulary] is the target's id. t2d [vocabulary] marks the ids in the draft
vocabulary. Every tensor must have the size that follows from config.json.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from localspec.drafters.eagle3 import MOST_PLACES, Drafter, Eagle3Options
from localspec.errors import LocalspecError, NotHere, UsageMistake
from localspec.nn.target import Target
from localspec.published_heads import is_eagle3
from localspec.training.published_files import (
    LAYER_KEYS,
    Stored,
    Tensors,
    check_numbers,
    first_file,
    fitted,
    read_tensors,
)
from localspec.training.trainable import ConvertedDrafter
from localspec.weights.checkpoint import PICKLED_INDEX, read_config

FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", PICKLED_INDEX)
_EMBEDDING = ("model.embed_tokens.weight",)  # of the target
_NAMES = {  # by our names; without `layers.0.`
    "fc.weight": ("fc.weight",), "norm": ("norm.weight",), "head.weight": ("lm_head.weight",),
    "embedding": ("embed_tokens.weight",), "feature_norm": ("hidden_norm.weight",),
    "embedding_norm": ("input_layernorm.weight",), "mlp_norm": ("post_attention_layernorm.weight",),
    **{f"{name}_norm": (f"self_attn.{name}_norm.weight",) for name in "qk"},
    **{f"qkv.{part}": tuple(f"self_attn.{name}_proj.{part}" for name in "qkv") for part in ("weight", "bias")},
    **{f"o.{part}": (f"self_attn.o_proj.{part}",) for part in ("weight", "bias")},
    **{f"{key}.{part}": (f"mlp.{key}_proj.{part}",) for key in ("gate", "up", "down") for part in ("weight", "bias")},
}  # fmt: skip
_EACH, _JOINED = tuple(f"fc_norm.{place}.weight" for place in range(MOST_PLACES)), "input_norm.weight"
_IGNORED = r"^(verifier_(norm|lm_head)\.weight|t2d|d2t|embed_tokens\.weight|input_norm\.weight)$|rotary_emb\."
_PREFIX = re.compile(r"^(model\.)?(midlayer\.|layers\.0\.)?")


def read_published(path: Path, target: Target, stored: Stored) -> ConvertedDrafter:
    """Return the head in the directory `path`, converted for this target model. Its numbers keep their precision.

    If the head's embedding equals the target's, which `stored` reads, it is shared and not kept twice. Pickles are read
    as data, never run. Raises NotHere if there is no head, and LocalspecError for a head of another model, an
    unsupported form or damaged files.
    """
    config = read_config(path)
    if not is_eagle3(config):
        raise NotHere(f"{path / 'config.json'} does not describe an EAGLE-3 head; give the directory of one.")
    tensors = _read(path)
    options = _options(config, tensors, path, target)
    tensors |= _vocabulary(options, tensors, path, target.transformer.config.vocab_size)
    if options.embedding:
        published, embedding = tensors["embed_tokens.weight"], stored(_EMBEDDING)
        if published.shape == embedding.shape and torch.equal(published.to(embedding.dtype), embedding):
            options = replace(options, embedding=False)
    try:
        expected = Drafter.tensor_specs(target, options)
    except LocalspecError as mistake:
        raise LocalspecError(f"The EAGLE-3 head in {path} cannot be used: {mistake}") from None
    for name in (name for bias in expected if bias.endswith(".bias") for name in _NAMES[bias]):
        weight = tensors.get(name.removesuffix("bias") + "weight")
        if weight is not None:  # only some layers have a bias, and our option is for all of them
            tensors.setdefault(name, weight.new_zeros(len(weight)))
    norms = tuple(name for name in _EACH if name in tensors) or (_JOINED,)
    weights = fitted(expected, tensors, {**_NAMES, "states_norm": norms}, "the EAGLE-3 head", path, _IGNORED)
    return ConvertedDrafter(Drafter.kind, options, weights)


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in the directory's files, under names without prefixes such as `midlayer.`."""
    file = first_file(path, FILES, "EAGLE-3 head")
    tensors = read_tensors(file, lambda names: {name: _PREFIX.sub("", name) for name in names})
    check_numbers(tensors, path, ("d2t", "t2d"))
    if "mask_hidden" in tensors:
        raise LocalspecError(
            f"The tensor 'mask_hidden' in {path} belongs to a head that drafts in parallel (P-EAGLE), but localspec "
            "reads only EAGLE-3 heads of one layer; use another head."
        )
    return tensors


def _options(config: Mapping[str, Any], tensors: Tensors, path: Path, target: Target) -> Eagle3Options:
    """Return the options of a head, from its config.json and tensors. Raises LocalspecError for an unsupported head."""
    newer = "speculators_model_type" in config
    layer = config.get("transformer_layer_config") if newer else config
    family = layer.get("model_type", "qwen3" if newer else "llama") if isinstance(layer, dict) else None
    if not isinstance(layer, dict) or family not in ("llama", "qwen3"):
        raise LocalspecError(
            f"{path / 'config.json'} does not describe a layer of Llama or Qwen3, and localspec reads no others; "
            "use another EAGLE-3 head."
        )
    if not newer and config.get("norm_output", True) is False:
        raise LocalspecError(
            f"{path / 'config.json'} says norm_output = false, which localspec does not support; use another head."
        )
    described = {name: layer[name] for name in LAYER_KEYS if layer.get(name) is not None}
    described = {"num_hidden_layers": 1, **described, "model_type": family}
    described["attention_bias"] = any(f"self_attn.{name}_proj.bias" in tensors for name in "qkvo")
    if family == "llama":
        described["mlp_bias"] = any(f"mlp.{name}_proj.bias" in tensors for name in ("gate", "up", "down"))
    if described.get("vocab_size", target.vocab_size) != target.vocab_size:
        raise LocalspecError(
            f"The EAGLE-3 head in {path} was made for a model of {described['vocab_size']} tokens, but this model has "
            f"{target.vocab_size}; name the model that it was made for."
        )
    described["vocab_size"] = target.vocab_size
    places = _places(config, target.transformer.config.num_layers, path)
    norms = "each" if any(name in tensors for name in _EACH) else "joined" if _JOINED in tensors else "none"
    draft = len(tensors["d2t"]) if "d2t" in tensors else 0
    draft = 0 if draft == target.vocab_size else draft  # the maps exist anyway, but map each id to itself
    try:
        return Eagle3Options(
            depth=_tokens(config), vocabulary=draft, states=places, config=json.dumps(described, sort_keys=True),
            embedding="embed_tokens.weight" in tensors, norms=norms,
            residual=config.get("norm_before_residual") is True, output=newer and config.get("norm_output") is True,
        )  # fmt: skip
    except UsageMistake as mistake:
        raise LocalspecError(f"{path / 'config.json'} cannot be used: {mistake}") from None


def _places(config: Mapping[str, Any], num_layers: int, path: Path) -> str:
    """Return which of the target's hidden states the head reads, such as `2,14,25`, as indices in `hidden_states`.

    vLLM and speculators use the same indices as Hugging Face. SpecForge and SGLang number a state by the layer that
    computes it, which is one less.
    """
    nested = config.get("eagle_config")
    layers = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    states = config.get("eagle_aux_hidden_state_layer_ids")
    places = states or layers or [2, num_layers // 2, num_layers - 3]
    if not isinstance(places, list) or not all(type(place) is int for place in places):
        raise LocalspecError(
            f"eagle_aux_hidden_state_layer_ids in {path / 'config.json'} must be numbers of layers; fetch the head "
            "again."
        )
    if layers and not states:
        places = [place + 1 for place in places]
    if any(not 0 <= place < num_layers for place in places):
        raise LocalspecError(
            f"The EAGLE-3 head in {path} reads the states {', '.join(map(str, places))}, but this model has "
            f"{num_layers} layers; name the model that it was made for."
        )
    return ",".join(map(str, places))


def _tokens(config: Mapping[str, Any]) -> int:
    """Return the number of tokens per draft in the published config, or our default if the config has none."""
    try:
        tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        return Eagle3Options().depth
    return min(max(tokens, 1), 16) if type(tokens) is int else Eagle3Options().depth


def _vocabulary(options: Eagle3Options, tensors: Tensors, path: Path, vocab_size: int) -> dict[str, torch.Tensor]:
    """Return the target's ids of the draft vocabulary, as {"kept": ids}; empty if a draft may have any token.

    Raises LocalspecError if the tensors d2t and t2d do not suit a target with `vocab_size` tokens.
    """
    if not options.vocabulary:
        return {}
    ids = tensors["d2t"].long() + torch.arange(options.vocabulary)
    flags = tensors.get("t2d")
    fits = int(ids.min()) >= 0 and int(ids.max()) < vocab_size and len(torch.unique(ids)) == len(ids)
    if fits and flags is not None:
        fits = len(flags) == vocab_size and bool(flags.bool()[ids].all()) and int(flags.bool().sum()) == len(ids)
    if not fits:
        raise LocalspecError(
            f"The draft vocabulary of the EAGLE-3 head in {path} (d2t, t2d) does not suit a model of {vocab_size} "
            "tokens; name the model that it was made for."
        )
    return {"kept": ids}
