"""Exercises with small numbers and short worked answers. Pairs of numbers are held out from training, in any wording."""

from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.words import FRUITS, NUMBER_WORDS, THINGS, capital, count, person, plural

ASKED = {
    "+": ("What is {a} + {b}?", "{a} + {b}", "{a}+{b}=", "How much is {a} plus {b}?", "Add {a} and {b}.", "What's {a} plus {b}?", "Please add {b} to {a}."),
    "-": ("What is {a} - {b}?", "{a} - {b}", "{a}-{b}=", "How much is {a} minus {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}.", "What's {a} minus {b}?"),
    "x": ("What is {a} x {b}?", "{a} x {b}", "{a} * {b}", "How much is {a} times {b}?", "Multiply {a} by {b}.", "What's {a} times {b}?"),
    "/": ("What is {a} / {b}?", "{a} / {b}", "{a} divided by {b}", "Divide {a} by {b}.", "How much is {a} divided by {b}?"),
}  # fmt: skip


def operands(random: Random) -> tuple[int, str, int, int]:
    """Return two numbers, a sign between them, and the result."""
    sign = random.choice("++++---xx/")
    if sign in "+-":
        most = random.choice((10, 20, 20, 100, 100, 100))
        a, b = random.randint(0, most), random.randint(0, most)
        return (a, "+", b, a + b) if sign == "+" else (max(a, b), "-", min(a, b), abs(a - b))
    a, b = random.randint(0, 12), random.randint(1, 12)
    return (a, "x", b, a * b) if sign == "x" else (a * b, "/", b, a)


def worked(a: int, sign: str, b: int, result: int) -> str:
    """Return a sum with its result. Sums of two-digit numbers have steps: tens and ones are added separately."""
    if sign == "+" and a > 10 and b > 10 and b % 10:
        tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        return f"{a // 10 * 10} + {b // 10 * 10} = {tens}, {a % 10} + {b % 10} = {ones}, {tens} + {ones} = {result}."
    if sign == "-" and b > 10 and b % 10:
        between = a - b // 10 * 10
        return f"{a} - {b // 10 * 10} = {between}, {between} - {b % 10} = {result}."
    return f"{a} {sign} {b} = {result}."


def plain(random: Random) -> Drawing:
    """Return a sum, a difference, a product or a quotient, in signs or words."""
    a, sign, b, result = operands(random)
    return chat(f"{a} {sign} {b}", random.choice(ASKED[sign]).format(a=a, b=b), worked(a, sign, b, result))


def in_words(random: Random) -> Drawing:
    """Return a sum or difference of small numbers, with the numbers in words."""
    a, b = random.randint(0, 10), random.randint(0, 10)
    sign, word = random.choice((("+", "plus"), ("-", "minus")))
    if sign == "-":
        a, b = max(a, b), min(a, b)
    result = a + b if sign == "+" else a - b
    first, second, third = (NUMBER_WORDS[n] for n in (a, b, result))
    form = random.choice(("What is {} {} {}?", "{} {} {}", "How much is {} {} {}?"))
    return chat(
        f"{a} {sign} {b}", capital(form.format(first, word, second)), capital(f"{first} {word} {second} is {third}.")
    )


