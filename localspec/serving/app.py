"""The addresses: what is asked of each, and what it answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import localspec
from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, UsageMistake
from localspec.events import Text
from localspec.models import registry
from localspec.outside_files import parse_json
from localspec.serving.asked import Asked, Refused, chat_request, text_request
from localspec.serving.guard import BadBody, is_socket
from localspec.serving.own import Asking, Opened
from localspec.serving.replies import Shape, broken_off, error
from localspec.serving.room import Answer, Begun, Ended, EngineRoom, Line, Ticket, TooLong
from localspec.serving.turns import TooMany

STATUSES: tuple[tuple[type[LocalspecError], int, str, str | None], ...] = (
    (TooMany, 503, "server_error", "too_many_requests"),
    (TooLong, 400, "invalid_request_error", "context_length_exceeded"),
    (UsageMistake, 400, "invalid_request_error", None),
    (NotHere, 404, "invalid_request_error", "model_not_found"),
    (NotAllowed, 403, "invalid_request_error", None),
    (DoesNotFit, 503, "server_error", "out_of_memory"),
    (LocalspecError, 500, "server_error", None),
)


class Serving:
    """The application over one engine room. `first` is the model that answers where none is named."""

    def __init__(self, room: EngineRoom, first: str) -> None:
        self._room, self._first = room, first
        self._replying: dict[str, Ticket] = {}  # to the user's own commands, by name
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self._answered(chat_request), methods=["POST"]),
            Route("/v1/completions", self._answered(text_request), methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/localspec/open", self._to_own(Opened.of), methods=["POST"]),
            Route("/localspec/reply", self._to_own(Asking.of), methods=["POST"]),
            Route("/localspec/replies/{name}", self.say_more, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {
            HTTPException: self._no_such_address,
            BadBody: self._bad_body,
            LocalspecError: self._refused,
        }
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    # -- what is here -------------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        """Those that a request can name."""
        return self._json({"object": "list", "data": [*self._models().values()]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        found, name = self._models(), request.path_params["name"]
        if name not in found:
            raise NotHere(f"There is no model {name!r} here; there are: {', '.join(found)}.")
        return self._json(found[name])

    async def metrics(self, request: Request) -> Response:
        """Figures for Prometheus."""
        return PlainTextResponse(self._room.metrics.text(self._room.waiting), media_type="text/plain; version=0.0.4")

    def _models(self) -> dict[str, dict[str, Any]]:
        here = [card.name for card, found in registry.installed() if not isinstance(found, LocalspecError)]
        names = dict.fromkeys([self._first, *here])
        return {name: {"id": name, "object": "model", "created": 0, "owned_by": "localspec"} for name in names}

    # -- replies ------------------------------------------------------------------------------------------------------

    def _answered(self, read: Callable[[object], Asked]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            try:
                value = parse_json(body)
            except ValueError as wrong:
                raise Refused(f"The body is no JSON ({wrong}).") from None
            if not _is_text(value):
                raise Refused("A text has half of a surrogate pair, which is no character; correct its \\u escapes.")
            return await self._reply(request, read(value), len(body))

        return answer

    async def _reply(self, request: Request, asked: Asked, size: int) -> Response:
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(answer: Answer) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(answers.put_nowait, answer)

        client = asked.client or (request.client.host if request.client else "")
        ticket = Ticket(asked, client, size, deliver)
        self._room.ask(ticket)
        left = asyncio.ensure_future(_left(request))
        left.add_done_callback(lambda _: ticket.gone.set())  # also where the request itself is cancelled
        try:
            first = await _first(answers, left)
            if first is None:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            begun = _unless_wrong(first)
            assert isinstance(begun, Begun)
            shape = Shape(asked.messages is not None, begun.model, localspec.__version__, begun.start)
            if asked.stream:
                pieces = _pieces(shape, answers, asked.usage_in_stream, left)
                left = None  # type: ignore[assignment]
                self._room.metrics.answered(200)
                headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
                return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)
            texts: list[Text] = []
            while (answer := await _first(answers, left)) is not None:
                answer = _unless_wrong(answer)
                if isinstance(answer, Text):
                    texts.append(answer)
                elif isinstance(answer, Ended):
                    return self._json(shape.whole(texts, answer.done, answer.figures))
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        finally:
            if left is not None:
                left.cancel()

    # -- the user's own commands, which come through the socket alone -------------------------------------------------

    def _to_own(self, read: Callable[[object], Opened | Asking]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            asked = read(await self._from_own(request))
            answers: asyncio.Queue[Answer] = asyncio.Queue()
            loop = asyncio.get_running_loop()

            def deliver(one: Answer) -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    loop.call_soon_threadsafe(answers.put_nowait, one)

            client = request.client.host if request.client else ""
            ticket, ahead = Ticket(asked, client, 0, deliver), self._room.ahead
            self._room.ask(ticket)
            if ahead:
                answers.put_nowait(Line({"ahead": ahead}))
            if isinstance(asked, Asking):
                self._replying[asked.name] = ticket
            left = asyncio.ensure_future(_left(request))
            left.add_done_callback(lambda _: ticket.gone.set())
            return StreamingResponse(self._lines(ticket, answers, left), media_type="application/x-ndjson")

        return answer

    async def say_more(self, request: Request) -> Response:
        """Of a reply under way: in which conversation it is kept, or that it is to be stopped."""
        said = await self._from_own(request)
        ticket = self._replying.get(request.path_params["name"])
        if ticket is not None and isinstance(said, dict):
            if "conversation" in said:
                ticket.named.put(said["conversation"])
            if said.get("stop"):
                ticket.stopped.set()
        return self._json({})

    async def _from_own(self, request: Request) -> Any:
        if not is_socket(request.scope):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        try:
            return parse_json(await request.body())
        except ValueError as wrong:
            raise Refused(f"The body is no JSON ({wrong}).") from None

    async def _lines(
        self, ticket: Ticket, answers: "asyncio.Queue[Answer]", left: "asyncio.Future[None]"
    ) -> AsyncIterator[bytes]:
        try:
            while (answer := await _first(answers, left)) is not None:
                if isinstance(answer, Line):
                    yield json.dumps(answer.value).encode() + b"\n"
                    if answer.value.keys() & {"kept", "server"}:  # the last of a reply, or all of an engine
                        return
                elif isinstance(answer, Exception):
                    known = answer if isinstance(answer, LocalspecError) else LocalspecError("Something went wrong.")
                    yield json.dumps({"error": [type(known).__name__, str(known)]}).encode() + b"\n"
                    return
        finally:
            left.cancel()
            ticket.gone.set()
            if isinstance(ticket.asked, Asking):
                self._replying.pop(ticket.asked.name, None)

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    async def _refused(self, request: Request, trouble: LocalspecError) -> Response:
        _, status, kind, code = next(row for row in STATUSES if isinstance(trouble, row[0]))
        field = trouble.field if isinstance(trouble, Refused) else "model" if isinstance(trouble, NotHere) else None
        answer = self._json(error(str(trouble), kind, param=field, code=code), status)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            answer.headers["Retry-After"] = "1"
        return answer

    async def _no_such_address(self, request: Request, wrong: HTTPException) -> Response:
        sentence = f"There is no {request.method} {request.url.path[:200]} here."
        return self._json(error(sentence, "invalid_request_error"), wrong.status_code)

    async def _bad_body(self, request: Request, wrong: BadBody) -> Response:
        answer = self._json(error(wrong.detail, "invalid_request_error"), wrong.status_code)
        answer.headers["Connection"] = "close"  # what is left of the body is not read
        return answer

    def _json(self, value: Any, status: int = 200) -> JSONResponse:
        self._room.metrics.answered(status)
        return JSONResponse(value, status)


def _is_text(value: object) -> bool:
    """Whether all of its texts are; JSON can name halves of characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


