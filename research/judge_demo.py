"""Judges a demo model by 140 prompts, answered greedily: 100 held-out tasks, 40 free ones.

    python research/judge_demo.py --model localspec/demo --out replies.jsonl

The tasks are drawn by the generators of demo_data, held-out ones only, and right if the reply is the expected one, but for
case and a last period; of sums the last figure has to be right; stories are not held against an expected text. The free
prompts are JSON lines in demo_data/prompts.jsonl:
    {"ask": "Who are you?", "required": ["localspec"], "forbidden": ["Llama"]}
A reply is right if every required string is in it, where one may be a list of alternatives, and no forbidden one is;
case and runs of spaces do not count. Some require nothing.

The rubric is mechanical, so that it is the same before and after: a reply is *coherent* if it has no loop, stops by
itself, and passes every check of CHECKS that applies to it. Whether it is true, and whether it makes sense beyond that,
a reader has to say: --out keeps every reply with its marks.
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from demo_data.drawing import generate, held_out
from demo_data.mixture import GENERATORS
from demo_data.shared import repeats
from transformers import AutoModelForCausalLM, AutoTokenizer

TASKS = {
    "made-stories": 20, "made-reading": 15, "made-sums": 15, "made-rewriting": 15, "made-calendar": 8,
    "made-things": 8, "made-smalltalk": 7, "made-limits": 5, "made-conversations": 7,
}  # fmt: skip
FIGURES = ("made-sums",)  # the last figure counts, whatever the words
STORIES = ("made-stories", "made-reading")
SEED = 1  # another than that of the held-out losses
MOST = 200  # tokens of a reply
FREE = Path(__file__).parent / "demo_data" / "prompts.jsonl"
PRONOUNS = {
    "he",
    "she",
    "it",
    "they",
    "him",
    "her",
    "them",
    "his",
    "its",
    "their",
    "this",
    "that",
    "these",
    "those",
    "there",
    "then",
    "so",
    "both",
    "i",
    "you",
    "we",
}


@dataclass
class Question:
    """One prompt; `expected` is a whole reply, `required` and `forbidden` are parts of one."""

    group: str
    messages: list[dict[str, str]]
    expected: str | None = None
    required: list[str | list[str]] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)


def questions(file: Path, group: str) -> list[Question]:
    """Return the questions of a file of JSON lines; SystemExit names the line with a wrong format."""
    found = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        told = json.loads(line)
        required = told.get("required", [])
        if set(told) - {"ask", "required", "forbidden"} or not told.get("ask"):
            raise SystemExit(f"{file}, line {number}: it needs ask, and may have required and forbidden: {line}")
        asked = [{"role": "user", "content": told["ask"]}]
        found.append(Question(group, asked, None, required, told.get("forbidden", [])))
    return found


def tasks() -> list[Question]:
    """Held-out chats of the generators, the last answer left out."""
    found = []
    for source, number in TASKS.items():
        drawn = (e for e in generate(source, GENERATORS[source], SEED, 200 * number) if "messages" in e and held_out(e))
        for _, e in zip(range(number), drawn, strict=False):
            expected = None if source == "made-stories" and len(e["messages"]) == 2 else e["messages"][-1]["content"]
            found.append(Question(source, e["messages"][:-1], expected))
    return found


# -- the rubric -------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return the text without the parts that do not count."""
    return re.sub(r"\s+", " ", text.lower()).strip()


def right(question: Question, reply: str) -> bool | None:
    """None where nothing is expected."""
    text = plain(reply)
    if question.required:
        wanted = ([w] if isinstance(w, str) else w for w in question.required)
        return all(any(plain(o) in text for o in options) for options in wanted) and not any(
            plain(f) in text for f in question.forbidden
        )
    if question.expected is None:
        return None
    if question.group in FIGURES and "=" in question.expected:
        return re.findall(r"\d+", text)[-1:] == re.findall(r"\d+", question.expected)[-1:]
    return text.rstrip(".") == plain(question.expected).rstrip(".")


def sentences(text: str) -> list[str]:
    return [s for s in re.split(r"(?<=[.!?])[\"')]*\s+", text.strip()) if s]


def loops(text: str) -> bool:
    """Return a sentence or a phrase again and again, or the same characters five times in a row."""
    return repeats(text) or bool(re.search(r"(.{2,40}?)\1{4,}", text, re.DOTALL))


def ends_whole(_: Question, reply: str) -> bool:
    """Prose ends with a full sentence; a list, a word or a figure ends as it likes."""
    return len(sentences(reply)) < 2 or "\n" in reply or bool(re.search(r"[.!?:`][\"')`]*$", reply))


def starts_whole(question: Question, reply: str) -> bool:
    """Prose begins with a large letter, unless the prompt orders something about given words."""
    return len(sentences(reply)) < 2 or not reply[0].islower() or question.group == "made-rewriting"


def says_something(_: Question, reply: str) -> bool:
    return bool(re.search(r"\w", reply))


