"""Finishes the demo model: checks it, measures it on held-out data, lets it speak, writes its card.

    python scripts/demo_card.py --data DIR --work DIR --out DIR

DATA and WORK are those of `scripts/train_demo.py`, after it has ended. OUT receives the model in the Hugging Face
layout, README.md (the model card) and NOTICES.txt (the licence texts of the training data).
"""

import argparse
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from train_demo import (
    BATCH,
    CONTEXT,
    HELD_OUT,
    MICRO,
    SEED,
    STAGES,
    TEMPLATE,
    VOCABULARY,
    Corpus,
    Stage,
    examples,
    held_out,
    optimizers,
    rate,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

WEIGHTS_LIMIT = 32_000_000  # bytes of model.safetensors: the demo lies inside the wheel
WEIGHTS, CARD, NOTICES = "model.safetensors", "README.md", "NOTICES.txt"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
CHECKED_CHATS, CHECKED_TEXTS, MEASURED = 50, 200, 60  # the last: examples a source, at most
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
    "How do I list the files in a folder by size with bash?",
    "Write a Python function that reverses a string.",
    'What does the word "harbor" mean?',
    "I keep putting off my homework. What should I do?",
    "Who won the football world cup in 2022, and what was the score?",
)


# -- checks -----------------------------------------------------------------------------------------------------------


def check_size(model_directory: Path) -> None:
    """SystemExit where a file of the export is missing or the weights are above WEIGHTS_LIMIT bytes."""
    missing = [name for name in MODEL_FILES if not (model_directory / name).is_file()]
    if missing:
        raise SystemExit(f"{model_directory} lacks {', '.join(missing)}; let train_demo.py end first.")
    size = (model_directory / WEIGHTS).stat().st_size
    if size > WEIGHTS_LIMIT:
        raise SystemExit(f"The weights take {size / 1e6:.1f} MB, the limit is {WEIGHTS_LIMIT / 1e6:.0f} MB.")


def check_tokenizer(data: Path, corpus: Corpus, tokenizer: Any) -> None:
    """SystemExit where the shipped tokenizer differs from what was trained on, or does not give a text back."""
    random, number = np.random.default_rng(SEED), len(corpus.sources)
    order: list[int] = random.permutation(number).tolist()
    one_a_source = {corpus.sources[i]: i for i in order}.values()
    candidates = list(dict.fromkeys([*one_a_source, *order[: 2 * CHECKED_TEXTS]]))
    chosen, wanted, count = dict[int, dict[str, Any]](), set(candidates), 0
    for i, example in enumerate(examples(data)):
        count += 1
        if i in wanted:
            chosen[i] = example
    if count != number:
        raise SystemExit(f"The data has {count} examples, tokens.npz {number}; they do not belong together.")
    for i, example in chosen.items():
        if example["source"] != corpus.sources[i] or held_out(example) != bool(corpus.aside[i]):
            raise SystemExit(f"Example {i} of the data is not the one that was encoded; tokens.npz is of other data.")
    chats = [i for i in candidates if "messages" in chosen[i]][:CHECKED_CHATS]
    for i in chats:
        messages = chosen[i]["messages"]
        trained = corpus.ids[corpus.offsets[i] : corpus.offsets[i + 1]].tolist()
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        direct = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        if trained != tokenizer(rendered, add_special_tokens=False)["input_ids"] or trained != direct:
            raise SystemExit(f"The chat template gives other tokens than training saw for example {i}: {rendered!r}")
    parts = [[e["text"]] if "text" in e else [m["content"] for m in e["messages"]] for e in chosen.values()]
    texts = [text for some in parts for text in some]
    if len(chats) < CHECKED_CHATS or len(texts) < CHECKED_TEXTS:
        raise SystemExit(
            f"The data has too few examples to check the tokenizer: {len(chats)} chats, {len(texts)} texts."
        )
    for i in random.choice(len(texts), CHECKED_TEXTS, replace=False):
        back = tokenizer.decode(tokenizer(texts[i], add_special_tokens=False)["input_ids"])
        if back != texts[i]:
            raise SystemExit(f"The tokenizer does not give a text back: {texts[i]!r} became {back!r}.")


