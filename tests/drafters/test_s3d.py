"""S3D: the target stays the same bit for bit, drafting equals training, and no row sees the token that it predicts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from drafting import batch_of, drafting, hidden_for, prefilled, saved, session_of, torch_form, train
from each import each
from golden import matching, wording
from quantized_layers import packed_target
from session_replies import assert_stops_leave_no_trace, conversation, reply
from six_words import PROMPT, six_words
from slow_cases import covering
from tiny_models import DRAFTING_FAMILIES, Tiny, prompt_ids, read, stock_logits, stock_reply

from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Context, Step
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree
from localspec.drafters import s3d
from localspec.drafters.trained import CARD, load_drafter
from localspec.errors import LocalspecError, UsageMistake
from localspec.models.drafter_cards import RIGHT_AFTER_RIGHT, DrafterCard, read_drafter
from localspec.models.s3d_prediction import Constants, MeasuredLayers, Timing, acceptance_at
from localspec.nn.linear import Linear
from localspec.nn.target import Target
from localspec.training.corpus import Row
from localspec.training.drafters import s3d as training
from localspec.training.train import Training, TrainingPlan
from localspec.training.trainable import Batch, make_drafter, save_drafter

Make = Callable[[str], Tiny]
OWN = DRAFTING_FAMILIES
LLAMA, QWEN3, PHI3, *LATER = OWN[0], *OWN[3:]
BOTH_ENDS = {"kept": "0,2"}  # of the three layers of the tiny models
GREEDY = Sampling()


def made(target: Target, spread: float = 0.0, seed: int = 0, **options: object) -> training.Trainable:
    """Return a drafter with random weights; with a spread of 0 it is untrained."""
    torch.manual_seed(seed)
    options = {**BOTH_ENDS, **options} if "skip" not in options else options
    drafter = make_drafter("s3d", torch_form(target), options)
    assert isinstance(drafter, training.Trainable)
    if spread:
        with torch.no_grad():
            for parameter in drafter.parameters():
                parameter.add_(torch.randn(parameter.shape) * spread)
    return drafter


def predicted(drafter: s3d.Drafter, context: Context) -> torch.Tensor:
    found = drafter._predict(context)
    assert found is not None
    return torch.as_tensor(found)


def drafted_logits(drafter: training.Trainable | s3d.Drafter, text: Sequence[int], nodes: int = 8) -> torch.Tensor:
    drafter = drafting(drafter) if isinstance(drafter, training.Trainable) else drafter
    return predicted(drafter, Context(text, prefilled(drafter.target, text), nodes, GREEDY))


def own(model: Tiny, **options: object) -> Target:
    """Return a target that a test may change."""
    return Target.load(model.path, **options)


# -- the target stays what it is ---------------------------------------------------------------------------------------

FORMS = {"fp32": {}, "bf16": {"dtype": torch.bfloat16}, "exact": {"exact": True}}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), covering([QWEN3, *(name for name in OWN if name != QWEN3)], FORMS, fast=3))
def test_a_draft_changes_no_bit_of_the_targets_logits(tiny: Make, name: str, form: str) -> None:
    target, text = own(tiny(name), **FORMS[form]), prompt_ids(250, seed=2)
    drafter, tree = drafting(made(target, 0.3, depth=12)), DraftTree([text[-1], 9, 8, 7], [-1, 0, 0, 1])
    seen: list[torch.Tensor] = []
    for drafts in (0, 1):
        kept = prefilled(target, text)
        before = kept.rows(range(-len(text) + 1, 0)).clone()
        for _ in range(drafts):
            drafter.draft(Context(text, kept, 12, GREEDY))
            assert kept.length == len(text) - 1
            assert torch.equal(kept.rows(range(-len(text) + 1, 0)), before)
            assert kept.rows(range(12))[drafter.kept_layers, :].abs().sum() > 0, "the draft wrote behind the text"
        with torch.inference_mode():
            output = target.forward(tree, kept)
        seen += [output.logits.rows, output.hidden.rows, kept.rows(range(tree.size))]
    for plain, behind_a_draft in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(plain, behind_a_draft)


@pytest.mark.slow
def test_not_even_a_draft_of_infinite_numbers_does(tiny: Make) -> None:
    """A masked slot has weight 0, but 0 times infinity is NaN."""
    model, prompt = tiny(LLAMA), prompt_ids(10, seed=3)
    weights = made(model.target, depth=6)
    with torch.no_grad():
        weights.mask.fill_(float("inf"))
    drafter = drafting(weights, model.target)
    text = stock_reply(model.stock, prompt, 30)
    assert reply(session_of(model.target, drafter, Budget(6)), prompt, 30)[0] == text
    kept = prefilled(model.target, prompt)
    assert drafter.draft(Context(prompt, kept, 6, GREEDY)).size == 1
    assert kept.rows(range(6)).isfinite().all()


@pytest.mark.slow
def test_a_stopped_reply_and_the_turns_after_it_are_those_of_the_stock_model(tiny):
    model = tiny(PHI3)
    (prompt, text), *_ = conversation(model)
    session = session_of(model.target, remembering(model, prompt, text), Budget(8))
    assert_stops_leave_no_trace(model, session)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, top_k=128, seed=3), Sampling(0.7, top_k=8, seed=4)])
def test_with_all_layers_the_first_guess_is_always_the_targets_own_pick(tiny: Make, sampling: Sampling) -> None:
    """The draft's distribution is the target's then, at the same position, and meets the same noise."""
    target = tiny(QWEN3).target
    drafter = made(target, kept="0,1,2", adapters="none", depth=1)
    _, statistics = reply(session_of(target, drafter, Budget(1)), prompt_ids(23, seed=23), 21, sampling)
    assert statistics.acceptance_length == 2


@pytest.mark.slow
def test_near_the_end_of_the_context_drafts_are_shorter_and_the_text_is_the_same(tiny: Make) -> None:
    model, prompt = tiny(LLAMA), prompt_ids(20, seed=8)
    text = stock_reply(model.stock, prompt, 12, stops=())
    target = own(model, context=32)
    target.stop_tokens = frozenset()
    drafter, depths = drafting(made(target, depth=5)), []
    draft = drafter.draft

    def watch(context: Context) -> DraftTree:
        kept, slots = context.cache, context.cache.capacity
        tree = draft(context)
        depths.append((len(context.committed), len(drafter._candidates)))
        assert kept.capacity == slots, "the session has made room"
        return tree

    drafter.draft = watch  # type: ignore[method-assign]
    assert reply(session_of(target, drafter, Budget(8)), prompt, 99)[0] == text
    assert all(depth == min(5, 32 - committed) for committed, depth in depths)
    assert depths[-1][1] < 5


def test_without_nodes_there_is_no_work(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, text = drafting(made(tiny(LLAMA).target)), prompt_ids(9)
    kept = prefilled(drafter.target, text)
    monkeypatch.setattr(drafter.target.transformer, "forward", None)
    assert list(drafter.draft(Context(text, kept, 0, GREEDY)).tokens) == [text[-1]]


@each("nodes", [1, 3, 6, 25])
def test_trees_fill_the_nodes_there_are(tiny: Make, nodes: int) -> None:
    drafter, text = drafting(made(tiny(LLAMA).target, 0.1, depth=4)), prompt_ids(30)
    context = Context(text, prefilled(drafter.target, text), nodes, GREEDY)
    tree = drafter.draft(context)
    assert tree.size == nodes + 1
    logits = drafted_logits(drafter, text)
    for node in range(1, tree.size):
        assert tree.tokens[node] in logits[tree.depth[node] - 1].topk(nodes).indices
    assert tree.tokens[1 : max(tree.depth) + 1] == logits.argmax(-1).tolist()[: max(tree.depth)], "the likeliest chain"


@pytest.mark.slow
def test_rejection_draws_from_what_the_rows_foresee(tmp_path: Path) -> None:
    model = six_words(tmp_path, read)
    drafter = drafting(made(model.target, 0.2, depth=3), model.target)
    sampling = Sampling(1.0, top_k=5, rule="rejection")
    tree = drafter.draft(Context(PROMPT, prefilled(model.target, PROMPT), 7, sampling))
    assert tree.size == 8 and tree.draft_logits is not None
    for node in range(1, 8):
        row = torch.as_tensor(tree.draft_logits.rows[node])
        assert torch.equal(row, drafted_logits(drafter, PROMPT)[tree.depth[node] - 1])


# -- training is drafting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "full"), covering(DRAFTING_FAMILIES, [False, True]))
def test_rows_of_training_are_rows_of_drafting(tiny: Make, name: str, full: bool) -> None:
    """The most important test: a group computes in training what a draft computes from a real cache."""
    target, text = (own(tiny(name)) if full else tiny(name).target), prompt_ids(24, seed=9)
    drafter = made(target, 0.1, depth=4, full=full)
    anchors = torch.tensor([0, 7, 8, 15, 23])
    with torch.no_grad():
        states = drafter._groups(torch.tensor([text]), anchors[None])
        logits = target.head(states)[0]
    for anchor, found in zip(anchors.tolist()[1:], logits[1:], strict=True):
        wanted = drafted_logits(drafter, text[: anchor + 1])
        assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
def test_rows_of_training_are_rows_of_drafting_in_every_precision(tiny: Make, form: str) -> None:
    path = tiny(QWEN3).path
    target = Target.load(path, dtype=torch.bfloat16) if form == "bf16" else packed_target(path, form)
    drafter, text = made(target, 0.05, depth=3), prompt_ids(24, seed=9)
    with torch.no_grad():
        states = drafter._groups(torch.tensor([text]), torch.tensor([[11, 20]]))
        logits = drafter.target.head(states)[0].float()
    for anchor, found in zip((11, 20), logits, strict=True):
        wanted = drafted_logits(drafter, text[: anchor + 1]).float()
        assert F.cosine_similarity(found, wanted, dim=-1).min() > 0.995


def test_labels_are_the_tokens_behind_each_row(tiny: Make) -> None:
    """The loss is that of the drafting logits against the following text, and the hits are their ranks."""
    target, text = tiny(LLAMA).target, prompt_ids(14, seed=2)
    drafter = made(target, 0.05, depth=3)
    for distill in (False, True):
        lesson = batch_of(target, [text], 5, distill, seed=0)
        anchors = drafter._anchors(lesson.loss_mask, torch.Generator().manual_seed(0))[0][0]
        found = drafter.loss(lesson)
        plain = stock_logits(tiny(LLAMA).stock, text).log_softmax(-1)
        for place in range(3):
            wanted, count = 0.0, 0
            for anchor in anchors.tolist():
                assert anchor >= 4, "what follows is worth foreseeing"
                if anchor + place + 1 < len(text):
                    chances = drafted_logits(drafter, text[: anchor + 1])[place].log_softmax(-1)
                    right = plain[anchor + place].exp() if distill else torch.eye(320)[text[anchor + place + 1]]
                    wanted, count = wanted - float((right * chances).sum()), count + 1
            assert found.depth_losses[place].count == count
            assert found.depth_losses[place].loss.item() == pytest.approx(wanted, rel=1e-4)
        total, count = sum(one.loss.item() for one in found.depth_losses), sum(one.count for one in found.depth_losses)
        assert found.loss.item() == pytest.approx(total / count, rel=1e-5)


def test_about_15_percent_of_the_positions_are_anchors_of_each_text(tiny: Make) -> None:
    drafter = made(tiny(LLAMA).target, depth=4)
    counts = torch.ones(2, 201) > 0
    counts[1, 101:] = False
    anchors, there = drafter._anchors(counts, torch.Generator().manual_seed(0))
    assert there.sum(1).tolist() == [30, 15]
    assert len(set(anchors[0].tolist())) == 30
    assert anchors[1][there[1]].max() < 100
    again, _ = drafter._anchors(counts, torch.Generator().manual_seed(1))
    assert anchors.tolist() != again.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "full"), covering(["mistral-one-key-head-window-tied-yarn", *DRAFTING_FAMILIES[::2]], [False, True])
)
def test_texts_in_a_batch_are_read_as_by_themselves(tiny: Make, name: str, full: bool) -> None:
    drafter = made(own(tiny(name)) if full else tiny(name).target, 0.1, full=full)
    texts = [prompt_ids(31, seed=1), prompt_ids(12, seed=2)]
    tokens = torch.tensor([texts[0], texts[1] + [0] * 19])
    anchors = torch.tensor([[3, 10, 29], [2, 9, 0]])
    with torch.no_grad():
        together = drafter._groups(tokens, anchors)
        for text, (ids, count) in enumerate(zip(texts, (3, 2), strict=True)):
            alone = drafter._groups(torch.tensor([ids]), anchors[text : text + 1, :count])
            torch.testing.assert_close(together[text, :count], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("distill", "layers"), [(True, None), (False, range(2))])
def test_a_batch_is_read_once_and_no_further_than_it_must_be(tiny, tmp_path, distill, layers, monkeypatch):
    """The training loop hands on the keys and values of its one read, and with text labels no layer too many is run."""
    target, texts = own(tiny(LLAMA)), [prompt_ids(31, seed=1), prompt_ids(12, seed=2)]
    drafter = made(target, 0.1, kept="0,1")
    loop = Training.__new__(Training)
    loop.drafter, loop.target = drafter, target
    loop.plan = TrainingPlan(batch=64, at_once=64, rate=1e-3, distill=distill, steps=1)
    read: list[tuple[object, object]] = []
    forward = target.transformer.forward
    monkeypatch.setattr(
        target.transformer, "forward", lambda *given, **more: read.append(given[3:5]) or forward(*given, **more)
    )
    taught = loop._batch([Row(text, [True] * len(text)) for text in texts], "seed")
    assert len(read) == 1 and read[0][1] == layers
    assert taught.hidden.shape[-1] == (48 if distill else 0)
    found = drafter.loss(taught)
    assert len(read) == 2 and read[1][0] is taught.prefix
    again = drafter.loss(
        replace(taught, prefix=None, generator=taught.generator.manual_seed(taught.generator.initial_seed()))
    )
    assert len(read) == 4, "who hands on nothing pays for another read"
    assert found.loss.item() == pytest.approx(again.loss.item(), rel=1e-6)


def test_a_batch_with_nothing_to_foresee_gives_every_weight_a_gradient_of_nothing(tiny: Make) -> None:
    drafter = made(tiny(LLAMA).target, 0.1)
    lesson = batch_of(tiny(LLAMA).target, [[7, 8, 9]], start=3)
    found = drafter.loss(lesson)
    found.loss.backward()
    assert found.loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in drafter.parameters())


@cache
def _remembering(model: Tiny, prompt: tuple[int, ...], text: tuple[int, ...], depth: int) -> training.Trainable:
    drafter = made(model.target, depth=depth, rank=24)
    read_once = batch_of(model.target, [[*prompt, *text]], start=len(prompt))

    def lesson(step: int) -> Batch:
        return replace(read_once, distill=step % 2 == 0, generator=torch.Generator().manual_seed(step))

    with patch.object(training, "SHARE", 0.6):  # more anchors a text, fewer texts
        return train(drafter, lesson, 80)


def remembering(model: Tiny, prompt: Sequence[int], text: Sequence[int], depth: int = 4) -> training.Trainable:
    """Return a drafter that was trained on one text until it knows it."""
    return _remembering(model, tuple(prompt), tuple(text), depth)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LLAMA, QWEN3, PHI3, LATER[-1]])
def test_a_small_text_that_was_learned_is_accepted_almost_whole(tiny: Make, name: str) -> None:
    model = tiny(name)
    prompt = prompt_ids(23, seed=23)
    text = stock_reply(model.stock, prompt, 40)
    drafter = remembering(model, prompt, text[:31])
    ids, statistics = reply(session_of(model.target, drafter, Budget(4)), prompt, 31)
    assert ids == text[:31]
    assert statistics.acceptance_length >= 30 / 7, "five tokens a step, but for one step"
    ids, statistics = reply(session_of(model.target, drafter, Budget(6)), prompt, 40)
    assert ids == text, "behind what was learned, too"
    assert any(0 < rate < 1 for rate in statistics.acceptance_by_depth), "some drafts are accepted in part"


@pytest.mark.slow
def test_gradients_through_packed_layers_are_those_through_dense_layers_of_the_same_numbers(tiny: Make) -> None:
    packed, dense = packed_target(tiny(LLAMA).path, "int4"), own(tiny(LLAMA))
    ours = dict(packed.transformer.named_modules())
    with torch.no_grad():
        dense.transformer.embed_tokens.copy_(packed.transformer.embed_tokens)
        for name, layer in dense.transformer.named_modules():
            if isinstance(layer, Linear):
                layer.weight.copy_(ours[name].weight)

    def gradients(target: Target) -> list[torch.Tensor]:
        drafter = made(target, 0.05, adapters="all")
        drafter.loss(batch_of(dense, [prompt_ids(40, seed=1)])).loss.backward()
        assert all(one.dtype == torch.float32 for one in drafter.parameters())
        return [one.grad for one in drafter.parameters() if one.grad is not None]

    for one, other in zip(gradients(dense), gradients(packed), strict=True):
        assert (one - other).norm() < 1e-4 * one.norm()


# -- the full form -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [LLAMA, PHI3])
def test_the_full_form_changes_only_the_kept_layers_and_is_lossless_against_its_own_target(tiny, name, tmp_path):
    target, prompt = own(tiny(name)), prompt_ids(23, seed=23)
    before = {name: one.clone() for name, one in target.transformer.named_parameters()}
    drafter = made(target, depth=3, full=True)
    assert drafter.changes_target
    assert drafting(drafter).nbytes == 4 * 48
    whole = [*prompt, *stock_reply(tiny(name).stock, prompt, 30)]
    losses: list[float] = []
    train(drafter, lambda step: batch_of(target, [whole] * 2, seed=step % 4), 24, rate=0.0667, heard=losses.append)
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    for part, one in target.transformer.named_parameters():
        inside = part.startswith(("layers.0.", "layers.2."))
        assert torch.equal(one, before[part]) != inside, part
    target.save(tmp_path / "target")
    changed = read(tmp_path / "target")
    loaded = saved(drafter, tmp_path / "drafter", changed.target)
    text = stock_reply(changed.stock, prompt, 25)
    assert reply(session_of(changed.target, loaded, Budget(6)), prompt, 25)[0] == text
    assert not any(one.requires_grad for one in changed.target.transformer.parameters())


def test_the_full_form_keeps_to_what_the_target_itself_says(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss contains the target's loss, that of the stock model, so that a gradient keeps the target in place."""
    model = tiny(LLAMA)
    drafter, text = made(own(model), depth=3, full=True), prompt_ids(40, seed=1)
    found = []
    for weight in (0.0, 1.0):
        monkeypatch.setattr(training, "OWN", weight)
        found.append(drafter.loss(batch_of(drafter.target, [text], seed=3, start=5)))
    wanted = F.cross_entropy(stock_logits(model.stock, text)[4:-1], torch.tensor(text[5:]))
    assert (found[1].loss - found[0].loss).item() == pytest.approx(wanted.item(), rel=1e-4)
    assert [one.count for one in found[0].depth_losses] == [one.count for one in found[1].depth_losses]


