"""`localspec serve`: answers requests over HTTP."""

import os
import signal
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from localspec import environment
from localspec.cli.console import Progress
from localspec.cli.options import refuse_rule_without_effect, takes_settings, whole_number
from localspec.config import Settings
from localspec.environment import home
from localspec.errors import LocalspecError, UsageMistake
from localspec.paths import Paths
from localspec.quantities import short_seconds_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from localspec.serving.loaded import LoadedModels

app = typer.Typer()


@app.command()
@takes_settings(
    "model", "max_tokens", "context", "drafter", "draft_max", "drafter_rule", "accept", "exact", "pool", "device",
    "dtype", "quantize", "threads", "log",
    max_tokens="The longest reply in tokens, for requests that give no limit.",
    log="Save learned phrases; requests are never saved.",
)  # fmt: skip
def serve(
    *,
    settings: Settings,
    port: Annotated[
        int | None,
        whole_number("--port", least=-(2**63), help="Also listen on this port of this machine; 0: a free one."),
    ] = None,
    keep_alive: Annotated[
        str,
        typer.Option(
            "--keep-alive", metavar="TIME", help="Unload models after this time without a request: 30s, 10m, 2h."
        ),
    ] = "10m",
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="TIME", help="Stop after this long without a request; by default never."),
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Also offer the chat in a browser on this machine; its address works once.")
    ] = False,
) -> int:
    """Serve OpenAI's API on this machine only and keep models loaded.

    The server listens on a socket that only you can use. With --port or --ui it also listens on
    127.0.0.1, where every request needs the key.
    """
    refuse_rule_without_effect(settings)
    if port is not None and not 0 <= port < 2**16:
        raise UsageMistake(f"--port {port} is not a port; give 1 to 65535, or 0 for a free one.")
    alive, rests = short_seconds_of(keep_alive), None if idle is None else short_seconds_of(idle)
    if sys.platform == "win32":
        raise LocalspecError(
            "`localspec serve` needs sockets that only their user can open, which Windows lacks; use WSL."
        )
    progress = Progress(names_waits=False)  # a server that answers shows no waits

    # An engine and an HTTP server are needed from here on.
    from localspec.chat.start import chosen_model
    from localspec.serving.app import Serving
    from localspec.serving.guard import Guard, serving_key
    from localspec.serving.listen import HOST, port_of_this_machine, private_socket, serve
    from localspec.serving.loaded import LoadedModels, would_take
    from localspec.serving.room import EngineRoom
    from localspec.store.store import user_store

    if ui:
        from localspec.serving.browser import Browser, Tabs, page_files

        page_files()  # before a model is searched for
        port = port or 0
    paths = Paths(home())
    with ExitStack() as at_the_end:
        sockets = [at_the_end.enter_context(private_socket(paths.socket))]
        key = None  # the socket needs no key
        if port is not None:
            sockets.append(at_the_end.enter_context(port_of_this_machine(port)))
            key = serving_key(paths.serving_key, progress.notice)
        store = at_the_end.enter_context(user_store(progress.notice, create=settings.log))
        card = chosen_model(settings, store, progress.reporter)
        # Report an impossible configuration here, not at each request.
        would_take(settings, card, store, progress.reporter)

        def opening(_: ExitStack) -> "LoadedModels":
            return LoadedModels(settings, card, store, alive, progress.reporter)

        def end() -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        room = EngineRoom(settings, opening, rests, end)
        app: ASGIApp = Guard(Serving(room, card).app, key)
        url = f"http://{HOST}:{sockets[1].getsockname()[1]}" if port is not None else ""

        def open_by(one_time: str) -> None:
            with suppress(OSError, ValueError):  # there may be no reader any more
                print(f"{url}/?key={one_time} (the chat in a browser; it opens once)", flush=True)

        browser = None
        if ui and key is not None:
            browser = Browser(app, Tabs(f"{url}/v1", key, card.name, log=settings.log), open_by)
        room.start()

        def started() -> None:
            progress.clear()
            print(f"{card.name} answers at {paths.socket}", flush=True)
            if port is not None:
                where = f"${environment.SERVE_KEY}" if environment.serve_key() else paths.serving_key
                print(f"{url}/v1 (the key is in {where})", flush=True)
            if browser is not None:
                open_by(browser.key)

        try:
            serve(browser or app, sockets, started, websockets=ui)
        finally:
            room.close()
        if room.failure is not None:
            raise LocalspecError(room.failure)
    return 0
