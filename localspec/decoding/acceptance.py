"""The acceptance rules: which drafted tokens are accepted, and which bonus token of the target follows."""

import numpy as np
import numpy.typing as npt

from localspec.decoding.logits import Logits, Picks
from localspec.decoding.sampling import Sampling
from localspec.decoding.tree import DraftTree

Walk = tuple[list[int], int]  # the accepted path, root first, and the bonus token after it


def walk(tree: DraftTree, picks: Picks) -> Walk:
    """Return the accepted path of a draft tree, root first, and the bonus token after it, by the rule `exact`.

    `picks` are the target's choices of the next token after each node. While a child has the picked token, the walk
    goes down to that child. The first pick without such a child is the bonus token. All these tokens are picks of the
    target, so drafts never change the text, at any temperature.
    """
    path = [0]
    while True:
        token = picks[path[-1]]
        child = tree.children[path[-1]].get(token)
        if child is None:
            return path, token
        path.append(child)


def walk_by_rejection(tree: DraftTree, logits: Logits, sampling: Sampling, position: int) -> Walk:
    """Return the accepted path and the bonus token by rejection sampling (ParallelSpec, algorithm 1).

    The text is distributed as without drafts, but for a given seed drafts may change it. logits [size, vocab_size] are
    the target's; `position` is the root's. The children of a node must be independent samples from the same row of
    `draft_logits`, truncated like the target's. Siblings with the same token are tried one by one.
    """
    assert tree.draft_logits is not None
    path = [0]
    while True:
        next_position = position + tree.depth[path[-1]] + 1
        p = logits.probabilities(path[-1], sampling)  # of the target; after each refusal, what is left of it
        accepted, children = None, tree.siblings[path[-1]]
        q = tree.draft_logits.probabilities(children[0], sampling) if children else p  # the same for all siblings
        for rank, child in enumerate(children):
            token = tree.tokens[child]
            if sampling.uniform(next_position, rank) * q[token] < p[token]:
                accepted = child
                break
            residual = (p - q).clip(min=0)
            p = residual / residual.sum() if residual.sum() > 0 else p  # only rounding errors leave nothing
        if accepted is None:
            with np.errstate(divide="ignore"):
                return path, int((np.log(p) + sampling.noise(next_position, np.arange(len(p)))).argmax())
        path.append(accepted)


def walk_by_typicality(tree: DraftTree, logits: Logits, sampling: Sampling) -> Walk:
    """Return the longest path of typical tokens and the bonus token (Medusa, §3.3.1). This rule is not lossless.

    A token is typical if its probability p exceeds min(ε, δ exp(-H(p))), where H is the entropy, and ε and δ are in
    `sampling`. The target's likeliest token is always typical. The likeliest token after the path is the bonus token.
    Of equally long paths the likelier one is returned.
    """
    rows, greedy_picks = logits.numpy(), logits.argmax()
    reached = {0: (0, 0.0, -1)}  # node -> (depth, log p of the path, parent)
    for parent, children in enumerate(tree.siblings):
        if parent not in reached or not children:
            continue
        chances, threshold = _log_probabilities(rows[parent], sampling)
        for node in children:
            token, chance = tree.tokens[node], float(chances[tree.tokens[node]])
            typical = token == greedy_picks[parent] or chance > threshold
            if typical and not (tree.probe and tree.probe[node]):
                reached[node] = reached[parent][0] + 1, reached[parent][1] + chance, parent
    node = max(reached, key=lambda node: reached[node][:2])
    path = [node]
    while path[-1]:
        path.append(reached[path[-1]][2])
    return path[::-1], greedy_picks[node]


def _log_probabilities(row: npt.NDArray[np.float32], sampling: Sampling) -> tuple[npt.NDArray[np.float64], np.float64]:
    """Return the log probabilities of logits [vocab_size], and the log probability above which a token is typical."""
    scores = row / np.float64(sampling.temperature)
    scores -= scores.max()
    chances = scores - np.log(np.exp(scores).sum())
    entropy = -(np.exp(chances) * chances.clip(min=-1e4)).sum()
    return chances, np.log(min(sampling.epsilon, sampling.delta * np.exp(-entropy)))
