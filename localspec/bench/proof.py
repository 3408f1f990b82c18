"""The proof of losslessness: replies with and without speculation, compared token for token."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from localspec.engine.importing import ready
from localspec.errors import UsageMistake
from localspec.events import Reporter
from localspec.models.registry import TargetCard
from localspec.quantities import precision_in_words
from localspec.text import safe
from localspec.weights.checkpoint import inspect

if TYPE_CHECKING:
    from localspec import Choice, Engine, Sampling, Statistics
    from localspec.config import Settings

TEMPERATURE = 0.8

# Kinds of text that suit drafts from phrases and kinds that do not: both must leave the reply unchanged.
PROMPTS = (
    "Who are you?",
    "Tell me a short story about a lighthouse keeper and a storm.",
    "Write a Python function that says whether a number is prime.",
    "List ten animals that live in the sea, one on each line.",
    'Repeat this sentence five times: "The quick brown fox jumps over the lazy dog."',
    "Explain in three sentences why the sky is blue.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "Escribe un poema corto sobre el mar.",
    "用中文介绍一下长城。",
    "日本の四季について短く説明してください。",
    "Расскажи коротко о Пушкине.",
    "اكتب جملة عن القمر.",
    "Translate into emoji: a dog 🐶 and a cat 🐱 play in the rain 🌧️.",
    "Count from 1 to 40, with commas between the numbers.",
    "Write a table in Markdown of the planets and how far they are from the sun.",
    "What is 17 times 23? Show every step.",
    'Complete this JSON: {"name": "Ada", "born": 1815, "languages": [',
    "Copy this, and change nothing:\nfor i in range(3):\n    for j in range(3):\n        print(i, j)\n",
    "Say yes or no: is a tomato a fruit?",
    "aaaa bbbb aaaa bbbb aaaa bbbb — go on with this.",
)


@dataclass(frozen=True)
class Divergence:
    """The first place where two replies to the same prompt differ. None instead of a text means that the reply ended
    there.

    `gap` is the target's logit of the plain token minus the other token's logit. `repeatable` says that plain decoding
    gives the same reply again, so that speculation must have changed it.
    """

    prompt: int  # from 1
    sampling: str
    token: int  # of the reply, from 1
    plain: str | None
    speculative: str | None
    gap: float
    repeatable: bool

    def sentence(self, precision: str) -> str:
        """Return a sentence about where the texts differ, and what to do."""
        first, second = (
            "the end" if text is None else json.dumps(text, ensure_ascii=False)
            for text in (self.plain, self.speculative)
        )
        where = f"prompt {self.prompt} ({self.sampling}), token {self.token} of the reply"
        if self.repeatable:
            finding, remedy = f"With drafts the text differs at {where}: {second} instead of {first}", "use --no-spec"
        else:
            finding = f"Two runs of plain decoding differ at {where}: {first}, then {second}"
            remedy = "use another --dtype"
        return (
            f"{finding}. The two logits differ by {self.gap:.2g} ({precision}). To avoid this, {remedy}, and please "
            "report this line."
        )


@dataclass(frozen=True)
class Proof:
    """The result of a proof: `same` of `replies` replies were equal. A `divergence` ends the comparison.

    `rows` is the number of rows of the widest forward; `drafted` and `accepted` count tokens.
    """

    model: str
    revision: str
    drafter: str
    device: str
    engine: str
    dtype: str
    quantize: str
    bits_per_weight: float | None
    exactness: str
    rows: int
    replies: int
    same: int
    drafted: int
    accepted: int
    divergence: Divergence | None

    @property
    def precision(self) -> str:
        """The model's precision, and how exact replies are, such as `bf16, bitwise`."""
        return f"{precision_in_words(self.dtype, self.quantize, self.bits_per_weight)}, {self.exactness}"


