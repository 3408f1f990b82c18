"""The thread that uses the engines. It answers one request at a time, and delivers the results to the clients."""

import asyncio
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

from localspec import Limits
from localspec.config import Settings
from localspec.engine.report import Report
from localspec.errors import LocalspecError, UsageMistake, first_line
from localspec.events import Done, Prefill, Text
from localspec.machine.memory import is_lost
from localspec.serving.client_request import ClientRequest, RequestRefused
from localspec.serving.loaded import LoadedModels
from localspec.serving.metrics import Metrics
from localspec.serving.socket_requests import NAMED_SECONDS, EventLines, OpenRequest, ReplyRequest, form
from localspec.text import one_line

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """The mailbox of one client. It is made and read on the event loop. Any thread may `deliver` without waiting.

    The future `left` is done when the client is gone.
    """

    def __init__(self, left: "asyncio.Future[None]") -> None:
        self._loop, self._left = asyncio.get_running_loop(), left
        self._arrived: deque[Item] = deque()
        self._something = asyncio.Event()
        self._waits = False  # whether the reader must be woken
        left.add_done_callback(lambda _: self._something.set())

    def deliver(self, item: Item) -> None:
        """Append one item for the client."""
        self._arrived.append(item)
        if self._waits:
            self._waits = False
            with suppress(RuntimeError):  # the loop is closed: there is no reader
                self._loop.call_soon_threadsafe(self._something.set)

    async def next(self) -> Item | None:
        """Wait for the next item and return it; None if the client is gone and no item is left."""
        while not self._arrived:
            if self._left.done():
                return None
            self._something.clear()
            self._waits = True
            if not self._arrived:  # an item that came just before could not know of a reader
                await self._something.wait()
            self._waits = False
        return self._arrived.popleft()

    def rest(self) -> list[Item]:
        """Return all items that have arrived and were not taken yet, without waiting."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]


class TooMany(LocalspecError):
    """An error: more requests wait than there is room for."""


class ClientQueue(Generic[Item]):
    """A queue of requests that serves the clients in turn, one request at a time. Any thread may use it.

    At most `most` items wait, with at most `most_bytes` together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._changed = most, most_bytes, threading.Condition()
        self._queues: OrderedDict[str, deque[tuple[Item, int]]] = OrderedDict()
        self._count = self._bytes = 0
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return self._count

    def put(self, client: str, item: Item, size: int = 0) -> None:
        """Append an item of `size` bytes that `client` sent. Raises TooMany."""
        with self._changed:
            if self._closed or self._count >= self._most or self._bytes + size > self._most_bytes:
                raise TooMany(f"{self._count} requests wait already; ask again later.")
            self._queues.setdefault(client, deque()).append((item, size))
            self._count, self._bytes = self._count + 1, self._bytes + size
            self._changed.notify()

    def next(self, seconds: float | None) -> Item | None:
        """Return the next item; None if none came within `seconds`, or if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._closed, seconds)
            if self._closed or not self._queues:
                return None
            client, queue = self._queues.popitem(last=False)
            item, size = queue.popleft()
            self._count, self._bytes = self._count - 1, self._bytes - size
            if queue:
                self._queues[client] = queue  # this client is now the last one in turn
            return item

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> list[Item]:
        """Close the queue, and return the waiting items."""
        with self._changed:
            self._closed = True
            waiting = [item for queue in self._queues.values() for item, _ in queue]
            self._queues.clear()
            self._changed.notify_all()
            return waiting


WAITING, WAITING_BYTES = 1000, 256 * 2**20  # most waiting requests
CLOSE_SECONDS = 5.0
LONGEST_FAILURE = 200  # characters of the engines' last error
STOPPED = "The server is being stopped."


@dataclass(frozen=True)
class StartedReply:
    """An event: the model begins to read the prompt. `start` has the facts that are known before the reply."""

    model: str
    start: Mapping[str, Any]


@dataclass(frozen=True)
class Ended:
    """An event: a reply is finished. It has the figures of the reply."""

    done: Done
    figures: Mapping[str, Any]


Answer = StartedReply | Text | Ended | dict[str, Any] | Exception  # a dict is a line for one of the user's own commands


@dataclass(frozen=True)
class Ticket:
    """A request that waits or is being answered. `deliver` is called on the engines' thread, and must not wait."""

    request: ClientRequest | OpenRequest | ReplyRequest
    client: str
    size: int  # bytes
    deliver: Callable[[Answer], None]
    disconnected: threading.Event = field(default_factory=threading.Event)  # set when the client has left
    conversation: "Queue[int | None]" = field(default_factory=Queue)  # the conversation in which a reply is saved
    stopped: threading.Event = field(default_factory=threading.Event)  # only the figures are still wanted


