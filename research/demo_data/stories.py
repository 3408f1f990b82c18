"""Small stories that keep to one subject, and tasks on them: telling, continuing, naming, summing up and questions."""

from dataclasses import dataclass
from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.plots import PLOTS, Plot
from demo_data.words import (
    ANIMALS,
    BOYS,
    COLORS,
    FOODS,
    FRUITS,
    GIRLS,
    JOBS,
    KIND,
    PETS,
    TALES,
    THINGS,
    TREES,
    a,
    capital,
    place,
    plural,
)  # fmt: skip

START = (
    "{role_a} called {N} lived {where}.", "Once upon a time there was {a_role} called {N}. {He} lived {where}.",
    "{N} was {a_kind} {role}. {He} lived {where}.", "There was once {a_kind} {role} whose name was {N}.",
    "{N} the {role} lived {where}.", "{where_capital} lived {a_kind} {role} called {N}.",
)  # fmt: skip
FRIEND = (
    "{His} best friend was {F}, {a_frole}.", "{F}, {a_frole}, lived next door.", "{He} had a friend, {a_frole} called {F}.",
    "{N} had a good friend called {F}, {a_frole}.",
)  # fmt: skip
END = ("", "", "", "", "", "The end.", "And that is the end of the story.", "It was a good day.")
ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Please tell me a little story.",
    "Tell me a bedtime story.",
    "Write a short story.",
    "story please",
)
ASK_ABOUT = (
    "Tell me a story about {what}.",
    "Write a short story about {what}.",
    "Can you tell me a story about {what}?",
    "A story about {what}, please.",
    "I would like a story about {what}.",
    "Make up a story about {what}.",
)
ASK_SUMMARY = (
    "Sum this up in one sentence.",
    "What happens in this story?",
    "Summarize this story.",
    "Give me a summary of this text.",
    "What is this story about?",
)
ASK_TITLE = ("Give this story a title.", "What would be a good title?", "Find a title for this story.")
ASK_MORE = ("Continue this story.", "Go on with this story.", "What happens next?", "Finish this story.")
ASK_SHORT = (
    "Tell me a very short story about {what}.",
    "A very short story about {what}, please.",
    "Tell me a story about {what} in a few sentences.",
    "Write a story about {what} in four sentences.",
)
FIXED = {
    "king": "he",
    "prince": "he",
    "fisherman": "he",
    "postman": "he",
    "queen": "she",
    "princess": "she",
    "witch": "she",
    "fairy": "she",
}


@dataclass(frozen=True)
class Story:
    """A generated story. `sentences` are its parts of one or two sentences; `asks` are (question, answer) pairs."""

    key: str
    about: tuple[str, ...]  # what it can be asked for by
    title: str
    sentences: tuple[str, ...]
    summary: str
    asks: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


def who(random: Random) -> tuple[str, str, str]:
    """Return a random character: a name, what the character is, and "he" or "she"."""
    if random.random() < 0.5:
        return random.choice(PETS), random.choice(ANIMALS), random.choice(("he", "she"))
    he = random.choice(("he", "she"))
    role = random.choice(({"he": "boy", "she": "girl"}[he], random.choice(JOBS), random.choice(TALES)))
    he = FIXED.get(role, he)
    return random.choice(BOYS if he == "he" else GIRLS), role, he


def forms(he: str, before: str = "") -> dict[str, str]:
    """Return the pronouns of a character by slot. `before` is the prefix of the slots: "f" for the friend."""
    him, his = ("him", "his") if he == "he" else ("her", "her")
    small = {f"{before}he": he, f"{before}him": him, f"{before}his": his}
    return small | {slot[:1].upper() + slot[1:]: capital(word) for slot, word in small.items()}


