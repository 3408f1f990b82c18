"""Train the demo model from scratch, in a long stage and a short last one, and then its draft model.

    python research/train_demo.py long --data DIR --work DIR                # until stopped, or --tokens
    python research/train_demo.py last --data DIR --work DIR --tokens 4e6   # from where the long stage is
    python research/train_demo.py draft --data DIR --work DIR --tokens 4e6 --towards localspec/demo

The long stage has a constant learning rate, so it may run as long as there is time. The rate falls in the last stage,
which does not change the long stage's checkpoint. After any stop, the same command continues from the last checkpoint.
Lengths are in tokens, so a busy machine makes a run slower, but not shorter. In the long stage,
WORK/long/held_out.jsonl gets the held-out losses, and WORK/long/samples.jsonl sample replies.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import math
import multiprocessing
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from demo_data.passes import set_aside, trained, vocabulary_texts
from demo_model import demo_config, draft_of, export, muon_in_float32, optimizers
from demo_progress import agreement, held_out_losses, log, samples
from demo_tokens import Corpus, train_tokenizer
from filelock import FileLock, Timeout
from transformers import Phi3ForCausalLM, PreTrainedTokenizerFast

SEED = 20261122
MICRO = {"cpu": 4096, "cuda": 65536}  # tokens a forward
MEASURED, SPOKEN = 200, 400  # steps


@dataclass(frozen=True)
class Stage:
    """A stage of the training. `mixture` names its training data in demo_data/mixture.py."""

    mixture: str
    length: int  # tokens a row
    batch: int  # tokens a step
    rates: tuple[float, float]  # factor on the learning rates, at first and at the end
    hold: float  # share of the stage at the first rate
    warm_up: int  # steps
    user_share: float  # weight of a user's tokens, relative to an assistant's


STAGES = {
    "long": Stage("long", 512, 8192, (1.0, 1.0), 1.0, 40, 0.2),
    "last": Stage("last", 1024, 4096, (1.0, 0.0), 0.0, 0, 0.0),
    # In 90 seconds, steps of 2,048 tokens brought a draft to agree with its teacher on 29 % of tokens, those of 4,096
    # on 24 %; in 80 seconds at 2.5 times the rate it was 29 % too.
    "draft": Stage("draft", 1024, 2048, (2.0, 0.0), 0.4, 50, 0.0),
}


def rate(stage: Stage, steps: int, done: float) -> float:
    """Return the factor on the learning rates: a short warm-up, a constant part, then a linear decrease."""
    first, end = stage.rates
    falling = max(0.0, done - stage.hold) / (1 - stage.hold) if stage.hold < 1 else 0.0
    return min(1.0, (steps + 1) / max(1, stage.warm_up)) * (first + (end - first) * min(1.0, falling))


@dataclass
class Progress:
    """A position in the training, at which a stopped run continues as if it had never stopped."""

    number: int = 0  # of the pass
    rows: int = 0  # of this pass
    steps: int = 0
    tokens: int = 0
    cpu_seconds: float = 0.0  # of all cores; time in which the process was stopped does not count


@dataclass
class Run:
    """One stage of the training, with its files in a folder below `work`."""

    name: str
    options: argparse.Namespace
    tokenizer: PreTrainedTokenizerFast
    model: Phi3ForCausalLM
    teacher: Phi3ForCausalLM | None = None
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.stage, self.folder = STAGES[self.name], self.options.work / self.name
        self.checkpoint = self.folder / "checkpoint.pt"
        self.optimisers = optimizers(self.model)
        self.body: Any = torch.compile(self.model.model) if self.options.compile else self.model.model
        self.device = next(self.model.parameters()).device
        if self.device.type == "cpu" and not self.options.compile:
            self.model.set_attn_implementation("eager")  # a tenth faster than the fused form, which gains by compiling
        self.batch = self.options.batch or self.stage.batch

    def load(self, checkpoint: Path) -> None:
        """Load weights and optimiser states. If the checkpoint is this stage's, also load the position in the data."""
        state = torch.load(checkpoint, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for (optimiser, _), saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        if checkpoint == self.checkpoint:
            self.progress = Progress(**state["progress"])

    def save(self) -> None:
        """Write the checkpoint under a temporary name, then rename it: a killed run keeps the last complete one."""
        optimisers = [o.state_dict() for o, _ in self.optimisers]
        state = {"model": self.model.state_dict(), "optimisers": optimisers, "progress": vars(self.progress)}
        new = self.checkpoint.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.checkpoint)

    def corpus(self) -> Corpus:
        """Return the current pass over the data, and make its file if necessary. A begun pass without a file is over."""
        file = self.folder / f"pass-{self.progress.number}.npz"
        if not file.exists():
            if self.progress.rows:
                self.progress.number, self.progress.rows = self.progress.number + 1, 0
                return self.corpus()
            self.build(self.progress.number)
        return Corpus.load(file)

    def build(self, number: int) -> None:
        """Write the file with the encoded examples of a pass."""
        examples = trained(self.options.data, self.stage.mixture, number)
        Corpus.encode(examples, self.tokenizer).save(self.folder / f"pass-{number}.npz")

    def build_ahead(self, count: int) -> None:
        """Write the files of the next passes in parallel, because a fast device would otherwise wait for them."""
        numbers = range(self.progress.number + 1, self.progress.number + 1 + count)
        missing = [n for n in numbers if not (self.folder / f"pass-{n}.npz").exists()]
        with multiprocessing.get_context("fork").Pool(min(len(missing), os.cpu_count() or 1) or 1) as pool:
            pool.map(self.build, missing, chunksize=1)

    def loss(self, ids: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum over [rows, length] of the cross-entropy, or of the KL divergence from the teacher."""
        scored = weights > 0
        logits = self.model.lm_head(self.body(ids, use_cache=False).last_hidden_state[scored]).float()
        if self.teacher is None:
            each = F.cross_entropy(logits, labels[scored], reduction="none")
        else:
            with torch.no_grad():
                hidden = self.teacher.model(ids, use_cache=False).last_hidden_state[scored]
                towards = self.teacher.lm_head(hidden).float().log_softmax(-1)
            each = F.kl_div(logits.log_softmax(-1), towards, reduction="none", log_target=True).sum(-1)
        return (each * weights[scored]).sum()

    def step(self, rows: list[Any], factor: float) -> float:
        """Run one step of the optimisers, and return the loss per token."""
        for optimiser, base in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = base * factor
        ids, labels, marks = (torch.stack([torch.from_numpy(r[i]) for r in rows]).to(self.device) for i in range(3))
        weights = torch.where(marks, 1.0, self.stage.user_share)
        total, share = 0.0, max(1.0, float(weights.sum()))
        size = max(1, self.options.micro // self.stage.length)
        for part in range(0, len(rows), size):
            piece = slice(part, part + size)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.options.float32):
                loss = self.loss(ids[piece], labels[piece], weights[piece]) / share
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, _ in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=False)
        return total

    def train(self, stopped: list[bool]) -> None:
        """Train until the number of tokens is reached or `stopped` has an item. Save a checkpoint in both cases."""
        began, saved = time.process_time(), time.monotonic()
        most, running, last_tokens = self.options.tokens, 0.0, self.progress.tokens
        while self.progress.tokens < most and not stopped:
            source = self.corpus().rows(self.stage.length, self.progress.rows)
            while batch := [r for _, r in zip(range(self.batch // self.stage.length), source, strict=False)]:
                factor = self.options.rate * rate(self.stage, self.progress.steps, self.progress.tokens / most)
                loss = self.step(batch, factor)
                running = 0.95 * running + 0.05 * loss if running else loss
                p, now, cpu = self.progress, time.monotonic(), time.process_time()
                p.rows, p.steps, p.tokens = p.rows + len(batch), p.steps + 1, p.tokens + len(batch) * self.stage.length
                p.cpu_seconds, began = p.cpu_seconds + cpu - began, cpu
                if p.steps % MEASURED == 0 and self.name == "long":
                    self.measure(running)
                if now - saved > self.options.saved or stopped or p.tokens >= most:
                    print(f"pass {p.number} step {p.steps}  {p.tokens / 1e6:.2f} M tokens  loss {running:.3f}  "
                          f"{(p.tokens - last_tokens) / (now - saved):.0f} tokens/s", flush=True)  # fmt: skip
                    self.save()
                    saved, last_tokens = now, p.tokens
                if stopped or p.tokens >= most:
                    return
            self.progress.number, self.progress.rows = self.progress.number + 1, 0

    @torch.no_grad()
    def measure(self, running: float) -> None:
        """Append the held-out losses, and in some steps sample replies, to files in the stage's folder."""
        p = self.progress
        self.model.eval()
        record = {"step": p.steps, "tokens": p.tokens, "cpu_hours": round(p.cpu_seconds / 3600, 3)}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.options.float32):
            losses = {loss.source: round(loss.mean, 4) for loss in held_out_losses(self.model, self.aside())}
        record |= {"trained": round(running, 4), "held_out": round(sum(losses.values()) / len(losses), 4)}
        log(self.folder / "held_out.jsonl", record | {"sources": losses})
        if p.steps % SPOKEN == 0:
            log(self.folder / "samples.jsonl", record | {"samples": samples(self.model, self.tokenizer)})
        self.model.train()

    def aside(self) -> Corpus:
        """Return the held-out examples, which are never trained on."""
        file = self.options.work / "aside.npz"
        if not file.exists():
            Corpus.encode(set_aside(self.options.data), self.tokenizer).save(file)
        return Corpus.load(file)


