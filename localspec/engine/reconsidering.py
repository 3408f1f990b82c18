"""A process that lives long chooses its drafter anew, as each new one does: by what was measured since."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from localspec.choosing.choose import choices, requested_drafter
from localspec.choosing.measure import MeasurementCache, Measurements
from localspec.config import Settings
from localspec.engine.engine import Engine, phrases_allowed
from localspec.errors import LocalspecError
from localspec.events import Reporter
from localspec.machine.machine import Machine, this_machine
from localspec.models.model import model_of
from localspec.store.store import Store


def reconsidered(engine: Engine, settings: Settings, store: Store | None, reporter: Reporter) -> Engine:
    """This engine, or one on the same target with the drafter that `auto` would take now; it begins without a text.

    Costs of a busy moment are measured again if the machine is idle, which takes a second or so.
    """
    if settings.drafter != "auto" or store is None:  # nothing is kept that could tell otherwise
        return engine
    cache, card = MeasurementCache(store, reporter), engine.choice.target
    engine.time_when_idle(cache)
    known = Measurements(cache, settings.exact, settings.context)
    try:
        again, *_ = choices(
            model_of(card), requested_drafter(settings, card), settings, machine_without([engine]), known
        )
        same = (again.drafter, again.trained) == (engine.choice.drafter, engine.choice.trained)
        if not again.loads_as(engine.choice):
            return engine
        if same:
            engine.choice = engine.choice.with_figures_of(again)
            return engine
        kept = phrases_allowed(settings)
        return Engine(again, store=store, phrases=kept, reporter=reporter, beside=engine, park=True)
    except LocalspecError:  # nobody asked for it: what answers goes on answering
        return engine


def machine_without(engines: Iterable[Engine]) -> Machine:
    """This machine as it would be without these engines: with the memory that they hold."""
    machine, given_back = this_machine(), Counter[str]()
    for device, held in (engine.held for engine in engines):
        given_back[device] += held
    devices = (replace(one, free=one.free + given_back[one.name]) for one in machine.devices)
    return replace(machine, devices=tuple(devices))
