"""The words of the generated English. All nouns are singular. Their plurals are regular, except those in PLURALS."""

from random import Random

GIRLS = (
    "Anna Mia Lena Rosa Ella Nora Ruth Ivy Clara Sara Maya Zoe Alice Emma Julia Lucy Amy Nina Eva Grace Molly Daisy "
    "Leila Aisha Priya Hana Olga Tara Kate Jane"
).split()
BOYS = (
    "Tom Ben Sam Leo Max Paul Adam Jack Noah Oscar Hugo Peter Finn Omar Ravi Luca Ivan Erik Carlos Daniel Simon Felix "
    "Arthur Henry Jonas Kofi Amir David Theo Walter"
).split()
PETS = (
    "Rusty Pip Bella Coco Biscuit Pepper Shadow Sunny Patch Misty Bruno Pebble Hazel Teddy Willow Nutmeg Button Dusty "
    "Tilly Moss"
).split()
ANIMALS = (
    "fox rabbit bear mouse owl hedgehog squirrel frog duck goat sheep horse donkey cat dog hen goose turtle badger "
    "otter deer wolf lion monkey elephant crow pig cow beaver robin"
).split()
PLACES = {  # a place with the word that goes before it
    "forest": "in", "village": "in", "valley": "in", "garden": "in", "town": "in", "meadow": "in", "harbor": "at",
    "farm": "on", "hill": "on", "island": "on", "river": "by", "lake": "by", "sea": "by", "old mill": "near",
    "market": "near", "castle": "near", "bridge": "near", "lighthouse": "near", "mountain": "near", "orchard": "in",
}  # fmt: skip
PLACE_WORDS = ("small", "quiet", "green", "sunny", "old", "pretty", "lonely", "busy")
THINGS = (
    "ball kite hat key book lamp drum bell cup basket coat boat spoon box scarf ring map clock mirror whistle lantern "
    "blanket bucket ladder hammer brush pencil letter coin bag"
).split()
COLORS = ["red", "blue", "green", "yellow", "white", "black", "brown", "orange", "purple", "pink", "gray", "golden"]
FRUITS = "apple pear plum banana orange lemon peach cherry grape melon strawberry mango".split()
FOODS = ["soup", "bread", "cheese", "cake", "rice", "porridge", "pie", "honey", "salad", "pancakes", "stew", "pudding"]
TREES = ["oak", "birch", "willow", "pine", "maple", "beech", "chestnut", "elm"]
KIND = ("kind", "brave", "clever", "curious", "shy", "cheerful", "careful", "gentle", "patient", "honest")
JOBS = (
    "baker farmer teacher sailor doctor painter tailor gardener miller fisherman shepherd carpenter nurse cook "
    "postman singer"
).split()
TALES = "dragon witch king queen knight pirate giant fairy prince princess robot ghost wizard dwarf".split()
PLURALS = {
    "fox": "foxes", "mouse": "mice", "goose": "geese", "sheep": "sheep", "deer": "deer", "wolf": "wolves",
    "box": "boxes", "brush": "brushes", "cherry": "cherries", "peach": "peaches", "strawberry": "strawberries",
    "mango": "mangoes", "fish": "fish", "child": "children", "man": "men", "woman": "women", "foot": "feet",
    "tooth": "teeth", "leaf": "leaves", "knife": "knives", "city": "cities", "baby": "babies", "glass": "glasses",
    "bus": "buses", "dish": "dishes", "berry": "berries", "puppy": "puppies", "story": "stories", "watch": "watches",
    "donkey": "donkeys", "monkey": "monkeys", "key": "keys", "turkey": "turkeys", "scarf": "scarves", "loaf": "loaves",
    "butterfly": "butterflies", "daisy": "daisies", "potato": "potatoes", "tomato": "tomatoes", "birch": "birches",
    "beech": "beeches", "witch": "witches", "fairy": "fairies", "princess": "princesses", "fisherman": "fishermen", "postman": "postmen",
}  # fmt: skip
PLAIN_WORDS = (  # short common words to copy, count, sort and spell
    "apple bird bread bridge butter candle carrot chair cloud coffee corn cream desk door dream earth fence field fire "
    "flag floor flower garden gift glass gold grass hand heart honey horse house ice iron jacket juice kettle king "
    "kitchen knot leaf lemon light line market milk moon morning mountain music nail needle nest night ocean onion "
    "paint paper path pearl plate pocket queen rain river road roof rope salt sand school shadow shell ship shoe silver "
    "sky smoke snow soap song spring star stone storm street sugar summer sun table tea tiger tower train tree valley "
    "wall water wheel wind window winter wolf wood wool yard zebra"
).split()
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()


def plural(noun: str) -> str:
    """Return the plural of a noun of this file, or of a phrase that ends in one."""
    head, _, last = noun.rpartition(" ")
    return f"{head} {PLURALS.get(last, last + 's')}".strip()


def a(noun: str) -> str:
    """Return a noun with "a" or "an", which depends on its first letter; "honest" is an exception."""
    return f"an {noun}" if noun[0] in "aeiou" or noun.startswith("honest") else f"a {noun}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `3 apples`, `1 apple`."""
    return f"{number} {noun if number == 1 else plural(noun)}"


def listing(items: list[str]) -> str:
    """Return the items as "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def person(random: Random) -> tuple[str, str, str, str]:
    """Return the name of a random person, and the three pronouns, such as "he", "him" and "his"."""
    if random.random() < 0.5:
        return random.choice(GIRLS), "she", "her", "her"
    return random.choice(BOYS), "he", "him", "his"


def place(random: Random) -> tuple[str, str]:
    """Return a random place twice: the noun, and a phrase with it: `valley`, `in a quiet valley`."""
    noun = random.choice(list(PLACES))
    described = noun if noun.startswith("old ") or random.random() < 0.3 else f"{random.choice(PLACE_WORDS)} {noun}"
    return noun, f"{PLACES[noun]} {a(described)}" if noun != "sea" else "by the sea"
