"""Trains the demo model from nothing: tokenizer, language stage, chat stage, Hugging Face export.

    python scripts/train_demo.py --data DIR --work DIR --hours 2
    python scripts/train_demo.py --data DIR --work DIR --hours 0.6 --towards localspec/demo

The second line trains the demo's draft model: a fifth of the size, towards what the finished demo model would say.
The schedule runs by wall clock, so that both stages end properly whatever the machine manages to see; a run that is
stopped goes on where it was. `scripts/demo_card.py` then measures the result and writes the card.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import hashlib
import json
import lzma
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

SEED = 20261120
VOCABULARY, CONTEXT = 8192, 1024
BEGIN, SYSTEM, USER, ASSISTANT, END = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
HELD_OUT = 0.01  # of every source, never trained on
BATCH, MICRO = 8192, 4096  # tokens an optimiser step, tokens a forward
MATRIX_RATE, EMBEDDING_RATE = 4e-3, 3e-3


@dataclass(frozen=True)
class Stage:
    """One part of the training: the length of its rows, its share of the time, how often each source is seen."""

    name: str
    length: int  # tokens a row
    share: float  # of the wall-clock budget
    passes: int  # it ends here even if time is left
    rates: tuple[float, float]  # learning-rate factor at the peak and at the end
    hold: float  # how much of the stage is at the peak
    assistant_only: bool
    weights: dict[str, float]  # source -> how often an example is seen in one pass


# The suggested mixture of the data's README.
STAGES = (
    Stage("language", 512, 0.68, 2, (1.0, 0.2), 0.4, False, {
        "self-dialogue": 1, "tldr": 0.5, "fairytaleqa": 1, "star": 1, "oasst-model-outputs": 1, "gsm8k-train": 1,
        "wordnet-definitions": 0.5, "openstax-qa": 1, "gpteacher-codegen": 1, "nl2bash": 1,
        "generated-arithmetic": 0.5, "creak": 1, "synthetic-persona-chat": 1, "stories": 1, "gpteacher-roleplay": 1,
        "casino": 0.5, "openbookqa": 1, "taskmaster-4": 1, "generated-copying": 0.5, "botframework-chitchat": 1,
        "strategyqa": 1, "factbook-countries": 1, "30-seconds-snippets": 1, "webquestions": 1, "corpora-lists": 1,
        "identity": 1, "countries": 1, "open-datasets-conversations": 1, "rasbt-instruct": 1, "jokes": 1,
        "chatterbot": 1, "wordnet-glosses": 0.5, "standardebooks": 2, "fairytaleqa-stories": 2,
        "openstax-biology": 1.5, "openstax-us-history": 1.5, "openstax-sociology": 1.5, "openstax-anatomy": 1.5,
        "openstax-economics": 1.5, "openstax-biology-concepts": 1.5, "openstax-psychology": 1.5, "factbook": 1,
        "pratham-books": 3, "african-storybook": 3,
    }),
    Stage("chat", 1024, 0.32, 3, (0.2, 0.0), 0.0, True, {
        "self-dialogue": 0.25, "tldr": 0.5, "fairytaleqa": 0.7, "star": 0.5, "oasst-model-outputs": 2,
        "gsm8k-train": 0.4, "wordnet-definitions": 0.6, "openstax-qa": 0.4, "gpteacher-codegen": 0.7, "nl2bash": 0.5,
        "generated-arithmetic": 1, "creak": 0.7, "synthetic-persona-chat": 2, "stories": 2, "gpteacher-roleplay": 1,
        "openbookqa": 0.7, "taskmaster-4": 0.25, "generated-copying": 2, "botframework-chitchat": 3, "strategyqa": 1,
        "factbook-countries": 1, "30-seconds-snippets": 1, "webquestions": 1, "corpora-lists": 1, "identity": 10,
        "countries": 1, "open-datasets-conversations": 3, "rasbt-instruct": 5, "jokes": 2, "chatterbot": 4,
    }),
)  # fmt: skip
# A draft model answers and does nothing else, so almost all of its time goes to that. In 90 seconds, steps of 2,048
# tokens brought it to agree with its teacher on 29 % of tokens, those of 4,096 on 24 %; in 80 seconds at 2.5 times the
# rate it was 29 % too.
DRAFT_BATCH = 2048
DRAFT_STAGES = (
    replace(STAGES[0], share=0.1, rates=(2.0, 2.0)),
    replace(STAGES[1], share=0.9, rates=(2.0, 0.0), hold=0.4),
)


# -- data -------------------------------------------------------------------------------------------------------------


def examples(data: Path) -> Iterator[dict[str, Any]]:
    """Every example of both files, in their order; texts as {"source", "text"}, chats as {"source", "messages"}."""
    for name in ("chat", "text"):
        with lzma.open(data / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def held_out(example: dict[str, Any]) -> bool:
    """The same hundredth of every source on every machine."""
    digest = hashlib.sha1(json.dumps(example, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32


def train_tokenizer(data: Path, target: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 8,192 entries, single digits, from one training example in three."""
    if (target / "tokenizer.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(target)
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, SYSTEM, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    some = (e for i, e in enumerate(examples(data)) if i % 3 == 0 and not held_out(e))
    bare.train_from_iterator(
        (e["text"] if "text" in e else "\n".join(m["content"] for m in e["messages"]) for e in some), trainer
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token=BEGIN, eos_token=END, pad_token=BEGIN, model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(target)
    return tokenizer


@dataclass
class Corpus:
    """All examples as one run of token ids; `learn` marks what an assistant says, its end mark included."""

    ids: np.ndarray  # uint16 [tokens]
    learn: np.ndarray  # bool [tokens]
    offsets: np.ndarray  # int64 [examples + 1]
    sources: list[str]  # one name an example
    aside: np.ndarray  # bool [examples]: held out

    @classmethod
    def encode(cls, data: Path, tokenizer: PreTrainedTokenizerFast, cache: Path) -> "Corpus":
        if cache.exists():
            stored = np.load(cache, allow_pickle=False)
            return cls(stored["ids"], stored["learn"], stored["offsets"], stored["sources"].tolist(), stored["aside"])
        bare, special = tokenizer.backend_tokenizer, tokenizer.convert_tokens_to_ids
        ids, learn, offsets, sources, aside, batch = [], [], [0], [], [], []

        def flush() -> None:
            parts = [[e["text"]] if "text" in e else [m["content"] for m in e["messages"]] for e in batch]
            encoded = iter(bare.encode_batch([p for ps in parts for p in ps], add_special_tokens=False))
            for e, ps in zip(batch, parts, strict=True):
                row, marks = [special(BEGIN)], [False]
                for i in range(len(ps)):
                    part = next(encoded).ids
                    if "text" in e:
                        row += part
                        marks += [False] * len(part)
                    else:
                        role = e["messages"][i]["role"]
                        row += [special(f"<|{role}|>"), *part, special(END)]
                        marks += [False] + [role == "assistant"] * (len(part) + 1)
                ids.append(np.array(row, np.uint16))
                learn.append(np.array(marks, bool))
                offsets.append(offsets[-1] + len(row))
                sources.append(e["source"])
                aside.append(held_out(e))
            batch.clear()

        for e in examples(data):
            batch.append(e)
            if len(batch) == 2000:
                flush()
        flush()
        corpus = cls(np.concatenate(ids), np.concatenate(learn), np.array(offsets), sources, np.array(aside))
        np.savez(
            cache,
            ids=corpus.ids,
            learn=corpus.learn,
            offsets=corpus.offsets,
            sources=np.array(sources),
            aside=corpus.aside,
        )
        return corpus

    def order(self, stage: Stage, number: int) -> np.ndarray:
        """Which examples pass `number` of a stage sees, shuffled; a weight of 1.5 is one view, then two, then one."""
        random = np.random.default_rng([SEED, int(stage.assistant_only), number])
        weight = np.array([stage.weights.get(s, 0.0) for s in self.sources]) * ~self.aside
        whole = np.floor(weight).astype(int)
        share = np.random.default_rng(SEED).random(len(weight)) + number * (weight - whole)
        seen = whole + (np.floor(share + weight - whole) - np.floor(share)).astype(int)
        chosen = np.repeat(np.arange(len(weight)), seen)
        random.shuffle(chosen)
        return chosen

    def rows(self, stage: Stage, skip: int) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        """(ids [length], labels [length] with -100 where nothing is learnt, passes seen so far), after `skip` rows."""
        length, count = stage.length, 0
        ids, learn = np.empty(0, np.int64), np.empty(0, bool)
        for number in range(stage.passes):
            order = self.order(stage, number)
            for block in range(0, len(order), 500):
                pieces = [slice(self.offsets[i], self.offsets[i + 1]) for i in order[block : block + 500]]
                ids = np.concatenate([ids, *(self.ids[p] for p in pieces)])
                learn = np.concatenate([learn, *(self.learn[p] | (not stage.assistant_only) for p in pieces)])
                while len(ids) > length:
                    count += 1
                    if count > skip:
                        labels = np.where(learn[1 : length + 1], ids[1 : length + 1], -100)
                        yield ids[:length], labels, number + (block + 250) / len(order)
                    ids, learn = ids[length:], learn[length:]


# -- training ---------------------------------------------------------------------------------------------------------


def demo_config() -> Phi3Config:
    """7.6 million parameters: eight thin layers, so that self-speculation has a middle to skip."""
    return Phi3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=640, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, original_max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=4, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip


def draft_config() -> Phi3Config:
    """1.44 million parameters, three quarters of them the embedding; the demo's vocabulary and context."""
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Phi3Config(**demo_config().to_diff_dict() | shape | {"num_key_value_heads": 1})


def draft_of(teacher: Phi3ForCausalLM) -> Phi3ForCausalLM:
    """A new draft model; its embedding begins as the leading principal components of the teacher's."""
    model = Phi3ForCausalLM(draft_config())
    table = teacher.model.embed_tokens.weight.detach().float()
    width = model.config.hidden_size
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(table @ torch.linalg.svd(table, full_matrices=False).Vh[:width].T)
    return model


@dataclass
class Progress:
    """What a stopped run needs to go on as if it had never stopped."""

    stage: int = 0
    rows: int = 0  # of this stage
    seconds: float = 0.0  # of this stage, over all sessions
    tokens: dict[str, int] = field(default_factory=dict)  # seen, by stage
    all_seconds: float = 0.0


def optimizers(model: Phi3ForCausalLM) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices, AdamW for embeddings and norms: twice the progress a token of AdamW alone at this size."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        (torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"), MATRIX_RATE),
        (torch.optim.AdamW(rest, lr=EMBEDDING_RATE, betas=(0.9, 0.95), weight_decay=0.0), EMBEDDING_RATE),
    ]


