"""Conversations of several short tasks. Some of the tasks refer to the answer before."""

from random import Random

from demo_data import calendar, limits, rewriting, smalltalk, stories, sums, things, writing
from demo_data.drawing import Drawing
from demo_data.words import listing

PARTS = (sums.draw, rewriting.draw, calendar.draw, things.draw, writing.draw, limits.draw, smalltalk.talk)


def mixed(random: Random) -> Drawing:
    """Return a chat with two or three independent tasks, sometimes with a greeting and thanks."""
    parts = [draw(random) for draw in random.choices(PARTS, (4, 4, 2, 4, 3, 1, 2), k=random.randint(2, 3))]
    turns = [turn for part in parts for turn in part.turns]
    if random.random() < 0.4:
        turns = [random.choice(("Hello!", "Hi", "Good morning!")), "Hello! What can I do for you?", *turns]
    if random.random() < 0.4:
        turns += [random.choice(("Thank you!", "Thanks.", "That is all, thank you.")), "You are welcome!"]
    return Drawing(tuple(key for part in parts for key in part.keys), tuple(turns))


def chain(random: Random) -> Drawing:
    """Return a chat with several sums, each of which begins with the result before."""
    result = random.randint(1, 40)
    first = random.randint(0, result)
    turns = [f"What is {first} + {result - first}?", f"{first} + {result - first} = {result}."]
    keys = [f"{first} + {result - first}"]
    for _ in range(random.randint(1, 3)):
        number, sign = random.randint(1, 20), random.choice("++-")
        if sign == "-":
            number = random.randint(0, min(20, result))
        after = result + number if sign == "+" else result - number
        forms = {
            "+": ("Add {} to that.", "And plus {}?", "Plus {}"),
            "-": ("Take {} away.", "And minus {}?", "Minus {}"),
        }[sign]
        turns += [random.choice(forms).format(number), f"{result} {sign} {number} = {after}."]
        keys.append(f"{result} {sign} {number}")
        result = after
    return Drawing(tuple(keys), tuple(turns))


def on_a_list(random: Random) -> Drawing:
    """Return a chat in which a list is made, and then changed turn by turn."""
    kind, names = random.choice([(kind, names) for kind, names in things.MORE.items() if len(names) > 5])
    row = random.sample(names, 4)
    turns = [f"Name four {things.kinds(kind)}.", f"{listing(row).capitalize()}."]
    for _ in range(random.randint(1, 3)):
        order = random.choice(("sort", "reverse", "capitals", "numbers", "last", "remove"))
        shown = ", ".join(row)
        if order == "sort":
            row = sorted(row)
            turns += [
                random.choice(("Sort them.", "Put them in alphabetical order.", "Now sort them from A to Z.")),
                ", ".join(row),
            ]
        elif order == "reverse":
            row = row[::-1]
            turns += [
                random.choice(("Now in reverse order.", "Reverse the list.", "Turn the list around.")),
                ", ".join(row),
            ]
        elif order == "capitals":
            turns += [random.choice(("In capital letters, please.", "Write them in capital letters.")), shown.upper()]
        elif order == "numbers":
            turns += [
                random.choice(("Number them.", "Make a numbered list.")),
                "\n".join(f"{i}. {w}" for i, w in enumerate(row, 1)),
            ]
        elif order == "last":
            turns += [random.choice(("Which one is the last?", "What is the last one?")), f"The last one is {row[-1]}."]
        elif len(row) > 2:
            removed = random.choice(row)
            row = [w for w in row if w != removed]
            turns += [random.choice((f"Leave out {removed}.", f"Remove {removed}.")), ", ".join(row)]
    return Drawing((f"list {' '.join(sorted(row))}",), tuple(turns))


def again(random: Random) -> Drawing:
    """Return a chat with the same kind of task twice, about different things."""
    draw = random.choice(
        (things.riddle, things.name_some, writing.sentences, sums.plain, rewriting.on_one_word, stories.in_short)
    )
    first, second = draw(random), draw(random)
    question = random.choice(("{} ", "Thank you. {} ", "And now: {} ", "Good. {} ")).format(second.turns[0]).strip()
    return Drawing((*first.keys, *second.keys), (*first.turns, question, *second.turns[1:]))


def draw(random: Random) -> Drawing:
    """Return a conversation of a random kind from this file."""
    return random.choices((mixed, chain, on_a_list, again), (6, 2, 2, 2))[0](random)
