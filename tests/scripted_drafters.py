"""Drafters for tests: small real objects that propose the right tokens, wrong ones, or both, in trees of every shape."""

import random
from collections.abc import Sequence

from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import DraftTree


class Witness:
    """A drafter that proposes nothing, and asserts that it observes exactly the committed tokens."""

    nbytes, target_layers = 0, ()

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def observe(self, step: Step) -> None:
        self.tokens += step.committed
        rows = len(step.path) if step.tree else len(step.committed)
        # The first pick after the last chunk of a prompt has no extra row.
        assert len(step.hidden) in ((rows,) if step.tree else (rows, rows - 1))
        if step.tree:
            assert len(step.greedy_picks) == step.tree.size

    def draft(self, context: Context) -> DraftTree:
        assert list(context.committed) == self.tokens, "the drafter observed another text than was committed"
        assert context.cache.length == len(self.tokens) - 1, "the cache does not end at the root"
        tree = self.tree(context)
        assert tree.size <= context.nodes + 1
        return tree

    def tree(self, context: Context) -> DraftTree:
        return DraftTree((context.root,), (-1,))

    def rewind(self, length: int) -> None:
        assert length <= len(self.tokens)
        del self.tokens[length:]


class Oracle(Witness):
    """A drafter that knows how each given text continues: it drafts the right chain first, then wrong siblings."""

    def __init__(self, *texts: Sequence[int], depth: int = 4, vocabulary: int = 320) -> None:
        super().__init__()
        self.texts, self.depth, self.vocabulary = [list(text) for text in texts], depth, vocabulary

    def coming(self, context: Context) -> list[int]:
        """Return the next tokens, as far as they are known."""
        here = list(context.committed)
        for text in self.texts:
            if text[: len(here)] == here:
                return text[len(here) : len(here) + self.depth]
        return []

    def tree(self, context: Context) -> DraftTree:
        chain = self.coming(context)[: context.nodes]
        tokens, parents = [context.root, *chain], list(range(-1, len(chain)))
        for node, right in enumerate(chain):
            if len(tokens) <= context.nodes:
                tokens.append((right + 1) % self.vocabulary)
                parents.append(node)
        return DraftTree(tokens, parents, ["oracle"] * len(tokens))


class OffChain(Oracle):
    """A drafter of right tokens, each after a wrong sibling, so that every accepted row must move in the cache."""

    def tree(self, context: Context) -> DraftTree:
        tokens, parents, at = [context.root], [-1], 0
        for right in self.coming(context)[: context.nodes // 2]:
            tokens += [(right + 1) % self.vocabulary, right]
            parents += [at, at]
            at = len(tokens) - 1
        return DraftTree(tokens, parents)


class RandomBranches(Oracle):
    """Random trees of random tokens: branches, equal siblings, now and then probes, and sometimes the right token."""

    def __init__(
        self, *texts: Sequence[int], seed: int = 0, right: float = 0.6, probes: float = 0.2, vocabulary: int = 320
    ) -> None:
        super().__init__(*texts, depth=64, vocabulary=vocabulary)
        self.random, self.right, self.probes = random.Random(seed), right, probes

    def tree(self, context: Context) -> DraftTree:
        coming, choose = self.coming(context), self.random
        tokens, parents, probe, depth, true = [context.root], [-1], [False], [0], [True]
        for node in range(1, choose.randint(min(1, context.nodes), context.nodes) + 1):
            parent = node - 1 if choose.random() < 0.5 else choose.randrange(node)
            token = choose.randrange(self.vocabulary)
            known = true[parent] and depth[parent] < len(coming)
            if known and choose.random() < self.right:
                token = coming[depth[parent]]
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
            true.append(known and token == coming[depth[parent]])
            # Below a probe are only probes: no path reaches them.
            probe.append(probe[parent] or choose.random() < self.probes)
        return DraftTree(tokens, parents, probe=probe)


def random_tree(root: int, nodes: int, seed: int, vocabulary: int = 300, deep: float = 0.5) -> DraftTree:
    """Return a root and `nodes` random ones below it; `deep` is the chance that a node continues the one before it."""
    choose = random.Random(seed)
    parents = [-1, *(node - 1 if choose.random() < deep else choose.randrange(node) for node in range(1, nodes + 1))]
    return DraftTree([root, *(choose.randrange(5, vocabulary) for _ in range(nodes))], parents)


def path_to(tree: DraftTree, node: int) -> list[int]:
    """Return the nodes from the root to `node`."""
    path = [node]
    while path[-1]:
        path.append(tree.parents[path[-1]])
    return path[::-1]


class Breaking(Oracle):
    """A drafter that fails at its n-th call of one kind, and only then."""

    def __init__(self, *texts: Sequence[int], method: str, call: int, error: Exception) -> None:
        super().__init__(*texts)
        self.method, self.calls, self.error = method, call, error

    def _count(self, method: str) -> None:
        if method == self.method:
            self.calls -= 1
            if self.calls == 0:
                raise self.error

    def observe(self, step: Step) -> None:
        self._count("observe before")
        super().observe(step)
        self._count("observe behind")

    def draft(self, context: Context) -> DraftTree:
        self._count("draft")
        return super().draft(context)
