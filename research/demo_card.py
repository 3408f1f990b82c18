"""Finish the demo model: check it, measure it on held-out data, write sample replies and its card.

    python research/demo_card.py --data DIR --work DIR --out DIR

DATA and WORK are those of `research/train_demo.py`, after its last stage has ended. OUT receives the model in the Hugging
Face layout, README.md (the model card) and NOTICES.txt (the licence texts of the training data).
"""

import argparse
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from demo_checks import MODEL_FILES, WEIGHTS, check_no_paths, check_size, check_tokenizer
from demo_data.drawing import HELD_OUT
from demo_data.mixture import MADE, SHARED
from demo_data.passes import SET_ASIDE, set_aside
from demo_model import optimizers
from demo_progress import Loss, held_out_losses
from demo_tokens import CONTEXT, TEMPLATE, Corpus
from train_demo import MICRO, STAGES, rate
from transformers import AutoModelForCausalLM, AutoTokenizer

CARD, NOTICES = "README.md", "NOTICES.txt"
SAMPLE_TOKENS, SAMPLE_SEED = 150, 0
# A single NUL would make the card a binary file to git and grep.
CONTROL_SYMBOLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}
STOCK_TOP_K = 50  # what `generate` takes where a generation_config is silent
PROMPTS = (
    "Who are you?",
    "Tell me a joke.",
    "What is the capital of Portugal?",
    "What is 17 + 25?",
    "Tell me a short story about a fox and a lantern.",
    "How do I fetch a larger model?",
    "What does --temp do?",
    "Sort these words: pear, apple, melon",
    "I keep putting off my homework. What should I do?",
    "Who won the football world cup in 2022, and what was the score?",
)


# -- samples ----------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """A prompt and the model's unedited reply."""

    prompt: str
    reply: str
    ended: bool  # whether it ended by itself and not by the limit


def sampling(model: Any) -> dict[str, float]:
    """Return the settings with which `generate` samples: those of the model's generation_config, by default top_k 50."""
    config = model.generation_config
    return {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": STOCK_TOP_K if config.top_k is None else config.top_k,
    }


def speak(model: Any, tokenizer: Any) -> list[Sample]:
    """Return a reply to each of PROMPTS, sampled with the model's own settings. The seed is the same for each reply."""
    samples, ends = [], model.generation_config.eos_token_id
    for prompt in PROMPTS:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        torch.manual_seed(SAMPLE_SEED)
        output = model.generate(**inputs, **sampling(model), do_sample=True, max_new_tokens=SAMPLE_TOKENS)
        reply = output[0, inputs["input_ids"].shape[1] :].tolist()
        ended = reply[-1] in (ends if isinstance(ends, list) else [ends])
        samples.append(Sample(prompt, tokenizer.decode(reply, skip_special_tokens=True), ended))
    return samples


# -- the card ---------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: Iterable[list[str]], left: int = 1) -> str:
    """Return a Markdown table. All columns after the first `left` have numbers, so they are aligned to the right."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def fenced(text: str) -> str:
    """Return `text` as a Markdown code block, which backticks cannot end. Control characters become visible symbols."""
    text = text.translate(CONTROL_SYMBOLS)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def architecture(model: Any, weights: int) -> str:
    """Return the table of the loaded model's sizes; `weights` is the size of its weights in bytes."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    heads = config.num_attention_heads
    width = config.hidden_size // heads
    rows = {
        "class": f"`{type(model).__name__}`",
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "layers": f"{config.num_hidden_layers}",
        "width": f"{config.hidden_size}",
        "feed-forward width": f"{config.intermediate_size} (gated, {config.hidden_act})",
        "attention heads": f"{heads} of width {width}, {config.num_key_value_heads} for keys and values",
        "positions": f"rotary, base {rope['rope_theta']:,.0f}",
        "vocabulary": f"{config.vocab_size:,}",
        "embeddings": "tied" if config.tie_word_embeddings else "not tied",
        "context": f"{config.max_position_embeddings:,} tokens",
        "weights": f"{str(model.dtype).removeprefix('torch.')}, {weights / 1e6:.1f} MB",
    }
    return table(["", ""], [[name, value] for name, value in rows.items()], left=2)


