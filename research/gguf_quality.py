"""Compare programs on one GGUF file: perplexity, and divergence from exact probabilities.

    python research/gguf_quality.py FILE.gguf --work DIR --texts TEXTS.jsonl.xz [--tokens 16384] [--programs exact int8]

A program is `exact`, `llama.cpp` or a packing of localspec. *Exact* is transformers in fp32, with the weights that the
package `gguf` reads. With `PACKING=PATH` localspec reads PATH, otherwise an import of FILE. `cuda-none`, `cuda-int8`,
`cuda-nf4`, `mps-int8` and `mps-int4` compute on the CPU what torch computes on a GPU in bf16. All programs read the
same windows of 512 tokens. The first half of a window is context and does not count. Figures of each window are saved
in --work, so that a stopped run can continue. The table covers the windows that all programs have read. Divergence is
measured only for windows that `exact` read before, because exact logits take long. Standard errors are over windows,
because the tokens of a window depend on each other. Give runs with another build of llama.cpp (in the folder
LLAMA_CPP_LIB_PATH) or with other instructions (LOCALSPEC_ISA) a --label.
"""

import argparse
import json
import lzma
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import gguf
import numpy as np
from real.reference import File, log_softmax

from localspec.config import Settings, load
from localspec.events import Reporter
from localspec.machine.hardware import physical_cores
from localspec.models.tokenizer import Tokenizer
from localspec.weights.gguf_model import GgufModel
from localspec.weights.packed_file import BLOCKS

WINDOW = 512
CONTEXT = WINDOW // 2  # tokens of the window that are not counted
ROWS = 32  # logits that are widened to 64 bits at a time
Logits = Callable[[list[int]], np.ndarray]  # after the last token of the context and all but the last of the window


