"""Converts drafters to forms that other inference engines read: Medusa heads, EAGLE-3 heads, or small draft models."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from localspec.choosing.named import named_drafter
from localspec.drafters.eagle3 import Eagle3Options
from localspec.drafters.medusa import MedusaOptions
from localspec.drafters.parallelspec import MODEL_MASKS, ParallelSpecOptions, layers_of
from localspec.drafters.tensors import StoredTensors, check_tensors
from localspec.drafters.trained import WEIGHTS, drafter_class
from localspec.errors import LocalspecError, UsageMistake
from localspec.exporting.engines import Form, OtherEngine, no_counterpart
from localspec.exporting.layouts import write_eagle3, write_heads, write_model
from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.model_config import ModelConfig
from localspec.models.default_draft import compare_stored
from localspec.models.drafter_cards import DrafterCard, remedy
from localspec.models.registry import TargetCard
from localspec.models.small_model import mask_token, masked_model
from localspec.models.stored_names import stored_name
from localspec.models.target_map import target_map
from localspec.models.tokenizer import Tokenizer
from localspec.nn.target import Target
from localspec.nn.weights import TYPES, Weights
from localspec.outside_files import parse_json
from localspec.weights.checkpoint import Checkpoint, originals
from localspec.weights.stored import read_config, stored_parts, stored_sizes

_ROTATIONS = ("default", "linear", "llama3", "yarn")  # rotations that the engines' Llama supports
_SHARED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip
LICENCES = ("LICENSE*", "NOTICE*")  # copied along with the weights


@dataclass(frozen=True)
class Counterpart:
    """A drafter in a form that another engine reads. The function `write` writes it into a directory."""

    form: Form
    tokens: int  # of a draft; 0: the engine decides
    write: Callable[[Path], None]
    heads: tuple[tuple[int, int], ...] = ()  # its attention heads, which GPUs share, and their key heads
    notes: tuple[str, ...] = ()  # notes for the user, as sentences


@dataclass(frozen=True)
class _Model:
    """The weights of a language model, by localspec's names and in the precision of its files.

    A tensor is read when it is accessed.
    """

    config: ModelConfig
    sizes: TransformerConfig
    dtype: torch.dtype
    weights: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "_Model":
        config = read_config(checkpoint)
        sizes = stored_sizes(checkpoint, config)
        made_of = stored_parts(checkpoint, sizes)
        dtype = TYPES[made_of["embed_tokens"][0].dtype]
        return cls(config, sizes, dtype, Weights(made_of, sizes, dtype, "cpu"))


def counterpart(engine: OtherEngine, drafter: str, card: TargetCard, checkpoint: Checkpoint) -> Counterpart:
    """Return a drafter in a form that another engine reads. Raises UsageMistake if the engine has no such form.

    `checkpoint` is the target's own files. Raises the errors of `named_drafter`, and LocalspecError for damaged files.
    """
    spec, target = named_drafter(drafter, card), _Model.of(checkpoint)
    if spec.small is not None and spec.drafter == "draft_model":
        return _small_model(engine, originals(spec.small.card.path), checkpoint, target, parallel=False)
    trained = spec.trained[0] if len(spec.trained) == 1 and spec.drafter == spec.trained[0].kind else None
    if trained is not None and trained.kind == "medusa" and "medusa heads" in engine.forms:
        return _heads(trained, checkpoint, target)
    if trained is not None and trained.kind == "eagle3":
        return _eagle3(engine, trained, checkpoint, target)
    if trained is not None and trained.kind == "parallelspec":
        if os.path.isfile(trained.path / "config.json"):
            return _small_model(engine, originals(trained.path), checkpoint, target, parallel=True)
        return _parallelspec(engine, trained, checkpoint, target)
    raise no_counterpart(engine, spec.drafter if spec.small is None else drafter)


def _heads(trained: DrafterCard, checkpoint: Checkpoint, target: _Model) -> Counterpart:
    options: MedusaOptions = _options(trained, checkpoint)
    if options.linear:
        raise UsageMistake(
            f"The heads in {trained.path} read the root and the state, but in other engines heads read only the "
            "state; export heads that were trained with -O linear=false."
        )
    head = "embed_tokens" if target.sizes.tied else "lm_head.weight"
    notes = ["vLLM 0.32 is the last version that reads Medusa heads. It drafts one chain of tokens, not a tree."]
    if options.change_rank:
        notes.append(
            "Every head now has a complete vocabulary matrix, because vLLM cannot read a matrix that heads share."
        )

    def write(directory: Path) -> None:
        write_heads(trained.path / WEIGHTS, options, target.weights[head], directory)
        _copy_licences(checkpoint.path, directory)

    return Counterpart("medusa heads", options.heads, write, notes=tuple(notes))


def _eagle3(engine: OtherEngine, trained: DrafterCard, checkpoint: Checkpoint, target: _Model) -> Counterpart:
    """Return an EAGLE-3 head that localspec trained. Raises UsageMistake for published heads, which need no export."""
    options: Eagle3Options = _options(trained, checkpoint)
    if options.config:
        repository = trained.about.get("published", {}).get("repo", "a published one")
        raise UsageMistake(
            f"The head in {trained.path} is {repository}, which {engine.label} reads directly; give that repository "
            f"to {engine.label}."
        )
    rope = dict(target.config.rope_parameters)
    if rope["rope_type"] not in _ROTATIONS or rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UsageMistake(
            f"The head in {trained.path} uses its model's rotary positions ('{rope['rope_type']}', or a part of each "
            f"head), which {engine.label} does not support for a Llama; use a small model instead: draft_model:MODEL."
        )
    theta = rope.pop("rope_theta")
    config = {
        "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "rope_theta": theta, "dtype": _name(target.dtype),
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        **{name: getattr(target.config, name) for name in _SHARED},
        "eagle_aux_hidden_state_layer_ids": [*options.places],  # vLLM: as in hidden_states
        # SGLang: the layers before those states
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [place - 1 for place in options.places], "use_aux_hidden_state": True,
        },
    }  # fmt: skip

    def write(directory: Path) -> None:
        write_eagle3(trained.path / WEIGHTS, options, target.sizes, config, directory)
        _copy_licences(checkpoint.path, directory)

    heads = ((target.sizes.num_heads, target.sizes.num_kv_heads),)
    notes = (f"With this head {engine.label} drafts one chain of tokens, not a tree.",)
    return Counterpart("eagle3 head", options.depth, write, heads, notes)


def _parallelspec(engine: OtherEngine, trained: DrafterCard, checkpoint: Checkpoint, target: _Model) -> Counterpart:
    """Return the small model that another engine can use in place of a drafter of the kind `parallelspec`.

    The form `model` still drafts several tokens at once. The form `medusa` has a mask token for each depth, but engines
    support only one, so its layers draft token by token. The form `eagle` is refused.
    """
    options: ParallelSpecOptions = _options(trained, checkpoint)
    if options.form == "eagle":
        raise UsageMistake(
            f"The drafter in {trained.path} is of the form 'eagle', which reads states in a way that {engine.label} "
            f"does not; use the form 'model' or 'medusa' instead: `localspec train parallelspec -O form=medusa`."
        )
    vocab_size, tokens = target.sizes.vocab_size, 0
    content: dict[str, Any]
    if options.form == "model":
        sizes, _, mask = masked_model(options.config, target.config.max_position_embeddings)
        content = parse_json(options.config)
        form, notes = _parallel(engine, trained.path, mask, vocab_size)
        tokens = options.masks + 1 if form == "parallel draft model" else 0
    elif target.sizes.layer_sizes or target.sizes.delta:
        raise UsageMistake(
            f"The drafter in {trained.path} cannot be exported to {engine.label}, because the layers of its model "
            "differ from each other; use a small model instead: draft_model:MODEL."
        )
    else:
        sizes = replace(layers_of(target.sizes, options), vocab_size=vocab_size, tied=target.sizes.tied)
        form, content = "draft model", {**target.config.content, **_layers(sizes, target.config.content)}
        notes = (
            f"{engine.label} does not support a mask token for each depth, so it drafts token by token with the "
            "drafter's layers and a copy of the model's embedding and head.",
        )

    def write(directory: Path) -> None:
        stored, weights = load_file(trained.path / WEIGHTS), {}
        for name in weight_map(sizes):
            tensor = stored.get(f"model.{stored_name(name)}")
            weights[name] = target.weights[name] if tensor is None else tensor.to(target.dtype)
        if options.form == "model":  # the mask has its own row next to the embedding
            weights["embed_tokens"][content["pard_token"]] = (stored["masks"][0] / sizes.embed_scale).to(target.dtype)
        _write_model(directory, sizes, weights, {**content, "dtype": _name(target.dtype)}, checkpoint, vocab_size)
        if options.form != "model":
            _copy_licences(checkpoint.path, directory)

    return Counterpart(form, tokens, write, ((sizes.num_heads, sizes.num_kv_heads),), notes)


def _small_model(
    engine: OtherEngine, small: Checkpoint, checkpoint: Checkpoint, target: _Model, parallel: bool
) -> Counterpart:
    """Return a published or trained small model in a form that the engine reads. With `parallel` it has a mask
    token."""
    model, vocab_size, tokens = _Model.of(small), target.sizes.vocab_size, 0
    compare_stored(small.path, model.sizes.vocab_size, checkpoint.path, vocab_size)
    form: Form = "draft model"
    notes: tuple[str, ...] = ()
    if parallel:
        if target_map(model.config.content, small.path) is not None:
            raise UsageMistake(
                f"The small model in {small.path} reads the target's states (PARD-2), which {engine.label} does not "
                "provide; use a small model that does not read states, or draft_model:MODEL."
            )
        form, notes = _parallel(engine, small.path, mask_token(model.config, small.path), vocab_size)
        tokens = MODEL_MASKS + 1 if form == "parallel draft model" else 0
    if model.sizes.vocab_size != vocab_size:
        notes += (
            f"The embedding of the small model now has {vocab_size} rows instead of {model.sizes.vocab_size}, because "
            f"{engine.label} needs as many as the target has.",
        )

    def write(directory: Path) -> None:
        content = {**model.config.content, "dtype": _name(model.dtype)}
        _write_model(directory, model.sizes, model.weights, content, checkpoint, vocab_size)
        _copy_licences(small.path, directory)

    return Counterpart(form, tokens, write, ((model.sizes.num_heads, model.sizes.num_kv_heads),), notes)


def _parallel(engine: OtherEngine, path: Path, mask: int, vocab_size: int) -> tuple[Form, tuple[str, ...]]:
    """Return how an engine can use a small model with a mask token, and sentences for the user about limits of that."""
    if mask >= vocab_size:
        raise UsageMistake(
            f"The mask token {mask} of the small model in {path} is not one of the target's {vocab_size} ids, but "
            f"{engine.label} needs one of them; use draft_model:MODEL instead."
        )
    if "parallel draft model" in engine.forms:
        return "parallel draft model", ()
    return "draft model", (f"{engine.label} drafts token by token with this model, without its mask token.",)


def _write_model(
    directory: Path,
    sizes: TransformerConfig,
    weights: Mapping[str, torch.Tensor],
    content: Mapping[str, Any],
    checkpoint: Checkpoint,
    vocab_size: int,
) -> None:
    """Write a small model, but with the tokenizer files of its target, because SGLang compares whole vocabularies."""
    write_model(sizes, weights, content, vocab_size, directory)
    Tokenizer.open(checkpoint.path).save(directory)


def _copy_licences(model: Path, directory: Path) -> None:
    for pattern in LICENCES:
        for file in model.glob(pattern):
            shutil.copyfile(file, directory / file.name)


def _options(trained: DrafterCard, checkpoint: Checkpoint) -> Any:
    """Return the options of a drafter. Raises LocalspecError if its file of tensors does not fit them."""
    class_, file = drafter_class(trained.kind), trained.path / WEIGHTS
    try:
        options = class_.parse_options({**class_.BEFORE, **trained.options})
        target = Target.load(checkpoint.path, device="meta")
        check_tensors(class_.tensor_specs(target, options), StoredTensors(file).specs(), remedy(file))
    except LocalspecError as error:
        raise LocalspecError(f"The drafter in {trained.path} cannot be used: {error}") from None
    return options


def _layers(sizes: TransformerConfig, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of config.json for layers that all have the same attention window."""
    count, window = sizes.num_layers, sizes.sliding_windows[0]
    entries: dict[str, Any] = {"num_hidden_layers": count, "sliding_window": window}
    others = {
        "layer_types": ["full_attention" if window is None else "sliding_attention"] * count,
        "use_sliding_window": window is not None,
        "max_window_layers": count if window is None else 0,
    }
    others["no_rope_layers"] = [int(not sizes.is_local(layer)) for layer in range(count)]
    windowed = ("layer_types",) if content["model_type"] == "gemma3_text" else ()  # else its class assumes a pattern
    return entries | {name: value for name, value in others.items() if name in content or name in windowed}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
