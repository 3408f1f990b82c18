"""Short memory: one more try with less, a context that ends earlier, and weights that were moved."""

import shutil
from dataclasses import replace

import pytest
from each import each
from golden import matching, wording
from machines import cpu, flat, machine
from reply_statistics import said
from safetensors.torch import load_file, save_file

from localspec.choosing import fit
from localspec.choosing.choose import choose
from localspec.config import Settings
from localspec.decoding.limits import Limits
from localspec.engine import engine as module
from localspec.engine.engine import Engine
from localspec.engine.model_profile import SPILL_FACTOR, SpillWatch
from localspec.errors import DoesNotFit, LocalspecError
from localspec.events import Done, Reporter
from localspec.models.registry import resolve

DEMO = resolve("demo")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make two choices, the first of which never fits in memory; the loads are recorded."""
    first = choose(DEMO, Settings(drafter="phrases"))
    second, loaded, load = replace(first, drafter="none", nodes=0, reason="plain decoding"), [], module.load_target

    def short(choice, reporter):
        loaded.append(choice.drafter)
        if choice == first:
            raise DoesNotFit("demo does not fit in the memory of cpu; choose a smaller model.")
        return load(choice, reporter)

    monkeypatch.setattr(module, "choices", lambda *arguments, **named: [first, second])
    monkeypatch.setattr(module, "load_target", short)
    return loaded


@pytest.mark.slow
def test_what_does_not_fit_is_tried_once_more_with_less_and_it_is_reported(two) -> None:
    told: list[str] = []
    engine = Engine.open(Settings(), DEMO, notice=told.append)
    assert two == ["phrases", "none"] and engine.choice.drafter == "none"
    assert told == [wording("demo_does_fit_memory_cpu_choose")]


@pytest.mark.slow
def test_a_damaged_drafter_that_nobody_named_costs_a_sentence_and_no_reply(tmp_path, monkeypatch) -> None:
    damaged = shutil.copytree(DEMO.path / "drafters" / "medusa", tmp_path / "medusa")
    tensors = load_file(damaged / "drafter.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, damaged / "drafter.safetensors")
    first, second = choose(DEMO, Settings(drafter=str(damaged))), choose(DEMO, Settings(drafter="phrases"))
    monkeypatch.setattr(module, "choices", lambda *arguments, **named: [first, second])
    told: list[str] = []
    assert Engine.open(Settings(), DEMO, notice=told.append).choice.drafter == "phrases"
    assert len(told) == 1 and told[0].startswith(str(damaged)) and second.reason in told[0]
    with pytest.raises(LocalspecError, match="medusa"):
        Engine.open(Settings(drafter=str(damaged)), DEMO)


@pytest.mark.slow
def test_where_there_is_no_less_it_is_refused(two, monkeypatch) -> None:
    monkeypatch.setattr(module, "choices", lambda *arguments, **named: [choose(DEMO, Settings(drafter="phrases"))])
    with pytest.raises(DoesNotFit):
        Engine.open(Settings(), DEMO)
    assert two == ["phrases"]


@pytest.mark.slow
def test_a_memory_that_is_nearly_full_ends_replies_earlier_and_says_so_once(monkeypatch) -> None:
    told: list[str] = []
    engine = Engine.open(Settings(drafter="none", temperature=0.0), DEMO, notice=told.append)
    short = engine.target.cache(1).nbytes // engine.target.cache(1).capacity * 40  # bytes of forty tokens
    whole = machine(cpu(1000))
    full = cpu(1)
    monkeypatch.setattr(module, "this_machine", lambda: whole)
    many = [{"role": "user", "content": "Tell me a long story of a king. " * 15}]  # more than those forty
    *_, done = engine.chat(many, engine.sampling(Settings(temperature=0.0)), Limits(8))
    assert isinstance(done, Done) and len(done.statistics.token_ids) == 8 and told == []
    monkeypatch.setattr(
        module, "this_machine", lambda: machine(replace(full, free=max(full.total // 10, 600 * 10**6) + short))
    )
    room = engine.session.cache.capacity
    assert room > 100
    open_end = [{"role": "user", "content": "Tell me a long story of a king. " * (room // 24)}]
    for _ in range(2):
        *_, done = engine.chat(open_end, engine.sampling(Settings(temperature=0.0)))
        assert isinstance(done, Done) and engine.session.cache.capacity == room
    assert len(told) == 1 and wording("holds_tokens_of_context_now", room=room - 1) in told[0]
    with pytest.raises(DoesNotFit, match=matching("the_memory_of_cpu_holds")):
        list(engine.chat([{"role": "user", "content": "king " * room}], engine.sampling(Settings(temperature=0.0))))


def test_conversations_in_turns_are_parked_in_what_a_full_context_leaves(monkeypatch) -> None:
    engine = Engine.open(Settings(drafter="none", temperature=0.0), DEMO)
    slot = engine.target.cache(1).nbytes // engine.target.cache(1).capacity
    full = cpu(1)

    def leave(tokens: int) -> None:
        """Let `tokens` tokens fit in memory, those of a full context included."""
        held = engine.session.memory.parked
        free = (
            max(full.total // 10, 600 * 10**6) + (engine.context - engine.session.cache.capacity + tokens) * slot - held
        )
        monkeypatch.setattr(module, "this_machine", lambda: machine(replace(full, free=free)))

    def share(tokens: int) -> float:
        """Say something in two conversations in turns, and return how much of the last prompt was not read again."""
        talks = [[{"role": "user", "content": f"{name}, tell me about the sea. " * 8}] for name in ("Ana", "Bob")]
        for _ in range(2):
            for talk in talks:
                leave(tokens)
                *_, done = engine.chat(talk, engine.sampling(Settings(temperature=0.0)), Limits(4))
                talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
        assert isinstance(done, Done)
        return done.statistics.reused_tokens / done.statistics.prompt_tokens

    assert share(10**6) > 0.8 and engine.freed_memory[1] == engine.session.memory.parked > 0
    assert engine.session.parked.budget <= fit.MOST_PARKED
    engine.forget_parked()
    assert engine.session.memory.parked == 0
    assert share(10) < 0.3 and engine.session.memory.parked == 0, "nothing is left of what a full context takes"


@each("left, parked", [(-5, 0), (0, 0), (1000, 500), (2**33 + 2**20, 2**32), (2**40, fit.MOST_PARKED)])
def test_parked_texts_take_half_of_what_a_model_leaves_up_to_a_limit(left: int, parked: int) -> None:
    assert fit.parking(left) == parked


@each(
    "device, times, steps, warns",
    [
        ("cuda:0", 6, 10, True),
        ("cuda:0", SPILL_FACTOR - 1, 10, False),
        ("cuda:0", 6, 3, False),
        ("cpu", 6, 10, False),
    ],
)
def test_steps_that_suddenly_take_many_times_as_long_are_reported_once_on_a_gpu(device, times, steps, warns) -> None:
    notices: list[str] = []
    watch = SpillWatch(device, flat(0.01), Reporter(notices.append))
    for _ in range(2):
        watch.look(said(range(steps + 1), steps=steps, drafted=0, draft=0.0, verify=0.01 * times * steps), tokens=2)
    assert len(notices) == (1 if warns else 0)
    assert not warns or "6 times" in notices[0]


def test_without_costs_nothing_can_be_said_of_a_step() -> None:
    watch = SpillWatch("cuda:0", None, Reporter(pytest.fail))
    watch.look(said(range(99), steps=50, drafted=0, draft=0.0, verify=1e6), tokens=2)
