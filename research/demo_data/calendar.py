"""Exercises about days, months, dates, clock times and units. The answers are computed, so they are right."""

from datetime import date, timedelta
from random import Random

from demo_data.drawing import Drawing, chat
from demo_data.words import NUMBER_WORDS, capital

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = "January February March April May June July August September October November December".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
UNITS = {  # (large, small): how many small ones a large one holds, and the largest number asked
    ("meter", "centimeter"): (100, 20), ("kilometer", "meter"): (1000, 20), ("centimeter", "millimeter"): (10, 50),
    ("kilogram", "gram"): (1000, 20), ("liter", "milliliter"): (1000, 20), ("hour", "minute"): (60, 10),
    ("minute", "second"): (60, 10), ("day", "hour"): (24, 5), ("week", "day"): (7, 12), ("year", "month"): (12, 10),
    ("dozen", "egg"): (12, 10), ("dollar", "cent"): (100, 20), ("century", "year"): (100, 20),
    ("decade", "year"): (10, 20), ("kilobyte", "byte"): (1000, 20), ("megabyte", "kilobyte"): (1000, 20),
    ("gigabyte", "megabyte"): (1000, 20),
}  # fmt: skip


def units_word(number: int, word: str) -> str:
    """Return a number with its unit: `1 century`, `3 centuries`, `2 dozen`."""
    if number == 1 or word == "dozen":
        return f"{number} {word}"
    return f"{number} {word[:-1] + 'ies' if word.endswith('y') and word != 'day' else word + 's'}"


def weekday(random: Random) -> Drawing:
    """Return a question about the weekday before or after another one, or some days from it."""
    day, steps = random.randrange(7), random.randint(1, 10)
    name = DAYS[day]
    exercise = random.choice((
        ("", random.choice((f"What day comes after {name}?", f"Which day is after {name}?")), f"{DAYS[(day + 1) % 7]} comes after {name}."),
        ("", random.choice((f"Today is {name}. What day is tomorrow?", f"If today is {name}, what is tomorrow?")), f"Tomorrow is {DAYS[(day + 1) % 7]}."),
        ("", random.choice((f"What day comes before {name}?", f"Which day is before {name}?")), f"{DAYS[day - 1]} comes before {name}."),
        ("", random.choice((f"Today is {name}. What day was yesterday?", f"If today is {name}, what was yesterday?")), f"Yesterday was {DAYS[day - 1]}."),
        (f"{name} + {steps}", random.choice((f"Today is {name}. What day will it be in {units_word(steps, 'day')}?", f"What day is it {units_word(steps, 'day')} after {name}?")), f"It will be {DAYS[(day + steps) % 7]}."),
        (f"{name} - {steps}", f"Today is {name}. What day was it {units_word(steps, 'day')} ago?", f"It was {DAYS[(day - steps) % 7]}."),
    ))  # fmt: skip
    key, question, answer = exercise
    return chat(key or question, question, answer)  # what can only be known is held out by its wording


def month(random: Random) -> Drawing:
    """Return a question about the order or the length of months."""
    number = random.randrange(12)
    name = MONTHS[number]
    length = (date(2025 + (number == 11), (number + 1) % 12 + 1, 1) - timedelta(1)).day
    long = "February has 28 days, and 29 in a leap year." if number == 1 else f"{name} has {length} days."
    exercise = random.choice((
        ("", f"Which month comes after {name}?", f"{MONTHS[(number + 1) % 12]} comes after {name}."),
        ("", f"Which month comes before {name}?", f"{MONTHS[number - 1]} comes before {name}."),
        ("", random.choice((f"How many days does {name} have?", f"How long is {name}?", f"How many days are in {name}?")), long),
        ("", f"Which month is number {number + 1}?", f"Month number {number + 1} is {name}."),
        ("", f"Which month of the year is {name}?", f"{name} is the {ORDINALS[number]} month of the year."),
    ))  # fmt: skip
    _, question, answer = exercise
    return chat(question, question, answer)