def prove(model: str, settings: "Settings", prompts: int, max_tokens: int, reporter: Reporter) -> Proof:
    """Compare every reply with and without speculation, until two differ.

    Raises UsageMistake if nothing would be drafted, and the errors of loading.
    """
    card = ready(model, settings, reporter)
    inspect(card.path)
    reporter.progress(f"loading {card.name}")

    # torch is needed from here on; importing it takes a second.
    from localspec import Engine
    from localspec.store.store import Store

    choice = _choice(card, settings, reporter)
    # A separate store: phrases of this proof are used in it, and nothing of it is saved.
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "localspec.db", reporter.notice) as store:
        plain = Engine(replace(choice, drafter="none", nodes=0), store=store, reporter=reporter)
        speculative = Engine(choice, store=store, reporter=reporter, share_with=plain)
        replies, compared, drafted, accepted, divergence = 2 * prompts, 0, 0, 0, None
        reporter.progress(f"reply 1 of {replies}")
        for case, expected, actual in _pairs(plain, speculative, prompts, max_tokens):
            drafted, accepted = drafted + actual.drafted, accepted + actual.accepted
            if actual.token_ids != expected.token_ids:
                divergence = _divergence(plain, case, expected, actual, max_tokens)
                break
            compared += 1
            number = min(compared // 2 + 1, replies)
            reporter.progress(f"reply {number} of {replies}")
    return Proof(
        model=card.name, revision=plain.revision, drafter=choice.drafter, device=choice.device, engine=choice.engine,
        dtype=choice.dtype, quantize=choice.quantize, bits_per_weight=round(choice.bits, 3) or None,
        exactness="bitwise",  # otherwise the engine would have refused
        rows=choice.nodes + 1, replies=replies, same=compared // 2, drafted=drafted, accepted=accepted,
        divergence=divergence,
    )  # fmt: skip


def _choice(card: TargetCard, settings: "Settings", reporter: Reporter) -> "Choice":
    """Return a choice that drafts, even if drafts do not pay. Raises UsageMistake if nothing would draft."""
    from localspec.choosing.choose import choose
    from localspec.choosing.measure import MeasurementCache, Measurements
    from localspec.choosing.plans import AUTO_NODES
    from localspec.store.store import user_store

    with user_store(reporter.notice, create=False) as store:
        measurements = Measurements(MeasurementCache(store, reporter), settings.exact, settings.context)
        choice = choose(card, settings, measurements=measurements)
        if (choice.drafter, settings.drafter, settings.draft_max) == ("none", "auto", "auto"):
            choice = choose(card, replace(settings, draft_max=AUTO_NODES), measurements=measurements)
    if choice.drafter == "none":
        raise UsageMistake("Without a drafter there is nothing to compare; leave --drafter and --draft-max out.")
    return replace(choice, fixed=True)


class _Case(NamedTuple):
    """One reply to compare: the number of its prompt, from 1, the prompt, and the sampling."""

    number: int
    prompt: str
    sampling: "Sampling"


def _pairs(
    plain: "Engine", speculative: "Engine", prompts: int, max_tokens: int
) -> Iterator[tuple[_Case, "Statistics", "Statistics"]]:
    """Yield pairs of replies, by plain decoding and with speculation, both greedy and seeded.

    Speculation answers each prompt twice, so that it has learned phrases the second time.
    """
    from localspec import Sampling

    for index in range(prompts):
        cycle, position = divmod(index, len(PROMPTS))
        prompt = f"{PROMPTS[position]} ({cycle + 1})" if cycle else PROMPTS[position]
        for sampling in (Sampling(), Sampling(temperature=TEMPERATURE, seed=index)):
            case = _Case(index + 1, prompt, sampling)
            expected = _reply(plain, case, max_tokens)
            for _ in range(2):
                yield case, expected, _reply(speculative, case, max_tokens)


def _reply(engine: "Engine", case: _Case, max_tokens: int) -> "Statistics":
    from localspec import Done, Limits

    engine.session.rewind(0)  # both start from the same text, so that only speculation differs
    *_, done = engine.chat([{"role": "user", "content": case.prompt}], case.sampling, Limits(max_tokens))
    assert isinstance(done, Done)
    return done.statistics


def _divergence(
    plain: "Engine", case: _Case, expected: "Statistics", actual: "Statistics", max_tokens: int
) -> Divergence:
    """Return where `actual` differs from `expected`, the reply of plain decoding.

    If plain decoding does not reproduce `expected`, return where its second reply differs instead.
    """
    repeated = _reply(plain, case, max_tokens)
    repeatable = repeated.token_ids == expected.token_ids
    if not repeatable:
        actual = repeated
    both = list(zip_longest(expected.token_ids, actual.token_ids))
    index = next(index for index, (token, other) in enumerate(both) if token != other)
    ends = sorted(plain.target.stop_tokens)
    expected_tokens, actual_tokens = ([token] if token is not None else ends for token in both[index])
    # The session has the tokens of `repeated`, which are the same up to the difference.
    prefix = plain.session.tokens[: expected.prompt_tokens + index]
    gap = max(min(plain.gap(prefix, token, other) for other in actual_tokens) for token in expected_tokens)
    texts = [None if token is None else safe(plain.target.decode([token])) for token in both[index]]
    sampling = "greedy" if case.sampling.greedy else f"temperature {TEMPERATURE}, seed {case.sampling.seed}"
    return Divergence(case.number, sampling, index + 1, texts[0], texts[1], gap, repeatable)