def check_no_paths(contents: dict[str, bytes], places: Iterable[Path]) -> None:
    """SystemExit where a file to be written names one of the directories it was made from."""
    for name, content in contents.items():
        for place in places:
            if str(place.resolve()).encode() in content:
                raise SystemExit(f"{name} names the directory {place.resolve()} of this machine.")


# -- measurement ------------------------------------------------------------------------------------------------------


@dataclass
class Loss:
    """Held-out loss of one source, nats summed over `tokens` predicted tokens."""

    source: str
    kind: str  # text: every token counts, chat: what the assistant says, end mark included
    there: int  # held-out examples
    used: int
    tokens: int
    nats: float

    def cells(self) -> list[str]:
        """One row of the card's table."""
        start = [f"`{self.source}`", self.kind, f"{self.used} of {self.there}", f"{self.tokens:,}"]
        if not self.tokens:
            return [*start, "-", "-"]
        mean = self.nats / self.tokens
        return [*start, f"{mean:.3f}", f"{math.exp(mean):.1f}"]


@torch.inference_mode()
def held_out_losses(model: Any, corpus: Corpus) -> list[Loss]:
    """One Loss a source, sources in the order of their names, over the first MEASURED held-out examples of each."""
    by_source: dict[str, list[int]] = {source: [] for source in sorted(set(corpus.sources))}
    for i in np.flatnonzero(corpus.aside).tolist():
        by_source[corpus.sources[i]].append(i)
    spoken = [bool(corpus.learn[a:b].any()) for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]
    chats = {source for source, speaks in zip(corpus.sources, spoken, strict=True) if speaks}
    found = []
    for source, there in by_source.items():
        loss = Loss(source, "chat" if source in chats else "text", len(there), 0, 0, 0.0)
        for i in there[:MEASURED]:
            part = slice(corpus.offsets[i], min(corpus.offsets[i + 1], corpus.offsets[i] + CONTEXT))
            ids = torch.from_numpy(corpus.ids[part].astype(np.int64))
            counts = torch.from_numpy(corpus.learn[part] | (loss.kind == "text"))[1:]
            if not counts.any():
                continue  # what the assistant says lies wholly beyond the context
            logits = model(ids[None], use_cache=False).logits[0, :-1][counts].float()
            loss.nats += F.cross_entropy(logits, ids[1:][counts], reduction="sum").item()
            loss.tokens += int(counts.sum())
            loss.used += 1
        found.append(loss)
    return found


@dataclass
class Sample:
    """One unedited reply."""

    prompt: str
    reply: str
    ended: bool  # by itself, not by the limit


def sampling(model: Any) -> dict[str, float]:
    """What stock `generate` samples with: the model's generation_config, and top_k 50 where that is silent."""
    config = model.generation_config
    return {
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": STOCK_TOP_K if config.top_k is None else config.top_k,
    }


def speak(model: Any, tokenizer: Any) -> list[Sample]:
    """One reply to each of PROMPTS, sampled with the model's own settings from the same seed."""
    samples, ends = [], model.generation_config.eos_token_id
    for prompt in PROMPTS:
        given = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        torch.manual_seed(SAMPLE_SEED)
        both = model.generate(**given, **sampling(model), do_sample=True, max_new_tokens=SAMPLE_TOKENS)
        reply = both[0, given["input_ids"].shape[1] :].tolist()
        ended = reply[-1] in (ends if isinstance(ends, list) else [ends])
        samples.append(Sample(prompt, tokenizer.decode(reply, skip_special_tokens=True), ended))
    return samples


