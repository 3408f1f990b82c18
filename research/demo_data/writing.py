"""Short texts on request: sentences on a subject, rhymes, notes, invitations, reasons and everyday advice."""

from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.words import BOYS, FOODS, GIRLS, NUMBER_WORDS, THINGS, capital, place

SUBJECTS = {  # eight sentences each, in an order that any selection keeps
    "winter": "Winter is the coldest season.|The days are short, and the nights are long.|Snow lies on the roofs and the fields.|Many trees have no leaves.|People wear thick coats and warm gloves.|Children build snowmen and ride on sleds.|Some animals sleep until spring.|In the evening it is good to sit by the fire.",
    "summer": "Summer is the warmest season.|The sun rises early and sets late.|The fields are green and yellow.|People go swimming in the lake.|Children have holidays and play outside.|Strawberries and cherries are ripe.|Sometimes there is a thunderstorm in the evening.|The nights are short and mild.",
    "spring": "In spring the snow melts.|The days grow longer and warmer.|The first flowers come out of the earth.|Birds build their nests and sing.|The trees have new green leaves.|Farmers plant their seeds.|Lambs jump in the meadows.|People open their windows and let in the fresh air.",
    "autumn": "In autumn the leaves turn red and yellow.|The days become shorter.|The wind blows the leaves from the trees.|Apples and pears are ripe.|Squirrels hide nuts for the winter.|Many birds fly to the south.|In the morning there is often fog.|People make soup and light the first fires.",
    "the sea": "The sea is wide and deep.|Its water is salty.|Waves roll to the beach, one after another.|Gulls cry above the water.|Ships sail from one harbor to the next.|Many fish and other animals live in it.|On calm days it is as smooth as a mirror.|In a storm the waves are as high as houses.",
    "the forest": "The forest is quiet and green.|Tall trees stand close together.|Soft moss covers the ground.|Birds sing in the branches.|A deer walks between the trees.|Mushrooms and berries grow in the shade.|Sunlight falls through the leaves.|At night an owl calls.",
    "rain": "Rain comes from the clouds.|It begins with a few drops.|Then the drops fall on roofs and windows.|The streets become wet and shiny.|People open their umbrellas.|Plants and animals need the water.|Children like to jump into the puddles.|After the rain there is sometimes a rainbow.",
    "snow": "Snow is frozen water.|It falls in soft white flakes.|It makes the world quiet.|Roofs and trees look as if they were covered with sugar.|Children make snowballs.|Feet leave deep tracks in it.|When the sun is warm, it melts.|Then the rivers carry more water.",
    "the moon": "The moon moves around the earth.|It shines at night.|Its light comes from the sun.|Sometimes it is round and full.|Sometimes it looks like a thin bow.|It has mountains and dark plains.|Nothing grows there.|Sailors and children like to look at it.",
    "the sun": "The sun is a star.|It gives us light and warmth.|In the morning it rises in the east.|At noon it stands high in the sky.|In the evening it sets in the west.|Plants need its light to grow.|Clouds can hide it, but it is still there.|Nobody should look straight into it.",
    "a garden": "The garden lies behind the house.|A small path leads through it.|Roses grow by the fence.|In one corner there are carrots and beans.|Bees fly from flower to flower.|An old apple tree gives shade.|Somebody has left a watering can in the grass.|In the evening the flowers smell sweet.",
    "a village": "The village lies in a green valley.|It has one street and a small square.|In the middle stands an old church.|Next to it there is a bakery.|Everybody knows everybody.|Hens walk between the houses.|In the evening people sit in front of their doors.|At night it is very quiet.",
    "a market": "The market opens early in the morning.|Farmers bring fruit and vegetables.|There are stands with cheese, bread and honey.|People talk and laugh.|Some ask for the price.|A child tastes a cherry.|The baskets become heavy.|At noon the market closes, and the square is empty again.",
    "a school": "The school is a large building.|In the morning a bell rings.|Children learn to read, to write and to count.|The teacher writes on the board.|In the break they play in the yard.|Some eat an apple or a piece of bread.|There is a room full of books.|In the afternoon everybody goes home.",
    "a kitchen": "The kitchen is warm and bright.|A pot stands on the stove.|Soup is cooking in it.|Plates and cups are on the shelf.|There is a loaf of bread on the table.|The floor is clean.|It smells of onions and herbs.|Soon the family will sit down to eat.",
    "the night": "At night the sky is dark.|The stars come out.|Most people sleep.|The streets are empty.|An owl hunts in the forest.|A cat walks over the roof.|Somewhere a light is still burning.|In the east the sky slowly turns gray.",
    "the morning": "In the morning the sun rises.|The birds begin to sing.|People get up and wash.|They drink coffee or tea.|Children look for their shoes.|The first bus drives through the street.|The air is fresh and cool.|A new day begins.",
    "a river": "The river begins as a small spring.|It runs down from the mountain.|Smaller streams flow into it.|Fish swim in its clear water.|A mill stands on its bank.|Boats carry people to the other side.|It grows wider and slower.|In the end it flows into the sea.",
    "a mountain": "The mountain is high and steep.|Its top is white with snow.|Below there are dark woods.|A narrow path leads up.|Goats climb on the rocks.|The air is thin and cold.|From the top you can see far into the land.|In the evening it turns red in the last light.",
    "a farm": "The farm lies outside the village.|There is a house, a barn and a stable.|Cows and sheep stand in the meadow.|Hens look for seeds in the yard.|The farmer gets up very early.|He feeds the animals and milks the cows.|A dog guards the gate.|In autumn the barn is full of hay.",
    "a birthday": "A birthday comes once a year.|On this day a person becomes one year older.|Friends and family come to visit.|There is a cake with candles.|Everybody sings a song.|The guests bring gifts.|They play and eat together.|In the evening everybody is tired and happy.",
    "friendship": "A friend is somebody you can trust.|Friends help each other.|They laugh together.|They listen when one of them is sad.|Sometimes they quarrel.|Then they say that they are sorry.|A good friend tells the truth.|It takes time to become friends.",
    "books": "Books are made of many pages.|Some tell stories, and others explain things.|You can read them at home or on a train.|A good book makes you forget the time.|In a library you can borrow them.|Old books smell of paper and dust.|Children like books with pictures.|Whoever reads much learns many words.",
    "music": "Music is made of sounds.|People sing or play instruments.|A drum gives the beat.|A flute sounds high and clear.|Slow music can make us calm.|Fast music makes us want to dance.|It takes practice to play well.|Every country has its own songs.",
    "sleep": "Everybody needs sleep.|At night the body rests.|We lie in bed and close our eyes.|The breath becomes slow.|Some people dream.|Children sleep longer than grown people.|Without sleep we are tired and cannot think well.|In the morning we feel fresh again.",
    "water": "Water is clear and has no taste.|People, animals and plants need it.|It falls from the sky as rain.|It flows in rivers to the sea.|When it is very cold, it becomes ice.|When it is very hot, it becomes steam.|We use it to drink, to cook and to wash.|We should not waste it.",
    "bread": "Bread is made of flour, water and salt.|Most bread also needs yeast.|The baker mixes everything to a dough.|The dough rests and grows.|Then it goes into a hot oven.|After an hour the loaf is brown.|Fresh bread smells very good.|People eat it with butter, cheese or honey.",
    "a train ride": "The train stands in the station.|People get in and look for a seat.|A whistle sounds, and the train begins to move.|Houses and trees go by.|Some people read, and others sleep.|A child looks out of the window.|The train crosses a long bridge.|At last it stops, and everybody gets out.",
    "a dog": "A dog has four legs and a tail.|It can hear and smell very well.|It likes to run and to play.|When it is glad, it moves its tail.|It barks when somebody comes to the door.|It needs food, water and a walk every day.|A dog can learn many things.|It is a good friend of people.",
    "a cat": "A cat has soft fur and long whiskers.|It walks without a sound.|It can see well when it is nearly dark.|It catches mice.|It likes to sleep in the sun.|When it is content, it purrs.|It washes itself with its tongue.|A cat does what it wants.",
    "the rainbow": "A rainbow stands in the sky when there is sun and rain.|It has the form of a bow.|Its colors are red, orange, yellow, green, blue and violet.|Nobody can walk to its end.|It needs the sun behind you and the rain before you.|After a short time it is gone.|Sometimes there are two of them.|People are glad to see it.",
    "a storm": "Before a storm the air is heavy.|Dark clouds cover the sky.|The wind bends the trees.|Lightning flashes, and thunder rolls.|Rain falls in thick drops.|People close their windows.|Animals hide.|When it is over, the air is fresh.",
    "a house": "A house has walls and a roof.|It has a door and windows.|In the kitchen people cook.|In the bedroom they sleep.|In the living room they sit together.|The roof keeps off the rain.|Some houses have a cellar and an attic.|A house is a home for those who live in it.",
    "a tree": "A tree has roots, a trunk and branches.|The roots take water from the earth.|The leaves need light.|Birds build nests in it.|In summer it gives shade.|In autumn many trees lose their leaves.|Its wood can become a table or a boat.|Some trees are hundreds of years old.",
}  # fmt: skip
ASK_SENTENCES = (
    "Write {n} sentences about {s}.",
    "Tell me something about {s} in {n} sentences.",
    "{N} sentences about {s}, please.",
    "Can you write {n} sentences about {s}?",
    "I need {n} sentences about {s}.",
)
ASK_TEXT = (
    "Describe {s}.",
    "Write a short text about {s}.",
    "Write about {s}.",
    "Write a paragraph about {s}.",
    "Tell me something about {s}.",
)
RHYMES = {
    "the moon": "The moon looks in at my window tonight,|and covers my bed with silver light.|It smiles at the houses, it smiles at the sea,|and just for a moment it smiles at me.",
    "the sun": "The sun gets up and paints the hill,|and all the night grows bright and still.|It warms the cat, it warms the stone,|and nobody feels quite alone.",
    "rain": "The rain is tapping on the pane,|and tells me stories, soft and plain.|It fills the pond, it wakes the seed,|and gives the garden all its need.",
    "snow": "The snow came down without a sound|and laid a blanket on the ground.|The trees are white, the roofs are too,|and all the world is clean and new.",
    "a cat": "The cat lies sleeping in the sun,|and thinks that all its work is done.|It moves one ear, it hears a mouse,|and runs at once around the house.",
    "a dog": "My dog is waiting at the door,|he wants to run along the shore.|He barks at waves, he brings a stick,|and shakes himself, so wet and quick.",
    "the sea": "The sea is wide, the sea is deep,|it sings the little boats to sleep.|It comes and goes, it goes and stays,|and hums its song through all our days.",
    "spring": "The snow is gone, the grass is new,|the sky puts on its brightest blue.|A bird is building in the tree,|and sings its song for you and me.",
    "summer": "The days are long, the days are warm,|the bees fly out in one great swarm.|We swim and play till day is done,|and fall asleep still full of sun.",
    "autumn": "The leaves turn yellow, red and brown,|and one by one they all come down.|They dance a little in the air,|and lie at last most everywhere.",
    "winter": "The wind is cold, the night is long,|the stove is humming us a song.|We sit together, you and I,|while snow is falling from the sky.",
    "a friend": "A friend will share a piece of bread,|and stay when other people fled.|A friend will laugh, a friend will hear,|and far away is always near.",
    "a tree": "The tree has stood a hundred years,|it keeps the secrets that it hears.|Its roots are deep, its branches wide,|and birds are living safe inside.",
    "the night": "The night has come on quiet feet|and lights the lamps along the street.|The stars are out, the day is past,|and all the town is still at last.",
    "a bird": "A little bird sat on the wall|and sang its song for one and all.|Then up it went, so small, so light,|and in the clouds was out of sight.",
    "a book": "I opened up a book today,|and it has carried me away.|I sailed a ship, I found a key,|and came back home in time for tea.",
}  # fmt: skip
WHY = (
    ("Why do people sleep?", "People sleep so that the body and the mind can rest."),
    ("Why do we eat?", "We eat because food gives the body strength."),
    ("Why do birds fly south in autumn?", "Many birds fly south because they find more food where it is warm."),
    ("Why do leaves fall in autumn?", "Leaves fall because the tree saves water for the winter."),
    ("Why is it dark at night?", "It is dark at night because our side of the earth is turned away from the sun."),
    ("Why do we need water?", "We need water because every part of the body is made with it."),
    ("Why does ice melt?", "Ice melts because it becomes warmer."),
    ("Why do dogs bark?", "Dogs bark to warn, to call or to play."),
    ("Why do cats purr?", "Cats often purr because they are content."),
    ("Why do we wear coats in winter?", "We wear coats in winter because they keep us warm."),
    ("Why do bees visit flowers?", "Bees visit flowers to collect nectar for honey."),
    ("Why do plants need the sun?", "Plants need the sun because they make their food with its light."),
    ("Why do boats float?", "Boats float because they are lighter than the water they push away."),
    ("Why do we brush our teeth?", "We brush our teeth to keep them clean and healthy."),
    ("Why does a hedgehog roll up?", "A hedgehog rolls up because its spines protect it."),
    ("Why do some animals sleep in winter?", "Some animals sleep in winter because there is little food."),
    ("Why do people laugh?", "People laugh because something is funny or makes them happy."),
    ("Why do we say thank you?", "We say thank you to show that we are glad about something."),
    ("Why do people keep dogs?", "People keep dogs as friends and to guard the house."),
    ("Why should I tell the truth?", "You should tell the truth so that others can trust you."),
    ("Why do we sort things?", "We sort things so that we find them again."),
    ("Why does the moon shine?", "The moon shines because it throws back the light of the sun."),
    ("Why do we cook food?", "We cook food to make it soft, tasty and safe."),
    ("Why is honey sweet?", "Honey is sweet because it is full of sugar."),
)  # fmt: skip
ADVICE = (
    (("I cannot sleep.", "I have trouble sleeping.", "What helps when I cannot sleep?"), "Go to bed at the same time every day, and leave your phone in another room. A warm drink may help, too."),
    (("I keep forgetting things.", "How can I remember things better?", "I forget everything."), "Write things down in one place, and read the list every morning."),
    (("My room is a mess.", "How do I clean my room?", "How should I tidy my room?"), "Begin with one corner. Put away what you do not need, then go on with the next corner."),
    (("I have too much to do.", "I do not know where to begin.", "So much work!"), "Write a short list, and begin with the smallest task. One thing after another."),
    (("I had a quarrel with my friend.", "My friend is angry with me.", "I was unkind to my friend."), "Talk to your friend, listen first, and say that you are sorry if you were wrong."),
    (("How do I learn new words?", "I want to learn new words.", "How can I learn words by heart?"), "Learn five words a day, and say each of them in a sentence. Repeat them the next day."),
    (("I am nervous before my exam.", "Tomorrow I have an exam.", "I have a test tomorrow."), "Read your notes once more, go to bed early, and take a deep breath before you begin."),
    (("I keep putting off my homework.", "How do I stop putting things off?", "I never begin with my work."), "Set a clock to ten minutes and begin. When you have begun, it is easier to go on."),
    (("How do I make tea?", "How is tea made?", "Can you tell me how to make tea?"), "Boil some water, pour it over the tea, and wait for three minutes."),
    (("How do I boil an egg?", "How long does an egg boil?", "How can I cook an egg?"), "Put the egg into boiling water. After five minutes it is soft, and after ten minutes it is hard."),
    (("How do I plant a seed?", "I want to plant a flower.", "How can I grow a plant?"), "Put the seed into the earth, give it some water, and set it in the sun. Then be patient."),
    (("How do I wash my hands?", "How should I wash my hands?", "What is the right way to wash hands?"), "Use warm water and soap, rub your hands for twenty seconds, and dry them well."),
    (("What can I do on a rainy day?", "It is raining. What can I do?", "What shall I do inside?"), "You can read a book, bake a cake or write a letter to a friend."),
    (("What can I give my mother?", "I need an idea for a gift.", "What is a good gift?"), "Something that you made yourself is a good gift: a card, a cake or a picture."),
    (("I feel lonely.", "I have no friends here.", "I am new here and know nobody."), "I am sorry to hear that. Perhaps you can join a group that does what you like, or call somebody you know."),
    (("How can I save money?", "I spend too much money.", "My money is always gone."), "Write down what you buy for one week. Then you see what you can leave out."),
    (("How do I write a good letter?", "How should I begin a letter?", "I want to write a letter."), "Begin with the name, say in the first sentence why you write, and end with your own name."),
    (("How can I be more polite?", "What is polite?", "How do I speak politely?"), "Say please and thank you, listen, and let others finish what they say."),
)  # fmt: skip


