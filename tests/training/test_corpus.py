"""Which tokens count, and the order of rows."""

from dataclasses import replace

import pytest
import torch
from each import each
from golden import matching
from tiny_models import as_ours, byte_tokenizer

from localspec.errors import UsageMistake
from localspec.nn.target import Target
from localspec.training.corpus import BLOCK, Corpus, Cursor, PaddedRows, Row, split_rows
from localspec.training.examples import Example

NAME = "phi3-one-key-head-tied"
THINKING = (  # shows the thoughts of the last reply only, as Qwen3's does
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and not loop.last and '|' in m.content %}"
    "{{ m.content.split('|')[1] }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def chat(*turns: str) -> Example:
    roles = ("user", "assistant")
    return Example(messages=tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(turns)))


@pytest.fixture
def target(tiny) -> Target:
    """Return a target whose tokenizer and template a test may change."""
    shared = tiny(NAME).target
    return Target(shared.transformer, shared.config, as_ours(byte_tokenizer()), shared.context, {})


def corpus(target: Target, examples, length=64, batch=128, seed=0) -> Corpus:
    filler = [Example(f"some text number {number}, long enough") for number in range(6)]
    return Corpus(target, [*examples, *filler], length, batch, seed)


def counted(target: Target, row: Row) -> str:
    return target.tokenizer.decode([t for t, counts in zip(row.tokens, row.loss_mask, strict=True) if counts])


def test_replies_and_their_end_marks_count_and_nothing_else(target):
    example = chat("the cat sat", "on the mat", "and the dog?", "on the log")
    (row,) = corpus(target, [])._rows(example)
    assert counted(target, row) == "on the mat<|end|>on the log<|end|>"
    # The tokens are those of a real chat: the prompt as it is encoded there, followed by the reply.
    prompt = target.encode(list(example.messages[:3]))
    assert list(row.tokens[: len(prompt)]) == prompt and not any(row.loss_mask[len(prompt) - 2 : len(prompt)])
    assert all(row.loss_mask[len(prompt) :])


def test_all_of_a_plain_text_counts_and_special_tokens_in_it_are_text(target):
    text = "one two three <|end|> four " * 6
    rows = corpus(target, [], length=32)._rows(Example(text))
    assert [len(row.tokens) for row in rows[:-1]] == [32] * (len(rows) - 1)
    assert all(all(row.loss_mask) for row in rows)
    assert not target.special_tokens & {token for row in rows for token in row.tokens}


def test_where_padding_and_end_mark_are_one_id_the_end_mark_still_counts(target):
    target.tokenizer.special_tokens |= {"pad_token": "<|end|>", "eos_token": "<|end|>"}
    (short,), (long,) = (
        corpus(target, [])._rows(chat(*turns)) for turns in (("a b c d", "e"), ("a b", "c d e f g" * 3))
    )
    end = target.tokenizer.eos_token_id
    filled = PaddedRows.of([short, long], torch.device("cpu"))
    for row, tokens, counts in zip((short, long), filled.tokens, filled.loss_mask, strict=True):
        assert row.tokens[-1] == end and counts[len(row.tokens) - 1]
        assert not counts[len(row.tokens) :].any() and counts.sum() == sum(row.loss_mask)
        assert tokens[: len(row.tokens)].tolist() == list(row.tokens)


def test_a_newline_that_the_template_puts_behind_the_end_mark_does_not_count(target):
    target.tokenizer.chat_template = target.tokenizer.chat_template.replace("<|end|>", "<|end|>\n")
    (row,) = corpus(target, [])._rows(chat("the cat", "sat on", "the", "mat"))
    assert counted(target, row) == "sat on<|end|>mat<|end|>"


def test_where_the_template_shows_earlier_replies_otherwise_each_gets_a_row(target):
    target.tokenizer.chat_template = THINKING
    rows = corpus(target, [])._rows(chat("the cat", "hm|sat on", "the", "so|mat"))
    assert [counted(target, row) for row in rows] == ["hm|sat on<|end|>", "so|mat<|end|>"]
    assert target.tokenizer.decode(rows[1].tokens).count("hm|") == 0


