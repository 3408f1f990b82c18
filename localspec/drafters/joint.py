"""Joint chances of the tokens that a drafter and phrases propose at one node."""

import math
from collections.abc import Mapping

CHANCE_MATCH = 0.1  # the chance that phrases propose a wrong drafted token, too
LEAST = 1e-3  # the least chance left to tokens that are not proposed, so that no logarithm is of zero
MOST = 4.0  # of the log odds, so that a change in the text shows within a few tokens


class JointChances:
    """A combination of two sets of chances for the next token: a drafter's, and those of phrases.

    There are two rules. The committed tokens decide, while decoding, how much each of them counts:

    - Evidence: phrases know more than the drafter, for example more than heads that see one state. Chances are
      multiplied, so a token that both propose rises, and tokens that only one proposes fall. Products of tokens that
      only one or neither proposes are multiplied by CHANCE_MATCH, and all are divided by their sum:

          token        x     y     z    another
          drafter     0.4   0.1    -      0.5
          phrases     0.3    -    0.3     0.4
          product     0.12  0.004 0.015   0.02
          joint       0.75  0.03  0.09    0.13

    - Rest: the drafter has read the same text, as a draft model has. Its chances stay, and phrases share the rest.
    """

    def __init__(self) -> None:
        self._log_odds = 0.0  # of evidence against rest

    def combine(self, drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
        """Return the joint chance of each token that has a chance in either."""
        share = 1 / (1 + math.exp(-self._log_odds))
        evidence, rest = _as_evidence(drafted, phrases), _as_rest(drafted, phrases)
        return {token: share * chance + (1 - share) * rest[token] for token, chance in evidence.items()}

    def learn(self, drafted: Mapping[int, float], phrases: Mapping[int, float], token: int) -> None:
        """Record that the target continued with `token`."""
        likely, otherwise = (_of(rule(drafted, phrases), token) for rule in (_as_evidence, _as_rest))
        self._log_odds = max(-MOST, min(self._log_odds + math.log(likely / otherwise), MOST))


def _left(chances: Mapping[int, float]) -> float:
    return max(1 - sum(chances.values()), LEAST)


def _as_evidence(drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
    left, phrases_left = _left(drafted), _left(phrases)
    products = {
        token: drafted.get(token, left)
        * phrases.get(token, phrases_left)
        * (1.0 if token in drafted and token in phrases else CHANCE_MATCH)
        for token in {**drafted, **phrases}
    }
    total = sum(products.values()) + CHANCE_MATCH * left * phrases_left
    return {token: product / total for token, product in products.items()}


def _as_rest(drafted: Mapping[int, float], phrases: Mapping[int, float]) -> dict[int, float]:
    left = max(1 - sum(drafted.values()), 0.0)
    return {**{token: left * chance for token, chance in phrases.items()}, **drafted}


def _of(joint: Mapping[int, float], token: int) -> float:
    return max(joint[token] if token in joint else 1 - sum(joint.values()), LEAST)
