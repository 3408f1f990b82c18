"""Progress of a training: held-out loss by source, sample replies, and a draft model's agreement with its teacher."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from demo_tokens import CONTEXT, Corpus
from transformers import Phi3ForCausalLM, PreTrainedTokenizerFast

PROMPTS = (
    "Who are you?", "Tell me a short story about a fox and a lantern.", "What is 17 + 25?", "Tell me a joke.",
    "Sort these words: pear, apple, cherry", "Anna has 12 plums. She gives 5 to Tom. How many are left?",
    "What is the capital of Portugal?", "What does a cow eat?", "Write this in capital letters: good morning, Lena",
    "How do I list the models that are here?", "My name is Omar. What is my name?", "Explain quantum computing.",
)  # fmt: skip
SAID = 120  # tokens of a sample, at most


def log(file: Path, record: dict[str, Any]) -> None:
    """Append a record to a file, as one line of JSON."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record, ensure_ascii=False) + "\n")


def pieces(corpus: Corpus) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Return (source, ids [tokens], marks [tokens]) of each example, cut at the context length."""
    examples = []
    for i, source in enumerate(corpus.sources.tolist()):
        part = slice(corpus.offsets[i], min(corpus.offsets[i + 1], corpus.offsets[i] + CONTEXT))
        marks = torch.from_numpy(corpus.marks[part])
        if marks[1:].any():
            examples.append((source, torch.from_numpy(corpus.ids[part].astype(np.int64)), marks))
    return examples


@dataclass
class Loss:
    """A held-out loss of one source. `nats` is the sum of the losses of `tokens` predicted tokens."""

    source: str
    kind: str  # text: every token counts; chat: the assistant's tokens count, with the end mark
    examples: int = 0
    tokens: int = 0
    nats: float = 0.0

    @property
    def mean(self) -> float:
        return self.nats / self.tokens


@torch.no_grad()
def held_out_losses(model: Any, aside: Corpus) -> list[Loss]:
    """Return the held-out loss of each source, in the order of the sources' names."""
    losses: dict[str, Loss] = {}
    device = getattr(model, "device", "cpu")
    for source, ids, marks in pieces(aside):
        ids, counts = ids.to(device), marks[1:].to(device)
        logits = model(ids[None], use_cache=False).logits[0, :-1][counts].float()
        loss = losses.setdefault(source, Loss(source, "text" if counts.all() else "chat"))
        loss.nats += F.cross_entropy(logits, ids[1:][counts], reduction="sum").item()
        loss.tokens += len(logits)
        loss.examples += 1
    return [losses[source] for source in sorted(losses)]


@torch.no_grad()
def samples(model: Any, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Return greedy replies to PROMPTS. Replies that reached the limit of tokens end with an ellipsis in brackets."""
    replies, device = {}, next(model.parameters()).device
    end = tokenizer.eos_token_id
    for prompt in PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        inputs = inputs.to(device)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=SAID, eos_token_id=end, pad_token_id=0)
        reply = output[0, inputs["input_ids"].shape[1] :].tolist()
        replies[prompt] = tokenizer.decode(reply, skip_special_tokens=True) + ("" if reply[-1] == end else " [...]")
    return replies


@torch.no_grad()
def agreement(model: Phi3ForCausalLM, teacher: Phi3ForCausalLM, aside: Corpus) -> dict[str, Any]:
    """Return how well a draft model agrees with its teacher, on the assistant's tokens in held-out chats.

    `agreement` is the share of tokens for which both have the same likeliest token. `overlap` is the mean overlap of
    both distributions, which is the best possible acceptance rate at temperature 1.
    """
    same, overlap, count = 0.0, 0.0, 0
    device = next(model.parameters()).device
    for _, ids, marks in pieces(aside):
        if marks[1:].all():
            continue  # a text
        scored = marks[1:].to(device)
        model_shares, teacher_shares = (
            m(ids[None].to(device), use_cache=False).logits[0, :-1][scored].float().softmax(-1)
            for m in (model, teacher)
        )
        same += float((model_shares.argmax(-1) == teacher_shares.argmax(-1)).sum())
        overlap += float(torch.minimum(model_shares, teacher_shares).sum())
        count += len(model_shares)
    return {"held_out_tokens": count, "agreement": round(same / count, 4), "overlap": round(overlap / count, 4)}
