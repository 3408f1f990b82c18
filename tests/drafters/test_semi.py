"""Semi-autoregressive drafting: trees along the path, training at the right places, and the text is the target's."""

import copy
from collections.abc import Callable, Sequence
from itertools import product
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
    path_tokens,
    perturbed,
    saved,
    session_of,
    states,
    torch_form,
    train,
)
from each import each
from session_replies import assert_plain, reply
from slow_cases import covering
from tiny_models import FAMILIES, Tiny, prompt_ids, read, stock_logits, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Drafter, Step
from localspec.decoding.limits import Limits
from localspec.decoding.logits import Candidate
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.drafters.autoregressive import Autoregressive
from localspec.drafters.semi import Drafter as Semi
from localspec.drafters.semi import SemiOptions
from localspec.errors import LocalspecError
from localspec.events import Text
from localspec.nn.logits import TorchLogits
from localspec.nn.target import Target
from localspec.training.drafters.semi import Trainable
from localspec.training.trainable import Batch, make_drafter

Make = Callable[[str], Tiny]

LLAMA, QWEN, PHI = (
    "llama-grouped-dynamic",
    "qwen3-grouped-mixed-window-wide-heads",
    "phi3-grouped-window-partial-rotary",
)
GEMMA, GRANITE, GEMMA4 = FAMILIES[5], FAMILIES[7], FAMILIES[10]
RECENT = ["transformer", "lstm", "none"]
FORMS = [
    {"recent": "transformer"},
    {"recent": "lstm"},
    {"recent": "none"},
    {"shared": False},
    {"shared": False, "vocabulary": 150},
    {"recent": "lstm", "vocabulary": 150},
]
DEFAULT = FORMS[0]
NODES = 8


def semi(target: Target, seed: int = 0, **options: object) -> Trainable:
    """Return an untrained drafter, the same for each seed."""
    torch.manual_seed(seed)
    made = make_drafter("semi", torch_form(target), options)
    assert isinstance(made, Trainable)
    return made


# -- options -----------------------------------------------------------------------------------------------------------


def test_the_papers_widths_and_those_in_proportion(tiny: Make) -> None:
    """Appendix A, with H = 48 and V = 320; h_q is H / 2 wide, the embedding itself H."""
    target = tiny(LLAMA).target
    paper = semi(target, shared=False, paper_widths=True).tensors()
    assert [tuple(paper[name + ".weight"].shape) for name in ("far", "near", "out")] == [
        (1024, 48),
        (1024, 24),
        (320, 2048),
    ]
    scaled = semi(target, shared=False, vocabulary=100, recent="lstm").tensors()
    assert [tuple(scaled[name + ".weight"].shape) for name in ("far", "near", "out")] == [(12, 48), (12, 24), (100, 24)]
    assert tuple(scaled["recent.second.weight_hh"].shape) == (96, 24)
    assert tuple(semi(target, recent="none").tensors()["near.weight"].shape)[1] == 48
    nbytes = drafting(semi(target)).nbytes
    assert nbytes == 4 * sum(tensor.numel() for tensor in semi(target).tensors().values())
    assert drafting(semi(target, vocabulary=100)).nbytes == nbytes + 4 * 100 * 48, (
        "a copy of those rows of the target's"
    )


# -- the tree ----------------------------------------------------------------------------------------------------------


