"""A test whether counts were drawn from a distribution."""

import torch

# Every seed in the suite is fixed, so a test passes always or never. A correct sampler would fail one of them for one
# choice of seeds in a thousand.
ENOUGH = 0.001


def chisquare(observed: list[float], expected: list[float]) -> float:
    """Return the p value of Pearson's test; importing scipy for it would take a second in every test process."""
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom, half = (len(observed) - 1) / 2, statistic / 2
    return float(torch.special.gammaincc(torch.tensor(freedom).double(), torch.tensor(half).double()))


def assert_drawn_from(chances: torch.Tensor, counts: torch.Tensor) -> None:
    """Assert by a chi-square test that counts are from a distribution. Cells expected fewer than five times
    are joined; impossible ones must be empty."""
    total = counts.sum()
    assert counts[chances == 0].sum() == 0, "what truncation removes was drawn"
    expected = chances.double() / chances.double().sum() * total
    often = expected >= 5
    observed, wanted = counts[often].tolist(), expected[often].tolist()
    rare_seen, rare_wanted = float(counts[~often].sum()), float(expected[~often].sum())
    if rare_wanted >= 5:
        observed.append(rare_seen)
        wanted.append(rare_wanted)
    else:  # too rare even when added together
        observed[0] += rare_seen
        wanted[0] += rare_wanted
    assert len(observed) > 1
    assert chisquare(observed, wanted) > ENOUGH