def story_sum(random: Random) -> Drawing:
    """Return an exercise as a small story of people and things."""
    name, he, him, _ = person(random)
    other, noun = person(random)[0], random.choice(FRUITS + THINGS)
    if other == name:
        other = "a friend"
    a, b = random.randint(2, 30), random.randint(1, 20)
    kind = random.choice(("more", "less", "each", "share", "both", "difference"))
    if kind == "more":
        gain = random.choice(
            (f"{capital(other)} gives {him} {b} more", f"{capital(he)} finds {b} more", f"{capital(he)} buys {b} more")
        )
        text, question = f"{name} has {count(a, noun)}. {gain}.", f"How many {plural(noun)} does {name} have now?"
        answer = f"{a} + {b} = {a + b}. {name} has {count(a + b, noun)}."
    elif kind == "less":
        a, b = max(a, b + 1), min(a - 1, b)
        loss = random.choice(
            (f"{capital(he)} loses {b}", f"{capital(he)} gives {b} to {other}", f"{capital(he)} sells {b}")
        )
        text, question = f"{name} has {count(a, noun)}. {loss}.", f"How many {plural(noun)} are left?"
        answer = f"{a} - {b} = {a - b}. {capital(count(a - b, noun))} {'is' if a - b == 1 else 'are'} left."
    elif kind == "each":
        a, b = random.randint(2, 10), random.randint(2, 10)
        text = f"{name} has {count(a, 'box')}. There are {count(b, noun)} in each box."
        question, answer = (
            f"How many {plural(noun)} are there?",
            f"{a} x {b} = {a * b}. There are {count(a * b, noun)}.",
        )
    elif kind == "share":
        b, each = random.randint(2, 10), random.randint(1, 10)
        a = b * each
        text, question = f"{name} shares {count(a, noun)} equally among {b} friends.", "How many does each friend get?"
        answer = f"{a} / {b} = {each}. Each friend gets {count(each, noun)}."
    elif kind == "both":
        text = f"{name} has {count(a, noun)} and {other} has {b}."
        question, answer = (
            "How many do they have together?",
            f"{a} + {b} = {a + b}. Together they have {count(a + b, noun)}.",
        )
    else:
        a, b = max(a, b) + 1, min(a, b)
        text = f"{name} has {count(a, noun)} and {other} has {b}."
        question, answer = f"How many more does {name} have?", f"{a} - {b} = {a - b}. {name} has {a - b} more."
    return chat(f"{kind} {a} {b}", f"{text} {question}", answer)


def compare(random: Random) -> Drawing:
    """Return a question about numbers: which is larger, even or odd, the one before or after, half or double."""
    a, b = random.sample(range(100), 2)
    c = random.randint(1, 99)
    exercise = random.choice((
        (f"larger {a} {b}", f"Which number is {random.choice(('larger', 'bigger', 'greater'))}, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."),
        (f"smaller {a} {b}", f"Which is smaller, {a} or {b}?", f"{min(a, b)} is smaller than {max(a, b)}."),
        (f"even {c}", f"Is {c} even or odd?", f"{c} is {'odd' if c % 2 else 'even'}."),
        (f"after {c}", f"Which number comes after {c}?", f"{c + 1} comes after {c}."),
        (f"before {c}", f"Which number comes before {c}?", f"{c - 1} comes before {c}."),
        (f"double {c}", random.choice((f"What is double {c}?", f"Double {c}.", f"What is twice {c}?")), f"Twice {c} is {2 * c}."),
        (f"half {2 * c}", random.choice((f"What is half of {2 * c}?", f"Half of {2 * c}?")), f"Half of {2 * c} is {c}."),
    ))  # fmt: skip
    return chat(*exercise)


def sequence(random: Random) -> Drawing:
    """Return an exercise to continue a row of numbers with a fixed step."""
    step, start = random.choice((1, 2, 3, 5, 10)), random.randint(0, 30)
    row = [start + step * i for i in range(5)]
    shown = ", ".join(map(str, row[:4]))
    question = random.choice(
        (f"What comes next: {shown}?", f"Continue: {shown}, ...", f"Which number is next? {shown}")
    )
    return chat(f"row {start} {step}", question, f"The next number is {row[4]}.")


def counting(random: Random) -> Drawing:
    """Return an exercise to count from one number to another."""
    start = random.randint(0, 30)
    end = start + random.randint(3, 10)
    forward = random.random() < 0.7
    row = range(start, end + 1) if forward else range(end, start - 1, -1)
    question = random.choice(("Count from {} to {}.", "Please count from {} to {}.", "Count {} to {}"))
    return chat(f"count {row[0]} {row[-1]}", question.format(row[0], row[-1]), ", ".join(map(str, row)))


def table(random: Random) -> Drawing:
    """Return an exercise to write a part of a times table."""
    a, start = random.randint(2, 12), random.randint(1, 8)
    question = random.choice(
        (f"Show me the {a} times table from {start} to {start + 4}.", f"{a} times table, {start} to {start + 4}")
    )
    return chat(f"table {a} {start}", question, "\n".join(f"{a} x {b} = {a * b}" for b in range(start, start + 5)))


def draw(random: Random) -> Drawing:
    """Return an exercise of a random kind from this file."""
    kinds = (plain, in_words, story_sum, compare, sequence, counting, table)
    return random.choices(kinds, (10, 1, 6, 3, 1, 1, 1))[0](random)
