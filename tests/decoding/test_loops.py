"""A reply that repeats itself without end is stopped, at the same token whatever a step brings."""

import pytest
from each import each
from scripted_drafters import OffChain, Oracle, RandomBranches
from table_model import TableModel

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive
from localspec.events import Done, Text
from localspec.repetition import EVERY, LOOP

VOCABULARY, MOST = 26, 3000
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
WATCHED = Limits(MOST, loop_prompt="Go on.")
GREEDY, DRAWN = Sampling(), Sampling(temperature=0.02, seed=3)


def replied(session: Session, prompt: list[int], sampling: Sampling, limits: Limits) -> tuple[list[int], Done]:
    """Return the tokens of a reply; session and cache must hold exactly them."""
    *events, done = session.generate(prompt, sampling, limits)
    assert isinstance(done, Done)
    ids = [token for event in events if isinstance(event, Text) for token in event.tokens]
    assert ids == list(done.statistics.token_ids)
    assert session.tokens == [*prompt, *ids] and session.cache.length == len(session.tokens) - 1
    return ids, done


def plain(model: TableModel, sampling: Sampling, limits: Limits) -> tuple[list[int], Done]:
    return replied(Session(model, Autoregressive(), Budget(0)), PROMPT, sampling, limits)


@pytest.mark.slow
@each("seed, sampling", [(0, GREEDY), (1, DRAWN), (2, GREEDY)])
def test_drafts_of_any_length_do_not_change_where_a_loop_is_cut(seed: int, sampling: Sampling) -> None:
    model = TableModel(VOCABULARY, seed, spread=4.0)
    whole, _ = plain(model, sampling, Limits(MOST))
    cut, done = plain(model, sampling, WATCHED)
    assert done.reason == "repetition" and LOOP <= len(cut) < MOST and len(cut) % EVERY == 0
    assert cut == whole[: len(cut)]
    text = [*PROMPT, *whole]
    drafters: list[tuple[int, Drafter]] = [
        *((depth, Oracle(text, depth=depth, vocabulary=VOCABULARY)) for depth in (1, 3, 7, 31)),
        (12, OffChain(text, depth=6, vocabulary=VOCABULARY)),
        (9, RandomBranches(text, seed=seed, vocabulary=VOCABULARY)),
    ]
    for nodes, drafter in drafters:
        session = Session(model, drafter, Budget(nodes))
        drafted, done = replied(session, PROMPT, sampling, WATCHED)
        assert (drafted, done.reason) == (cut, "repetition")
        assert done.statistics.steps < len(cut) - 1, "nothing was drafted"
        more = [*PROMPT, *cut, 7, 7, 2]
        after = Session(model, Autoregressive(), Budget(0))
        assert replied(session, more, sampling, Limits(20))[0] == replied(after, more, sampling, Limits(20))[0]


def test_without_a_prompt_to_judge_by_a_loop_continues_to_its_limit() -> None:
    ids, done = plain(TableModel(VOCABULARY, 0), GREEDY, Limits(MOST))
    assert (len(ids), done.reason) == (MOST, "length")