BEGAN = (  # if `--begin` continued from the model that was here before
    "The second edition: it began with the weights and the tokenizer of the first, which had learnt 17 M tokens of books, "
    "chats, code and question sets (whose sources are among those credited below), learnt 4.0 M tokens of the stage below "
    "while the help had some four phrasings a question (0.97 core-hours), 6.0 M while it had fourteen (1.14 core-hours), "
    "5.5 M and 4.5 M with twice as many, of which it became the mean (0.98), 12.0 M at six tenths of the rate when readers of the "
    "README had written theirs (1.09), 5.5 M at four tenths, of which it became the mean (0.54), 9.0 M at six tenths with twice "
    "as many of theirs, of which it became three quarters (0.84), 4.5 M at four tenths, of which it became the mean (0.43), and then "
    "the stage once more, with the help's answers fewer and most of them learnt as far as they say which one they are,"
)


def recipe(model: Any, training: dict[str, Any]) -> str:
    """Return the section on the training, from the constants of the scripts and the record of train_demo.py."""
    stages, names = [], [name for name in ("long", "last") if name in training]
    factor = training.get("rate", 1.0)
    for name in names:
        stage, record = STAGES[name], training[name]
        stages.append(
            [name, f"{stage.length:,}", f"{factor * stage.rates[0]:g} to {factor * stage.rates[1]:g}", f"{stage.user_share:g}",
             f"{record['tokens'] / 1e6:.1f} M", f"{record['steps']:,}", f"{record['cpu_seconds'] / 3600:.2f}"]
        )  # fmt: skip
    points = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    schedule = [[n, *(f"{factor * rate(STAGES[n], 10**6, done):.2f}" for done in points)] for n in names]
    rules = []
    for optimiser, base in optimizers(model):
        group = optimiser.param_groups[0]
        number = sum(p.numel() for p in group["params"])
        known = {key: group[key] for key in ("betas", "momentum", "nesterov", "weight_decay") if key in group}
        settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in known.items())
        rules.append([type(optimiser).__name__, f"{number:,}", f"{base:g}", settings])
    mixture = [
        [
            f"`{source}`",
            share.why,
            *(f"{getattr(share, name):,g}{' examples' if source in MADE else ''}" for name in names),
        ]
        for source, share in (MADE | SHARED).items()
        if any(getattr(share, name) for name in names)
    ]
    whole = "long" in names
    began = "Trained from nothing" if whole else BEGAN
    read = "the first pass of the long stage" if whole else "the first edition's data"
    share = training.get("mean")
    mean = f" The weights are a mean: {share:.0%} of those after this stage, else those before." if share else ""
    meant = "the long one is at a constant rate and as long as there was time, the last one brings the rate down"
    return "\n\n".join(
        [
            f"{began} on the device `{training['device']}`. `research/train_demo.py` of localspec is the "
            "whole recipe; the numbers below come from it and from its record of the run.",
            f"**Tokenizer**: byte-level BPE, {model.config.vocab_size:,} entries, single digits, trained on {read}. "
            f"`<|endoftext|>` begins every example. Chat template: `{TEMPLATE}`",
            f"**Stages**: {meant}" if whole else f"**Stage**: from the first rate down to nothing.{mean}",
            table(
                ["stage", "tokens a row", "rate", "weight of what users say", "tokens seen", "steps", "core-hours"],
                stages,
            ),
            f"A step is {STAGES[names[-1]].batch:,} tokens in forwards of {MICRO[training['device']]:,}; forwards in "
            "bfloat16 autocast over float32 weights; gradients clipped at norm 1. Examples are shuffled and run together, "
            f"without a mask between them. Seed {training['seed']} for the weights.",
            "**Optimisers**",
            table(["optimiser", "parameters", "learning rate", "settings"], rules, left=4),
            "**Schedule**: the factor on the learning rates, by the part of the stage that is done",
            table(["stage", *(f"{done:.0%}" for done in points)], schedule),
            "**Mixture**: how often one pass sees an example, or how many new examples a generator makes for it. Replies "
            f"that repeat themselves are left out. {HELD_OUT:.0%} of every source were never trained on: chosen by a hash "
            "of the example, of generated ones by what they are about, whatever their wording.",
            table(["source", "why", *names], mixture, left=2),
        ]
    )


