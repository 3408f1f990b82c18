"""Medusa: heads predict the right number of tokens ahead, learn the right labels, and never change the text."""

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from drafting import (
    add_changes,
    after_training,
    batch_of,
    drafting,
    hidden_for,
    saved,
    session_of,
    states,
    torch_form,
    train,
)
from each import each
from golden import wording
from quantized_layers import packed_target
from session_replies import SAID, assert_stops_leave_no_trace, conversation, reply
from six_words import PROMPT, WORDS, drawn, six_words
from slow_cases import covering
from tiny_models import END, FAMILIES, MIXTURES, Tiny, prompt_ids, read, stock_logits, stock_reply

import localspec
from localspec.choosing.fit import CHUNK
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.limits import Limits
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.medusa import Drafter as Medusa
from localspec.drafters.medusa import dense_tree, sparse_tree
from localspec.drafters.trained import draft_vocabulary, load_drafter
from localspec.errors import LocalspecError
from localspec.models.drafter_cards import RANKS, read_drafter
from localspec.nn.draft_layers import TorchLinears
from localspec.nn.target import Target
from localspec.training.drafters.medusa import Trainable
from localspec.training.trainable import make_drafter, save_drafter

Make = Callable[[str], Tiny]

LLAMA = "llama-grouped-dynamic"
MODELS = [LLAMA, *FAMILIES[1:], *MIXTURES]
GREEDY, NODES = Sampling(), 8
FORMS: dict[str, dict[str, object]] = {
    "shared": {},
    "two layers": {"layers": 2, "heads": 3},
    "private": {"private": True},
    "change of rank 5": {"private_rank": 5},
    "static": {"tree": "static"},
    "dense": {"tree": "dense"},
    "as in the paper": {"linear": False},
    "few tokens": {"vocabulary": 80},
    "private, few tokens": {"private": True, "vocabulary": 80},
}


@pytest.fixture(scope="module")
def demo() -> Tiny:
    return read(Path(localspec.__file__).parent / "demo")


def medusa(target: Target, **options: object) -> Trainable:
    torch.manual_seed(5)
    if options.get("joint"):
        options.setdefault("dropout", 0.0)  # dropout has its own test
    made = make_drafter("medusa", torch_form(target), options)
    assert isinstance(made, Trainable)
    return made