class Unpacked(File):
    """A GGUF file whose weights are unpacked to fp32 on the disk. They are mapped, because memory may be too small."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(path)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def weights(self) -> dict[str, np.ndarray]:
        """Return all tensors of the file by name, in fp32."""
        return {tensor.name: self._mapped(tensor) for tensor in self._reader.tensors}

    def _mapped(self, tensor: gguf.ReaderTensor) -> np.ndarray:
        file = self._folder / f"{tensor.name}.npy"
        if not file.exists():
            partial = file.with_suffix(".partial.npy")
            np.save(partial, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
            partial.rename(file)
        return np.load(file, mmap_mode="c")


def exact(file: Path, work: Path) -> Logits:
    import torch
    from real.reference import Exact

    model = Exact(Unpacked(file, work / "fp32")).model

    @torch.inference_mode()
    def logits(ids: list[int]) -> np.ndarray:
        return model(torch.tensor([ids]), logits_to_keep=CONTEXT + 1).logits[0, :-1].numpy()

    return logits


def llama_cpp(file: Path, threads: int) -> Logits:
    from llama_cpp_model import Gguf

    model = GgufModel.open(file)
    peer = Gguf(file, model.config.vocab_size, WINDOW, mapped=True)
    peer.set_threads(threads)
    return lambda ids: peer.logits(ids, 0)[CONTEXT - 1 : -1]


def our_engine(path: Path, packing: str, threads: int) -> Logits:
    from localspec.native.target import NativeTarget
    from localspec.native.threads import Threads

    model = NativeTarget.open(path, packing=packing, context=WINDOW, threads=Threads(threads)).model
    return lambda ids: model.forward(ids, None, model.cache(WINDOW), CONTEXT - 1)[0].numpy()[:-1]


def on_a_card(file: Path, backend: str, packing: str) -> Logits:
    import torch

    from localspec.families.rope import Rope
    from localspec.nn.packing import linear_class, lm_head_class
    from localspec.nn.rotary import RotaryEmbedding
    from localspec.nn.transformer import Transformer
    from localspec.nn.weights import Weights
    from localspec.weights.gguf_weights import gguf_source

    source, cpu = gguf_source(GgufModel.open(file)), torch.device("cpu")
    weights = Weights(source.made_of, source.sizes, torch.bfloat16, "cpu")
    rotary, layers = RotaryEmbedding(Rope.of(source.config, WINDOW), cpu), linear_class(packing, backend)
    model = Transformer(source.sizes, rotary, weights, layers, lm_head_class=lm_head_class(packing, backend))
    causal = torch.ones(WINDOW, WINDOW, dtype=torch.bool).tril()

    @torch.inference_mode()
    def logits(ids: list[int]) -> np.ndarray:
        states = model(torch.tensor([ids]), torch.arange(WINDOW), causal)[0, CONTEXT - 1 : -1]
        return model.head(states).float().numpy()

    return logits


def imported(file: Path, packing: str) -> Path:
    """Import the file as `localspec import --quantize PACKING` does, and return the path; `blocks` keeps its types."""
    from localspec.engine.importing import import_gguf

    settings = Settings() if packing == BLOCKS else load(flags={"quantize": packing})
    return import_gguf(file, settings, Reporter()).path


def windows(file: Path, texts: Path, count: int) -> list[list[int]]:
    """Return the first `count` windows of tokens of the texts, which are joined by empty lines."""
    model = GgufModel.open(file)
    tokenizer, ids = Tokenizer.decoded(model.texts, model.path), list[int]()
    for text in documents(texts):
        ids += tokenizer.encode(text + "\n\n", False)
        if len(ids) >= count * WINDOW:
            return [ids[start : start + WINDOW] for start in range(0, count * WINDOW, WINDOW)]
    raise SystemExit(f"{texts} has {len(ids)} tokens; lower --tokens.")


def documents(file: Path) -> Iterator[str]:
    with lzma.open(file, "rt", encoding="utf-8") if file.suffix == ".xz" else file.open(encoding="utf-8") as lines:
        for line in lines:
            example = json.loads(line)
            yield example["text"] if "text" in example else "\n".join(turn["content"] for turn in example["messages"])


def saved(file: Path, **arrays: Any) -> None:
    partial = file.with_suffix(".partial.npz")
    np.savez(partial, **arrays)
    partial.rename(file)


def surprise(log_probabilities: np.ndarray, ids: list[int], start: int) -> np.ndarray:
    chosen = ids[CONTEXT + start : CONTEXT + start + len(log_probabilities)]
    return -log_probabilities[np.arange(len(chosen)), chosen]


def keep_exact(file: Path, logits: np.ndarray, ids: list[int]) -> None:
    """Save the exact logits of a window, rounded to 16 bits each, and the surprise (−log p) of each token."""
    low = logits.min(-1, keepdims=True)
    step = (logits.max(-1, keepdims=True) - low) / np.float32(65535)
    whole = np.rint((logits - low) / step).astype(np.uint16)
    nats = [surprise(log_softmax(logits[at : at + ROWS]), ids, at) for at in range(0, CONTEXT, ROWS)]
    saved(file, whole=whole, low=low, step=step, nats=np.concatenate(nats))


def keep_nats(file: Path, logits: np.ndarray, ids: list[int]) -> None:
    """Save the surprise (−log p) of each token in a window without exact logits."""
    nats = [surprise(log_softmax(logits[at : at + ROWS]), ids, at) for at in range(0, CONTEXT, ROWS)]
    saved(file, nats=np.concatenate(nats))


def keep_compared(file: Path, logits: np.ndarray, ids: list[int], right: Path) -> None:
    """Save each token's surprise (−log p), KL divergence from `exact`, and whether both have the same likeliest token."""
    with np.load(right) as stored:
        whole, low, step = stored["whole"], stored["low"], stored["step"]
    columns: dict[str, list[np.ndarray]] = {"nats": [], "divergence": [], "same": []}
    for at in range(0, CONTEXT, ROWS):
        rows = slice(at, at + ROWS)
        theirs, probable = log_softmax(logits[rows]), log_softmax(whole[rows] * step[rows] + low[rows])
        columns["nats"].append(surprise(theirs, ids, at))
        columns["divergence"].append((np.exp(probable) * (probable - theirs)).sum(-1))
        columns["same"].append(theirs.argmax(-1) == whole[rows].argmax(-1))
    saved(file, **{name: np.concatenate(parts) for name, parts in columns.items()})


