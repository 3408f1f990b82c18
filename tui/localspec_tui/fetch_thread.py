"""The thread that downloads a model during the chat, as `localspec pull` does. It has no access to prompts."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from textual.message import Message

from localspec.config import Settings
from localspec.errors import DoesNotFit, LocalspecError, first_line
from localspec_tui import messages

NICENESS = 10  # the current reply comes first


class FetchThread(threading.Thread):
    """A thread that fetches one model after the user has agreed to the plan. Every public method returns at once."""

    def __init__(self, model: str, settings: Settings, post: Callable[[Message], object]) -> None:
        super().__init__(name="fetch", daemon=True)  # a silent server must not keep the program running
        self.model = model  # a registered name, or a repository
        self.bytes: tuple[int, int] | None = None  # bytes that are here, and bytes in all
        self.stage = ""  # work other than fetching, in words
        self._settings, self._post_message = settings, post
        self._agreed, self._given_up = threading.Event(), threading.Event()

    # -- requests of the screen ---------------------------------------------------------------------------------------

    def agree(self) -> None:
        """Start the download, because the user has agreed to the plan."""
        self._agreed.set()

    def give_up(self) -> None:
        """Stop the download. Complete files stay for a later pull, and nothing counts as installed."""
        self._given_up.set()
        self._agreed.set()

    @property
    def given_up(self) -> bool:
        """Return whether the user stopped the download. Stopping may take a moment."""
        return self._given_up.is_set()

    # -- the thread itself --------------------------------------------------------------------------------------------

    def run(self) -> None:
        if sys.platform == "linux":  # where a thread can have its own niceness
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        name = self.model
        try:
            ended = messages.FetchEnded(name, self._fetch(), trouble=False)
        except KeyboardInterrupt as stopped:
            ended = messages.FetchEnded(name, f"The download of {name} was stopped. {stopped}".rstrip(), trouble=False)
        except LocalspecError as error:
            sentence = str(error) if name in str(error) else f"{name} was not fetched: {error}"
            ended = messages.FetchEnded(name, sentence, trouble=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, it costs no chat
            ended = messages.FetchEnded(name, f"Fetching {name} failed: {first_line(error)}.", trouble=True)
        self._post(ended)

    def _fetch(self) -> str:
        """Fetch the model, and return a sentence about the result.

        Raises KeyboardInterrupt if the user stopped the download, and the errors of a pull.
        """
        from localspec.events import Reporter
        from localspec.hub.client import stopping_unless
        from localspec.hub.fetch import too_large
        from localspec.hub.sources import Source
        from localspec.pulling.heads import Converted, NotConverted
        from localspec.pulling.pull import AboutToFetch, AlreadyHere, Fetched, Planned, PullOptions, pull

        # The dialog says whether it fits into memory, so no flag is needed.
        options = PullOptions(force=True, settings=self._settings, quiet=True)
        reporter = Reporter(lambda sentence: self._post(messages.Noticed(sentence)), self._reached)
        events = pull(self.model, options, reporter, self._received)
        with stopping_unless(lambda: not self.given_up), closing(events):
            planned: Planned | None = None
            drafts_for: Source | None = None
            for event in events:
                match event:
                    case AlreadyHere(why):
                        return f"{self.model} is already on this machine; {why}."
                    case Planned():
                        planned = event
                        if not event.plan.fits_on_disk:
                            raise DoesNotFit(too_large(event.plan))
                    case AboutToFetch() if planned is not None:
                        self._post(messages.FetchPlanned(self.model, planned))
                        self._agreed.wait()
                    case Fetched(notices):
                        for sentence in notices:
                            self._post(messages.Noticed(sentence))
                    case Converted(_, model):
                        drafts_for = model
                    case NotConverted(heads, None):
                        self._post(
                            messages.Noticed(
                                f"The drafter heads of {heads} do not name the model that they draft for. Add them to "
                                "that model's entry in models.toml, then run `localspec pull NAME --drafter KIND`."
                            )
                        )
                    case NotConverted(heads, model):
                        self._post(
                            messages.Noticed(
                                f"To use the drafter heads of {heads}, download their model {model}, then download "
                                f"{heads} again."
                            )
                        )
                self._go_on()
        if planned is not None and all(part.heads for part in planned.plan.parts):
            return f"{self.model} is downloaded" + (f", a drafter for {drafts_for}." if drafts_for else ".")
        return f"{self.model} is downloaded. To chat with it, type /model {self.model}."

    def _received(self, done: int, total: int) -> None:
        self.bytes, self.stage = (done, total), ""
        self._go_on()

    def _reached(self, stage: str) -> None:
        self.stage = stage
        self._go_on()

    def _go_on(self) -> None:
        if self.given_up:
            raise KeyboardInterrupt

    def _post(self, message: Message) -> None:
        with suppress(RuntimeError):  # the screen is already gone
            self._post_message(message)