def prepare(options: argparse.Namespace) -> Run:
    """Return the run of the requested stage. A run with a checkpoint continues; `last` can begin with the long stage's."""
    (options.work / options.stage).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    if options.stage == "draft":
        teacher = Phi3ForCausalLM.from_pretrained(options.towards, dtype=torch.float32, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.towards, local_files_only=True)
        begin = options.begin and Phi3ForCausalLM.from_pretrained(
            options.begin, dtype=torch.float32, local_files_only=True
        )
        model = begin or draft_of(teacher)
        run = Run("draft", options, tokenizer, model.to(options.device).train(), teacher.to(options.device).eval())
    else:
        if options.begin:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(options.begin, local_files_only=True)
            model = Phi3ForCausalLM.from_pretrained(options.begin, dtype=torch.float32, local_files_only=True)
        else:
            folder = options.work / "tokenizer"
            tokenizer = train_tokenizer([] if folder.exists() else vocabulary_texts(options.data), folder)
            model = Phi3ForCausalLM(demo_config(options.shape))
        run = Run(options.stage, options, tokenizer, model.to(options.device).train())
    long_checkpoint = options.work / "long" / "checkpoint.pt"
    run.progress.number = options.first_pass
    if run.checkpoint.exists():
        run.load(run.checkpoint)
        print(f"resuming: {run.progress}", flush=True)
    elif options.stage == "last" and not options.begin:
        if not long_checkpoint.exists():
            raise SystemExit(f"{long_checkpoint} is not there; let `train_demo.py long` run first.")
        run.load(long_checkpoint)
    return run


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--data", type=Path, required=True, help="the folder with chat.jsonl.xz and text.jsonl.xz")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and encoded text; outside git")
    parser.add_argument("--tokens", type=float, default=math.inf, help="of this stage, over all sittings")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ahead", type=int, default=0, help="passes to make before the training, a process each")
    parser.add_argument("--shape", choices=("small", "large"), default="small")
    parser.add_argument("--batch", type=int, help="tokens a step")
    parser.add_argument("--micro", type=int, help="tokens a forward")
    parser.add_argument("--saved", type=float, default=180, help="seconds between checkpoints")
    parser.add_argument("--begin", type=Path, help="go on from this model, in its shape and with its tokenizer")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="a factor on the rates: below 1 where a stage is done again"
    )
    parser.add_argument(
        "--mean",
        type=float,
        metavar="SHARE",
        help="end with a mean of the weights: so much of those after, else before",
    )
    parser.add_argument("--first-pass", type=int, default=0, help="where a stage is done again: other variations")
    parser.add_argument("--towards", type=Path, default=Path("localspec/demo"), help="whose draft model to train")
    parser.add_argument("--float32", action="store_true", help="no bfloat16: for processors without such arithmetic")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (needs a C++ compiler)")
    options = parser.parse_args()
    if options.mean is not None and not 0 < options.mean < 1:
        parser.error(f"--mean {options.mean} is no share between 0 and 1.")
    if options.mean and not options.begin:
        parser.error("--mean needs --begin: the weights to take the mean with.")
    options.micro = options.micro or MICRO.get(torch.device(options.device).type, MICRO["cpu"])
    return options


