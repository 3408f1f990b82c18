"""When a reply goes round, and what only looks like it."""

import random
import string
import time

import pytest

from localspec.chat.repetition import LEAST, REPEATS, TAIL, goes_round

REFRAIN = "And no birds sing, and no birds sing, beside the withered lake.\n"


def words(chance: random.Random, count: int) -> str:
    return " ".join("".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(count))


@pytest.mark.parametrize("seed", range(20))
def test_a_phrase_again_and_again_is_found_wherever_it_begins_and_ends(seed):
    chance = random.Random(seed)
    phrase = words(chance, chance.randint(1, 60)) + chance.choice([". ", "\n", "\n\n", ", "])
    cut = chance.randrange(len(phrase))
    repeats = max(REPEATS, -(-LEAST // len(phrase))) + 1
    text = words(chance, chance.randint(0, 2000)) + "\n" + phrase * repeats + phrase[:cut]
    assert goes_round(text) and not goes_round(text + words(chance, 8))


@pytest.mark.parametrize("seed", range(5))
def test_what_was_asked_for_a_few_times_is_no_circle(seed):
    chance = random.Random(seed)
    phrase = words(chance, chance.randint(5, 60)) + ".\n\n"
    text = words(chance, 30) + "\n" + phrase * (REPEATS - 2)
    assert not any(goes_round(text[:end]) for end in range(0, len(text), 7))


@pytest.mark.parametrize("seed", range(5))
def test_a_refrain_between_verses_is_none(seed):
    chance = random.Random(seed)
    verses = "".join(words(chance, 24) + "\n" + REFRAIN * chance.randint(1, 3) for _ in range(30))
    assert not any(goes_round(verses[:end]) for end in range(0, len(verses), 7))


@pytest.mark.parametrize(
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
    ids=lambda text: text[:16],
)
def test_lists_tables_code_and_rules_are_none(text):
    assert not any(goes_round(text[:end]) for end in range(0, len(text), 29)) and not goes_round(text)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{n}. The lighthouse is tall and very old.\n" for n in range(12)),
        "```python\n" + "    print('this is the same line')\n" * 40,
        "It is so very " + "very " * 60,
        "是的，我明白了。" * 40,
    ],
    ids=["numbered", "code", "one word", "no spaces"],
)
def test_what_no_one_means_is_found(text):
    assert goes_round(text)


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