def sentences(random: Random) -> Drawing:
    """Return a request for sentences on a subject, with two to six of them."""
    subject, text = random.choice(list(SUBJECTS.items()))
    pool = text.split("|")
    number = random.randint(2, 6)
    chosen = sorted(random.sample(range(len(pool)), number))
    answer = " ".join(pool[i] for i in chosen)
    if random.random() < 0.6:
        word = NUMBER_WORDS[number]
        question = random.choice(ASK_SENTENCES).format(n=word, N=capital(word), s=subject)
    else:
        question = random.choice(ASK_TEXT).format(s=subject)
    return chat(f"{subject} {chosen}", question, answer)


def rhyme(random: Random) -> Drawing:
    """Return a request for a poem, with a poem of two or four lines."""
    subject, text = random.choice(list(RHYMES.items()))
    form = random.choice(
        (
            "Write a poem about {}.",
            "Write a short poem about {}.",
            "A poem about {}, please.",
            "Can you write a rhyme about {}?",
            "Tell me a poem about {}.",
            "Do you know a poem about {}?",
        )
    )
    return Drawing((), (form.format(subject), capital(text.replace("|", "\n"))))


def note(random: Random) -> Drawing:
    """Return a request for a short letter with given contents, the letter, and sometimes a question about it."""
    name, sender = random.sample(GIRLS + BOYS, 2)
    thing, day, hour = (
        random.choice(THINGS),
        random.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]),
        random.randint(1, 8),
    )
    where, food = place(random)[0], random.choice(FOODS)
    letter = random.choice((
        (f"Write a note to thank {name} for the {thing}. My name is {sender}.", f"Dear {name},\n\nthank you very much for the {thing}. I am very happy with it.\n\nBest wishes\n{sender}", ("What is the note about?", f"{sender} thanks {name} for the {thing}.")),
        (f"Write an invitation to {name} for {day} at {hour} o'clock. My name is {sender}.", f"Dear {name},\n\nI would like to invite you for {day} at {hour} o'clock. I hope that you can come.\n\nBest wishes\n{sender}", ("When is it?", f"It is on {day} at {hour} o'clock.")),
        (f"Tell {name} in a letter that I lost the {thing} and that I am sorry. I am {sender}.", f"Dear {name},\n\nI have lost your {thing}, and I am very sorry. I will look for it again tomorrow.\n\nBest wishes\n{sender}", ("What was lost?", f"The {thing} was lost.")),
        (f"Write to {name} that I cannot come on {day}. I am {sender}.", f"Dear {name},\n\nI am sorry, but I cannot come on {day}. I hope to see you soon.\n\nBest wishes\n{sender}", ("On which day?", f"It is about {day}.")),
        (f"Write a birthday card for {name} from {sender}.", f"Dear {name},\n\nhappy birthday! I wish you a good day and a happy new year of life.\n\nBest wishes\n{sender}", ("Who is it for?", f"It is for {name}.")),
        (f"Invite {name} to eat {food} near the {where} on {day}. My name is {sender}.", f"Dear {name},\n\nwould you like to come and eat {food} with me near the {where} on {day}? I would be very glad.\n\nBest wishes\n{sender}", ("What will they eat?", f"They will eat {food}.")),
    ))  # fmt: skip
    order, answer, (question, reply) = letter
    more = (question, reply) if random.random() < 0.4 else ()
    return chat(f"note {name} {sender}", order, answer, *more)


def reason(random: Random) -> Drawing:
    """Return a question that asks why something is so, with its answer."""
    question, answer = random.choice(WHY)
    small = question[0].lower() + question[1:]
    form = random.choice(
        (
            question,
            question,
            small,
            small.rstrip("?"),
            f"Can you tell me {small}",
            f"I want to know: {small}",
            f"Do you know {small}",
        )
    )
    return chat(form, form, answer)


def advice(random: Random) -> Drawing:
    """Return a question about an everyday problem, with some advice."""
    asks, answer = random.choice(ADVICE)
    question = random.choice(asks)
    if not question.endswith("?") and random.random() < 0.6:
        question = f"{question} {random.choice(('What should I do?', 'What can I do?', 'Do you have an idea?', 'Can you help me?', 'Any advice?'))}"
    return chat(question, question, answer)


def draw(random: Random) -> Drawing:
    """Return a request of a random kind from this file."""
    return random.choices((sentences, rhyme, note, reason, advice), (6, 0.5, 3, 1, 1))[0](random)