def computed(folder: Path, make: Callable[[], Logits], texts: list[list[int]], right: Path | None) -> None:
    """Compute the windows that `folder` does not have yet, and save their figures. `make` loads the program."""
    folder.mkdir(parents=True, exist_ok=True)
    make = cache(make)
    for number, ids in enumerate(texts):
        file = folder / f"{number:04}.npz"
        if file.exists():
            continue
        if right is None:
            keep_exact(file, make()(ids), ids)
        elif (exactly := right / file.name).exists():
            keep_compared(file, make()(ids), ids, exactly)
        else:
            keep_nats(file, make()(ids), ids)
        print(f"{folder.name}: window {number + 1} of {len(texts)}", flush=True)


def mean_of_windows(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of an array [windows, tokens], and its standard error over windows."""
    each = values.mean(-1)
    return float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else float("nan")


def table(work: Path, names: list[str]) -> str:
    """Return a table with a row for each program, over the windows that all programs have read."""
    numbers = sorted(set.intersection(*({file.name for file in (work / name).glob("????.npz")} for name in names)))
    if not numbers:
        return "No window has been read by all of these programs."
    results: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        fields = ("nats",) if name == "exact" or "exact" not in names else ("nats", "divergence", "same")
        files = [np.load(work / name / number) for number in numbers]
        results[name] = {field: np.stack([stored[field] for stored in files]) for field in fields}
    peer = next((name for name in names if name.startswith("llama.cpp")), "")
    lines = [
        f"{len(numbers) * CONTEXT:,} tokens in {len(numbers)} windows, {work.name}",
        "| program | perplexity | against exact | against llama.cpp | mean KL | KL, 99 % | same favourite |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, arrays in results.items():
        against = [
            f"{100 * np.expm1(mean):+.2f} ± {100 * error:.2f} %" if other and other != name else "–"
            for other in ("exact" if "exact" in results else "", peer)
            for mean, error in [mean_of_windows(arrays["nats"] - results[other or name]["nats"])]
        ]
        kl = ["–"] * 3
        if "divergence" in arrays:
            mean, error = mean_of_windows(arrays["divergence"])
            kl = [
                f"{mean:.5f} ± {error:.5f}",
                f"{np.quantile(arrays['divergence'], 0.99):.4f}",
                f"{arrays['same'].mean():.2%}",
            ]
        lines.append("| " + " | ".join([name, f"{np.exp(arrays['nats'].mean()):.4f}", *against, *kl]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Let each program read its missing windows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--work", type=Path, required=True, help="where windows and packed files are kept")
    parser.add_argument("--texts", type=Path, required=True, help="JSONL with `text` or `messages`, also as .xz")
    parser.add_argument("--tokens", type=int, default=16384, help="that count (default: 16384)")
    parser.add_argument(
        "--programs", nargs="+", default=["exact", "llama.cpp", "int8"], help="in this order; see above"
    )
    parser.add_argument("--threads", type=int, default=physical_cores(), help="1 where others compute meanwhile")
    parser.add_argument("--label", default="", help="of this run, for programs but the exact one")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    os.environ["LOCALSPEC_HOME"] = str(options.work.resolve() / "home")
    work = options.work / options.model.stem
    count, names = -(-options.tokens // CONTEXT), list[str]()
    texts = [] if options.table else windows(options.model, options.texts, count)
    for program in options.programs:
        kind, _, path = program.partition("=")
        names.append(kind if kind == "exact" else f"{kind} {options.label}".strip())

        def make(kind: str = kind, path: str = path) -> Logits:
            if kind == "exact":
                return exact(options.model, work)
            if kind == "llama.cpp":
                return llama_cpp(options.model, options.threads)
            if kind.startswith(("cuda-", "mps-")):
                return on_a_card(options.model, *kind.split("-"))
            return our_engine(Path(path) if path else imported(options.model, kind), kind, options.threads)

        computed(work / names[-1], make, texts, None if kind == "exact" else work / "exact")
    print(f"load {os.getloadavg()[0]:.1f}\n{table(work, names)}")


if __name__ == "__main__":
    main()