class Foretold:
    """A drafter's `expand` with candidates that differ from path to path; it counts the requested nodes."""

    def __init__(self, seed: int, branches: int = 4) -> None:
        self.seed, self.branches = seed, branches
        self.paths: list[tuple[int, ...]] = [()]
        self.asked: list[int] = []

    def prefix(self, path: tuple[int, ...]) -> list[Candidate]:
        generator = torch.Generator().manual_seed(hash((self.seed, *path)) % 2**31)
        chances = (torch.randn(self.branches, generator=generator) * 2).softmax(0) * 0.9
        return sorted(enumerate(chances.tolist()), key=lambda candidate: -candidate[1])

    def __call__(self, parents: Sequence[int], tokens: Sequence[int], depth: int) -> list[list[Candidate]]:
        if depth:
            self.paths = [(*self.paths[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        assert all(len(path) == depth for path in self.paths)
        self.asked.append(len(self.paths))
        return [self.prefix(path) for path in self.paths]


@each("nodes", [1, 2, 5, 12])
def test_a_grown_tree_is_the_best_there_is(nodes: int) -> None:
    depth = 3
    for seed in range(8):
        expand = Foretold(seed)
        tree = grow_tree(9, expand, nodes, depth, "semi")
        paths = [path_tokens(tree, node) for node in range(tree.size)]
        assert len(set(paths)) == tree.size == nodes + 1, "no path comes twice"
        every = {(): 1.0}
        for length in range(1, depth + 1):
            for path in product(range(expand.branches), repeat=length):
                every[path] = every[path[:-1]] * dict(expand.prefix(path[:-1]))[path[-1]]
        best = sorted(every.values(), reverse=True)[: nodes + 1]
        assert sorted((every[path] for path in paths), reverse=True) == pytest.approx(best)
        for node in range(1, tree.size):
            assert tree.chance[node] == dict(expand.prefix(paths[node][:-1]))[tree.tokens[node]]
        assert max(expand.asked) <= nodes and len(expand.asked) <= depth


def test_a_grown_tree_has_its_likeliest_chain_first_and_asks_no_deeper_than_it_must() -> None:
    asked = []

    def expand(parents: Sequence[int], tokens: Sequence[int], at: int) -> list[list[Candidate]]:
        asked.append((list(parents), list(tokens)))
        return [[(1, 0.5), (2, 0.4)]] if at == 0 else [[(3, 0.9), (4, 0.1)] for _ in tokens]

    tree = grow_tree(7, expand, 4, 2, "semi")
    assert (tree.tokens, tree.parents) == ([7, 1, 3, 2, 3], [-1, 0, 1, 0, 3])
    assert tree.chance == [1.0, 0.5, 0.9, 0.4, 0.9]
    assert asked == [([0], [7]), ([0, 0], [1, 2])]
    asked.clear()
    assert grow_tree(7, expand, 2, 5, "semi").tokens == [7, 1, 3]
    assert [tokens for _, tokens in asked] == [[7], [1], [3]], "0.405 can push out neither 0.5 nor 0.45"
    asked.clear()
    grow_tree(7, lambda *given: expand(*given) and [[(1, 0.5), (2, 0.4)] for _ in given[1]], 2, 5, "semi")
    assert len(asked) == 2, "0.25 can push out neither 0.5 nor 0.4"


def scored(drafter: Trainable, state: torch.Tensor, recent: Sequence[int]) -> torch.Tensor:
    """Return the logits [vocabulary] after the recent tokens, root first, written from the equations of the paper."""
    tensors, target = drafter.tensors(), drafter.target
    embedded = target.embed(torch.tensor(recent))
    embedded = embedded / (embedded.pow(2).mean(-1, keepdim=True) + torch.finfo().eps).sqrt()
    if "recent.free" in tensors:  # eq. 6
        alpha = torch.sigmoid(tensors["recent.free"])[: len(recent), None]
        x = F.silu(embedded @ tensors["recent.inner.weight"].T + tensors["recent.inner.bias"])
        x = F.silu(x @ tensors["recent.outer.weight"].T + tensors["recent.outer.bias"])
        recent_state = (alpha * x).sum(0) / alpha.sum()
    elif "recent.first.weight_ih" in tensors:  # eq. 7
        layers = torch.nn.LSTM(48, 24, 2)
        with torch.no_grad():
            for index, name in enumerate(("first", "second")):
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(layers, f"{part}_l{index}").copy_(tensors[f"recent.{name}.{part}"])
            recent_state = layers(embedded)[0][-1]
    else:
        recent_state = embedded[-1]
    far = tensors["far.weight"] @ state + tensors["far.bias"]
    near = tensors["near.weight"] @ recent_state + tensors["near.bias"]
    x = F.silu(torch.cat([far, near]))
    if "mixed.weight" in tensors:
        x = x + F.silu(tensors["mixed.weight"] @ x + tensors["mixed.bias"])
    out = tensors["out.weight"] @ x
    logits = target.head(out) if drafter.options.shared else out
    if "kept" in tensors:
        logits = logits[tensors["kept"]] if drafter.options.shared else logits
        return torch.full((320,), float("-inf")).index_copy(0, tensors["kept"], logits)
    return logits


def opened(drafter: Drafter, target: Target, length: int = 12, sampling: Sampling | None = None) -> Session:
    """Return a session with one committed token, so that the next draft is the first."""
    session = session_of(target, drafter, Budget(NODES))
    reply(session, prompt_ids(length, seed=3), 1, sampling)
    return session


def drafted(
    drafter: Trainable | Semi, target: Target, nodes: int, sampling: Sampling
) -> tuple[DraftTree, torch.Tensor, int]:
    """Return the tree after a prompt of twelve tokens and its first pick, the state it is drafted from, and the root's position."""
    tokens = prompt_ids(12, seed=3)
    drafter = drafting(drafter, target) if isinstance(drafter, Trainable) else drafter
    cache = target.cache(64)
    output = target.forward(DraftTree.chain(tokens), cache)
    cache.keep(range(12))
    drafter.observe(Step([*tokens, 77], output.hidden))
    tree = drafter.draft(Context([*tokens, 77], cache, nodes, sampling))
    return tree, torch.as_tensor(output.hidden.rows[-1]).clone(), 12


@pytest.mark.parametrize(
    ("form", "sampling"),
    covering(FORMS, [Sampling(), Sampling(0.9, seed=4), Sampling(0.9, top_k=6, seed=4)], fast=2),
    ids=str,
)
def test_every_node_is_what_the_equations_give_behind_its_path(tiny, form, sampling):
    target = tiny(LLAMA).target
    drafter = perturbed(semi(target, **form), 0.6)
    tree, state, position = drafted(drafter, target, 16, sampling)
    assert tree.size == 17
    assert max(tree.depth) >= 2
    assert {tree.source[node] for node in range(17)} == {"semi"}
    for node in range(tree.size):
        below = tree.siblings[node]
        if not below:
            continue
        logits = scored(drafter, state, [77, *path_tokens(tree, node)])
        # All siblings share the noise of their position.
        proposed = dict(TorchLogits(logits[None]).candidates([position + tree.depth[node] + 1], 16, sampling)[0])
        likeliest = sorted(proposed, key=lambda token: -proposed[token])[: len(below)]
        assert sorted(tree.tokens[child] for child in below) == sorted(likeliest)
        if sampling.greedy:  # where nothing is known, the drafter's own chance counts
            assert [tree.chance[child] for child in below] == pytest.approx(
                [proposed[tree.tokens[child]] for child in below], rel=1e-3
            )


def test_without_a_state_or_nodes_there_is_only_the_root(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = drafting(semi(target), target)
    assert drafter.draft(Context([5, 6], target.cache(8), 8, Sampling())).tokens == (6,)
    assert drafted(drafter, target, 0, Sampling())[0].tokens == (77,)
    assert drafted(drafter, target, 3, Sampling())[0].size == 4
    drafter.rewind(11)
    assert drafter.draft(Context([5, 6], target.cache(8), 8, Sampling())).size == 1


def test_the_calibration_judges_what_hung_on_the_path_that_was_accepted(tiny: Make) -> None:
    target = tiny(LLAMA).target
    weights = perturbed(semi(target), 0.5)
    drafter = drafting(weights, target)
    tree, state, _ = drafted(drafter, target, 12, Sampling())
    chain = list(path_tokens(tree, 2))  # accepted: the first chain to depth two
    assert len(chain) == 2
    judged: list[tuple[list[int], int, bool, int]] = []
    learn = drafter.calibration.learn

    def heard(candidates: Sequence[Candidate], depth: int, greedy: bool, token: int) -> None:
        judged.append(([token for token, _ in candidates], depth, greedy, token))
        learn(candidates, depth, greedy, token)

    drafter.calibration.learn = heard  # type: ignore[method-assign]
    rows = hidden_for(target, state[None].expand(3, -1))
    drafter.observe(Step([*chain, 300], rows, tree, [0, 1, 2], [0] * tree.size))
    assert [(depth, greedy, token) for _, depth, greedy, token in judged[:2]] == [
        (1, True, chain[0]),
        (2, True, chain[1]),
    ]
    for behind, (tokens, _, _, _) in enumerate(judged):
        logits = scored(weights, state, [77, *chain[:behind]])
        assert tokens == logits.topk(len(tokens)).indices.tolist()
    judged.clear()
    drafter.observe(Step([4], hidden_for(target, state[None]), DraftTree((1,), (-1,)), [0], [0]))
    assert not judged, "a draft is judged once"


# -- learning ----------------------------------------------------------------------------------------------------------


@each("recent", RECENT)
def test_the_loss_is_that_of_drafting_for_every_pair_that_a_reply_can_have(tiny: Make, recent: str) -> None:
    """Two texts, one shorter, one with two replies: against sums written out, with text and with soft labels."""
    target = tiny(LLAMA).target
    drafter = perturbed(semi(target, depth=3, recent=recent), 0.6)
    tokens = torch.tensor([prompt_ids(10, seed=1), prompt_ids(10, seed=2)])
    counts = torch.zeros(2, 10, dtype=torch.bool)
    counts[0, 3:6] = counts[0, 7:10] = counts[1, 2:7] = True
    hidden = states(target, tokens)
    for distill in (False, True):
        sums, numbers = [0.0] * 3, [0] * 3
        for text, i, j in product(range(2), range(10), range(1, 4)):
            if i + 1 + j < 10 and all(counts[text, i + 1 : i + 2 + j]):
                chances = scored(drafter, hidden[text, i], tokens[text, i + 1 : i + 1 + j].tolist()).log_softmax(-1)
                wanted = (
                    target.head(hidden[text, i + j]).softmax(-1) if distill else F.one_hot(tokens[text, i + 1 + j], 320)
                )
                sums[j - 1] -= float((wanted * chances).sum())
                numbers[j - 1] += 1
        with torch.no_grad():
            lesson = drafter.loss(Batch(tokens, counts, hidden, distill))
        assert [seen.count for seen in lesson.depth_losses] == numbers
        assert [float(seen.loss) for seen in lesson.depth_losses] == pytest.approx(sums, rel=1e-4)
        assert float(lesson.loss) == pytest.approx(sum(sums) / sum(numbers), rel=1e-4)


def test_a_share_of_the_positions_and_a_batch_without_any(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = semi(target, share=0.25)
    full = batch_of(target, [prompt_ids(200, seed=seed) for seed in range(2)])
    counts = drafter.loss(full).depth_losses[0].count, semi(target).loss(full).depth_losses[0].count
    assert counts[1] == 2 * 198
    assert 60 < counts[0] < 140
    nothing = drafter.loss(Batch(full.tokens, torch.zeros_like(full.loss_mask), full.hidden, True))
    nothing.loss.backward()
    assert nothing.loss.item() == 0
    assert [seen.count for seen in nothing.depth_losses] == [0] * 4


# -- losslessness ------------------------------------------------------------------------------------------------------


def memorised(model: Tiny, prompt: list[int], text: list[int], steps: int) -> Trainable:
    """Return a drafter that was trained on this text of the target, `steps` times."""
    batch = batch_of(model.target, [[*prompt, *text]], start=len(prompt))
    drafter = train(semi(model.target), batch, steps, rate=0.02)
    return drafter.eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "name"), covering(FORMS, [QWEN, *(name for name in FAMILIES if name != QWEN)], fast=1), ids=str
)
def test_untrained_it_changes_no_text_whatever_it_says(tiny: Make, name: str, form: dict[str, object]) -> None:
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    assert len(text) == 40
    for drafter in (semi(model.target, **form), perturbed(semi(model.target, **form), 0.6)):
        assert reply(session_of(model.target, drafter, Budget(NODES)), prompt, 40)[0] == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *zip([LLAMA, GEMMA, QWEN, GRANITE, PHI, GEMMA4], [FORMS[0], FORMS[1]] * 3, strict=True),
        *((QWEN, form) for form in FORMS[2:]),
    ],
    ids=str,
)
def test_trained_on_a_text_it_foresees_nearly_all_of_it_and_the_text_is_the_stock_models(tiny, name, form):
    model, prompt = tiny(name), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    knowing = semi(model.target, **form)
    if knowing.options.vocabulary:
        knowing.begin_training(torch.bincount(torch.tensor(text), minlength=320))
    train(knowing, batch_of(model.target, [[*prompt, *text]], start=len(prompt)), 60, rate=0.02)
    for nodes in (1, 3, NODES):
        ids, statistics = reply(session_of(model.target, knowing, Budget(nodes)), prompt, 40)
        assert ids == text
        # An LSTM learns it by heart. Eq. 6 cannot tell two equal neighbours from one, and the last token says less.
        share = 0.9 if knowing.options.recent == "lstm" else 0.7
        assert statistics.acceptance_length > 1 + share * min(nodes, 4)


@pytest.mark.slow
@pytest.mark.parametrize("recent", ["transformer", "lstm"])
def test_turns_an_abandoned_stream_and_a_rewind_leave_the_right_state(tiny: Make, recent: str) -> None:
    model, prompt = tiny(QWEN), prompt_ids(15, seed=6)
    text = stock_reply(model.stock, prompt, 24)
    second = [*prompt, *text, *prompt_ids(9, seed=1)]
    follow = stock_reply(model.stock, second, 24)
    batch = batch_of(model.target, [[*second, *follow]], start=15)
    drafter = train(semi(model.target, recent=recent), batch, 80).requires_grad_(False)
    session = session_of(model.target, drafter, Budget(NODES))
    stream = session.generate(prompt, Sampling(), Limits(max_tokens=24))
    said: list[int] = []
    for event in stream:
        said += event.tokens if isinstance(event, Text) else ()
        if len(said) > 6:
            break
    stream.close()
    assert said == text[: len(said)]
    for turn, wanted in ((prompt, text), (second, follow), (prompt, text)):
        ids, statistics = reply(session, turn, 24)
        assert ids == wanted
        assert statistics.acceptance_length > 3
    session.rewind(len(prompt) + 5)
    assert session.tokens == prompt + text[:5]
    ids, statistics = reply(session, second, 24)
    assert ids == follow
    assert statistics.acceptance_length > 3
    assert statistics.reused_tokens == len(prompt) + 4


@pytest.mark.slow
def test_what_was_accepted_in_part_leaves_the_state_of_the_last_accepted_row(tiny: Make) -> None:
    """After every step the drafter holds the state that a fresh pass over the whole text gives before the root."""
    model, prompt = tiny(QWEN), prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    drafter = drafting(memorised(model, prompt, text, steps=10), model.target)  # knows a part of the coming text
    seen: list[int] = []
    lengths: set[int] = set()
    observe = drafter.observe

    def heard(step: Step) -> None:
        observe(step)
        seen.extend(step.committed)
        if step.tree is not None:
            lengths.add(len(step.committed))
        fresh = states(model.target, torch.tensor([seen[:-1]]))[0, -1]
        assert torch.allclose(torch.as_tensor(drafter._state[0]), fresh, atol=1e-4)

    drafter.observe = heard  # type: ignore[method-assign]
    reply(session_of(model.target, drafter, Budget(NODES)), prompt, 40)
    assert seen[:63] == prompt + text
    assert len(lengths) >= 3, lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [(LLAMA, {"temperature": 1.0}), (PHI, {"temperature": 0.8, "top_k": 20, "top_p": 0.9})],
    ids=str,
)
def test_a_seed_gives_the_text_of_plain_decoding(tiny: Make, name: str, shape: dict[str, float]) -> None:
    model, prompt = tiny(name), prompt_ids(10, seed=4)
    for seed in (0, 2**63 + 5):
        sampling = Sampling(**shape, seed=seed)
        plain, _ = reply(session_of(model.target, Autoregressive(), Budget(0)), prompt, 24, sampling)
        knowing = memorised(model, prompt, plain, steps=40)
        for drafter in (perturbed(semi(model.target), 0.6), knowing):
            session = session_of(model.target, drafter, Budget(NODES))
            statistics = assert_plain(model.target, session, prompt, 24, sampling)
        assert statistics.acceptance_length > 2 or len(plain) < 24  # a reply that ended by itself