def perturbed(drafter: Trainable, seed: int = 0, by: float = 0.1) -> Trainable:
    """Return heads that differ from each other and from the target's, and are sometimes right."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return drafter


def proposed(
    drafter: Trainable | Medusa, target: Target, text: Sequence[int], nodes: int = 4, sampling: Sampling = GREEDY
) -> DraftTree:
    """Return the draft after a text whose last token is the root."""
    hidden = states(target, torch.tensor([text[:-1]]))[0]
    drafter = drafting(drafter, target) if isinstance(drafter, Trainable) else drafter
    drafter.rewind(0)
    drafter.observe(Step(list(text), hidden_for(target, hidden)))
    return drafter.draft(Context(list(text), target.cache(0), nodes, sampling))


# -- heads -------------------------------------------------------------------------------------------------------------


@each("private", [False, True])
def test_an_untrained_head_is_the_targets_own(tiny: Make, private: bool) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter = drafting(medusa(target, private=private, layers=2), target)
    best = stock_logits(tiny(LLAMA).stock, text[:-1])[-1].topk(5).indices.tolist()
    tree = proposed(drafter, target, text, nodes=5)
    assert [[token for token, _ in level] for level in drafter._candidates] == [best] * 4
    assert {*tree.tokens[1:]} <= {*best}


def test_heads_do_not_run_in_prefill_and_then_on_one_row(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, forward = [], TorchLinears.__call__

    def watched(heads: TorchLinears, x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return forward(heads, x)

    monkeypatch.setattr(TorchLinears, "__call__", watched)
    target = tiny(LLAMA).target
    session = session_of(target, medusa(target, heads=3, layers=2, private_rank=0), Budget(2))
    for _ in itertools.islice(session.generate(prompt_ids(60), GREEDY, Limits(max_tokens=5)), 3):
        pass
    assert seen == []
    session = session_of(target, medusa(target, heads=3, layers=2, private_rank=0), Budget(2))
    reply(session, prompt_ids(60), 5)
    assert seen and set(seen) == {(2, 48)}, "no third head where there are nodes for two"


def test_heads_that_no_verified_tree_reached_are_computed_once_in_sixteen_drafts(tiny: Make) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter, counts = drafting(medusa(target), target), []

    def verified(depth: int) -> None:
        """Draft four levels, and verify a chain of some of them."""
        drafter.observe(Step(text, hidden_for(target, torch.ones(1, 48))))
        drafter.draft(Context(list(text), target.cache(0), 4, GREEDY))
        counts.append(len(drafter._candidates))
        tree = DraftTree.chain([text[-1], *range(depth)], "medusa")
        drafter.observe(Step([5], hidden_for(target, torch.ones(1 + depth, 48)), tree))

    for _ in range(48):
        verified(2)
    assert counts == [4] * 17 + [2] * 15 + [4] + [2] * 15
    counts.clear()
    for _ in range(16):
        verified(3)
    assert counts == [4] + [3] * 15, "what was reached counts at once"
    for _ in range(32):
        verified(0)
    assert counts[32:] == [4] + [1] * 15, "where nothing is verified, one level is still judged"


def test_what_is_behind_a_rewind_is_neither_drafted_from_nor_judged(tiny: Make) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    drafter = drafting(medusa(target), target)
    proposed(drafter, target, text)
    drafter.rewind(5)
    assert drafter.draft(Context(text[:5], target.cache(0), 4, GREEDY)).size == 1, "no state, no guess"
    drafter.observe(Step(text[4:], hidden_for(target, torch.zeros(5, 48))))
    assert drafter.calibration.as_json() == []


@each("form", ["few tokens", "private, few tokens"])
def test_only_the_draft_vocabulary_is_proposed_with_the_logits_of_its_tokens(tiny: Make, form: str) -> None:
    target, text = tiny(LLAMA).target, prompt_ids(9)
    few = medusa(target, **FORMS[form])
    few.begin_training(torch.arange(320) % 3)  # of equally frequent tokens the lowest ids
    assert few.kept is not None
    assert few.kept.tolist() == [id_ for id_ in range(320) if id_ % 3 == 2][:80]
    every = perturbed(medusa(target, private="private" in form))
    few.load_tensors(
        {name: every.tensors().get(name, few.kept) for name in few.tensors()}
        | {name: every.tensors()[name][:, few.kept] for name in ("own.up", "linears") if name in every.tensors()}
    )
    kept = few.kept.tolist()
    for sampling in (GREEDY, Sampling(1.0, seed=1), Sampling(1.0, seed=1, rule="rejection")):
        assert {*proposed(few, target, text, 12, sampling).tokens[1:]} <= {*kept}
    read = few._read(torch.randn(3, 48), torch.tensor([1, 2, 3]))[None].expand(2, -1, -1)
    torch.testing.assert_close(few._logits(read, slice(1, 3)), every._logits(read, slice(1, 3))[..., kept])


def test_the_default_vocabulary_is_short_where_the_models_is_long(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [draft_vocabulary(-1, size) for size in (320, 32_768, 32_769)] == [0, 0, 8192]
    assert draft_vocabulary(0, 152_064) == 0 and draft_vocabulary(40, 320) == 40
    monkeypatch.setattr("localspec.drafters.trained.LARGE", 319)
    monkeypatch.setattr("localspec.drafters.trained.FREQUENT", 40)
    drafter = medusa(tiny(LLAMA).target)
    assert drafter.options.vocabulary == len(drafter.tensors()["kept"]) == 40


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distill", [False, True])
def test_the_loss_is_that_of_the_paper(tiny: Make, distill: bool) -> None:
    """Written out: a sum over heads of λ to the k-th, each a mean over the tokens that count."""
    target = tiny(LLAMA).target
    drafter = perturbed(medusa(target, heads=3, layers=2, decay=0.7, private=True, linear=False))
    assert drafting(drafter).nbytes == 4 * sum(tensor.numel() for tensor in drafter.tensors().values())
    lesson = batch_of(target, [prompt_ids(11, seed=1), prompt_ids(7, seed=2)], 3, distill)
    total = 0.0
    for k in (1, 2, 3):
        losses = []
        for text, length in enumerate((11, 7)):
            for t in range(length - 1 - k):
                if t + 1 < 3:  # the root is a token of the reply, too
                    continue
                x = lesson.hidden[text, t]
                for blocks in drafter.blocks:
                    x = x + F.silu(blocks.weight[k - 1] @ x + blocks.bias[k - 1])
                own = (drafter.linears[k - 1] @ x).log_softmax(0)
                if distill:  # the target's prediction at t + k of t + k + 1
                    losses.append(-(target.head(lesson.hidden[text, t + k]).softmax(0) * own).sum())
                else:
                    losses.append(-own[lesson.tokens[text, t + 1 + k]])
        total += 0.7**k * torch.stack(losses).mean().item()
    found = drafter.loss(lesson)
    assert found.loss.item() == pytest.approx(total, rel=1e-5)
    assert [depth.count for depth in found.depth_losses] == [7 + 3, 6 + 2, 5 + 1]


def test_texts_that_are_too_short_teach_nothing_and_break_nothing(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = medusa(target)
    seen = drafter.loss(batch_of(target, [prompt_ids(3)]))
    assert [depth.count for depth in seen.depth_losses] == [1, 0, 0, 0]
    seen.loss.backward()
    assert drafter.loss(batch_of(target, [[7]])).loss.item() == 0


@pytest.mark.slow
def test_heads_of_an_int8_target_learn_as_those_of_the_dense_one(tiny: Make) -> None:
    grads = []
    for target in (tiny(LLAMA).target, packed_target(tiny(LLAMA).path)):
        for private in (False, True):
            drafter = perturbed(medusa(target, private=private), by=0.02)
            drafter.loss(batch_of(target, [prompt_ids(30)])).loss.backward()
            grads.append(torch.cat([parameter.grad.flatten() for parameter in drafter.parameters()]))
    for dense, rounded in (grads[0::2], grads[1::2]):
        assert F.cosine_similarity(dense, rounded, 0) > 0.98
    own = medusa(target, private=True).linears
    assert torch.equal(own[3], target.transformer.lm_head.weight)


# -- the same text -----------------------------------------------------------------------------------------------------


class Watched(Medusa):
    """Medusa that compares, before each draft, its state with the state after reading the whole text again."""

    drafts = partial = 0

    def observe(self, step: Step) -> None:
        super().observe(step)
        self.partial += step.tree is not None and len(step.path) > 1 and len(step.path) <= max(step.tree.depth)

    def draft(self, context: Context) -> DraftTree:
        read = states(self.target, torch.tensor([list(context.committed[:-1])]))[0, -1:]
        torch.testing.assert_close(torch.as_tensor(self._state), read, rtol=1e-4, atol=5e-5)  # computed in other chunks
        self.drafts += 1
        tree = super().draft(context)
        assert tree.size <= context.nodes + 1 and tree.tokens[0] == context.root
        assert set(tree.source) == {"medusa"}
        return tree


def memorised(model: Tiny, prompt: list[int], count: int, **options: object) -> Trainable:
    """Return heads that know the reply to one prompt by heart."""
    text = prompt + stock_reply(model.stock, prompt, count)
    drafter = medusa(model.target, **options)
    drafter.begin_training(torch.bincount(torch.tensor(text), minlength=model.target.vocab_size))
    lesson = batch_of(model.target, [text], start=len(prompt))
    train(drafter, lesson, 60, rate=0.02)
    drafter.accuracies = [(depth.hits / depth.count).tolist() for depth in drafter.loss(lesson).depth_losses]
    return drafter


def forget(drafter: Trainable) -> None:
    """Make the deeper half of the heads wrong, so that drafts are accepted in part."""
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name != "linears":  # its sign would make up for that of its inputs
                parameter[drafter.depth // 2 :] *= -1


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), covering(FORMS, MODELS))
def test_greedy_text_is_that_of_the_stock_model(tiny: Make, name: str, form: str) -> None:
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    untrained = drafting(medusa(model.target, **FORMS[form]), model.target, Watched)
    guessing = drafting(perturbed(medusa(model.target, **FORMS[form]), by=0.05), model.target, Watched)
    for drafter, nodes in ((untrained, 6), (guessing, 1), (guessing, 16)):
        assert reply(session_of(model.target, drafter, Budget(nodes)), prompt, 40)[0] == text
    learned = memorised(model, prompt, 40, **FORMS[form])
    knowing = drafting(learned, model.target, Watched)
    ids, statistics = reply(session_of(model.target, knowing, Budget(NODES)), prompt, 40)
    assert ids == text
    assert statistics.acceptance_length > 0.9 * (knowing.depth + 1) * 39 / 40, (
        "what was learned by heart is nearly all accepted"
    )
    forget(learned)
    knowing = drafting(learned, model.target, Watched)
    for nodes in (4, 12):
        assert reply(session_of(model.target, knowing, Budget(nodes)), prompt, 40)[0] == text
    assert knowing.drafts > 15 and knowing.partial > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS[:2])
def test_turns_abandoned_streams_and_stops_within_a_path(tiny: Make, name: str) -> None:
    model, (prompt, *_) = tiny(name), conversation(tiny(name))[0]
    learned = memorised(model, prompt, SAID, private_rank=0)  # heads that do not know the whole reply
    drafter = drafting(learned, model.target, Watched)
    session = session_of(model.target, drafter, Budget(NODES))
    assert_stops_leave_no_trace(model, session)
    forget(learned)
    drafter.__init__(model.target, learned.options, learned.numbers())  # in the middle of a session
    assert_stops_leave_no_trace(model, session)
    assert drafter.partial and drafter.drafts > 20


@pytest.mark.slow
@pytest.mark.parametrize("form", ["static", "shared"])
def test_the_demo_model_says_what_it_always_says(demo: Tiny, form: str) -> None:
    prompt = demo.target.encode([{"role": "user", "content": "Tell me a short story about a fox."}])
    text = stock_reply(demo.stock, prompt, 24, tuple(demo.target.stop_tokens))
    for drafter in (medusa(demo.target, **FORMS[form]), perturbed(medusa(demo.target, **FORMS[form]), by=0.02)):
        assert reply(session_of(demo.target, drafter, Budget(NODES)), prompt, 24)[0] == text


@pytest.mark.slow
def test_a_long_prompt_is_read_in_chunks_and_the_last_one_gives_the_state(tiny, monkeypatch):
    model = tiny(MODELS[1])
    monkeypatch.setattr("localspec.decoding.session.CHUNK", 16)
    assert CHUNK > 16
    drafter = drafting(perturbed(medusa(model.target)), model.target, Watched)
    prompt = prompt_ids(70, seed=2)
    assert reply(session_of(model.target, drafter, Budget(NODES)), prompt, 30)[0] == stock_reply(
        model.stock, prompt, 30
    )


@pytest.mark.slow
def test_drawn_text_is_proposed_with_the_noise_that_the_target_will_meet(tiny: Make) -> None:
    """Heads that know the target's own distributions propose almost all sampled tokens."""
    target, prompt = tiny(LLAMA).target, prompt_ids(10, seed=4)
    sampling = Sampling(0.9, seed=3)
    drawn, _ = reply(session_of(target, Autoregressive(), Budget(0)), prompt, 40, sampling)
    drafter = medusa(target, heads=2, private=True)
    train(drafter, batch_of(target, [prompt + drawn], distill=True, start=len(prompt)), 100, rate=0.02)
    ids, statistics = reply(session_of(target, drafter, Budget(2)), prompt, 40, sampling)
    assert ids == drawn
    assert statistics.acceptance_length > 2.2