def loss_cells(loss: Loss) -> list[str]:
    """Return the cells of one row in the table of held-out losses."""
    return [
        f"`{loss.source}`",
        loss.kind,
        f"{loss.examples}",
        f"{loss.tokens:,}",
        f"{loss.mean:.3f}",
        f"{math.exp(loss.mean):.1f}",
    ]


def losses_section(losses: list[Loss], dtype: str) -> str:
    """Return the section with the table of held-out losses and its explanation."""
    rows = [loss_cells(loss) for loss in losses]
    for kind in ("text", "chat"):
        of_kind = [loss for loss in losses if loss.kind == kind]
        examples, tokens = sum(loss.examples for loss in of_kind), sum(loss.tokens for loss in of_kind)
        total = Loss("", kind, examples, tokens, sum(loss.nats for loss in of_kind))
        rows.append(["**all of this kind**", *loss_cells(total)[1:]])
    return (
        "Mean over tokens, in nats a token; for texts over all tokens, for chats over what the assistant says, its end "
        f"mark included. {SET_ASIDE} held-out examples of a source at most, each by itself, cut at the context of "
        f"{CONTEXT:,} tokens; computed in {dtype}. Of books, neighbours of a held-out example (the next part, another "
        "question on the same story) were trained on, so their numbers flatter.\n\n"
        + table(["source", "kind", "examples", "tokens", "loss", "perplexity"], rows, left=2)
    )


def samples_section(samples: list[Sample], settings: dict[str, float], dtype: str) -> str:
    """Return the section with the prompts and replies, and how the replies were made."""
    listed = ", ".join(f"{key} {value}" for key, value in settings.items())
    parts = [
        "First reply to each of ten prompts fixed beforehand, unedited, with `transformers` only "
        f"({dtype}, CPU): sampled with the model's generation_config ({listed}; top_k is the "
        f"library's default where the file names none), `torch.manual_seed({SAMPLE_SEED})` "
        f"before each, at most {SAMPLE_TOKENS} tokens, no system message; control characters, if any, "
        "are shown as symbols."
    ]
    for sample in samples:
        note = "" if sample.ended else f"\n\n*(cut at {SAMPLE_TOKENS} tokens)*"
        parts.append(f"**{sample.prompt}**\n\n{fenced(sample.reply)}{note}")
    return "\n\n".join(parts)


LIMITS = f"""\
- It is very small. It states falsehoods fluently, contradicts itself and loses the thread; rely on nothing it says.
- It knows simple English, and next to nothing of the world. It has read no encyclopedia and no news.
- It is here to try localspec without a network. Do not ask it how localspec works: ask `localspec --help`.
- No safety training of any kind. Questions on sex, self-harm, weapons, drugs and party politics were mostly dropped
  from the data by a word list, so it learned neither to answer nor to refuse them; some crude examples slipped through.
- English only. Other languages come out as noise.
- Context of {CONTEXT:,} tokens, prompt and reply together.
- Arithmetic only with small numbers, and not reliably.
- It writes no programs, speaks no other language, and says so; where it does not say so, it invents.
- It was not trained to follow long or nested instructions, to use tools, or to resist instructions hidden in a text.
- It may speak as a person ("my dog", "I saw that film"): some of its conversations are between persons.
- It carries whatever slant its sources have: old children's books, crowd workers, and generators of small stories."""


def attribution_section(data: Path) -> str:
    """Return the data's ATTRIBUTION.md with headings two levels lower. Raises SystemExit if it lacks a source."""
    text = (data / "ATTRIBUTION.md").read_text(encoding="utf-8")
    missing = sorted(source for source in SHARED if f"`{source}`" not in text)
    if missing:
        raise SystemExit(f"ATTRIBUTION.md says nothing about {', '.join(missing)}.")
    lines = [f"##{line}" if line.startswith("#") else line for line in text.splitlines()]
    return "\n".join(lines[1:] if lines[0].startswith("###") else lines).strip()


