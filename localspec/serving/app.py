"""The paths of the HTTP server, and the function that answers requests to each path."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import localspec
from localspec.engine.fit_context import Overlong
from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, UsageMistake
from localspec.events import Text
from localspec.models.chat_tokenizer import Refusal
from localspec.models.registry import TargetCard
from localspec.outside_files import parse_json
from localspec.serving.client_request import ClientRequest, RequestRefused, chat_request, text_request, without_twins
from localspec.serving.guard import BadBody, is_socket, refuse
from localspec.serving.loaded import model_named, models_here
from localspec.serving.over_socket import SIGN_SECONDS as LINE_SECONDS
from localspec.serving.replies import ReplyForm, broken_off, error
from localspec.serving.room import Answer, Ended, EngineRoom, Mailbox, StartedReply, Ticket, TooMany
from localspec.serving.socket_requests import OpenRequest, ReplyRequest

SIGN_SECONDS = 5.0  # a stream without an answer for this long gets a comment, so that its client does not give up
COMMENT = b": waiting\n\n"  # a comment of server-sent events, which clients ignore
INSIDE = "Internal error; the details are in the output of the server."
STATUSES: tuple[tuple[type[LocalspecError], int, str, str | None], ...] = (
    (TooMany, 503, "server_error", "too_many_requests"),
    (Overlong, 400, "invalid_request_error", "context_length_exceeded"),
    (UsageMistake, 400, "invalid_request_error", None),
    (NotHere, 404, "invalid_request_error", "model_not_found"),
    (NotAllowed, 403, "invalid_request_error", None),
    (DoesNotFit, 503, "server_error", "out_of_memory"),
    (LocalspecError, 500, "server_error", None),
)


class Serving:
    """The ASGI application, which passes requests to `room`, the thread of the engines. The model `first` answers a
    request that names no model."""

    def __init__(self, room: EngineRoom, first: TargetCard) -> None:
        self._room, self._first = room, first
        self._replying: dict[str, Ticket] = {}  # replies to the user's own commands, by name
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self._answer_request(chat_request), methods=["POST"]),
            Route("/v1/completions", self._answer_request(text_request), methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/localspec/open", self._answer_command(OpenRequest.of), methods=["POST"]),
            Route("/localspec/loaded", self.loaded, methods=["POST"]),
            Route("/localspec/reply", self._answer_command(ReplyRequest.of), methods=["POST"]),
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
        """Return the models that a request can name."""
        cards = await asyncio.to_thread(models_here, self._first)  # it searches the disk
        return self._json({"object": "list", "data": [*map(_model_entry, cards.values())]})

    async def model(self, request: Request) -> Response:
        """Return one model that a request can name."""
        card = await asyncio.to_thread(model_named, request.path_params["name"], self._first)
        return self._json(_model_entry(card))

    async def metrics(self, request: Request) -> Response:
        """Return the counters of all replies, in Prometheus' format."""
        return PlainTextResponse(self._room.metrics.text(self._room.waiting), media_type="text/plain; version=0.0.4")

    # -- replies ------------------------------------------------------------------------------------------------------

    def _answer_request(self, read: Callable[[object], ClientRequest]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            parsed = await asyncio.to_thread(_parse_body, body, read)  # parsing a large body takes half a second
            return await self._reply(request, parsed, len(body))

        return answer

    async def _reply(self, request: Request, parsed: ClientRequest, size: int) -> Response:
        left, streams = asyncio.ensure_future(_wait_for_disconnect(request)), False
        try:
            box = self._put(parsed, parsed.client or (request.client.host if request.client else ""), size, left)[1]
            if parsed.stream:
                batches = _batches(SIGN_SECONDS, box)
                if (first_batch := await anext(batches, None)) is None:
                    return Response(status_code=HTTPStatus.BAD_REQUEST)
                if first_batch:
                    _first_answer(first_batch[0])  # an error has a status only until the headers are sent
                pieces = _pieces(parsed, first_batch, batches, left)
                streams = True  # from here on, the stream cancels `left` when it ends
                self._room.metrics.answered(200)
                headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
                return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)
            if (first := await box.next()) is None:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            shape = _reply_form(parsed, _first_answer(first))
            texts: list[Text] = []
            while (answer := await box.next()) is not None:
                answer = _unless_wrong(answer)
                if isinstance(answer, Text):
                    texts.append(answer)
                elif isinstance(answer, Ended):
                    return self._json(shape.whole(texts, answer.done, answer.figures))
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        finally:
            if not streams:
                left.cancel()

    def _put(
        self, parsed: ClientRequest | OpenRequest | ReplyRequest, client: str, size: int, left: "asyncio.Future[None]"
    ) -> tuple[Ticket, Mailbox[Answer]]:
        """Put a request in the queue. Return its ticket, and the mailbox for its answers. The future `left` is done
        when the client has disconnected. Raises TooMany."""
        box = Mailbox[Answer](left)
        ticket = Ticket(parsed, client, size, box.deliver)
        left.add_done_callback(lambda _: ticket.disconnected.set())  # even if the request itself is cancelled
        self._room.ask(ticket)
        return ticket, box

    # -- the user's own commands, which come only through the socket --------------------------------------------------

    def _answer_command(self, read: Callable[[object], OpenRequest | ReplyRequest]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            parsed = read(await self._of_command(request))
            ahead, left = self._room.ahead, asyncio.ensure_future(_wait_for_disconnect(request))
            try:
                ticket, box = self._put(parsed, request.client.host if request.client else "", 0, left)
            except TooMany:
                left.cancel()
                raise
            if isinstance(parsed, ReplyRequest):
                self._replying[parsed.name] = ticket
            return StreamingResponse(self._lines(ticket, box, ahead, left), media_type="application/x-ndjson")

        return answer

    async def say_more(self, request: Request) -> Response:
        """Take a client's message about a running reply: the id of its saved conversation, or a request to stop."""
        message = await self._of_command(request)
        ticket = self._replying.get(request.path_params["name"])
        if ticket is not None and isinstance(message, dict):
            if "conversation" in message:
                ticket.conversation.put(message["conversation"])
            if message.get("stop"):
                ticket.stopped.set()
        return self._json({})

    async def loaded(self, request: Request) -> Response:
        """Return the loaded models with their memory."""
        await self._of_command(request)
        return Response(_line({"loaded": self._room.metrics.loaded}), media_type="application/x-ndjson")

    async def _of_command(self, request: Request) -> Any:
        if not is_socket(request.scope):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return await asyncio.to_thread(_json_in, await request.body())

    async def _lines(
        self, ticket: Ticket, box: Mailbox[Answer], ahead: int, left: "asyncio.Future[None]"
    ) -> AsyncIterator[bytes]:
        try:
            if ahead:
                yield _line({"ahead": ahead})
            async for answers in _batches(LINE_SECONDS, box):
                ahead = 0 if answers else ahead
                lines = [_command_line(answer) for answer in answers]
                yield b"".join(line for line, _ in lines) if answers else _line({"ahead": ahead})  # a sign of life
                if any(over for _, over in lines):
                    return
        finally:
            left.cancel()
            ticket.disconnected.set()
            if isinstance(ticket.request, ReplyRequest):
                self._replying.pop(ticket.request.name, None)

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    async def _refused(self, request: Request, trouble: LocalspecError) -> Response:
        status, value = _wrong(trouble)
        answer = self._json(value, status)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            answer.headers["Retry-After"] = "1"
        return answer

    async def _no_such_address(self, request: Request, wrong: HTTPException) -> Response:
        path = request.url.path[:200]
        sentence = f"There is no {request.method} {path} here; the API for chats is at /v1/."
        if wrong.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            sentence = (
                f"{path} does not take {request.method}; use {(wrong.headers or {}).get('Allow', 'another method')}."
            )
        return self._json(error(sentence, "invalid_request_error"), wrong.status_code)

    async def _bad_body(self, request: Request, wrong: BadBody) -> Response:
        self._room.metrics.answered(wrong.status_code)
        return _LastWord(wrong.detail, wrong.status_code)

    def _json(self, value: Any, status: int = 200) -> JSONResponse:
        self._room.metrics.answered(status)
        return JSONResponse(value, status)


class _LastWord(Response):
    """A response that refuses a request before its whole body has arrived. The rest of the body is discarded."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sentence = bytes(self.body).decode()
        await refuse(send, self.status_code, sentence, "invalid_request_error", rest=receive)


def _model_entry(card: TargetCard) -> dict[str, Any]:
    """Return the entry of a model in the list of models. `created` is the modification time of the model's files."""
    created = 0
    with suppress(OSError):
        created = int(card.path.stat().st_mtime)
    return {"id": card.name, "object": "model", "created": created, "owned_by": "localspec"}


def _is_text(value: object) -> bool:
    """Return whether all strings in a JSON value are valid Unicode. A JSON escape can give half a surrogate pair."""
    values = [value]
    while values:
        match values.pop():
            case str() as text:
                try:
                    text.encode()
                except UnicodeEncodeError:
                    return False
            case list() as parts:
                values += parts
            case dict() as entries:
                values += [*entries, *entries.values()]
    return True


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _unless_wrong(answer: Answer) -> Answer:
    if isinstance(answer, LocalspecError):
        raise answer
    if isinstance(answer, Exception):
        raise LocalspecError(INSIDE)
    return answer


def _json_in(body: bytes, pairs: Callable[[Sequence[tuple[str, Any]]], Any] | None = None) -> Any:
    try:
        return parse_json(body, pairs)
    except ValueError as wrong:
        raise RequestRefused(f"The body of the request is not JSON ({wrong}).") from None


def _parse_body(body: bytes, read: Callable[[object], ClientRequest]) -> ClientRequest:
    """Return the request in a body of JSON. Raises RequestRefused."""
    value = _json_in(body, without_twins)
    if not _is_text(value):
        raise RequestRefused("A text has half of a surrogate pair, which is not a character; correct its \\u escapes.")
    return read(value)


def _wrong(trouble: LocalspecError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body that report an error."""
    _, status, kind, code = next(row for row in STATUSES if isinstance(trouble, row[0]))
    default_field = {NotHere: "model", Overlong: "messages", Refusal: "messages"}.get(type(trouble))
    field = trouble.field if isinstance(trouble, RequestRefused) else default_field
    return status, error(str(trouble), kind, param=field, code=code)


def _first_answer(answer: Answer) -> StartedReply:
    """Return the first answer to a request. If it is an error, raise it."""
    started = _unless_wrong(answer)
    assert isinstance(started, StartedReply)
    return started


def _reply_form(parsed: ClientRequest, started: StartedReply) -> ReplyForm:
    return ReplyForm(parsed.messages is not None, started.model, localspec.__version__, started.start)


async def _batches(seconds: float, box: Mailbox[Answer]) -> AsyncIterator[list[Answer]]:
    """Yield lists of answers as they arrive, until the client has disconnected. Yield an empty list whenever no answer
    has arrived for `seconds`."""
    while True:
        try:
            async with asyncio.timeout(seconds):
                first = await box.next()
        except TimeoutError:
            yield []
            continue
        if first is None:
            return
        yield [first, *box.rest()]


async def _pieces(
    parsed: ClientRequest, first_batch: list[Answer], batches: AsyncIterator[list[Answer]], left: "asyncio.Future[None]"
) -> AsyncIterator[bytes]:
    """Yield the pieces of a streamed reply. After each SIGN_SECONDS without an answer, yield a comment (keep-alive).

    `first_batch` has the answers that came before the headers were sent. If it is empty, the stream begins with a
    comment. A later error is sent as a piece of the stream, because the status is already 200.
    """
    usage, shape, answers, over = parsed.usage_in_stream, None, first_batch, False
    try:
        while True:
            content = b"" if answers else COMMENT
            for answer in answers:
                if shape is not None:
                    piece, over = _piece(shape, answer, usage)
                    content += piece
                else:
                    try:
                        shape = _reply_form(parsed, _first_answer(answer))
                        content += shape.first(usage) or b""
                    except LocalspecError as trouble:
                        content, over = broken_off(_wrong(trouble)[1]), True
                if over:
                    break
            yield content
            if over or (next_batch := await anext(batches, None)) is None:
                return
            answers = next_batch
    finally:
        left.cancel()


def _piece(shape: ReplyForm, answer: Answer, usage: bool) -> tuple[bytes, bool]:
    """Return the bytes of an answer in a stream, and whether the stream ends with them."""
    match answer:
        case Text():
            return shape.step(answer, usage), False
        case Ended(done, figures):
            return shape.last(done, figures, usage), True
        case LocalspecError():
            return broken_off(error(str(answer), "server_error")), True
        case Exception():
            return broken_off(error(INSIDE, "server_error")), True
    return b"", False


def _command_line(answer: Answer) -> tuple[bytes, bool]:
    """Return the JSON line of an answer to one of the user's own commands, and whether it is the last line."""
    if isinstance(answer, dict):  # the last of a reply, or everything about an engine
        return _line(answer), bool(answer.keys() & {"kept", "server"})
    if isinstance(answer, Exception):
        trouble = answer if isinstance(answer, LocalspecError) else LocalspecError(INSIDE)
        return _line({"error": [type(trouble).__name__, str(trouble)]}), True
    return b"", False


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
