"""Conversations in turns and branches on SmolLM2: no token is read twice, and the text stays the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from real.test_lossless import HOW, KEPT, NODES, named
from real.whole_matrix import WHOLE_MATRIX

from localspec import Engine
from localspec.choosing.choose import choose
from localspec.choosing.measure import LAYERS, MeasurementCache
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.engine.model_profile import ModelProfile
from localspec.events import Done, Text
from localspec.models.registry import resolve
from localspec.models.s3d_prediction import MeasuredLayers
from localspec.store.store import Store

THINGS = ("river", "bridge", "kettle")
TURNS, TOKENS, CONTEXT = 7, 16, 272
SYSTEM = {"role": "system", "content": "You answer in one short sentence, kindly and without lists. " * 3}


@WHOLE_MATRIX  # tests/drafters/test_parked.py tries tiny models, and sees more
@pytest.mark.parametrize(
    ("drafter", "how"),
    [
        ("ouroboros", "seeded"), ("none", "greedy"), ("lookahead+phrases", "greedy"), ("phrases", "seeded"),
        ("layers", "seeded"), ("draft_model", "greedy"),
    ],
)  # fmt: skip
def test_conversations_in_turns_past_a_full_context_and_a_tiny_budget(
    drafter: str, how: str, tmp_path: Path, imported: Callable[[str, str], Path]
) -> None:
    card = resolve(str(imported("smollm2", "int8")))
    drafts = {} if drafter == "none" else {"draft_max": NODES}
    settings = Settings(
        drafter=named(drafter, imported("smollm2", "int4")), quantize="int8", device="cpu", threads=1, context=CONTEXT,
        **drafts,
    )  # fmt: skip
    with Store.open(tmp_path / "localspec.db", pytest.fail) as store:
        if drafter == "layers":
            choice = choose(card, replace(settings, drafter="none", draft_max="auto"))
            profile = ModelProfile.of(choice, MeasurementCache(store))
            profile.remember(LAYERS, [MeasuredLayers(KEPT, (0.5, 0.2))])
        engine = Engine.open(settings, card, store=store, notice=pytest.fail)
        plain = Engine(replace(engine.choice, drafter="none", nodes=0, trained=(), draft=None), phrases="off")
        parked = engine.session.parked
        assert parked is not None

        def say(asked: Engine, messages: list[dict[str, str]]) -> tuple[str, Done]:
            events = list(asked.chat(messages, HOW[how], Limits(TOKENS)))
            assert isinstance(events[-1], Done)
            return "".join(one.text for one in events if isinstance(one, Text)), events[-1]

        talks = {thing: [SYSTEM] for thing in THINGS}
        read = reused = dropped = 0
        for turn in range(TURNS):
            if turn == TURNS - 2:  # two of three go
                room = engine.session.cache.nbytes
                parked._budget = lambda held, room=room: room
            for thing, messages in talks.items():
                messages.append({"role": "user", "content": f"Say {turn} words about the {thing}, and why it is so."})
                ways = [messages]
                if turn == 3:  # another branch first, then this one
                    ways.insert(0, [*messages[:-1], {"role": "user", "content": "What else?"}])
                for way in ways:
                    plain.session.rewind(0)
                    expected, text = say(plain, way), say(engine, way)
                    assert text[0] == expected[0] and text[1].reason == expected[1].reason, (turn, thing)
                    assert text[1].statistics.token_ids == expected[1].statistics.token_ids
                    dropped = max(dropped, text[1].statistics.dropped_turns)
                    if 0 < turn < TURNS - 2:
                        read += text[1].statistics.prompt_tokens
                        reused += text[1].statistics.reused_tokens
                    assert parked.nbytes <= parked.budget
                messages.append({"role": "assistant", "content": text[0]})
    assert dropped and reused > 0.8 * read