@each("rows", [slice(0, 48), slice(48, 96), slice(96, 144)])
def test_gradients_of_the_full_form_reach_the_kept_layers_by_all_ways(tiny: Make, rows: slice) -> None:
    """Along its direction a gradient is as steep as the loss, including changes of the text's keys and values."""
    target = own(tiny(LLAMA))
    drafter, lesson = made(target, depth=3, full=True), batch_of(target, [prompt_ids(40, seed=1)], seed=0)

    def loss() -> torch.Tensor:
        lesson.generator.manual_seed(0)
        return drafter.loss(lesson).loss

    loss().backward()
    weight = target.transformer.layers[0].qkv_proj.weight
    assert weight.grad is not None
    gradient, found = weight.grad[rows], []
    with torch.no_grad():
        for step in (3e-3, -6e-3):
            weight[rows] += gradient * (step / gradient.norm())
            found.append(loss())
    assert (found[0] - found[1]).item() / 6e-3 == pytest.approx(gradient.norm().item(), rel=0.02)


def test_the_full_form_needs_weights_that_can_be_trained(tiny: Make) -> None:
    drafter = made(own(tiny(LLAMA), dtype=torch.float16), full=True)  # it can draft
    with pytest.raises(UsageMistake, match="fp16"):
        drafter.loss(batch_of(drafter.target, [prompt_ids(9)]))