class EngineRoom(threading.Thread):
    """The thread that uses the engines. `opening` returns the models; its ExitStack is closed when the thread ends.

    After `idle` seconds without a request, `end` is called once. If the thread cannot continue, `end` is called as
    well, and `failure` is a sentence with the reason.
    """

    def __init__(
        self,
        settings: Settings,
        opening: Callable[[ExitStack], LoadedModels],
        idle: float | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="engines", daemon=True)  # torch cannot be interrupted
        self.metrics = Metrics()
        self._settings, self._opening, self._idle, self._end = settings, opening, idle, end
        self._turns: ClientQueue[Ticket] = ClientQueue(WAITING, WAITING_BYTES)
        self._leaving = threading.Event()
        self._under_way: Ticket | None = None
        self.failure: str | None = None

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait in the queue."""
        return len(self._turns)

    @property
    def ahead(self) -> int:
        """The number of requests, of all clients together, that wait or are being answered."""
        return self.waiting + (self._under_way is not None)

    def ask(self, ticket: Ticket) -> None:
        """Put a request in the queue. Raises TooMany, and LocalspecError after the server has begun to stop."""
        if self._turns.closed:
            raise LocalspecError(self.failure or STOPPED)
        self._turns.put(ticket.client, ticket, ticket.size)

    def close(self) -> bool:
        """Stop the current reply and the queue. Return whether the thread has ended."""
        self._leaving.set()
        for ticket in self._turns.close():
            ticket.deliver(LocalspecError(STOPPED))
        self.join(CLOSE_SECONDS)
        return not self.is_alive()

    def run(self) -> None:
        try:
            with ExitStack() as at_the_end:
                self._take_turns(self._opening(at_the_end))
        except BaseException as error:  # noqa: BLE001  # whatever it was: who waits for this thread would wait for ever
            traceback.print_exc()
            self._give_up(error)

    def _take_turns(self, models: LoadedModels) -> None:
        last_request = time.monotonic()
        while not self._turns.closed:
            seconds = models.rest(lambda: self.waiting > 0 or self._turns.closed)
            self.metrics.loaded = models.loaded
            if self._idle is not None:
                left = last_request + self._idle - time.monotonic()
                if left <= 0:
                    self._idle = None
                    self._end()
                    continue
                seconds = left if seconds is None else min(seconds, left)
            ticket = self._turns.next(seconds)
            if ticket is not None and not ticket.disconnected.is_set():
                self._under_way = ticket
                self._answer(models, ticket)
                self._under_way = None
            if ticket is not None:
                last_request = time.monotonic()

    def _give_up(self, error: BaseException) -> None:
        """Answer all waiting requests with an error, and end the server."""
        description = one_line(f"{type(error).__name__}: {first_line(error)}")[:LONGEST_FAILURE]
        self.failure = f"The server cannot continue ({description}), so it stops; start it again."
        waiting = self._turns.close()
        for ticket in ([self._under_way] if self._under_way else []) + waiting:
            ticket.deliver(LocalspecError(self.failure))
        self._end()

    def _answer(self, models: LoadedModels, ticket: Ticket) -> None:
        try:
            match ticket.request:
                case OpenRequest() as request:
                    if self._idle is not None:
                        self._idle = max(self._idle, request.keep or 0.0)
                    ticket.deliver(request.answer(models, self._settings))
                case ReplyRequest() as request:
                    self._reply_to_command(models, ticket, request)
                case request:
                    self._reply(models, ticket, request)
        except LocalspecError as error:
            ticket.deliver(error)
        except Exception as error:  # one request must not end all others
            if is_lost():
                raise
            traceback.print_exc()
            ticket.deliver(error)

    def _reply_to_command(self, models: LoadedModels, ticket: Ticket, request: ReplyRequest) -> None:
        """Deliver each event of the reply as a line. After the reply is saved, deliver the line `{"kept": FIGURES}`."""
        loaded, _ = models.exactly(request.model, request.path)
        engine, event_lines, started = loaded.engine, EventLines(loaded.engine, request.live), False
        engine.conversation = None
        engine.wanted = lambda: not (ticket.disconnected.is_set() or ticket.stopped.is_set())
        loaded.new_notices.clear()
        try:
            with closing(request.events(engine)) as events:
                ticket.deliver({"engine": form(engine, request.rule)})
                for event in events:
                    started = True
                    if ticket.disconnected.is_set() or ticket.stopped.is_set():
                        break
                    if self._leaving.is_set():
                        raise LocalspecError(STOPPED)
                    for sentence in loaded.news():
                        ticket.deliver({"notice": sentence})
                    ticket.deliver(event_lines.of(event))
                    if isinstance(event, Done):
                        self.metrics.count(event.statistics)
                        break
                if request.kept:  # before the phrases of the reply are saved
                    with suppress(Empty):
                        engine.conversation = ticket.conversation.get(
                            timeout=0 if ticket.disconnected.is_set() else NAMED_SECONDS
                        )
        finally:
            engine.conversation = None
        loaded.touch()
        for sentence in loaded.news():
            ticket.deliver({"notice": sentence})
        statistics = engine.session.statistics if started else None  # otherwise those of another reply
        ticket.deliver({"kept": None if statistics is None else asdict(statistics)})

    def _reply(self, models: LoadedModels, ticket: Ticket, request: ClientRequest) -> None:
        loaded = models.get(request.model)
        engine = loaded.engine
        engine.wanted = lambda: not ticket.disconnected.is_set()
        if request.max_tokens is not None and request.max_tokens > engine.context:
            raise RequestRefused(
                f"'{request.limit_field}' is {request.max_tokens}, but prompt and reply together may have "
                f"{engine.context} tokens; ask for fewer, or leave it out.",
                request.limit_field,
            )
        settings = replace(self._settings, origins={}, **request.sampling)  # flags were meant for all requests
        try:
            sampling = engine.sampling(settings)
        except UsageMistake as error:
            raise RequestRefused(str(error), _field_in(str(error), request.sampling)) from None
        limits = Limits(request.max_tokens or settings.max_tokens, request.stop or settings.stop)
        report = Report.before(engine, sampling, loaded.load_seconds)
        if request.messages is None:
            assert request.text is not None
            unspelled = engine.cannot_spell([{"role": "user", "content": request.text}])
            events = engine.complete(request.text, sampling, limits)
        else:
            messages = list(request.messages)
            if settings.system and messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": settings.system})
            system = messages[0]["content"] if messages[0]["role"] == "system" else None
            if request.think is not None and not engine.target.chat.heeds_switch(system):
                raise RequestRefused(
                    f"'{request.think_field}' has no effect, because the model's chat template has no switch for "
                    "thinking; leave it out.",
                    request.think_field,
                )
            think = engine.thinking(settings, system) if request.think is None else request.think
            unspelled = engine.cannot_spell(messages)
            # Turns are left out only if the request allows it.
            events = engine.chat(messages, sampling, limits, think, whole=request.whole)
        started = False
        with closing(events):
            for event in events:
                if ticket.disconnected.is_set():
                    break
                if self._leaving.is_set():
                    raise LocalspecError(STOPPED)
                if not started:
                    dropped = {"dropped_turns": event.dropped} if isinstance(event, Prefill) else {}
                    ticket.deliver(StartedReply(engine.choice.target.name, {**report.start, **dropped}))
                    started = True
                if isinstance(event, Text):
                    ticket.deliver(event)
                elif isinstance(event, Done):
                    self.metrics.count(event.statistics)
                    notices = {"notices": [unspelled]} if unspelled else {}
                    ticket.deliver(Ended(event, {**report.figures(event.statistics), **notices}))
        loaded.touch()


def _field_in(sentence: str, request: Mapping[str, Any]) -> str | None:
    """Return the field of a request that an error about sampling refers to; None if it refers to no field."""
    return next((name for name in request if name in sentence.replace("-", "_")), None)
