"""The text that the engine passes to the store: the model's words of the last reply, and never the user's."""

from itertools import pairwise
from pathlib import Path

import pytest
from tiny_models import CONFIGS, SEEDS, byte_tokenizer, write

from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.engine.engine import Engine
from localspec.errors import UsageMistake
from localspec.models.registry import TargetCard
from localspec.store.phrases import unpack_key, unpack_tokens
from localspec.store.store import Store


def test_a_prompt_that_is_refused_leaves_nothing_of_the_conversation_before_it_in_the_store(tmp_path: Path) -> None:
    """A model without a chat template makes no ids of an empty message: there is no reply, so nothing may be saved."""
    name, tokenizer = "llama-grouped-dynamic", byte_tokenizer()
    tokenizer.chat_template = None
    path = write(tmp_path / "model", CONFIGS[name](), tokenizer, SEEDS[name])
    question = "hello there my friend"
    asked = set(pairwise(tokenizer(question)["input_ids"]))
    with Store.open(tmp_path / "store" / "localspec.db", pytest.fail) as store:
        choice = choose(TargetCard("m", path, None, ""), Settings(draft_max=8))
        engine = Engine(choice, store=store)
        sampling = engine.sampling(Settings(temperature=0.0))
        list(engine.chat([{"role": "user", "content": question}], sampling, Limits(max_tokens=20)))
        pool = store.phrases.pools()[0].pool
        before = {(phrase.key, phrase.before, phrase.after) for phrase in store.phrases.export(pool)}
        assert before
        with pytest.raises(UsageMistake, match="empty"):
            list(engine.chat([{"role": "user", "content": ""}], sampling))
        after = {(phrase.key, phrase.before, phrase.after) for phrase in store.phrases.export(pool)}
    assert not {unpack_key(key) for key, _, _ in after - before} & asked, "the user's words are in the store"
    assert after == before


@pytest.mark.slow
def test_only_what_replies_hold_counts_as_said(tmp_path: Path) -> None:
    name = "llama-grouped-dynamic"
    path = write(tmp_path / "model", CONFIGS[name](), byte_tokenizer(), SEEDS[name])
    with Store.open(tmp_path / "store" / "localspec.db", pytest.fail) as store:
        engine = Engine(choose(TargetCard("m", path, None, ""), Settings(draft_max=8)), store=store)
        replies = []
        for seed in range(4):
            sampling = engine.sampling(Settings(temperature=0.7, seed=seed))
            list(engine.chat([{"role": "user", "content": "abcabcabd"}], sampling, Limits(max_tokens=40)))
            replies.append(engine.session.statistics.token_ids)
        said = {
            stretch
            for reply in replies
            for n in range(3, 17)
            for stretch in zip(*(reply[at:] for at in range(n)), strict=False)
        }
        kept = [
            ((*unpack_tokens(one.before), *unpack_key(one.key), *unpack_tokens(one.after)), one.uses)
            for one in store.phrases.export(store.phrases.pools()[0].pool)
        ]
    assert all(phrase in said for phrase, uses in kept if uses)
    assert any(phrase not in said for phrase, uses in kept if not uses)