# -- the card ---------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: Iterable[list[str]], left: int = 1) -> str:
    """A Markdown table; the columns after the first `left` are numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def fenced(text: str) -> str:
    """`text` as a Markdown code block, whatever backticks it holds, control characters as visible symbols."""
    text = text.translate(CONTROL_SYMBOLS)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def architecture(model: Any, weights: int) -> str:
    """The table of sizes, from the loaded model; `weights` in bytes."""
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


def pass_tokens(corpus: Corpus, stage: Stage) -> dict[str, float]:
    """Tokens one pass of a stage sees, by source, held-out examples left out."""
    lengths = np.diff(corpus.offsets) * ~corpus.aside
    names, which = np.unique(np.array(corpus.sources), return_inverse=True)
    totals = np.bincount(which, weights=lengths, minlength=len(names))
    return {str(n): float(t) * stage.weights.get(str(n), 0) for n, t in zip(names, totals, strict=True)}


def recipe(model: Any, corpus: Corpus, training: dict[str, Any]) -> str:
    """How it was trained, from the constants of train_demo.py and the training.json it wrote."""
    stages, shares = [], [pass_tokens(corpus, stage) for stage in STAGES]
    for stage, share in zip(STAGES, shares, strict=True):
        seen, one = training["tokens_seen"].get(stage.name, 0), sum(share.values())
        learnt = "assistant turns, end mark included" if stage.assistant_only else "every token"
        stages.append(
            [stage.name, learnt, f"{stage.length:,}", f"{stage.share:.0%}", f"{one / 1e6:.1f} M", f"{stage.passes}",
             f"{seen / 1e6:.1f} M", f"{seen / one:.2f}"]
        )  # fmt: skip
    points = (0.0, 0.01, 0.02, 0.2, 0.4, 0.6, 0.8, 1.0)
    schedule = [[stage.name, *(f"{rate(stage, done):.2f}" for done in points)] for stage in STAGES]
    rules = []
    for optimiser, base in optimizers(model):
        group = optimiser.param_groups[0]
        number = sum(p.numel() for p in group["params"])
        known = {key: group[key] for key in ("betas", "momentum", "nesterov", "weight_decay") if key in group}
        settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in known.items())
        rules.append([type(optimiser).__name__, f"{number:,}", f"{base:g}", settings])
    mixture = [
        [f"`{source}`", *(cell for stage, share in zip(STAGES, shares, strict=True) for cell in (
            f"{stage.weights.get(source, 0):g}", f"{share[source] / sum(share.values()):.1%}"))]
        for source in shares[0]
    ]  # fmt: skip
    heads = [cell for stage in STAGES for cell in (f"{stage.name}: views a pass", f"{stage.name}: share of tokens")]
    return "\n\n".join(
        [
            f"Trained from nothing in {training['hours']} hours on the device `{training['device']}`, by wall clock: "
            "a stage ends when its time or its passes are over. `scripts/train_demo.py` of localspec is the whole "
            "recipe; the numbers below come from it and from its record of the run.",
            f"**Tokenizer**: byte-level BPE, {VOCABULARY:,} entries, single digits, trained on one training example "
            f"in three. `<|endoftext|>` begins every example. Chat template: `{TEMPLATE}`",
            "**Stages**",
            table(
                [
                    "stage",
                    "learns",
                    "tokens a row",
                    "of the time",
                    "one pass",
                    "passes at most",
                    "tokens seen",
                    "passes seen",
                ],
                stages,
                left=2,
            ),
            f"A step is {BATCH:,} tokens in forwards of {MICRO:,}; forwards in bfloat16 autocast over float32 "
            "weights; gradients clipped at norm 1. Examples are shuffled and run together, without a mask between "
            f"them. Seed {training['seed']} for weights and order.",
            "**Optimisers**",
            table(["optimiser", "parameters", "learning rate", "settings"], rules, left=4),
            "**Schedule**: the factor on the learning rates, by the part of the stage that is done",
            table(["stage", *(f"{done:.0%}" for done in points)], schedule),
            f"**Mixture**: {len(corpus.sources):,} examples, {len(corpus.ids) / 1e6:.1f} M tokens; of every source "
            f"{HELD_OUT:.0%} was set aside by a hash of the example and never trained on, tokenizer included.",
            table(["source", *heads], mixture),
        ]
    )


def losses_section(losses: list[Loss], dtype: str) -> str:
    """The table of held-out losses with what it means."""
    rows = [loss.cells() for loss in losses]
    for kind in ("text", "chat"):
        some = [loss for loss in losses if loss.kind == kind]
        there, used, tokens = (sum(getattr(loss, key) for loss in some) for key in ("there", "used", "tokens"))
        total = Loss("", kind, there, used, tokens, sum(loss.nats for loss in some)).cells()
        rows.append(["**all of this kind**", *total[1:]])
    return (
        "Mean over tokens, in nats a token; for texts over all tokens, for chats over what the assistant says, its end "
        f"mark included. The first {MEASURED} held-out examples of a source at most, each alone, cut at the context of "
        f"{CONTEXT:,} tokens; computed in {dtype}. Set aside by example, not by document: neighbours of a held-out "
        "example (the next part of the same book, another question on the same story) were trained on, so these "
        "numbers flatter. Sources with few examples say little.\n\n"
        + table(["source", "kind", "examples used", "tokens", "loss", "perplexity"], rows, left=2)
    )


def samples_section(samples: list[Sample], settings: dict[str, float], dtype: str) -> str:
    """The prompts with their replies, and how they were made."""
    listed = ", ".join(f"{key} {value}" for key, value in settings.items())
    parts = [
        "First reply to each of ten prompts fixed beforehand, unedited, through `transformers` alone "
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
- Facts are shallow and partly dated or wrong: question sets of about 2013, model-written answers of 2023, a country
  factbook of early 2026. It has read no encyclopedia and no news.
- No safety training of any kind. Questions on sex, self-harm, weapons, drugs and party politics were mostly dropped
  from the data by a word list, so it learned neither to answer nor to refuse them; some crude examples slipped through.
- English only. Other languages come out as noise.
- Context of {CONTEXT:,} tokens, prompt and reply together.
- Arithmetic only with small numbers, and not reliably; word problems teach it the form of an answer, hardly the skill.
- Code and shell commands look right more often than they are right. Those in the training data were never run: read
  before running.
- It was not trained to follow long or nested instructions, to use tools, or to resist instructions hidden in a text.
- It may speak as a person ("my dog", "I saw that film"): some of its conversations are between persons.
- It carries whatever slant its sources have: old children's books, crowd workers, a US government factbook."""


