"""The training loop: it learns, and a run that was stopped, killed or divided continues with the same losses."""

import json
import math
import resource
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from clocks import PATIENCE, Clock
from each import each
from golden import matching
from tiny_models import byte_tokenizer, read, write
from training.minimal_drafter import Linears, Options
from transformers import LlamaConfig

from localspec.errors import DoesNotFit, LocalspecError
from localspec.nn.linear_bitsandbytes import adamw_8bit
from localspec.nn.target import Target
from localspec.training import checkpoint, train
from localspec.training.corpus import Corpus, Row, split_rows
from localspec.training.curves import draw
from localspec.training.examples import Example
from localspec.training.target import perplexity
from localspec.training.train import Training, TrainingPlan, has_small_moments, optimizer_class

PLAN = TrainingPlan(batch=256, at_once=256, rate=3e-3, seed=1, distill=True, steps=8)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=300,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=4, pad_token_id=0,
    )  # fmt: skip
    return read(write(tmp_path_factory.mktemp("model"), config, byte_tokenizer(), seed=0)).target


@pytest.fixture(scope="module")
def corpus(target) -> Corpus:
    """Return the letters in turn, from any of them on: the next token is a function of the last one."""
    letters = "abcdefghijklmnop"
    examples = [Example(f"{letters[n % 16 :]}{letters * 3}{letters[: n // 16]}") for n in range(120)]
    return Corpus(target, examples, 64, 256, seed=1)


@pytest.fixture(scope="module")
def processes() -> Accelerator:
    return Accelerator(cpu=True)


@pytest.fixture
def training(target, corpus, processes, tmp_path):
    def make(plan=PLAN, where="a", options=None, corpus=corpus):
        torch.manual_seed(0)
        (tmp_path / where).mkdir(exist_ok=True)
        return Training(Linears(target, options), corpus, plan, tmp_path / where, processes, {})

    return make


def log(training: Training) -> list[dict]:
    return [json.loads(line) for line in (training.directory / "losses.jsonl").read_text().splitlines()]


def weights(training: Training) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.drafter.parameters()]


def same(one: Training, other: Training) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.slow
def test_the_right_offset_learns_the_text_and_any_other_learns_another(training):
    plan = TrainingPlan(batch=512, at_once=512, rate=4e-2, distill=False, steps=90)
    right = training(plan)
    *_, last = right.run()
    assert last.loss < 0.4 and min(line[0] for line in right.measure()) > 0.97
    assert right.corpus.frequencies().count_nonzero() < 30, "the text has few tokens, so wrong ones would be seen"
    # A drafter that learned to predict one token too far is wrong on the right labels.
    wrong = training(plan, "wrong", Options(offset=1))
    list(wrong.run())
    judged = training(plan, "judged")
    judged.drafter.load_state_dict(wrong.drafter.state_dict())
    assert max(line[0] for line in judged.measure()) < 0.3


@pytest.mark.slow
def test_steps_learning_rate_and_progress(training):
    made = training()
    assert torch.equal(made.drafter.frequencies, made.corpus.frequencies())
    seen = list(made.run())
    lines = [line for line in log(made) if "loss" in line]
    assert [line["step"] for line in lines] == [step.step for step in seen] == [*range(1, 9)]
    assert seen[-1].done == 1 and not made.stopped
    rates = [line["rate"] for line in lines]
    assert rates[0] < rates[1] == max(rates) <= PLAN.rate and rates[1:] == sorted(rates[1:], reverse=True)
    assert made.drafter.told == [step / 8 for step in range(8)]
    assert lines[-1]["tokens"] == seen[-1].tokens > 8 * 150
    accuracies = [line for line in log(made) if "accuracy_by_depth" in line]
    assert [line["step"] for line in accuracies] == [0] and len(accuracies[0]["accuracy_by_depth"]) == 2
    assert all(0 <= share <= 1 for share in accuracies[0]["accuracy_by_depth"][0])


@pytest.mark.slow
def test_steps_and_time_to_go_are_estimated_from_the_steps_after_the_first(training, monkeypatch):
    """A training of 36 s: held-out text takes 6 s, the first step 10 s, and any other 2 s."""
    clock, stepping = Clock(), Training._step
    monkeypatch.setattr("localspec.training.train.time", SimpleNamespace(monotonic=clock.perf_counter))

    def step(self, rows, done):
        clock.now += 2 if self.state.step else 10
        return stepping(self, rows, done)

    def evaluate(self, done):
        clock.now += 6
        self.state.looked = self.state.step

    monkeypatch.setattr(Training, "_step", step)
    monkeypatch.setattr(Training, "_evaluate", evaluate)
    monkeypatch.setattr("localspec.training.train.APART", 1000)
    seen = list(training(replace(PLAN, steps=None, hours=36 / 3600)).run())
    assert len(seen) == 11 and [one.steps for one in seen[1:]] == [11] * 10
    assert [round(one.left) for one in seen[1:]] == [*range(18, -1, -2)]


