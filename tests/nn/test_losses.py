"""Cross-entropy a few rows at a time: the same as all at once."""

import pytest
import torch
import torch.nn.functional as F

from localspec.nn import losses
from localspec.nn.losses import RANKS, Guess, cross_entropies, cross_entropy


@pytest.fixture(autouse=True, params=[0, 2**27], ids=["computed twice", "kept"])
def _several_parts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(losses, "ROWS", 5)
    monkeypatch.setattr(losses, "HELD", request.param)


def _made(rows: int = 17, width: int = 6, vocabulary: int = 30) -> tuple[torch.Tensor, torch.nn.Linear, torch.Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(rows, width, requires_grad=True),
        torch.nn.Linear(width, vocabulary),
        torch.randint(vocabulary, (rows,)),
    )


def test_against_token_ids_it_is_cross_entropy_with_the_same_gradients():
    states, head, labels = _made()
    found = cross_entropy(states, head, labels)
    found.loss.backward()
    gradients = [states.grad, head.weight.grad]
    states.grad = head.weight.grad = None
    wanted = F.cross_entropy(head(states), labels, reduction="sum")
    wanted.backward()
    torch.testing.assert_close(found.loss, wanted)
    for ours, theirs in zip(gradients, [states.grad, head.weight.grad], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found.count == 17


def test_hits_count_the_rank_of_the_label():
    states, head, _ = _made()
    order = head(states).argsort(-1, descending=True)
    for rank in (0, 3, RANKS - 1):
        assert cross_entropy(states, head, order[:, rank]).hits.tolist() == [17 * (at == rank) for at in range(RANKS)]
    assert cross_entropy(states, head, order[:, RANKS]).hits.sum() == 0


def test_a_teacher_gives_its_whole_distribution():
    states, head, _ = _made()
    teacher, theirs = torch.nn.Linear(8, 30), torch.randn(17, 8)
    found = cross_entropy(states, head, theirs, teacher)
    wanted = teacher(theirs)
    torch.testing.assert_close(found.loss, -(wanted.softmax(-1) * head(states).log_softmax(-1)).sum())
    right = int((head(states).argmax(-1) == wanted.argmax(-1)).sum())
    assert found.hits[0] == right
    found.loss.backward()
    assert teacher.weight.grad is None
    assert states.grad is not None


def test_several_depths_share_one_teacher():
    """The loss, hits and gradients of each depth are those of a separate loss, in any order of rows and labels."""
    torch.manual_seed(2)
    teacher, theirs, read = torch.nn.Linear(8, 30), torch.randn(23, 8), 0
    heads = [torch.nn.Linear(6, 30) for _ in range(3)]
    about = [torch.randperm(23)[:count] for count in (19, 0, 7)]
    states = [torch.randn(len(rows), 6, requires_grad=True) for rows in about]

    def counted(rows: torch.Tensor) -> torch.Tensor:
        nonlocal read
        read += len(rows)
        return teacher(rows)

    def right(some: torch.Tensor, head: torch.nn.Module, rows: torch.Tensor) -> list[bool]:
        return (head(some).argmax(-1) == teacher(theirs[rows]).argmax(-1)).tolist()

    with torch.no_grad():  # of random rows hardly any would be right
        for some, head, rows in zip(states, heads, about, strict=True):
            head.weight[teacher(theirs[rows]).argmax(-1)[::2]] = 9 * some[::2]
    assert sum(right(states[0], heads[0], about[0])) > 5
    guesses = [Guess(*one) for one in zip(states, heads, about, strict=True)]
    together = cross_entropies(guesses, theirs, counted)
    assert read == len(torch.cat(about).unique()), "each row of the teacher is made once"
    sum((at + 1) * one.loss for at, one in enumerate(together)).backward()
    for at, (some, head, rows, one) in enumerate(zip(states, heads, about, together, strict=True)):
        gradients, some.grad, head.weight.grad = (some.grad, head.weight.grad), None, None
        alone = cross_entropy(some, head, theirs[rows], teacher)
        if len(rows):
            ((at + 1) * alone.loss).backward()
        torch.testing.assert_close(one.loss, alone.loss)
        assert one.hits.tolist() == alone.hits.tolist() and one.count == alone.count == len(rows)
        assert one.first.tolist() == alone.first.tolist() == right(some, head, rows)
        for ours, wanted in zip(gradients, (some.grad, head.weight.grad), strict=True):
            # terms are up to 9 times as large as their sum, and are added in another order
            torch.testing.assert_close(ours, wanted if len(rows) else torch.zeros_like(ours), rtol=1e-5, atol=1e-4)


def test_a_truncated_vocabulary_leaves_the_rest_out():
    states, head, _ = _made(vocabulary=4)
    kept = torch.tensor([2, 11, 17, 29])
    labels = torch.tensor([2, 11, 17, 29, 5, 0, 28, 3, 2, 2, 11, 11, 17, 17, 29, 29, 1])
    found = cross_entropy(states, head, labels, vocabulary=kept)
    known = [row for row, label in enumerate(labels.tolist()) if label in kept.tolist()]
    places = torch.tensor([kept.tolist().index(labels[row]) for row in known])
    torch.testing.assert_close(found.loss, F.cross_entropy(head(states[known]), places, reduction="sum"))
    assert found.hits.sum() == len(known)
    teacher, theirs = torch.nn.Linear(8, 30), torch.randn(17, 8)
    soft = cross_entropy(states, head, theirs, teacher, kept)
    wanted = teacher(theirs)[:, kept].softmax(-1)
    torch.testing.assert_close(soft.loss, -(wanted * head(states).log_softmax(-1)).sum())
    # The likeliest token is left out: otherwise one token would predict everything.
    likeliest = kept[head(states).argmax(-1)]
    assert soft.hits[0] == int((likeliest == teacher(theirs).argmax(-1)).sum()) < 17
    alone = cross_entropy(states, torch.nn.Linear(6, 1), theirs, teacher, kept[:1])
    assert alone.hits.sum() == int((teacher(theirs).argmax(-1) == 2).sum())


def test_what_is_no_number_hits_nothing():
    states, head, labels = _made()
    with torch.no_grad():
        head.bias.fill_(float("nan"))
    assert cross_entropy(states, head, labels).hits.sum() == 0


def test_without_gradients_nothing_is_kept_for_them():
    states, head, labels = _made()
    with torch.no_grad():
        found = cross_entropy(states, head, labels)
    assert not found.loss.requires_grad
    torch.testing.assert_close(found.loss, cross_entropy(states, head, labels).loss.detach())
