import pytest
from each import each
from golden import matching

from localspec.bench.prompts import BUILT_IN, BenchPrompt, read, spread
from localspec.errors import UsageMistake


def test_json_lines(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"id": "a-1", "category": "code", "turns": ["Sort a list.", "Faster."], "reference": null}\n'
        "\n"
        '{"prompt": "Why?\u2028Or \\ud800not?", "id": 7}\n',
        "utf-8",
    )
    assert read(file) == [BenchPrompt("a-1", "code", "Sort a list."), BenchPrompt("7", "text", "Why?\u2028Or ?not?")]


def test_plain_text_has_a_prompt_a_line(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffWhy is the sky blue?\r\n\r\n  Count to {10}. \n".encode())
    assert read(file) == [BenchPrompt("1", "text", "Why is the sky blue?"), BenchPrompt("3", "text", "Count to {10}.")]


@each(
    "content, words",
    [
        (b"", ["has no prompts"]),
        (b" \n\n", ["has no prompts"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b"Why?\nWhat \0?\n", ["NUL bytes"]),
        (b'{"prompt": "a"}\nnot json', ["line 2", "JSON"]),
        (b'{"prompt": "a"}\n[1]', ["line 2", "no prompt"]),
        (b'{"text": "a"}', ["line 1", "no prompt"]),
        (b'{"turns": []}', ["line 1", "no prompt"]),
        (b'{"turns": "abc"}', ["line 1", "no prompt"]),
        (b'{"prompt": " "}', ["line 1", "no prompt"]),
        (b'{"prompt": ' + b"[" * 100_000, ["line 1", "JSON"]),
    ],
)
def test_a_mistake_names_the_file_and_the_line(tmp_path, content, words):
    file = tmp_path / "prompts"
    file.write_bytes(content)
    with pytest.raises(UsageMistake) as mistake:
        read(file)
    for word in ["prompts", *words]:
        assert word in str(mistake.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageMistake, match="nowhere"):
        read(tmp_path / "nowhere")
    with pytest.raises(UsageMistake, match=matching("cannot_be_read")):
        read(tmp_path)


def test_a_limit_takes_one_of_each_category_in_turn():
    asked = [
        BenchPrompt(f"{kind}{number}", kind, "?")
        for kind, count in (("a", 4), ("b", 1), ("c", 2))
        for number in range(count)
    ]
    names = [prompt.id for prompt in spread(asked, None)]
    assert names == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]
    assert [prompt.id for prompt in spread(asked, 4)] == names[:4]
    assert len(spread(asked, 100)) == 7


def test_the_built_in_prompts_are_of_many_kinds():
    assert len({prompt.id for prompt in BUILT_IN}) == len({prompt.text for prompt in BUILT_IN}) == len(BUILT_IN) == 10
    assert len({prompt.category for prompt in spread(BUILT_IN, 8)}) == 8
