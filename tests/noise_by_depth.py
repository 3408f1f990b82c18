"""Whether seeded text would reveal noise drawn at a wrong depth: with six words, where drafts are often right."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from session_replies import reply
from six_words import PROMPT

from localspec.decoding import decode
from localspec.decoding.acceptance import walk
from localspec.decoding.budget import Budget
from localspec.decoding.drafter import Drafter
from localspec.decoding.logits import Logits
from localspec.decoding.sampling import Sampling
from localspec.decoding.session import Session
from localspec.decoding.tree import DraftTree
from localspec.drafters.autoregressive import Autoregressive

COUNT, NODES = 40, 16
SAMPLED = [Sampling(1.0, seed=3), Sampling(0.8, top_k=4, top_p=0.95, seed=2**63 + 5)]


def assert_each_depth_has_its_own_noise(
    target: Any, make: Callable[[], Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert that seeded text is that of plain decoding, and differs if a depth takes the noise of the one above."""

    def texts(drafted: bool) -> list[list[int]]:
        found = []
        for sampling in SAMPLED:
            session = Session(target, make() if drafted else Autoregressive(), Budget(NODES if drafted else 0))
            found.append(reply(session, PROMPT, COUNT, sampling)[0])
        return found

    plain = texts(False)
    assert texts(True) == plain
    for deepest in (0, 1):  # of the depths that have their own noise

        def wrong(
            tree: DraftTree, logits: Logits, _: Sequence[int], start: int, sampling: Sampling, most: int = deepest
        ) -> tuple[list[int], int]:
            return walk(tree, logits.picks([start + min(depth, most) + 1 for depth in tree.depth], sampling))

        with monkeypatch.context() as patch:
            patch.setattr(decode, "_walk", wrong)
            assert all(text != own for text, own in zip(texts(True), plain, strict=True)), (
                f"nothing below depth {deepest} was ever accepted, so this test could not fail"
            )
