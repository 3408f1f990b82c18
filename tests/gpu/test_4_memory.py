"""Memory on the device: predicted against measured, and replies where it runs out, which lose no token."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from golden import wording
from gpu_models import DEMO, prompt_of
from safetensors.torch import load_file, save_file
from session_replies import reply

from localspec import Done, Engine, Limits, Sampling
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.errors import DoesNotFit, out_of_memory
from localspec.machine.memory import give_back, peak_memory
from localspec.models import registry
from localspec.nn.target import Target

FACTOR, CONTEXT = 8, 4096  # 0.4 B parameters
MIB = 2**20
ROOM = (0, 2, 8, 32, 128, 512)  # MiB that a reply may take in addition to what is held
STORY = "Tell me a long story of a king and a heron. "


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, device: str) -> Path:
    """Return a model whose weights and caches are large compared with what any program holds."""
    out = tmp_path_factory.mktemp("wide") / "demo"
    widen(out, FACTOR if device == "cuda" else 1)
    return out


def widen(out: Path, factor: int) -> None:
    """Write the demo model `factor` times as wide, with a longer context. The new weights are zero, so it says the same."""
    config = json.loads((DEMO / "config.json").read_text("utf-8"))
    widths = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    hidden, inner, heads, kv_heads = (config[name] for name in widths)
    query, key = hidden, hidden // heads * kv_heads
    parts = {  # of each axis; each part grows by itself
        "embed_tokens.weight": ([], [hidden]),
        "norm.weight": ([hidden],),
        "layernorm.weight": ([hidden],),
        "qkv_proj.weight": ([query, key, key], [hidden]),
        "o_proj.weight": ([hidden], [query]),
        "gate_up_proj.weight": ([inner, inner], [hidden]),
        "down_proj.weight": ([hidden], [inner]),
    }
    tensors = load_file(DEMO / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):  # the mean square of its input is lower
            tensor = tensor.float() * factor**-0.5
        for axis, sizes in enumerate(next(one for end, one in parts.items() if name.endswith(end))):
            if sizes:
                pieces = [
                    torch.cat([part, *[torch.zeros_like(part)] * (factor - 1)], axis)
                    for part in tensor.split(sizes, axis)
                ]
                tensor = torch.cat(pieces, axis)
        tensors[name] = tensor.contiguous()
    shutil.copytree(DEMO, out, ignore=lambda folder, names: {"draft", "drafters", "model.safetensors"} & {*names})
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config |= {name: config[name] * factor for name in widths}
    config |= {"rms_norm_eps": config["rms_norm_eps"] / factor}
    config |= dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), CONTEXT)
    (out / "config.json").write_text(json.dumps(config), "utf-8")


@pytest.mark.parametrize("precision", ["bf16", "nf4", "int8"])
def test_the_peak_is_what_was_predicted(
    cuda: str, wide: Path, record_property: Callable[[str, object], None], precision: str
) -> None:
    settings = Settings(
        device=cuda, dtype="bf16", quantize="none" if precision == "bf16" else precision, drafter="phrases",
        context=CONTEXT, temperature=0.0,
    )  # fmt: skip
    choice = choose(registry.resolve(str(wide)), settings)
    torch.cuda.reset_peak_memory_stats()
    before, free, reserved = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    engine = Engine(choice, phrases="off")
    loading = torch.cuda.max_memory_allocated() - before
    prompt = [{"role": "user", "content": STORY * 250}]
    assert 2000 < len(engine.target.encode(prompt)) < CONTEXT - 64
    *_, done = engine.chat(prompt, Sampling(), Limits(48))
    assert isinstance(done, Done)
    # What the card has less: torch's, with what it holds unused, and what the driver keeps of recordings and kernels.
    drivers = free - torch.cuda.mem_get_info()[0] - (torch.cuda.memory_reserved() - reserved)
    peak = torch.cuda.max_memory_reserved() - reserved + max(0, drivers)
    tensors = torch.cuda.max_memory_allocated() - before
    record_property(
        "of the prediction",
        f"{precision}: tensors {tensors / choice.bytes:.2f}, loading {loading / choice.bytes:.2f}, "
        f"the driver {drivers / 2**20:.0f} MiB",
    )
    record_property("bytes at the peak, of those that were predicted", f"{peak} of {choice.bytes}")
    assert done.statistics.memory.peak == peak_memory(cuda)
    assert peak <= 1.1 * choice.bytes, "what was said to fit would not"
    assert peak >= 0.4 * choice.bytes, "models that would fit are refused"


def test_what_the_model_says_that_it_holds_is_what_it_holds(cuda: str, wide: Path) -> None:
    Target.load(wide, device=cuda, dtype=torch.bfloat16, quantize="nf4")  # our own kernels are tried first
    for quantize in ("none", "nf4", "int8"):
        give_back(cuda)
        before = torch.cuda.memory_allocated()
        target = Target.load(wide, device=cuda, dtype=torch.bfloat16, quantize=quantize)
        held = torch.cuda.memory_allocated() - before
        assert held == pytest.approx(target.nbytes, rel=0.03)
        cache = target.cache(1024)
        assert torch.cuda.memory_allocated() - before - held == pytest.approx(cache.nbytes, rel=0.03)
        del target, cache


class Wide:
    """A drafter that proposes random trees, as wide as possible, only to take memory."""

    nbytes, target_layers = 0, ()

    def observe(self, step: object) -> None:
        """Learn nothing."""

    def rewind(self, length: int) -> None:
        """Forget nothing."""

    def draft(self, context: Context) -> DraftTree:
        return DraftTree([context.root, *range(5, 5 + context.nodes)], [-1, *[0] * context.nodes])


def test_running_out_of_memory_is_recognised(cuda: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50, dtype=torch.uint8, device=cuda)
    assert out_of_memory(raised.value)


def test_a_reply_that_runs_out_of_memory_says_the_same_or_that_it_does_not_fit(
    cuda: str, wide: Path, record_property: Callable[[str, object], None]
) -> None:
    """The less room there is, the more a reply gives up; the session stays valid throughout."""
    target = Target.load(wide, device=cuda, dtype=torch.float32)
    prompt = prompt_of(target, STORY * 150)
    text, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 24)
    total = torch.cuda.get_device_properties(0).total_memory
    outcomes: list[str] = []
    for room in ROOM:
        session = Session(target, Wide(), Budget(64))
        give_back(cuda)
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + room * MIB) / total))
        try:
            ids, statistics = reply(session, prompt, 24)
            assert ids == text
            outcomes.append("without drafts" if statistics.off_reason else "whole")
        except DoesNotFit:
            outcomes.append("does not fit")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert session.cache.length <= len(session.tokens) <= len(prompt) + 24
        assert reply(session, prompt, 24)[0] == text, "with room again, the same session answers"
    record_property("outcomes by MiB of room", str(dict(zip(ROOM, outcomes, strict=True))))
    assert outcomes[0] == wording("does_not_fit") and outcomes[-1] == "whole"
    ladder = ["does not fit", "without drafts", "whole"]
    assert [ladder.index(one) for one in outcomes] == sorted(ladder.index(one) for one in outcomes)


@pytest.mark.slow
def test_the_rehearsal_of_such_a_reply(device: str, wide: Path) -> None:
    """On any device: the trees change no token, and are as wide as they were meant to be."""
    target = Target.load(wide, device=device, dtype=torch.float32)
    prompt = prompt_of(target, STORY * 2)
    text, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, 8)
    ids, statistics = reply(Session(target, Wide(), Budget(64)), prompt, 8)
    assert ids == text and max(statistics.rows) == 65
