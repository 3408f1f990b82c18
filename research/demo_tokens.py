"""The demo model's tokenizer, and its training examples as token ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_data.passes import contents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY, CONTEXT = 4096, 1024
BEGIN, SYSTEM, USER, ASSISTANT, END = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], target: Path) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with VOCABULARY entries, or load it if the directory `target` has one."""
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
    bare.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, bos_token=BEGIN, eos_token=END, pad_token=BEGIN, model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(target)
    return tokenizer


@dataclass
class Corpus:
    """A sequence of encoded examples. `marks` is True for the tokens that always count in full in the training loss.

    These are all tokens of texts, and in chats the assistant's tokens with their end token.
    """

    ids: np.ndarray  # uint16 [tokens]
    marks: np.ndarray  # bool [tokens]
    offsets: np.ndarray  # int64 [examples + 1]
    sources: np.ndarray  # str [examples]

    @classmethod
    def encode(cls, examples: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast) -> "Corpus":
        bare, special = tokenizer.backend_tokenizer, tokenizer.convert_tokens_to_ids
        begin, end = special(BEGIN), special(END)
        role_ids = {role: special(f"<|{role}|>") for role in ("system", "user", "assistant")}
        ids, all_marks, offsets = [], [], [0]
        for start in range(0, len(examples), 2000):
            batch = examples[start : start + 2000]
            encoded = iter(bare.encode_batch([p for e in batch for p in contents(e)], add_special_tokens=False))
            for example in batch:
                row, marks = [begin], [False]
                if "text" in example:
                    row += next(encoded).ids
                    marks += [True] * (len(row) - 1)
                else:
                    for message in example["messages"]:
                        part = next(encoded).ids
                        row += [role_ids[message["role"]], *part, end]
                        marks += [False] + [message["role"] == "assistant"] * (len(part) + 1)
                ids.append(np.array(row, np.uint16))
                all_marks.append(np.array(marks, bool))
                offsets.append(offsets[-1] + len(row))
        sources = np.array([e["source"] for e in examples])
        return cls(np.concatenate(ids), np.concatenate(all_marks), np.array(offsets), sources)

    @classmethod
    def load(cls, file: Path) -> "Corpus":
        stored = np.load(file, allow_pickle=False)
        return cls(stored["ids"], stored["spoken"], stored["offsets"], stored["sources"])

    def save(self, file: Path) -> None:
        """Write the corpus under a temporary name, then rename it: a killed run leaves no incomplete file."""
        new = file.with_suffix(".new.npz")
        np.savez_compressed(new, ids=self.ids, spoken=self.marks, offsets=self.offsets, sources=self.sources)
        new.replace(file)

    def rows(self, length: int, skip: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield (ids, labels, marks), each [length], of all whole rows after the first `skip`. Labels are the next ids."""
        for start in range(skip * length, len(self.ids) - length, length):
            inputs, targets = slice(start, start + length), slice(start + 1, start + length + 1)
            yield self.ids[inputs].astype(np.int64), self.ids[targets].astype(np.int64), self.marks[targets]
