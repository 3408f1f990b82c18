"""Newer forms of drafters against their parents at equal CPU-seconds (LK losses, JetSpec, DSpark): an experiment.

    python newer_heads.py states WORK PACKED ANSWERS REPLIES    states of the texts, once; REPLIES has `tokens`, `reply`
    python newer_heads.py race WORK PACKED ANSWERS SEED CPU_SECONDS NAME...
    python newer_heads.py tau WORK PACKED RUN...

PACKED is the model as `localspec import` packed it, ANSWERS and WORK/readings what `localspec train` made of it. In a
race contenders take steps in turns, least CPU-seconds first, over the same texts in the same order. Replays build the
product's trees over greedy replies.
"""

import json, os, random, sys, time
from pathlib import Path
import numpy as np, torch

torch.set_num_threads(1)
from localspec.native.target import NativeTarget
from localspec.native.threads import Threads
from localspec.training.examples import read_examples
from localspec.training.corpus import Corpus, Cursor, PaddedRows, Row
from localspec.training import readings as _r
from localspec.training.readings import Readings, positions
from localspec.training.target import torch_target
from localspec.repetition import until_it_goes_round

digest = _r._digest
COMMAND, EXP, PACKED = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
PLACES = (2, 15, 27)


def native():
    return NativeTarget.open(PACKED, packing="blocks", threads=Threads(1))


def corpus(tt):
    return Corpus(tt, read_examples([Path(sys.argv[4])]), 1024, 256, 0)


import torch, json, math
import torch.nn.functional as F
import numpy as np
from torch import nn
from dataclasses import replace
from functools import partial
from localspec.nn import losses
from localspec.nn.losses import DepthLoss, Likeliest, _head_rows
from localspec.training.drafters import parallelspec as tp, eagle3 as te
from localspec.training.trainable import TrainableDrafter, LossOutput, Batch
from localspec.drafters import parallelspec as dp, eagle3 as de, dspark as ds, dflash as df
from localspec.drafters.paths import PathTrees
from localspec.drafters.trained import DraftVocabulary, draft_vocabulary, QUIET
from localspec.decoding.tree import DraftTree
from localspec.nn.rotary import RotaryEmbedding, apply_rope
from localspec.nn.small_model import copied_layers

# -- eagle3: LK (2602.23881 §4) --------------------------------------------------------------------------------------
MODE = ["kl"]


def _piece(guesses, labels, teacher, kept):
    with torch.no_grad():
        logits = teacher(labels).float()
        top = logits.argmax(-1)
        full = logits.softmax(-1)
        p = full if kept is None else full[:, kept]
    return [_part(g, top, p, kept) for g in guesses]


def _part(guess, labels, p, kept):
    logits = guess.head(guess.states).float()
    if len(guess.labels) < len(labels):
        labels, p = labels[guess.labels], p[guess.labels]
    rows = labels if kept is None else _head_rows(labels, kept)
    logq = logits.log_softmax(-1)
    ce = -(p / p.sum(-1, keepdim=True) * logq).sum(-1)  # the parent's: the rest of the distribution is left out
    if MODE[0] == "kl":
        loss = ce.sum()
    else:
        alpha = torch.minimum(p, logq.exp()).sum(-1)
        if MODE[0] == "nla":
            loss = -alpha.clamp_min(1e-6).log().sum()
        else:
            lam = torch.exp(-3 * alpha.detach().mean())
            loss = (lam * ce + (1 - lam) * (1 - alpha)).sum()
    return loss, torch.zeros(losses.RANKS, dtype=torch.long), torch.zeros(len(rows), dtype=torch.bool)


def eagle(mode):
    def make(target):
        d = te.Trainable(target, de.Eagle3Options())
        plain = d.loss

        def loss(batch):
            before = losses._piece
            MODE[0] = mode
            losses._piece = _piece
            try:
                return plain(replace(batch, places=None))
            finally:
                losses._piece = before

        d.loss = loss
        return d

    return make


