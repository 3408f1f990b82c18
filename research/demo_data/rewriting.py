"""Tasks to copy or rewrite given words, lists and sentences. The answer is computed from the given text."""

from collections.abc import Callable
from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.sentences import sentence
from demo_data.words import (
    ANIMALS,
    COLORS,
    FOODS,
    FRUITS,
    JOBS,
    NUMBER_WORDS,
    PLAIN_WORDS,
    THINGS,
    TREES,
    a,
    capital,
    count,
    listing,
    person,
    plural,
)  # fmt: skip

OPPOSITES = dict(
    pair.split("-")
    for pair in [
        "big-small",
        "hot-cold",
        "up-down",
        "old-new",
        "fast-slow",
        "happy-sad",
        "day-night",
        "open-closed",
        "full-empty",
        "long-short",
        "hard-soft",
        "wet-dry",
        "light-dark",
        "left-right",
        "early-late",
        "loud-quiet",
        "near-far",
        "clean-dirty",
        "thick-thin",
        "strong-weak",
        "high-low",
        "first-last",
        "rich-poor",
        "good-bad",
        "easy-difficult",
        "sweet-sour",
        "young-old",
        "heavy-light",
        "begin-end",
        "push-pull",
        "buy-sell",
        "laugh-cry",
        "win-lose",
        "love-hate",
        "remember-forget",
        "always-never",
        "inside-outside",
        "above-below",
        "before-after",
        "true-false",
    ]
)
PAST = dict(
    pair.split("-")
    for pair in [
        "go-went",
        "see-saw",
        "eat-ate",
        "run-ran",
        "come-came",
        "take-took",
        "give-gave",
        "find-found",
        "make-made",
        "say-said",
        "sing-sang",
        "swim-swam",
        "write-wrote",
        "read-read",
        "know-knew",
        "think-thought",
        "bring-brought",
        "buy-bought",
        "sleep-slept",
        "speak-spoke",
        "fly-flew",
        "drink-drank",
        "sit-sat",
        "stand-stood",
        "tell-told",
        "begin-began",
        "fall-fell",
        "walk-walked",
        "play-played",
        "look-looked",
        "help-helped",
        "jump-jumped",
        "call-called",
        "open-opened",
        "want-wanted",
        "like-liked",
        "live-lived",
        "carry-carried",
        "stop-stopped",
    ]
)
KINDS = {
    "animal": ANIMALS,
    "fruit": FRUITS,
    "color": COLORS,
    "job": JOBS,
    "tree": TREES,
    "food": FOODS,
    "thing": THINGS,
}


def new_word(random: Random) -> str:
    """Return an invented word. To copy it, the model has to read it."""
    return "".join(random.choice("bdfgklmnprstvz") + random.choice("aeiou") for _ in range(random.randint(2, 3)))


def some_words(random: Random, low: int = 3, high: int = 6) -> list[str]:
    """Return different words: of one kind, of mixed kinds, or invented."""
    if random.random() < 0.1:
        first = random.sample(PLAIN_WORDS, 2)  # two that surely differ
        return list(dict.fromkeys([*first, *(new_word(random) for _ in range(random.randint(low - 2, high - 2)))]))
    pool = random.choice([PLAIN_WORDS, PLAIN_WORDS, *KINDS.values()])
    return random.sample(pool, random.randint(low, high))


def with_text(random: Random, order: str, text: str) -> str:
    """Return a prompt that joins an order or a question with the text that it is about."""
    if order.split(maxsplit=1)[0] in ("What", "Which", "Who", "How"):
        form = random.choice(
            ("{order}: {text}", "{order}? {text}", '{order}? "{text}"', "{order}?\n{text}", "{text}\n\n{order}?")
        )
        return form.format(order=order, text=text)
    form = random.choice(
        ("{order}: {text}", "{order}: {text}", "{order}:\n{text}", '{order}: "{text}"', "{text}\n\n{order}.")
    )
    return form.format(order=order, text=text)


