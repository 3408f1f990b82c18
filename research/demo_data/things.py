"""Questions about common things: descriptions, riddles, differences and lists by kind, with one right answer each."""

from dataclasses import dataclass
from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.words import COLORS, NUMBER_WORDS, a, capital, listing, plural


@dataclass(frozen=True)
class Thing:
    """A thing that the examples mention. `does` follows its name in a sentence, as in "a cow gives milk". The last three fields may be empty."""

    name: str
    kind: str
    looks: str
    does: str
    where: str = ""
    eats: str = ""
    color: str = ""


THINGS = tuple(
    Thing(*(part.strip() for part in line.split("|")))
    for line in """
cow | farm animal | is large and has two horns | gives milk | on a farm | grass |
horse | farm animal | is tall and has a long mane | can run fast and carry people | on a farm | grass and oats |
pig | farm animal | is round and has a flat nose | likes to roll in the mud | on a farm | corn and roots | pink
sheep | farm animal | has thick wool | gives wool | on a farm | grass | white
goat | farm animal | has two horns and a beard | can climb on rocks | on a farm | grass and leaves |
hen | farm animal | has feathers and a red comb | lays eggs | on a farm | seeds and worms |
dog | pet | has four legs and a tail | can bark and guard the house | in a house | meat |
cat | pet | has soft fur and whiskers | can catch mice and purr | in a house | meat and fish |
rabbit | animal | is small and has long ears | can hop | in a meadow | grass and carrots |
mouse | animal | is very small and has a long tail | can hide in a tiny hole | in a field | seeds and cheese | gray
fox | wild animal | has red fur and a bushy tail | hunts at night | in a forest | mice and berries | red
bear | wild animal | is big and strong and has thick fur | sleeps through the winter | in a forest | berries, fish and honey | brown
wolf | wild animal | looks like a big gray dog | can howl and lives in a pack | in a forest | meat | gray
deer | wild animal | has long legs, and the male has antlers | can run and jump well | in a forest | grass and leaves | brown
squirrel | wild animal | is small and has a bushy tail | can climb trees and hides nuts | in a forest | nuts and seeds |
hedgehog | wild animal | is small and has many spines | rolls itself up when it is afraid | in a garden | insects and worms | brown
lion | wild animal | is a large cat, and the male has a mane | can roar | in the grassland | meat | yellow
elephant | wild animal | is very large and has a long trunk | can lift heavy things with its trunk | in the grassland | grass and leaves | gray
monkey | wild animal | has long arms and clever hands | can climb and swing in trees | in the jungle | fruit |
giraffe | wild animal | has a very long neck | can reach the highest leaves | in the grassland | leaves |
zebra | wild animal | looks like a horse with black and white stripes | can run fast | in the grassland | grass |
owl | bird | has big round eyes | hunts at night | in a forest | mice |
duck | bird | has a flat beak and webbed feet | can swim and fly | on a pond | water plants and insects |
penguin | bird | is black and white and cannot fly | can swim and dive very well | by the cold sea | fish |
robin | bird | is small and has a red breast | sings in the garden | in a garden | worms and insects |
frog | animal | is small and has long back legs | can jump and swim | by a pond | insects | green
fish | animal | has fins and scales | can swim and breathe under water | in the water | water plants and insects |
whale | animal | is the largest animal in the sea | can dive deep and breathes air | in the sea | small sea animals |
bee | insect | has wings and a sting | makes honey | in a hive | nectar from flowers |
ant | insect | is tiny and strong | lives with many others and carries food home | in an anthill | seeds and small insects |
butterfly | insect | has four colorful wings | flies from flower to flower | in a meadow | nectar from flowers |
spider | animal | has eight legs | spins a web | in a web | insects |
snail | animal | carries a shell on its back | moves very slowly | in a garden | leaves |
turtle | animal | has a hard shell | can hide in its shell | by a pond | plants and insects | green
apple | fruit | is round and has small seeds inside | grows on a tree | | |
banana | fruit | is long and curved | grows in warm countries | | | yellow
lemon | fruit | is oval | tastes sour | | | yellow
orange | fruit | is round and juicy | tastes sweet | | | orange
strawberry | fruit | is small and sweet | grows close to the ground | | | red
cherry | fruit | is small and round and has a stone | grows on a tree | | | red
plum | fruit | is oval and has a stone | grows on a tree | | | purple
carrot | vegetable | is long and pointed | grows under the ground | | | orange
potato | vegetable | is brown outside and white inside | grows under the ground | | |
tomato | vegetable | is round and soft | is good in a salad or a soup | | | red
onion | vegetable | has many layers | makes your eyes water when you cut it | | |
cabbage | vegetable | has many leaves that lie close together | is good in a soup | | | green
chair | piece of furniture | has four legs, a seat and a back | is for sitting on | in a room | |
table | piece of furniture | has a flat top and four legs | is for eating and working at | in a room | |
bed | piece of furniture | is long and soft | is for sleeping in | in a bedroom | |
shelf | piece of furniture | is a board on the wall | holds books and other things | on a wall | |
lamp | thing in the house | has a bulb | gives light | in a room | |
clock | thing in the house | has two hands and twelve numbers | shows the time | on a wall | |
mirror | thing in the house | is flat and made of glass | shows your face | on a wall | |
hammer | tool | has a heavy metal head and a handle | is for hitting nails | in a toolbox | |
saw | tool | has a blade with sharp teeth | is for cutting wood | in a toolbox | |
scissors | tool | has two blades | is for cutting paper and cloth | in a drawer | |
shovel | tool | has a long handle and a flat blade | is for digging | in a shed | |
broom | tool | has a long handle and stiff hair | is for sweeping the floor | in a corner | |
spoon | kitchen tool | has a small bowl and a handle | is for eating soup | in a kitchen | |
knife | kitchen tool | has a sharp blade | is for cutting food | in a kitchen | |
fork | kitchen tool | has several points | is for picking up food | in a kitchen | |
pot | kitchen tool | is round and made of metal | is for cooking | in a kitchen | |
car | vehicle | has four wheels and an engine | drives on roads | on a road | |
bicycle | vehicle | has two wheels and pedals | moves when you push the pedals | on a road | |
train | vehicle | is long and has many cars | runs on rails | on rails | |
boat | vehicle | is pointed in front | floats on water | on the water | |
airplane | vehicle | has two wings | flies through the air | in the sky | |
bus | vehicle | is long and has many seats | carries many people | on a road | |
drum | musical instrument | is round and hollow | sounds when you hit it | | |
flute | musical instrument | is a long pipe with holes | sounds when you blow into it | | |
piano | musical instrument | has black and white keys | sounds when you press its keys | | |
guitar | musical instrument | has six strings | sounds when you pluck its strings | | |
violin | musical instrument | has four strings | is played with a bow | | |
coat | piece of clothing | is long and thick | keeps you warm in winter | | |
hat | piece of clothing | is worn on the head | keeps off the sun | | |
scarf | piece of clothing | is long and soft | keeps your neck warm | | |
shoe | piece of clothing | has a sole | protects your foot | | |
glove | piece of clothing | has five fingers | keeps your hand warm | | |
oak | tree | has a thick trunk and strong branches | bears acorns | in a forest | |
pine | tree | has needles | stays green in winter | in a forest | | green
birch | tree | has white bark | loses its leaves in autumn | in a forest | | white
rose | flower | has soft petals and thorns | smells sweet | in a garden | |
sunflower | flower | is tall and has a large head | turns to the sun | in a field | | yellow
daisy | flower | is small and white with a yellow middle | opens in the morning | in a meadow | | white
baker | person | works early in the morning | bakes bread and cakes | in a bakery | |
farmer | person | works in the fields | grows food and keeps animals | on a farm | |
teacher | person | works with children | helps people to learn | in a school | |
doctor | person | works with sick people | helps people to get well | in a hospital | |
sailor | person | works on a ship | sails across the sea | on a ship | |
carpenter | person | works with wood | makes chairs, tables and doors | in a workshop | |
tailor | person | works with cloth | makes and mends clothes | in a workshop | |
""".strip().splitlines()
)
BY_KIND = {kind: [t.name for t in THINGS if t.kind == kind] for kind in dict.fromkeys(t.kind for t in THINGS)}
MORE = {  # only for lists
    "animal": [
        "dog",
        "cat",
        "horse",
        "cow",
        "sheep",
        "goat",
        "fox",
        "bear",
        "wolf",
        "rabbit",
        "mouse",
        "owl",
        "duck",
        "frog",
        "lion",
        "tiger",
        "elephant",
        "monkey",
    ],
    "fruit": [
        "apple",
        "pear",
        "plum",
        "banana",
        "orange",
        "lemon",
        "peach",
        "cherry",
        "grape",
        "melon",
        "strawberry",
        "mango",
    ],
    "vegetable": [
        "carrot",
        "potato",
        "tomato",
        "onion",
        "cabbage",
        "pea",
        "bean",
        "cucumber",
        "pumpkin",
        "radish",
        "spinach",
    ],
    "color": COLORS,
    "flower": ["rose", "tulip", "daisy", "sunflower", "lily", "violet", "poppy"],
    "tree": ["oak", "birch", "pine", "maple", "willow", "beech", "elm", "ash"],
    "bird": ["owl", "duck", "robin", "crow", "swan", "eagle", "sparrow", "penguin", "goose", "hen"],
    "tool": ["hammer", "saw", "shovel", "broom", "drill", "wrench", "rake"],
    "piece of furniture": ["chair", "table", "bed", "shelf", "desk", "sofa", "stool", "cupboard"],
    "vehicle": ["car", "bicycle", "train", "boat", "airplane", "bus", "truck", "tram"],
    "piece of clothing": ["coat", "hat", "scarf", "shirt", "sweater", "skirt", "dress", "jacket", "sock"],
    "musical instrument": ["drum", "flute", "piano", "guitar", "violin", "trumpet", "harp"],
    "job": ["baker", "farmer", "teacher", "doctor", "sailor", "carpenter", "tailor", "painter", "cook", "nurse"],
    "drink": ["water", "milk", "tea", "juice", "coffee", "lemonade", "cocoa"],
    "shape": ["circle", "square", "triangle", "rectangle", "oval", "star"],
    "room": ["kitchen", "bedroom", "bathroom", "cellar", "hall", "attic"],
    "season": ["spring", "summer", "autumn", "winter"],
}