@pytest.mark.slow
@pytest.mark.parametrize(("at", "backwards"), [(1, False), (4, True)])
def test_what_was_stopped_continues_bit_for_bit(training, monkeypatch, at, backwards):
    if backwards:  # groups in another order than the drafter's own: each moment must find its parameter
        groups = lambda self: [{"params": [p], "lr_scale": 1.0} for p in reversed(list(self.parameters()))]  # noqa: E731
        monkeypatch.setattr(Linears, "parameter_groups", groups)
    whole = training(where="whole")
    list(whole.run())
    asked = []
    first = training(where="parted")
    list(first.run(lambda: asked.append(1) or len(asked) == at))
    assert first.stopped and first.state.step == at
    second = training(where="parted")
    assert second.state.step == at and not second.drafter.told
    list(second.run())
    assert log(second) == log(whole) and same(second, whole)
    assert len({line["loss"] for line in log(whole) if "loss" in line}) == 8


@pytest.mark.slow
def test_moments_in_eight_bits_are_kept_too_and_an_old_training_continues_without_them(training, monkeypatch):
    """On a CPU, where bitsandbytes computes the same; the checkpoint says which of the two it is."""
    assert optimizer_class("cpu") is torch.optim.AdamW and not has_small_moments("cpu")
    small = partial(adamw_8bit(), min_8bit_size=16)  # otherwise it keeps such small matrices in fp32
    monkeypatch.setattr("localspec.nn.linear_bitsandbytes.adamw_8bit", lambda: small)
    monkeypatch.setattr(train, "has_small_moments", lambda device: True)
    whole = training(where="whole")
    list(whole.run())
    asked = []
    list(training(where="parted").run(lambda: asked.append(1) or len(asked) == 5))
    assert json.loads((whole.directory / "checkpoint" / "state.json").read_text())["optimizer"] == "AdamW8bit"
    monkeypatch.setattr(train, "has_small_moments", lambda device: False)  # it continues as it began
    second = training(where="parted")
    kept = [state["state1"] for state in second._optimizer.state.values()]
    assert {moment.dtype for moment in kept} == {torch.uint8}
    list(second.run())
    assert log(second) == log(whole) and same(second, whole)
    list(training(where="dense").run(lambda: True))
    path = training(where="dense").directory / "checkpoint" / "state.json"
    state = json.loads(path.read_text())
    assert state.pop("optimizer") == "AdamW"
    path.write_text(json.dumps(state))  # as before the optimiser was recorded
    monkeypatch.setattr(train, "has_small_moments", lambda device: True)
    assert all("exp_avg" in state for state in training(where="dense")._optimizer.state.values())


@pytest.mark.slow
def test_what_was_killed_continues_from_its_checkpoint_and_forgets_what_it_noted_behind_it(training):
    whole = training(where="whole")
    list(whole.run())
    killed = training(where="killed")
    steps = killed.run()
    list(islice(steps, 3))
    killed.save()
    list(islice(steps, 2))  # steps 4 and 5, of which the log knows and the checkpoint does not
    with (killed.directory / "losses.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    again = training(where="killed")
    assert again.state.step == 3
    list(again.run())
    assert log(again) == log(whole) and same(again, whole)


@pytest.mark.slow
@each("left", [False, True])
def test_what_is_left_of_a_log_is_continued(training, left):
    """A log that was deleted, or that a machine which lost power has written in part."""
    first = training(where=f"{left}")
    list(islice(first.run(), 3))
    first.save()
    file = first.directory / "losses.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.unlink()
    if left:
        file.write_bytes(lines[0] + lines[1][:9])
    again = training(where=f"{left}")
    list(again.run())
    assert [line["step"] for line in log(again) if "loss" in line] == [4, 5, 6, 7, 8]
    assert len(log(again)) == 5 + left
    draw(file, file.with_suffix(".svg"), "what is there")


@pytest.mark.slow
@each("apart, expected", [(3, [0, 6, 12, 18, 24]), (10, [0, 10, 20])])
def test_looks_at_held_out_text_are_shares_of_the_training_apart(training, monkeypatch, apart, expected):
    monkeypatch.setattr("localspec.training.train.EVALUATIONS", 5)
    monkeypatch.setattr("localspec.training.train.APART", apart)
    made = training(TrainingPlan(batch=64, at_once=64, rate=1e-3, steps=30), f"{apart}")
    seen = list(made.run())
    assert [line["step"] for line in log(made) if "accuracy_by_depth" in line] == expected
    assert [step.step for step in seen if step.accuracy] == expected[1:]


@pytest.mark.slow
def test_rows_that_are_parted_weigh_what_they_weigh_together(training):
    """A short row of nonsense next to long rows known by heart: a mean of means would give it the weight of a third."""
    learnt = training(TrainingPlan(batch=512, at_once=512, rate=4e-2, distill=False, steps=40), "learnt")
    list(learnt.run())
    long = [row for row in learnt.corpus._block(0, 0)[0] if len(row.tokens) > 50][:2]
    rows, losses = [*long, Row(list(range(40, 52)), [True] * 12)], []
    for at_once in (10_000, 64):
        made = training(TrainingPlan(batch=512, at_once=at_once, rate=0.0, distill=False, steps=10), f"{at_once}")
        made.drafter.load_state_dict(learnt.drafter.state_dict())
        losses.append(made._step(rows, 0.5))
    assert len(split_rows(rows, 64)) == 3 and losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] < 0.6 * sum(made._step([row], 0.5) for row in rows) / 3


