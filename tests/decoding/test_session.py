"""The session: after every reply, however it ended, text, tokens, cache and drafter end at one place."""

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice

import pytest
from each import each
from scripted_drafters import Breaking, OffChain, Oracle, RandomBranches, Witness
from tiny_models import Tiny, prompt_ids, read, stock_reply, word_tokenizer, write
from tokenizers import decoders
from transformers import LlamaConfig

from localspec.bench.race import on_its_own_clock
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool
from localspec.errors import UsageMistake
from localspec.events import Done, Event, Prefill, Text
from localspec.nn.target import Target

Make = Callable[[str], Tiny]
GREEDY = Sampling()
NODES = 8
NAME = "qwen3-grouped-mixed-window-wide-heads"


def done(events: Sequence[Event]) -> Done:
    last = events[-1]
    assert isinstance(last, Done)
    assert not any(isinstance(event, Done) for event in events[:-1])
    return last


def delivered(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def shown(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def assert_whole(session: Session) -> None:
    """Check that the cache ends one token short of the text, and the drafter where the text does."""
    assert session.cache.length == max(len(session.tokens) - 1, 0)
    drafter = session.drafter
    if isinstance(drafter, WithPhrases):
        assert drafter.pool.tokens == session.tokens
        drafter = drafter.inner
    if isinstance(drafter, Witness):
        assert drafter.tokens == session.tokens


def drafters(target: Target, *texts: Sequence[int]) -> Iterator[Drafter]:
    yield Autoregressive()
    vocabulary = target.vocab_size
    yield Oracle(*texts, vocabulary=vocabulary)
    yield OffChain(*texts, vocabulary=vocabulary)
    yield WithPhrases(RandomBranches(*texts, seed=1, vocabulary=vocabulary), PhrasePool(target.special_tokens))


def stopping(model: Tiny, *stops: int) -> Target:
    """Return the same target with other stop tokens."""
    target = copy.copy(model.target)
    target.stop_tokens = frozenset(stops)
    return target


@pytest.fixture(scope="module")
def speller(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Every id is one or two letters, so that a random model writes readable text; nothing stops it."""
    words = [*"abcdefghijklmnopqrstuvwxyz", *(first + second for first in "aeiou" for second in "bcdfgklm")]
    tokenizer = word_tokenizer(words)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=len(words), max_position_embeddings=96, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return read(write(tmp_path_factory.mktemp("model") / "speller", config, tokenizer, seed=11, spread=0.2))


# -- where a reply ends ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stop_token_inside_an_accepted_path_ends_the_reply_there(tiny: Make) -> None:
    model, prompt = tiny(NAME), prompt_ids(11, seed=1)
    text = stock_reply(model.stock, prompt, 30, stops=())
    follow = [*prompt, *text[:3], *prompt_ids(5, seed=2)]
    inside = 0
    for at in range(14):
        stop, first = text[at], text.index(text[at])
        target = stopping(model, stop)
        for drafter in drafters(target, prompt + text):
            session = Session(target, drafter, Budget(NODES))
            events = list(session.generate(prompt, GREEDY))
            last = done(events)
            assert last.reason == "stop"
            assert list(last.statistics.token_ids) == delivered(events) == text[:first]
            assert stop not in last.statistics.token_ids
            assert session.tokens == prompt + text[:first]
            assert_whole(session)
            rows = last.statistics.rows
            assert sum(rows.values()) == last.statistics.steps
            assert sum(count * (n - 1) for n, count in rows.items()) == last.statistics.drafted
            inside += last.statistics.steps > 0 and last.statistics.steps < first
            again = list(session.generate(follow, GREEDY, Limits(max_tokens=6)))
            assert delivered(again) == stock_reply(model.stock, follow, 6, stops=(stop,))
    assert inside > 10, "most stop tokens stood within a path of several tokens"


@pytest.mark.slow
@each("most", [1, 2, 3, 5, 8, 12])
def test_max_tokens_inside_an_accepted_path_ends_the_reply_there(tiny: Make, most: int) -> None:
    model, prompt = tiny(NAME), prompt_ids(11, seed=1)
    text = stock_reply(model.stock, prompt, 24, stops=())
    target = stopping(model)
    for drafter in drafters(target, prompt + text):
        session = Session(target, drafter, Budget(NODES))
        events = list(session.generate(prompt, GREEDY, Limits(max_tokens=most)))
        assert done(events).reason == "length"
        assert delivered(events) == list(done(events).statistics.token_ids) == text[:most]
        assert session.tokens == prompt + text[:most]
        assert_whole(session)
        # The text continues as if nothing had been cut.
        more = list(session.generate(prompt + text[:most], GREEDY, Limits(max_tokens=24 - most)))
        assert delivered(more) == text[most:]
        assert done(more).statistics.reused_tokens == len(prompt) + most - 1


def test_a_stop_token_at_once_gives_an_empty_reply(tiny: Make) -> None:
    model, prompt = tiny(NAME), prompt_ids(11, seed=1)
    target = stopping(model, *stock_reply(model.stock, prompt, 1, stops=()))
    session = Session(target, Oracle(), Budget(NODES))
    events = list(session.generate(prompt, GREEDY))
    assert done(events).reason == "stop"
    assert (shown(events), delivered(events), session.tokens) == ("", [], prompt)
    assert_whole(session)


@pytest.mark.slow
def test_a_stop_string_inside_an_accepted_path_cuts_text_tokens_cache_and_drafter_at_one_place(speller: Tiny) -> None:
    target, prompt = speller.target, list(range(9))
    ids = stock_reply(speller.stock, prompt, 26)
    whole = target.decode(ids)
    ends = [len(target.decode(ids[: count + 1])) for count in range(len(ids))]
    follow = [*prompt, *ids[:4], 20, 21, 22]
    answer = stock_reply(speller.stock, follow, 5)
    stops = {whole[at : at + length] for at in range(len(whole) - 3) for length in (1, 2, 3)}
    inside = 0
    for number, stop in enumerate(sorted(stops)):
        text = whole[: whole.index(stop)]
        tokens = ids[: sum(end <= len(text) for end in ends)]
        drafter = list(drafters(target, prompt + ids))[1 + number % 3]
        session = Session(target, drafter, Budget(NODES))
        events = list(session.generate(prompt, GREEDY, Limits(max_tokens=26, stop=["?", stop])))
        assert done(events).reason == "stop"
        assert shown(events) == text, stop
        assert delivered(events) == list(done(events).statistics.token_ids) == tokens
        assert session.tokens == prompt + tokens
        assert_whole(session)
        inside += 0 < done(events).statistics.steps < len(tokens)
        again = list(session.generate(follow, GREEDY, Limits(max_tokens=5)))
        assert delivered(again) == answer
        assert done(again).statistics.reused_tokens == min(len(prompt) + len(tokens) - 1, len(prompt) + 4)
    assert inside > 10


def test_sources_and_counts_add_up(speller: Tiny) -> None:
    target, prompt = speller.target, list(range(9))
    ids = stock_reply(speller.stock, prompt, 30)
    session = Session(target, Oracle(prompt + ids, vocabulary=60), Budget(NODES))
    events = list(session.generate(prompt, GREEDY, Limits(max_tokens=30)))
    numbers = done(events).statistics
    assert sum(numbers.sources.values()) == len(numbers.token_ids) == 30
    assert [source for event in events if isinstance(event, Text) for source in event.sources].count("oracle") == (
        numbers.sources["oracle"]
    )
    # The chain of four is right each time: six steps of four accepted nodes and a bonus token after the first pick.
    assert (numbers.steps, numbers.accepted, numbers.drafted) == (6, 24, 6 * 8)
    assert numbers.acceptance_length == 29 / 6, "the limit cuts the last bonus token off, so it was not committed"
    assert numbers.acceptance_by_depth == (1.0, 1.0, 1.0, 1.0)
    assert numbers.sources == {"target": 6, "oracle": 24}
    assert numbers.prompt_tokens == 9
    assert numbers.memory.cache == session.cache.nbytes
    assert numbers.memory.target == target.nbytes
    assert 0 < numbers.prefill_seconds <= numbers.first_token_seconds
    assert numbers.tokens_per_second == pytest.approx(29 / numbers.decode_seconds)
    assert numbers.off_reason is None


@pytest.mark.slow
def test_every_token_is_reported_by_the_draft_of_its_step(speller: Tiny) -> None:
    """One token of prefill, then each step's accepted nodes and the bonus token, and who proposed them."""
    target, prompt = speller.target, list(range(9))
    ids = stock_reply(speller.stock, prompt, 30)
    for drafter in drafters(target, prompt + ids):
        session = Session(target, drafter, Budget(NODES))
        told: list[tuple[int | None, str]] = [(None, "target")]
        said: list[tuple[int, str]] = []
        for event in session.generate(prompt, GREEDY, Limits(max_tokens=30, stop=("zz",))):
            if isinstance(event, Text):
                said += zip(event.tokens, event.sources, strict=True)
                for draft in event.drafts:
                    named = draft.sources or ["drafter"] * len(draft.tokens)
                    told += ((draft.tokens[node], named[node]) for node in draft.path[1:])
                    told.append((None, "target"))
                assert len(said) <= len(told), "a token comes with the draft of its step, or after it"
        assert [token for token, _ in said] == ids
        for (token, source), (drafted, proposer) in zip(said, told, strict=False):
            assert source == proposer and drafted in (None, token)


def test_the_weights_that_are_counted_are_the_stock_models(speller: Tiny) -> None:
    assert speller.target.nbytes == sum(weights.numel() * 4 for weights in speller.stock.parameters())


def test_times_of_a_reply_are_the_sums_of_its_steps(speller: Tiny) -> None:
    class Noting(Oracle):
        def observe(self, step: Step) -> None:
            super().observe(step)
            steps.append(step)

    steps: list[Step] = []
    session = Session(speller.target, Noting(), Budget(NODES))
    for _ in range(2):
        numbers = done(list(session.generate(list(range(9)), GREEDY, Limits(max_tokens=20)))).statistics
        assert numbers.draft_seconds == sum(step.draft_seconds for step in steps) > 0
        assert numbers.verify_seconds == sum(step.verify_seconds for step in steps) > 0
        assert numbers.draft_seconds + numbers.verify_seconds < numbers.decode_seconds
        steps.clear()


def test_a_clock_that_stands_still_counts_nothing_of_what_others_do_between_events(speller, monkeypatch):
    def told(wrap: Callable[[Session, Generator[Event, None, None]], Iterator[Event]]) -> tuple[float, float, float]:
        session, now = Session(speller.target, Autoregressive(), Budget(0)), [0.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])  # only others let time pass
        for _ in wrap(session, session.generate([1, 2, 3, 4], GREEDY, Limits(max_tokens=12))):
            now[0] += 1.0
        assert session.statistics is not None
        return (
            session.statistics.prefill_seconds, session.statistics.first_token_seconds, session.statistics.decode_seconds
        )  # fmt: skip

    assert told(on_its_own_clock) == (0.0, 0.0, 0.0)
    assert told(lambda _, events: events) == (1.0, 2.0, 11.0)


@pytest.mark.slow
def test_acceptance_by_depth_counts_only_nodes_whose_parent_was_accepted(speller: Tiny) -> None:

    class Sometimes(Oracle):
        turn = 0

        def tree(self, context: Context) -> DraftTree:
            self.turn += 1
            one, two = [*self.coming(context), 0, 0][:2]
            return DraftTree.chain([context.root, one, two if self.turn % 2 else (two + 1) % 60])

    prompt = list(range(9))
    ids = stock_reply(speller.stock, prompt, 40)
    session = Session(speller.target, Sometimes(prompt + ids), Budget(NODES))
    numbers = done(list(session.generate(prompt, GREEDY, Limits(max_tokens=21)))).statistics
    assert numbers.acceptance_by_depth == (1.0, 0.5)  # eight steps of three and two tokens in turn
    assert numbers.acceptance_length == 2.5
    assert numbers.rows == {3: 8}


@pytest.mark.slow
def test_the_context_is_filled_and_not_exceeded(speller: Tiny) -> None:
    target, prompt = speller.target, [index % 60 for index in range(80)]
    text = stock_reply(speller.stock, prompt, 16)
    for drafter in drafters(target, prompt + text):
        session = Session(target, drafter, Budget(NODES))
        events = list(session.generate(prompt, GREEDY))
        assert done(events).reason == "length"
        assert delivered(events) == text
        assert len(session.tokens) == target.context == 96
        assert_whole(session)
        # One token more fits after a prompt that leaves room for one.
        events = list(session.generate(session.tokens[:95], GREEDY, Limits(max_tokens=50)))
        assert delivered(events) == text[-1:]


@each("length, named", [(0, "empty"), (96, "96 tokens long.* holds 96"), (500, "500 tokens")])
def test_a_prompt_that_leaves_no_room_is_refused_at_once_and_changes_nothing(speller, length, named):
    session = Session(speller.target, Oracle(), Budget(NODES))
    list(session.generate([1, 2, 3], GREEDY, Limits(max_tokens=5)))
    before = list(session.tokens)
    with pytest.raises(UsageMistake, match=named):
        session.generate([1] * length, GREEDY)
    assert session.tokens == before
    assert_whole(session)


@pytest.mark.slow
def test_the_cache_has_room_for_a_tree_wherever_the_text_ends(tiny: Make) -> None:
    """Slots come in buckets. Replies cross from one bucket to the next, with one token a step and with several."""
    model, prompt = tiny(NAME), prompt_ids(247, seed=15)
    text = stock_reply(model.stock, prompt, 16, stops=())
    for drafter in drafters(stopping(model), prompt + text):
        assert chat(Session(stopping(model), drafter, Budget(NODES)), prompt, 16) == text


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("drafter", [0, 3])
def test_what_a_prompt_shares_with_the_turns_before_is_not_read_again(tiny: Make, drafter: int) -> None:
    model, prompt = tiny(NAME), prompt_ids(30, seed=4)
    target = stopping(model)
    text = stock_reply(model.stock, prompt, 12, stops=())
    session = Session(target, list(drafters(target, prompt + text))[drafter], Budget(NODES))
    held = prompt + text
    for following, reused in [
        (prompt, 0),
        (held, 41),  # the last token is not in the cache
        (prompt, 29),  # the last one is read for its logits
        ([*prompt[:17], 9, 9, 9], 17),
        ([*prompt[:17], 9, 9], 18),
        ([7, 8, 9], 0),
        (held[:5], 0),
        (held, 5),
    ]:
        events = list(session.generate(following, GREEDY, Limits(max_tokens=12)))
        numbers = done(events).statistics
        assert numbers.reused_tokens == reused
        assert delivered(events) == stock_reply(model.stock, following, 12, stops=())
        progress = [event for event in events if isinstance(event, Prefill)]
        assert [event.done for event in progress] == [reused, len(following)]
        assert {event.total for event in progress} == {len(following)}
        assert_whole(session)


def chat(session: Session, prompt: Sequence[int], count: int) -> list[int]:
    return delivered(list(session.generate(prompt, GREEDY, Limits(max_tokens=count))))


@pytest.mark.slow
@pytest.mark.parametrize("which", [1, 3])
def test_a_stream_that_is_abandoned_at_any_event_leaves_a_session_as_good_as_a_fresh_one(tiny, which):
    model, earlier, prompt = tiny(NAME), prompt_ids(8, seed=5), prompt_ids(13, seed=6)
    target = stopping(model)
    opening = stock_reply(model.stock, earlier, 6, stops=())
    prompt = [*earlier, *opening, *prompt]
    text = stock_reply(model.stock, prompt, 20, stops=())
    follow = [*prompt, *text[:7], *prompt_ids(3, seed=7)]
    answer = stock_reply(model.stock, follow, 8, stops=())

    def begin() -> tuple[Session, Iterator[Event]]:
        session = Session(
            target, list(drafters(target, earlier + opening, prompt + text, follow + answer))[which], Budget(NODES)
        )
        assert chat(session, earlier, 6) == opening
        return session, session.generate(prompt, GREEDY, Limits(max_tokens=20))

    count = len(list(begin()[1]))
    assert count > 5
    for taken in range(count + 1):
        session, stream = begin()
        events = list(islice(stream, taken))
        stream.close()
        if taken == 0:  # it was never iterated, so nothing happened
            assert session.tokens == earlier + opening
        else:
            read = next(event.done for event in reversed(events) if isinstance(event, Prefill))
            assert session.tokens == prompt[:read] + delivered(events), "what was delivered stays, the rest is gone"
            assert session.statistics is not None
            assert list(session.statistics.token_ids) == delivered(events)
            assert sum(session.statistics.sources.values()) == len(delivered(events))
        assert_whole(session)
        assert chat(session, follow, 8) == answer
        assert_whole(session)


@pytest.mark.slow
def test_between_the_chunks_of_a_prompt_a_stream_may_be_abandoned(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = tiny(NAME), prompt_ids(50, seed=10)
    monkeypatch.setattr("localspec.decoding.session.CHUNK", 16)
    text = stock_reply(model.stock, prompt, 5)
    for taken, done_so_far in ((1, 0), (2, 16), (3, 32), (4, 48), (5, 50)):
        session = Session(model.target, Oracle(prompt + text), Budget(NODES))
        stream = session.generate(prompt, GREEDY, Limits(max_tokens=5))
        events = list(islice(stream, taken))
        assert events[-1] == Prefill(done_so_far, 50)
        stream.close()
        assert session.tokens == prompt[:done_so_far]
        assert_whole(session)
        assert chat(session, prompt, 5) == text
        assert session.statistics is not None
        assert session.statistics.reused_tokens == max(done_so_far - 1, 0)


@pytest.mark.slow
def test_an_abandoned_stream_that_is_closed_late_does_not_cut_the_reply_after_it(tiny: Make) -> None:
    """A consumer stops by not asking further; the garbage collector may close its stream during a later reply."""
    model, prompt, other = tiny(NAME), prompt_ids(10, seed=11), prompt_ids(10, seed=12)
    target = stopping(model)
    session = Session(target, Oracle(), Budget(NODES))
    forgotten = session.generate(prompt, GREEDY, Limits(max_tokens=9))
    list(islice(forgotten, 4))
    stream = session.generate(other, GREEDY, Limits(max_tokens=9))
    events = list(islice(stream, 8))
    forgotten.close()
    events += stream
    assert delivered(events) == stock_reply(model.stock, other, 9, stops=())
    assert session.tokens == other + delivered(events)
    assert_whole(session)


@pytest.mark.slow
@each("method", ["observe before", "observe behind", "draft"])
@each("call", [1, 2, 3])
def test_an_exception_inside_a_drafter_leaves_a_usable_session(tiny: Make, method: str, call: int) -> None:
    model, prompt = tiny(NAME), prompt_ids(10, seed=13)
    target = stopping(model)
    text = stock_reply(model.stock, prompt, 30, stops=())
    drafter = Breaking(prompt + text, method=method, call=call, error=RuntimeError("broken drafter"))
    session, events = Session(target, drafter, Budget(NODES)), []
    with pytest.raises(RuntimeError, match="broken drafter"):
        events.extend(session.generate(prompt, GREEDY, Limits(max_tokens=30)))
    assert (prompt + text)[: len(session.tokens)] == session.tokens
    assert_whole(session)
    assert chat(session, prompt, 30) == text


@pytest.mark.slow
def test_rewind_cuts_tokens_cache_and_drafter(tiny: Make) -> None:
    model, prompt = tiny(NAME), prompt_ids(10, seed=14)
    text = stock_reply(model.stock, prompt, 9, stops=())
    for length in (19, 14, 10, 3, 1, 0):
        session = Session(stopping(model), Oracle(prompt + text), Budget(NODES))
        assert chat(session, prompt, 9) == text
        session.rewind(length)
        assert session.tokens == (prompt + text)[:length]
        assert_whole(session)
        assert chat(session, prompt, 9) == text


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_text_is_that_of_the_tokens_up_to_a_character_that_a_limit_cuts(speller: Tiny, tiny: Make) -> None:
    ids = stock_reply(speller.stock, [4, 5, 6], 20)
    for drafter in drafters(speller.target, [4, 5, 6, *ids]):
        events = list(
            Session(speller.target, drafter, Budget(NODES)).generate([4, 5, 6], GREEDY, Limits(max_tokens=20))
        )
        assert shown(events) == speller.target.decode(ids)
    model = tiny("llama-grouped-dynamic")
    for seed in range(5):  # random bytes: escapes, half characters, ids after the end of the tokenizer
        session = Session(model.target, Autoregressive(), Budget(0))
        events = list(session.generate(prompt_ids(5, seed), Sampling(5.0, seed=seed), Limits(max_tokens=60)))
        text, rest = model.target.decode(session.tokens[5:]), len(shown(events))
        assert text[:rest] == shown(events) and not text[rest:].strip("\N{REPLACEMENT CHARACTER}")


def test_the_clock_of_the_text_runs_forward(speller: Tiny) -> None:
    events = list(Session(speller.target, Autoregressive(), Budget(0)).generate([1, 2], GREEDY, Limits(max_tokens=10)))
    seconds = [event.seconds for event in events if isinstance(event, Text)]
    assert seconds == sorted(seconds)
    assert len(seconds) == 10
    assert seconds[0] > 0


@pytest.mark.slow
def test_a_step_s_cost_is_that_of_its_place_in_the_text(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding takes longer after a longer text, so where a step began counts, and not where the reply did."""
    model, prompt = tiny(NAME), prompt_ids(20)
    session = Session(model.target, Autoregressive(), Budget(NODES))
    began: list[int] = []
    monkeypatch.setattr(session.budget.plain, "observe", lambda rows, context, *rest: began.append(context))
    last = done(list(session.generate(prompt, GREEDY, Limits(max_tokens=6))))
    first = len(prompt) + 1  # the first token is of the prompt's forward
    assert began == [*range(first, first + last.statistics.steps)]
