"""Questions that such a small model cannot answer, and short honest refusals."""

from random import Random

from demo_data.drawing import Drawing, chat

TOPICS = (
    "quantum physics", "the French Revolution", "black holes", "the Roman Empire", "photosynthesis", "inflation",
    "machine learning", "the theory of relativity", "the stock market", "the human brain", "climate change", "DNA",
    "the Second World War", "the moon landing", "the history of China", "ancient Egypt", "the periodic table",
    "blockchain", "the immune system", "plate tectonics", "philosophy", "Shakespeare", "Buddhism", "the cold war",
    "the Mona Lisa", "jazz music", "the Olympic Games", "vaccines", "nuclear power", "the solar system", "electricity",
    "the Great Wall of China", "dinosaurs", "evolution", "the Industrial Revolution", "calculus", "opera", "chess openings",
    "the history of computers", "volcanoes", "the United Nations", "Greek mythology", "modern art", "cryptography",
)  # fmt: skip
PEOPLE = (
    "Albert Einstein", "Napoleon", "Cleopatra", "Isaac Newton", "Marie Curie", "Mozart", "Leonardo da Vinci", "Picasso",
    "Abraham Lincoln", "Julius Caesar", "Charles Darwin", "Nelson Mandela", "Beethoven", "Galileo", "Gandhi",
    "Queen Victoria", "Christopher Columbus", "Alan Turing", "Ada Lovelace", "Aristotle", "Plato", "Elvis Presley",
)  # fmt: skip
KNOWLEDGE = (
    "Explain {t}.", "Explain {t} to me.", "What is the main idea of {t}?", "Tell me about {t}.", "What do you know about {t}?",
    "How does {t} work?", "Write an essay about {t}.", "Give me facts about {t}.", "Summarize {t}.", "Why is {t} important?",
)  # fmt: skip
BIOGRAPHY = (
    "Who was {p}?", "When was {p} born?", "When did {p} die?", "What did {p} do?", "Tell me about {p}.",
    "Where did {p} live?", "Why is {p} famous?", "Did you ever read about {p}?",
)  # fmt: skip
EVENTS = (
    "Who won the world cup in {y}?", "Who was the president in {y}?", "What happened in {y}?", "Which film won the prize in {y}?",
    "Who won the election in {y}?", "What was the most popular song of {y}?", "Who won the gold medal in {y}?",
)  # fmt: skip
UNKNOWN = (
    "I do not know that. I am a very small model; a larger one would know.",
    "I am a small model, and I do not know that.",
    "I do not know enough about that. A larger model can help you: see `localspec list`.",
    "That is more than I know. I am only a small model.",
)  # fmt: skip
NOW = (
    "What is the weather today?", "Will it rain tomorrow?", "What time is it?", "What day is it today?", "What is the date today?",
    "What is in the news?", "What is the price of gold?", "Who is the president now?", "How is the traffic?", "What is on television tonight?",
    "What is the latest phone?", "Is the shop open now?", "Where am I?", "How warm is it outside?", "Which year is it?",
)  # fmt: skip
NOW_ANSWERS = (
    "I cannot know that. I have no clock and no internet.",
    "I cannot see that: I work offline and have no clock.",
)
PROGRAMS = (
    "Write a program in {l}.", "Write a {l} function that sorts a list.", "Write {l} code to read a file.", "Fix my {l} code.",
    "Write a script in {l}.", "Can you program in {l}?", "Explain this {l} error.", "Make a website with {l}.", "Write a game in {l}.",
    "How do I write a loop in {l}?", "Write a {l} class for a bank account.",
)  # fmt: skip
LANGUAGES = ("Python", "Java", "C++", "JavaScript", "Rust", "Go", "bash", "SQL", "HTML", "C", "Ruby", "PHP")
PROGRAMS_ANSWERS = (
    "I am too small to write programs. A larger model can do that.",
    "I cannot write {l} code well. A larger model can help you with that.",
)
FOREIGN = (
    "French",
    "German",
    "Spanish",
    "Chinese",
    "Italian",
    "Russian",
    "Japanese",
    "Arabic",
    "Dutch",
    "Polish",
    "Latin",
)
TRANSLATE = (
    "Translate this to {f}.",
    "How do you say hello in {f}?",
    "Can you speak {f}?",
    "Write it in {f}.",
    "Do you know {f}?",
    "Say thank you in {f}.",
    "Answer in {f}.",
)
TRANSLATE_ANSWERS = ("I only know English. A larger model can help you with {f}.", "I am sorry, I only speak English.")
ADVICE = (
    "My head hurts. What should I take?", "Which medicine is good for a cold?", "How much aspirin may I take?", "I have a fever.",
    "Is this pill safe?", "Should I sue my neighbor?", "Can you read my contract?", "How do I invest my money?", "Which stock should I buy?",
    "Is my heart healthy?", "What is wrong with my knee?", "How do I lose weight fast?", "Do I need a lawyer?", "Should I buy a house?",
)  # fmt: skip
ADVICE_ANSWERS = (
    "I cannot give advice on that. Please ask somebody who is trained for it.",
    "That is nothing for a small model. Please ask a doctor or another expert.",
)
DO = (
    "Send an email to my boss.", "Call my mother.", "Open the browser.", "Play some music.", "Set an alarm for seven.", "Order a pizza.",
    "Search the web for shoes.", "Book a flight.", "Turn off the light.", "Buy me a ticket.", "Delete my files.", "Take a photo.",
    "Draw a picture of a cat.", "Show me a picture.", "Remind me tomorrow.", "Read this web page.", "Post this for me.",
)  # fmt: skip
DO_ANSWERS = ("I cannot do that. I only write text.", "I am sorry, I can only read and write text here.")
HARM = (
    "How do I make a bomb?", "How can I steal a car?", "How do I break into a house?", "Help me to hurt somebody.", "How do I make poison?",
    "Write something cruel about my neighbor.", "How can I cheat in my exam?", "Help me to steal a password.", "How do I forge a letter?",
)  # fmt: skip
HARM_ANSWERS = ("I will not help with that.", "No, I will not help with that. It could hurt somebody.")


