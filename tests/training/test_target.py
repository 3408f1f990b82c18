"""A target in few bits on a CPU: torch computes it with our library's numbers, and the library is held against it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from each import each
from golden import matching
from native_models import native_target
from quantized_layers import packed_target
from slow_cases import covering
from tiny_models import (
    DRAFTING_FAMILIES,
    FAMILIES,
    RECURRENT,
    VOCABULARY,
    WITH_LAYER_INPUTS,
    Tiny,
    prompt_ids,
)

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.drafters.s3d import S3DOptions
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Reporter
from localspec.machine import compiled
from localspec.machine.machine import this_machine
from localspec.models.registry import TargetCard
from localspec.native.model import NativeModel
from localspec.native.target import NativeTarget
from localspec.nn.linear import PackedLinear
from localspec.nn.target import Target
from localspec.training import target as training_target
from localspec.training import verdict
from localspec.training.corpus import Row
from localspec.training.drafters.s3d import timings
from localspec.training.target import decoding_target, load_target, served_target, torch_target
from localspec.training.trainable import make_drafter
from localspec.training.verdict import measured_text
from localspec.weights.matrices import BlockStack

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="the library is not built")
Make = Callable[[str], Tiny]
PACKINGS = ["int8", "int4"]
packings = each("packing", PACKINGS)
FLIP = 0.03  # of a row: what follows where a number near a half is rounded up by one of the two and down by the other


def numbers(weight: Any, interleave: bool) -> np.ndarray:
    return weight.rows(range(weight.out)) if isinstance(weight, BlockStack) else weight.unpack(interleave)


def causal(count: int) -> torch.Tensor:
    return torch.ones(count, count, dtype=torch.bool).tril()


def rounded(x: torch.Tensor, span: int) -> torch.Tensor:
    """Activations as the library computes with them: of each row `span` inputs share a scale, the largest becomes 127."""
    spans = F.pad(x, (0, -x.shape[-1] % span)).unflatten(-1, (-1, span))
    most = spans.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return ((spans * (127 / most)).round() * (most / 127)).flatten(-2)[..., : x.shape[-1]]


def reference(native: NativeTarget) -> Target:
    """torch with the library's numbers, which rounds activations as the library does."""
    target = torch_target(native)
    for name, layer in target.transformer.named_modules():
        if isinstance(layer, PackedLinear):
            span = 32 if isinstance(native.model.weights[f"{name}.weight"], BlockStack) else 128

            def hook(_: Any, inputs: tuple[Any, ...], span: int = span) -> tuple[Any, ...]:
                return (rounded(inputs[0], span), *inputs[1:])

            layer.register_forward_pre_hook(hook)
    return target


def with_plain_cache(native: NativeTarget) -> NativeModel:
    """Return the library's model, whose cache does not round keys and values."""
    model = native.model
    return NativeModel(model.sizes, model.rope, model.weights, model.threads, "fp32")


def row_errors(ours: np.ndarray, theirs: torch.Tensor) -> np.ndarray:
    """Return the relative error of each row."""
    assert ours.shape == theirs.shape
    return np.linalg.norm(ours - theirs.numpy(), axis=-1) / np.linalg.norm(ours, axis=-1)


def assert_the_same_but_for_roundings(errors: np.ndarray, share: float = 0.75) -> None:
    """Sum in another order differ by millionths, and now and then that decides how an activation is rounded.

    A row in which it never did agrees to millionths. Any real error is in every row.
    """
    assert (errors < 1e-5).mean() >= share, np.sort(errors)
    assert np.quantile(errors, 0.95) < FLIP and errors.max() < 3 * FLIP, np.sort(errors)  # two may meet in one row


def assert_each_layer_agrees(native: NativeTarget, tokens: list[int]) -> None:
    """Compare layer by layer, so that a number rounded differently in one layer does not affect the next."""
    model, target, count = with_plain_cache(native), reference(native), len(tokens)
    errors, layers = [], model.sizes.num_layers
    with torch.inference_mode():
        states = target.embed(torch.tensor(tokens)).float()
        assert np.array_equal(model.embed(tokens), states.numpy())
        along = None
        if (
            not native.branches
        ):  # recurrent layers are computed all together: what each reads is what the library gave it
            before = model.forward(tokens, None, model.cache(0), 0, range(layers + 1))[2]
            along = torch.from_numpy(before).view(count, layers + 1, -1)
        for index in range(layers):
            states = states if along is None else along[:, index].contiguous()
            theirs = target.transformer(states[None], torch.arange(count), causal(count), layers=[index])[0]
            if along is None:
                ours = model.read_rows(states.numpy(), model.cache(0), [index])
            else:
                norm = target.transformer.norm + model.sizes.norm_offset
                ours = along[:, index + 1]
                ours = (F.rms_norm(ours, norm.shape, norm, 1e-6) if index + 1 < layers else ours).numpy()
            errors.append(row_errors(ours, theirs))
            states = theirs
        errors.append(row_errors(model.head(states.numpy()), target.head(states)))
    for of_layer in errors:
        assert_the_same_but_for_roundings(of_layer, share=0.25)  # later rows attend to one that was rounded otherwise
    assert_the_same_but_for_roundings(np.concatenate(errors))