# -- soft labels of readings ------------------------------------------------------------------------------------------
def soft(logits, labels, ids):
    """Cross-entropy and overlap [rows] of logits over the tokens `ids` with the likeliest tokens."""
    columns = labels.ids if ids is None else _head_rows(labels.ids, ids)
    there = labels.chances * (columns != losses.ABSENT)
    logq = logits.float().log_softmax(-1).gather(1, columns.clamp_min(0))
    return -(there * logq).sum(-1), torch.minimum(there, logq.exp()).sum(-1)


# -- parallelspec: the branch -----------------------------------------------------------------------------------------
class Branch(tp.Trainable):
    """The correction's channels are fed back along the branch: a_d = SiLU(N e + b + F s + R a_{d-1})."""

    def __init__(self, target, options):
        super().__init__(target, options)
        self.back = nn.Linear(options.rank, options.rank, bias=False)
        nn.init.zeros_(self.back.weight)

    def _corrected(self, states, group, tokens):
        real, own = int((group.depth == 0).sum()), self.correction
        before = self.target.embed(tokens[group.positions[real:].clamp(max=len(tokens) - 1)])
        masks, anchor, depth = states[real:], group.anchor[real:], group.depth[real:]
        pre = own.near(F.rms_norm(before.to(states.dtype), states.shape[-1:])) + own.far(masks)
        found, a, at = [], None, torch.zeros(len(tokens), dtype=torch.long)
        for d in range(1, self.depth):
            rows = (depth == d).nonzero()[:, 0]
            x = pre[rows]
            if d > 1:
                x = x + self.back(a[at[anchor[rows]]])
            a = F.silu(x)
            at[anchor[rows]] = torch.arange(len(rows))
            found.append(a)
        return torch.cat([states[:real], masks + own.out(torch.cat(found))])


class BranchDrafter(dp.Drafter):
    def __init__(self, target, options, tensors):
        super().__init__(target, options, tensors)
        self._back = self.compute.linear(tensors["back.weight"])

    def draft(self, context):
        nodes, position = context.nodes, len(context.committed)
        self.rewind(position - 1)
        states = self._predict(context.committed, min(self.options.masks, nodes - 1))
        logits, c, compute = self._logits(states), self._correction, self.compute
        far, memory = c.far(states), [None]

        def logits_of(parents, tokens, depth):
            if not depth:
                return logits[:1]
            own = slice(depth, depth + 1)
            x = c._near(compute.rms_norm(compute.target.embed(tokens))) + far[own]
            if depth > 1:
                x = x + self._back(memory[0][list(parents)])
            memory[0] = compute.silu(x)
            return logits[own] + c._out(memory[0])

        return self._trees.grow(context, logits_of, len(logits), self._vocabulary.ids)


# -- parallelspec with DSpark's heads ---------------------------------------------------------------------------------
RANK = 256


class Markov(tp.Trainable):
    """W2 W1[x] in place of the correction, and the confidence."""

    def __init__(self, target, options):
        super().__init__(target, replace(options, correction=0))
        width, vocab = target.transformer.config.hidden_size, target.transformer.config.vocab_size
        self.w1 = nn.Parameter(torch.randn(vocab, RANK) * RANK**-0.5)
        self.w2 = nn.Parameter(torch.zeros(self.options.vocabulary or vocab, RANK))
        self.sure = nn.Linear(width + RANK, 1)

    def _corrected(self, states, group, tokens):
        return torch.cat([states, self.w1[tokens[group.positions.clamp(max=len(tokens) - 1)]]], -1)

    def _depth_losses(self, guesses, batch):
        reading = F.pad(batch.loss_mask[:, 1:], (0, 1)).flatten().cumsum(0) - 1
        shared, ids, columns = self.candidates(batch.places.labels)
        found = []
        W = guesses[0].states.shape[-1] - RANK
        w2 = self.w2 if columns is None else self.w2[columns]
        for g in guesses:
            logits = shared(g.states[:, :W]) + g.states[:, W:] @ w2.T
            ce, overlap = soft(logits, batch.places.labels[reading[g.labels]], ids)
            sure = F.binary_cross_entropy_with_logits(
                self.sure(g.states)[:, 0], overlap.detach().clamp(0, 1), reduction="sum"
            )
            found.append(DepthLoss(ce.sum() + sure, torch.zeros(10), len(ce)))
        return found