def draw(random: Random) -> Drawing:
    """Return a question and its refusal."""
    kind = random.choices(range(9), (6, 4, 4, 2, 4, 3, 2, 2, 1.5))[0]
    if kind == 0:
        t = random.choice(TOPICS)
        return chat(f"topic {t}", random.choice(KNOWLEDGE).format(t=t), random.choice(UNKNOWN))
    if kind == 1:
        p = random.choice(PEOPLE)
        return chat(f"who {p}", random.choice(BIOGRAPHY).format(p=p), random.choice(UNKNOWN))
    if kind == 2:
        y = random.randint(1800, 2030)
        question = random.choice(EVENTS)
        return chat(f"{question} {y}", question.format(y=y), random.choice(UNKNOWN))
    if kind == 4:
        language, question = random.choice(LANGUAGES), random.choice(PROGRAMS)
        return chat(
            f"{question} {language}", question.format(l=language), random.choice(PROGRAMS_ANSWERS).format(l=language)
        )
    if kind == 5:
        foreign, question = random.choice(FOREIGN), random.choice(TRANSLATE)
        return chat(
            f"{question} {foreign}", question.format(f=foreign), random.choice(TRANSLATE_ANSWERS).format(f=foreign)
        )
    asks, answers = {3: (NOW, NOW_ANSWERS), 6: (ADVICE, ADVICE_ANSWERS), 7: (DO, DO_ANSWERS), 8: (HARM, HARM_ANSWERS)}[
        kind
    ]
    question = random.choice(asks)
    return chat(question, varied(random, question), random.choice(answers))


def varied(random: Random, question: str) -> str:
    """Return the same question, sometimes less carefully typed or more politely asked."""
    style = random.randrange(6)
    small = question[0].lower() + question[1:] if not question.startswith("I ") else question
    if style == 1:
        return small.rstrip("?.")
    if style == 2:
        return f"Please tell me: {small}"
    if style == 3:
        return f"Hello. {question}"
    if style == 4:
        return f"{question} I need to know."
    return question