def kinds(kind: str) -> str:
    """Return the plural of a kind: `pieces of furniture`."""
    head, of, rest = kind.partition(" of ")
    return {"person": "people", "thing in the house": "things in the house"}.get(kind, plural(head) + of + rest)


def with_article(name: str) -> str:
    return "a pair of scissors" if name == "scissors" else a(name)


def describe(random: Random) -> Drawing:
    """Return a question about what a thing is, with an answer of two to five sentences."""
    t = random.choice(THINGS)
    parts = [f"{capital(with_article(t.name))} is {a(t.kind)}.", f"It {t.looks}.", f"It {t.does}."]
    if t.kind == "person":
        parts = [f"{capital(a(t.name))} {t.looks}.", f"{capital(a(t.name))} {t.does}."]
    parts += [f"It lives {t.where}."] * bool(t.where and t.eats) + [f"It eats {t.eats}."] * bool(t.eats)
    parts += [f"You find it {t.where}."] * bool(t.where and not t.eats and t.kind != "person")
    parts += [f"It is {t.color}."] * bool(t.color)
    form = random.choice(
        (
            "What is {}?",
            "Describe {}.",
            "Tell me about {}.",
            "What do you know about {}?",
            "Explain what {} is.",
            "Can you describe {}?",
        )
    )
    return chat(form.format(with_article(t.name)), form.format(with_article(t.name)), " ".join(parts))