# -- options, files, what is learned while drafting --------------------------------------------------------------------


@each(
    "options, kept",
    [
        ({}, (0,)),
        ({"skip": "1-1"}, (0, 2)),
        ({"skip": "1-2"}, (0,)),  # early exit
        ({"skip": "0-1"}, (2,)),  # late layers only
        ({"kept": "0,2"}, (0, 2)),
        ({"kept": "0,1,2"}, (0, 1, 2)),
    ],
)
def test_layers_are_named_or_lie_symmetrically(tiny: Make, options: dict[str, str], kept: tuple[int, ...]) -> None:
    drafter = make_drafter("s3d", tiny(LLAMA).target, options)
    assert isinstance(drafter, training.Trainable)
    assert drafter.kept_layers == drafting(drafter).kept_layers == kept
    assert drafter.adapters is not None
    assert tuple(drafter.adapters) == kept


@each("options", [{"adapters": "vko", "rank": 3, "depth": 2}, {"adapters": "none"}])
def test_what_is_saved_drafts_the_same(tiny: Make, options: dict[str, object], tmp_path: Path) -> None:
    drafter, text = made(tiny(PHI3).target, 0.2, **options), prompt_ids(20)
    loaded = saved(drafter, tmp_path, tiny(PHI3).target)
    assert isinstance(loaded, s3d.Drafter)
    assert torch.equal(drafted_logits(loaded, text), drafted_logits(drafter, text))
    assert loaded.nbytes == drafting(drafter).nbytes
    others = set(drafter.tensors()) - {"mask"}
    assert all(name.startswith("base_model.model.model.layers.") and ".lora_" in name for name in others)
    assert (options["adapters"] == "none") == (not others)