def dated(random: Random) -> Drawing:
    """Return a question about a date: its other form, the next day, the days between two dates, or leap years."""
    day = date(random.randint(1950, 2035), 1, 1) + timedelta(random.randrange(365))
    long_date = f"{MONTHS[day.month - 1]} {day.day}, {day.year}"
    later = day + timedelta(1)
    gap = random.randint(2, 12)
    first = day.replace(day=random.randint(1, 28 - gap))
    month_name = MONTHS[day.month - 1]
    leap = day.year % 4 == 0 and (day.year % 100 != 0 or day.year % 400 == 0)
    exercise = random.choice((
        (f"long {day}", random.choice((f"Write {day} in words.", f"Write the date {day} with the name of the month.")), f"{long_date}"),
        (f"iso {day}", random.choice((f"Write {long_date} as year-month-day.", f"Write {long_date} in numbers.")), f"{day}"),
        (f"next {day}", f"What is the day after {long_date}?", f"The day after is {MONTHS[later.month - 1]} {later.day}, {later.year}."),
        (f"gap {month_name} {first.day} {gap}", f"How many days are there from {month_name} {first.day} to {month_name} {first.day + gap}?", f"{first.day + gap} - {first.day} = {gap}. There are {gap} days."),
        (f"leap {day.year}", f"Is {day.year} a leap year?", f"{'Yes' if leap else 'No'}, {day.year} is {'' if leap else 'not '}a leap year."),
        (f"year {day}", f"Which year is in this date: {long_date}?", f"{day.year}"),
    ))  # fmt: skip
    return chat(*exercise)


def clock(random: Random) -> Drawing:
    """Return a question about the time in some hours, some hours ago, or in some minutes of the same hour."""
    hour, steps = random.randint(1, 12), random.randint(1, 11)
    minute = random.choice(range(0, 40, 5))
    more = random.choice(range(5, 60 - minute, 5))
    exercise = random.choice((
        (f"{hour} + {steps}", f"It is {hour} o'clock. What time will it be in {units_word(steps, 'hour')}?", f"It will be {(hour + steps - 1) % 12 + 1} o'clock."),
        (f"{hour} - {steps}", f"It is {hour} o'clock. What time was it {units_word(steps, 'hour')} ago?", f"It was {(hour - steps - 1) % 12 + 1} o'clock."),
        (f"{hour}:{minute} + {more}", f"It is {hour}:{minute:02}. What time is it in {more} minutes?", f"{minute} + {more} = {minute + more}. It will be {hour}:{minute + more:02}."),
    ))  # fmt: skip
    return chat(*exercise)


def convert(random: Random) -> Drawing:
    """Return a task to convert a quantity from one unit to another, without fractions."""
    (large, small), (factor, most) = random.choice(list(UNITS.items()))
    number = random.randint(1, most)
    many, few = units_word(number * factor, small), units_word(number, large)
    rule = f"{'1' if large != 'dozen' else 'One'} {large} is {units_word(factor, small)}."
    plural_small, plural_large = units_word(2, small)[2:], units_word(2, large)[2:]
    if random.random() < 0.6 or large == "dozen":
        question = random.choice(
            (
                f"How many {plural_small} are {few}?",
                f"Convert {few} to {plural_small}.",
                f"{few} in {plural_small}",
                f"How many {plural_small} are in {few}?",
            )
        )
        return chat(
            f"{few} {small}",
            capital(question),
            f"{rule} {number} x {factor} = {number * factor}. {capital(few)} {'is' if number == 1 or large == 'dozen' else 'are'} {many}."
            if number > 1
            else rule,
        )
    question = random.choice((f"Convert {many} to {plural_large}.", f"How many {plural_large} are {many}?"))
    return chat(
        f"{many} {large}",
        question,
        f"{rule} {number * factor} / {factor} = {number}. {many} {'is' if number == 1 else 'are'} {few}.",
    )


def known(random: Random) -> Drawing:
    """Return a question that every calendar answers, such as how many days a week has."""
    exercise = random.choice((
        ("How many days are in a week?", "A week has seven days."),
        ("How many months are in a year?", "A year has twelve months."),
        ("How many hours are in a day?", "A day has 24 hours."),
        ("How many minutes are in an hour?", "An hour has 60 minutes."),
        ("How many seconds are in a minute?", "A minute has 60 seconds."),
        ("How many days are in a year?", "A year has 365 days, and a leap year has 366."),
        ("Name the days of the week.", ", ".join(DAYS[:-1]) + " and Sunday."),
        ("Name the months of the year.", ", ".join(MONTHS[:-1]) + " and December."),
        ("Name the four seasons.", "Spring, summer, autumn and winter."),
        ("Which is the first month of the year?", "January is the first month of the year."),
        ("Which is the last month of the year?", "December is the last month of the year."),
        ("Which month is the shortest?", "February is the shortest month."),
        ("Which days are the weekend?", "Saturday and Sunday are the weekend."),
        ("Write the numbers from one to ten in words.", ", ".join(NUMBER_WORDS[1:11])),
    ))  # fmt: skip
    return Drawing((), exercise)


def draw(random: Random) -> Drawing:
    """Return an exercise of a random kind from this file."""
    return random.choices((weekday, month, dated, clock, convert, known), (4, 3, 5, 3, 6, 0.1))[0](random)
