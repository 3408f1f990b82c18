"""The training loop, the same for all kinds of drafters: each computes its own `loss`.

Every random choice follows from the seed and the step, so a training that was stopped or killed continues with exactly
the same losses. With several processes, each computes its share of a step's rows.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from localspec.errors import LocalspecError, fits_or
from localspec.models.drafter_cards import RANKS
from localspec.nn.cache import TextPrefix
from localspec.training import checkpoint
from localspec.training.corpus import Corpus, Cursor, PaddedRows, Row, split_rows
from localspec.training.readings import Places, Readings
from localspec.training.trainable import Batch, TrainableDrafter

ADAMW = "AdamW"  # the optimiser of checkpoints that do not name one


def rounded_by_chance(x: torch.Tensor, seed: str) -> torch.Tensor:
    """Return fp32 numbers rounded randomly to one of the two nearest bf16 numbers; the nearer one is more likely."""
    generator = torch.Generator(x.device).manual_seed(_seed_number(seed))
    chance = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = (x.view(torch.int32) + chance) & -(2**16)  # bits that bf16 has no room for
    return bits.view(torch.float32).to(torch.bfloat16)


def optimizer_class(device: str, resumed: Mapping[str, Any] | None = None) -> Callable[..., torch.optim.Optimizer]:
    """Return AdamW. On CUDA its moments have eight bits, as in Medusa's training, if bitsandbytes is installed.

    A resumed training uses the optimiser named in `resumed`, the state of its checkpoint.
    """
    if has_small_moments(device) if resumed is None else resumed.get("optimizer", ADAMW) != ADAMW:
        from localspec.nn.linear_bitsandbytes import adamw_8bit  # not available on a Mac

        class_: Callable[..., torch.optim.Optimizer] = adamw_8bit()
        return class_
    return torch.optim.AdamW


def has_small_moments(device: str) -> bool:
    """Return whether an optimiser on this device keeps its moments in eight bits."""
    return torch.device(device).type == "cuda" and find_spec("bitsandbytes") is not None


def trainable_groups(drafter: TrainableDrafter) -> list[tuple[list[torch.nn.Parameter], float]]:
    """Return groups of trained weights, each with the factor by which the learning rate is multiplied."""
    groups = drafter.parameter_groups()
    return [([p for p in group["params"] if p.requires_grad], group["lr_scale"]) for group in groups]


WARM_UP = 0.03  # of the training, in which the learning rate rises
LOWEST = 0.05  # of the highest learning rate: the last one
CLIP = 1.0  # the gradient's largest norm
WEIGHT_DECAY = 0.01  # only of matrices
BETAS = (0.9, 0.95)
EVALUATIONS = 10  # on held-out text, while a training lasts
APART = 10  # steps between two of them, at least
EVALUATED = 1024  # tokens of held-out text in one of them


@dataclass(frozen=True)
class TrainingPlan:
    """The settings and limits of a training. The first limit that is reached ends it; at least one is given.

    With `distill` the drafter learns the target's probabilities, otherwise the tokens of the text.
    """

    batch: int  # tokens of a step
    at_once: int  # tokens of a forward
    rate: float
    seed: int = 0
    distill: bool = True
    steps: int | None = None
    hours: float | None = None
    epochs: float | None = None
    save_seconds: float = 300.0

    def done(self, steps: int, seconds: float, epochs: float) -> float:
        """Return how much of the training is done, from 0 to 1."""
        limits = ((steps, self.steps), (seconds / 3600, self.hours), (epochs, self.epochs))
        return min(1.0, max(passed / limit for passed, limit in limits if limit is not None))


@dataclass(frozen=True)
class StepReport:
    """A report after a training step, out of about `steps` steps. About `left` seconds remain."""

    step: int
    loss: float
    done: float
    tokens: int  # so far
    seconds: float  # of the training, over all sessions
    steps: int
    left: float
    accuracy: Sequence[Sequence[float]] | None = None  # on held-out text, if it was measured after this step


@dataclass
class TrainingState:
    """The progress of a training, which is saved in a checkpoint's state.json."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epochs: float = 0.0
    place: Cursor = field(default_factory=Cursor)
    log_bytes: int = 0
    looked: int = -1  # the step after which held-out text was last measured; first before step 1
    loss: float = math.nan