def test_in_half_precision_it_drafts_and_learns_in_half_precision(tiny: Make) -> None:
    target = Target.load(tiny(LLAMA).path, dtype=torch.bfloat16)
    drafter = semi(target, recent="lstm")
    drafter.loss(batch_of(target, [prompt_ids(12)], distill=True)).loss.backward()
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in drafter.parameters()
    )
    half = drafting(drafter)
    assert reply(opened(half, target), prompt_ids(12), 12)[1].drafted > 0
    assert half._state is None or half._state.dtype == torch.bfloat16


# -- the rule `rejection` ----------------------------------------------------------------------------------------------

REJECTION = {"temperature": 1.1, "rule": "rejection"}


@pytest.mark.slow
@pytest.mark.parametrize("form", [DEFAULT, FORMS[-1]], ids=str)
def test_drawn_trees_have_one_shape_and_say_what_each_node_was_drawn_from(tiny: Make, form: dict[str, object]) -> None:
    target = tiny(LLAMA).target
    drafter = perturbed(semi(target, depth=3, **form), 0.15)
    shapes, firsts = set(), []
    for seed in range(6):
        tree, state, _ = drafted(drafter, target, 11, Sampling(**REJECTION, seed=seed))
        shapes.add(tuple(tree.parents))
        firsts.append([tree.tokens[node] for node in tree.siblings[0]])
        for node in range(1, tree.size):
            logits = scored(drafter, state, [77, *path_tokens(tree, tree.parents[node])])
            row = torch.as_tensor(tree.draft_logits.rows[node])
            assert torch.allclose(row, logits, rtol=1e-4, atol=1e-4)
            assert tree.draft_logits.rows[node, tree.tokens[node]] > float("-inf")
        assert tree.chance is None
    assert shapes == {(-1, 0, 1, 2, 0, 4, 5, 0, 7, 8, 0, 0)}
    assert len({tuple(first) for first in firsts}) > 1, "they are drawn"
    for nodes in range(1, 6):
        assert drafted(drafter, target, nodes, Sampling(**REJECTION))[0].size == nodes + 1