# -- rejection ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_by_rejection_trees_are_drawn_and_nothing_is_learned(tmp_path) -> None:
    model = six_words(tmp_path, read, layers=1)
    drafter = drafting(perturbed(medusa(model.target, heads=3), by=0.3), model.target)
    sampling = Sampling(0.8, top_k=5, rule="rejection")
    drawn(session_of(model.target, drafter, Budget(7)), PROMPT, sampling, 9)
    assert drafter.calibration.as_json() == [], "no choice may depend on what is drawn"
    tree = proposed(drafter, model.target, PROMPT, 7, sampling)
    assert tree.draft_logits.rows.shape == (8, len(WORDS)) and max(tree.depth) == 3


# -- trees -------------------------------------------------------------------------------------------------------------


def test_the_static_tree_holds_the_best_paths_there_are() -> None:
    """Against all paths, sorted: greedy building loses nothing, for no node is worth more than its parent."""
    generator = torch.Generator().manual_seed(3)
    accuracies = tuple(
        tuple((0.7 * torch.rand(RANKS, generator=generator)).tolist()) for _ in range(3)
    )  # in any order: the second rank may be right more often than the first
    worths = [
        math.prod(accuracies[depth][rank] for depth, rank in enumerate(path))
        for deep in (1, 2, 3)
        for path in itertools.product(range(RANKS), repeat=deep)
    ]
    for nodes in (1, 4, 16, 63):
        tree = sparse_tree(accuracies, nodes)
        worth = [1.0]
        for node in range(1, tree.size):
            worth.append(worth[tree.parents[node]] * accuracies[tree.depth[node] - 1][tree.tokens[node]])
        assert sorted(worth[1:], reverse=True) == pytest.approx(sorted(worths, reverse=True)[:nodes])


