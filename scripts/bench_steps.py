"""Milliseconds of a step on random weights of 0.4 B parameters, ours in every precision and form beside the peers.

python scripts/bench_steps.py --work DIRECTORY [--heads grouped|many] [--peers transformers,llama.cpp] [--profile]
"""

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from localspec import Engine, Limits, config
from localspec.bench import comparison, peers
from localspec.decoding.tree import DraftTree
from localspec.models import registry
from localspec.policy.selection import choose

DEMO = Path(__file__).resolve().parent.parent / "localspec" / "demo"
FORMS = {  # name -> (flags, invariant form)
    "fp32": ({"dtype": "fp32"}, False),
    "bf16": ({"dtype": "bf16"}, False),
    "bf16 exact": ({"dtype": "bf16"}, True),
    "int8": ({"quantize": "int8"}, False),
    "int8 exact": ({"quantize": "int8"}, True),
    "int8, fp32 cache": ({"quantize": "int8", "dtype": "fp32"}, False),
    "int8, fp32 cache, exact": ({"quantize": "int8", "dtype": "fp32"}, True),
}
CONTEXTS = (512, 2048, 8192)


def random_model(place: Path, heads: str) -> Path:
    """Made once: a Llama of 16 layers, 20 query heads and 4 or 20 key heads."""
    if not (place / "config.json").exists():
        torch.manual_seed(0)
        shape = LlamaConfig(
            hidden_size=1280, intermediate_size=3584, num_hidden_layers=16, num_attention_heads=20, vocab_size=32000,
            num_key_value_heads=4 if heads == "grouped" else 20, max_position_embeddings=16384, tie_word_embeddings=False,
        )  # fmt: skip
        LlamaForCausalLM(shape).bfloat16().save_pretrained(place)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(DEMO / name, place)
    return place


def load(path: Path, flags: dict[str, str], exact: bool) -> Engine:
    """A plain engine."""
    card = registry.resolve(str(path))
    settings = config.load(flags={**flags, "exact": exact, "context": 10000})
    choice = choose(card, settings)
    return Engine(replace(choice, drafter="none", nodes=0))


@torch.inference_mode()
def by_context(engines: dict[str, Engine], repetitions: int = 9) -> None:
    """Steps of 1 and 9 rows behind longer and longer texts: what the form of attention costs."""
    for context in CONTEXTS:
        taken: dict[tuple[str, int], list[float]] = {}
        caches = {}
        for name, engine in engines.items():
            caches[name] = engine.target.cache(context + 64)
            caches[name].fill(torch.Generator().manual_seed(0))
            caches[name].length = context
        for _ in range(repetitions):
            for name, engine in engines.items():
                for rows in (1, 9):
                    tree = DraftTree.chain(range(7, 7 + rows))
                    began = time.perf_counter()
                    engine.target.forward(tree, caches[name])
                    taken.setdefault((name, rows), []).append(time.perf_counter() - began)
        for name in engines:
            figures = "  ".join(f"{rows} rows {1e3 * median(taken[name, rows]):6.1f} ms" for rows in (1, 9))
            print(f"  {context:5} tokens  {name:26} {figures}", flush=True)


@torch.inference_mode()
def profile(engine: Engine, rows: int) -> None:
    """Where a step goes."""
    contender = peers.Ours(engine, Limits(1))
    for _ in range(5):
        contender.forward(rows)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(10):
            contender.forward(rows)
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=50))


def main() -> None:
    """Prints a line a form and peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the random model is kept")
    parser.add_argument("--heads", choices=("grouped", "many"), default="grouped")
    parser.add_argument("--peers", default="transformers,llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forms", default=",".join(FORMS), help="some of them, separated by ;")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = random_model(options.work / f"random-{options.heads}", options.heads)
    names = list(FORMS) if options.forms == ",".join(FORMS) else options.forms.split(";")
    engines = {name: load(path, *FORMS[name]) for name in names}
    torch.set_num_threads(options.threads)
    contenders: list[peers.Contender] = []
    for name, engine in engines.items():
        ours = peers.Ours(engine, Limits(1))
        ours.name = name
        contenders.append(ours)
    kinds = [kind for kind in options.peers.split(",") if kind]
    some = next(iter(engines.values()))
    with peers.opened(kinds, replace_precision(some), Limits(1), 1024) as others:
        for line in comparison.run_beside([*contenders, *others], [], lambda _: None):
            one = line["ms_by_rows"]["1"]
            print(
                f"{line['name']:26} "
                + "  ".join(f"{rows}: {ms:.1f} ({ms / one:.2f})" for rows, ms in line["ms_by_rows"].items()),
                flush=True,
            )
    by_context({name: engine for name, engine in engines.items() if name != "fp32"})
    if options.profile:
        for rows in (1, 9):
            profile(engines["int8"], rows)


def replace_precision(engine: Engine) -> Engine:
    """The peers take their precision from a choice: bf16, whatever ours."""
    engine.choice = replace(engine.choice, dtype="bf16", quantize="none")
    return engine


if __name__ == "__main__":
    main()
