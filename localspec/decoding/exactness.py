"""The exactness of a model: whether speculative decoding equals plain decoding, bit for bit. It is measured, not
assumed."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from localspec.config import Rule

MULTIPLES = (1, 4, 8, 16)  # rows may be filled up to a multiple of one of these, the cheapest first


@dataclass(frozen=True)
class Exactness:
    """The result of a self-test: whether draft trees of up to `widest` rows, root included, change the target's logits.

    If `bitwise`, no bit differed when the rows were padded to a multiple of `multiple`. Otherwise `largest` is the
    largest difference of a logit, relative to the largest logit. If not `checked`, the self-test has not run yet, and
    `bitwise` is assumed from how the engine computes.
    """

    bitwise: bool
    widest: int
    multiple: int = 1
    largest: float = 0.0
    checked: bool = True

    @classmethod
    def unchecked(cls, widest: int) -> "Exactness":
        """Return the unchecked result for an engine that computes rows independently, and so promises `bitwise`."""
        return cls(True, widest, checked=False)

    def as_json(self) -> dict[str, Any]:
        """Return the values for the store, which holds results of self-tests only."""
        return {name: value for name, value in asdict(self).items() if name != "checked"}

    @classmethod
    def from_json(cls, value: Any) -> "Exactness | None":
        """Return the result that `as_json` described; None for anything else."""
        types = {"bitwise": bool, "widest": int, "multiple": int, "largest": float}
        if not isinstance(value, dict) or {name: type(field) for name, field in value.items()} != types:
            return None
        result = cls(**value)
        return result if result.widest > 1 and result.multiple in MULTIPLES and 0 <= result.largest < math.inf else None

    def word(self, rule: Rule) -> str:
        """Return how closely replies under this acceptance rule match plain decoding: `bitwise`, `numerical` or
        `unchecked`."""
        if rule == "exact" and not self.checked:
            return "unchecked"
        return "bitwise" if self.bitwise and rule == "exact" else "numerical"

    def label(self, rule: Rule) -> str:
        """Return a phrase for the user: the `word` for the rule `exact`, or what another rule guarantees."""
        return {"rejection": "same distribution", "typical": "not lossless"}.get(rule) or self.word(rule)