def tell(random: Random) -> Story:
    """Return a random story."""
    plot: Plot = random.choice(PLOTS)
    (name, role, he), (friend, frole, fhe) = who(random), who(random)
    while friend == name or frole == role:
        friend, frole, fhe = who(random)
    spot, where = place(random)
    thing, color, kind = random.choice(THINGS), random.choice(COLORS), random.choice(KIND)
    tree = random.choice(TREES)
    slots = forms(he) | forms(fhe, "f") | {
        "N": name, "F": friend, "role": role, "a_role": a(role), "role_a": capital(a(role)), "a_frole": a(frole),
        "kind": kind, "a_kind": a(kind), "where": where, "where_capital": capital(where), "spot": spot,
        "thing": thing, "color": color, "a_thing": f"{a(color)} {thing}", "food": random.choice(FOODS),
        "fruits": plural(random.choice(FRUITS)), "tree": tree, "a_tree": a(tree), "a_color": a(color), "one_thing": a(thing),
    }  # fmt: skip
    start = random.choice(START)
    beats = [start, random.choice(FRIEND), *(random.choice(beat) for beat in plot.beats), random.choice(END)]
    sentences = tuple(b.format_map(slots) for b in beats if b)
    asks = [(q.format_map(slots), answer.format_map(slots)) for q, answer in plot.asks]
    if "{where" in start:
        asks.append((f"Where did {name} live?", f"{name} lived {where}."))
    asks.append((f"Who was {friend}?", f"{friend} was {a(frole)}."))
    asks.append(
        (f"What kind of animal was {name}?" if role in ANIMALS else f"Who was {name}?", f"{name} was {a(role)}.")
    )
    about: tuple[str, ...] = (
        f"{a(role)} called {name}",
        f"{a(role)} and {a(frole)}",
        f"{name} the {role}",
        f"{name} and {friend}",
        a(role),
        f"{a(role)} and {a(thing)}",
    )
    if thing not in " ".join(sentences):
        about = about[:5]
    return Story(
        f"story {plot.name} {role} {frole}", about, plot.title.format_map(slots), sentences,
        plot.summary.format_map(slots), tuple(asks),
    )  # fmt: skip


def story_text(random: Random) -> Drawing:
    """Return a story as a text, not as a chat."""
    story = tell(random)
    text = f"{story.title}\n\n{story.text}" if random.random() < 0.5 else story.text
    return Drawing((story.key,), (text,))


def asked_for(random: Random) -> Drawing:
    """Return a chat that asks for a story and tells it."""
    story = tell(random)
    if random.random() < 0.2:
        return chat(story.key, random.choice(ASK_ANY), story.text)
    return chat(story.key, random.choice(ASK_ABOUT).format(what=random.choice(story.about)), story.text)


def in_short(random: Random) -> Drawing:
    """Return a chat that asks for a short story and tells it in four sentences or so."""
    story = tell(random)
    end = random.choice(
        (
            "In the end both were happy.",
            "They are still friends today.",
            "That is how they became the best of friends.",
            "It was a day to remember.",
        )
    )
    text = " ".join((*story.sentences[:2], story.summary, end))
    return chat(story.key, random.choice(ASK_SHORT).format(what=random.choice(story.about)), text)


def continued(random: Random) -> Drawing:
    """Return a task to continue a story whose beginning is given."""
    story = tell(random)
    cut = random.randint(2, len(story.sentences) - 3)
    begin, rest = " ".join(story.sentences[:cut]), " ".join(story.sentences[cut:])
    return chat(story.key, f"{random.choice(ASK_MORE)}\n\n{begin}", rest)


def summed_up(random: Random) -> Drawing:
    """Return a task to sum up a given story in one sentence, or to give it a title."""
    story = tell(random)
    asks, answer = random.choice(((ASK_SUMMARY, story.summary), (ASK_SUMMARY, story.summary), (ASK_TITLE, story.title)))
    order = random.choice(asks)
    shown = f"{order}\n\n{story.text}" if random.random() < 0.6 else f"{story.text}\n\n{order}"
    return chat(story.key, shown, answer)


def asked_about(random: Random) -> Drawing:
    """Return a chat with one to three questions about a given story."""
    story = tell(random)
    questions = random.sample(story.asks, random.randint(1, 3))
    first = random.choice(
        ("{text}\n\n{ask}", "{ask}\n\n{text}", "Read this and answer: {ask}\n\n{text}", "Text: {text}\nQuestion: {ask}")
    )
    turns = [first.format(text=story.text, ask=questions[0][0]), questions[0][1]]
    return chat(story.key, *turns, *(part for pair in questions[1:] for part in pair))


def told_and_asked(random: Random) -> Drawing:
    """Return a chat that asks for a story, then asks questions about it, and sometimes ends with thanks."""
    story = tell(random)
    turns = [random.choice(ASK_ABOUT).format(what=random.choice(story.about)), story.text]
    for question, answer in random.sample(story.asks, random.randint(1, 2)):
        turns += [question, answer]
    if random.random() < 0.3:
        turns += [
            random.choice(("Thank you!", "That was nice.", "I liked that story.")),
            random.choice(("I am glad that you liked it.", "You are welcome.")),
        ]
    return chat(story.key, *turns)


def draw(random: Random) -> Drawing:
    """Return a story as a text or on request."""
    return random.choices((story_text, asked_for, told_and_asked, in_short), (4, 6, 2, 1.5))[0](random)


def draw_reading(random: Random) -> Drawing:
    """Return a task on a given story: questions, a summary, a title or the continuation."""
    return random.choices((asked_about, summed_up, continued), (6, 3, 3))[0](random)