def test_a_prompt_that_the_template_ends_otherwise_than_it_shows_replies(target):
    """The generation prompt opens a thought that finished conversations do not show."""
    target.tokenizer.chat_template = target.tokenizer.chat_template.replace(
        "{% if add_generation_prompt %}<|assistant|>", "{% if add_generation_prompt %}<|assistant|>-"
    )
    (row,) = corpus(target, [])._rows(chat("the cat", "sat"))
    assert counted(target, row) == "sat<|end|>" and target.tokenizer.decode(row.tokens).count("-sat") == 1


def test_a_model_without_a_template_and_conversations_that_one_refuses(target):
    target.tokenizer.chat_template = None
    (row,) = corpus(target, [])._rows(chat("the cat sat", "on the mat"))
    assert counted(target, row).strip() == "on the mat"
    target.tokenizer.chat_template = "{{ raise_exception('no') }}"
    made = corpus(target, [])
    for _ in range(2):
        assert made._rows(chat("the cat", "sat")) == [] and len(made.refused) == 1
    with pytest.raises(UsageMistake, match=f"3 examples.*{matching('and_some_of_which_the_model')}"):
        Corpus(target, [chat("the cat", "sat" * n) for n in range(3)], 64, 128, 0)


def test_a_text_on_which_the_tokenizer_panics_is_left_out_and_ends_no_training(target):
    backend = target.tokenizer.backend

    class PanicException(BaseException):  # as the library's, which has no name to import
        pass

    class Panics:
        def encode_batch(self, texts: list[str], **given: object) -> object:
            if "boom" in texts[0]:
                raise PanicException("no end")
            return backend.encode_batch(texts, **given)

        def __getattr__(self, name: str) -> object:
            return getattr(backend, name)

    target.tokenizer.backend = Panics()
    made = corpus(target, [])
    assert made._rows(Example("some text, long enough to go boom")) == [] and made._rows(chat("the cat", "boom")) == []
    assert len(made.refused) == 2 and made._rows(Example("some text, long enough to learn of it"))


def test_a_long_conversation_is_cut_and_a_cut_reply_counts_as_far_as_it_goes(target):
    (row,) = corpus(target, [], length=24)._rows(chat("the cat", "one two three four five " * 9))
    assert len(row.tokens) == len(row.loss_mask) == 24 and row.loss_mask[-1]
    assert corpus(target, [], length=24)._rows(chat("one two three four five " * 9, "sat")) == []


@pytest.fixture(scope="module")
def texts() -> list[Example]:
    return [Example(f"text {number} " + "one two " * (number % 13 + 3)) for number in range(300)]


@pytest.mark.slow
def test_what_is_held_out_is_never_learnt_and_does_not_depend_on_order_or_seed(target, texts):
    one, other = Corpus(target, texts, 256, 512, 0), Corpus(target, texts[::-1], 256, 512, 7)
    apart = {tuple(row.tokens) for row in one.held_out}
    assert apart == {tuple(row.tokens) for row in other.held_out} and 1 <= len(apart) < 30
    learnt = {tuple(row.tokens) for rows in one._block(0, 0) for row in rows}
    assert not apart & learnt and len(apart | learnt) == 300
    twice = Corpus(target, [*texts, *texts], 256, 512, 0)
    assert not apart & {tuple(row.tokens) for rows in twice._block(0, 0) for row in rows}