@pytest.mark.parametrize(("name", "packing"), covering([*DRAFTING_FAMILIES, *RECURRENT], PACKINGS))
def test_each_layer_of_the_library_computes_what_torch_does_with_its_numbers(
    tiny: Make, name: str, packing: str
) -> None:
    model = tiny(name)
    assert_each_layer_agrees(native_target(model.path, model.stock, packing), prompt_ids(40, seed=3))


@pytest.mark.slow
@each("name, packing", covering(WITH_LAYER_INPUTS, PACKINGS))
def test_of_layers_that_read_tokens_texts_of_one_token_are_those_of_torch(tiny: Make, name: str, packing: str) -> None:
    model = tiny(name)
    native = native_target(model.path, model.stock, packing)
    library, target, tokens = with_plain_cache(native), reference(native), prompt_ids(48, seed=3)
    ours = np.stack([library.forward([token], None, library.cache(0))[0].numpy()[0] for token in tokens])
    with torch.inference_mode():
        theirs = target.forward_tensors(torch.tensor(tokens)[:, None], torch.arange(1), causal(1)).logits[:, 0]
    assert_the_same_but_for_roundings(row_errors(ours, theirs), share=0.5)


@pytest.fixture(scope="module")
def demo() -> Callable[[str], NativeTarget]:
    return lambda packing: NativeTarget.open(Path(__file__).parents[2] / "localspec" / "demo", packing=packing)


@pytest.mark.slow
@packings
def test_each_layer_of_the_demo_computes_what_torch_does_with_its_numbers(demo, packing: str) -> None:
    native = demo(packing)
    assert_each_layer_agrees(native, native.encode([{"role": "user", "content": "Tell me a story about a king."}]))


@pytest.mark.slow
@packings
def test_the_demos_logits_are_those_of_torch_with_its_numbers(demo, packing: str) -> None:
    """Through all layers: of texts of one token each, and of a whole one."""
    native = demo(packing)
    model, target = with_plain_cache(native), reference(native)
    tokens = [3 + 29 * number for number in range(48)]
    alone = np.stack([model.forward([token], None, model.cache(0))[0].numpy()[0] for token in tokens])
    text = native.encode([{"role": "user", "content": "Count from one to twenty."}])
    whole = model.forward(text, None, model.cache(0))[0].numpy()
    with torch.inference_mode():
        ours = target.forward_tensors(torch.tensor(tokens)[:, None], torch.arange(1), causal(1)).logits[:, 0]
        of_text = target.forward_tensors(torch.tensor(text), torch.arange(len(text)), causal(len(text))).logits
        exact = torch_target(native).forward_tensors(torch.tensor(tokens)[:, None], torch.arange(1), causal(1)).logits
    assert_the_same_but_for_roundings(row_errors(alone, ours), share=0.5)
    errors = row_errors(whole, of_text)
    assert np.median(errors) < FLIP and errors.max() < 2 * FLIP, "flips of the rows before add up in a text"
    assert row_errors(alone, exact[:, 0]).min() > 1e-4, "the control: not to round activations is seen in every row"


def cpu_choice(path: Path, packing: str):
    card = TargetCard("tiny", path, None, "")
    settings = Settings(device="cpu", quantize=packing, drafter="none")
    return choose(card, settings, this_machine().as_torch_has_it())


@pytest.mark.slow
@each("name, packing", [("qwen2-many-heads-mixed-window-tied", "int8"), ("llama-many-heads-biases-llama3", "int4")])
def test_a_target_in_few_bits_is_that_of_the_packed_file(tiny: Make, name: str, packing: str) -> None:
    path = tiny(name).path
    choice = cpu_choice(path, packing)
    assert (choice.engine, choice.quantize) == ("torch", packing)
    target, native = load_target(choice, Reporter(pytest.fail)), NativeTarget.open(path, packing=packing)
    head = native.model.weights["lm_head.weight"]
    dense = 4 * head.out * head.inputs if native.model.weights["embed_tokens"] is head else 0
    assert target.nbytes == native.nbytes + dense and target.transformer.packed
    assert (target.context, target.vocab_size, target.stop_tokens) == (native.context, 320, native.stop_tokens)
    for index, layer in enumerate(target.transformer.layers):
        for part in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
            weight = native.model.weights[f"layers.{index}.{part}.weight"]
            assert np.array_equal(getattr(layer, part).weight.numpy(), numbers(weight, part == "gate_up_proj"))
    assert np.array_equal(target.transformer.lm_head.weight.numpy(), numbers(head, False))