def ask(random: Random) -> Drawing:
    """Return one question about one thing, with its answer."""
    t = random.choice([t for t in THINGS if t.name != "scissors"])
    it, name = capital(a(t.name)), t.name
    pairs = [
        (random.choice((f"What kind of thing is {a(name)}?", f"Is {a(name)} {a(t.kind)}?")), f"{it} is {a(t.kind)}.")
    ]
    other = random.choice([k for k in BY_KIND if k not in (t.kind, "animal", "person") and t.kind not in k])
    if t.kind != "person":
        pairs = [
            (f"What kind of thing is {a(name)}?", f"{it} is {a(t.kind)}."),
            (f"Is {a(name)} {a(t.kind)}?", f"Yes, {a(name)} is {a(t.kind)}."),
        ]
        if not (t.kind.endswith("animal") or t.kind in ("pet", "bird", "insect")):
            pairs.append((f"Is {a(name)} {a(other)}?", f"No, {a(name)} is {a(t.kind)}."))
    else:
        pairs = [(f"What does {a(name)} do?", f"{it} {t.does}.")]
    if t.eats:
        pairs.append(
            (random.choice((f"What does {a(name)} eat?", f"What do {plural(name)} eat?")), f"{it} eats {t.eats}.")
        )
    if t.where:
        pairs.append(
            (
                f"Where do you find {a(name)}?" if not t.eats else f"Where does {a(name)} live?",
                f"You find {a(name)} {t.where}." if not t.eats else f"{it} lives {t.where}.",
            )
        )
    if t.color:
        pairs.append((f"What color is {a(name)}?", f"{it} is {t.color}."))
    if t.does.startswith("is for "):
        pairs.append((f"What is {a(name)} for?", f"{it} {t.does}."))
    if t.does.startswith("can "):
        pairs.append((f"What can {a(name)} do?", f"{it} {t.does}."))
    question, answer = random.choice(pairs)
    return chat(question, question, answer)