@pytest.mark.slow
def test_batches_are_full_of_rows_of_like_length(target, texts):
    block = Corpus(target, texts, 256, 512, 0)._block(0, 0)
    sizes = [len(rows) * max(len(row.tokens) for row in rows) for rows in block]
    assert max(sizes) <= 512 and sorted(sizes)[len(sizes) // 2] > 400
    used = sum(len(row.tokens) for rows in block for row in rows)
    assert used > 0.9 * sum(sizes)


@pytest.mark.slow
def test_the_order_is_that_of_the_seed_and_can_be_entered_anywhere(target, texts, monkeypatch):
    monkeypatch.setattr("localspec.training.corpus.BLOCK", 100)
    made = Corpus(target, texts, 256, 512, 3)
    source, seen, places, shares = made.batches(Cursor()), [], [Cursor()], []
    while len(places) < 4 or places[-1] != Cursor(2, 0, 0):
        rows, behind, done = next(source)
        seen.append([tuple(row.tokens) for row in rows])
        places.append(behind)
        shares.append(done)
    assert shares == sorted(shares) and shares[-1] == pytest.approx(2.0) and made.blocks == 3
    half = len(seen) // 2
    flat = [[row for rows in part for row in rows] for part in (seen[:half], seen[half:])]
    assert seen[:half] != seen[half:] and sorted(flat[0] + flat[1])[::2] == sorted(flat[0] + flat[1])[1::2]
    for at in (1, 5, half, half + 3, len(seen) - 1):
        again = Corpus(target, texts, 256, 512, 3).batches(replace(places[at]))
        for expected in seen[at:]:
            assert [tuple(row.tokens) for row in next(again)[0]] == expected
    other = next(Corpus(target, texts, 256, 512, 4).batches(Cursor()))[0]
    assert [tuple(row.tokens) for row in other] != seen[0]
    assert BLOCK == 1024


@pytest.mark.parametrize(("room", "renderings"), [(2**18, 4), (20, 8)])
def test_rows_of_a_chat_are_made_once_while_there_is_room(target, monkeypatch, room, renderings):
    monkeypatch.setattr("localspec.training.corpus.KEPT", room)
    made, done, original = corpus(target, []), [], target.chat.render_apart
    made._cached_tokens = 0  # of the filler, which stays
    monkeypatch.setattr(
        target.chat, "render_apart", lambda *given, **more: (done.append(1), original(*given, **more))[1]
    )
    examples = [chat("the cat", "sat on the mat"), chat("and the dog", "sat on the log, and on the mat")]
    first = [made._rows(example) for example in examples]
    again = [made._rows(example) for _ in range(2) for example in examples]
    assert again == first * 2 and all(first) and len(done) == renderings


def test_parts_hold_every_row_once(target):
    rows = [Row([1] * n, [True] * n) for n in (9, 30, 12, 8, 30, 100, 11)]
    groups = split_rows(rows, 60)
    assert sorted(len(row.tokens) for group in groups for row in group) == sorted(len(row.tokens) for row in rows)
    assert all(len(group) == 1 or len(group) * max(len(row.tokens) for row in group) <= 60 for group in groups)
    assert split_rows([], 60) == []


def test_how_often_tokens_come(target):
    made = corpus(target, [chat("the cat", f"sat on the mat, the mat {number}") for number in range(5)])
    rows = [row for example in made.examples for row in made._rows(example)]
    expected = torch.zeros(target.transformer.config.vocab_size, dtype=torch.long)
    for row in rows:
        for token, counts in zip(row.tokens, row.loss_mask, strict=True):
            expected[token] += counts
    assert torch.equal(made.frequencies(), expected) and expected[target.tokenizer.eos_token_id] > 0


def test_a_length_that_is_too_small_is_reported(target):
    examples = [chat("the cat sat on the mat", f"and the dog {number}") for number in range(9)]
    with pytest.raises(UsageMistake, match=matching("n9_examples_when_they_cut_8_tokens")):
        Corpus(target, examples, 8, 128, 0)
    assert Corpus(target, examples, 64, 128, 0).length == 64


@each("examples", [[Example("word " * 50)], [Example("a"), Example("b")], [chat("a", "b")]])
def test_too_little_text_is_reported(target, examples):
    with pytest.raises(UsageMistake, match=matching("too_little_text")):
        Corpus(target, examples, 64, 128, 0)