def is_clean(_: Question, reply: str) -> bool:
    """No role marks, no broken characters, no word twice in a row or tied to itself, no item twice, quotes that close."""
    items = re.findall(r"^(?:\d+\.|-) (.+)$", reply.lower(), re.MULTILINE)
    tied = re.search(r"\b(\w{3,}) (?:(?:is|or|of) (?:an? |the )?\1\b|and \1 and \1\b)", reply.lower())
    doubled = re.search(r"\b(?!that|had|tap|ha|very|the\b\")(\w{2,}) \1\b", reply.lower())
    return not (
        re.search("<\\||\ufffd", reply) or doubled or tied or len(items) > len(set(items)) or (reply.count('"') % 2)
    )


def content_words(text: str) -> set[str]:
    return {w[:5] for w in re.findall(r"[a-z]{4,}", text.lower())}


def keeps_its_subject(question: Question, reply: str) -> bool:
    """Of a story of three sentences or more, three in four take up a name, a word or a pronoun of what stands before."""
    told = sentences(reply)
    if len(told) < 3 or not (question.group in STORIES or " story" in question.messages[-1]["content"]):
        return True
    before = content_words(question.messages[-1]["content"])
    names = set(re.findall(r"[A-Z]\w+", told[0]))
    kept = 0
    for i, sentence in enumerate(told):
        words = re.findall(r"\w+", sentence)
        tied = content_words(sentence) & before or names & set(words) or PRONOUNS & {w.lower() for w in words}
        kept += bool(tied) or i == 0
        before |= content_words(sentence)
    return kept >= 0.75 * len(told)


def takes_up_the_prompt(question: Question, reply: str) -> bool:
    """Return a story that is asked for has three sentences or more, and the name or kind that it is asked for by."""
    asked = question.messages[-1]["content"]
    if question.group == "free" and " story" in asked and len(sentences(reply)) < 3:
        return False
    about = re.search(r"story about (.+?)[.?]?$", asked)
    if question.group not in ("made-stories", "free") or not about:
        return True
    wanted = {w for w in re.findall(r"\w+", about[1].lower()) if len(w) > 2} - {"and", "the", "called", "who"}
    return any(w[:4] in plain(reply) for w in wanted)


Check = Callable[[Question, str], bool]
CHECKS: tuple[Check, ...] = (
    says_something, starts_whole, ends_whole, is_clean, keeps_its_subject, takes_up_the_prompt
)  # fmt: skip


@dataclass
class Verdict:
    """One reply with its marks; `failed` names the checks it did not pass."""

    group: str
    prompt: str
    reply: str
    right: bool | None
    stops: bool
    loops: bool
    failed: list[str]

    @property
    def coherent(self) -> bool:
        return self.stops and not self.loops and not self.failed


def judge(question: Question, reply: str, stops: bool) -> Verdict:
    failed = [check.__name__ for check in CHECKS if not check(question, reply)]
    said = question.messages[-1]["content"]
    return Verdict(question.group, said, reply, right(question, reply), stops, loops(reply), failed)


# -- all together -----------------------------------------------------------------------------------------------------


def answer(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """Return the greedy reply, and whether it ended by itself."""
    given = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    both = model.generate(**given, do_sample=False, max_new_tokens=MOST)
    reply, ends = both[0, given["input_ids"].shape[1] :].tolist(), model.generation_config.eos_token_id
    stops = reply[-1] in (ends if isinstance(ends, list) else [ends])
    return tokenizer.decode(reply, skip_special_tokens=True).strip(), stops


def share(verdicts: list[Verdict], of: Callable[[Verdict], bool | None]) -> str:
    """`12 of 40 (30.0 %)`, of those to which it applies."""
    marks = [mark for v in verdicts if (mark := of(v)) is not None]
    return f"{sum(marks)} of {len(marks)} ({100 * sum(marks) / len(marks):.1f} %)" if marks else "-"


def summary(verdicts: list[Verdict]) -> str:
    """Return a Markdown table, one line a group."""
    lines = ["| | right | coherent | loops | stops by itself |", "| --- | ---: | ---: | ---: | ---: |"]
    groups = dict.fromkeys(v.group for v in verdicts)
    for name in (*groups, "all"):
        some = [v for v in verdicts if name in (v.group, "all")]
        marks = (
            share(some, of) for of in (lambda v: v.right, lambda v: v.coherent, lambda v: v.loops, lambda v: v.stops)
        )
        lines.append(f"| {name} | {' | '.join(marks)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="in the Hugging Face layout")
    parser.add_argument("--out", type=Path, help="every reply with its marks, as JSON lines")
    asked = parser.parse_args()
    tokenizer: Any = AutoTokenizer.from_pretrained(asked.model, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32, local_files_only=True)
    every = [*tasks(), *questions(FREE, "free")]
    verdicts = [judge(q, *answer(model, tokenizer, q.messages)) for q in every]
    if asked.out:
        lines = (json.dumps(asdict(v) | {"coherent": v.coherent}, ensure_ascii=False) for v in verdicts)
        asked.out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(summary(verdicts))


if __name__ == "__main__":
    main()