class MarkovDrafter(dp.Drafter):
    def __init__(self, target, options, tensors):
        super().__init__(target, options, tensors)
        c = self.compute
        self._w1, self._w2, self._sure = (
            c.rows(tensors["w1"]),
            c.linear(tensors["w2"]),
            c.linear(tensors["sure.weight"], tensors["sure.bias"]),
        )
        self._trees = PathTrees(self)

    def observe(self, step):
        self._trees.calibrate(step)

    def draft(self, context):
        self.rewind(len(context.committed) - 1)
        c = self.compute
        states = self._predict(context.committed, min(self.options.masks, context.nodes - 1))
        logits = self._logits(states)
        m = lambda tokens: self._w1[list(tokens)]

        def logits_of(parents, tokens, depth):
            return logits[depth : depth + 1] + self._w2(m(tokens))

        def overlaps(tokens, depth):
            x = self._sure(c.concat([np.repeat(states[depth : depth + 1], len(tokens), 0), m(tokens)], 1))[:, 0]
            return (1 / (1 + np.exp(-np.asarray(x, np.float64)))).tolist()

        return self._trees.grow(
            context, logits_of, len(logits), self._vocabulary.ids, overlaps if self.use_confidence else None
        )

    use_confidence = True


def spec(class_=tp.Trainable, **options):
    return lambda target: class_(target, dp.ParallelSpecOptions(**options))


# -- DSpark's own form ------------------------------------------------------------------------------------------------
def spark_options(target, depth=5, causal="none"):
    s = target.transformer.config
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": s.vocab_size,
        "hidden_size": s.hidden_size,
        "intermediate_size": s.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": s.num_heads,
        "num_key_value_heads": s.num_kv_heads,
        "head_dim": s.head_dim,
        "rms_norm_eps": s.rms_norm_eps,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    return ds.DSparkOptions(
        config=json.dumps(config), states="2,15,27", mask=5, block=depth, causal=causal, rank=RANK, confidence="both"
    )