# -- joint training, and files -----------------------------------------------------------------------------------------


@pytest.fixture
def own(tiny: Make) -> Tiny:
    """Return a target that may be changed."""
    model = tiny(LLAMA)
    return Tiny(model.path, model.stock, Target.load(model.path))


def test_joint_training_weighs_both_losses_and_teaches_the_target(own: Tiny) -> None:
    """Eq. 8 with λ = 0.25: 0.75 of the loss of the changed target, 0.25 of the drafter's."""
    batch = batch_of(own.target, [prompt_ids(16, seed=seed) for seed in range(4)], start=3)
    drafter = semi(own.target, joint=True, rank=4)
    assert drafter.adapters is not None
    with torch.no_grad():
        for parameter in drafter.adapters.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    changed = copy.deepcopy(own.target.transformer)
    add_changes(drafter.adapters, changed)
    n = 16
    hidden = changed(batch.tokens, torch.arange(n), torch.ones(n, n, dtype=torch.bool).tril_())
    assert not torch.allclose(hidden, batch.hidden, atol=1e-3)
    foreseen = semi(own.target).loss(Batch(batch.tokens, batch.loss_mask, hidden.detach(), False)).loss  # the same seed
    there = batch.loss_mask[:, 1:]
    said = F.cross_entropy(changed.lm_head(hidden[:, :-1][there]), batch.tokens[:, 1:][there])
    lesson = drafter.loss(batch)
    assert lesson.loss.item() == pytest.approx((0.75 * said + 0.25 * foreseen).item(), rel=1e-4)
    lesson.loss.backward()
    trainable = {id(parameter) for group in drafter.parameter_groups() for parameter in group["params"]}
    assert trainable == {id(parameter) for parameter in drafter.parameters()}
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in drafter.adapters.parameters())
    assert all(parameter.grad is None for parameter in own.target.transformer.parameters())


