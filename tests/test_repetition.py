"""When a reply repeats itself, and texts that only look like it."""

import random
import string
import time

import pytest
from each import each

from localspec.repetition import LEAST, LOOP, PATIENCE, REPEATS, TAIL, goes_round, is_loop

REFRAIN = "And no birds sing, and no birds sing, around the withered lake.\n"


def words(chance: random.Random, count: int) -> str:
    return " ".join("".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(count))


@each("seed", range(20))
def test_a_phrase_again_and_again_is_found_wherever_it_begins_and_ends(seed):
    chance = random.Random(seed)
    phrase = words(chance, chance.randint(1, 60)) + chance.choice([". ", "\n", "\n\n", ", "])
    cut = chance.randrange(len(phrase))
    repeats = max(REPEATS, -(-LEAST // len(phrase))) + 1
    text = words(chance, chance.randint(0, 2000)) + "\n" + phrase * repeats + phrase[:cut]
    assert goes_round(text) and not goes_round(text + words(chance, 8))


@each("seed", range(5))
def test_what_was_asked_for_a_few_times_is_no_circle(seed):
    chance = random.Random(seed)
    phrase = words(chance, chance.randint(5, 60)) + ".\n\n"
    text = words(chance, 30) + "\n" + phrase * (REPEATS - 2)
    assert not any(goes_round(text[:end]) for end in range(0, len(text), 7))


@each("seed", range(5))
def test_a_refrain_between_verses_is_no_loop(seed):
    chance = random.Random(seed)
    verses = "".join(words(chance, 24) + "\n" + REFRAIN * chance.randint(1, 3) for _ in range(30))
    assert not any(goes_round(verses[:end]) for end in range(0, len(verses), 7))


@each(
    "text",
    [
        "".join(f"{n}. Take {n} of them, and put them away.\n" for n in range(200)),
        "".join(f"| day {n} | 0 | 0 | 0 |\n" for n in range(200)),
        "| name | of | it |\n" + "| 0 | 0 | 0 |\n" * 200,
        "| name | of | it |\n" + "| not known yet | yes |\n" * 12,
        "```python\ntable = [\n" + "    0, 0, 0, 0, 0, 0, 0, 0,\n" * 90,
        "```html\n" + '  <td class="cell">0</td>\n' * 15,
        "```python\n" + "".join(f"assert run({n}) == {n}, 'it ran'\n" for n in range(200)),
        "-" * 3000,
        "Title\n" + "=" * 300,
        "".join(f"6 times {n} is {6 * n}. " for n in range(300)),
        "".join(f"- [ ] {n} things to do\n" for n in range(200)),
        "ha ha ha ha ha, he said, and very, very, very slowly",
        "",
        "a",
    ],
)
def test_lists_tables_code_and_rules_are_no_loops(text):
    assert not any(goes_round(text[:end]) for end in range(0, len(text), 29)) and not goes_round(text)


@each(
    "text",
    [
        "".join(f"{n}. The lighthouse is tall and very old.\n" for n in range(12)),
        "```python\n" + "    print('this is the same line')\n" * 40,
        "It is so very " + "very " * 60,
        "是的，我明白了。" * 40,
    ],
)
def test_what_no_one_means_is_found(text):
    assert goes_round(text)


LIST = "".join(f"{n}. The lighthouse is tall and very old.\n" for n in range(1, 60))
CREW = "I've got a crew of brave and cunning creatures. "


@each(
    "text, prompt",
    [
        ("Aye. " + CREW * 30, "Who are you?"),
        (LIST, "List what you know of lighthouses."),
        ("Of the sea. " + "The ocean's a place where dreams are made,\nAbe a sea of dreams,\n" * 20, "Write a poem."),
        ("是的，我明白了。" * 160, "你好"),
        ("It is so very " + "very " * 300, "How is it?"),
        ("```python\n" + "    print('this is the same line')\n" * 200, "Print it."),
        ("ha " * 2000, "Write 'ha' 50 times."),
        ("!" * 6000, "Hello"),
        ("| 0 | 0 | 0 |\n" * 500, "Make a table."),
    ],
)
def test_a_loop_is_stopped_in_the_end_and_not_before_it_is_one(text, prompt):
    cut = next((end for end in range(0, len(text), 13) if is_loop(text[:end], prompt)), None)
    assert cut is not None and cut >= LOOP
    assert all(is_loop(text[:end], prompt) for end in range(cut, len(text), 113)), "a loop stays one"


@each(
    "text, prompt",
    [
        ("ha " * 50, "Write 'ha' 50 times."),
        ("ha, " * 300, "Write ha 300 times."),
        ("I will not talk in class. " * 100, "Write 'I will not talk in class.' 100 times."),
        ("I love you! " * 200, "Say I love you 200 times"),
        ("```python\n" + 'print("Hello, world!")\n' * 30 + "```\n", "Show a program."),
        ('print("Hello, world!")\n' * 30, "Show a program."),
        ("".join(f'print("line {n} of the program")\n' for n in range(300)), "Show a program."),
        ('{"name": "John Smith", "age": 30, "city": "London"},\n' * 40, "Make test data."),
        ("| name | of | it |\n" + "| not known yet | yes | a longer cell of a table |\n" * 60, "Make a table."),
        ("".join(f"| {n} | not known | yes |\n" for n in range(400)), "Make a table."),
        ("".join(f"{n}. Take {n} of them, and put them away.\n" for n in range(400)), "List them."),
        ("".join(f"{n} bottles of beer on the wall, {n} bottles of beer.\n" for n in range(99)), "Sing it."),
        (("#" * 40 + "\n" + ("#" + " " * 38 + "#\n") * 18 + "#" * 40 + "\n") * 3, "Draw a box."),
        ("```\n" + ("/\\_/\\  " * 8 + "\n") * 20 + "```", "Draw cats."),
        ("-" * 3000 + "\n" + "=" * 1500, "Draw a rule."),
        ("0, " * 1000, "A thousand zeros."),
        ("\n".join(f"  <td>{'0' * 5}</td>" for _ in range(150)), "Make a table."),
    ],
)
def test_what_may_be_meant_is_not_stopped(text, prompt):
    assert not any(is_loop(text[:end], prompt) for end in range(0, len(text) + 1, 7))


@pytest.mark.slow
@each("seed", range(5))
def test_verses_with_a_refrain_are_not_stopped(seed):
    chance = random.Random(seed)
    verses = "".join(words(chance, 24) + "\n" + REFRAIN * chance.randint(1, 5) for _ in range(60))
    assert not any(is_loop(verses[:end], "Write a poem.") for end in range(0, len(verses), 7))


def test_a_phrase_of_the_prompt_may_stand_longer():
    text = "The bells ring. " * (PATIENCE * LOOP // 8)
    first = [
        next(end for end in range(len(text)) if is_loop(text[:end], prompt)) for prompt in ("Go", "the bells ring")
    ]
    assert first[1] > (PATIENCE - 1) * first[0]


def test_a_long_phrase_is_a_loop_the_sixth_time():
    """Numbers, not constants: a phrase that comes two to five times can be an answer."""
    phrase = words(random.Random(1), 80) + ".\n"
    assert len(phrase) > 400
    assert not is_loop("Well. " + phrase * 5, "Go") and is_loop("Well. " + phrase * 6 + phrase, "Go")
    assert not is_loop("Well. " + phrase * 29, phrase) and is_loop("Well. " + phrase * 31, phrase)


@pytest.mark.slow
def test_it_costs_next_to_nothing_however_long_the_reply_is():
    chance = random.Random(0)
    lines = "".join(f"{n}. {words(chance, 6)}\n" for n in range(5000))
    circles = lines + "the same thing over and over, " * (TAIL // 20)

    def seconds(reply: str) -> float:
        began = time.thread_time()
        goes_round(reply)
        return time.thread_time() - began

    for reply in (lines, words(chance, 5000), circles[-20_000:]):
        assert min(seconds(reply) for _ in range(50)) < 1e-4
