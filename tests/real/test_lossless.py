"""Text with drafts is the text without, bit for bit, on published models: what the product promises.

Plain decoding reads every prompt from its beginning, so a cache that is wrong after an edit shows, too.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock
from real.texts import ASKED, CODE, long_document
from real.whole_matrix import WHOLE_MATRIX

from localspec import Engine
from localspec.chat.conversation import Conversation, saved_conversation
from localspec.choosing.choose import choose
from localspec.choosing.measure import LAYERS, MeasurementCache
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.engine.model_profile import ModelProfile
from localspec.events import Done, Event, Text
from localspec.models.registry import resolve
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.store.store import Store

NODES = 8
TOKENS = 32 if "WHOLE_MATRIX" in os.environ else 12  # of a reply
LETTERS = 14_000  # of a text of 3,900 tokens: with prompts and replies 4,000 and more
KEPT = (*range(10), *range(20, 28))  # layers that draft
HOW = {"greedy": Sampling(), "seeded": Sampling(temperature=0.8, top_p=0.95, seed=45)}
ANOTHER = {"greedy": Sampling(), "seeded": Sampling(temperature=0.8, top_p=0.95, seed=46)}  # for another answer
WITHOUT_TRAINING = (
    "phrases", "lookahead", "lookahead+phrases", "layers", "layers+phrases", "draft_model", "draft_model+phrases", "ouroboros",
)  # fmt: skip
FORMS = [(packing, how) for packing in ("int8", "int4") for how in HOW]
COVERING = {
    (drafter, *FORMS[(0, 1, 3, 2)[n % 4]]) for n, drafter in enumerate(WITHOUT_TRAINING)
}  # every form with two of them
EVERY = [(drafter, *form) for drafter in WITHOUT_TRAINING for form in FORMS]


class Said(NamedTuple):
    """A reply, and the situation it was made in."""

    situation: str
    text: str
    token_ids: tuple[int, ...]
    reason: str


class Plays:
    """Conversations with one model in one packing, sampled in one way, about a text or nothing."""

    def __init__(self, target: Path, packing: str, how: str, text: str = "") -> None:
        self.card, self.packing, self.how = resolve(str(target)), packing, how
        self.first = f"{text}\nSummarise the text above." if text else f"{ASKED[0]}\n\n{CODE[0]}"
        self.second, self.edited = "Say that again, word by word.", "Now the same for a tuple."

    def settings(self, drafter: str) -> Settings:
        drafts = {} if drafter == "none" else {"draft_max": NODES}
        return Settings(drafter=drafter, quantize=self.packing, device="cpu", threads=1, **drafts)

    def without_drafts(self, store: Store) -> list[Said]:
        """Return every reply by plain decoding, in a session that knows nothing of the others."""
        engine = Engine.open(self.settings("none"), self.card, store=store, notice=pytest.fail)

        def answer(situation: str, messages: Sequence[str], sampling: Sampling) -> Said:
            new, roles = Engine(engine.choice, store=store, share_with=engine), ("user", "assistant")
            turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(messages)]
            return collected(situation, new.chat(turns, sampling, Limits(TOKENS)))

        first = answer("first", [self.first], HOW[self.how])
        said = [first, answer("second", [self.first, first.text, self.second], HOW[self.how])]
        said.append(answer("regenerated", [self.first, first.text, self.second], ANOTHER[self.how]))
        edited = answer("edited", [self.first, first.text, self.edited], HOW[self.how])
        turns = [self.first, first.text, self.edited, edited.text, self.second]
        return [*said, edited, answer("resumed", turns, HOW[self.how])]

    def with_drafts(self, drafter: str, store: Store) -> tuple[list[Said], int]:
        """Return the same replies, as a chat asks for them, and how many drafted tokens were accepted.

        A turn is answered again, then edited, and another engine continues the saved conversation.
        """
        settings = self.settings(drafter)
        if "layers" in drafter:  # which is else found out by a probe of minutes
            measurements = MeasurementCache(store)
            profile = ModelProfile.of(
                choose(self.card, replace(settings, drafter="none", draft_max="auto")), measurements
            )
            profile.remember(LAYERS, [MeasuredLayers(KEPT, (0.5, 0.2))])
        engine = Engine.open(settings, self.card, store=store, notice=pytest.fail)
        conversation = Conversation(store.history, self.card.name, notice=pytest.fail)

        accepted = 0

        def ask(situation: str, conversation: Conversation, asked: Engine, prompt: str, sampling: Sampling) -> Said:
            nonlocal accepted
            said = collected(situation, conversation.ask(asked, prompt, sampling, Limits(TOKENS)))
            accepted += asked.session.statistics.accepted
            return said

        said = [ask("first", conversation, engine, self.first, HOW[self.how])]
        said.append(ask("second", conversation, engine, self.second, HOW[self.how]))
        said.append(ask("regenerated", conversation.branch(1), engine, self.second, ANOTHER[self.how]))
        edited = conversation.branch(1)
        said.append(ask("edited", edited, engine, self.edited, HOW[self.how]))
        saved = saved_conversation(store.history, edited.id)
        resumed = Conversation.resume(store.history, saved, self.card.name, notice=pytest.fail)
        new = Engine(engine.choice, store=store, share_with=engine)
        said.append(ask("resumed", resumed, new, self.second, HOW[self.how]))
        return said, accepted


def collected(situation: str, events: Iterable[Event]) -> Said:
    text, done = "", None
    for event in events:
        text += event.text if isinstance(event, Text) else ""
        done = event if isinstance(event, Done) else None
    assert done is not None
    return Said(situation, text, done.statistics.token_ids, done.reason)


@pytest.fixture(scope="session")
def plain(imported: Callable[[str, str], Path], shared: Path) -> Callable[..., list[Said]]:
    """plain(name, packing, how, text): the replies without drafts, which one process of the session makes."""

    @cache
    def make(name: str, packing: str, how: str, text: str = "") -> list[Said]:
        file = shared / f"plain-{name}-{packing}-{how}-{len(text)}.json"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                with Store.open(file.with_suffix(".db"), pytest.fail) as store:
                    said = Plays(imported(name, packing), packing, how, text).without_drafts(store)
                file.write_text(json.dumps(said))
            return [Said(*one[:2], tuple(one[2]), one[3]) for one in json.loads(file.read_text())]

    return make


Compare = Callable[..., None]


@pytest.fixture
def compare(tmp_path: Path, imported: Callable[[str, str], Path], plain: Callable[..., list[Said]]) -> Compare:
    """compare(name, packing, how, drafter, text=""): assert that drafts are of use and change no reply."""

    def same(name: str, packing: str, how: str, drafter: str, text: str = "") -> None:
        expected = plain(name, packing, how, text)
        with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
            said, accepted = Plays(imported(name, packing), packing, how, text).with_drafts(drafter, store)
        assert said == expected
        assert accepted > 0, "no draft was of use, so the test showed nothing"

    return same


@pytest.fixture
def other(packing: str, imported: Callable[[str, str], Path]) -> Path:
    """Return SmolLM2 in the other packing, as its own draft model."""
    return imported("smollm2", "int4" if packing == "int8" else "int8")


every = pytest.mark.parametrize(("drafter", "packing", "how"), EVERY)


@pytest.mark.parametrize(
    ("drafter", "packing", "how"), [pytest.param(*one, marks=() if one in COVERING else WHOLE_MATRIX) for one in EVERY]
)
def test_drafts_change_no_text_of_smollm2(drafter: str, packing: str, how: str, other: Path, compare: Compare) -> None:
    compare("smollm2", packing, how, named(drafter, other))


@WHOLE_MATRIX
@every
def test_drafts_change_no_text_after_4000_tokens(
    drafter: str, packing: str, how: str, other: Path, compare: Compare
) -> None:
    compare("smollm2", packing, how, named(drafter, other), long_document(LETTERS))


@WHOLE_MATRIX
@every
def test_drafts_of_the_small_qwen_change_no_text_of_the_larger(
    drafter: str, packing: str, how: str, imported: Callable[[str, str], Path], compare: Compare
) -> None:
    small = imported("qwen-0.5b", "int4" if how == "greedy" else "int8")
    compare("qwen-1.5b", packing, how, named(drafter, small))


def named(drafter: str, small: Path) -> str:
    """Return the name of a drafter with its small model, where it takes one."""
    kind, mark, phrases = drafter.partition("+")
    return f"{kind}:{small}{mark}{phrases}" if kind in ("draft_model", "ouroboros") else drafter
