"""What is measured once on this machine, for one model in one form, and kept: how exact it is, what its rows cost."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from localspec.engine.forward_timing import forward_costs
from localspec.engine.measurements import BUSY, COSTS, REPLIES, subject, with_reply
from localspec.events import Statistics
from localspec.machine.hardware import IdleCores, physical_cores
from localspec.nn.exactness import Exactness, measure
from localspec.nn.target import Target
from localspec.policy.forward_costs import ForwardCosts
from localspec.policy.selection import Choice
from localspec.store.database import StoreTrouble
from localspec.store.store import Store


@dataclass(frozen=True)
class ModelProfile:
    """Figures of a model as a choice loads it. Without a store each is measured anew.

    Troubles are told through `notice`; what takes a while, through `progress`.
    """

    store: Store | None
    subject: str  # what they are valid for
    notice: Callable[[str], None]
    progress: Callable[[str], None]

    @classmethod
    def of(
        cls,
        choice: Choice,
        revision: str,
        store: Store | None,
        notice: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> "ModelProfile":
        """Those of this revision, precision, form, context, and of this machine and version."""
        packing = f"{choice.quantize} above {choice.threshold}" if choice.threshold else choice.quantize
        about = subject(revision, choice.device, choice.dtype, packing, choice.exact, choice.context)
        return cls(store, about, notice, progress)

    def recall(self, name: str) -> Any:
        """What was kept by this name; None where nothing was."""
        return None if self.store is None else self.store.recall(name, self.subject)

    def remember(self, name: str, value: Any) -> None:
        """Keeps it for later sessions, where anything is kept."""
        if self.store is not None and not self.store.read_only:
            try:
                self.store.remember(name, self.subject, value)
            except StoreTrouble as trouble:
                self.notice(str(trouble))

    def exactness(self, target: Target, widest: int, exact: bool) -> Exactness:
        """How exact trees of up to `widest` rows are."""
        found = Exactness.from_json(self.recall("exactness"))
        if found is None or (found.bitwise and found.widest < widest):
            self.progress("measuring how exact this model computes here, once")
            found = measure(target, widest, exact)
            self.remember("exactness", found.as_json())
        return found

    def costs(self, target: Target, idle_cores: IdleCores) -> ForwardCosts:
        """What forwards cost; what a busy moment made of it serves until there is a quiet one."""
        costs, cores = ForwardCosts.from_list(self.recall(COSTS)), idle_cores()
        quiet = cores == physical_cores()
        if costs is None and not quiet:
            costs = ForwardCosts.from_list(self.recall(COSTS + BUSY))
        if costs is None:
            self.progress("measuring what a row costs here, once")
            torch.set_num_threads(cores)
            costs = forward_costs(target)
            self.remember(COSTS if quiet else COSTS + BUSY, costs.as_list())
        return costs

    def reply(self, key: str, said: Statistics) -> None:
        """Adds one reply to what is kept of a drafter here, by its `reply_key`."""
        if said.steps and said.token_ids and self.store is not None and not self.store.read_only:
            with suppress(StoreTrouble):  # the next reply will tell as much, and no sentence is worth it
                self.store.remember(REPLIES, self.subject, with_reply(self.recall(REPLIES), key, said))
