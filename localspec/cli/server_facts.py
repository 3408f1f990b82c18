"""localspec doctor --server URL: facts about the server at an address."""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from localspec import config
from localspec.cli.console import print_json
from localspec.errors import UsageMistake
from localspec.marks import drawable
from localspec.quantities import counted
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec.serving.server import Server


def tell_server(url: str, others: Mapping[str, object], as_json: bool) -> int:
    """Ask a server for its models, and print what it reports. Raises the errors of `Server.open`, UsageMistake for
    `others`."""
    for name in others:
        flag = "--" + name.replace("_", "-")
        raise UsageMistake(f"{flag} has no effect with --server, which is about another machine; leave {flag} out.")
    address = config.load(flags={"server": url}).elsewhere
    if address is None:
        raise UsageMistake("--server off names no server to check; give an address, or leave --server out.")
    from localspec.serving.server import Server  # opens connections

    found = Server.open(address)
    if as_json:
        print_json(_report(found))
    else:
        print(drawable("\n".join(map(one_line, _page(found))), sys.stdout))
    return 0


def _report(server: "Server") -> dict[str, Any]:
    models = [{"model": name, "context": one.context or None} for name, one in server.models.items()]
    return {"server": server.address.url, "program": server.program or None, "models": models, "unread": server.unread}


def _page(server: "Server") -> Iterator[str]:
    if not server.models and not server.unread:
        yield f"{server.address.url} answers but lists no models; a prompt will show whether it speaks this protocol."
        yield f"Try it with: localspec run Hi --server {server.address.url} -m NAME"
        return
    program = server.program or "an OpenAI-compatible server"
    yield f"{server.address.url} is {program}, with {counted(len(server.models), 'model')}."
    for name, one in server.models.items():
        yield f"{name}, which reads {one.context:,} tokens" if one.context else name
    if server.unread:
        yield f"Left out: {counted(server.unread, 'model')} whose names cannot be typed here."
    if server.overheard:
        yield server.overheard[:1].upper() + server.overheard[1:]
    if server.models:
        yield f"Chat with it: localspec chat --server {server.address.url} -m {next(iter(server.models))}"