def test_the_soft_label_of_a_target_that_learns_is_what_it_said_before(own: Tiny) -> None:
    """With adapters that change nothing yet, the loss is the entropy of the target's distribution, its minimum."""
    batch = batch_of(own.target, [prompt_ids(16, seed=1)], distill=True)
    logits = own.target.head(batch.hidden[0, :-1])
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    foreseen = semi(own.target).loss(batch).loss
    assert semi(own.target, joint=True).loss(batch).loss.item() == pytest.approx(
        (0.75 * entropy + 0.25 * foreseen).item(), rel=1e-4
    )


@pytest.mark.slow
def test_a_target_that_learned_with_its_drafter_is_one_of_its_own_and_lossless(own: Tiny, tmp_path: Path) -> None:
    prompt = prompt_ids(15, seed=6)
    text = stock_reply(own.stock, prompt, 24)
    batch = batch_of(own.target, [[*prompt, *text]], start=15)
    drafter = train(semi(own.target, joint=True, rank=4), batch, 60)
    original = own.target.head(batch.hidden[0]).argmax(-1).tolist()
    adapted = drafter.adapted_states(batch.tokens)[0]
    drafter, changed = after_training(drafter, own.path, tmp_path / "joint")
    assert torch.allclose(states(changed, batch.tokens)[0], adapted, atol=1e-3)
    assert drafter.adapters is None
    assert not drafter.options.joint
    assert drafter.tensors().keys() == semi(own.target).tensors().keys(), "no adapter is left"
    merged = read(tmp_path / "joint")
    assert stock_logits(merged.stock, [*prompt, *text]).argmax(-1).tolist()[15:-1] == original[15:-1], (
        "it knows its text"
    )
    wanted = stock_reply(merged.stock, prompt, 24)
    ids, statistics = reply(session_of(merged.target, copy_to(drafter, merged.target), Budget(NODES)), prompt, 24)
    assert ids == wanted
    assert statistics.acceptance_length > 3.5


