"""Semi-autoregressive drafting: the target's last state for the text so far, a tiny model for what was just drafted.

q(d_j) = q_0(d_j | h_p, h_q(root, d_1, …)) (Semi-Autoregressive Decoding for Efficient LLM Inference, eq. 5): h_p is the
target's state that predicted the root, which is known already and the same for the whole tree; h_q is updated from node
to node, so that a tree costs one small batch a depth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from localspec.decoding.drafter import Context, Step
from localspec.decoding.logits import Candidate
from localspec.decoding.tree import DraftTree, grow_tree
from localspec.drafters.trained import Batch, LossOutput, TrainedDrafter, refuse_without_joint
from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.adapters import MOST_RANK, Adapters
from localspec.nn.logits import TorchLogits
from localspec.nn.losses import Head, cross_entropy
from localspec.nn.target import Target

JOINT = ("rank", "balance")  # options that only joint training has
PAPER_WIDTH = 1024  # of W_p h_p and of W_q h_q (appendix A)
BRANCHES = 8  # candidates of a node below the first depth


@dataclass(frozen=True)
class SemiOptions:
    """`recent` is the tiny model: "transformer" (eq. 6), "lstm" (eq. 7), or "none", the embedding of the last token
    alone (the zero-layer ablation of figure 4). `depth` is the number of levels of a tree, and of the tokens that h_q
    sees at most.

    `shared`: the drafter's head leads to the target's head; else it has a vocabulary matrix of its own. Either covers
    `vocabulary` tokens, the most frequent ones of the training text (0: all). `layers` is the head's number of hidden
    layers (two in §4.2; with one, as in appendix A, h_p and h_q are merely added). `paper_widths`: 1024 + 1024 channels
    whatever the target's hidden_size.

    `share` is the share of a text's positions that one batch learns from. `joint`: the target is trained too, through
    adapters of this rank, and the drafter's loss is weighted by `balance`, λ of eq. 8. Raises UsageMistake for
    impossible values.
    """

    recent: str = "transformer"
    depth: int = 4
    shared: bool = True
    vocabulary: int = 0
    layers: int = 2
    paper_widths: bool = False
    share: float = 1.0
    joint: bool = False
    rank: int = 16
    balance: float = 0.25

    def __post_init__(self) -> None:
        if self.recent not in RECENT_MODELS:
            raise UsageMistake(
                f"recent = {self.recent!r} is no model of recent tokens; use one of {', '.join(RECENT_MODELS)}."
            )
        for name, value, fine, hint in (
            ("depth", self.depth, 1 <= self.depth <= 16, "1 to 16"),
            ("layers", self.layers, self.layers in (1, 2), "1 or 2"),
            ("vocabulary", self.vocabulary, self.vocabulary >= 0, "0 for all tokens, or how many"),
            ("share", self.share, 0 < self.share <= 1, "above 0 and at most 1"),
            ("rank", self.rank, 1 <= self.rank <= MOST_RANK, f"1 to {MOST_RANK}"),
            ("balance", self.balance, 0 < self.balance < 1, "a number between 0 and 1"),
        ):
            if not fine:
                raise UsageMistake(f"{name} = {value} of semi is not possible; give {hint}.")
        refuse_without_joint("semi", self, JOINT)


class Averaged(nn.Module):
    """The simplified transformer, eq. 6: h_q = Σ α_l MLP(e_l) / Σ α_l over the recent tokens, α learned in (0, 1).

    The state of a node, [rows, hidden_size / 2], is the numerator.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width // 2), nn.Linear(width // 2, width // 2)
        for layer in (self.inner, self.outer):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        # α is its sigmoid: ½ at first for the last place and half as much for each one before it, so that the newest
        # token outweighs all others together and can be told apart from them.
        self.free = nn.Parameter(torch.logit(0.5 ** torch.arange(depth, 0, -1)))
        self.width = self.state_size = width // 2

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the states after one more token, and h_q [rows, self.width].

        x [rows, hidden_size] are embeddings of the tokens `depth` positions after the root, `state` [rows,
        self.state_size] the states before them.
        """
        alpha = self.free.sigmoid().to(x.dtype)
        x = F.silu(_linear(F.silu(_linear(x, self.inner)), self.outer))
        state = torch.addcmul(state, x, alpha[depth])
        return state, state / alpha[: depth + 1].sum()


class Recurrent(nn.Module):
    """The LSTM of two layers, eq. 7. The state of a node, [rows, 2 hidden_size], is hidden state and cell of both."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width // 2
        self.state_size = 4 * self.width
        self.first, self.second = nn.LSTMCell(width, self.width), nn.LSTMCell(self.width, self.width)

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the states after one more token, and h_q [rows, self.width], as `Averaged.forward` does."""
        below, below_cell, above, above_cell = state.chunk(4, -1)
        below, below_cell = _cell(x, below, below_cell, self.first)
        above, above_cell = _cell(below, above, above_cell, self.second)
        return torch.cat([below, below_cell, above, above_cell], -1), above


class Last(nn.Module):
    """No model at all: the embedding of the last token (§6.1, zero layers). Nodes have no state."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.state_size = width, 0

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the empty state and the embeddings x [rows, hidden_size] themselves."""
        return state, x


RECENT_MODELS: dict[str, type[Averaged] | type[Recurrent] | type[Last]] = {
    "transformer": Averaged,
    "lstm": Recurrent,
    "none": Last,
}


class Drafter(TrainedDrafter):
    """Semi-autoregressive drafting (Semi-Autoregressive Decoding for Efficient LLM Inference, §4, eqs. 5 to 8, app. A).

    Depth j has logits [nodes, vocab_size] of W_3 σ([W_p h_p, W_q h_q] + b), where h_p [1, hidden_size] is the target's
    state that predicted the root, and h_q [nodes, hidden_size / 2] the tiny model's after the tokens root … d_j-1.
    W_p and W_q are as wide in proportion to the target, and a second hidden layer precedes W_3 (§4.2).

    W_3 over a whole vocabulary is nearly all of the drafter's memory. By default it leads to hidden_size instead, and
    the target's own head follows. Measured roughly (demo model, 240 steps, one seed): as wide as with a matrix of its
    own it predicts a little worse; twice as wide, as it is here, as well with a fifth of the weights. Each depth then
    costs the target's head; a draft vocabulary makes it cheaper, for a copy of its rows.

    Separate training, the default, leaves the target as it is. In joint training `loss` runs the target with
    `adapters`, which training merges at the end: the result is another target.
    """

    kind = "semi"
    Options = SemiOptions
    JOINT = JOINT
    options: SemiOptions
    kept: torch.Tensor | None

    def __init__(self, target: Target, options: SemiOptions) -> None:
        super().__init__(target, options)
        shape = target.transformer.config
        if options.vocabulary > shape.vocab_size:
            raise UsageMistake(
                f"vocabulary = {options.vocabulary} is more than the model's {shape.vocab_size} tokens; give fewer."
            )
        wide = PAPER_WIDTH if options.paper_widths else shape.hidden_size // (2 if options.shared else 4)
        outputs = shape.hidden_size if options.shared else options.vocabulary or shape.vocab_size
        with torch.device(target.device):
            self.recent: Averaged | Recurrent | Last = RECENT_MODELS[options.recent](shape.hidden_size, options.depth)
            self.far = nn.Linear(shape.hidden_size, wide)  # its bias is the first half of b
            self.near = nn.Linear(self.recent.width, wide)
            self.mixed = nn.Linear(2 * wide, 2 * wide) if options.layers == 2 else None
            self.out = nn.Linear(2 * wide, outputs, bias=False)
            self.register_buffer("kept", torch.arange(options.vocabulary) if options.vocabulary else None)
        if options.joint:
            if target.transformer.packed:
                raise UsageMistake(
                    "Joint training changes the target's weights, and int8 rounds them; load it without."
                )
            layers = range(shape.num_layers)
            self.adapters = Adapters(target.transformer, layers, options.rank, 2.0 * options.rank)
        self._shared: Head = target.head  # no module of the drafter: it is neither trained nor saved
        self._copied_bytes = 0
        self._copy_head_rows()
        self._state: torch.Tensor | None = None  # the target's, which predicted the root
        self._candidates: dict[tuple[int, ...], Sequence[Candidate]] = {}  # of the last draft, by path
        self._greedy = True

    @property
    def depth(self) -> int:
        """The number of levels of its trees, the root not counted."""
        return self.options.depth

    # -- the model ----------------------------------------------------------------------------------------------------

    def _initial_state(self, rows: int) -> torch.Tensor:
        """Returns the tiny model's states [rows, state_size] before any token."""
        return torch.zeros((rows, self.recent.state_size), dtype=self._dtype, device=self.target.device)

    def _read(
        self, tokens: torch.Tensor, far: torch.Tensor, state: torch.Tensor, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads one more token [rows], `depth` positions after the root, and returns (states, σ(…) [rows, 2 wide]).

        far [rows or 1, wide] is W_p h_p.
        """
        # Normalised, for with embeddings as small as many targets' the tiny model would learn very slowly.
        x = F.rms_norm(self.target.embed(tokens).to(self._dtype), (self.target.transformer.config.hidden_size,))
        state, recent = self.recent(x, state, depth)
        near = _linear(recent, self.near)
        return state, F.silu(torch.cat([far.expand_as(near), near], -1))

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits [rows, draft vocabulary] of x [rows, 2 wide]."""
        if self.mixed is not None:
            x = x + F.silu(_linear(x, self.mixed))
        x = _linear(x, self.out)
        return self._shared(x) if self.options.shared else x

    def _copy_head_rows(self) -> None:
        """Copies the rows of the target's head that belong to the draft vocabulary, in that head's precision."""
        transformer = self.target.transformer
        if self.options.shared and self.kept is not None:
            rows = type(transformer.lm_head)(transformer.lm_head.weight.detach()[self.kept])
            self._shared, self._copied_bytes = rows.forward, rows.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that the drafter holds beside the target."""
        return super().nbytes + self._copied_bytes

    @property
    def _dtype(self) -> torch.dtype:
        return self.target.transformer.computes_in

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Keeps the state that predicted the new root, and calibrates the last draft along the committed text."""
        self._state = step.hidden.take([len(step.hidden) - 1]).rows  # a copy: a view would keep a whole chunk
        path: tuple[int, ...] = ()
        for token in step.committed if step.tree is not None else ():
            if path not in self._candidates:
                break
            self.calibration.learn(self._candidates[path], len(path) + 1, self._greedy, token)
            path += (token,)
        self._candidates = {}

    def rewind(self, length: int) -> None:
        """Forgets the state that predicted the root; the next observation gives another one."""
        self._state, self._candidates = None, {}

    @torch.inference_mode()
    def draft(self, context: Context) -> DraftTree:
        """Returns the best tree that the tiny model finds; for the rule `rejection`, chains sampled from it."""
        self._candidates, self._greedy = {}, context.sampling.greedy
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        far = _linear(self._state.to(self._dtype), self.far)
        return (
            self._sample_tree(context, far) if context.sampling.rule == "rejection" else self._grow_tree(context, far)
        )

    def _grow_tree(self, context: Context, far: torch.Tensor) -> DraftTree:
        state, ids = self._initial_state(1), None if self.kept is None else self.kept.cpu().numpy()
        paths: list[tuple[int, ...]] = [()]

        def expand(parents: Sequence[int], tokens: Sequence[int], depth: int) -> list[list[Candidate]]:
            """Returns the candidates after nodes at `depth`, whose parents are nodes of the call before."""
            nonlocal state, paths
            if depth:
                state = state[torch.tensor(parents, device=state.device)]
                paths = [(*paths[parent], token) for parent, token in zip(parents, tokens, strict=True)]
            state, x = self._read(torch.tensor(tokens, device=state.device), far, state, depth)
            # Nodes of one depth have one position, and so meet the same noise.
            positions = [len(context.committed) + depth] * len(tokens)
            count = min(context.nodes, BRANCHES) if depth else context.nodes
            found = TorchLogits(self._head(x)).candidates(positions, count, context.sampling, ids)
            self._candidates.update(zip(paths, found, strict=True))
            return [self.calibration.chances(candidates, depth + 1, self._greedy) for candidates in found]

        return grow_tree(context.root, expand, context.nodes, self.depth, self.kind)

    def _sample_tree(self, context: Context, far: torch.Tensor) -> DraftTree:
        """Samples chains side by side, each token given those above it; nodes left over are children of the root.

        The shape does not depend on what is sampled, except that it ends at a depth where some logits are NaN or inf.
        """
        depths = min(self.depth, context.nodes)
        chains, position = context.nodes // depths, len(context.committed)
        widths = [chains + context.nodes % depths] + [chains] * (depths - 1)
        sampled: list[list[int]] = []
        rows: list[torch.Tensor] = []
        state, tokens = self._initial_state(1), [context.root]
        for depth, width in enumerate(widths):
            state, x = self._read(torch.tensor(tokens, device=state.device), far, state[:width], depth)
            logits = self._in_full_vocabulary(self._head(x))
            if TorchLogits(logits).finite_rows(context.sampling) < len(logits):
                break
            if depth == 0:
                logits, state = logits.expand(width, -1), state.expand(width, -1)
            handle = TorchLogits(logits)
            tokens = [handle.sample(chain, position + depth, chain, context.sampling) for chain in range(width)]
            sampled.append(tokens)
            rows.append(logits)
            tokens = tokens[:chains]
        if not sampled:
            return DraftTree((context.root,), (-1,))
        depths = len(sampled)
        nodes = [(depth, chain) for chain in range(widths[0]) for depth in range(depths if chain < chains else 1)]
        number = {node: index for index, node in enumerate(nodes, start=1)}
        return DraftTree(
            [context.root, *(sampled[depth][chain] for depth, chain in nodes)],
            [-1, *(number[depth - 1, chain] if depth else 0 for depth, chain in nodes)],
            [self.kind] * (len(nodes) + 1),
            draft_logits=TorchLogits(torch.stack([rows[0][0], *(rows[depth][chain] for depth, chain in nodes)])),
        )

    def _in_full_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns logits [rows, vocab_size] of those of the draft vocabulary; other tokens are never sampled."""
        if self.kept is None:
            return logits
        whole = logits.new_full((len(logits), self.target.transformer.config.vocab_size), float("-inf"))
        return whole.index_copy_(1, self.kept, logits)

    # -- training -----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> LossOutput:
        """Returns the loss of eq. 8: the mean of -log q_0(w_{i+1+j} | h_p(w_≤i), h_q(w_{i+1} … w_{i+j})), j ≤ depth.

        The first recent token w_{i+1} stands for the root; all tokens after it must be in the loss mask, as in a reply
        that is drafted. Labels are the text or the target's distribution. In joint training gradients flow through h_p,
        and (1 - λ) times the target's own loss, with the same labels, is added to λ times this mean.
        """
        hidden = batch.hidden.to(self._dtype)
        states = hidden if self.adapters is None else self.adapted_states(batch.tokens)
        windows = F.pad(batch.tokens, (0, self.depth + 1)).unfold(1, self.depth + 1, 1)  # [texts, n + 1, depth + 1]
        counted = F.pad(batch.loss_mask, (0, self.depth + 1)).unfold(1, self.depth + 1, 1)
        # [texts, n, depth + 1] after each position: the root, then the labels, up to the first one not in the mask.
        windows, counted = windows[:, 1:], counted[:, 1:].cumprod(-1).bool()
        anchors = counted[..., 1]
        if self.options.share < 1:
            chosen = torch.rand(anchors.shape, generator=batch.generator) < self.options.share
            anchors = anchors & chosen.to(anchors.device)
        text, place = anchors.nonzero(as_tuple=True)
        windows, counted = windows[text, place], counted[text, place]
        far, state = _linear(states[text, place], self.far), self._initial_state(len(text))
        found = []
        for depth in range(self.depth):
            state, x = self._read(windows[:, depth], far, state, depth)
            there = counted[:, depth + 1]
            label = hidden[text[there], place[there] + depth + 1] if batch.distill else windows[there, depth + 1]
            found.append(
                cross_entropy(x[there], self._head, label, self.target.head if batch.distill else None, self.kept)
            )
        # The sum of no states is zero and has a gradient: a batch may have no token in its mask.
        total = sum((one.loss for one in found), start=0.0 * far.sum())
        loss = total / max(sum(one.count for one in found), 1)
        if self.adapters is not None:
            loss = self.options.balance * loss + (1 - self.options.balance) * self._target_loss(batch, states)
        return LossOutput(loss, found)

    def _target_loss(self, batch: Batch, states: torch.Tensor) -> torch.Tensor:
        there = batch.loss_mask[:, 1:]
        label = batch.hidden[:, :-1][there].to(self._dtype) if batch.distill else batch.tokens[:, 1:][there]
        found = cross_entropy(
            states[:, :-1][there], self.target.head, label, self.target.head if batch.distill else None
        )
        return found.loss / max(found.count, 1)

    def begin_training(self, frequencies: torch.Tensor) -> None:
        """Makes the most frequent tokens the draft vocabulary."""
        if self.kept is not None:
            self.kept.copy_(frequencies.topk(len(self.kept)).indices.sort().values)
            self._copy_head_rows()

    # -- weights ------------------------------------------------------------------------------------------------------

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Loads what `tensors` gave. Raises LocalspecError also for a draft vocabulary that the model does not have."""
        self.check_tensors(tensors)
        kept = tensors.get("kept")
        if kept is not None and not 0 <= int(kept.min()) <= int(kept.max()) < self.target.transformer.config.vocab_size:
            raise LocalspecError("'kept' names tokens that the model does not have; train the drafter again.")
        super().load_tensors(tensors)
        self._copy_head_rows()


def _linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """Applies a layer, whose weights are in fp32, in the precision of x."""
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def _cell(
    x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, layer: nn.LSTMCell
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)
    return torch.lstm_cell(x, (hidden, cell), *(weight.to(x.dtype) for weight in weights))
