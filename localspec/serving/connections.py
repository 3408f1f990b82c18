"""Connections as this server has them: a head that does not come in time and one too many are closed, without a word.

Who has no key can do nothing but connect, and must not keep out those who have one.
"""

import asyncio
import socket
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.serving.over_socket import process_at

LOOK_SECONDS = 10.0  # twice that at most is a connection open on which nothing is asked
ENOUGH_FILES = 4096


def connections_of_others() -> int:
    """How many connections to the port there may be: half of the files that a process may have open.

    The limit is raised first, where it is low and may be.
    """
    if sys.platform == "win32":
        return ENOUGH_FILES // 2
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return (ENOUGH_FILES if soft == resource.RLIM_INFINITY else min(soft, ENOUGH_FILES)) // 2


class Connection(H11Protocol):
    """One of a client; through the user's own socket, `client` names the process that it belongs to."""

    most = ENOUGH_FILES // 2  # to the port at a time
    other = False  # whether it is to the port
    _seen: object = ...  # the request of the look before; None where there was none

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It is looked at from now on."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == getattr(socket, "AF_UNIX", None):
            # Requests of one program wait behind each other, and not before another's.
            self.client = (f"process {number}", 0) if (number := process_at(connection)) else None
        else:
            self.other = True
            if sum(getattr(one, "other", False) for one in self.connections) > self.most:
                transport.abort()
                return
        self.loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Closes a connection on which from one look to the next no request had a whole head."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # or it is a websocket now
            return
        if self.conn.their_state is h11.IDLE and self._seen is self.cycle:
            self.transport.close()
            return
        self._seen = self.cycle
        self.loop.call_later(LOOK_SECONDS, self._look)
