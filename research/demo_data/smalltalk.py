"""Short friendly turns: greetings, thanks, feelings, likes, and remembering what was just said."""

from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.words import ANIMALS, BOYS, COLORS, FOODS, FRUITS, GIRLS, JOBS, PETS, THINGS, a, capital, plural

TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (  # what is said, what may be answered
    (("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Hey!", "hello", "hi", "Good day", "Greetings"), ("Hello! What can I do for you?", "Hi! How can I help?", "Hello! How can I help you?")),
    (("Good morning", "Good morning!", "good morning"), ("Good morning! What can I do for you?", "Good morning! How can I help?")),
    (("Good evening", "Good evening!"), ("Good evening! How can I help?",)),
    (("How are you?", "how are you", "How are you today?", "How do you do?", "How is it going?", "Are you well?"), ("I am fine, thank you. How can I help?", "I am well, thank you. What can I do for you?")),
    (("Thank you", "Thanks!", "Thank you very much.", "thanks", "Thanks a lot!", "Great, thank you!", "That helped, thank you."), ("You are welcome!", "You are welcome.", "I am glad that I could help.")),
    (("Goodbye", "Bye", "Bye!", "See you later.", "Good night", "I have to go now.", "bye"), ("Goodbye!", "Goodbye! See you soon.", "Bye! Have a nice day.")),
    (("Yes", "yes", "Yes, please.", "Sure"), ("Good. What would you like?", "Very well. What shall we do?")),
    (("No", "no", "No, thank you.", "Not now."), ("That is fine. Tell me when you need something.", "All right.")),
    (("OK", "Okay", "ok", "All right", "I see."), ("Good. Is there anything else?", "Tell me when you need something else.")),
    (("I am sad.", "I feel sad today.", "I'm feeling down.", "I am unhappy."), ("I am sorry to hear that. Would you like to tell me about it?", "I am sorry that you feel sad. A walk or a talk with a friend may help.")),
    (("I am happy.", "I feel great today!", "I'm so happy!", "Today is a good day."), ("I am glad to hear that!", "That is good to hear!")),
    (("I am tired.", "I'm so tired.", "I did not sleep well.", "I feel sleepy."), ("Then you should rest a little.", "I hope that you can sleep well tonight.")),
    (("I am bored.", "I'm bored.", "There is nothing to do."), ("I can tell you a story or ask you a riddle.", "Shall I tell you a story?")),
    (("I am angry.", "I'm so angry right now.", "I am mad at my friend."), ("I am sorry to hear that. Take a deep breath, and tell me what happened.",)),
    (("I am afraid.", "I'm scared.", "I am worried about tomorrow."), ("I am sorry that you are worried. It may help to talk with somebody you trust.",)),
    (("I am hungry.", "I'm hungry.", "I have not eaten yet."), ("Then you should eat something. What do you like?",)),
    (("It is raining today.", "It is very cold today.", "It is so hot today.", "It is snowing!"), ("Then it is a good day to stay inside.", "I cannot see it, but I hope that you are comfortable.")),
    (("Do you like music?", "Do you like books?", "Do you like animals?", "Do you like the sea?", "Do you have a hobby?"), ("I am a program, so I do not like or dislike things. What about you?",)),
    (("Do you sleep?", "Do you eat?", "Do you have feelings?", "Do you dream?", "Can you see me?", "Can you hear me?", "Do you have a body?"), ("No, I am only a program that writes text.", "No. I am a small program, and I only read and write text.")),
    (("Are you a person?", "Are you human?", "Are you a robot?", "Are you real?", "Am I talking to a person?"), ("I am a small language model, not a person.", "No, I am not a person. I am a small language model.")),
    (("You are nice.", "You are funny.", "I like you.", "Well done!", "Good job!", "That was good."), ("Thank you!", "That is kind of you.")),
    (("You are stupid.", "That was wrong.", "That is not right.", "You are bad at this.", "I do not like your answer."), ("I am sorry. I am small and make mistakes.", "I am sorry about that. You can ask me again in other words.")),
    (("Can you help me?", "I need help.", "Help me, please.", "I have a question.", "Can I ask you something?"), ("Yes, of course. What do you need?", "Of course. What is it?")),
    (("asdf", "blah blah", "hmm", "???", "...", "xyz", "la la la"), ("I did not understand that. Can you say it in other words?",)),
    (("Let us play a game.", "Can we play a game?", "I want to play."), ("I can ask you a riddle, or you can ask me a sum.",)),
)  # fmt: skip
FACTS = (  # what is told, what is asked later, the answer
    ("My name is {name}.", "What is my name?", "Your name is {name}."),
    ("I am {name}.", "Who am I?", "You are {name}."),
    ("My favorite color is {color}.", "What is my favorite color?", "Your favorite color is {color}."),
    ("I have a {animal} called {pet}.", "What is my {animal} called?", "Your {animal} is called {pet}."),
    ("My {animal} is called {pet}.", "What is the name of my {animal}?", "Your {animal} is called {pet}."),
    ("I have {number} {things}.", "How many {things} do I have?", "You have {number} {things}."),
    ("I am {number} years old.", "How old am I?", "You are {number} years old."),
    ("I like {food}.", "What food do I like?", "You like {food}."),
    ("I work as {a_job}.", "What is my job?", "You work as {a_job}."),
    ("My best friend is {name}.", "Who is my best friend?", "Your best friend is {name}."),
    ("I ate {a_fruit} today.", "What did I eat today?", "You ate {a_fruit} today."),
    ("My {thing} is {color}.", "What color is my {thing}?", "Your {thing} is {color}."),
    ("The secret word is {thing}.", "What is the secret word?", "The secret word is {thing}."),
)  # fmt: skip
HEARD = (
    "That is good to know.",
    "Thank you for telling me.",
    "I see.",
    "I will remember that while we talk.",
    "Good to know.",
)


