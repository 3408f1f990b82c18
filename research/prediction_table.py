"""Compare the predicted memory and speed of plain decoding with measurements, on models with random weights.

python research/prediction_table.py --work DIRECTORY [--forms int8,int4,bf16] [--models "0.1 B,0.4 B"] [--repeat 3]

Each run is a separate process, on a CPU with the compiled library, after a run that packs the model. Measured bytes are
the process's peak, including pages of the mapped file, minus its memory before the model was loaded. Tokens/s are
predicted twice: from rates of the device, which need no model, and from the measured costs of the model's forwards.
Both are measured between two replies of the same process, because a machine's speed may change within a minute.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

CONTEXT, PROMPT, REPLY, VOCABULARY = 640, 512, 64, 32000  # tokens
MODELS = {
    "0.1 B": {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
    "0.4 B": {
        "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 16, "num_attention_heads": 20,
        "num_key_value_heads": 4,
    },
    "1.1 B": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}  # fmt: skip
FORMS = {
    "fp32": {"dtype": "fp32", "quantize": "none"}, "bf16": {"dtype": "bf16", "quantize": "none"},
    "int8": {"quantize": "int8"}, "int4": {"quantize": "int4"},
}  # fmt: skip


def random_model(directory: Path, shape: dict[str, int]) -> Path:
    """Write a model with random weights to `directory`, if it is not there yet. Return the directory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import localspec

    if not (directory / "config.json").exists():
        torch.manual_seed(0)
        config = LlamaConfig(**shape, vocab_size=VOCABULARY, max_position_embeddings=4096, tie_word_embeddings=False)
        LlamaForCausalLM(config).bfloat16().save_pretrained(directory, max_shard_size="1GB")
        demo = Path(localspec.__file__).parent / "demo"
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(demo / name, directory)
        (directory / "tokenizer.json").write_text(
            json.dumps(with_more_tokens(json.loads((demo / "tokenizer.json").read_text())))
        )
    return directory


def with_more_tokens(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the demo's tokenizer with more tokens, which are pairs of others, until there are VOCABULARY tokens."""
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    known, random = list(vocabulary), Random(0)
    while len(vocabulary) < VOCABULARY:
        left, right = random.choices(known, k=2)
        if len(left + right) < 12 and left + right not in vocabulary and "<" not in left + right:
            vocabulary[left + right] = len(vocabulary)
            merges.append([left, right])
    return tokenizer


def run(path: Path, form: str) -> dict[str, float]:
    """Load the model in this process, read a prompt and answer. Return the predicted and measured figures."""
    import psutil

    from localspec import Engine, Limits, Sampling, config
    from localspec.choosing.choose import choose
    from localspec.choosing.cost import Estimate, Rates
    from localspec.decoding.measuring import finished
    from localspec.engine.model_profile import timing_forwards
    from localspec.machine.hardware import memory_bandwidth
    from localspec.machine.library import library
    from localspec.machine.machine import this_machine
    from localspec.machine.memory import peak_memory
    from localspec.models import registry
    from localspec.models.shape import Shape

    for name in ("jinja2.sandbox", "tokenizers", "localspec.native.target", "localspec.native.exactness"):
        import_module(name)  # everything imported here counts as earlier memory
    library()
    flags = {**FORMS[form], "context": CONTEXT, "drafter": "none", "device": "cpu"}
    choice = choose(registry.resolve(str(path)), config.load(flags=flags))
    before = psutil.Process().memory_info().rss
    engine = Engine(choice)
    prompt = Random(0).choices(range(300, 2000), k=PROMPT)
    engine.target.stop_tokens = frozenset()
    shape = Shape.of(json.loads((path / "config.json").read_text()))
    assert shape is not None

    def speed() -> float:
        for _ in engine.session.generate(prompt, Sampling(), Limits(REPLY)):
            pass
        assert engine.session.statistics
        return engine.session.statistics.tokens_per_second

    def by_rates() -> float:
        device = this_machine(memory_bandwidth).devices[-1]
        return 1 / Estimate(shape, Rates.of(device, choice.dtype, choice.quantize)).at(1, PROMPT)

    speeds, peak = [speed()], peak_memory()
    rates = [by_rates()]
    by_costs = 1 / finished(timing_forwards(engine.target)).at(1, PROMPT)
    rates.append(by_rates())
    speeds.append(speed())
    return {
        "promised": choice.bytes, "bytes": peak - before,
        "speed": mean(speeds), "by_costs": by_costs, "by_rates": mean(rates),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the random models are kept")
    parser.add_argument("--forms", default="int8,int4,bf16")
    parser.add_argument("--models", default="0.1 B,0.4 B")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--run", nargs=2, metavar=("PATH", "FORM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["LOCALSPEC_HOME"] = str(options.work.resolve() / "home")
    if options.run:
        print(json.dumps(run(Path(options.run[0]), options.run[1])))
        return
    print(
        "| model | packing | bytes predicted | measured | error | tokens/s by rates | by its costs | measured "
        "| rates off | costs off |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in options.models.split(","):
        path = random_model(options.work / name.replace(" ", ""), MODELS[name])
        for form in options.forms.split(","):
            print(row(name, path, form, options), flush=True)


def row(name: str, path: Path, form: str, options: argparse.Namespace) -> str:
    """Measure a model in one precision, and return its line of the table."""
    command = [sys.executable, __file__, "--work", str(options.work), "--run", str(path), form]
    readings: dict[str, list[float]] = {}
    for turn in range(options.repeat + 1):
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        for key, value in json.loads(output).items() if turn else ():
            readings.setdefault(key, []).append(value)
    middle = {key: median(values) for key, values in readings.items()}
    off = middle["promised"] - middle["bytes"]
    # each run is compared with itself, because measurements minutes apart are not comparable
    parts = [
        median(predicted / measured - 1 for predicted, measured in zip(readings[key], readings["speed"], strict=True))
        for key in ("by_rates", "by_costs")
    ]
    return (
        f"| {name} | {form} | {middle['promised'] / 2**20:.0f} MiB | {middle['bytes'] / 2**20:.0f} MiB | "
        f"{off / 2**20:+.0f} MiB ({off / middle['bytes']:+.1%}) | {middle['by_rates']:.1f} | "
        f"{middle['by_costs']:.1f} | {middle['speed']:.1f} | {parts[0]:+.0%} | {parts[1]:+.0%} |"
    )


if __name__ == "__main__":
    main()