def test_tensors_that_do_not_belong_are_refused(tiny: Make, tmp_path: Path) -> None:
    drafter = made(tiny(LLAMA).target)
    right = drafter.tensors()
    name = next(name for name in right if name != "mask")
    for broken in (
        {key: one for key, one in right.items() if key != "mask"},
        {key: one for key, one in right.items() if key != name},
        {**right, "more": torch.zeros(1)},
        {**right, "mask": torch.zeros(47)},
        {**right, name: torch.zeros(3, 3)},
    ):
        with pytest.raises(LocalspecError, match=matching("train_the_drafter_again")):
            drafter.load_tensors(broken)
    save_drafter(drafter, tmp_path, {"target": {"name": "tiny", "revision": ""}})
    (tmp_path / CARD).write_text((tmp_path / CARD).read_text().replace('"kept": "0,2"', '"kept": "0,9"'))
    with pytest.raises(LocalspecError, match="0 to 2"):
        load_drafter(read_drafter(tmp_path), tiny(LLAMA).target)


def test_confidence_is_judged_by_what_the_target_said(tiny: Make) -> None:
    """At each depth that was reached, all candidates; nothing when the draft was not ours, or nothing was drafted."""
    target, text = tiny(LLAMA).target, prompt_ids(12)
    drafter = drafting(made(target, depth=3), target)
    judged: list[tuple[int, int, int]] = []
    drafter.calibration.learn = lambda level, depth, greedy, token: judged.append((len(level), depth, token))  # type: ignore[method-assign]
    asked, chances = [], drafter.calibration.chances
    drafter.calibration.chances = lambda level, depth, greedy: asked.append(depth) or chances(level, depth, greedy)  # type: ignore[method-assign,func-returns-value]
    context = Context(text, prefilled(drafter.target, text), 5, GREEDY)
    tree = drafter.draft(context)
    assert asked == [1, 2, 3]
    first = tree.tokens[1]
    step = Step([first, 33], hidden_for(target, torch.zeros(2, 48)), tree, [0, 1], [0] * tree.size)
    drafter.observe(step)
    assert judged == [(5, 1, first), (5, 2, 33)]
    drafter.observe(step)
    drafter.draft(context)
    drafter.rewind(12)
    drafter.observe(step)
    drafter.draft(context)
    drafter.observe(Step([7, 8], hidden_for(target, torch.zeros(2, 48))))
    assert len(judged) == 2