@pytest.mark.slow
def test_in_two_stages_first_only_the_target_learns_and_then_the_drafter_from_it(own, tmp_path):
    batch = batch_of(own.target, [prompt_ids(16, seed=seed) for seed in range(4)], start=3, distill=True)
    drafter = semi(own.target, first=0.5, rank=4, recent="lstm")
    assert drafter.adapters is not None and drafter.changes_target
    of_target = {name for name, _ in drafter.named_parameters() if name.startswith("adapters.")}
    with torch.no_grad():
        for parameter in drafter.adapters.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
        for adapter in drafter.adapters.children():
            adapter.lora_B.mul_(adapter.block_mask)  # nothing is trained outside the mask
    changed = copy.deepcopy(own.target)
    add_changes(drafter.adapters, changed.transformer)

    def learns(progress: float) -> set[str]:
        drafter.zero_grad()
        drafter.train().progress = progress
        drafter.loss(batch).loss.backward()
        return {
            name
            for name, parameter in drafter.named_parameters()
            if parameter.grad is not None and parameter.grad.abs().sum() > 0
        }

    assert learns(0.0) == learns(0.49) == of_target
    said = F.cross_entropy(
        changed.head(states(changed, batch.tokens)[:, :-1][batch.loss_mask[:, 1:]]),
        batch.tokens[:, 1:][batch.loss_mask[:, 1:]],
    )
    assert drafter.loss(batch).loss.item() == pytest.approx(said.item(), rel=1e-4)
    assert learns(0.5) == learns(1.0) == {name for name, _ in drafter.named_parameters()} - of_target
    later = semi(changed, recent="lstm")
    later.load_tensors(drafter.tensors())
    same = Batch(batch.tokens, batch.loss_mask, states(changed, batch.tokens), True)
    assert drafter.loss(batch).loss.item() == pytest.approx(later.loss(same).loss.item(), rel=1e-4)
    written, target = after_training(drafter, own.path, tmp_path / "learnt")
    assert torch.allclose(states(target, batch.tokens), same.hidden, atol=1e-3)
    assert written.adapters is None and not written.options.first


