"""The test of each drafter in every packing: the text is that of plain decoding."""

from typing import Any

from session_replies import reply

from localspec.decoding.budget import Budget
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.drafters.autoregressive import Autoregressive

PACKINGS = ["int8", "int4", "bf16"]


def assert_plain_text(target: Any, drafter: Any, prompt: list[int], count: int = 16, nodes: int = 6) -> None:
    """Assert that greedy and sampled replies are the same with and without the drafter."""
    for sampling in (Sampling(), Sampling(0.8, top_p=0.95, seed=1)):
        plain, _ = reply(Session(target, Autoregressive(), Budget(0)), prompt, count, sampling)
        session = Session(target, drafter, Budget(nodes, branches=target.branches))
        ids, statistics = reply(session, prompt, count, sampling)
        assert ids == plain and statistics.drafted > 0