@each("nodes", [1, 2, 7, 16, 40])
def test_the_dense_tree_is_the_best_product_of_first_candidates(nodes: int) -> None:
    """Compare with all products of candidates: at most `nodes` nodes, the most accurate paths."""
    generator = torch.Generator().manual_seed(4)
    accuracies = tuple(tuple((0.3 * torch.rand(RANKS, generator=generator)).tolist()) for _ in range(3))

    def worth(widths: Sequence[int]) -> float:
        return sum(
            math.prod(sum(level[:width]) for level, width in zip(accuracies, widths[:deep], strict=False))
            for deep in range(1, len(widths) + 1)
        )

    def size(widths: Sequence[int]) -> int:
        return sum(math.prod(widths[:deep]) for deep in range(1, len(widths) + 1))

    products = [one for deep in (1, 2, 3) for one in itertools.product(range(1, RANKS + 1), repeat=deep)]
    best = max((one for one in products if size(one) <= nodes), key=worth)
    tree = dense_tree(accuracies, nodes)
    assert tree.size == size(best) + 1
    paths = {()}
    for node in range(1, tree.size):
        path, at = [], node
        while at:
            path.append(tree.tokens[at])
            at = tree.parents[at]
        paths.add(tuple(path[::-1]))
    wanted = {one for deep in range(len(best) + 1) for one in itertools.product(*map(range, best[:deep]))}
    assert paths == wanted


