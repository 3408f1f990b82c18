"""Estimates the memory, disk and time of a training from file headers and tensor shapes, before anything is loaded."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from localspec import config
from localspec.choosing.choice import Choice
from localspec.choosing.choose import choose
from localspec.choosing.cost import training_hours
from localspec.choosing.fit import unpacked
from localspec.choosing.measure import MeasurementSource
from localspec.errors import DoesNotFit, UsageMistake
from localspec.families.architecture import TransformerConfig
from localspec.families.family import DeltaNet
from localspec.machine.hardware import wait_for
from localspec.machine.machine import Machine
from localspec.machine.memory import free_memory
from localspec.models.drafter_kinds import kind_of, kinds
from localspec.models.registry import TargetCard
from localspec.nn.adapters import Adapters
from localspec.nn.delta_net import CHUNK
from localspec.nn.linear import QuantizedLinear
from localspec.nn.losses import HELD, ROWS
from localspec.nn.packing import DTYPES
from localspec.nn.target import Target
from localspec.paths import free_disk
from localspec.quantities import distinct, gib
from localspec.training.train import has_small_moments, trainable_groups
from localspec.training.trainable import TrainableDrafter, make_drafter

LENGTH = 1024  # tokens of a row by default, or the model's context
STATES = 6  # vectors of hidden_size around a drafter's own layer: its joined inputs, and the compared states
LOGITS = 6  # copies of a few rows' logits: the drafter's, the teacher's, both logarithms, the gradient
PRODUCT_ROWS, WIDTH, MEASURED_SECONDS = 512, 2048, 0.5  # of a timed product
LEAST_PRODUCTS = 3  # with a single product, a stop of the program could take all of the time
COARSE = 16  # bytes per number in bf16 during its step in fp32, one tensor after the other
PROGRAM = 300 * 2**20  # libraries and other memory of a process


@dataclass(frozen=True)
class Needs:
    """Estimated bytes for a training: `fixed` in any case, `token` for each token in a forward pass, `files` on disk.

    If layers are computed again in the backward pass to save memory, a token needs only `recomputed` bytes.
    """

    fixed: int
    token: int
    files: int
    trainable: int  # parameters
    recomputed: int

    def memory(self, at_once: int, recomputed: bool = False) -> int:
        """Return the bytes of memory that a training needs with this many tokens in a forward pass."""
        return self.fixed + at_once * (self.recomputed if recomputed else self.token)


@dataclass(frozen=True)
class Fit:
    """The settings with which a training fits: tokens per forward pass, and whether layers are recomputed."""

    at_once: int
    recomputed: bool = False


def shadow(kind: str, card: TargetCard, options: Mapping[str, Any], choice: Choice) -> TrainableDrafter:
    """Return the drafter to train as tensors without data, on torch's meta device, so that its size can be estimated.

    Raises the errors of `make_drafter`, and UsageMistake if its kind does not support recurrent layers or experts.
    """
    target = Target.load(card.path, device="meta", dtype=DTYPES[choice.dtype])
    if target.transformer.config.experts is not None and not kind_of(kind).with_experts:
        others = ", ".join(other for other in kinds("weights") if kind_of(other).with_experts)
        raise UsageMistake(
            f"'{kind}' cannot be trained for {card.name}, whose layers have experts; train one of {others}."
        )
    if target.transformer.config.delta is not None and not kind_of(kind).on_chains:
        others = ", ".join(other for other in kinds("weights") if kind_of(other).on_chains)
        raise UsageMistake(
            f"'{kind}' cannot be trained for {card.name}, because some of its layers are recurrent and cannot draft "
            f"without the others; train one of {others}."
        )
    if choice.quantize != "none":
        target.transformer.linear_class = QuantizedLinear  # a drafter may ask for it; shapes are the same
    return make_drafter(kind, target, options)


def product_seconds(device: str, dtype: torch.dtype) -> float:
    """Return the seconds of torch per weight and row in a large matrix product, measured for half a second.

    On a CPU, time that other programs took does not count.
    """
    clock = time.thread_time if device == "cpu" else time.perf_counter  # a product outlasts a scheduler's time slice
    x, weight = (torch.ones(rows, WIDTH, device=device, dtype=dtype) for rows in (PRODUCT_ROWS, WIDTH))
    products, until, start = 0, time.perf_counter() + MEASURED_SECONDS, clock()
    while time.perf_counter() < until or products < LEAST_PRODUCTS:
        x @ weight
        wait_for(device)
        products += 1
    return (clock() - start) / (products * PRODUCT_ROWS * WIDTH * WIDTH)


def hours(drafter: TrainableDrafter, seconds: float, tokens: int, recomputed: bool = False) -> float:
    """Return about how many hours a training on this many tokens takes. `seconds` is the result of `product_seconds`.

    The target reads every token in every pass, unless it reads the texts once before training. The trained part costs
    three times its forward pass, or four times if layers are recomputed.
    """
    weights = sum(parameter.numel() for parameter in drafter.target.transformer.parameters())
    read = 0 if drafter.uses_readings else weights
    trained = weights * drafter.gradient_share or drafter.weights_passed
    return training_hours(tokens, read, (4 if recomputed else 3) * trained, seconds)


def outlook(
    kind: str, card: TargetCard, machine: Machine, measurements: MeasurementSource, tokens: int
) -> tuple[float, int]:
    """Return about how many hours and bytes of memory `localspec train` takes for a drafter with default options."""
    machine = machine.as_torch_has_it()
    choice = choose(card, replace(config.Settings(), drafter="none"), machine, measurements)
    drafter = shadow(kind, card, {}, choice)
    length = min(LENGTH, drafter.target.context)
    needed = needs(drafter, choice, length)
    return hours(drafter, product_seconds(choice.device, DTYPES[choice.dtype]), tokens), needed.memory(length)


def needs(drafter: TrainableDrafter, choice: Choice, length: int, new_bytes: int = 0) -> Needs:
    """Return the memory and disk for training this drafter, which may have tensors without data (torch's meta device).

    If training changes the target, `new_bytes` is the size of the changed target on disk.
    """
    shape = drafter.target.transformer.config
    # On a CPU, packed weights are computed in fp32.
    item = 4 if choice.dtype == "fp32" or (choice.device == "cpu" and choice.quantize != "none") else 2
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    read = item * (
        8 * shape.hidden_size + 3 * shape.intermediate_size + 2 * heads + shape.num_heads // shape.num_kv_heads * length
    )
    if shape.delta is not None:  # computed in fp32, whatever the precision of the weights
        read = max(read, item * 8 * shape.hidden_size + 4 * in_a_recurrent_layer(shape.delta))
    passed = _in_a_layer(shape, item, drafter.adapters, choice.device)
    layers = shape.num_layers if drafter.changes_target else 0
    # Besides the memory inside one layer, each layer's input stays.
    learnt = layers * passed, item * layers * shape.hidden_size + min(layers, 1) * passed
    work, width, row = drafter.gradient_work(length), item, passed
    if drafter.target.transformer not in drafter.transformers:  # its own layers compute in fp32
        width, row = 4, _in_a_layer(shape, 4, None, choice.device) + 4 * STATES * shape.hidden_size
    row += width * shape.num_heads * length  # scores, if no kernel avoids them
    rows = work.layers * row, width * work.layers * shape.hidden_size + row
    if not work.layers:  # heads compute in the precision of the states
        rows = (item * work.vectors * shape.hidden_size,) * 2
    # Two copies: keys and values as read, then before the new rows of a layer; states one by one, then side by side.
    prefix = 2 * item * 2 * shape.num_kv_heads * shape.head_dim * len(drafter.reads_layers)
    prefix += 4 * 2 * shape.hidden_size * len(drafter.reads_inner)
    token, recomputed = (
        read + base + round(work.rows * more + prefix) for base, more in zip(learnt, rows, strict=True)
    )
    parameters = [parameter for some, _ in trainable_groups(drafter) for parameter in some]
    loaded = {id(parameter) for parameter in drafter.target.transformer.parameters()}
    small = has_small_moments(choice.device)
    dense = unpacked(shape) if choice.device == "cpu" else item * 2 * shape.intermediate_size * shape.hidden_size
    return Needs(
        # the target, and one packed matrix that is made dense
        fixed=choice.loaded_bytes
        + (dense if choice.quantize != "none" else 0)
        + sum(_learning(parameter, id(parameter) in loaded, small) for parameter in parameters)
        + max((_for_a_moment(parameter) for parameter in parameters), default=0)
        + LOGITS * 4 * ROWS * shape.vocab_size
        + drafter.depth * HELD
        + PROGRAM,
        token=token,
        # two checkpoints, because the old one stays until the new one is complete; then the drafter, and maybe a target
        files=sum(2 * _checkpoint_bytes(parameter, small) + parameter.nbytes for parameter in parameters) + new_bytes,
        trainable=sum(parameter.numel() for parameter in parameters),
        recomputed=recomputed,
    )


def in_a_recurrent_layer(sizes: DeltaNet) -> int:
    """Estimate how many values per token a recurrent layer holds at most while torch reads a text in chunks.

    The queries, keys and values of each head exist several times, and so do products of the rows in a chunk.
    """
    return 3 * sizes.channels + sizes.value_heads * (6 * sizes.key_dim + 6 * sizes.value_dim + 4 * CHUNK)


def _in_a_layer(shape: TransformerConfig, item: int, adapters: Adapters | None, device: str) -> int:
    """Return how many bytes per row a layer keeps for the backward pass, with `item` bytes per number.

    It keeps the inputs of norms, the queries, keys and values before and after their rotation, and the output of
    attention. In the MLP it keeps the gate, its activation and its factor. Trained matrices keep their inputs. Adapters
    keep their inputs in fp32 with a dropout mask, and the numbers between their two matrices.
    """
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    values = 2 * shape.hidden_size + 4 * queries + 3 * keys + 3 * shape.intermediate_size
    inputs = 2 * shape.hidden_size + queries + shape.intermediate_size
    if adapters is None:
        return item * values + 4 * inputs
    between = max(sum(len(adapter.lora_A) for adapter in linears.values()) for linears in adapters.values())
    mask = (4 if device == "cpu" else 1) if adapters.dropout else 0  # bytes of a number
    return item * values + (4 + mask) * inputs + 4 * between


def divided(needed: Needs, drafter: TrainableDrafter, processes: int) -> Needs:
    """Return the needs of one process, if `processes` share the target's layers: its part, and two whole layers."""
    transformer = drafter.target.transformer
    layer = sum(parameter.nbytes for parameter in transformer.layers[0].parameters())
    layers = layer * len(transformer.layers)
    return replace(needed, fixed=needed.fixed - layers + layers // processes + 2 * layer)


def _learning(parameter: torch.nn.Parameter, loaded: bool, small: bool) -> int:
    """Return the bytes for training a weight: its gradient, two moments, and itself unless it is already `loaded`.

    A moment of the optimiser takes one byte per number if `small`, otherwise four.
    """
    return (1 if loaded else 2) * parameter.nbytes + (2 if small else 8) * parameter.numel()


def _for_a_moment(parameter: torch.nn.Parameter) -> int:
    """Return the bytes that a trained weight needs briefly: its step in fp32 if it is bf16, else a second gradient.

    A second gradient, such as of one head's part of a matrix, is as large as the whole matrix, with zeros elsewhere.
    """
    return COARSE * parameter.numel() if parameter.dtype == torch.bfloat16 else parameter.nbytes


def _checkpoint_bytes(parameter: torch.nn.Parameter, small: bool) -> int:
    """Return the bytes of a trained weight in a checkpoint: two copies, and the optimiser's two moments."""
    return 2 * parameter.nbytes + (2 if small else 8) * parameter.numel()


def fitting(needed: Needs, choice: Choice, at_once: int, least: int) -> Fit:
    """Return how many tokens per forward pass fit: `at_once`, half of it, a quarter, …, but at least `least`.

    If even `least` tokens do not fit, try again with recomputed layers. Raises DoesNotFit if that does not fit either.
    """
    free = free_memory(choice.device)
    for recomputed in (False, True):
        tokens = at_once
        while needed.memory(tokens, recomputed) > free and tokens > least:
            tokens = max(least, tokens // 2)
        if needed.memory(tokens, recomputed) <= free:
            return Fit(tokens, recomputed)
    needed_gib, free_gib = distinct(gib, needed.memory(least, True), free)
    raise DoesNotFit(
        f"Training while {choice.target.name} is loaded takes {needed_gib} GiB of memory with {least} tokens at once, "
        f"but only {free_gib} GiB are free; close other programs, give a smaller --at-once or --length, or choose a "
        "smaller model."
    )


def room(needed: Needs, directory: Path) -> None:
    """Raise DoesNotFit if the disk is too full for the checkpoints and the result of a training."""
    free = free_disk(directory)
    if needed.files > free:
        needed_gib, free_gib = distinct(gib, needed.files, free)
        raise DoesNotFit(
            f"Checkpoints and result take {needed_gib} GiB in {directory}, but only {free_gib} GiB are free on that "
            "disk; make room, or give another -o."
        )
