"""Write mixtures of experts with random weights, and time forwards of localspec or llama.cpp with them.

    python research/experts_speed.py write 30b-a3b 30b-a3b.gguf --vocabulary MODEL.gguf [--layers 48]
    python research/experts_speed.py ours|llama.cpp 30b-a3b.gguf [--rows 1,4,8] [--threads 2] [--on-disk]

`write` makes a GGUF file in the shape of a published model, and needs the package gguf. It takes the tokens of another
GGUF file, and adds unused ones up to the shape's number. The file's name must begin with the name of the shape. Experts
are chosen nearly independently for each row, because routers are random and embeddings are large. For several rows this
is the worst case. The other commands print the median time of forwards of each number of rows, after 64 tokens. Peak
memory includes the mapped file, so it shows how many experts were used. With `--on-disk`, for a file that is larger
than the memory, localspec reads the chosen experts in advance.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import checkout  # noqa: F401
import numpy as np

from localspec.config import Settings
from localspec.decoding.tree import DraftTree
from localspec.engine.importing import import_gguf
from localspec.events import Reporter
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.weights.packed_file import BLOCKS

# The largest number of the embeddings. Layers add similar states to all tokens; these hardly turn such large embeddings, so
# tokens stay different from each other.
FAR_APART = 200.0
CONTEXT, ROOM, SECONDS = 64, 1024, 12.0
_Q4_K, _Q6_K, _MXFP4, _Q8_0, _F32 = "Q4_K", "Q6_K", "MXFP4", "Q8_0", "F32"
# By shape: architecture, layers, hidden size, heads, key heads, channels of a head, experts, used, their channels,
# tokens, and the types of blocks of attention, experts and tables.
SHAPES: dict[str, tuple[Any, ...]] = {
    "30b-a3b": ("qwen3moe", 48, 2048, 32, 4, 128, 128, 8, 768, 151936, _Q4_K, _Q4_K, _Q6_K),
    "gpt-oss-20b": ("gpt-oss", 24, 2880, 64, 8, 64, 32, 4, 2880, 201088, _Q8_0, _MXFP4, _Q8_0),
}
_BLOCKS = {_Q4_K: (256, 144), _Q6_K: (256, 210), _MXFP4: (32, 17), _Q8_0: (32, 34)}  # weights and bytes of a block
# For each scale of a block: its offset in bytes, and the largest integer that it multiplies.
_SCALES = {_Q4_K: ((0, 945), (2, 945)), _Q6_K: ((208, 4064),), _Q8_0: ((0, 127),)}


def blocks(kind: str, rows: int, columns: int, chance: np.random.Generator, largest: float = 0.0) -> np.ndarray:
    """Return a random matrix [rows, columns] in blocks of a GGUF type. By default its numbers are as large as usual."""
    weights, size = _BLOCKS[kind]
    count = rows * columns // weights
    data = chance.integers(0, 256, (count, size), dtype=np.uint8)
    largest = largest or 3 / np.sqrt(columns)
    for at, most in _SCALES.get(kind, ()):
        # Scales have both signs: weights with a mean would give all tokens one direction, and so the same experts.
        scales = (largest / most * chance.uniform(0.5, 1, count) * chance.choice((-1, 1), count)).astype("<f2")
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == _MXFP4:
        data[:, 0] = 127 - 8 + chance.integers(0, 2, count)
    return data.reshape(rows, -1)


def write(shape: str, file: Path, vocabulary: Path, layers: int | None) -> None:
    """Write a GGUF file with random weights in one of SHAPES. `layers` replaces the shape's number of layers."""
    import gguf

    name, count, hidden, heads, keys, width, experts, used, inner, tokens, attention, of_experts, table = SHAPES[shape]
    count = layers or count
    writer, chance = gguf.GGUFWriter(file, name), np.random.default_rng(0)
    oss = name == "gpt-oss"
    writer.add_name(f"Random {shape}")
    for key, value in {
        "context_length": 32768, "embedding_length": hidden, "block_count": count, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": keys, "attention.key_length": width,
        "attention.value_length": width, "expert_count": experts, "expert_used_count": used,
        "expert_feed_forward_length": inner, **({"attention.sliding_window": 128} if oss else {}),
    }.items():  # fmt: skip
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{name}.rope.freq_base", 1e6)
    fields = gguf.GGUFReader(vocabulary).fields
    for key in ("model", "pre"):
        writer.add_string(f"tokenizer.ggml.{key}", fields[f"tokenizer.ggml.{key}"].contents())
    known = fields["tokenizer.ggml.tokens"].contents()[:tokens]
    types = fields["tokenizer.ggml.token_type"].contents()[:tokens]
    writer.add_array("tokenizer.ggml.tokens", [*known, *(f"[MORE{number}]" for number in range(len(known), tokens))])
    writer.add_array("tokenizer.ggml.token_type", [*types, *[int(gguf.TokenType.UNUSED)] * (tokens - len(types))])
    writer.add_array("tokenizer.ggml.merges", fields["tokenizer.ggml.merges"].contents())
    writer.add_uint32("tokenizer.ggml.eos_token_id", fields["tokenizer.ggml.eos_token_id"].contents())
    writer.add_string("tokenizer.chat_template", fields["tokenizer.chat_template"].contents())
    planned: list[tuple[str, str, tuple[int, ...]]] = []
    matrices: dict[str, tuple[int, ...]]
    matrices = {"attn_q": (heads * width, hidden), "attn_k": (keys * width, hidden), "attn_v": (keys * width, hidden),
                "attn_output": (hidden, heads * width)}  # fmt: skip
    planned.append(("token_embd.weight", table, (tokens, hidden)))
    for layer in range(count):
        at = f"blk.{layer}."
        for matrix, size in matrices.items():
            planned.append((f"{at}{matrix}.weight", attention, size))
            planned += [(f"{at}{matrix}.bias", _F32, size[:1])] if oss else []
        planned.append((f"{at}ffn_gate_inp.weight", _F32, (experts, hidden)))
        planned += (
            [(f"{at}ffn_gate_inp.bias", _F32, (experts,)), (f"{at}attn_sinks.weight", _F32, (heads,))] if oss else []
        )
        for matrix, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            planned.append((f"{at}ffn_{matrix}_exps.weight", of_experts, (experts, rows, columns)))
            planned += [(f"{at}ffn_{matrix}_exps.bias", _F32, (experts, rows))] if oss else []
        norms = ("attn_norm", "post_attention_norm") if oss else ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")
        planned += [
            (f"{at}{norm}.weight", _F32, (width if norm.endswith(("q_norm", "k_norm")) else hidden,)) for norm in norms
        ]
    planned += [("output_norm.weight", _F32, (hidden,)), ("output.weight", table, (tokens, hidden))]

    def stored_shape(kind: str, size: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a stored tensor in bytes. Blocks divide the last axis."""
        weights, length = _BLOCKS.get(kind, (1, 4))
        return (*size[:-1], size[-1] // weights * length)

    for tensor, kind, size in planned:
        stored = stored_shape(kind, size)
        length = int(np.prod(stored))
        if kind == _F32:
            writer.add_tensor_info(tensor, size, np.dtype(np.float32), length)
        else:
            writer.add_tensor_info(
                tensor, stored, np.dtype(np.uint8), length, raw_dtype=gguf.GGMLQuantizationType[kind]
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    stacks: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}
    for tensor, kind, size in planned:
        if kind == _F32:
            spread = hidden**-0.5 if "inp.weight" in tensor else 0.1 if "norm" in tensor else 0.1 * hidden**-0.5
            mean = 1.0 if "norm" in tensor else 0.0
            writer.write_tensor_data(chance.normal(mean, spread, size).astype(np.float32))
            continue
        if len(size) < 3:
            largest = FAR_APART if tensor == "token_embd.weight" else 0.0
            writer.write_tensor_data(blocks(kind, size[0], size[1], chance, largest))
            continue
        if (kind, size) not in stacks:  # one for all layers; experts are put in another order
            stacks[kind, size] = np.stack([blocks(kind, size[1], size[2], chance) for _ in range(size[0])])
        writer.write_tensor_data(stacks[kind, size][chance.permutation(size[0])])
    writer.close()


def our_engine(
    file: Path, threads: int, on_disk: bool = False
) -> tuple[Callable[[Sequence[int], int], Any], dict[str, float]]:
    """Open the file in localspec. Return a function that reads tokens from a position on, and figures of opening."""
    began = time.perf_counter()
    path = import_gguf(file, Settings(), Reporter()).path
    imported = time.perf_counter() - began
    NativeTarget.open(
        path, packing=BLOCKS, context=ROOM, threads=Threads(threads)
    )  # the first time, this also writes the file
    laid_out = time.perf_counter() - began - imported
    began = time.perf_counter()
    target = NativeTarget.open(path, packing=BLOCKS, context=ROOM, threads=Threads(threads), on_disk=on_disk)
    cache = target.cache(0)

    def read(tokens: Sequence[int], start: int) -> Any:
        cache.truncate(start)
        result = target.forward(DraftTree.chain(tokens), cache)
        cache.keep(range(len(tokens)))
        return result.logits.numpy()

    opened = time.perf_counter() - began
    return read, {"import": imported, "lay out": laid_out, "open": opened, "GB of a step": target.read_bytes / 1e9}


def llama_cpp(file: Path, threads: int) -> tuple[Callable[[Sequence[int], int], Any], dict[str, float]]:
    """Open the mapped file in llama.cpp. Return the same as `our_engine`."""
    from llama_cpp_model import Gguf

    began = time.perf_counter()
    tokens = next((sizes[9] for name, sizes in SHAPES.items() if file.name.startswith(name)), 0)
    if not tokens:
        raise SystemExit(f"{file.name} does not begin with the name of a shape ({', '.join(SHAPES)}); rename it.")
    peer = Gguf(file, tokens, ROOM, mapped=True)
    peer.set_threads(threads)
    return peer.logits, {"open": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "ours", "llama.cpp"))
    parser.add_argument("names", nargs="+", help="with write a shape, then the file")
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rows", default="1,4,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--on-disk", action="store_true")
    options = parser.parse_args()
    if options.what == "write":
        write(options.names[0], Path(options.names[1]), options.vocabulary, options.layers)
        return
    file = Path(options.names[0])
    read, figures = (
        our_engine(file, options.threads, options.on_disk)
        if options.what == "ours"
        else llama_cpp(file, options.threads)
    )
    chance = np.random.default_rng(1)
    tokens = chance.integers(1000, 100000, 4096).tolist()
    began = time.perf_counter()
    read(tokens[:CONTEXT], 0)
    figures["first token"] = time.perf_counter() - began
    for rows in map(int, options.rows.split(",")):
        spent, cores, at, end = [], [], CONTEXT, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            at = at + rows if at + 2 * rows < 4000 else CONTEXT
            began, computed = time.perf_counter(), time.process_time()
            read(tokens[at : at + rows], CONTEXT)
            spent.append(time.perf_counter() - began)
            cores.append(time.process_time() - computed)
        figures[f"ms of {rows} rows"] = 1000 * median(spent)
        figures[f"ms of a core for {rows} rows"] = 1000 * median(cores)
        figures[f"tokens/s of {rows} rows"] = rows / median(spent)
    figures["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    for name, value in figures.items():
        print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