class Spark(TrainableDrafter):
    Drafter = ds.Drafter

    def __init__(self, target, options, form):
        super().__init__(target, options)
        self.form = form
        shape = target.transformer.config
        self.draft_from(draft_vocabulary(-1, shape.vocab_size))
        self.sizes, rope = df.layers_of(options, shape, target.context)
        self.rotary = RotaryEmbedding(rope, "cpu")
        specs = ds.Drafter.tensor_specs(target, options)
        self.p = nn.ParameterDict()
        for name, s in specs.items():
            shape_ = (len(self.kept), RANK) if name == "markov.weight" else s.shape
            value = torch.ones(shape_) if len(shape_) == 1 else torch.randn(shape_) * 0.02
            self.p[name.replace(".", "|")] = nn.Parameter(value)
        g = self.get
        with torch.no_grad():
            g("markov.weight").zero_()
            g("embedding").mul_(RANK**-0.5 / 0.02)
            g("confidence.weight").zero_()
            g("confidence.bias").zero_()
            W = shape.hidden_size
            g("fc.weight")[:, -W:] += torch.eye(W)
            t = target.transformer
            one = dp.layers_of(shape, dp.ParallelSpecOptions())
            last = copied_layers(t, one, shape.attending[-1:])
            qkv = last["layers.0.qkv_proj.weight"]
            q, k = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
            for part, v in zip("qkv", qkv.split([q, k, k])):
                g(f"layers.0.self_attn.{part}_proj.weight").copy_(v)
            g("layers.0.self_attn.o_proj.weight").copy_(last["layers.0.o_proj.weight"])
            gate, up = last["layers.0.gate_up_proj.weight"].chunk(2)
            g("layers.0.mlp.gate_proj.weight").copy_(gate)
            g("layers.0.mlp.up_proj.weight").copy_(up)
            g("layers.0.mlp.down_proj.weight").copy_(last["layers.0.down_proj.weight"])
            g("hidden_norm.weight").copy_(last["layers.0.input_layernorm"])
            g("layers.0.input_layernorm.weight").copy_(last["layers.0.input_layernorm"])
            g("layers.0.post_attention_layernorm.weight").copy_(last["layers.0.post_attention_layernorm"])
            g("norm.weight").copy_(t.norm)

    def get(self, name):
        return self.p[name.replace(".", "|")]

    @property
    def depth(self):
        return self.options.block

    def numbers(self):
        found = {n.replace("|", "."): v.detach().float().numpy() for n, v in self.p.items()}
        return found | {"kept": self.kept.numpy()}

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.get(name), self.sizes.rms_norm_eps)

    def block(self, inner, tokens, anchors):
        """States [anchors, d, width] of blocks whose roots stand at `anchors` of a text [n]."""
        d, s, n, L = self.depth, self.sizes, len(tokens), "layers.0."
        lin = lambda x, name: x @ self.get(f"{L}{name}_proj.weight").T
        feats = self.norm(inner.float() @ self.get("fc.weight").T, "hidden_norm.weight")

        def heads(x, count):
            return x.view(*x.shape[:-1], count, s.head_dim)

        def rope(x, at):
            cos, sin = self.rotary.cos_sin(at, x.dtype)
            return apply_rope(x[None], cos, sin)[0]

        kt = rope(
            self.norm(heads(lin(feats, "self_attn.k"), s.num_kv_heads), f"{L}self_attn.k_norm.weight"), torch.arange(n)
        )
        vt = heads(lin(feats, "self_attn.v"), s.num_kv_heads)
        A = len(anchors)
        at = (anchors[:, None] + torch.arange(d)).flatten()
        ids = torch.full((A, d), self.options.mask)
        ids[:, 0] = tokens[anchors]
        x = self.target.embed(ids.flatten()).float()
        h = self.norm(x, f"{L}input_layernorm.weight")
        q = rope(self.norm(heads(lin(h, "self_attn.q"), s.num_heads), f"{L}self_attn.q_norm.weight"), at)
        k = rope(self.norm(heads(lin(h, "self_attn.k"), s.num_kv_heads), f"{L}self_attn.k_norm.weight"), at)
        v = heads(lin(h, "self_attn.v"), s.num_kv_heads)
        G = s.num_heads // s.num_kv_heads
        q = q.view(A, d, s.num_kv_heads, G, s.head_dim) * s.head_dim**-0.5
        k = k.view(A, d, s.num_kv_heads, -1)
        v = v.view(A, d, s.num_kv_heads, -1)
        text = torch.einsum("adhgc,nhc->ahgdn", q, kt).masked_fill(
            (torch.arange(n) >= anchors[:, None])[:, None, None, None], -torch.inf
        )
        own = torch.einsum("adhgc,aehc->ahgde", q, k)
        if self.options.causal == "all":
            own = own.masked_fill(torch.ones(d, d, dtype=torch.bool).triu(1), -torch.inf)
        w = torch.cat([text, own], -1).softmax(-1)
        mixed = torch.einsum("ahgdn,nhc->adhgc", w[..., :n], vt) + torch.einsum("ahgde,aehc->adhgc", w[..., n:], v)
        x = x + lin(mixed.reshape(A * d, -1), "self_attn.o")
        h = self.norm(x, f"{L}post_attention_layernorm.weight")
        x = x + lin(F.silu(lin(h, "mlp.gate")) * lin(h, "mlp.up"), "mlp.down")
        return self.norm(x, "norm.weight").view(A, d, -1)

    def loss(self, batch):
        d, n = self.depth, batch.tokens.shape[1]
        S, P, V, M = [], [], [], []
        for b, mask in enumerate(batch.loss_mask):
            end = int(mask.nonzero().max()) + 1 if mask.any() else 0
            if end < 3:
                continue
            padded = F.pad(mask[:end], (0, d + 1))
            anchors = (padded[1:end] & padded[2 : end + 1]).nonzero()[:, 0] + 1
            if not len(anchors):
                continue
            S.append(self.block(batch.inner[b, :end], batch.tokens[b, :end], anchors))
            pos = anchors[:, None] + torch.arange(d)
            V.append(padded[pos + 1].cumprod(1).bool())
            P.append(b * n + pos)
            M.append(batch.tokens[b][pos.clamp(max=n - 1)])
        S, P, V, M = map(torch.cat, (S, P, V, M))
        reading = F.pad(batch.loss_mask[:, 1:], (0, 1)).flatten().cumsum(0) - 1
        shared, ids, columns = self.candidates(batch.places.labels)
        w2 = self.get("markov.weight")
        w2 = w2 if columns is None else w2[columns]
        total = 0.0
        for j in range(d):
            rows = V[:, j]
            s, m = S[rows, j], self.get("embedding")[M[rows, j]]
            logits = shared(s) + m @ w2.T
            ce, overlap = soft(logits, batch.places.labels[reading[P[rows, j]]], ids)
            sure = torch.cat([s, m], -1) @ self.get("confidence.weight").T + self.get("confidence.bias")
            sure = F.binary_cross_entropy_with_logits(sure[:, 0], overlap.detach().clamp(0, 1))
            main = ce.mean() if self.form == "kl" else 0.1 * ce.mean() + 0.9 * 2 * (1 - overlap).mean()
            total = total + 0.8**j * (main + sure)
        return LossOutput(total, [])