def test_matrices_of_the_heads_own_are_proposed_where_they_are_little(tiny, monkeypatch):
    target = tiny(LLAMA).target
    assert Trainable.propose(target) is None, "here they are as much as the model"
    monkeypatch.setattr("localspec.training.drafters.medusa.SHARE", 100.0)
    proposal = Trainable.propose(target)
    assert (
        proposal is not None and proposal[0] == {"private": True} and wording("of_the_model_s_weights") in proposal[1]
    )
    monkeypatch.setattr("localspec.training.drafters.medusa.free_memory", lambda device: 1000)
    assert Trainable.propose(target) is None, "nor where memory is too small to train them"


def test_a_file_from_before_the_heads_own_change_is_read_without_one(tiny: Make, tmp_path: Path) -> None:
    target = tiny(LLAMA).target
    save_drafter(medusa(target, private_rank=0, linear=False), tmp_path, {})
    about = json.loads((tmp_path / "drafter.json").read_text())
    for later in ("private_rank", "linear", "rate"):
        del about["options"][later]
    about["options"]["balance"] = 0.01  # the default then, also without joint training
    (tmp_path / "drafter.json").write_text(json.dumps({**about, "target": {}}))
    options = load_drafter(read_drafter(tmp_path), target).options
    assert (options.private_rank, options.linear, options.balance) == (0, False, 0.0)