def on_words(random: Random) -> Drawing:
    """Return a task on a list of words or numbers."""
    words = some_words(random)
    numbers = random.sample(range(1, 100), random.randint(3, 6))
    separator = random.choice((", ", ", ", " "))
    text, digits = separator.join(words), ", ".join(map(str, numbers))
    chosen = random.choice(words)
    index = words.index(chosen)
    orders: tuple[tuple[tuple[str, ...], str, str], ...] = (
        (("Sort these words", "Put these words in alphabetical order", "Sort alphabetically", "Sort these from A to Z"), text, separator.join(sorted(words))),
        (("Reverse this list", "Write these words in reverse order", "Put this list in reverse order", "Say these backwards, word by word"), text, separator.join(reversed(words))),
        (("Make a list of", "Write as a bullet list", "Make bullets of"), ", ".join(words), "\n".join(f"- {w}" for w in words)),
        (("Number these items", "Make a numbered list of", "Number these"), ", ".join(words), "\n".join(f"{i}. {w}" for i, w in enumerate(words, 1))),
        (("How many words are in this list", "Count these words"), text, f"There are {NUMBER_WORDS[len(words)]} words."),
        (("Write the first word", "What is the first word", "Give me the first word"), text, words[0]),
        (("Write the last word", "What is the last word", "Give me the last word"), text, words[-1]),
        (("Write these in capital letters", "Make these uppercase", "Convert to uppercase"), text, text.upper()),
        (("Join these with \"and\"", "Write these as a sentence list"), "\n".join(words), listing(words)),
        ((f'Which word comes after "{words[max(0, index - 1)]}"',), text, words[max(0, index - 1) + 1]),
        ((f'Remove "{chosen}" from this list', f'Write this list without "{chosen}"'), text, separator.join(w for w in words if w != chosen)),
        (("Repeat after me", "Repeat", "Copy this", "Write this again", "Say this"), text, text),
        (("Sort these numbers", "Put these numbers in order", "Sort from small to large"), digits, ", ".join(map(str, sorted(numbers)))),
        (("Which of these is the largest number", "Find the largest number"), digits, f"{max(numbers)}"),
        (("Which of these is the smallest number", "Find the smallest number"), digits, f"{min(numbers)}"),
    )  # fmt: skip
    forms, shown, answer = random.choice(orders)
    order = random.choice(forms)
    return chat(f"{forms[0]} {shown}", with_text(random, order, shown), answer)


def on_one_word(random: Random) -> Drawing:
    """Return a task on one word: its spelling, letters, plural, past tense or opposite."""
    word = random.choice(PLAIN_WORDS + ANIMALS + FRUITS + THINGS)
    noun = random.choice(ANIMALS + FRUITS + THINGS + JOBS)
    plain, opposite = random.choice(list(OPPOSITES.items()))
    now, then = random.choice(list(PAST.items()))
    letter = random.choice(word)
    times = word.count(letter)
    new, times_said = random.choice((new_word(random), word)), random.randint(3, 5)
    times_word = {1: "once", 2: "twice"}.get(times, f"{times} times")
    exercise = random.choice((
        (f"spell {word}", random.choice((f'Spell "{word}".', f"How do you spell {word}?", f"Spell the word {word}.")), "-".join(word)),
        (f"letters {word}", random.choice((f'How many letters are in "{word}"?', f'Count the letters of "{word}".')), f'{"-".join(word)}: "{word}" has {len(word)} letters.'),
        (f"letter {letter} {word}", f'How many times is the letter {letter} in "{word}"?', f'{"-".join(word)}: the letter {letter} is there {times_word}.'),
        (f"backwards {word}", random.choice((f'Write "{word}" backwards.', f"Spell {word} backwards.")), "-".join(reversed(word))),
        (f"first letter {word}", f'What is the first letter of "{word}"?', f'The first letter of "{word}" is {word[0]}.'),
        (f"last letter {word}", f'What is the last letter of "{word}"?', f'The last letter of "{word}" is {word[-1]}.'),
        ("", random.choice((f'What is the plural of "{noun}"?', f"One {noun}, two ...?", f"Plural of {noun}?")), f"One {noun}, two {plural(noun)}."),
        ("", random.choice((f'What is the past of "{now}"?', f'What is the past tense of "{now}"?', f"Today I {now}. Yesterday I ...?")), f"Today I {now}, yesterday I {then}."),
        ("", random.choice((f"What is the opposite of {plain}?", f'Opposite of "{plain}"?', f"Tell me the opposite of {plain}.")), f"The opposite of {plain} is {opposite}."),
        (f"upper {word}", random.choice((f'Write "{word}" in capital letters.', f"Write {word} in capital letters.")), word.upper()),
        (f"lower {word}", random.choice((f'Write "{word.upper()}" in small letters.', f"Write {word.upper()} in small letters.")), word),
        (f"say {new} {times_said}", random.choice((f'Say "{new}" {NUMBER_WORDS[times_said]} times.', f"Write {new} {NUMBER_WORDS[times_said]} times.")), ", ".join([new] * times_said)),
    ))  # fmt: skip
    key, question, answer = exercise
    return chat(key or question, question, answer)  # what can only be known is held out by its wording


