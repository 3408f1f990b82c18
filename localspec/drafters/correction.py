"""A low-rank correction of a mask's logits by the token that a tree has in the mask's place."""

from collections.abc import Callable, Mapping

import numpy as np

from localspec.decoding.compute import Array, Compute, Rows


class Correction:
    """The change of a mask's logits by the token before it: W B SiLU(N e + b + F s), where W is the target's head.

    e is the token's normalised embedding, and s the mask's state. W B [draft vocabulary, rank] is computed once, so
    that a depth does not read the head.
    """

    def __init__(self, compute: Compute, tensors: Mapping[str, Array], head: Callable[[Rows], Rows]) -> None:
        self._compute = compute
        self._near = compute.linear(tensors["correction.near.weight"], tensors["correction.near.bias"])
        self.far = compute.linear(tensors["correction.far.weight"])
        out = np.ascontiguousarray(tensors["correction.out.weight"].T)
        columns = compute.logits(head(compute.rows(out))).numpy()
        self._out = compute.linear(np.ascontiguousarray(columns.T))

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices."""
        return self._near.nbytes + self.far.nbytes + self._out.nbytes

    def __call__(self, embeddings: Rows, far: Rows) -> Rows:
        """Return the correction of the logits [rows, draft vocabulary] after tokens with these embeddings."""
        compute = self._compute
        return self._out(compute.silu(self._near(compute.rms_norm(embeddings)) + far))