def notices(data: Path) -> str:
    """Return all licence texts in DATA/LICENSES. Equal texts occur once, under all their file names."""
    places: dict[str, list[str]] = {}
    for path in sorted((data / "LICENSES").rglob("*")):
        if path.is_file():
            text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()).strip("\n")
            places.setdefault(text, []).append(path.relative_to(data).as_posix())
    if not places:
        raise SystemExit(f"{data / 'LICENSES'} holds no licence texts.")
    rule = "=" * 100
    head = "Licence texts and notices of the sources the demo model was trained on; equal texts stand here once.\n"
    return head + "".join(f"\n{rule}\n{', '.join(names)}\n{rule}\n\n{text}\n" for text, names in places.items())


def card(sections: dict[str, str]) -> str:
    """Return the model card: Hugging Face front matter, introduction, then each section under its heading."""
    start = f"""\
---
language: en
library_name: transformers
pipeline_tag: text-generation
license: other
license_name: permissive-sources-with-notices
license_link: {NOTICES}
tags:
- localspec
- speculative-decoding
- demo
---

# localspec demo model

A chat model small enough to lie inside the `localspec` package, so that every command works before anything is
downloaded, and speculative decoding can be tried and tested on a real, if tiny, target. It is a demonstration, not an
assistant.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(path)  # `localspec show demo --json` names the path
model = AutoModelForCausalLM.from_pretrained(path)
chat = [{{"role": "user", "content": "Tell me a joke."}}]
given = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
print(tokenizer.decode(model.generate(**given, max_new_tokens={SAMPLE_TOKENS})[0], skip_special_tokens=True))
```
"""
    return start + "".join(f"\n## {name}\n\n{text}\n" for name, text in sections.items())


LICENCE = f"""\
Code, and the examples written or generated for the training data: Apache-2.0, as localspec. The weights were trained
only on data whose sources state MIT, Apache-2.0, BSD, CC BY 4.0, CC BY 3.0, CC0 1.0, the WordNet licence, or the public
domain. Who passes the weights on keeps this page and `{NOTICES}`: together they carry the credits, the statement of
changes and the licence texts that those licences ask for. Where the next section says `LICENSES/...`, see the part of
`{NOTICES}` under that name; `chat` and `text` are the two files of the training data."""


# -- all together -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Check the model, measure it, and write it with its card. If a check fails, exit before OUT is changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the training data, with ATTRIBUTION.md and LICENSES")
    parser.add_argument("--work", type=Path, required=True, help="where train_demo.py left model and model.json")
    parser.add_argument("--out", type=Path, required=True, help="where the finished model goes")
    options = parser.parse_args()
    trained, record = options.work / "model", options.work / "model.json"
    check_size(trained)
    if not record.is_file():
        raise SystemExit(f"{record} is not there; let train_demo.py end first.")
    training = json.loads(record.read_text(encoding="utf-8"))
    tokenizer: Any = AutoTokenizer.from_pretrained(trained)
    model: Any = AutoModelForCausalLM.from_pretrained(trained)  # in evaluation mode
    sources, examples = attribution_section(options.data), set_aside(options.data)
    chats, texts = check_tokenizer(examples, tokenizer)
    print(f"tokenizer: {chats} chats as in training, {texts} texts given back", flush=True)

    losses, samples = held_out_losses(model, Corpus.encode(examples, tokenizer)), speak(model, tokenizer)
    dtype = str(model.dtype).removeprefix("torch.")
    sections = {
        "What it cannot do": LIMITS,
        "Architecture": architecture(model, (trained / WEIGHTS).stat().st_size),
        "Recipe": recipe(model, training),
        "Held-out loss": losses_section(losses, dtype),
        "Ten samples": samples_section(samples, sampling(model), dtype),
        "Licence": LICENCE,
        "Training data and its licences": sources,
    }
    contents = {name: (trained / name).read_bytes() for name in MODEL_FILES}
    contents |= {NOTICES: notices(options.data).encode(), CARD: card(sections).encode()}
    root = Path(__file__).resolve().parent.parent
    check_no_paths(contents, (options.data, options.work, options.out, root))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (options.out / name).write_bytes(content)
        print(f"{len(content):>12,}  {name}")


if __name__ == "__main__":
    main()
