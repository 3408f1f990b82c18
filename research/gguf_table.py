"""GGUF files here and in llama.cpp: python research/gguf_table.py --out docs/figures/gguf-table.md [--import DIR]

The demo model, and one of random weights for each of three families, in every type that llama.cpp's quantiser makes of
them: cross-entropy on the documents of this repository, and how far logits are from a third arithmetic, transformers in
fp32 with the weights that the file stands for. `--import` times `localspec import` for a larger model, too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf_writer
import llama_cpp_model
import numpy as np
from scipy.special import log_softmax

from localspec.families.architecture import TransformerConfig, weight_map
from localspec.families.rope import Rope
from localspec.machine.hardware import physical_cores
from localspec.models.tokenizer import Tokenizer
from localspec.native.cache import cache_format
from localspec.native.model import NativeModel
from localspec.native.threads import Threads
from localspec.weights.checkpoint import inspect
from localspec.weights.gguf_model import GgufModel
from localspec.weights.gguf_weights import gguf_recipe, gguf_source
from localspec.weights.opened import PackedModel
from localspec.weights.packed_file import Origin
from localspec.weights.stored import read_config

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "localspec" / "demo"
BATCH = 256  # tokens of a document, at most
KINDS = ("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")
RANDOM = {"llama": "Llama", "qwen3": "Qwen3", "phi3": "Phi3"}
HEAD = (
    "| model | file | bits | exact | here, int8 | here, int4 | llama.cpp | \\|Δ\\| int8 | \\|Δ\\| llama.cpp | argmax int8 | "
    "argmax llama.cpp |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
PROGRAM = (
    "import sys; from localspec.cli.main import main; main(sys.argv[1:]); "
    "from localspec.machine.memory import peak_memory; print(peak_memory(), file=sys.stderr)"
)  # localspec, and at last how many bytes it took
Logits = list[np.ndarray]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4000, help="of text; a quarter of it for random models")
    parser.add_argument(
        "--import", type=Path, dest="larger", help="a directory whose GGUF files are imported and timed"
    )
    parser.add_argument("--work", type=Path, help="where files lie meanwhile; else a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        lines = [introduction(options.tokens), "", HEAD]
        for name, path in models(Path(folder)):
            tokens = options.tokens if path == DEMO else options.tokens // 4
            for row in rows(name, path, tokens, Path(folder)):
                print(row, flush=True)
                lines.append(row)
        if options.larger:
            lines += ["", *imports(options.larger, Path(folder))]
    options.out.write_text("\n".join(lines) + "\n")


def introduction(tokens: int) -> str:
    return (
        "# GGUF files here and in llama.cpp\n\n"
        f"Made by `research/gguf_table.py`, llama-cpp-python {version('llama_cpp_python')}: about {tokens} tokens of this "
        "repository's documents (a quarter of them for models of random weights, whose cross-entropy says nothing by itself). *Exact* is "
        "transformers in fp32 with the weights that the file stands for, unpacked and named by `localspec/weights/`; bits are "
        "those of a weight in the file, the embedding among them. |Δ| is the largest difference of any logit from exact "
        "ones, in hundredths of the largest logit; argmax, how often the likeliest token is the exact one's. llama.cpp "
        "rounds activations to 8 bits a block, as the CPU engine does, so neither is exact."
    )


def version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Directories by name: the demo model, and a random one of each family with its tokenizer."""
    import torch
    import transformers

    yield "demo (phi3)", DEMO
    said = json.loads((DEMO / "config.json").read_text())
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    for family, name in RANDOM.items():
        torch.manual_seed(0)
        kind = getattr(transformers, f"{name}Config")
        more = {"head_dim": 64} if family == "qwen3" else {"sliding_window": None} if family == "phi3" else {}
        ends = {key: said[key] for key in ("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id")}
        config = kind(**sizes, **more, **ends, num_key_value_heads=4, max_position_embeddings=1024)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0 if parameter.ndim > 1 else 1.0, 0.06 if parameter.ndim > 1 else 0.2)
        path = folder / family
        model.to(torch.bfloat16).save_pretrained(path)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            shutil.copy(DEMO / file, path / file)
        yield f"random {family}", path


def written(path: Path, folder: Path, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, Path]]:
    """Yield the GGUF files of a directory, made by the gguf package and llama.cpp's quantiser, one at a time."""
    dense = folder / f"{path.name}-f16.gguf"
    gguf_writer.write(dense, path, read_config(inspect(path)), "f16", partial(add_tokenizer, path))
    for kind in kinds:
        file = dense if kind == "f16" else folder / f"{path.name}-{kind}.gguf"
        if kind != "f16":
            gguf_writer.quantise(dense, file, kind, physical_cores())
        yield kind, file
        if kind != "f16":
            file.unlink()
    dense.unlink()