class SparkDrafter(ds.Drafter):
    """Over a draft vocabulary."""

    def __init__(self, target, options, tensors):
        self._vocabulary = DraftVocabulary(target, tensors)
        super().__init__(target, options, tensors)
        trees, ids = self._trees, self._vocabulary.ids
        plain = trees.grow

        def grow(context, logits_of, depths, ids_=None, overlaps=None):
            return plain(context, logits_of, depths, ids, overlaps if self.use_confidence else None)

        trees.grow = grow

    use_confidence = True

    def _block_logits(self, ids, *seats):
        target, each = self.compute.target, len(seats) // len(self._layers)
        x = target.embed(ids[:, 0]) * self._scale
        for place, layer in enumerate(self._layers):
            x = layer(x, *seats[place * each : (place + 1) * each])
        states = self.compute.rms_norm(x[self.FIRST :], self._sizes.rms_norm_eps) * self._norm
        return self._vocabulary.head(states), states


def spark(form, causal="none"):
    return lambda target: Spark(target, spark_options(target, causal=causal), form)


KINDS = {  # name: (make, what drafts)
    "eagle3": (eagle("kl"), de.Drafter),
    "eagle3-lk": (eagle("hybrid"), de.Drafter),
    "eagle3-nla": (eagle("nla"), de.Drafter),
    "spec": (spec(), dp.Drafter),
    "spec-branch": (spec(Branch), BranchDrafter),
    "spec-even": (spec(decay=1.0), dp.Drafter),
    "spec-markov": (spec(Markov), MarkovDrafter),
    "spec-eagle": (spec(form="eagle"), dp.Drafter),
    "dspark": (spark("dspark"), SparkDrafter),
    "dspark-kl": (spark("kl"), SparkDrafter),
    "dspark-causal": (spark("kl", "all"), SparkDrafter),
}

