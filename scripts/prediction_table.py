"""What is predicted of a model beside what it then takes: bytes and tokens/s of plain decoding, random weights.

python scripts/prediction_table.py --work DIRECTORY [--forms fp32,bf16,int8] [--repeat 3]

Each run is a process of its own. Bytes are its peak minus what it held before the model was loaded. Tokens/s are
predicted twice: from rates of the device, which need no model, and from its own forward costs. Both are measured in that
process between two replies, and rates on both sides of costs, for a machine may change its pace within a minute.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean, median

CONTEXT, PROMPT, REPLY = 640, 512, 64  # tokens
MODELS = {
    "0.4 B": {
        "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 16, "num_attention_heads": 20,
        "num_key_value_heads": 4,
    },
    "1.1 B": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}  # fmt: skip
FORMS = {"fp32": {"dtype": "fp32"}, "bf16": {"dtype": "bf16"}, "int8": {"quantize": "int8"}, "nf4": {"quantize": "nf4"}}


def random_model(place: Path, shape: dict[str, int]) -> Path:
    """Made once."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import localspec

    if not (place / "config.json").exists():
        torch.manual_seed(0)
        config = LlamaConfig(**shape, vocab_size=32000, max_position_embeddings=4096, tie_word_embeddings=False)
        LlamaForCausalLM(config).bfloat16().save_pretrained(place, max_shard_size="1GB")
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(Path(localspec.__file__).parent / "demo" / name, place)
    return place


def settings(form: str):  # noqa: ANN201
    from localspec import config

    return config.load(flags={**FORMS[form], "context": CONTEXT, "drafter": "none", "device": "cpu"})


def run(path: Path, form: str) -> dict[str, float]:
    """In a process of its own: loads, reads a prompt, answers."""
    import psutil
    import torch

    from localspec import Engine, Limits, Sampling
    from localspec.engine.forward_timing import measure_forward_costs
    from localspec.engine.rates import measure_rates  # all that is imported counts as there before
    from localspec.machine.hardware import physical_cores
    from localspec.machine.memory import peak_memory
    from localspec.models import registry
    from localspec.models.shape import Shape
    from localspec.policy.prediction import Estimate
    from localspec.policy.selection import choose

    torch.set_num_threads(physical_cores())
    torch.ones(64, 64) @ torch.ones(64, 64)
    before = psutil.Process().memory_info().rss
    choice = choose(registry.resolve(str(path)), settings(form))
    engine = Engine(choice)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(300, 2000, (PROMPT,), generator=generator).tolist()
    engine.target.stop_tokens = frozenset()
    shape = Shape.of(json.loads((path / "config.json").read_text()))
    assert shape is not None

    def speed() -> float:
        for _ in engine.session.generate(prompt, Sampling(), Limits(REPLY)):
            pass
        return engine.session.statistics.tokens_per_second

    def by_rates() -> float:
        return 1 / Estimate(shape, measure_rates("cpu", choice.dtype, choice.quantize)).at(1, PROMPT)

    speeds, peak = [speed()], peak_memory()
    rates = [by_rates()]
    by_costs = 1 / measure_forward_costs(engine.target).at(1, PROMPT)
    rates.append(by_rates())
    speeds.append(speed())
    return {
        "promised": choice.bytes, "bytes": peak - before,
        "speed": mean(speeds), "by_costs": by_costs, "by_rates": mean(rates),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the random models are kept")
    parser.add_argument("--forms", default="fp32,bf16,int8")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--run", nargs=2, metavar=("PATH", "FORM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(Path(options.run[0]), options.run[1])))
        return
    print(
        "| model | form | bytes predicted | measured | off | tokens/s by rates | by its costs | measured "
        "| rates off | costs off |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, shape in MODELS.items():
        path = random_model(options.work / name.replace(" ", ""), shape)
        for form in options.forms.split(","):
            found: dict[str, list[float]] = {}
            for _ in range(options.repeat):
                command = [sys.executable, __file__, "--work", str(options.work), "--run", str(path), form]
                said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for key, value in said.items():
                    found.setdefault(key, []).append(value)
            middle = {key: median(values) for key, values in found.items()}
            off = middle["promised"] - middle["bytes"]
            # each run against itself: what is measured minutes apart does not compare
            parts = [
                median(told / seen - 1 for told, seen in zip(found[key], found["speed"], strict=True))
                for key in ("by_rates", "by_costs")
            ]
            print(
                f"| {name} | {form} | {middle['promised'] / 2**20:.0f} MiB | {middle['bytes'] / 2**20:.0f} MiB | "
                f"{off / 2**20:+.0f} MiB ({off / middle['bytes']:+.1%}) | {middle['by_rates']:.1f} | "
                f"{middle['by_costs']:.1f} | {middle['speed']:.1f} | {parts[0]:+.0%} | {parts[1]:+.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