def add_tokenizer(path: Path, writer: Any) -> None:
    """Add the tokenizer of the demo model, which splits as SmolLM's does, and its template."""
    import gguf

    content = json.loads((path / "tokenizer.json").read_text())
    special = {one["id"] for one in content["added_tokens"]}
    tokens = [token for token, _ in sorted(content["model"]["vocab"].items(), key=lambda one: one[1])]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if index in special else normal for index in range(len(tokens))])
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in content["model"]["merges"]])
    config = json.loads((path / "tokenizer_config.json").read_text())
    writer.add_eos_token_id(tokens.index(config["eos_token"]))
    writer.add_bos_token_id(tokens.index(config["bos_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template((path / "chat_template.jinja").read_text())


def rows(name: str, path: Path, tokens: int, folder: Path) -> Iterator[str]:
    """Yield a line of the table for each type."""
    for kind, file in written(path, folder):
        model = GgufModel.open(file)
        texts = documents(Tokenizer.decoded(model.texts, model.path), tokens)
        right = exact(model, texts)
        int8, int4, other = ours(model, "int8", texts), ours(model, "int4", texts), theirs(model, file, texts)
        bits = 8 * sum(place.bytes for _, place in model.places.values()) / model.parameters
        losses = (cross_entropy(found, texts) for found in (right, int8, int4, other))
        largest = max(float(abs(one).max()) for one in right)
        ways = (int8, other)
        far = (max(float(abs(a - b).max()) for a, b in zip(way, right, strict=True)) / largest for way in ways)
        same = (np.mean(np.concatenate(way).argmax(-1) == np.concatenate(right).argmax(-1)) for way in ways)
        cells = [
            *(f"{one:.4f}" for one in losses),
            *(f"{100 * one:.2f}" for one in far),
            *(f"{one:.2%}" for one in same),
        ]
        yield f"| {name} | {kind.upper()} | {bits:.2f} | {' | '.join(cells)} |"


def documents(tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    """Return pieces of README and docs without their tables, as ids of the file's own tokenizer."""
    found = list[list[int]]()
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for paragraph in file.read_text("utf-8").split("\n\n"):
            if not paragraph.startswith("|") and sum(map(len, found)) < tokens:
                found.append(tokenizer.encode(paragraph, True)[:BATCH])
    return found


def exact(model: GgufModel, texts: list[list[int]]) -> Logits:
    """Return the logits of transformers in fp32, with the weights that the blocks of the file stand for."""
    import torch
    import transformers

    content = json.loads(model.texts["config.json"])
    config = transformers.AutoConfig.for_model(**{**content, "pad_token_id": None})
    with torch.device("meta"):
        stock = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    stock = stock.to_empty(device="cpu").float()
    sizes = TransformerConfig.of(model.config)
    weights, names = {}, weight_map(sizes)
    for ours, parts in model.tensors(sizes).items():
        whole = np.concatenate([one.floats(0, int(np.prod(one.shape))).reshape(one.shape) for one in parts])
        rows = [rows for _, rows in names[ours]]
        split = np.split(whole, np.cumsum(rows)[:-1])
        weights |= {name: torch.from_numpy(one) for (name, _), one in zip(names[ours], split, strict=True)}
    if sizes.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    stock.load_state_dict(weights, strict=True)
    stock.model.rotary_emb = type(stock.model.rotary_emb)(config)  # its frequencies are no weights
    stock.eval()
    with torch.inference_mode():
        return [stock(torch.tensor([ids])).logits[0].numpy() for ids in texts]


def ours(model: GgufModel, packing: str, texts: list[list[int]]) -> Logits:
    """Return the CPU engine, in a packing that is made as `localspec import` makes it."""
    source = gguf_source(model)
    header = source.header(Origin("a model", "0" * 40), packing, gguf_recipe(source, packing))
    held = PackedModel.in_memory(header, source.filler({}), physical_cores(), lambda done, total: None)
    engine = NativeModel(
        held.sizes, Rope.of(source.config, BATCH), held.tensors, Threads(physical_cores()), cache_format(packing)
    )
    return [engine.forward(ids, None, engine.cache(BATCH))[0].numpy().copy() for ids in texts]


def theirs(model: GgufModel, file: Path, texts: list[list[int]]) -> Logits:
    peer = llama_cpp_model.Gguf(file, model.config.vocab_size, BATCH)
    found = [np.array(peer.logits(ids, 0)) for ids in texts]
    peer.close()
    return found


def cross_entropy(found: Logits, texts: list[list[int]]) -> float:
    """Return the mean of a token, in nats."""
    losses = [
        -log_softmax(rows.astype(np.float64), -1)[np.arange(len(ids) - 1), ids[1:]]
        for rows, ids in zip(found, texts, strict=True)
    ]
    return float(np.concatenate(losses).mean())


def imports(path: Path, folder: Path) -> Iterator[str]:
    """Yield what `localspec import` takes: lines of a table of its own."""
    yield "| imported | file | packed | seconds | peak memory |"
    yield "|---|--:|--:|--:|--:|"
    for kind, file in written(path, folder, ("q8_0", "q4_k_m")):
        home = folder / f"home-{kind}"
        command = [sys.executable, "-c", PROGRAM, "import", str(file), "--quantize", "int8", "--json"]
        variables = {**os.environ, "LOCALSPEC_HOME": str(home)}
        done = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
        peak = int(done.stderr.split()[-1])
        said = json.loads(done.stdout)
        size, packed = said["file_bytes"] / 2**30, said["bytes"] / 2**30
        yield (
            f"| {said['parameters'] / 1e9:.2f} B, {kind.upper()} | {size:.2f} GiB | {packed:.2f} GiB, int8 | "
            f"{said['seconds']:.0f} | {peak / 2**30:.2f} GiB |"
        )
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