if COMMAND == "states":
    most = 70_000  # tokens of training text
    t = native()
    tt = torch_target(t)
    W = t.model.sizes.hidden_size
    c = corpus(tt)

    def read(tokens, logits_from=None):
        cache = t.cache(len(tokens))
        h, s, top = [], [], []
        for i in range(0, len(tokens), 128):
            part = tokens[i : i + 128]
            at = len(part) - 1 if logits_from is None else min(max(logits_from - i, 0), len(part) - 1)
            logits, hidden, inner = t.model.forward(part, None, cache, at, PLACES)
            cache.keep(range(len(part)))
            h.append(hidden)
            s.append(inner)
            if logits_from is not None and i + len(part) > logits_from:
                top += [*map(int, logits.argmax())]
        return np.concatenate([np.concatenate(s), np.concatenate(h)], 1).clip(-65504, 65504).astype(np.float16), top

    out = EXP / "eval-states"
    out.mkdir(exist_ok=True)
    if not (EXP / "eval.jsonl").exists():
        lines = [json.loads(l) for l in open(sys.argv[5])]
        kept = []
        for r in c.held_out:
            first = r.loss_mask.index(True)
            n = first
            while n < len(r.tokens) and r.loss_mask[n] and n - first < 128:
                n += 1
            if n - first > 16:
                lines.append({"category": "own", "tokens": [*r.tokens[:first]], "reply": [*r.tokens[first:n]]})
        for e in lines:
            tokens, P = [*e["tokens"], *e["reply"]], len(e["tokens"])
            x, top = read(tokens, P - 1)
            same = top[:-1] == tokens[P:]
            if same:
                np.save(out / f"{len(kept)}.npy", x)
                kept.append({"category": e["category"], "tokens": e["tokens"], "reply": e["reply"]})
            else:
                print("not greedy", e["category"], len(e["reply"]))
        (EXP / "eval.jsonl").write_text("".join(json.dumps(e) + "\n" for e in kept))
        print("eval", len(kept), sum(len(e["reply"]) for e in kept), "cpu", time.process_time(), flush=True)
    out = EXP / "states"
    out.mkdir(exist_ok=True)
    R = Readings(EXP / "readings", W)
    total = 0
    begun = time.process_time()
    for b in c.one_pass():
        for r in b:
            if r not in R:
                continue
            total += len(r.tokens)
            name = out / f"{digest(r)}.npy"
            if not name.exists():
                np.save(name, read(r.tokens)[0])
        if total > most:
            break
    print("train tokens", total, "cpu", time.process_time() - begun, flush=True)

