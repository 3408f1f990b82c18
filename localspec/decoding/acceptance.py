"""The acceptance rules: how far down a draft tree the picks of the target lead, and the bonus token after that."""

from collections.abc import Callable

import torch

from localspec.decoding.sampling import Sampling, gumbel
from localspec.decoding.tree import DraftTree

Walk = tuple[list[int], int]  # the accepted path, root first, and the bonus token after it
EPSILON, DELTA = 0.09, 0.3  # of the rule `typical`, as in the code that came with the paper


def walk(tree: DraftTree, pick: Callable[[int], int]) -> Walk:
    """Walks by the rule `exact`: returns the accepted path, root first, and the bonus token after it.

    The target picks once at each node that is reached; while a child has the picked token, the walk goes down to it.
    Every committed token is a pick of the target, so the text is the target's own at every temperature, whatever was
    drafted.
    """
    path = [0]
    while True:
        token = pick(path[-1])
        child = tree.children[path[-1]].get(token)
        if child is None:
            return path, token
        path.append(child)


def walk_by_rejection(tree: DraftTree, logits: torch.Tensor, sampling: Sampling, position: int) -> Walk:
    """Walks by the rule `rejection` (ParallelSpec, algorithm 1): keeps the target's distribution, not a seed's text.

    logits [size, vocab_size] are the target's, `position` that of the root. The children of a node must have been
    sampled independently from the same `draft_logits`, truncated as the target's own are; equal ones count as often as
    they were sampled.
    """
    assert tree.draft_logits is not None
    path = [0]
    while True:
        place = position + tree.depth[path[-1]] + 1
        p = sampling.probabilities(logits[path[-1]])  # of the target; after each refusal, what is left of it
        accepted, children = None, tree.siblings[path[-1]]
        q = sampling.probabilities(tree.draft_logits[children[0]]) if children else p  # the same for all siblings
        for rank, child in enumerate(children):
            token = tree.tokens[child]
            if sampling.uniform(place, rank) * float(q[token]) < float(p[token]):
                accepted = child
                break
            residual = (p - q).clamp_(min=0)
            p = residual / residual.sum() if residual.sum() > 0 else p  # only rounding leaves nothing
        if accepted is None:
            return path, int((p.log() + gumbel(sampling.seed, place, torch.arange(len(p)))).argmax())
        path.append(accepted)


def walk_by_typicality(tree: DraftTree, logits: torch.Tensor, sampling: Sampling) -> Walk:
    """Walks by the rule `typical` (Medusa, §3.3.1), which is not lossless: the longest path of typical tokens.

    A token is typical with p > min(ε, δ exp(-H(p))) at this temperature; the target's likeliest one always is, and it
    is the bonus token too. Of equally long paths the likelier one is taken.
    """
    chances = (logits.float() / sampling.temperature).log_softmax(-1)
    entropy = -(chances.exp() * chances.clamp_min(-1e4)).sum(-1)
    threshold = (DELTA * (-entropy).exp()).clamp_max(EPSILON).log()
    greedy_picks = logits.argmax(-1).tolist()
    reached = {0: (0, 0.0, -1)}  # node -> (depth, log p of the path, parent)
    for node in range(1, tree.size):
        parent, token = tree.parents[node], tree.tokens[node]
        if parent in reached and not (tree.probe and tree.probe[node]):
            chance = float(chances[parent, token])
            if token == greedy_picks[parent] or chance > threshold[parent]:
                reached[node] = reached[parent][0] + 1, reached[parent][1] + chance, parent
    node = max(reached, key=lambda node: reached[node][:2])
    path = [node]
    while path[-1]:
        path.append(reached[path[-1]][2])
    return path[::-1], greedy_picks[node]