def test_a_chain_is_the_likeliest_token_of_each_head(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = perturbed(medusa(target, heads=3, layers=2, tree="chain", linear=False))
    for nodes in (2, 3, 9):
        tree = proposed(drafter, target, prompt_ids(9), nodes=nodes)
        assert list(tree.parents) == list(range(-1, min(nodes, 3)))
        hidden = states(target, torch.tensor([prompt_ids(9)[:-1]]))[0, -1:]
        best = drafter._logits(hidden.expand(3, 1, -1), slice(3))[:, 0].argmax(-1).tolist()
        assert list(tree.tokens[1:]) == best[: tree.size - 1]


def test_a_static_tree_has_the_shape_of_its_accuracies_and_the_tokens_of_this_step(tiny: Make) -> None:
    target = tiny(LLAMA).target
    learned = perturbed(medusa(target, heads=3, tree="static", linear=False))
    drafter = drafting(learned, target)
    drafter.accuracies = [[0.6, 0.5, 0.0], [0.0, 0.9]]
    trees = [proposed(drafter, target, prompt_ids(9, seed=seed), nodes=4) for seed in range(3)]
    for seed, tree in enumerate(trees):
        assert list(tree.parents) == [-1, 0, 1, 0, 3], "two ranks, and below each the second rank of the next head"
        hidden = states(target, torch.tensor([prompt_ids(9, seed=seed)[:-1]]))[0, -1:]
        best = learned._logits(hidden.expand(2, 1, -1), slice(2))[:, 0].topk(2).indices.tolist()
        assert list(tree.tokens[1:]) == [best[0][0], best[1][1], best[0][1], best[1][1]]
    assert trees[0].tokens != trees[1].tokens
    drafter.accuracies = []  # not measured yet: deep enough to be useful
    assert max(proposed(drafter, target, prompt_ids(9), nodes=16).depth) == 3
    sampled = Sampling(0.9, top_k=2)
    drafter.observe(Step(prompt_ids(9), hidden_for(target, hidden)))
    tree = drafter.draft(Context(prompt_ids(9), target.cache(0), 20, sampled))
    assert 3 < tree.size <= 15, "of two tokens that may be drawn, two ranks"


def test_confidence_is_judged_by_what_was_committed_at_its_depth(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = drafting(perturbed(medusa(target, heads=4)), target)
    tree = proposed(drafter, target, prompt_ids(9), nodes=2)
    first, second = drafter._candidates[0][0][0], drafter._candidates[1][1][0]
    drafter.observe(Step([first, second, END], hidden_for(target, torch.zeros(3, 48)), tree, path=[0, 1]))
    right = {}
    for _, depth, rank, _, hits, count in drafter.calibration.as_json():
        right[depth, rank] = right.get((depth, rank), 0) + hits
        assert count == 1
    assert right == {(1, 0): 1, (1, 1): 0, (2, 0): 0, (2, 1): 1}
    drafter.observe(Step([5], hidden_for(target, torch.zeros(1, 48)), tree, path=[0]))
    assert sum(count for *_, count in drafter.calibration.as_json()) == 4, "a draft is judged once"


# -- joint -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tiny: Make) -> Callable[[str], Target]:
    """Return a separate target, whose weights may be changed."""
    return lambda name: Target.load(tiny(name).path)


@pytest.mark.slow
def test_only_heads_learn_during_the_warm_up(own: Callable[[str], Target]) -> None:
    target = own(LLAMA)
    drafter, alone = perturbed(medusa(target, joint=True, rank=4, warmup=0.5)), medusa(target)
    alone.load_state_dict({name: part for name, part in drafter.state_dict().items() if "adapters" not in name})
    for distill in (False, True):
        lesson = batch_of(target, [prompt_ids(20)], distill=distill)
        drafter.progress = 0.49
        assert torch.equal(drafter.loss(lesson).loss, alone.loss(lesson).loss)
        drafter.loss(lesson).loss.backward()
        assert all(parameter.grad is None for parameter in drafter.adapters.parameters())
        drafter.progress = 0.5
        drafter.loss(lesson).loss.backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in drafter.adapters.parameters())
        drafter.zero_grad()


def test_the_joint_loss_is_that_of_the_paper(own: Callable[[str], Target]) -> None:
    """Gradients of L_LM + λ₀ L_heads for the target, and of L_heads for the heads, which Adam would starve else.

    Both are on the states with adapters; the teacher is the target without them.
    """
    target, text = own(LLAMA), prompt_ids(14)
    drafter = perturbed(medusa(target, heads=2, joint=True, rank=4, balance=0.3, linear=False, dropout=0.0))
    lesson = batch_of(target, [text], distill=True, start=2)
    merged = own(LLAMA)
    add_changes(drafter.adapters, merged.transformer)
    assert not torch.equal(target.transformer.lm_head.weight, merged.transformer.lm_head.weight)
    adapted = states(merged, lesson.tokens)[0]
    assert not torch.allclose(adapted, lesson.hidden[0], atol=0.1)
    teacher = target.head(lesson.hidden[0]).softmax(-1)
    rows = range(1, 13)  # those before the tokens that count
    language = torch.stack([-(teacher[t] * merged.head(adapted[t]).log_softmax(-1)).sum() for t in rows]).mean()
    heads = medusa(merged, heads=2, linear=False)
    heads.load_tensors(drafter.tensors())
    total = 0.0
    for k in (1, 2):
        own_logits = heads._logits(adapted[None], slice(k - 1, k))[0].log_softmax(-1)
        losses = [-(teacher[t + k] * own_logits[t]).sum() for t in range(1, 13 - k)]
        total += 0.8**k * torch.stack(losses).mean()
    found = drafter.loss(lesson).loss
    assert found.item() == pytest.approx((language + total).item(), rel=1e-4)
    found.backward()
    of_heads = torch.autograd.grad(total, [*heads.parameters()])
    ours = dict(drafter.named_parameters())
    for (name, _), gradient in zip(heads.named_parameters(), of_heads, strict=True):
        assert torch.allclose(ours[name].grad, gradient, rtol=1e-3, atol=1e-5), name
    asked = [parameter.grad.clone() for parameter in drafter.adapters.parameters()]
    by_balance = []
    for balance in (1e-9, 1.0):
        drafter.zero_grad()
        drafter.options = replace(drafter.options, balance=balance)
        drafter.loss(lesson).loss.backward()
        by_balance.append([parameter.grad for parameter in drafter.adapters.parameters()])
    for gradient, without, whole in zip(asked, *by_balance, strict=True):
        assert torch.allclose(gradient, without + 0.3 * (whole - without), rtol=1e-3, atol=1e-5)
    assert all(not parameter.requires_grad for parameter in target.transformer.parameters())


def test_the_weight_of_the_heads_rises_as_a_sine_after_their_warm_up(own: Callable[[str], Target]) -> None:
    target = own(LLAMA)
    for given, distill, highest in (
        ({}, True, 0.01),
        ({}, False, 0.2),
        ({"balance": 0.5}, False, 0.5),
        ({"balance": 0.01}, False, 0.01),
    ):
        drafter = medusa(target, joint=True, rank=4, warmup=0.2, **given)
        for progress, share in ((0.2, 0.0), (0.6, math.sqrt(0.5)), (1.0, 1.0)):
            drafter.progress = progress
            assert drafter._balance(distill) == pytest.approx(highest * share)
    drafter = medusa(target, joint=True, rank=4, warmup=0.2, schedule="constant")
    drafter.progress = 0.2
    assert drafter._balance(distill=True) == 0.01


def test_inputs_of_adapters_are_dropped_only_in_training(own: Callable[[str], Target]) -> None:
    drafter = perturbed(medusa(own(LLAMA), joint=True, rank=4, dropout=0.5))
    tokens = torch.tensor([prompt_ids(12)])
    one, other = (drafter.train().adapted_states(tokens) for _ in range(2))
    assert not torch.allclose(one, other, atol=1e-3)
    one, other = (drafter.eval().adapted_states(tokens) for _ in range(2))
    assert torch.equal(one, other)


def test_adapters_learn_slower_than_heads_and_all_learn(own: Callable[[str], Target]) -> None:
    drafter = medusa(own(LLAMA), joint=True, rank=4, private_rank=0)
    heads, path, adapters = drafter.parameter_groups()
    assert [group["lr_scale"] for group in (heads, path, adapters)] == [1.0, 0.2, 0.25]
    assert len(heads["params"]) == len(path["params"]) == 2
    assert {id(part) for group in (heads, path, adapters) for part in group["params"]} == {
        *map(id, drafter.parameters())
    }
    assert len(adapters["params"]) == len({*map(id, adapters["params"])}) == 3 * 4 * 2 + 2
    assert [len(group["params"]) for group in medusa(drafter.target).parameter_groups()] == [4, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", [LLAMA, "qwen2-many-heads-mixed-window-tied", "granite-grouped-multipliers-tied"])
def test_joint_training_makes_a_new_target_for_which_it_is_lossless(tmp_path, tiny, own, name):
    target, prompt = own(name), prompt_ids(23, seed=23)
    lesson = batch_of(target, [prompt_ids(30, seed=seed) for seed in range(3)], distill=True)
    drafter = medusa(target, heads=2, joint=True, rank=4, balance=0.5)
    train(drafter, lesson, 10, rate=0.02)
    trained = drafter.adapted_states(lesson.tokens).detach()
    assert (trained - lesson.hidden).abs().max() > 0.05
    said = drafter.adapted_head(trained).detach()
    drafter, changed = after_training(drafter, tiny(name).path, tmp_path / "target")
    torch.testing.assert_close(states(changed, lesson.tokens), trained, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(changed.head(trained), said, rtol=1e-3, atol=1e-4)
    assert (said - target.head(trained)).abs().max() > 0.05, "the head has learnt, too"
    assert drafter.adapters is None and not drafter.options.joint
    assert sorted(drafter.tensors()) == [
        "blocks.0.bias",
        "blocks.0.weight",
        "own.down",
        "own.up",
        "path.bias",
        "path.weight",
    ]
    model = read(tmp_path / "target")
    assert not torch.equal(
        model.target.transformer.layers[0].qkv_proj.weight, own(name).transformer.layers[0].qkv_proj.weight
    )
    heads = saved(drafter, tmp_path / "drafter", model.target)
    ids, _ = reply(session_of(model.target, heads, Budget(NODES)), prompt, 30)
    assert ids == stock_reply(model.stock, prompt, 30)
    saved(drafter, tmp_path / "packed", packed_target(tmp_path / "target"))  # which it may be now


# -- options and files -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each("form", FORMS)
def test_what_was_saved_drafts_the_same(tmp_path, tiny: Make, form: str) -> None:
    target = tiny(LLAMA).target
    drafter = perturbed(medusa(target, **FORMS[form]))
    read_again = saved(drafter, tmp_path / "drafter", target)
    assert isinstance(read_again, Medusa)
    text = prompt_ids(9)
    assert proposed(read_again, target, text, 16) == proposed(drafter, target, text, 16)


def test_weights_of_other_heads_are_refused(tiny: Make) -> None:
    target = tiny(LLAMA).target
    with pytest.raises(LocalspecError, match="shape"):
        medusa(target, heads=3).load_tensors(medusa(target).tensors())
    with pytest.raises(LocalspecError, match="lacks 'linears'"):
        medusa(target, private=True).load_tensors(medusa(target).tensors())