if COMMAND == "race":
    from localspec.training.trainable import Batch
    from localspec.training.train import _schedule, BETAS, WEIGHT_DECAY, CLIP

    seed, limit, names = int(sys.argv[5]), float(sys.argv[6]), sys.argv[7:]
    RATE = float(os.environ.get("RATE", "1.78e-3"))
    BATCH = int(os.environ.get("BATCH", "256"))
    t = native()
    tt = torch_target(t)
    W = t.model.sizes.hidden_size
    R = Readings(EXP / "readings", W)
    c = Corpus(tt, read_examples([Path(sys.argv[4])]), 1024, BATCH, 0)
    has = lambda r: r in R and (EXP / "states" / f"{digest(r)}.npy").exists()
    batches = [b for b in c.one_pass() if all(has(r) for r in b)]
    print(len(batches), "batches", sum(len(r.tokens) for b in batches for r in b), "tokens", flush=True)
    freq = c.frequencies()

    def batch(rows, number):
        padded = PaddedRows.of(rows, "cpu")
        n = padded.tokens.shape[1]
        x = torch.zeros(len(rows), n, 4 * W)
        for i, r in enumerate(rows):
            x[i, : len(r.tokens)] = torch.from_numpy(np.load(EXP / "states" / f"{digest(r)}.npy").astype(np.float32))
        return Batch(
            padded.tokens,
            padded.loss_mask,
            x[..., 3 * W :],
            True,
            torch.Generator().manual_seed(number),
            inner=x[..., : 3 * W],
            places=R.places(rows, "cpu", True),
        )

    class One:
        pass

    ones = []
    import random

    for name in names:
        o = One()
        o.name, o.cpu, o.steps, o.tokens = name, 0.0, 0, 0
        torch.manual_seed(seed)
        o.d = KINDS[name][0](tt)
        o.d.begin_training(freq)
        o.d.train()
        ps = [p for p in o.d.parameters() if p.requires_grad]
        o.ps = ps
        o.opt = torch.optim.AdamW(
            [
                {"params": [p for p in ps if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
                {"params": [p for p in ps if p.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=BETAS,
        )
        ones.append(o)
        print(name, sum(p.numel() for p in ps) / 1e6, "M", flush=True)
    order = list(range(len(batches)))
    random.Random(seed).shuffle(order)
    while any(o.cpu < limit for o in ones):
        o = min((o for o in ones if o.cpu < limit), key=lambda o: o.cpu)
        rows = batches[order[o.steps % len(order)]]
        b = batch(rows, 1000 * seed + o.steps)
        began = time.process_time()
        for g in o.opt.param_groups:
            g["lr"] = RATE * _schedule(o.cpu / limit)
        o.opt.zero_grad(set_to_none=True)
        l = o.d.loss(b).loss
        l.backward()
        torch.nn.utils.clip_grad_norm_(o.ps, CLIP)
        o.opt.step()
        o.cpu += time.process_time() - began
        o.steps += 1
        o.tokens += sum(len(r.tokens) for r in rows)
        if o.steps % 20 == 0:
            print(o.name, o.steps, o.tokens, round(o.cpu), round(float(l.detach()), 3), flush=True)
        if o.cpu >= limit:
            o.d.eval()
            torch.save(
                {"numbers": o.d.numbers(), "options": o.d.options, "steps": o.steps, "tokens": o.tokens, "cpu": o.cpu},
                EXP / f"{o.name}-{seed}-{int(limit)}.pt",
            )
            print("END", o.name, seed, o.steps, o.tokens, round(o.cpu, 1), flush=True)

if COMMAND == "tau":
    from localspec.decoding.drafter import Context, Step
    from localspec.decoding.sampling import Sampling
    from localspec.decoding.numpy_logits import NumpyHidden

    t = native()
    W = t.model.sizes.hidden_size
    ev = [json.loads(l) for l in (EXP / "eval.jsonl").read_text().splitlines()]

    def replay(d, nodes):
        from localspec.decoding.calibration import Calibration

        d.calibration = Calibration()
        found = []
        for n, e in enumerate(ev):
            reply = e["reply"][: until_it_goes_round(e["reply"])]
            if len(reply) < 9:
                continue
            x = np.load(EXP / "eval-states" / f"{n}.npy").astype(np.float32)
            x, h = x[:, : 3 * W], x[:, 3 * W :]
            d.rewind(0)
            prompt = e["tokens"]
            committed = [*prompt, reply[0]]
            P = len(prompt)
            d.observe(Step(committed, NumpyHidden(h[:P]), inner=NumpyHidden(x[:P])))
            done, steps = 1, 0
            while done < len(reply):
                tree = d.draft(Context(committed, None, nodes, Sampling()))
                node, path, took = 0, [0], []
                while done + len(took) < len(reply) and reply[done + len(took)] in tree.children[node]:
                    node = tree.children[node][reply[done + len(took)]]
                    path.append(node)
                    took.append(tree.tokens[node])
                if done + len(took) < len(reply):
                    took.append(reply[done + len(took)])
                at = len(committed) - 1
                rows = slice(at, at + len(path))
                d.observe(Step(took, NumpyHidden(h[rows]), tree, path, inner=NumpyHidden(x[rows])))
                committed += took
                done += len(took)
                steps += 1
            found.append((len(reply) - 1, steps))
        return found

    for run in sys.argv[4:]:
        name, *_ = Path(run).stem.rsplit("-", 2)
        saved = torch.load(run, weights_only=False)
        for confident in (True, False) if hasattr(KINDS[name][1], "use_confidence") else (None,):
            d = KINDS[name][1](t, saved["options"], saved["numbers"])
            if confident is not None:
                type(d).use_confidence = confident
            out = {}
            began = time.process_time()
            for nodes in (4, 8, 16):
                f = replay(d, nodes)
                out[nodes] = f
            taus = {k: round(sum(a for a, _ in f) / sum(b for _, b in f), 3) for k, f in out.items()}
            print(
                Path(run).stem,
                "" if confident is None else f"confidence={confident}",
                "steps",
                saved["steps"],
                "tokens",
                saved["tokens"],
                "cpu",
                round(saved["cpu"]),
                taus,
                "replay cpu",
                round(time.process_time() - began),
                flush=True,
            )
            Path(run).with_suffix("" if confident in (None, True) else ".plain").with_suffix(
                ".json" if confident in (None, True) else ".plain.json"
            ).write_text(json.dumps(out))