@pytest.mark.slow
@each("form", [{"recent": "lstm"}, {"shared": False, "layers": 1, "vocabulary": 200}])
def test_with_a_rank_of_its_own_the_drafter_learns_little_matrices_and_saves_whole_ones(tiny, form):
    """r_q (§4.2): W + U D, of which W stays as it began."""
    target = tiny(LLAMA).target
    drafter, whole = semi(target, draft_rank=3, **form), semi(target, **form)
    batch = batch_of(target, [prompt_ids(20, seed=seed) for seed in range(3)])
    assert drafter.tensors().keys() == whole.tensors().keys(), "files know nothing of it"
    before = {name: tensor.clone() for name, tensor in drafter.tensors().items()}
    learns = {name: part for name, part in drafter.named_parameters() if part.requires_grad}
    assert sum(part.numel() for part in learns.values()) < 0.5 * sum(part.numel() for part in whole.parameters())
    untrained = drafter.loss(batch).loss.item()
    train(drafter, batch, 30)
    assert drafter.loss(batch).loss.item() < 0.9 * untrained
    ranks = {}
    for name, tensor in drafter.tensors().items():
        if tensor.is_floating_point() and tensor.ndim == 2:
            ranks[name] = int(torch.linalg.matrix_rank(tensor - before[name], rtol=1e-4))
    assert set(ranks.values()) == {3}, ranks
    copy = semi(target, **form)
    copy.load_tensors(drafter.tensors())
    assert copy.loss(batch).loss.item() == pytest.approx(drafter.loss(batch).loss.item(), rel=1e-4)
    ids, _ = reply(session_of(target, copy, Budget(NODES)), prompt_ids(15), 16)
    assert ids == stock_reply(tiny(LLAMA).stock, prompt_ids(15), 16)