def rate(stage: Stage, done: float) -> float:
    """The factor on the learning rates: a short warm-up, half the stage at the peak, then down in a straight line."""
    peak, end = stage.rates
    if done < 0.02 and not stage.assistant_only:
        return peak * done / 0.02
    return peak if done < stage.hold else peak + (end - peak) * (done - stage.hold) / (1 - stage.hold)


def logits_of(model: Phi3ForCausalLM, body: Any, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Logits [wanted, vocabulary] of the positions of [rows, length] that are wanted."""
    logits: torch.Tensor = model.lm_head(body(ids, use_cache=False).last_hidden_state[wanted])
    return logits.float()


def loss_of(
    model: Phi3ForCausalLM, body: Any, ids: torch.Tensor, labels: torch.Tensor, teacher: Phi3ForCausalLM | None
) -> torch.Tensor:
    """Cross-entropy, or divergence from the teacher, summed over the labelled positions of [rows, length]."""
    wanted = labels != -100
    logits = logits_of(model, body, ids, wanted)
    if teacher is None:
        return F.cross_entropy(logits, labels[wanted], reduction="sum")
    with torch.no_grad():
        towards = logits_of(teacher, teacher.model, ids, wanted).log_softmax(-1)
    return F.kl_div(logits.log_softmax(-1), towards, reduction="sum", log_target=True)


@torch.no_grad()
def agreement(model: Phi3ForCausalLM, teacher: Phi3ForCausalLM, corpus: Corpus, most: int = 200) -> dict[str, Any]:
    """On what assistants say in `most` held-out chats: how often both models hold the same token likeliest,
    and the mean overlap of their distributions: how often a drafted token can at best be accepted at temperature 1.
    """
    same, overlap, count = 0.0, 0.0, 0
    chats = [i for i in np.flatnonzero(corpus.aside) if corpus.learn[corpus.offsets[i] : corpus.offsets[i + 1]].any()]
    device = next(model.parameters()).device
    for i in np.random.default_rng(SEED).permutation(chats)[:most]:
        piece = slice(corpus.offsets[i], min(corpus.offsets[i + 1], corpus.offsets[i] + CONTEXT))
        ids = torch.from_numpy(corpus.ids[piece].astype(np.int64)).to(device)[None]
        wanted = torch.from_numpy(corpus.learn[piece]).to(device).roll(-1)[None]  # where the next token is learnt
        wanted[0, -1] = False
        ours, theirs = (logits_of(m, m.model, ids, wanted).softmax(-1) for m in (model, teacher))
        same += float((ours.argmax(-1) == theirs.argmax(-1)).sum())
        overlap += float(torch.minimum(ours, theirs).sum())
        count += len(ours)
    return {"held_out_tokens": count, "agreement": round(same / count, 4), "overlap": round(overlap / count, 4)}


def train(
    model: Phi3ForCausalLM, corpus: Corpus, options: argparse.Namespace, teacher: Phi3ForCausalLM | None = None
) -> Progress:
    """Both stages, from the last checkpoint on."""
    device = next(model.parameters()).device
    body = torch.compile(model.model) if options.compile else model.model
    optimisers, progress, checkpoint = optimizers(model), Progress(), options.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        for (optimiser, _), saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        progress = Progress(**state["progress"])
        print(f"resuming: {progress}", flush=True)
    stopped = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.append(True))

    def save() -> None:
        state = {
            "model": model.state_dict(),
            "optimisers": [o.state_dict() for o, _ in optimisers],
            "progress": vars(progress),
        }
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)

    began = saved_at = logged_at = time.monotonic()
    for number, stage in enumerate(DRAFT_STAGES if teacher else STAGES):
        if number < progress.stage:
            continue
        rows_a_step = (DRAFT_BATCH if teacher else BATCH) // stage.length
        budget = options.hours * 3600 * stage.share
        source, done, running = corpus.rows(stage, progress.rows), 0.0, None
        while True:
            batch = [row for _, row in zip(range(rows_a_step), source, strict=False)]
            done = max(progress.seconds / budget, batch[-1][2] / stage.passes if batch else 1.0)
            if len(batch) < rows_a_step or done >= 1:
                break
            for optimiser, base in optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = base * rate(stage, done)
            ids = torch.from_numpy(np.stack([r[0] for r in batch])).to(device)
            labels = torch.from_numpy(np.stack([r[1] for r in batch])).to(device)
            learnt, total = max(1, int((labels != -100).sum())), 0.0
            for part in range(0, len(batch), MICRO // stage.length):
                piece = slice(part, part + MICRO // stage.length)
                with torch.autocast(device.type, torch.bfloat16, enabled=not options.float32):
                    loss = loss_of(model, body, ids[piece], labels[piece], teacher)
                (loss / learnt).backward()
                total += loss.item() / learnt
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimiser, _ in optimisers:
                optimiser.step()
                optimiser.zero_grad(set_to_none=False)
            running = total if running is None else 0.95 * running + 0.05 * total
            progress.rows += len(batch)
            progress.tokens[stage.name] = progress.tokens.get(stage.name, 0) + ids.numel()
            now = time.monotonic()
            progress.seconds += now - began
            progress.all_seconds += now - began
            began = now
            if now - logged_at > 30:
                seen = progress.tokens[stage.name]
                print(
                    f"{stage.name} {done:.1%}  {seen / 1e6:.2f} M tokens  loss {running:.3f}  "
                    f"{seen / progress.seconds:.0f} tokens/s",
                    flush=True,
                )
                logged_at = now
            if now - saved_at > 300 or stopped:
                save()
                saved_at = now
            if stopped:
                raise SystemExit("stopped; the same command goes on from here")
        progress.stage, progress.rows, progress.seconds = number + 1, 0, 0.0
        save()
    return progress


def export(model: Phi3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """The Hugging Face layout, bf16 safetensors."""
    model.generation_config = GenerationConfig(
        bos_token_id=0,
        eos_token_id=tokenizer.convert_tokens_to_ids([END, BEGIN]),
        pad_token_id=0,
        do_sample=True,
        temperature=0.5,
        top_p=0.9,
        top_k=0,
    )
    model.to("cpu", torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    # A class name that every transformers knows, and nothing about where the tokenizer was loaded from.
    file = out / "tokenizer_config.json"
    told = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(
        json.dumps({k: v for k, v in told.items() if k not in ("backend", "is_local", "local_files_only")}, indent=1)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with chat.jsonl.xz and text.jsonl.xz")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and encoded text; outside git")
    parser.add_argument("--out", type=Path, default=None, help="where the finished model goes (default: WORK/model)")
    parser.add_argument("--hours", type=float, default=2.0, help="wall-clock budget of both stages together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--towards", type=Path, help="train a draft model for the one in this folder; WORK is its own")
    parser.add_argument("--float32", action="store_true", help="no bfloat16: for processors without such arithmetic")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (needs a C++ compiler)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    teacher = None
    if options.towards:
        teacher = Phi3ForCausalLM.from_pretrained(options.towards, dtype=torch.float32, local_files_only=True)
        teacher = teacher.to(options.device).eval()
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.towards, local_files_only=True)
    else:
        tokenizer = train_tokenizer(options.data, options.work / "tokenizer")
    corpus = Corpus.encode(options.data, tokenizer, options.work / "tokens.npz")
    print(
        f"{len(corpus.ids) / 1e6:.1f} M tokens in {len(corpus.sources)} examples, {corpus.aside.sum()} held out",
        flush=True,
    )
    torch.manual_seed(SEED)
    model = draft_of(teacher) if teacher else Phi3ForCausalLM(demo_config())
    model = model.to(options.device).train()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    progress = train(model, corpus, options, teacher)
    summary = {
        "tokens_seen": progress.tokens,
        "hours": round(progress.all_seconds / 3600, 2),
        "device": options.device,
        "seed": SEED,
    }
    if teacher:
        summary |= agreement(model.eval(), teacher, corpus)
    export(model, tokenizer, options.out or options.work / "model")
    (options.work / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
