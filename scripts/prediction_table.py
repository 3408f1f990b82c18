"""What is predicted of a model beside what it then takes: bytes and tokens/s of plain decoding, random weights.

python scripts/prediction_table.py --work DIRECTORY [--forms fp32,bf16,int8] [--repeat 3]

Each run is a process of its own. Bytes are its peak minus what it held before the model was loaded. Tokens/s are
predicted twice: from rates of the device, before the model is there, and from its own forward costs.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

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

    from localspec import Engine, Limits, Sampling, registry
    from localspec.engine.rates import measured_rates  # noqa: F401  # all that is imported counts as there before
    from localspec.forward_costs import forward_costs
    from localspec.hardware import peak_memory, physical_cores
    from localspec.selection import choose

    torch.set_num_threads(physical_cores())
    torch.ones(64, 64) @ torch.ones(64, 64)
    before = psutil.Process().memory_info().rss
    engine = Engine(choose(registry.resolve(str(path)), settings(form)))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(300, 2000, (PROMPT,), generator=generator).tolist()
    engine.target.stop_tokens = frozenset()
    for _ in engine.session.generate(prompt, Sampling(), Limits(REPLY)):
        pass
    peak = peak_memory()
    said = engine.session.statistics
    costs = forward_costs(engine.target)
    return {"bytes": peak - before, "speed": said.tokens_per_second, "by_costs": 1 / costs.at(1, PROMPT)}


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
    from localspec import registry
    from localspec.engine.measuring import Measuring
    from localspec.machine import this_machine
    from localspec.selection import choose

    print(
        "| model | form | bytes predicted | measured | off | tokens/s by rates | by its costs | measured | off | off |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, shape in MODELS.items():
        path = random_model(options.work / name.replace(" ", ""), shape)
        for form in options.forms.split(","):
            found: dict[str, list[float]] = {}
            for _ in range(options.repeat):
                knowledge = Measuring(None, lambda _: None, print)  # measured anew, right beside the run
                choice = choose(registry.resolve(str(path)), settings(form), this_machine(), knowledge)
                command = [sys.executable, __file__, "--work", str(options.work), "--run", str(path), form]
                said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for key, value in {**said, "by_rates": choice.tokens_per_second, "promised": choice.bytes}.items():
                    found.setdefault(key, []).append(value)
            middle = {key: median(values) for key, values in found.items()}
            off = middle["promised"] - middle["bytes"]
            parts = [middle[key] / middle["speed"] - 1 for key in ("by_rates", "by_costs")]
            print(
                f"| {name} | {form} | {middle['promised'] / 2**20:.0f} MiB | {middle['bytes'] / 2**20:.0f} MiB | "
                f"{off / 2**20:+.0f} MiB ({off / middle['bytes']:+.1%}) | {middle['by_rates']:.1f} | "
                f"{middle['by_costs']:.1f} | {middle['speed']:.1f} | {parts[0]:+.0%} | {parts[1]:+.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