@pytest.mark.slow
def test_hours_that_a_kill_lost_count(training):
    """The steps after the last checkpoint are computed again; their time counts all the same."""
    killed = training()
    steps = killed.run()
    list(islice(steps, 3))
    steps.close()
    place = killed.directory / "checkpoint"
    saved = json.loads((place / "state.json").read_text())
    assert saved["step"] == 1, "the first step is kept, whenever the next is due"
    spent = checkpoint.spent(place)
    assert spent > saved["seconds"]
    again = training()
    assert again.state.step == 1 and again.state.seconds == pytest.approx(spent, abs=1e-3)
    (place / "spent").write_text("7200")
    late = training(replace(PLAN, hours=1.0))
    assert [step.done for step in late.run()] == [] and late.state.seconds == 7200, "nothing is left of its hour"
    for nonsense in ("", "nan", "-3", "inf", "soon"):
        (place / "spent").write_text(nonsense)
        assert checkpoint.spent(place) == 0.0
    assert checkpoint.spent(place / "nowhere") == 0.0


@pytest.mark.slow
def test_limits(training):
    assert len(
        list(training(TrainingPlan(batch=256, at_once=256, rate=1e-3, epochs=0.5), "epochs").run())
    ) == pytest.approx(len(training().corpus._block(0, 0)) / 2, abs=1)
    *_, last = training(TrainingPlan(batch=256, at_once=256, rate=1e-3, hours=0.3 / 3600, steps=10**6), "hours").run()
    assert last.done == 1 and 0.3 <= last.seconds < PATIENCE and last.step < 10**6
    plan = TrainingPlan(batch=1, at_once=1, rate=1, steps=10, hours=2.0, epochs=4.0)
    assert plan.done(5, 0, 0) == 0.5 and plan.done(1, 5400, 0) == 0.75 and plan.done(0, 0, 9) == 1.0


