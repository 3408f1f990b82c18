"""`localspec ps`: lists the models that `localspec serve` has loaded."""

from typing import Annotated, Any

import typer

from localspec.cli.console import print_json, table, width
from localspec.environment import home
from localspec.paths import Paths
from localspec.quantities import size
from localspec.serving.over_socket import NoServer, lines, server_process
from localspec.text import one_line

app = typer.Typer()


@app.command()
def ps(as_json: Annotated[bool, typer.Option("--json", help="One JSON value instead of a table.")] = False) -> None:
    """List the models that `localspec serve` has loaded, their memory, and the address of the server."""
    socket = Paths(home()).socket
    process = server_process(socket) if socket.exists() else None
    loaded: list[dict[str, Any]] = []
    if process is not None:
        if (answer := next(filter(None, lines(socket, "/localspec/loaded", {})), None)) is None:
            raise NoServer("The server ended before it answered; try again.")
        loaded = answer["loaded"]
    if as_json:
        print_json({"process": process, "socket": str(socket) if process else None, "models": loaded})
        return
    if process is None:
        typer.echo("Nothing is running; `localspec serve` keeps a model loaded.")
        return
    if loaded:
        rows = [[model["name"], size(model["bytes"]), model["device"]] for model in loaded]
        typer.echo("\n".join(table([["NAME", "MEMORY", "DEVICE"], *rows], right={1}, width=width())))
    else:
        typer.echo("No model is loaded; the next request loads one.")
    typer.echo(one_line(f"Process {process} is listening at {socket}"))
