"""A target's states and picks of a text, read once: equal on every engine, complete after any end, and sufficient."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting import states
from each import each
from tiny_models import Tiny, prompt_ids

from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.nn.losses import Guess, Likeliest, cross_entropies
from localspec.training.corpus import Row
from localspec.training.readings import LIKELIEST, Places, Readings, positions, reader_of
from localspec.training.trainable import Batch, make_drafter

LLAMA = "llama-grouped-dynamic"
ROWS = [
    Row(prompt_ids(40, seed=1), [False] * 9 + [True] * 31),
    Row(prompt_ids(30, seed=2), [False] * 5 + [True] * 6 + [False] * 3 + [True] * 16),
]
Make = Callable[[str], Tiny]


@pytest.fixture
def native(tiny: Make) -> NativeTarget:
    return NativeTarget.open(tiny(LLAMA).path, packing="fp32", threads=Threads(1))


@pytest.fixture
def readings(tiny: Make, tmp_path: Path) -> Readings:
    found = Readings(tmp_path / "readings", tiny(LLAMA).target.transformer.config.hidden_size)
    list(found.fill(ROWS, reader_of(tiny(LLAMA).target)))
    return found


def test_both_engines_say_the_same_of_a_text(tiny: Make, native: NativeTarget) -> None:
    target, tokens = tiny(LLAMA).target, prompt_ids(150, seed=3)  # in two chunks
    for first in (0, 30, 140):
        ours, theirs = (reader_of(one)(tokens, first) for one in (native, target))
        logits = target.head(states(target, torch.tensor([tokens]))[0])[first:]
        for own_states, ids, chances in (ours, theirs):
            assert own_states.shape == (150 - first, 48) and ids.shape == chances.shape == (150 - first, LIKELIEST)
            assert ids[:, 0].tolist() == logits.argmax(-1).tolist()
            expected = logits.softmax(-1).gather(1, torch.from_numpy(ids.astype(np.int64)))
            assert np.allclose(chances, expected, atol=1e-5)
        assert np.allclose(ours[0], theirs[0], atol=1e-4)


def test_places_are_those_that_predict_a_reply(tiny: Make, readings: Readings) -> None:
    target = tiny(LLAMA).target
    found = readings.places(ROWS, "cpu", distill=True)
    assert positions(ROWS[1]) == [*range(4, 10), *range(13, 29)]
    expected = torch.cat([states(target, torch.tensor([row.tokens]))[0, positions(row)] for row in ROWS])
    assert torch.allclose(found.states, expected, atol=1e-2), "in fp16"
    assert found.roots.tolist() == [row.tokens[place + 1] for row in ROWS for place in positions(row)]
    places, there = found.following(3)
    assert there[:31].sum(0).tolist() == [30, 29, 28], "only within a text"
    assert there[31:37].sum(0).tolist() == [5, 4, 3], "and within a reply"
    assert torch.equal(found.numbers[places][there], (found.numbers[:, None] + torch.arange(1, 4))[there])
    text = readings.places(ROWS, "cpu", distill=False).labels
    assert isinstance(text, Likeliest) and text.ids[:, 0].tolist() == found.roots.tolist()


def test_what_a_kill_cut_off_is_read_again(tiny: Make, readings: Readings, tmp_path: Path) -> None:
    directory, reader = tmp_path / "readings", reader_of(tiny(LLAMA).target)
    whole = {file: file.read_bytes() for file in sorted(directory.iterdir())}
    assert not list(Readings(directory, 48).fill(ROWS, reader)), "nothing is read twice"
    for file, content in whole.items():
        for cut in (1, len(content) // 3):
            file.write_bytes(content[:-cut])
            again = Readings(directory, 48)
            assert len(again) < len(readings) and len(list(again.fill(ROWS, reader))) in (1, 2)
            places = [one.places(ROWS, "cpu", True) for one in (again, readings)]
            assert torch.equal(places[0].states, places[1].states)
            for name, bytes_ in whole.items():
                name.write_bytes(bytes_)


def test_rows_without_a_position_and_repeated_rows_are_not_read(tiny: Make, tmp_path: Path) -> None:
    empty = Row(prompt_ids(12, seed=4), [False] * 12)
    found = Readings(tmp_path / "readings", tiny(LLAMA).target.transformer.config.hidden_size)
    rows = [empty, ROWS[1], empty, ROWS[0], ROWS[1]]
    assert found.lacking(rows) == [ROWS[1], ROWS[0]]
    counts = list(found.fill(rows, reader_of(tiny(LLAMA).target)))
    assert counts == [22, 53] and found.lacking(rows) == []


def test_the_likeliest_tokens_are_labels_as_a_whole_distribution_is() -> None:
    torch.manual_seed(0)
    logits, states_, head = torch.randn(7, 80), torch.randn(7, 16), torch.randn(80, 16)
    top = logits.softmax(-1).topk(80)
    guesses = [Guess(states_, lambda rows: rows @ head.T, torch.arange(7))]
    (whole,) = cross_entropies(guesses, logits, lambda rows: rows)
    (found,) = cross_entropies(guesses, Likeliest(top.indices, top.values))
    assert found.loss.item() == pytest.approx(whole.loss.item(), rel=1e-5) and torch.equal(found.hits, whole.hits)
    kept = torch.arange(0, 80, 2)
    some = [Guess(states_, lambda rows: rows @ head[kept].T, torch.arange(7))]
    (found,) = cross_entropies(some, Likeliest(top.indices[:, :20], top.values[:, :20]), vocabulary=kept)
    chances = torch.zeros(7, 80).scatter(1, top.indices[:, :20], top.values[:, :20])[:, kept]
    expected = -(chances * (states_ @ head[kept].T).log_softmax(-1)).sum()
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def lesson(places: Places) -> Batch:
    nothing = torch.zeros(1, 1)
    return Batch(nothing.long(), nothing.bool(), nothing, True, places=places)


def test_heads_learn_the_same_of_what_was_read_once_as_of_what_is_read_now(tiny: Make, readings: Readings) -> None:
    """Except for the tail of each distribution, and for fp16."""
    target = tiny(LLAMA).target
    torch.manual_seed(1)
    drafter = make_drafter("medusa", target, {"heads": 3}).eval()
    for parameter in drafter.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    row = ROWS[0]
    hidden = states(target, torch.tensor([row.tokens]))
    now = Batch(torch.tensor([row.tokens]), torch.tensor([row.loss_mask]), hidden, True)
    once = lesson(readings.places([row], "cpu", True))
    found = [drafter.loss(one) for one in (once, now)]
    assert [one.count for one in found[0].depth_losses] == [one.count for one in found[1].depth_losses] == [30, 29, 28]
    assert torch.equal(found[0].depth_losses[0].hits, found[1].depth_losses[0].hits)
    gradients = []
    for one in found:
        drafter.zero_grad()
        one.loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in drafter.parameters()]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.95


@each("kind,options", [("semi", {}), ("semi", {"shared": False, "vocabulary": 200}), ("parallelspec", {"masks": 2})])
def test_other_kinds_learn_the_same_of_what_was_read_once(
    tiny: Make, readings: Readings, kind: str, options: dict[str, object]
) -> None:
    """Except for fp16, and for the tails of distributions, which are large in such a small model."""
    target, tokens = tiny(LLAMA).target, torch.zeros(2, 40, dtype=torch.long)
    mask = torch.zeros(2, 40, dtype=torch.bool)
    for number, row in enumerate(ROWS):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
        mask[number, : len(row.tokens)] = torch.tensor(row.loss_mask)
    torch.manual_seed(1)
    drafter = make_drafter(kind, target, options)
    drafter.begin_training(torch.arange(target.vocab_size))
    assert drafter.uses_readings
    hidden, nothing = states(target, tokens), torch.zeros(2, 40, 0)
    for distill in (True, False):
        now = Batch(tokens, mask, hidden, distill)
        once = Batch(tokens, mask, nothing, distill, places=readings.places(ROWS, "cpu", distill))
        found = []
        for batch in (once, now):
            batch.generator.manual_seed(0)
            found.append(drafter.eval().loss(batch).depth_losses)
        for ours, theirs in zip(*found, strict=True):
            assert ours.count == theirs.count > 20
            assert distill or ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-3)
            assert (ours.hits - theirs.hits).abs().sum() <= 2
        drafter.zero_grad()
        drafter.train().loss(once).loss.backward()
        gradients = [one.grad for one in drafter.parameters() if one.grad is not None]
        assert len(gradients) > 4 and all(one.isfinite().all() for one in gradients)


def test_a_step_learns_among_candidates_and_a_measurement_among_all(tiny: Make, readings: Readings) -> None:
    drafter = make_drafter("medusa", tiny(LLAMA).target, {"heads": 2})
    drafter.begin_training(torch.arange(drafter.target.vocab_size))
    drafter._common = drafter._common[:5]
    places = readings.places(ROWS, "cpu", True)
    drafter.train().loss(lesson(places)).loss.backward()
    changed = drafter.own.up.grad.abs().sum((0, 2)) > 0
    candidates = {*drafter._common.tolist(), *places.labels.ids[:, :16].flatten().tolist()}
    assert {*changed.nonzero().flatten().tolist()} <= candidates and 5 < len(candidates) < 320
    drafter.zero_grad()
    drafter.eval().loss(lesson(places)).loss.backward()
    assert (drafter.own.up.grad.abs().sum((0, 2)) > 0).all()


def test_heads_begin_with_least_squares(tiny: Make, readings: Readings) -> None:
    """numpy's least squares give the same; with too little text the heads start with the state."""
    drafter = make_drafter("medusa", tiny(LLAMA).target, {"heads": 2})
    places, before = readings.places(ROWS, "cpu", True), drafter.path.weight.clone()
    drafter.fit([places])
    assert torch.equal(drafter.path.weight, before), "48 rows for 97 numbers each"
    drafter.fit([places] * 4)
    found, there = places.following(2)
    whole = there.all(1)
    x = torch.nn.functional.pad(drafter._read(places.states[whole], places.roots[whole]), (0, 1), value=1.0).double()
    square = 4 * x.T @ x + 300.0 * torch.eye(97).double()
    for head in range(2):
        y = places.states[found[whole, head]].double()
        expected = torch.linalg.solve(square, 4 * x.T @ y)
        assert torch.allclose(drafter.path.weight[head].double(), expected[:-1].T, atol=1e-3)
        assert torch.allclose(drafter.path.bias[head].double(), expected[-1], atol=1e-3)
