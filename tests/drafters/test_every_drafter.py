"""True of every drafter: greedy texts are those of plain decoding, and sampled ones have the target's distribution."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributions import assert_drawn_from
from drafters import test_dflash, test_dspark, test_eagle3, test_medusa, test_mtp, test_pard2
from drafters.test_layers import layers
from drafters.test_lookahead import lookahead
from drafters.test_merged import TOGETHER, merged
from drafters.test_ouroboros import FORMS as OUROBOROS
from drafters.test_ouroboros import made as ouroboros
from drafters.test_s3d import made as s3d
from drafters.test_semi import semi
from drafting import drafting, perturbed
from noise_by_depth import assert_each_depth_has_its_own_noise
from session_replies import assert_conversation, assert_plain, assert_stops_leave_no_trace, reply
from six_words import PROMPT, WORDS, drawn, joint_chances, six_words, six_words_qwen35
from slow_cases import covering
from tiny_models import DRAFTING_FAMILIES, FAMILIES, RECURRENT, Tiny, prompt_ids, word_tokenizer

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters import mtp, parallelspec
from localspec.drafters.phrases import WithPhrases
from localspec.drafters.pool import PhrasePool

pytestmark = pytest.mark.slow

Made = Callable[[Tiny, Path], Any]  # a drafter for a target of either engine; its files go into the directory
SAMPLED = Sampling(1.0, seed=2**63 + 5), Sampling(0.8, top_k=5, top_p=0.9, min_p=0.05, seed=3)


def eagle3(spread: float = 0.4, **options: Any) -> Made:
    return lambda model, _: drafting(perturbed(test_eagle3.eagle(model.target, **options), spread), model.target)


def medusa(by: float = 0.1, **options: Any) -> Made:
    weights = test_medusa.perturbed
    return lambda model, _: drafting(weights(test_medusa.medusa(model.target, **options), by=by), model.target)


def skipping(spread: float = 0.3, **options: Any) -> Made:
    return lambda model, _: drafting(s3d(model.target, spread, **options), model.target)


def semiautoregressive(**options: Any) -> Made:
    return lambda model, _: drafting(semi(model.target, seed=1, **options), model.target)


def kindred(form: str) -> Made:
    """Return Ouroboros with a small model that is the target itself."""
    return lambda model, _: ouroboros(model.target, model.target, **OUROBOROS[form])[0]


def published_mtp(model: Tiny, path: Path) -> Any:
    layer = test_mtp.stock_layer(model.stock.config)
    return mtp.Drafter.from_model(test_mtp.published(model.path, path / "whole", layer), model.target, depth=2)


def published_pard2(model: Tiny, path: Path) -> Any:
    words = {"tokenizer": word_tokenizer(WORDS), "vocab_size": 7, "pard_token": 6, "pad_token_id": None}
    own = words if model.target.vocab_size == len(WORDS) else {}
    return parallelspec.Drafter.from_model(test_pard2.pair(path / "small", model, **own), model.target, depth=3)


def behind_phrases(make: Made) -> Made:
    pool = PhrasePool
    return lambda model, path: WithPhrases(make(model, path), pool(model.target.special_tokens), anywhere=True)


DRAFTERS: dict[str, Made] = {
    "dflash": lambda model, path: test_dflash.made(model, path, block_size=5)[0],
    "dspark": lambda model, path: test_dspark.made(model, path)[0],
    **{f"eagle3, {number}": eagle3(**form) for number, form in enumerate(test_eagle3.FORMS)},
    "pard2": published_pard2,
    **{f"medusa, {name}": medusa(**form) for name, form in test_medusa.FORMS.items()},
    "medusa, phrases": behind_phrases(medusa()),
    "s3d": skipping(),
    "s3d, untrained": skipping(0.0),
    "s3d, few tokens": skipping(vocabulary=40),
    "s3d, one layer skipped": skipping(skip="0-0", adapters="vko", depth=1),
    "s3d, only masks": behind_phrases(skipping(kept="1", adapters="none", depth=7)),
    "layers": lambda model, _: layers(model.target),
    "layers, one": lambda model, _: layers(model.target, (1,)),
    "layers, phrases": behind_phrases(lambda model, _: layers(model.target, fixed=False, share=0.9)),
    **{names: lambda model, _, names=names: merged(names, model.target) for names in TOGETHER},
    "lookahead": lambda model, _: lookahead(model.target),
    "lookahead, its own phrases": lambda model, _: lookahead(model.target, text=False),
    **{f"ouroboros, {form}": kindred(form) for form in ("both", "accelerating", "none", "beside")},
}


# Drafters, in each of their forms, whose proposals are often right if there are only six words.
OFTEN_RIGHT: dict[str, Made] = {
    "eagle3": eagle3(depth=3),
    "eagle3, few tokens": eagle3(depth=4, vocabulary=4, states="0,2"),
    **{
        kind: DRAFTERS[kind]
        for kind in (
            "medusa, shared", "medusa, static", "s3d", "layers", "layers+medusa+s3d", "lookahead",
            "lookahead, its own phrases", "ouroboros, both",
        )
    },
}  # fmt: skip

# With the rule `rejection`: layers of the model, sampled replies, and accepted draft tokens, at least.
REJECTING: dict[str, tuple[Made, int, int, int]] = {
    "dflash": (lambda model, path: test_dflash.made(model, path, block_size=3)[0], 3, 250, 50),
    "dspark": (DRAFTERS["dspark"], 3, 250, 50),
    "eagle3": (eagle3(0.0, depth=2), 1, 250, 60),
    "eagle3, few tokens": (eagle3(0.0, depth=3, vocabulary=4), 1, 250, 60),
    "medusa": (medusa(0.3, heads=3), 1, 250, 40),
    "medusa, few tokens": (medusa(0.3, heads=3, vocabulary=4), 1, 250, 40),
    "mtp": (published_mtp, 2, 300, 60),
    "pard2": (published_pard2, 3, 300, 40),
    "s3d": (skipping(0.2, depth=3), 3, 250, 40),
    "s3d, few tokens": (skipping(0.2, depth=3, vocabulary=4), 3, 250, 40),
    "semi": (semiautoregressive(depth=2), 1, 250, 75),
    "semi, lstm": (semiautoregressive(depth=2, recent="lstm", shared=False, vocabulary=4), 1, 250, 75),
}
TURNS = [kind for kind in DRAFTERS if kind.startswith(("s3d", "layers", "medusa+", "parallelspec"))]


def session_of(make: Made, model: Tiny, path: Path, nodes: int = 8) -> Session:
    return Session(model.target, make(model, path), Budget(nodes, branches=model.target.branches))


@pytest.mark.parametrize(
    ("kind", "name"), [*covering(DRAFTERS, DRAFTING_FAMILIES), *(("mtp", name) for name in RECURRENT)]
)
def test_a_seed_gives_the_text_of_plain_decoding(tiny, tmp_path, kind, name):
    model = tiny(name)
    session = session_of(DRAFTERS.get(kind, published_mtp), model, tmp_path, 12)
    assert_plain(model.target, session, prompt_ids(10, seed=4), 24, *SAMPLED)


@pytest.mark.parametrize("kind", OFTEN_RIGHT)
def test_where_drafts_are_often_right_each_depth_has_its_own_noise(tmp_path, own_read, kind, monkeypatch):
    model = six_words(tmp_path, own_read)
    assert_each_depth_has_its_own_noise(model.target, lambda: OFTEN_RIGHT[kind](model, tmp_path), monkeypatch)


@pytest.mark.parametrize("kind", REJECTING)
def test_by_rejection_three_tokens_have_the_stock_models_joint_distribution(tmp_path, own_read, kind):
    make, layers, draws, accepted = REJECTING[kind]
    model = six_words_qwen35(tmp_path, own_read) if kind == "mtp" else six_words(tmp_path, own_read, layers)
    sampling = Sampling(1.0, rule="rejection")
    found = drawn(session_of(make, model, tmp_path, 6), PROMPT, sampling, draws)
    assert found.accepted > accepted
    assert_drawn_from(joint_chances(model.stock, PROMPT, sampling), found.counts)


@pytest.mark.parametrize(("kind", "name"), covering(TURNS, reversed(DRAFTING_FAMILIES)))
def test_three_turns_are_those_of_the_stock_model(tiny, tmp_path, kind, name):
    model = tiny(name)
    assert_conversation(model, session_of(DRAFTERS[kind], model, tmp_path))


@pytest.mark.parametrize(("kind", "name"), covering(["s3d", "layers", *TOGETHER[-2:]], DRAFTING_FAMILIES[2:6]))
def test_a_stopped_reply_and_the_turns_after_it_are_those_of_the_stock_model(tiny, tmp_path, kind, name):
    model = tiny(name)
    assert_stops_leave_no_trace(model, session_of(DRAFTERS[kind], model, tmp_path))


# Drafters that read states of the target: the tokens that they have read, by their caches, and how many of 5 stay.
READING: dict[str, tuple[Callable[[Any], list[int]], int]] = {
    "dflash": (lambda drafter: [layer.attention.length for layer in drafter._layers], 5),
    "eagle3, 0": (lambda drafter: [drafter._layer.attention.length], 4),
    "mtp": (lambda drafter: [drafter._cache.length], 4),
}


@pytest.mark.parametrize("kind", READING)
def test_without_features_or_nodes_there_is_only_the_root(tiny, tmp_path, kind):
    model, (lengths, kept) = tiny(next(iter(RECURRENT)) if kind == "mtp" else FAMILIES[0]), READING[kind]
    session = session_of(DRAFTERS.get(kind, published_mtp), model, tmp_path, 0)
    drafter = session.drafter
    for committed, nodes in (([5, 6], 8), ([5], 8), ([5, 6], 0)):
        assert drafter.draft(Context(committed, model.target.cache(8), nodes, Sampling())).tokens == (committed[-1],)
    reply(session, prompt_ids(9), 3)
    assert len(drafter._features) == 11 and not any(lengths(drafter))
    before = drafter.nbytes
    drafter.draft(Context(session.tokens, session.cache, 4, Sampling()))
    assert {*lengths(drafter)} == {11} and drafter.nbytes > before
    session.rewind(5)
    assert len(drafter._features) == 5 and {*lengths(drafter)} == {kept}