def talk(random: Random) -> Drawing:
    """Return small talk of one or two prompts with their answers."""
    rows = random.sample(TALK, random.choice((1, 1, 1, 2)))
    turns = [part for openings, answers in rows for part in (random.choice(openings), random.choice(answers))]
    return Drawing(tuple(f"talk {turn}" for turn in turns[::2]) if len(rows) == 1 else (), tuple(turns))


def remember(random: Random) -> Drawing:
    """Return a chat in which the user states one or two facts, and asks about them later."""
    slots = {
        "name": random.choice(GIRLS + BOYS), "color": random.choice(COLORS), "animal": random.choice(("dog", "cat", "horse", "rabbit", "goat", "hen", "duck")),
        "pet": random.choice(PETS), "number": random.randint(2, 90), "things": plural(random.choice(THINGS + FRUITS)),
        "food": random.choice(FOODS), "a_job": a(random.choice(JOBS)), "a_fruit": a(random.choice(FRUITS)), "thing": random.choice(THINGS),
    }  # fmt: skip
    facts = random.sample(FACTS, random.choice((1, 1, 2)))
    turns: list[str] = []
    if random.random() < 0.4 and len(facts) == 2:
        turns = [" ".join(f[0].format_map(slots) for f in facts), random.choice(HEARD)]
    else:
        for fact in facts:
            turns += [fact[0].format_map(slots), random.choice(HEARD)]
    if random.random() < 0.3:
        openings, answers = random.choice(TALK)
        turns += [random.choice(openings), random.choice(answers)]
    random.shuffle(facts)
    for fact in facts:
        turns += [fact[1].format_map(slots), fact[2].format_map(slots)]
    return chat(" & ".join(sorted(f[2].format_map(slots) for f in facts)), *turns)


def likes(random: Random) -> Drawing:
    """Return a chat in which the user mentions something, and gets a kind answer with the same words."""
    thing, animal, name = random.choice(FRUITS + THINGS), random.choice(ANIMALS), random.choice(GIRLS + BOYS)
    turns = random.choice((
        (f"I like {plural(thing)}.", f"{capital(plural(thing))} are nice. What do you like about them?"),
        (f"I saw {a(animal)} today.", f"How nice! What did the {animal} do?"),
        (f"I bought {a(thing)} today.", f"How nice! What will you do with the {thing}?"),
        (f"My friend {name} is ill.", f"I am sorry to hear that. I hope that {name} gets well soon."),
        (f"Today is the birthday of {name}.", f"How nice! Happy birthday to {name}!"),
        (f"I lost my {thing}.", f"I am sorry about your {thing}. Where did you see it last?"),
        (f"Do you like {plural(animal)}?", f"I am a program and have never met {a(animal)}. Do you like {plural(animal)}?"),
        (f"{name} gave me {a(thing)}.", f"That was kind of {name}."),
    ))  # fmt: skip
    return chat(turns[0], *turns)


def draw(random: Random) -> Drawing:
    """Return small talk of a random kind from this file."""
    return random.choices((talk, remember, likes), (4, 4, 2))[0](random)