def riddle(random: Random) -> Drawing:
    """Return a riddle that describes a thing, with its answer."""
    t = random.choice([t for t in THINGS if t.name != "scissors"])
    start = f"It is {a(t.kind)}." if t.kind != "person" else "It is a person."
    text = " ".join([start, f"It {t.looks}.", f"It {t.does}."])
    return chat(
        f"riddle {t.name}",
        random.choice(("What am I thinking of? {}", "Guess what this is. {}", "A riddle: {} What is it?")).format(text),
        f"It is {a(t.name)}.",
    )


def differ(random: Random) -> Drawing:
    """Return a question about the difference between two things, with its answer."""
    first, second = random.sample([t for t in THINGS if t.name != "scissors"], 2)
    first_name, second_name = a(first.name), a(second.name)
    answer = f"{capital(first_name)} {first.looks}. {capital(second_name)} {second.looks}. {capital(first_name)} {first.does}, and {second_name} {second.does}."
    if first.kind != second.kind:
        answer = f"{capital(first_name)} is {a(first.kind)}, and {second_name} is {a(second.kind)}. {capital(first_name)} {first.does}, and {second_name} {second.does}."
    form = random.choice(
        ("What is the difference between {} and {}?", "How are {} and {} different?", "Compare {} with {}.")
    )
    return chat(f"differ {first.name} {second.name}", form.format(first_name, second_name), answer)


def name_some(random: Random) -> Drawing:
    """Return a request to name or list some things of one kind, with the answer."""
    kind = random.choice(list(MORE))
    number = random.randint(2, min(6, len(MORE[kind])))
    names = random.sample(MORE[kind], number)
    word = random.choice((str(number), NUMBER_WORDS[number]))
    key = f"name {number} {kind}"
    if random.random() < 0.5:
        question = random.choice(
            (
                f"Name {word} {kinds(kind)}.",
                f"Can you name {word} {kinds(kind)}?",
                f"Tell me {word} {kinds(kind)}.",
                f"Give me {word} {kinds(kind)}.",
            )
        )
        return chat(key, question, f"{capital(listing(names))}.")
    question = random.choice(
        (
            f"List {word} {kinds(kind)}.",
            f"Make a list of {word} {kinds(kind)}.",
            f"Write a list of {word} {kinds(kind)}.",
        )
    )
    return chat(
        key,
        question,
        "\n".join(f"{i}. {n}" for i, n in enumerate(names, 1))
        if "Make" not in question
        else "\n".join(f"- {n}" for n in names),
    )


def draw(random: Random) -> Drawing:
    """Return a question of a random kind from this file."""
    return random.choices((describe, ask, riddle, differ, name_some), (3, 4, 2, 2, 4))[0](random)