def main() -> None:
    options = parse_options()
    if options.stage != "long" and math.isinf(options.tokens):
        raise SystemExit(f"The {options.stage} stage needs --tokens: its rate goes down over them.")
    (options.work / options.stage).mkdir(parents=True, exist_ok=True)
    if options.float32:
        muon_in_float32()
    try:
        with FileLock(options.work / options.stage / "lock", timeout=0):
            (options.work / options.stage / "pid").write_text(f"{os.getpid()}\n")
            run = prepare(options)
            if options.ahead:
                run.build_ahead(options.ahead)
            print(f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f} M parameters", flush=True)
            stopped: list[bool] = []
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, lambda *_: stopped.append(True))
            run.train(stopped)
    except Timeout:
        raise SystemExit("This stage is running already.") from None
    if stopped:
        raise SystemExit("Stopped; the same command goes on from here.")
    finish(run)


@torch.no_grad()
def towards_mean(model: Phi3ForCausalLM, before: Phi3ForCausalLM, share: float) -> None:
    """Make each weight a mean of its values before and after training; `share` is the weight of the new value.

    A repeated stage overfits. The mean keeps what both versions know (Wortsman et al. 2022, "Robust fine-tuning of
    zero-shot models").
    """
    for new, old in zip(model.parameters(), before.parameters(), strict=True):
        new.copy_(share * new + (1 - share) * old.to(new.device))


def finish(run: Run) -> None:
    """Write the model in its shipped form, and the record of its training."""
    record = {"device": run.options.device, "seed": SEED, "shape": run.options.shape, "mean": run.options.mean}
    record["rate"] = run.options.rate
    for name in STAGES:
        checkpoint = run.options.work / name / "checkpoint.pt"
        if checkpoint.exists():
            record[name] = torch.load(checkpoint, map_location="cpu", weights_only=True)["progress"]
    if run.teacher:
        record |= agreement(run.model.eval(), run.teacher, run.aside())
    if run.options.mean:
        towards_mean(
            run.model, Phi3ForCausalLM.from_pretrained(run.options.begin, dtype=torch.float32), run.options.mean
        )
    out = run.options.work / ("draft-model" if run.teacher else "model")
    export(run.model, run.tokenizer, out)
    (out.parent / f"{out.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
