import json
import lzma
import time
from random import Random

import pytest
from each import each
from golden import matching

from localspec.errors import UsageMistake
from localspec.training.examples import PIECE, Example, Question, read_examples, read_questions

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def test_plain_text_is_cut_between_paragraphs_and_nothing_is_lost(tmp_path):
    file = tmp_path / "book.txt"
    paragraphs = [f"{number} " + "word " * 150 for number in range(20)] + ["x" * (2 * PIECE + 100)]
    file.write_text("\n\n".join(paragraphs))
    pieces = [example.text for example in read_examples([file])]
    assert len(pieces) > 4 and max(map(len, pieces)) <= 2 * PIECE
    assert "".join(pieces).replace("\n", "") == "".join(paragraphs)
    assert pieces[0].startswith("0 word") and pieces[1][0].isdigit()


def plainly_cut(text: str) -> list[str]:
    """Return the result of `read` for plain text, in quadratic time."""
    found, waiting = [], []
    for paragraph in text.split("\n\n"):
        while len(paragraph) > PIECE:
            cut = max(paragraph.rfind("\n", 1, PIECE), paragraph.rfind(" ", 1, PIECE))
            cut = cut if cut > 0 else PIECE
            found.append("\n\n".join([*waiting, paragraph[:cut]]))
            waiting, paragraph = [], paragraph[cut:]
        if waiting and sum(map(len, waiting)) + len(paragraph) > PIECE:
            found.append("\n\n".join(waiting))
            waiting = []
        waiting.append(paragraph)
    return [*found, "\n\n".join(waiting)] if "".join(waiting).strip() else found


def test_paragraphs_of_every_length_are_cut_in_the_same_way(tmp_path):
    random, file = Random(0), tmp_path / "book.txt"
    for _ in range(30):
        words = (random.choice(["a", " ", "\n", "\n\n", "b" * random.randrange(3000)]) for _ in range(300))
        file.write_text(text := "".join(words) + "end")
        assert [example.text for example in read_examples([file])] == plainly_cut(text)


@pytest.mark.slow
@each("line, times", [("A sentence a line, as corpora have it.\n", 600_000), ("\n\n", 200_000)])
def test_long_text_takes_as_long_as_it_is(tmp_path, line, times):
    """The time was quadratic while the rest was copied, or all waiting text counted, at each step."""
    file = tmp_path / "corpus.txt"
    file.write_text(line * times + "end")
    began = time.process_time()
    assert read_examples([file])
    assert time.process_time() - began < 4


def test_a_text_may_begin_with_a_bracket(tmp_path):
    file = tmp_path / "notes.md"
    for text in ("[1] A footnote.", "[" * 100_000):
        file.write_text(text)
        assert "".join(example.text for example in read_examples([file])) == text
    (tmp_path / "list.txt").write_text("[1, 2]")
    assert read_examples([tmp_path / "list.txt"]) == [Example("[1, 2]")]


def test_json_lines_packed_or_not(tmp_path):
    lines = [{"source": "a", "text": "one\u2028two \ud800"}, {"messages": CHAT}]
    content = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    (tmp_path / "a.jsonl").write_text(content)
    with lzma.open(tmp_path / "a.jsonl.xz", "wt") as file:
        file.write(content)
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + content.encode())
    expected = [Example("one\u2028two ?"), Example(messages=tuple(CHAT))]
    for name in ("a.jsonl", "a.jsonl.xz", "a"):
        assert read_examples([tmp_path / name]) == expected
    assert len(read_examples([tmp_path / "a", tmp_path / "a.jsonl"])) == 4
    assert expected[0].digest != expected[1].digest == Example(messages=tuple(CHAT)).digest


@each(
    "name, content, words",
    [
        ("a.txt", b"", ["has no text"]),
        ("a.txt", b" \n\n \n", ["has no text"]),
        ("a.jsonl", b"\n", ["has no text"]),
        ("a.txt", b"\xff\xfe", ["UTF-8"]),
        ("a.txt", b"a\0 word", ["not text", "NUL"]),
        ("a.json", b'[\n{"text": "one"},\n{"text": "two"}]', ["list", "JSONL"]),
        ("a.json.xz", lzma.compress(b'[{"text": "one"}]'), ["list", "JSONL"]),
        ("a.txt.xz", b"no xz", ["xz"]),
        ("a.txt.xz", lzma.compress(b"word " * 99)[:40], ["xz"]),
        ("a.jsonl", b'{"text": "a"}\nno', ["line 2", "JSON"]),
        ("a.jsonl", b"[1]", ["line 1", "object"]),
        ("a.jsonl", b'{"prompt": "a"}', ["line 1", '"text"']),
        ("a.jsonl", b'{"text": " "}', ["line 1", '"text"']),
        ("a.jsonl", b'{"messages": []}', ["line 1", "messages"]),
        ("a.jsonl", b'{"messages": [{"role": "tool", "content": "a"}]}', ["line 1", "role"]),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "a"}]}', ["line 1", "assistant"]),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": [1]}]}', ["line 1", "content"]),
        ("a", b'{"text": ' + b"[" * 100_000, ["line 1", "JSON"]),
    ],
)
def test_a_mistake_names_the_file_and_the_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageMistake) as mistake:
        read_examples([tmp_path / name])
    for word in [name, *words]:
        assert word in str(mistake.value)


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(UsageMistake, match=matching("cannot_be_read")):
            read_examples([path])


def test_questions_of_every_form(tmp_path):
    file = tmp_path / "prompts.jsonl"
    longer = [{"role": "system", "content": "short"}, *CHAT, {"role": "user", "content": "bye"}]
    lines = [{"id": "a", "turns": ["x", "y"]}, {"prompt": "z"}, {"messages": [*longer, CHAT[1]]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    user = {"role": "user", "content": "x"}
    assert read_questions(file) == [
        Question("a", (user,), ("y",)),
        Question("2", ({"role": "user", "content": "z"},)),
        Question("3", tuple(longer)),
    ]
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\n two \n")
    assert [(q.id, q.messages[0]["content"]) for q in read_questions(plain)] == [("1", "one"), ("2", "two")]
    file.write_text('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}\n')
    with pytest.raises(UsageMistake, match=matching("n1_more_than_once")):
        read_questions(file)
    for bad in (
        '{"text": "a"}',
        '{"messages": [{"role": "assistant", "content": "a"}]}',
        '{"turns": []}',
        '{"turns": ["a", 1]}',
    ):
        file.write_text(bad)
        with pytest.raises(UsageMistake, match=matching("line_1_there_prompt")):
            read_questions(file)
