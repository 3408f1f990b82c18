"""The start of `run` and `chat --plain`: the answering engine or server, and the conversation."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec import environment
from localspec.chat.answerer import Answerer
from localspec.chat.conversation import Resumed
from localspec.chat.start import StartedChat, start_chat
from localspec.cli.console import Progress
from localspec.config import LOADED_BY, PREFIX, Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.paths import Paths
from localspec.quantities import short_seconds_of
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec.engine.engine import Engine
    from localspec.serving.server_engine import NamedServer


class ChatAndServer(NamedTuple):
    """A started chat, and the server that answers in it, if the user named one."""

    chat: StartedChat
    server: "NamedServer | None"
    progress: Progress

    def for_chat(self, settings: Settings, card: TargetCard) -> Answerer:
        """Return the engine for this model: on the named server, on a server of this user, or in this process.

        Raises the errors of `Engine.open` and `NamedServer.load`.
        """
        if self.server is not None:
            return self._on_server(self.server, settings, card)
        if settings.server is not None or not os.path.exists(Paths(environment.home()).socket):
            return self._in_process(settings, card)
        from localspec.serving.socket_engine import for_chat

        return for_chat(settings, card, self.progress.reporter, partial(self._in_process, settings, card))

    def for_reply(self, settings: Settings, card: TargetCard, keep: int | None = None) -> Answerer:
        """Return an engine for a single reply, with fewer notices.

        With `keep`, a server answers and stays for that many seconds. If no server runs, start one; a notice reports a
        failure. Raises UsageMistake if a running server has other settings, so that `keep` would have no effect.
        """
        socket = Paths(environment.home()).socket
        if self.server is not None:
            return self._on_server(self.server, settings, card)
        if settings.server is not None or not (keep or os.path.exists(socket)):
            return self._in_process(settings, card)
        from localspec.serving.over_socket import NoServer, ServerDiffers, stop_it
        from localspec.serving.socket_engine import SocketEngine

        system, reporter = self.chat.conversation.system, self.progress.reporter
        open_here = partial(self._in_process, settings, card)
        try:
            with suppress(NoServer):
                return SocketEngine.open(socket, card, settings, system, reporter, open_here, keep)
            if keep:
                trouble = start_server(settings, card, keep, reporter)
                with suppress(NoServer):  # even after a failure: another process may have been faster
                    return SocketEngine.open(socket, card, settings, system, reporter, open_here, keep)
                trouble = trouble or "The server ended before it had loaded the model."
                reporter.notice(f"no server could be used, so this process answers. {trouble}")
        except ServerDiffers as error:
            if keep:
                raise UsageMistake(f"--keep has no effect: {error} Leave --keep out, or {stop_it(socket)}.") from None
        return open_here()

    def _on_server(self, server: "NamedServer", settings: Settings, card: TargetCard) -> Answerer:
        notice, progress = self.progress.notice, self.progress.show
        return server.load(settings, card, store=self.chat.store, notice=notice, progress=progress)

    def _in_process(self, settings: Settings, card: TargetCard) -> "Engine":
        self.progress.show(f"loading {card.name}")  # not earlier: a server has usually loaded it already

        from localspec import Engine  # may import torch, which takes a second

        notice, progress = self.progress.notice, self.progress.show
        return Engine.open(settings, card, store=self.chat.store, notice=notice, progress=progress)


def begin(settings: Settings, resume: Resumed | None, at_the_end: ExitStack, progress: Progress) -> ChatAndServer:
    """Start a chat with the model of the settings. Raises the errors of `start_chat` and `NamedServer.start`."""
    if settings.elsewhere is None:
        return ChatAndServer(start_chat(settings, resume, at_the_end, progress.notice, progress.show), None, progress)
    from localspec.serving.server_engine import NamedServer  # opens connections

    server = NamedServer(settings)
    return ChatAndServer(server.start(resume, at_the_end, progress.notice, progress.show), server, progress)


START_SECONDS = 120.0
LOOK = 0.2


def keep_seconds(length: str, settings: Settings) -> int:
    """Return the value of `--keep` in seconds, such as 600 for `10m`.

    Raises UsageMistake for an invalid length or with `--server`, and LocalspecError on Windows.
    """
    if settings.server is not None:
        raise UsageMistake(f"--keep {length} has no effect with {settings.shown('server')}; leave one of them out.")
    if sys.platform == "win32":
        raise LocalspecError(
            "--keep needs sockets that only their user can open, which Windows lacks; use WSL, or leave --keep out."
        )
    return short_seconds_of(length)


def start_server(settings: Settings, card: TargetCard, seconds: int, reporter: Reporter) -> str:
    """Start a server that loads this model as this process would, and wait until it listens.

    Return an empty text, or the reason why the server ended at once or did not listen in time.
    """
    reporter.progress("starting localspec serve")
    length = f"{seconds}s"
    with tempfile.TemporaryFile() as errors:  # not a pipe: the server outlives its reader
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "serve", "--idle", length, "--keep-alive", length],
            cwd=os.path.abspath(os.sep), env=_environment(settings, card), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout as stream:
            deadline, output = time.monotonic() + START_SECONDS, b""
            while time.monotonic() < deadline:
                if select.select([stream], [], [], LOOK)[0]:
                    output += (piece := os.read(stream.fileno(), 2**12))
                    if b"\n" in output:  # a whole line: writing to a pipe without a reader would end the server
                        return ""
                    if not piece:
                        errors.seek(0)
                        lines = errors.read(2**16).decode("utf-8", "replace").splitlines()
                        message = lines[-1] if lines else "The server ended without a message."
                        return one_line(message.removeprefix("localspec: "))
    process.terminate()
    return f"The server did not start within {START_SECONDS:.0f} s."


def _environment(settings: Settings, card: TargetCard) -> dict[str, str]:
    """Return this process's variables, and variables that make a server load a model as this process would."""
    values = {f"{PREFIX}MODEL": registry.reference(card)}
    for name in LOADED_BY:
        value: Any = getattr(settings, name)
        text = json.dumps(list(value)) if isinstance(value, tuple) else "" if value is None else str(value)
        values[f"{PREFIX}{name.upper()}"] = text.lower() if isinstance(value, bool) else text  # empty counts as unset
    home = {} if environment.home() is None else {environment.HOME: str(environment.home())}
    return {**os.environ, **{name: value for name, value in values.items() if value}, **home}
