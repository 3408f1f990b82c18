"""Semi-autoregressive drafting: the target's last state for the text so far, a tiny model for what was just drafted.

q(d_j) = q_0(d_j | h_p, h_q(root, d_1, …)) (Semi-Autoregressive Decoding for Efficient LLM Inference, eq. 5): h_p is the
target's state that predicted the root, there already and the same for the whole tree; h_q runs on from node to node, so
that a tree costs one small batch a depth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from localspec.decoding.drafter import Context, Step
from localspec.decoding.tree import Candidate, DraftTree, grown
from localspec.drafters.trained import Batch, LossOutput, TrainedDrafter, refuse_without_joint
from localspec.errors import LocalspecError, UsageMistake
from localspec.nn.adapters import MOST_RANK, Adapters
from localspec.nn.losses import Head, cross_entropy
from localspec.nn.target import Target

JOINT = ("rank", "balance")  # options that joint training alone has
PAPER_WIDTH = 1024  # of W_p h_p and of W_q h_q (appendix A)
BRANCHES = 8  # candidates of one node behind the first depth


@dataclass(frozen=True)
class SemiOptions:
    """What can be chosen.

    recent: the tiny model: "transformer" (eq. 6), "lstm" (eq. 7), or "none", the embedding of the last token alone
    (the zero-layer ablation of figure 4). depth: levels of a tree, tokens that h_q ever sees.

    shared: the head ends in the target's own, else in one of its own; over `vocabulary` tokens, the most frequent ones
    of the training text (0: all). layers: hidden ones of the head (§4.2 says two; with one, the formula of appendix A,
    h_p and h_q do no more than add up). paper_widths: 1024 + 1024 channels whatever the target's width is.

    share: of the positions of a text, those to learn from in one batch. joint: the target learns too, through adapters
    of this rank; the drafter's loss then weighs `balance`, eq. 8's λ.
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
        if self.recent not in RECENT:
            raise UsageMistake(
                f"recent = {self.recent!r} is no model of recent tokens; use one of {', '.join(RECENT)}."
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

    The state of a node, [rows, width / 2], is the sum above the line.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width // 2), nn.Linear(width // 2, width // 2)
        for layer in (self.inner, self.outer):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        # α is its sigmoid, at first ½ for the last place and half as much for each before it: the newest token weighs
        # more than all before it together, and which one it is can be told.
        self.free = nn.Parameter(torch.logit(0.5 ** torch.arange(depth, 0, -1)))
        self.width = self.kept = width // 2

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings [rows, width] of the recent token `depth` places behind the root, and the states before it, to
        (states with it, h_q [rows, self.width]).
        """
        alpha = self.free.sigmoid().to(x.dtype)
        x = F.silu(_linear(F.silu(_linear(x, self.inner)), self.outer))
        state = torch.addcmul(state, x, alpha[depth])
        return state, state / alpha[: depth + 1].sum()


class Recurrent(nn.Module):
    """The LSTM of two layers, eq. 7. The state of a node, [rows, 2 width], is hidden and cell of both."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width // 2
        self.kept = 4 * self.width
        self.first, self.second = nn.LSTMCell(width, self.width), nn.LSTMCell(self.width, self.width)

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As of `Averaged`."""
        below, below_cell, above, above_cell = state.chunk(4, -1)
        below, below_cell = _cell(x, below, below_cell, self.first)
        above, above_cell = _cell(below, above, above_cell, self.second)
        return torch.cat([below, below_cell, above, above_cell], -1), above


class Last(nn.Module):
    """No model: the embedding of the last token (§6.1, zero layers)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width, self.kept = width, 0

    def forward(self, x: torch.Tensor, state: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As of `Averaged`."""
        return state, x


RECENT: dict[str, type[Averaged] | type[Recurrent] | type[Last]] = {
    "transformer": Averaged,
    "lstm": Recurrent,
    "none": Last,
}


class Drafter(TrainedDrafter):
    """Semi-autoregressive drafting (§4; appendix A).

    Separate training, the default, leaves the target as it is. In joint training `loss` runs the target with
    `adapters`, which the training loop merges at the end: then it is a target of its own.

    The head is W_3 σ([W_p h_p, W_q h_q] + b), its widths in proportion to the target's, with a second hidden layer
    before W_3. W_3 over a whole vocabulary is nearly all of the drafter's memory. By default it leads to the target's
    width instead, and the target's own head follows. Measured roughly (demo model, 240 steps, one seed): as wide as a
    head of its own it foresees a little less; twice as wide, as it is here, as much with a fifth of the weights. Each
    depth then costs that head; a draft vocabulary makes it cheaper, for a copy of rows.
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
        with target.device:
            self.recent: Averaged | Recurrent | Last = RECENT[options.recent](shape.hidden_size, options.depth)
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
        self._shared: Head = target.head  # no module of the drafter's own: it is neither trained nor saved
        self._copied = 0
        self._cut()
        self._state: torch.Tensor | None = None  # the target's, that predicted the root
        self._asked: dict[tuple[int, ...], Sequence[Candidate]] = {}  # what the last draft found behind each path
        self._greedy = True

    @property
    def depth(self) -> int:
        """Levels of its trees, the root not counted."""
        return self.options.depth

    # -- the model ----------------------------------------------------------------------------------------------------

    def _begin(self, rows: int) -> torch.Tensor:
        """States of the tiny model before any token."""
        return torch.zeros((rows, self.recent.kept), dtype=self._dtype, device=self.target.device)

    def _read(
        self, tokens: torch.Tensor, far: torch.Tensor, state: torch.Tensor, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One more recent token [rows] in each row, `depth` places behind the root: (states, σ(…) [rows, 2 wide]).

        far [rows or 1, wide] is W_p h_p.
        """
        # Brought to one size: embeddings as small as many targets' would teach the tiny model very slowly.
        x = F.rms_norm(self.target.embed(tokens).to(self._dtype), (self.target.transformer.config.hidden_size,))
        state, recent = self.recent(x, state, depth)
        near = _linear(recent, self.near)
        return state, F.silu(torch.cat([far.expand_as(near), near], -1))

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary."""
        if self.mixed is not None:
            x = x + F.silu(_linear(x, self.mixed))
        x = _linear(x, self.out)
        return self._shared(x) if self.options.shared else x

    def _cut(self) -> None:
        """Takes the rows of the target's head that belong to the draft vocabulary, in the precision of that head."""
        transformer = self.target.transformer
        if self.options.shared and self.kept is not None:
            rows = type(transformer.lm_head)(transformer.lm_head.weight.detach()[self.kept])
            self._shared, self._copied = rows.forward, rows.nbytes

    @property
    def nbytes(self) -> int:
        """Memory the drafter holds beside the target."""
        return super().nbytes + self._copied

    @property
    def _dtype(self) -> torch.dtype:
        return self.target.transformer.computes_in

    # -- drafting -----------------------------------------------------------------------------------------------------

    def observe(self, step: Step) -> None:
        """Keeps the state that predicted the new root, and judges what the last draft proposed along the text."""
        self._state = step.hidden[-1:].clone()  # no view: that would keep a whole chunk
        path: tuple[int, ...] = ()
        for token in step.committed if step.tree is not None else ():
            if path not in self._asked:
                break
            self.calibration.learn(self._asked[path], len(path) + 1, self._greedy, token)
            path += (token,)
        self._asked = {}

    def rewind(self, length: int) -> None:
        """The state that predicted the new root is gone, until the next observation."""
        self._state, self._asked = None, {}

    @torch.inference_mode()
    def draft(self, context: Context) -> DraftTree:
        """The best tree that the tiny model finds; for the rule `rejection`, chains that are drawn from it."""
        self._asked, self._greedy = {}, context.sampling.greedy
        if self._state is None or not context.nodes:
            return DraftTree((context.root,), (-1,))
        far = _linear(self._state.to(self._dtype), self.far)
        return self._drawn(context, far) if context.sampling.rule == "rejection" else self._grown(context, far)

    def _grown(self, context: Context, far: torch.Tensor) -> DraftTree:
        state = self._begin(1)
        paths: list[tuple[int, ...]] = [()]

        def expand(parents: Sequence[int], tokens: Sequence[int], depth: int) -> list[list[Candidate]]:
            """Candidates behind nodes `depth` places behind the root: children of the nodes asked for before."""
            nonlocal state, paths
            if depth:
                state = state[torch.tensor(parents, device=state.device)]
                paths = [(*paths[parent], token) for parent, token in zip(parents, tokens, strict=True)]
            state, x = self._read(torch.tensor(tokens, device=state.device), far, state, depth)
            # Nodes of one depth stand for one position, and so meet the same noise.
            positions = [len(context.committed) + depth] * len(tokens)
            count = min(context.nodes, BRANCHES) if depth else context.nodes
            found = context.sampling.candidates(self._head(x), positions, count, self.kept)
            self._asked.update(zip(paths, found, strict=True))
            return [self.calibration.chances(candidates, depth + 1, self._greedy) for candidates in found]

        return grown(context.root, expand, context.nodes, self.depth, self.kind)

    def _drawn(self, context: Context, far: torch.Tensor) -> DraftTree:
        """Chains side by side, each token drawn given those above it; what is left over is drawn behind the root alone.

        The shape does not depend on what is drawn, but for a depth where some logits are no numbers: there it ends.
        """
        depths = min(self.depth, context.nodes)
        chains, position = context.nodes // depths, len(context.committed)
        widths = [chains + context.nodes % depths] + [chains] * (depths - 1)
        drawn: list[list[int]] = []
        rows: list[torch.Tensor] = []
        state, tokens = self._begin(1), [context.root]
        for depth, width in enumerate(widths):
            state, x = self._read(torch.tensor(tokens, device=state.device), far, state[:width], depth)
            logits = self._whole(self._head(x))
            if context.sampling.usable(logits) < len(logits):
                break
            if depth == 0:
                logits, state = logits.expand(width, -1), state.expand(width, -1)
            tokens = [context.sampling.draw(row, position + depth, chain) for chain, row in enumerate(logits[:width])]
            drawn.append(tokens)
            rows.append(logits)
            tokens = tokens[:chains]
        if not drawn:
            return DraftTree((context.root,), (-1,))
        depths = len(drawn)
        nodes = [(depth, chain) for chain in range(widths[0]) for depth in range(depths if chain < chains else 1)]
        number = {node: index for index, node in enumerate(nodes, start=1)}
        return DraftTree(
            [context.root, *(drawn[depth][chain] for depth, chain in nodes)],
            [-1, *(number[depth - 1, chain] if depth else 0 for depth, chain in nodes)],
            [self.kind] * (len(nodes) + 1),
            draft_logits=torch.stack([rows[0][0], *(rows[depth][chain] for depth, chain in nodes)]),
        )

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the draft vocabulary as those of the whole one: what is not in it is never drawn."""
        if self.kept is None:
            return logits
        whole = logits.new_full((len(logits), self.target.transformer.config.vocab_size), float("-inf"))
        return whole.index_copy_(1, self.kept, logits)

    # -- learning -----------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> LossOutput:
        """The mean of -log q_0(w_{i+1+j} | h_p(w_≤i), h_q(w_{i+1} … w_{i+j})) over all i and 1 ≤ j ≤ depth (eq. 8).

        The first recent token w_{i+1} stands for the root; every one behind it is to be worth foreseeing, as in a reply
        that is drafted. Labels are the text or the target's distribution there. In joint training h_p carries the
        gradient, and (1 - λ) times the target's own loss, with the same labels, is added to λ times this mean.
        """
        hidden = batch.hidden.to(self._dtype)
        states = hidden if self.adapters is None else self.adapted_states(batch.tokens)
        windows = F.pad(batch.tokens, (0, self.depth + 1)).unfold(1, self.depth + 1, 1)  # [texts, n + 1, depth + 1]
        counted = F.pad(batch.loss_mask, (0, self.depth + 1)).unfold(1, self.depth + 1, 1)
        # [texts, n, depth + 1] behind each position: the root, then the labels; nothing counts behind what does not.
        windows, counted = windows[:, 1:], counted[:, 1:].cumprod(-1).bool()
        anchors = counted[..., 1]
        if self.options.share < 1:
            chosen = torch.rand(anchors.shape, generator=batch.generator) < self.options.share
            anchors = anchors & chosen.to(anchors.device)
        text, place = anchors.nonzero(as_tuple=True)
        windows, counted = windows[text, place], counted[text, place]
        far, state = _linear(states[text, place], self.far), self._begin(len(text))
        found = []
        for depth in range(self.depth):
            state, x = self._read(windows[:, depth], far, state, depth)
            there = counted[:, depth + 1]
            label = hidden[text[there], place[there] + depth + 1] if batch.distill else windows[there, depth + 1]
            found.append(
                cross_entropy(x[there], self._head, label, self.target.head if batch.distill else None, self.kept)
            )
        # The sum of no states is zero and has a gradient: a batch without a token that counts is no mistake.
        total = sum((foresight.loss for foresight in found), start=0.0 * far.sum())
        loss = total / max(sum(foresight.count for foresight in found), 1)
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
        """As of `TrainedDrafter`: the draft vocabulary is what comes most often."""
        if self.kept is not None:
            self.kept.copy_(frequencies.topk(len(self.kept)).indices.sort().values)
            self._cut()

    # -- weights ------------------------------------------------------------------------------------------------------

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """As of `TrainedDrafter`; the draft vocabulary must be one."""
        self.check_tensors(tensors)
        kept = tensors.get("kept")
        if kept is not None and not 0 <= int(kept.min()) <= int(kept.max()) < self.target.transformer.config.vocab_size:
            raise LocalspecError("'kept' names tokens that the model does not have; train the drafter again.")
        super().load_tensors(tensors)
        self._cut()


def _linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """The weights are kept in fp32 and compute in the precision of x."""
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))


def _cell(
    x: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, layer: nn.LSTMCell
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh)
    return torch.lstm_cell(x, (hidden, cell), *(weight.to(x.dtype) for weight in weights))