def on_a_sentence(random: Random) -> Drawing:
    """Return a task on a simple sentence."""
    base = sentence(random)
    text, words = base.text, base.text.rstrip(".").split()
    other = random.choice([c for c in COLORS if c not in text])
    broken = list(words)
    spot = random.randrange(1, len(words) - 1)
    broken[spot], broken[spot + 1] = broken[spot + 1], broken[spot]
    orders: list[tuple[tuple[str, ...], str, str]] = [
        (("Repeat this sentence", "Copy this sentence", "Write this again", "Repeat"), text, text),
        (("Write this in capital letters", "Make this uppercase", "Convert to uppercase"), text, text.upper()),
        (("Write this in small letters", "Make this lowercase", "Convert to lowercase"), text, text.lower()),
        (("Correct this", "Fix the capital letters and the period", "Correct this sentence"), text.rstrip(".").lower(), text),
        (("How many words does this sentence have", "Count the words"), text, f"It has {NUMBER_WORDS[len(words)]} words."),
        (("What is the last word",), text, words[-1]),
        (("What is the first word",), text, words[0]),
        (("Who is this sentence about", "Find the name"), text, f"{base.name}."),
        (("Which thing is in this sentence", "Find the thing"), text, f"{capital(a(base.thing))}."),
        (("Which color is in this sentence", "Find the color"), text, f"{capital(base.color)}."),
        ((f'Change "{base.color}" to "{other}"', f'Replace "{base.color}" with "{other}"'), text, text.replace(a(base.color), a(other))),
        (("Write this for yesterday", "Put this in the past"), base.present, text),
        (("Make this a question",), text, base.question),
        (("Say that this is not so", "Make this negative"), text, base.negative),
        (("Put the words in the right order",), " ".join(broken), text),
    ]  # fmt: skip
    forms, shown, answer = random.choice(orders)
    # The name stands for the sentence: another order on the same words would give the answer away.
    return chat(
        f"sentence {base.name} {base.color} {base.thing}", with_text(random, random.choice(forms), shown), answer
    )


def odd_one(random: Random) -> Drawing:
    """Return a task to find the word in a list that is of another kind."""
    first, second = random.sample([k for k in KINDS if k not in ("thing", "food")], 2)
    words = random.sample(KINDS[first], 3)
    odd = random.choice([w for w in KINDS[second] if w not in KINDS[first]])
    index = random.randint(0, 3)
    row = [*words[:index], odd, *words[index:]]
    key = f"odd {odd} {' '.join(sorted(words))}"
    if random.random() < 0.5:
        return chat(
            key,
            f"Which word does not belong: {', '.join(row)}?",
            f"{capital(odd)} does not belong. The others are {plural(first)}.",
        )
    question = random.choice(
        (f"Find the {second}: {', '.join(row)}", f"Which of these is {a(second)}: {', '.join(row)}?")
    )
    return chat(key, question, f"{capital(odd)} is {a(second)}.")


def compose(random: Random) -> Drawing:
    """Return a task to write a sentence with given words."""
    noun, color = random.choice(ANIMALS + THINGS), random.choice(COLORS)
    name, he, _, his = person(random)
    answer = random.choice((
        f"{name} saw {a(color)} {noun} near the old bridge.", f"The {color} {noun} belongs to {name}.",
        f"{name} drew {a(color)} {noun}, and {he} showed it to {his} mother.",
    ))  # fmt: skip
    question = random.choice(
        (
            f'Write a sentence with "{noun}" and "{color}" about {name}.',
            f"Make a sentence with the words {color}, {noun} and {name}.",
        )
    )
    return chat(f"compose {noun} {color} {name}", question, answer)


def group(random: Random) -> Drawing:
    """Return a task to count or write down the words of one kind in a mixed list."""
    kind = random.choice([k for k in KINDS if k not in ("thing", "food")])
    number, others = random.randint(1, 4), random.randint(1, 3)
    outside = [w for k in ("thing", "food") for w in KINDS[k] if w not in KINDS[kind]]
    row = random.sample(KINDS[kind], number) + random.sample(outside, others)
    of_kind = set(row[:number])
    random.shuffle(row)
    shown = ", ".join(row)
    members = [w for w in row if w in of_kind]
    if random.random() < 0.5:
        return chat(
            f"group {shown}",
            f"How many {plural(kind)} are in this list? {shown}",
            f"{capital(listing(members))}: {count(number, kind)}.",
        )
    return chat(f"group {shown}", f"Write only the {plural(kind)}: {shown}", ", ".join(members))


PARTS: dict[Callable[[Random], Drawing], float] = {
    on_words: 6, on_a_sentence: 6, on_one_word: 4, odd_one: 1, compose: 1, group: 1
}  # fmt: skip


def draw(random: Random) -> Drawing:
    """Draw an example of any of these kinds."""
    return random.choices(list(PARTS), list(PARTS.values()))[0](random)