class Training:
    """A training of one drafter, which continues from its checkpoint if there is one.

    It writes losses.jsonl and checkpoint/ into `directory`. `identity`, the settings of the training, is saved in the
    checkpoint. Raises LocalspecError for a damaged checkpoint.
    """

    _readings: Readings | None = None

    def __init__(
        self,
        drafter: TrainableDrafter,
        corpus: Corpus,
        plan: TrainingPlan,
        directory: Path,
        processes: Accelerator,
        identity: dict[str, Any],
        divided: bool = False,
        readings: Readings | None = None,
    ) -> None:
        """Prepare the training. If `divided`, all processes run the target equally often, because they share its
        layers.

        `readings` are the target's saved outputs for every row of the corpus; with them, the target itself is not run.
        """
        self._readings = readings
        self.drafter, self.target, self.corpus, self.plan = drafter, drafter.target, corpus, plan
        self.directory, self._identity, self._processes, self._divided = directory, identity, processes, divided
        self.state, self.stopped = TrainingState(), False
        self.right_after_right: list[float] = []
        drafter.begin_training(corpus.frequencies().to(self.target.device))
        groups = trainable_groups(drafter)
        self._parameters = [parameter for params, _ in groups for parameter in params]
        loaded = checkpoint.load(directory / "checkpoint")
        new_optimizer = optimizer_class(self.target.device, None if loaded is None else loaded[1])
        self._optimizer = processes.prepare(
            new_optimizer(
                [
                    {"params": some, "scale": scale, "weight_decay": decay}
                    for params, scale in groups
                    for decay in (WEIGHT_DECAY, 0.0)
                    if (some := [parameter for parameter in params if (parameter.ndim > 1) == (decay > 0)])
                ],
                betas=BETAS,
            )
        )
        self._log = directory / "losses.jsonl"
        if loaded is None and readings is not None:
            drafter.fit(map(self._places, corpus.one_pass()))
        self._resume(loaded)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[StepReport]:
        """Train until the plan is done, or until `stop` returns true after a step. In that case set `stopped`.

        Write the checkpoint at the end. Raises LocalspecError for a loss that is NaN or inf, and DoesNotFit if memory
        or disk is too small.
        """
        plan, state = self.plan, self.state
        began = saved = time.monotonic()
        seconds_before = state.seconds
        done = plan.done(state.step, state.seconds, state.epochs)
        since, first = (state.step, done, state.seconds), True  # where the pace is measured from
        if state.looked < 0:
            self._evaluate(done)
        for rows, following, epochs in self.corpus.batches(state.place):
            if done >= 1 and state.step:
                break
            state.loss = self._step(rows, done)
            # All processes agree: the slowest clock decides, and any of them may have been interrupted.
            seconds, stopping = self._maxima(seconds_before + time.monotonic() - began, float(stop()))
            state.step, state.place, state.epochs, state.seconds = state.step + 1, following, epochs, seconds
            if self._processes.is_main_process:
                checkpoint.note_spent(self.directory / "checkpoint", seconds)
            state.tokens += sum(len(row.tokens) for row in rows)
            done, rate = plan.done(state.step, seconds, epochs), plan.rate * _schedule(done)
            self._write_log({"step": state.step, "loss": state.loss, "rate": rate, "tokens": state.tokens})
            due = state.step - state.looked >= max(APART, state.step / (done * EVALUATIONS))
            accuracy = self._evaluate(done) if due and done < 1 else None
            passed = state.step - since[0]
            to_go = passed * (1 - done) / max(done - since[1], 1e-9)
            left = to_go * (seconds - since[2]) / passed
            yield StepReport(
                state.step, state.loss, done, state.tokens, seconds, round(state.step + to_go), left, accuracy
            )
            if first:  # the first step is slower than others, and held-out text was measured before it
                first, since = False, (state.step, done, seconds)
            if stopping and done < 1:
                self.stopped = True
                break
            # The first checkpoint shows whether there is room; from then on a kill loses no count of hours.
            if state.step == 1 or time.monotonic() - saved >= plan.save_seconds:
                self.save()
                saved = time.monotonic()
        self.save()

    def _step(self, rows: list[Row], done: float) -> float:
        """Train on the rows of one step, and return the loss.

        Every token has the same weight, however the rows are divided among processes and forward passes.
        """
        self.drafter.train()
        self.drafter.progress = done
        for group in self._optimizer.param_groups:
            group["lr"] = self.plan.rate * group["scale"] * _schedule(done)
        self._optimizer.zero_grad(set_to_none=True)
        process, worth = self._processes.process_index, sum(row.worth for row in rows)
        total = torch.zeros(1, dtype=torch.float64)
        our_rows = rows[process :: self._processes.num_processes]
        groups = list(split_rows(our_rows, self.plan.at_once))
        forwards = self._most(len(groups))
        for index, some in enumerate(groups):
            share = sum(row.worth for row in some) / worth
            with fits_or(
                f"{batch_tokens(some)} tokens in one forward do not fit in the memory of {self.target.device}; give a "
                "smaller --at-once."
            ):
                batch = self._batch(some, f"{self.plan.seed} {self.state.step} {process} {index}")
                with self._processes.autocast():
                    loss = self.drafter.loss(batch).loss
                if loss.requires_grad:  # texts of a single token give a head nothing to learn
                    self._processes.backward(loss * share)
            total += loss.detach().double().cpu() * share
        self._read_along(forwards - len(groups), rows)
        self._share_gradients()
        mean = float(self._sum(total))
        if not math.isfinite(mean):
            raise LocalspecError(
                f"The loss of step {self.state.step + 1} is {mean}; give a smaller --lr, or start over with --force "
                "and another --dtype."
            )
        self._processes.clip_grad_norm_(self._parameters, CLIP)
        self._update()
        return mean

    def _update(self) -> None:
        """Let the optimiser change the weights. Weights in bf16 are updated one at a time in fp32, and rounded at
        random.

        A usual change is smaller than half of the distance between two bf16 numbers, so rounding to the nearest number
        would always lose it. Random rounding is right on average (Gupta et al. 2015).
        """
        coarse = [parameter for parameter in self._parameters if parameter.dtype == torch.bfloat16]
        gradients = {parameter: parameter.grad for parameter in coarse}
        for parameter in coarse:
            parameter.grad = None
        self._optimizer.step()
        for parameter in self._parameters if coarse else ():
            parameter.grad = None
        for index, parameter in enumerate(coarse):
            if (gradient := gradients.pop(parameter)) is None:
                continue
            parameter.data = parameter.data.float()
            parameter.grad = gradient.float()
            self._optimizer.step()
            parameter.grad = None
            parameter.data = rounded_by_chance(parameter.data, f"{self.plan.seed} {self.state.step} {index}")

    def _batch(self, rows: list[Row], seed: str) -> Batch:
        """Return a batch with the target's outputs, computed in its own precision and without trained changes."""
        padded = PaddedRows.of(rows, self.target.device)
        if self._readings is not None:
            nothing = torch.zeros(*padded.tokens.shape, 0, device=self.target.device)
            generator = torch.Generator().manual_seed(_seed_number(seed))
            return Batch(
                padded.tokens, padded.loss_mask, nothing, self.plan.distill, generator, places=self._places(rows)
            )
        positions = torch.arange(padded.tokens.shape[1], device=self.target.device)
        cached, states = self.drafter.reads_layers, self.drafter.reads_states(self.plan.distill)
        prefix, layers = TextPrefix(cached) if cached else None, None if states else range(max(cached, default=-1) + 1)
        with torch.no_grad():
            places: dict[int, torch.Tensor | None] = dict.fromkeys(self.drafter.reads_inner)
            hidden = self.target.transformer(padded.tokens, positions, padded.causal, prefix, layers, inner=places)
        inner = [state for place in self.drafter.reads_inner if (state := places[place]) is not None]
        number = _seed_number(seed)
        torch.manual_seed(number)
        return Batch(
            padded.tokens, padded.loss_mask, hidden if states else hidden[..., :0], self.plan.distill,
            torch.Generator().manual_seed(number), prefix.closed() if prefix else None,
            torch.cat(inner, -1) if inner else None,
        )  # fmt: skip

    def _places(self, rows: list[Row]) -> Places:
        assert self._readings is not None
        return self._readings.places(rows, self.target.device, self.plan.distill)

    # -- held-out text ------------------------------------------------------------------------------------------------

    def _evaluate(self, done: float) -> list[list[float]]:
        self.state.looked = self.state.step
        self.drafter.progress = done
        return self.measure(EVALUATED)

    def measure(self, tokens: int | None = None) -> list[list[float]]:
        """Return and log the accuracies [depth][rank]: how often the candidate of that rank was right on held-out text.

        `tokens` limits the text. Also set `right_after_right` [depth]: how often the first candidate was right, if the
        first candidates at all earlier depths were right. It is empty for a kind of drafter that does not count this.
        """
        self.drafter.eval()
        rows, total = self.corpus.held_out, 0
        some = [row for row in rows if tokens is None or (total := total + len(row.tokens)) <= tokens] or rows[:1]
        our_rows = some[self._processes.process_index :: self._processes.num_processes]
        sums = torch.zeros(self.drafter.depth, RANKS + 3, dtype=torch.float64)
        groups = list(split_rows(our_rows, self.plan.at_once))
        forwards = self._most(len(groups))
        for index, group in enumerate(groups):
            with torch.no_grad(), self._processes.autocast():
                output = self.drafter.loss(self._batch(group, f"held out {index}"))
            for depth, depth_loss in enumerate(output.depth_losses):
                sums[depth, :RANKS] += depth_loss.hits.cpu()
                sums[depth, RANKS] += depth_loss.count
            if output.chains is not None:
                sums[:, -2:] += output.chains.cpu()
        self._read_along(forwards - len(groups), some)
        sums = self._sum(sums)
        shares = (sums[:, :RANKS] / sums[:, RANKS : RANKS + 1].clamp_min(1)).tolist()
        reached = sums[sums[:, -1] > 0, -2:]
        self.right_after_right = [round(right / all_, 4) for right, all_ in reached.tolist()]
        accuracy = [[round(share, 4) for share in line] for line in shares]
        self._write_log({"step": self.state.step, "accuracy_by_depth": accuracy})
        return accuracy

    # -- stopping and going on ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint. Raises DoesNotFit if the disk is full; the previous checkpoint is then still there."""
        if not self._processes.is_main_process:
            return
        tensors = {f"drafter.{name}": tensor for name, tensor in self.drafter.state_dict().items()}
        for index, parameter in enumerate(self._parameters):
            tensors[f"parameter.{index}"] = parameter
            for name, tensor in self._optimizer.state[parameter].items():
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(tensor)
        state = {**asdict(self.state), "asked": self._identity, "at_once": self.plan.at_once}
        state["optimizer"] = type(getattr(self._optimizer, "optimizer", self._optimizer)).__name__
        if (scaler := self._processes.scaler) is not None:
            state["scaler"] = scaler.state_dict()
        checkpoint.save(self.directory / "checkpoint", self.state.step, tensors, state)

    def _resume(self, loaded: tuple[dict[str, torch.Tensor], dict[str, Any]] | None) -> None:
        if loaded is not None:
            try:
                self._restore(*loaded)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise LocalspecError(
                    f"The checkpoint in {self.directory} does not belong to this training ({error}); give --force to "
                    "start over."
                ) from error
        if self._processes.is_main_process:
            self._log.touch()
            with self._log.open("r+b") as log:  # what was logged after the checkpoint will be logged again
                logged = log.read(self.state.log_bytes)  # fewer, if the log was deleted or power was lost
                log.truncate(logged.rfind(b"\n") + 1)
        self._processes.wait_for_everyone()

    @torch.no_grad()
    def _restore(self, tensors: dict[str, torch.Tensor], stored: dict[str, Any]) -> None:
        weights = {name.removeprefix("drafter."): t for name, t in tensors.items() if name.startswith("drafter.")}
        self.drafter.load_state_dict(weights)
        states: dict[int, dict[str, Any]] = {}
        for index, parameter in enumerate(self._parameters):
            parameter.copy_(tensors[f"parameter.{index}"])
            begins = f"optimizer.{index}."
            states[index] = {name.removeprefix(begins): t for name, t in tensors.items() if name.startswith(begins)}
            if stored.get("optimizer", ADAMW) != ADAMW and states[index]:
                states[index]["step"] = int(states[index]["step"])
        # torch numbers parameters in the order of its groups, which differs from ours.
        number = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        order = [number[id(parameter)] for group in self._optimizer.param_groups for parameter in group["params"]]
        saved = self._optimizer.state_dict()
        saved["state"] = {position: states[index] for position, index in enumerate(order) if states[index]}
        self._optimizer.load_state_dict(saved)
        for index, parameter in enumerate(self._parameters):
            if parameter.dtype == torch.bfloat16:  # torch has rounded finer moments to this type
                whole = {name: value.to(parameter.device) for name, value in states[index].items() if name != "step"}
                self._optimizer.state.get(parameter, {}).update(whole)
        if (scaler := self._processes.scaler) is not None:
            scaler.load_state_dict(stored["scaler"])
        progress = {name: stored[name] for name in asdict(self.state)}
        self.state = TrainingState(**{**progress, "place": Cursor(**progress["place"])})
        self.state.seconds = max(self.state.seconds, checkpoint.spent(self.directory / "checkpoint"))

    def _write_log(self, line: dict[str, Any]) -> None:
        if self._processes.is_main_process:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
                log.flush()
                self.state.log_bytes = log.tell()

    # -- several processes --------------------------------------------------------------------------------------------

    def _share_gradients(self) -> None:
        """Replace each gradient by its sum over all processes. A process without rows counts as zero."""
        if self._processes.num_processes == 1:
            return
        for parameter in self._parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self._sum(gradient)

    def _most(self, reads: int) -> int:
        """Return how many forward passes to run: `reads`, or if the target is divided, the most of any process."""
        return int(self._maxima(float(reads))[0]) if self._divided else reads

    def _read_along(self, times: int, rows: list[Row]) -> None:
        """Run the target `times` times only for the other processes, which need this process's part of each layer."""
        for _ in range(times):
            self._batch(rows[:1], "along")

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self._processes.reduce(value.to(self._processes.device), "sum").to(value.device)
        return summed

    def _maxima(self, *values: float) -> list[float]:
        together = torch.tensor([values], dtype=torch.float64, device=self._processes.device)
        maxima: list[float] = self._processes.gather(together).amax(0).tolist()
        return maxima


def _seed_number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")


def batch_tokens(rows: list[Row]) -> int:
    """Return the number of tokens of a batch of rows, including padding."""
    return len(rows) * max(len(row.tokens) for row in rows)


def _schedule(done: float) -> float:
    """Return the factor on the learning rate: a linear warm-up, then a cosine decay. `done` is the finished share."""
    if done < WARM_UP:
        return (done + WARM_UP / 10) / (WARM_UP * 1.1)
    return LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2
