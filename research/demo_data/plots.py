"""The plots of the generated stories: sentences with alternatives, a summary, and questions whose answers the plot
fixes.

Slots in braces are replaced: N the hero, F a friend, {he} {him} {his} (capital {He} {His}) for the hero and {fhe}
{fhim} {fhis} ({Fhe}) for the friend; {thing}, {a_thing} with its article and color, {one_thing} with its article,
{color} {a_color}, {food}, {fruits}, {tree} {a_tree}. A beat is a part of one or two sentences; "" leaves it out.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """A plot of a story. Each of the `beats` has several alternatives; `asks` are (question, answer) pairs."""

    name: str
    title: str
    beats: tuple[tuple[str, ...], ...]
    summary: str
    asks: tuple[tuple[str, str], ...]


PLOTS = (
    Plot("lost thing", "The lost {thing}", (
        ("One morning {N} could not find {his} {color} {thing}.", "One day {N} lost {his} {color} {thing}.", "One day {his} {color} {thing} was gone."),
        ("{He} looked under the bed and behind the door, but it was not there.", "{He} looked in every corner of the house, but {he} did not find it.", "{He} searched the whole morning and found nothing."),
        ("{N} felt sad and went to {F}.", "Then {N} asked {F} for help.", "So {N} went to see {F} and told {fhim} about it."),
        ('"When did you see it last?" asked {F}.', '{F} said, "Let us think. Where did you use it last?"', '"We will look for it together," said {F}.'),
        ("{N} remembered that {he} had been under the {tree} tree the day before.", "Then {he} remembered the {tree} tree where {he} had played.", "{N} thought hard. {He} had slept under the {tree} tree!"),
        ("They ran there, and the {thing} was lying in the grass.", "They went there together and found the {thing} between the roots.", "And there it was: the {color} {thing} lay under the {tree} tree."),
        ("{N} was very happy and thanked {F}.", '"Thank you, {F}," said {N}, and they both laughed.', "{N} thanked {F} and never forgot the {thing} again."),
    ), "{N} lost {a_color} {thing}, and {F} helped {him} to find it under the {tree} tree.", (
        ("What did {N} lose?", "{N} lost {his} {color} {thing}."),
        ("Who helped {N}?", "{F} helped {N}."),
        ("Where was the {thing}?", "The {thing} was under the {tree} tree."),
        ("Why was {N} sad?", "{N} was sad because {he} had lost {his} {thing}."),
    )),
    Plot("storm", "The night of the storm", (
        ("One night there was a great storm.", "One evening the sky turned black, and a storm began.", "One night the wind was loud, and the rain did not stop."),
        ("{N} heard somebody knock at the door.", "Then {N} heard a knock at the door.", "In the middle of it somebody knocked at {his} door."),
        ("It was {F}, wet and cold.", "{F} stood there in the rain and shivered.", "Outside stood {F}, who was wet from head to foot."),
        ('"My roof is broken," said {F}. "May I stay here?"', '"The wind took my roof," said {F}.', '"Water is coming into my house," said {F}.'),
        ('"Come in," said {N}, and {he} gave {F} a blanket and some {food}.', "{N} let {fhim} in and made some warm {food}.", "{N} brought a dry blanket and a bowl of {food}."),
        ("They sat by the fire until the storm was over.", "They told each other stories until the rain stopped.", "{F} slept by the fire, and the wind grew quiet."),
        ("In the morning {N} helped {F} to mend the roof.", "The next day they mended the roof together.", "When the sun came up, they took a hammer and mended the roof."),
        ("From that day on they were the best of friends.", "{F} never forgot how kind {N} had been.", "After that, {F} often came to visit {N}."),
    ), "In a storm {F} lost {fhis} roof, and {N} let {fhim} stay and helped to mend it.", (
        ("Who knocked at the door?", "{F} knocked at the door."),
        ("Why did {F} come to {N}?", "{F} came because {fhis} roof was broken."),
        ("What did {N} give {F} to eat?", "{N} gave {F} some {food}."),
        ("What did they do in the morning?", "In the morning they mended the roof."),
    )),
    Plot("sharing", "Enough for two", (
        ("One day {N} found a basket full of {fruits}.", "One afternoon {N} picked a basket of {fruits}.", "One day {N} had a whole basket of {fruits}."),
        ('"These are all for me," {he} thought.', "{He} wanted to eat all of them alone.", "{He} hid the basket, because {he} did not want to share."),
        ("Then {F} came along the road.", "Just then {F} came by.", "Soon {F} walked past the gate."),
        ("{F} had not eaten all day and was very hungry.", '"I am so hungry," said {F}. "I have had nothing to eat today."', "{Fhe} looked tired and hungry."),
        ("{N} looked at the basket and felt sorry for {F}.", "{N} thought about it for a while.", "At first {N} said nothing, but then {he} felt ashamed."),
        ("{He} gave half of the {fruits} to {F}.", '"Take half of my {fruits}," said {N}.', "Then {he} put the basket between them, and they ate together."),
        ("The {fruits} tasted better than ever before.", "{F} smiled, and {N} was glad that {he} had shared.", "{N} found that eating together was much nicer than eating alone."),
    ), "{N} wanted to keep all the {fruits}, but shared them with {F}, who was hungry.", (
        ("What was in the basket?", "There were {fruits} in the basket."),
        ("Who was hungry?", "{F} was hungry."),
        ("What did {N} give to {F}?", "{N} gave half of the {fruits} to {F}."),
        ("Was {N} glad to share?", "Yes, {N} was glad to share."),
    )),
    Plot("learning to swim", "{N} learns to swim", (
        ("{N} was afraid of the water.", "{N} could not swim, and {he} was afraid of deep water.", "All the others could swim, but {N} could not."),
        ("On a hot day {F} was playing in the water.", "One hot day {F} jumped into the lake and laughed.", "One summer day {F} called {him} from the water."),
        ('"Come in, I will help you," said {F}.', '"I can teach you," said {F}. "It is not hard."', "{F} promised to stay close to {him}."),
        ("First {N} put one foot into the water.", "At first {N} only stood in the water up to {his} knees.", "{N} took a deep breath and went in slowly."),
        ("Then {he} moved {his} arms and legs, just as {F} did.", "{F} held {him} while {he} learned to kick.", "{He} tried and tried, and {F} showed {him} how."),
        ("{He} swallowed some water, but {he} did not give up.", "Twice {he} went under, and twice {he} came up again.", "It was hard, but {N} tried again every day."),
        ("After a week {N} could swim across the lake.", "At the end of the summer {N} swam all alone.", "And one day {N} swam as well as {F}."),
        ('"I am not afraid any more!" {he} shouted.', "{N} was proud, and {F} was proud of {him}.", "Now {he} loved the water more than anything."),
    ), "{N} was afraid of the water, but {F} taught {him} to swim.", (
        ("What was {N} afraid of?", "{N} was afraid of the water."),
        ("Who taught {N} to swim?", "{F} taught {N} to swim."),
        ("Could {N} swim at the end?", "Yes, at the end {N} could swim."),
    )),
    Plot("gift", "A gift for {F}", (
        ("It was the birthday of {F}.", "Tomorrow was the birthday of {F}.", "{F} had a birthday, and everybody was invited."),
        ("{N} wanted to give {fhim} something nice, but {he} had no money.", "{N} had no money for a gift.", "{N} thought about a gift, but {his} pocket was empty."),
        ("So {he} decided to make something.", '"Then I will make a gift myself," {he} thought.', "{He} had an idea and began to work."),
        ("{He} took wood and paint and made {a_thing}.", "For three days {he} worked, and then {a_thing} was ready.", "{He} worked until late at night and made {a_thing}."),
        ("{He} was worried that {F} would not like it.", "Was it good enough? {N} was not sure.", "The other gifts were large and shiny, and {N} became shy."),
        ("But when {F} saw the {thing}, {fhe} was full of joy.", "{F} opened the box and smiled at once.", "{F} looked at the {thing} for a long time and then hugged {N}."),
        ('"You made it yourself," said {F}. "It is the best gift of all."', '"I will keep it for ever," said {F}.', '"Nobody else has one like this," said {F}.'),
    ), "{N} had no money, so {he} made {a_thing} for the birthday of {F}.", (
        ("Whose birthday was it?", "It was the birthday of {F}."),
        ("What did {N} make?", "{N} made {a_thing}."),
        ("Why did {N} make a gift?", "{N} made a gift because {he} had no money."),
        ("Did {F} like the {thing}?", "Yes, {F} liked the {thing} very much."),
    )),
    Plot("lost way", "The way home", (
        ("One day {N} walked farther than ever before.", "One afternoon {N} followed a butterfly far away.", "One day {N} went to look for {fruits} and did not watch the path."),
        ("When it grew dark, {he} did not know the way home.", "Suddenly nothing looked the way {he} knew it.", "Then fog came up, and {he} could not see the path."),
        ("{N} sat down on a stone and began to cry.", "{N} was afraid, but {he} tried to stay calm.", '"I am lost," said {N}, and {his} voice was small.'),
        ("{F} heard {him} and came closer.", "Then a light came through the trees. It was {F} with a lantern.", "Not far away lived {F}, who heard {him}."),
        ('"Do not be afraid," said {F}. "I know the way."', '"I will take you home," said {F}.', '"Hold my hand," said {F}. "It is not far."'),
        ("They walked past the {tree} tree and over the bridge.", "They followed the river until they came to the {tree} tree.", "Step by step they went down the path to the old {tree} tree."),
        ("There {N} saw the lights of {his} house.", "Behind it was the house of {N}.", "And there was {his} own house, warm and bright."),
        ("{N} thanked {F} and invited {fhim} in for some {food}.", "{N} was glad to be home, and they ate {food} together.", "Since that day {N} always watches the path."),
    ), "{N} lost the way, and {F} brought {him} home.", (
        ("Why was {N} afraid?", "{N} was afraid because {he} was lost."),
        ("Who brought {N} home?", "{F} brought {N} home."),
        ("Which tree did they come to?", "They came to the {tree} tree."),
    )),
    Plot("seed", "The little seed", (
        ("One spring day {F} gave {N} a little seed.", "In spring {N} got a small seed from {F}.", "One day {N} found a seed, and {F} told {him} to plant it."),
        ("{N} put it into the earth and gave it some water.", "{N} dug a small hole, put the seed in and watered it.", "{He} planted it in a sunny corner."),
        ("Every day {he} looked, but nothing happened.", "For a week there was nothing to see.", "The days went by, and the earth stayed brown."),
        ("{N} wanted to give up.", '"It will never grow," said {N}.', "{N} grew impatient."),
        ('"Wait a little," said {F}. "Good things take time."', '"Be patient and give it water," said {F}.', "{F} told {him} to be patient."),
        ("So {N} watered the seed every morning.", "So {N} went on and did not forget a single day.", "{N} waited and took good care of it."),
        ("Then one morning a green leaf came out of the earth.", "After two weeks a tiny plant stood there.", "And one day there was a small green plant."),
        ("By summer it was a tall flower, and {N} was proud of it.", "In summer it had a big {color} flower.", "It grew and grew, and in summer {a_color} flower opened."),
    ), "{N} planted a seed, waited patiently, and a flower grew.", (
        ("Who gave advice to {N}?", "{F} gave advice to {N}."),
        ("What did {N} plant?", "{N} planted a seed."),
        ("What grew from the seed?", "A flower grew from the seed."),
    )),
    Plot("lie", "The truth", (
        ("One day {N} broke the {color} {thing} of {F}.", "While {he} was playing, {N} broke {a_thing} that belonged to {F}.", "By accident {N} dropped the {thing} of {F}, and it broke."),
        ("{N} was afraid and hid the pieces.", "{He} quickly hid it behind the {tree} tree.", "{He} put the pieces into a box and said nothing."),
        ('"Have you seen my {thing}?" asked {F}.', "In the evening {F} looked for the {thing} everywhere.", "{F} came and asked about the {thing}."),
        ('"No," said {N}, but {his} face turned red.', "{N} said that {he} did not know, but {he} felt bad.", '"I have not seen it," said {N}, and {he} looked at the floor.'),
        ("That night {he} could not sleep.", "All night {N} thought about it.", "{His} heart was heavy, and {he} did not sleep well."),
        ("In the morning {he} went to {F} and told the truth.", 'The next day {N} said, "I broke it, and I am sorry."', "At last {N} took the pieces to {F} and told {fhim} everything."),
        ('"Thank you for telling me," said {F}. "We can mend it together."', "{F} was not angry, because {N} had told the truth.", '"A thing can be mended," said {F}. "I am glad that you were honest."'),
        ("After that {N} felt light again.", "They mended it with glue, and {N} never lied to {F} again.", "{N} learned that the truth is easier than a lie."),
    ), "{N} broke the {thing} of {F} and hid it, but then told the truth.", (
        ("What did {N} break?", "{N} broke the {thing} of {F}."),
        ("Why could {N} not sleep?", "{N} could not sleep because {he} had lied."),
        ("Was {F} angry?", "No, {F} was not angry."),
    )),
    Plot("race", "The race", (
        ("One day there was a race from the {tree} tree to the bridge.", "Every year there was a race to the old {tree} tree.", "In autumn all the neighbors came together for a race."),
        ("{F} was the fastest, and everybody knew it.", '"I will win, as always," said {F}.', "{F} laughed at {N}, who was not very fast."),
        ("{N} started slowly but did not stop.", "{N} ran step by step and kept {his} breath.", "{N} was behind from the start, but {he} kept going."),
        ("{F} was so far ahead that {fhe} sat down to eat some {fruits}.", "Halfway {F} felt so sure that {fhe} lay down for a nap.", "{F} stopped on the way to talk and forgot the time."),
        ("{N} passed {fhim} quietly.", "So {N} went by and did not look back.", "{F} did not see how {N} went past."),
        ("When {F} began to run again, it was too late.", "{F} jumped up and ran, but {N} was already there.", "At the end {F} ran as fast as the wind, but {N} was first."),
        ("{N} had won the race.", "Everybody cheered for {N}, the winner.", "{N} got {a_thing} as a prize."),
        ('"Next time I will not stop," said {F}, and they shook hands.', "Slow and steady wins the race.", "{F} was not angry, and {fhe} never laughed at {N} again."),
    ), "{N} won a race against {F}, who was faster but stopped on the way.", (
        ("Who won the race?", "{N} won the race."),
        ("Who was the fastest?", "{F} was the fastest."),
        ("Why did {F} lose?", "{F} lost because {fhe} stopped on the way."),
    )),
    Plot("rescue", "Over the river", (
        ("One day {N} heard a cry from the river.", 'One morning {N} heard somebody call, "Help!"', "On the way to the market {N} heard a cry."),
        ("{F} had fallen into the water.", "It was {F}, who had slipped on a wet stone and fallen into the river.", "{F} was in the river and held on to a branch."),
        ("{N} did not know what to do at first.", "The water was fast and cold.", "There was nobody else near."),
        ("Then {he} saw a long rope by the {tree} tree.", "{He} looked around and found a long branch of the {tree} tree.", "{He} quickly fetched a rope that hung on the {tree} tree."),
        ("{He} threw it to {F} and pulled with all {his} strength.", '"Hold on!" {he} called, and {he} pulled {fhim} to the bank.', "{F} took hold of it, and {N} pulled slowly."),
        ("At last {F} was on dry ground.", "After a while {F} lay safe in the grass.", "{F} came out, wet but safe."),
        ("{N} wrapped {fhim} in a coat, and they went home for some hot {food}.", "They made a fire, and {F} drank hot tea.", '"You saved me," said {F}. "I will never forget it."'),
        ("Everybody said that {N} was very brave.", "From then on {F} was careful near the river.", "{F} gave {him} {a_thing} to say thank you."),
    ), "{F} fell into the river, and {N} pulled {fhim} out.", (
        ("Who fell into the river?", "{F} fell into the river."),
        ("Who saved {F}?", "{N} saved {F}."),
        ("Where did {N} find help?", "{N} found it by the {tree} tree."),
    )),
    Plot("music", "The song of {N}", (
        ("{N} loved to sing, but {he} was too shy to sing for others.", "{N} sang very well, but only when nobody was near.", "{N} had a beautiful voice, and nobody knew it."),
        ("One evening {F} heard {him} by chance.", "One day {F} walked past the window and stopped to listen.", "One day {F} stood behind the {tree} tree and heard a song."),
        ('"You sing like a bird!" said {F}.', '"That was lovely," said {F}. "You must sing at the feast."', "{F} clapped {fhis} hands and asked for more."),
        ("{N} turned red and shook {his} head.", '"I cannot do it," said {N}. "Everybody will look at me."', "{N} was afraid of so many people."),
        ('"Then look only at me," said {F}.', "{F} promised to sit in the first row.", '"I will sing the first line with you," said {F}.'),
        ("On the day of the feast {N} stood up, and {his} knees shook.", "When the feast came, {N} looked at {F} and began.", "At the feast {N} closed {his} eyes and sang softly."),
        ("Soon {his} voice was strong and clear.", "After the first line {he} forgot {his} fear.", "It became quiet, and everybody listened."),
        ("When the song was over, they all cheered, and {N} smiled.", "Now {N} sings at every feast.", '"Thank you, {F}," said {N}. "Without you I would never have tried."'),
    ), "{N} was too shy to sing, but {F} gave {him} courage to sing at the feast.", (
        ("What did {N} love to do?", "{N} loved to sing."),
        ("Who heard {N} by chance?", "{F} heard {N} by chance."),
        ("Where did {N} sing?", "{N} sang at the feast."),
    )),
    Plot("cooking", "The burnt {food}", (
        ("One day {N} wanted to cook {food} for {F}.", "{N} invited {F} and wanted to make {food}.", "One evening {N} cooked {food}, because {F} was coming."),
        ("{He} put everything into a pot and lit the fire.", "{He} washed the pot and made a good fire.", "{He} had never cooked before, but {he} was not worried."),
        ("Then {he} sat down with a book and forgot the time.", "While it was cooking, {he} played with {his} {thing}.", "But then {he} fell asleep in the chair."),
        ("Soon there was smoke everywhere.", "Suddenly {he} smelled smoke.", "Black smoke came out of the kitchen."),
        ("The {food} was black.", "All the {food} was burnt.", "Nothing was left of the {food} but coal."),
        ("Just then {F} knocked at the door.", "At that moment {F} came in.", "And there was {F}, who was hungry."),
        ('"I am sorry," said {N}. "I have burnt the {food}."', "{N} was ashamed and told {fhim} what had happened.", '"There is nothing to eat," said {N} sadly.'),
        ("{F} laughed, and they ate bread and {fruits} instead.", '"I like {fruits} better anyway," said {F}, and they laughed.', "So they made a new pot together, and this time it was good."),
    ), "{N} burnt the {food} for {F}, but they had a good evening all the same.", (
        ("What did {N} cook?", "{N} cooked {food}."),
        ("Who came to eat?", "{F} came to eat."),
        ("Why was there smoke?", "There was smoke because the {food} was burnt."),
    )),
    Plot("strange noise", "The noise in the night", (
        ("One night {N} heard a strange noise.", "In the middle of the night {N} woke up. There was a noise.", "When {N} was in bed, something went tap, tap, tap."),
        ("It came from the window and would not end.", "It came from outside and did not stop.", "It sounded like somebody at the wall."),
        ("{N} pulled the blanket over {his} head.", "{N} was afraid and did not move.", '"Is it a ghost?" thought {N}.'),
        ("Then {he} called {F}, who slept next door.", "At last {he} ran to {F} and woke {fhim}.", "{He} went quietly to {F} and asked for help."),
        ("They took a lantern and went out together.", "{F} lit a lamp, and they looked out of the window.", "Hand in hand they opened the door."),
        ("A branch of the {tree} tree was moving in the wind.", "It was only the {tree} tree, whose branch hit the window.", "The wind was moving the {tree} tree, and its branch hit the wall."),
        ('"So that is our ghost!" said {F}, and they both laughed.', "{N} laughed, and all {his} fear was gone.", '"I was afraid of a tree," said {N}, and {he} had to laugh.'),
        ("Then they went back to bed and slept well.", "In the morning they cut the branch.", "Since then {N} likes the sound of the wind."),
    ), "{N} was afraid of a noise at night, but it was only a branch of the {tree} tree.", (
        ("What did {N} hear?", "{N} heard a strange noise."),
        ("What made the noise?", "A branch of the {tree} tree made the noise."),
        ("Who went out with {N}?", "{F} went out with {N}."),
    )),
    Plot("trade", "A good trade", (
        ("{N} had {a_thing}, but {he} did not need it.", "{N} owned {a_thing} that {he} never used.", "On the shelf of {N} lay {a_thing}, full of dust."),
        ("{F} had a basket of {fruits} but wanted the {thing}.", "One day {F} came with a basket of {fruits} and saw it.", "{F}, who sold {fruits}, liked the {thing} very much."),
        ('"Will you give me the {thing} for my {fruits}?" asked {F}.', '"I will give you all my {fruits} for it," said {F}.', "{F} offered {fhis} {fruits} for the {thing}."),
        ("{N} thought about it and said yes.", "{N} was hungry, so {he} was glad to say yes.", '"That is a good trade," said {N}.'),
        ("{F} went home with the {thing} and was happy.", "{F} took the {thing} and danced down the road.", "{F} used the {thing} that very evening."),
        ("{N} made {food} and ate the {fruits} after it.", "{N} ate one of the {fruits} and kept the others for winter.", "{N} shared the {fruits} with {his} neighbors."),
        ("Both of them had what they needed.", "Both thought that they had made the better trade.", "A good trade makes two people happy."),
    ), "{N} gave {F} {a_thing} and got {fruits} for it.", (
        ("What did {N} have?", "{N} had {a_thing}."),
        ("What did {F} give for the {thing}?", "{F} gave {fruits} for the {thing}."),
        ("Were both happy?", "Yes, both were happy."),
    )),
    Plot("winter", "Before the winter", (
        ("It was autumn, and the leaves of the {tree} tree were falling.", "Autumn came, and the days grew short.", "The summer was over, and the wind was cold."),
        ("{N} gathered food for the winter, day after day.", "Every day {N} carried {fruits} into the house.", "{N} worked from morning to night and filled {his} house with food."),
        ("{F} only played and laughed.", "{F} lay in the sun and did nothing.", '"Why do you work so hard?" asked {F}. "Come and play!"'),
        ('"Winter is coming," said {N}. "You should gather food, too."', '"I want to have enough when it snows," said {N}.', "{N} told {fhim} that the winter would be long."),
        ('"There is still time," said {F}.', "But {F} did not listen.", "{F} only shook {fhis} head."),
        ("Then the snow came, and {F} had nothing to eat.", "Soon everything was white, and {F} was hungry.", "In the first cold week {F} had no food left."),
        ("{Fhe} knocked at the door of {N}.", "So {fhe} went to {N} and asked for help.", "At last {fhe} came to {N}, cold and hungry."),
        ("{N} gave {fhim} some {food}, and {F} promised to work next year.", '"Come in," said {N}. "But next year we will work together."', "{N} shared with {fhim}, and the next autumn {F} worked hardest of all."),
    ), "{N} gathered food for the winter and helped {F}, who had only played.", (
        ("Who gathered food?", "{N} gathered food."),
        ("Why was {F} hungry?", "{F} was hungry because {fhe} had gathered no food."),
        ("What season was it at the beginning?", "It was autumn."),
    )),
    Plot("new friend", "The new neighbor", (
        ("A new neighbor came to live near {N}.", "One day somebody moved into the empty house near {N}.", "The empty house had a new owner."),
        ("The name of the neighbor was {F}.", "It was {F}, who came from far away.", "{F} had come from the other side of the mountain."),
        ("{F} knew nobody and sat alone at the window.", "{F} was shy and did not come out.", "Nobody spoke to {F} in the first days."),
        ('"I will say hello," thought {N}.', "{N} saw it and had an idea.", "{N} felt sorry for {fhim}."),
        ("{He} made some {food} and took it to {F}.", "{He} filled a basket with {fruits} and knocked at the door.", "{He} took {his} {thing} and went over."),
        ('"Welcome!" said {N}. "My name is {N}. Would you like to play?"', '"Welcome," said {N}. "I live next door."', '"I am {N}," {he} said. "This is for you."'),
        ("{F} smiled for the first time.", "At first {F} said nothing, but then {fhe} smiled.", '"You are very kind," said {F}, and {fhis} eyes were bright.'),
        ("They played until evening, and they have been friends ever since.", "Soon they did everything together.", "Now {F} has a friend and is never lonely."),
    ), "{F} was new and lonely, and {N} became {fhis} friend.", (
        ("Who was new?", "{F} was new."),
        ("Why did {N} visit {F}?", "{N} visited {F} because {F} knew nobody."),
        ("Did they become friends?", "Yes, they became friends."),
    )),
    Plot("kite", "The kite in the tree", (
        ("On a windy day {N} took {his} {color} kite outside.", "One windy afternoon {N} flew {a_color} kite.", "The wind was good, and {N} ran with {his} {color} kite."),
        ("It flew higher and higher.", "Up it went, as high as the clouds.", "The kite danced in the sky."),
        ("Suddenly the wind blew it into a tall {tree} tree.", "Then the string broke, and the kite landed in {a_tree} tree.", "But then it came down and hung in the top of {a_tree} tree."),
        ("{N} jumped, but {he} could not reach it.", "{N} tried to climb up, but the tree was too tall.", "{He} shook the tree, but the kite did not fall."),
        ("{F} came by and saw the kite.", 'Then {F} asked, "What is wrong?"', "{F} heard {him} and came to help."),
        ("{F} fetched a ladder from the house.", '"Wait here," said {F}, and {fhe} brought a ladder.', "{F} had a long ladder in the garden."),
        ("{N} held the ladder, and {F} climbed up.", "Slowly {F} climbed up, while {N} held the ladder.", "They put it against the tree, and {F} went up."),
        ("Soon {N} had {his} kite back, and they flew it together.", '"Here it is!" called {F}, and {N} clapped {his} hands.', "Then they both flew the kite, far away from any tree."),
    ), "The kite of {N} hung in {a_tree} tree, and {F} got it down with a ladder.", (
        ("What color was the kite?", "The kite was {color}."),
        ("Where did the kite land?", "The kite landed in {a_tree} tree."),
        ("What did {F} fetch?", "{F} fetched a ladder."),
    )),
    Plot("honest finder", "The lost coin purse", (
        ("On the road {N} found a purse full of coins.", "One day {N} saw something {color} on the road. It was a purse full of coins.", "Under the {tree} tree {N} found {a_color} purse."),
        ("There was enough money in it for a new {thing}.", '"I could buy {one_thing} with it," {he} thought.', "{N} had always wanted {one_thing}, and now {he} could buy one."),
        ("But the purse belonged to somebody.", "Then {he} thought of the one who had lost it.", '"Somebody is looking for this," {he} thought.'),
        ("So {N} went from door to door and asked.", "{He} asked everybody on the road.", "{He} put the purse in {his} pocket and went to the market to ask."),
        ("At last {he} met {F}, who looked very worried.", "In the evening {he} came to {F}, who was looking for something.", "{F} was walking up and down and looking at the ground."),
        ('"I have lost my {color} purse," said {F}.', '"All my money was in my {color} purse," said {F}.', '"Have you seen {a_color} purse?" asked {F}.'),
        ("{N} gave it back at once.", '"Here it is," said {N}.', "{N} put the purse into {fhis} hand."),
        ("{F} was so glad that {fhe} bought {him} {a_thing}.", '"Thank you for being honest," said {F}, and {fhe} gave {him} a coin.', "{F} thanked {him}, and {N} went home with a light heart."),
    ), "{N} found a purse and gave it back to {F}.", (
        ("What did {N} find?", "{N} found a purse."),
        ("Whose purse was it?", "It was the purse of {F}."),
        ("Did {N} keep the money?", "No, {N} gave it back."),
    )),
    Plot("tower", "The tall tower", (
        ("One rainy day {N} and {F} built a tower out of boxes.", "{N} and {F} wanted to build the tallest tower in the world.", "One day {N} and {F} took all the boxes they had and began to build."),
        ("{N} put one box on the other, and {F} counted them.", "{F} gave {him} the boxes, and {N} put them up.", "Box by box the tower grew."),
        ('"Ten boxes!" said {F}. "It is high enough."', '"Stop," said {F}. "It is not straight."', "{F} wanted to stop, because the tower was shaking."),
        ('"Only one more," said {N}.', "But {N} wanted it to be even higher.", "{N} did not listen and took another box."),
        ("Then the tower fell down with a loud noise.", "Crash! All the boxes lay on the floor.", "The tower leaned to one side and fell."),
        ("For a moment nobody said a word.", "{N} looked at {F}, and {F} looked at {N}.", "{N} was near to tears."),
        ("Then they both began to laugh.", '"It was the best crash ever," said {F}, and they laughed.', '"I should have listened to you," said {N}. "Let us build it again."'),
        ("They built a new tower, and this time {N} stopped in time.", "The second tower was smaller, but it stood for a whole week.", "Together they built a wide house, and it did not fall."),
    ), "{N} and {F} built a tower, which fell because {N} made it too high.", (
        ("What did they build?", "They built a tower."),
        ("Why did the tower fall?", "The tower fell because {N} made it too high."),
        ("What was the tower made of?", "The tower was made of boxes."),
    )),
    Plot("star", "The star", (
        ("Every night {N} looked at one bright star.", "{N} loved the stars, and one of them most of all.", "From {his} window {N} saw a bright star."),
        ('"I want to have it," {he} said.', "{He} wanted to touch it.", "One night {he} decided to fetch it."),
        ("{He} climbed the highest hill, but the star was still far away.", "{He} climbed up the {tree} tree, but {he} could not reach it.", "{He} took a ladder and went up to the roof, but the star was too high."),
        ("Sad and tired, {he} sat down next to {F}.", "On the way back {he} met {F}.", "{F} saw {him} and asked what was wrong."),
        ('"Nobody can hold a star," said {F}. "But look into the water."', '"Come with me to the lake," said {F}.', "{F} smiled and led {him} to the water."),
        ("There was the star, small and bright, in the water.", "In the dark water lay the star, quite near.", "{N} looked into the water, and the star looked back at {him}."),
        ("{N} put {his} hand into the water, and the light danced around it.", "They sat there for a long time and watched it.", '"Now I can be near it," said {N}.'),
        ("Since then they meet at the lake on every clear night.", "{N} went home happy.", '"Thank you, {F}," said {N}. "I do not need to own it."'),
    ), "{N} wanted a star, and {F} showed {him} its light in the water.", (
        ("What did {N} want?", "{N} wanted a star."),
        ("Where did {F} lead {N}?", "{F} led {N} to the water."),
        ("Could {N} reach the star?", "No, {N} could not reach the star."),
    )),
)  # fmt: skip
