"""The dialog that chooses a model."""

import asyncio
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events, work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.text import one_line
from localspec_tui.screens.dialogs import DIALOG_KEYS, SearchedScreen
from localspec_tui.widgets.download_line import DownloadLine
from localspec_tui.widgets.status_line import fitting
from localspec_tui.widgets.typed_text import OneLine

if TYPE_CHECKING:  # models are listed on another thread, which imports this
    from localspec.chat.model_list import Choosable
    from localspec.choosing.survey import DrafterRule
    from localspec.models.registry import TargetCard

HEADINGS = {
    "here": "Here",
    "elsewhere": "Fits this machine, and can be downloaded",
    "too large": "Does not fit this machine",
}
UNMEASURED = "These speeds are estimates. To measure this machine, run localspec doctor."
AROUND = 10  # lines of the dialog outside of the list
LOOK_SECONDS = 0.5  # between two looks at a download


class Chosen(NamedTuple):
    """A chosen model, and whether the model or its drafter must be fetched first."""

    card: "TargetCard"
    fetch: bool


class _ModelSearch(OneLine):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Choose", id="models.choose")]


class ModelsScreen(SearchedScreen[Chosen | None]):
    """A dialog that returns the chosen model, or None.

    `freed` has the device of the present model, and the bytes of memory that become free there when the model is
    unloaded. `pace` is the speed of the present model in words.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="models.back"),
        Binding("ctrl+x", "give_up", "Stop the download", id="models.stop", priority=True),
        Binding("down", "move(1)", "Next", id="models.next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", id="models.previous", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", id="models.page_down", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", id="models.page_up", show=False, priority=True),
        DIALOG_KEYS,
    ]

    def __init__(
        self,
        current: "TargetCard | None",
        freed: tuple[str, int],
        pace: tuple[str, ...],
        download: DownloadLine,
        rule: "DrafterRule" = "auto",
    ) -> None:
        super().__init__(_ModelSearch(placeholder="Which model answers? Type to search", compact=True))
        self._current, self._freed, self._pace = current, freed, pace  # the present model, if there is one
        self._rule = rule  # the rule for drafters
        self._download, self._line = download, Static("", id="download", markup=False)
        self._ended = download.ended
        self._models: Sequence[Choosable] = ()
        self._complete = False  # whether all of them are listed
        self._listed: Sequence[Choosable | None] = ()  # the content of each line; None is a heading

    def _below(self) -> Iterable[Widget]:
        return (self._line,)

    def on_mount(self) -> None:
        self._tell("Checking which models fit this machine …")
        self._options.can_focus = False  # typing goes to the search
        self._follow()
        self.set_interval(LOOK_SECONDS, self._follow)
        self._look()

    @work(exclusive=True)
    async def _look(self) -> None:
        """List the models that are here. Then add the models that could be fetched, which takes longer."""
        note = ""
        try:
            module = await asyncio.to_thread(import_module, "localspec.chat.model_list")
            self._models = await asyncio.to_thread(module.models_here, self._current)
            self._list()
            self._models, measured = await asyncio.to_thread(
                module.all_models, self._current, self._freed, self._pace, self._rule
            )
            note = "" if measured else UNMEASURED
        except LocalspecError as error:
            note = str(error)
        self._list()
        self._tell(note)
        self._complete = True
        self.call_after_refresh(self._fit)

    # -- the list -----------------------------------------------------------------------------------------------------

    def on_input_changed(self, _: Input.Changed) -> None:
        self._list()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._list)  # as much of a line as there is room for
        self.call_after_refresh(self._fit)

    def _list(self) -> None:
        words, options = self._search.value, self._options
        chosen = self._model_at(options.highlighted)
        models = [model for model in self._models if model.matches(words)]
        if self._models and not models:
            from localspec.chat.model_list import repository  # imported by then

            models = [*filter(None, [repository(words)])]
        listed: list[Choosable | None] = []
        for place in HEADINGS:
            if group := [model for model in models if model.place == place]:
                listed += [None, *group]
        self._listed = listed
        width = options.scrollable_content_region.width
        options.clear_options()
        options.add_options(self._option(at, width) for at in range(len(listed)))
        usable = [at for at, model in enumerate(listed) if model is not None and model.usable]
        same = (at for at in usable if chosen is not None and self._is(at, chosen))
        answers = (at for at in usable if self._answers(listed[at]))
        options.highlighted = next(same, next(answers, next(iter(usable), None)))
        if not models and self._models:
            options.add_option(Option("Nothing was found. To find a model at the hub, type org/name.", disabled=True))
        self.call_after_refresh(self._place_bar)

    def _place_bar(self) -> None:
        """Set the position of the scroll bar. If the bar appears only after the list has moved, Textual does not."""
        self._options.vertical_scrollbar.position = self._options.scroll_y

    def _fit(self) -> None:
        """Make the dialog as high as the whole list, and keep this height during a search, so that nothing moves."""
        limit = max(self.size.height * 9 // 10 - AROUND, 3)
        if self.has_class("-narrow"):
            self._options.styles.height = None
        elif not self._complete:
            self._options.styles.height = limit
        elif not self._search.value:
            self._options.styles.height = min(self._options.virtual_size.height, limit)

    def _model_at(self, line: int | None) -> "Choosable | None":
        return self._listed[line] if line is not None and line < len(self._listed) else None

    def _is(self, line: int, model: "Choosable") -> bool:
        other = self._listed[line]
        return other is not None and (other.title, other.place) == (model.title, model.place)

    def _answers(self, model: "Choosable | None") -> bool:
        return model is not None and model.place == "here" and model.card == self._current

    def _option(self, line: int, width: int) -> Option:
        model = self._listed[line]
        if model is None:
            below = self._listed[line + 1]
            assert below is not None
            space = "\n" if line else ""
            return Option(Content.assemble(space, (HEADINGS[below.place], "bold")), disabled=True)
        state = " (answers now)" if self._answers(model) else ""
        about = one_line(model.about[0]) if not model.usable else fitting([*map(one_line, model.about)], width)
        return Option(
            Content.assemble(one_line(model.heading) + state, "\n", (about, "dim")), disabled=not model.usable
        )

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        if not self._scroll_beyond(step):
            super().action_move(step)

    def action_page(self, step: int) -> None:
        if self._scroll_beyond(step):
            return
        options = self._options
        if step > 0:
            options.action_page_down()  # type: ignore[no-untyped-call]
        else:
            options.action_page_up()  # type: ignore[no-untyped-call]
        if options.highlighted is None:  # there is no other line in this direction
            (options.action_last if step > 0 else options.action_first)()

    def _scroll_beyond(self, step: int) -> bool:
        """If no model follows that can be chosen, scroll to the end (1) or start (-1). Return whether this scrolled."""
        options = self._options
        usable = [at for at, model in enumerate(self._listed) if model is not None and model.usable]
        if step > 0 and usable and options.highlighted == usable[-1] and options.scroll_offset.y < options.max_scroll_y:
            options.scroll_end(animate=False)
            return True
        if step < 0 and usable and options.highlighted == usable[0] and options.scroll_offset.y > 0:
            options.scroll_home(animate=False)
            return True
        return False

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        self._list()  # the last letters may not have been searched yet
        self._choose(self._model_at(self._options.highlighted))

    def on_option_list_option_selected(self, selected: OptionList.OptionSelected) -> None:
        self._choose(self._model_at(selected.option_index))

    def _choose(self, model: "Choosable | None") -> None:
        if model is not None and model.usable:
            self.dismiss(Chosen(model.card, fetch=model.place != "here"))

    # -- a download ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        line, model = self._line, self._download.model
        if line.display != bool(model):
            line.display = bool(model)
            self.refresh_bindings()
        if model:
            room = self._search.outer_size.width  # the line's own width is known only once it is shown
            line.update(fitting((f"↓ {one_line(model)}", *self._download.parts), room))
        if self._ended != self._download.ended:
            self._ended = self._download.ended
            self._look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that would have no effect now, so that the footer does not show it."""
        return action != "give_up" or bool(self._download.model)

    def action_give_up(self) -> None:
        self._download.give_up()
        self._follow()