@pytest.mark.slow
def test_gradients_are_clipped(training, monkeypatch):
    monkeypatch.setattr("localspec.training.train.CLIP", 1e-3)
    made = training()
    made._step(made.corpus._block(0, 0)[0], 0.5)
    norm = torch.stack([parameter.grad.norm() for parameter in made.drafter.parameters()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.slow
def test_each_forward_has_random_numbers_of_its_own(training, monkeypatch):
    seeds, honest = [], Linears.loss

    def noted(self, batch):
        if torch.is_grad_enabled():
            seeds.append(batch.generator.initial_seed())
        return honest(self, batch)

    monkeypatch.setattr(Linears, "loss", noted)
    list(training(TrainingPlan(batch=256, at_once=128, rate=1e-3, steps=4)).run())
    assert len({*seeds}) == len(seeds) > 4


@pytest.mark.slow
def test_all_held_out_text_is_measured_in_the_end_and_a_row_at_least_in_between(training, target):
    examples = [Example(f"the cat {number} sat on the mat") for number in range(250)]
    made = training(corpus=Corpus(target, examples, 64, 256, seed=1))
    rows, honest = [], made.drafter.loss
    made.drafter.loss = lambda batch: rows.extend(batch.tokens) or honest(batch)
    for tokens, expected in ((None, len(made.corpus.held_out)), (1, 1)):
        rows.clear()
        made.measure(tokens)
        assert len(rows) == expected
    assert len(made.corpus.held_out) > 1


@pytest.mark.slow
def test_groups_learn_at_their_own_rate_and_small_ones_are_not_decayed(training, monkeypatch):
    groups = lambda self: [  # noqa: E731
        {"params": list(self.matrices), "lr_scale": 0.0},
        {"params": [self.bias], "lr_scale": 2.0},
    ]
    monkeypatch.setattr(Linears, "parameter_groups", groups)
    made = training()
    list(made.run())
    assert not torch.equal(made.drafter.bias, torch.zeros_like(made.drafter.bias))
    assert all(torch.equal(matrix, torch.eye(32)) for matrix in made.drafter.matrices)
    assert {group["weight_decay"] for group in made._optimizer.param_groups} == {0.01, 0.0}


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_training(training):
    made = training()
    with torch.no_grad():
        made.drafter.bias.fill_(math.nan)
    with pytest.raises(LocalspecError, match=matching("loss_step_1_nan")):
        list(made.run())
    assert not (made.directory / "checkpoint").exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_former_checkpoint(training):
    made = training()
    steps = made.run()
    next(steps)
    made.save()
    next(steps)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(DoesNotFit, match=matching("no_room_for_a_checkpoint")):
            made.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(file.name for file in (made.directory / "checkpoint").iterdir()) == [
        "spent",
        "state.json",
        "step-1.safetensors",
    ]
    assert training().state.step == 1


DAMAGE = [
    lambda path: (path / "state.json").write_text("{"),
    lambda path: (path / "state.json").write_text('{"tensors": 3}'),
    lambda path: next(path.glob("*.safetensors")).write_bytes(b"short"),
    lambda path: next(path.glob("*.safetensors")).unlink(),
    lambda path: checkpoint.save(path, 9, {"x": torch.ones(1)}, {"step": 9}),
]


@pytest.mark.slow
@each("place", range(len(DAMAGE)))
def test_a_damaged_checkpoint_is_reported(training, place):
    made = training(where=f"{place}")
    next(made.run())
    made.save()
    DAMAGE[place](made.directory / "checkpoint")
    with pytest.raises(LocalspecError, match=matching("give_force_to_begin_anew")):
        training(where=f"{place}")


@pytest.mark.slow
def test_what_a_killed_removal_leaves_is_no_checkpoint(training, monkeypatch):
    made = training()
    next(made.run())
    made.save()

    def killed(directory, **_):
        next(directory.glob("*.safetensors")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.remove(made.directory / "checkpoint")
    monkeypatch.undo()
    assert (made.directory / "checkpoint").exists() and training().state.step == 0
    checkpoint.remove(made.directory / "checkpoint")
    assert not (made.directory / "checkpoint").exists()
    checkpoint.remove(made.directory / "checkpoint")


def test_tensors_that_are_missing_are_named(tmp_path):
    checkpoint.save(tmp_path, 9, {"x": torch.ones(1)}, {"step": 9})
    (tmp_path / "step-9.safetensors").unlink()
    with pytest.raises(LocalspecError, match=matching("lacks_step_9_safetensors_give_force")):
        checkpoint.load(tmp_path)


GOOD = {"asked": {"asked": {}, "options": {}}, "at_once": 1, "tensors": "x"}


@each(
    "state",
    [
        [],
        None,
        3,
        {**GOOD, "asked": {}},
        {**GOOD, "asked": 5},
        {**GOOD, "at_once": "1"},
        {**GOOD, "tensors": None},
        {**GOOD, "asked": {"asked": [], "options": {}}},
        {**GOOD, "asked": {"asked": {}, "options": 1}},
    ],
)
def test_a_state_of_something_else_is_a_damaged_checkpoint(tmp_path, state):
    (tmp_path / "state.json").write_text(json.dumps(GOOD))
    assert checkpoint.state(tmp_path) == GOOD
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(LocalspecError, match=f"{matching('is_damaged')} .*{matching('give_force_to_begin_anew_2')}"):
        checkpoint.state(tmp_path)


@pytest.mark.slow
def test_perplexity_is_that_of_the_plain_formula(target, corpus):
    total, count = 0.0, 0
    for row in corpus.held_out:
        tokens = torch.tensor(row.tokens)
        n = len(tokens)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        logits = target.forward_tensors(tokens, torch.arange(n), mask).logits.log_softmax(-1)
        total -= float(logits[:-1].gather(1, tokens[1:, None]).sum())
        count += n - 1
    assert perplexity(target, corpus.held_out, 128) == pytest.approx(math.exp(total / count), rel=1e-4)