def run_before(options: dict[str, object], rates: list[float]) -> DrafterCard:
    """Return a drafter that was trained earlier, with how often its drafts were right."""
    return DrafterCard("s3d", Path(), options, "", "", 0, 0, {RIGHT_AFTER_RIGHT: rates})


@pytest.mark.slow
def test_a_proposal_rests_on_the_drafters_of_before(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny(LLAMA).target
    known: list[Constants] = []
    original = training.propose
    monkeypatch.setattr(training, "propose", lambda *given: known.append(given[2]) or original(*given))
    constants = Constants(u=0.2, discount=0.4)
    former = []
    for kept in ("0", "0,2"):
        drafter = make_drafter("s3d", target, {"kept": kept})
        assert isinstance(drafter, training.Trainable)
        beta = drafter.beta
        rates = [acceptance_at(place, beta, constants) for place in (1, 2, 3)]
        former.append(run_before({"kept": kept, "depth": 3}, rates))
    # Files are edited, and models change: a record that cannot belong to this model is ignored.
    former += [
        run_before({"kept": "0", "more": 1}, [0.9]),
        run_before({"kept": "0,9"}, [0.9]),
        run_before({"rank": 0}, [0.9]),
        run_before({"kept": "0"}, []),  # written by an earlier version, which did not measure it
    ]
    sentence = training.Trainable.propose(target, former)[1]
    assert wording("as_fitted_to_this_model") in sentence
    assert (known[0].u, known[0].discount) == (pytest.approx(0.2, rel=1e-3), pytest.approx(0.4, rel=1e-3))


@pytest.mark.slow
def test_a_proposal_keeps_what_the_probe_found(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer that is always right, and is not an outer one: nothing is as fast."""
    target = tiny(LLAMA).target
    monkeypatch.setattr(
        training, "probe", lambda *_: [MeasuredLayers((0, 2), (0.5,)), MeasuredLayers((1,), (1.0, 0.0))]
    )
    options, sentence, _ = training.Trainable.propose(target)
    assert options["kept"] == "1"
    assert wording("how_often_these_layers_right") in sentence
    monkeypatch.setattr(training, "greedy_replies", lambda _: [])
    assert wording("the_u_of_the_paper") in training.Trainable.propose(target)[1]


def test_a_proposal_takes_the_rows_that_pay(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 16 rows are expensive and 4 are not, a draft is made that would not pay with 16 rows."""
    costs = {2: 1.0, 4: 1.1, 8: 3.0, 16: 6.0}
    monkeypatch.setattr(training, "timings", lambda *_, rows=16: [Timing(0.5, 0.2, costs[rows], 1.0)])
    monkeypatch.setattr(training, "greedy_replies", lambda _: [([1], [2])])
    monkeypatch.setattr(training, "probe", lambda *_: [MeasuredLayers((0, 2), (0.7, 0.2, 0.05))])
    _, sentence, pays = training.Trainable.propose(tiny(LLAMA).target)
    assert pays and "verifying 4 rows" in sentence


def test_the_outcome_is_compared_with_the_prediction(tiny: Make) -> None:
    drafter = made(tiny(LLAMA).target, depth=2)
    told = drafter.outcome([0.5, 0.25], 1.75)
    assert wording("held_out_text_0_50_0_25_chain") in told
    assert wording("n1_62_tree_verified_brought_1_75") in told, "1 + ½ + ½ · ¼"
    assert wording("times_fast_plain_decoding") in told
    assert drafter.outcome([]) == "", "where there was no held-out text nothing was found"


def test_a_proposal_and_its_outcome_go_by_what_decodes(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and agreement are those of the model as replies have it, not of the one that gradients pass."""
    target, other = tiny(LLAMA).target, tiny(QWEN3).target
    asked: list[object] = []
    monkeypatch.setattr(
        training, "timings", lambda model, *_, **__: asked.append(model) or [Timing(0.5, 1.0, 2.0, 1.0)]
    )
    monkeypatch.setattr(training, "greedy_replies", lambda model: asked.append(model) or [([1], [2])])
    monkeypatch.setattr(training, "probe", lambda model, *_: asked.append(model) or [MeasuredLayers((0, 2), (0.5,))])
    sentence = training.Trainable.propose(target, (), lambda: other).sentence
    made(target).outcome([0.5], None, lambda: other)
    assert asked == [other] * 7
    assert wording("n1_50_drafts_their_verification") in sentence


@pytest.mark.slow
def test_where_nothing_should_pay_no_more_than_half_of_the_layers_is_proposed(tiny, monkeypatch):
    """A draft by nearly all layers promises most where iterations are dear, and would never be worth its training."""
    target = tiny(LLAMA).target
    found = [MeasuredLayers((0, 2), (0.9,)), MeasuredLayers((2,), (0.3,))]
    monkeypatch.setattr(training, "probe", lambda *_: found)
    monkeypatch.setattr(training, "timings", lambda *_, **__: [Timing(0.5, 4.0, 4.0, 1.0)])
    options, sentence, pays = training.Trainable.propose(target)
    assert options["kept"] == "2" and not pays and sentence.startswith(wording("share_layers_should_pay_here"))
    monkeypatch.setattr(training, "greedy_replies", lambda _: [])
    assert len(training.Trainable.propose(target)[0]["kept"].split(",")) == 1, "by the paper's formula too"
    monkeypatch.setattr(training, "greedy_replies", lambda _: [([1], [2])])
    monkeypatch.setattr(training, "timings", lambda *_, **__: [Timing(0.5, 0.1, 1.0, 1.0)])
    options, sentence, pays = training.Trainable.propose(target)
    assert options["kept"] == "0,2" and pays and sentence.startswith("Drafting")


def test_of_drafts_that_were_right_so_far_it_is_counted_how_many_are_right_once_more(tiny: Make) -> None:
    """Compared with a count draft by draft over the picks of each row; marginal shares are different."""
    target = tiny(LLAMA).target
    drafter = made(target, spread=0.5, depth=3)
    tokens = torch.tensor([prompt_ids(24, seed=3), prompt_ids(24, seed=4)])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, 0] = mask[1, 15:] = False
    anchors, there = drafter._anchors(mask, torch.Generator().manual_seed(1))
    states = drafter._groups(tokens, anchors)
    said = target.head(states).argmax(-1)
    labels = tokens.clone()  # of half of the drafts, so that some are right several times
    for text, row in enumerate(anchors.tolist()):
        for draft, anchor in enumerate(row):
            for place in range(3):
                if anchor + place + 1 < 24 and (draft + place) % 3:
                    labels[text, anchor + place + 1] = said[text, draft, place]
    with patch.object(drafter, "_groups", lambda *_: states):
        batch = Batch(labels, mask, torch.zeros(2, 24, 0), False, torch.Generator().manual_seed(1))
        output = drafter.loss(batch)
    expected = torch.zeros(3, 2, dtype=torch.long)
    for text, row in enumerate(anchors.tolist()):
        for draft, anchor in enumerate(row):
            for place in range(3):
                at = anchor + place + 1
                if not there[text, draft] or at >= 24 or not mask[text, at]:
                    break
                expected[place, 1] += 1
                if said[text, draft, place] != labels[text, at]:
                    break
                expected[place, 0] += 1
    assert output.chains is not None and output.chains.tolist() == expected.tolist()
    assert 0 < expected[1, 0] <= expected[1, 1] < output.depth_losses[1].count
