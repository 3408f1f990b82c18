"""Asks whether to fetch a model, after the hub has reported its size."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from localspec.quantities import size
from localspec.text import one_line
from localspec_tui.screens.dialogs import DIALOG_KEYS, Dialog

if TYPE_CHECKING:
    from localspec.pulling.pull import Planned


class DownloadScreen(Dialog[bool | None]):
    """A dialog that returns True if the user agreed to the download."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "agree", "Download", id="download.agree"),
        Binding("escape", "dismiss(None)", "Back", id="download.back"),
        DIALOG_KEYS,
    ]

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._planned: Planned | None = None

    def content(self) -> ComposeResult:
        yield Static(one_line(f"Download {self._model}?"), markup=False, classes="question")
        yield Static("Asking the hub about this model …", markup=False, id="plan")

    def on_mount(self) -> None:
        self._show()

    def ask(self, planned: "Planned") -> None:
        """Show the plan, and ask whether to fetch the model."""
        self._planned = planned
        if self.is_mounted:
            self._show()

    def _show(self) -> None:
        if self._planned is not None:
            plan = self._planned.plan
            self.query_one("#plan", Static).update("\n".join(map(one_line, _lines(self._planned))))
            question = one_line(f"Download {self._model}, {size(plan.fetch_bytes)}?")
            self.query_one(".question", Static).update(question)
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for the key that agrees to a download until its plan is displayed."""
        return action != "agree" or self._planned is not None

    def action_agree(self) -> None:
        self.dismiss(True)


def _lines(planned: "Planned") -> Iterator[str]:
    plan = planned.plan
    free, done, whole = size(plan.disk_free), size(plan.cached_bytes), size(plan.bytes)
    yield (
        f"{free} are free on the disk; {done} of {whole} are already here."
        if plan.cached_bytes
        else f"{free} are free on the disk."
    )
    for part in plan.parts:
        gated = ", gated: accept its terms at the hub first" if part.gated else ""
        yield f"{part.source}: license {part.license or 'not named'}{gated}."
        yield from part.notes
    if planned.instead:
        yield f"Form: {planned.instead.why}."
    memory = planned.memory.removesuffix(".")
    yield f"Memory: {memory}." if planned.fits is not False else f"The model may not run here: {memory}."
    if planned.drafter:
        yield f"Drafter: {planned.drafter.removesuffix('.')}."