def copy_to(drafter: Trainable, target: Target) -> Trainable:
    other = semi(target, recent=drafter.options.recent)
    other.load_tensors(drafter.tensors())
    return other


def test_the_draft_vocabulary_is_what_comes_most_often_and_nothing_else_is_drafted(tiny: Make) -> None:
    target = tiny(LLAMA).target
    drafter = perturbed(semi(target, shared=False, vocabulary=5), 0.6)
    frequencies = torch.zeros(320, dtype=torch.long)
    frequencies[[300, 7, 41, 90, 8]] = torch.tensor([9, 8, 7, 6, 5])
    frequencies[[11, 12]] = 4
    drafter.begin_training(frequencies)
    assert drafter.tensors()["kept"].tolist() == [7, 8, 41, 90, 300]
    for sampling in (Sampling(), Sampling(1.0, seed=1), Sampling(**REJECTION)):
        tree = drafted(drafter, target, 12, sampling)[0]
        assert tree.size == 13
        assert set(tree.tokens[1:]) <= {7, 8, 41, 90, 300}
    # A label outside the vocabulary teaches nothing, and counts as missed.
    tokens = torch.tensor([[7, 8, 41, 11, 90]])
    seen = drafter.loss(
        Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.randn(1, 5, 48), False)
    ).depth_losses[0]
    assert seen.count == 3
    assert int(seen.hits.sum()) == 2


@each("form", FORMS)
def test_what_is_saved_drafts_as_before(tiny: Make, tmp_path: Path, form: dict[str, object]) -> None:
    target = tiny(LLAMA).target
    drafter = perturbed(semi(target, **form), 0.6)
    if drafter.options.vocabulary:
        drafter.begin_training(torch.arange(320))
    loaded = saved(drafter, tmp_path, target)
    assert loaded.options == drafter.options
    for sampling in (Sampling(), Sampling(0.9, seed=2)):
        assert drafted(loaded, target, 12, sampling)[0].tokens == drafted(drafter, target, 12, sampling)[0].tokens


@each("sampling", [Sampling(), Sampling(1.0, seed=1), Sampling(**REJECTION)])
@each("sound", [0, 1, 2])
def test_nothing_is_drafted_behind_the_depth_where_numbers_end(tiny: Make, sampling: Sampling, sound: int) -> None:
    drafter, depths = drafting(perturbed(semi(tiny(LLAMA).target), 0.6)), []
    head = drafter._head

    def ending(x: torch.Tensor) -> torch.Tensor:
        depths.append(len(x))
        return head(x) if len(depths) <= sound else torch.full_like(head(x), float("nan"))

    drafter._head = ending
    assert max(drafted(drafter, drafter.target, 12, sampling)[0].depth) == sound


def test_of_a_large_vocabulary_the_frequent_tokens_are_drafted_unless_all_are_requested(tiny, monkeypatch):
    target = tiny(LLAMA).target  # of 320 tokens
    assert SemiOptions().settled(32_768).vocabulary == 0
    assert SemiOptions().settled(32_769).vocabulary == 8192
    assert SemiOptions(vocabulary=0).settled(152_064).vocabulary == 0
    monkeypatch.setattr("localspec.drafters.trained.LARGE", 319)
    monkeypatch.setattr("localspec.drafters.trained.FREQUENT", 40)
    made = make_drafter("semi", target, {})
    assert made.options.vocabulary == len(made.tensors()["kept"]) == 40
    assert make_drafter("semi", target, {"vocabulary": 0}).options.vocabulary == 0


def test_a_draft_vocabulary_that_the_model_does_not_have_is_refused(tiny: Make) -> None:
    drafter = semi(tiny(LLAMA).target, shared=False, vocabulary=5)
    with pytest.raises(LocalspecError, match="'kept'"):
        drafter.load_tensors({**drafter.tensors(), "kept": torch.tensor([1, 2, 3, 4, 320])})