@packings
def test_it_is_near_the_dense_one_and_says_what_it_cannot_do(tiny: Make, tmp_path: Path, packing: str) -> None:
    model, tokens = tiny(FAMILIES[0]), torch.tensor(prompt_ids(60))
    packed = packed_target(model.path, packing)
    with torch.no_grad():
        ours, dense = (
            one.forward_tensors(tokens, torch.arange(60), causal(60)).logits for one in (packed, model.target)
        )
    error = float((ours - dense).norm() / dense.norm())
    assert 1e-3 < error < {"int8": 0.03, "int4": 0.35}[packing]
    assert ours.dtype == torch.float32
    with pytest.raises(LocalspecError, match=matching("int8_int4_nf4_cannot_written_back")):
        packed.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@packings
def test_gradients_flow_through_it_as_through_a_dense_one_of_its_numbers(tiny: Make, packing: str) -> None:
    path = tiny(FAMILIES[0]).path
    packed, dense = packed_target(path, packing), Target.load(path)
    dense.transformer.embed_tokens.data = packed.transformer.embed_tokens.data.float()
    for name, module in packed.transformer.named_modules():
        if isinstance(module, PackedLinear):
            dense.transformer.get_submodule(name).weight.data = module.weight
    tokens = torch.tensor([prompt_ids(18, seed=seed) for seed in (7, 8)])
    direction = torch.randn(2, 18, VOCABULARY, generator=torch.Generator().manual_seed(1))
    for target in (packed, dense):
        target.transformer.requires_grad_(True)
        (target.forward_tensors(tokens, torch.arange(18), causal(18)).logits * direction).sum().backward()
    theirs = dict(dense.transformer.named_parameters())
    compared = {name for name, _ in packed.transformer.named_parameters()}
    assert compared >= {"embed_tokens", "layers.0.input_layernorm", "norm"}
    assert not any("_proj" in name for name in compared), "packed weights and their biases are frozen"
    for name, parameter in packed.transformer.named_parameters():
        # that of an embedding in 16 bits is in 16 bits itself
        close = 1e-2 if name == "embed_tokens" else 1e-5
        assert (parameter.grad.float() - theirs[name].grad).norm() < close * theirs[name].grad.norm(), name


def test_a_model_that_does_not_fit_is_reported(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(NativeTarget, "open", full)
    with pytest.raises(DoesNotFit, match=matching("tiny_does_fit_memory_cpu")):
        load_target(cpu_choice(tiny(FAMILIES[0]).path, "int8"), Reporter())


@pytest.mark.slow
def test_packed_weights_decode_in_the_library_with_the_same_drafter(tiny: Make, monkeypatch: pytest.MonkeyPatch):
    """torch would unpack them for each product of each forward."""
    for packing in PACKINGS:
        choice = cpu_choice(tiny(FAMILIES[0]).path, packing)
        target = load_target(choice, Reporter())
        decoding = decoding_target(choice, target)
        assert isinstance(decoding, NativeTarget) and decoding.precision == packing
    drafter = make_drafter("medusa", target, {}).drafter(decoding)
    assert drafter.target is decoding
    found = measured_text(decoding, drafter, [Row(list(range(5, 25)), [False] * 8 + [True] * 12)])
    assert found["acceptance"]["replies"] == 1 and found["acceptance"]["length"] >= 1
    assert found["acceptance_elsewhere"]["replies"] > 20, "the prompts that ship and are held out"
    monkeypatch.setattr(verdict, "until_it_goes_round", lambda _: 4)
    short = measured_text(decoding, drafter, [])["acceptance_elsewhere"]
    assert short["replies"] > 20 and short["tokens"] <= 4 * short["replies"], "a reply ends where it goes round"
    assert short["tokens"] < found["acceptance_elsewhere"]["tokens"]
    dense = cpu_choice(tiny(FAMILIES[0]).path, "none")
    target = load_target(dense, Reporter())
    assert decoding_target(dense, target) is target


@pytest.mark.slow
def test_what_serves_is_loaded_as_replies_have_it(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training in fp32 by torch decodes in the library, in the precision that is chosen for replies."""
    card = TargetCard("tiny", tiny(FAMILIES[0]).path, None, "")
    target = load_target(cpu_choice(card.path, "none"), Reporter())
    served = served_target(card, Settings(device="cpu"), target)
    chosen = choose(card, Settings(device="cpu", drafter="none"))
    assert isinstance(served, NativeTarget) and served.precision == chosen.precision
    (timing,) = timings(served, [S3DOptions(kept="0,2", depth=3)])
    assert 0 < timing.beta < 1 and min(timing.draft, timing.verify, timing.plain) > 0
    named = served_target(card, Settings(device="cpu", quantize="int4"), target)
    assert named.precision == "int4"

    def full(*_: object, **__: object) -> None:
        raise DoesNotFit("there is no room")

    monkeypatch.setattr(training_target, "load_for_replies", full)
    assert served_target(card, Settings(device="cpu"), target) is target, (
        "where training leaves no room for another target"
    )
