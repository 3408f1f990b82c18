"""What a mask's row learns of the token that a tree has in its place: a low-rank change of its logits."""

from collections.abc import Mapping

import numpy as np

from localspec.decoding.compute import Array, Compute, Rows


class Correction:
    """What the token before changes in a mask's logits: W B SiLU(N e + b + F s), W the target's head.

    e is the token's embedding, normalised, and s the mask's state. W B [vocab_size, rank] is made once, so that a
    depth does not read the head.
    """

    def __init__(self, compute: Compute, tensors: Mapping[str, Array]) -> None:
        self._compute = compute
        self._near = compute.linear(tensors["correction.near.weight"], tensors["correction.near.bias"])
        self.far = compute.linear(tensors["correction.far.weight"])
        out = np.ascontiguousarray(tensors["correction.out.weight"].T)
        columns = compute.logits(compute.target.head(compute.rows(out))).numpy()
        self._out = compute.linear(np.ascontiguousarray(columns.T))

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices."""
        return self._near.nbytes + self.far.nbytes + self._out.nbytes

    def __call__(self, embeddings: Rows, far: Rows) -> Rows:
        """Return what is added to the logits [rows, vocab_size] after tokens with these embeddings."""
        compute = self._compute
        return self._out(compute.silu(self._near(compute.rms_norm(embeddings)) + far))