def attribution_section(data: Path, corpus: Corpus) -> str:
    """ATTRIBUTION.md of the data in full, below our headings; SystemExit where it misses a source."""
    text = (data / "ATTRIBUTION.md").read_text(encoding="utf-8")
    missing = sorted(source for source in set(corpus.sources) if f"`{source}`" not in text)
    if missing:
        raise SystemExit(f"ATTRIBUTION.md says nothing about {', '.join(missing)}.")
    lines = [f"##{line}" if line.startswith("#") else line for line in text.splitlines()]
    return "\n".join(lines[1:] if lines[0].startswith("###") else lines).strip()


def notices(data: Path) -> str:
    """Every different text below DATA/LICENSES once, under the names it has there."""
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
    """The model card: Hugging Face front matter, introduction, then each section under its heading."""
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
    """Checks, measures, writes; stops with one sentence before OUT is touched where a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the training data, with ATTRIBUTION.md and LICENSES")
    parser.add_argument(
        "--work", type=Path, required=True, help="where train_demo.py left model, training.json, tokens.npz"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the finished model goes")
    options = parser.parse_args()
    trained = options.work / "model"
    check_size(trained)
    for path in (options.work / "training.json", options.work / "tokens.npz"):
        if not path.is_file():
            raise SystemExit(f"{path} is not there; let train_demo.py end first.")
    training = json.loads((options.work / "training.json").read_text(encoding="utf-8"))
    tokenizer: Any = AutoTokenizer.from_pretrained(trained)
    model: Any = AutoModelForCausalLM.from_pretrained(trained)  # in evaluation mode
    corpus = Corpus.encode(options.data, tokenizer, options.work / "tokens.npz")
    sources = attribution_section(options.data, corpus)
    check_tokenizer(options.data, corpus, tokenizer)
    print(f"tokenizer: {CHECKED_CHATS} chats as in training, {CHECKED_TEXTS} texts given back", flush=True)

    losses, samples = held_out_losses(model, corpus), speak(model, tokenizer)
    dtype = str(model.dtype).removeprefix("torch.")
    sections = {
        "What it cannot do": LIMITS,
        "TransformerConfig": architecture(model, (trained / WEIGHTS).stat().st_size),
        "Recipe": recipe(model, corpus, training),
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