async def _left(request: Request) -> None:
    """Waits until the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(answers: "asyncio.Queue[Answer]", left: "asyncio.Future[None]") -> Answer | None:
    """The next answer; None where the client is gone before."""
    coming = asyncio.ensure_future(answers.get())
    try:
        await asyncio.wait({coming, left}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()  # also where the reply itself is cancelled


def _unless_wrong(answer: Answer) -> Answer:
    if isinstance(answer, LocalspecError):
        raise answer
    if isinstance(answer, Exception):
        raise LocalspecError("Something went wrong inside; what it was stands where the server was started.")
    return answer


async def _pieces(
    shape: Shape, answers: "asyncio.Queue[Answer]", usage: bool, left: "asyncio.Future[None]"
) -> AsyncIterator[bytes]:
    try:
        if (first := shape.first(usage)) is not None:
            yield first
        while True:
            match await _first(answers, left):
                case Text() as text:
                    yield shape.step(text, usage)
                case Ended(done, figures):
                    yield shape.last(done, figures, usage)
                    return
                case LocalspecError() as wrong:
                    yield broken_off(str(wrong))
                    return
                case Exception():
                    yield broken_off("Something went wrong inside; what it was stands where the server was started.")
                    return
                case None:
                    return
    finally:
        left.cancel()
