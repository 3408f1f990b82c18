"""The Hugging Face client, silenced; its errors become sentences, each with an exit code."""

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from localspec.config import nearest
from localspec.environment import hub_places, quiet_hub
from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, first_line
from localspec.hub.pace import obey, pace
from localspec.hub.sources import Source
from localspec.text import one_line

PATIENCE = 10.0  # seconds to wait for an answer about a repository
_LONGEST_ANSWER = 2**26  # bytes of what is said about a repository
_LONGEST_REFUSAL = 2**20  # bytes of an answer that leads elsewhere or says no
_LEAST_PIECE = 64  # bytes that any piece of these counts for: it takes memory and time of its own
_LONGEST = 200  # characters of another library's message
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@cache
def client() -> Any:
    """The module huggingface_hub, which reads its environment variables and makes its logger when first imported."""
    quiet_hub()
    import huggingface_hub

    huggingface_hub.logging.set_verbosity(100)  # each of its warnings is a sentence of ours, or is dealt with
    huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 2**20  # bytes; progress is reported once a piece
    huggingface_hub.set_client_factory(_session)
    return huggingface_hub


def _session() -> Any:
    """An HTTP client that waits for nobody for long, and checks the headers that become names of files."""
    import httpx2

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: Any, most: int) -> None:
            self._stream, self._most = stream, most

        def __iter__(self) -> Iterator[bytes]:
            read = 0
            for part in self._stream:
                read += max(len(part), _LEAST_PIECE)
                if read > self._most:
                    raise LocalspecError(f"{server()} sends an answer without end; try again later.")
                yield part

        def close(self) -> None:
            self._stream.close()

    def bound(response: Any) -> None:
        """Whatever is read as a whole, into memory, has an end. Only a wanted file is read piece by piece."""
        whole, most = response.read, _LONGEST_ANSWER if response.is_success else _LONGEST_REFUSAL

        def read() -> Any:
            response.stream = Bounded(response.stream, most)
            return whole()

        response.read = read

    def check(response: Any) -> None:
        obey(server(), response.status_code, response.headers)
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            # A few bytes may stand for gigabytes, or many for nothing: limits hold for what is sent as it is.
            raise LocalspecError(f"{server()} sends compressed what was asked for as it is; try again later.")
        bound(response)
        # The client joins these to the path of its cache as they come: a slash in them would lead out of it.
        if "x-repo-commit" in response.headers:
            for name in ("etag", "x-linked-etag", "x-repo-commit"):
                if not re.fullmatch(r'(W/)?"?[\w=+:-]*"?', response.headers.get(name, ""), re.ASCII):
                    raise ValueError(f"{name} is {response.headers[name][:80]!r}")

    def check_online(request: Any) -> None:
        must_be_online(str(request.url.host))

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [check_online], "response": [check]}
    plain = {"Accept-Encoding": "identity"}
    return pace(httpx2.Client(headers=plain, event_hooks=hooks, follow_redirects=True, timeout=PATIENCE), server)


def server() -> str:
    """The server's address as it may be shown: without a password in it."""
    return re.sub(r"//[^/@]*@", "//", hub_places().endpoint)


def broke_off(what: str, why: str) -> str:
    return f"The connection to {server()} broke off while {what} was fetched ({why}); try again."


def page(source: Source) -> str:
    """Where a person reads about a repository."""
    return f"{server()}/{source.repo}"


def must_be_online(what: str, instead: str = "") -> None:
    """Raises NotHere where the user forbids requests; `instead` is a sentence about what can be had without any."""
    if hub_places().offline:
        said = f"{what} needs the network, and HF_HUB_OFFLINE forbids it; unset that, and try again. {instead}"
        raise NotHere(said.rstrip())


@contextmanager
def localspec_errors(source: Source, kept: Callable[[], str] = str) -> Iterator[None]:
    """Turns what the client raises into a LocalspecError, followed by the sentence of `kept` about what is not lost."""
    try:
        yield
    except Exception as error:  # the client and its libraries raise exceptions of many classes
        found = error if isinstance(error, LocalspecError) else _error_of(source, error)
        raise type(found)(one_line(f"{found} {kept()}")) from error


def _error_of(source: Source, error: Exception) -> LocalspecError:
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _error_of(source, error.__cause__)  # which hides what kept the client from the network
    if isinstance(error, LocalspecError):
        return error
    where = server()
    if isinstance(error, errors.OfflineModeIsEnabled):
        return NotHere(f"{source} needs the network, and HF_HUB_OFFLINE forbids it; unset that, and try again.")
    if isinstance(error, errors.HfHubHTTPError):
        return _error_of_status(source, error, errors)
    if isinstance(error, httpx2.TooManyRedirects):
        return LocalspecError(f"{where} sends requests for {source} round in circles; try again later.")
    if isinstance(error, httpx2.TimeoutException):
        return LocalspecError(f"{where} did not answer in time about {source}; try again, or later.")
    if isinstance(error, httpx2.ConnectError) and _no_such_name(error):
        return LocalspecError(f"{where} cannot be found; see whether this machine is online, and try again.")
    if isinstance(error, httpx2.ConnectError):
        return LocalspecError(f"{where} cannot be reached ({_first_line(error)}); check the network and try again.")
    if isinstance(error, httpx2.HTTPError) and not isinstance(error, httpx2.UnsupportedProtocol):
        return LocalspecError(broke_off(f"{source}", _first_line(error)))
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DoesNotFit(f"The disk of {hub_places().cache} is full; make room, and try again.")
    if isinstance(error, OSError) and error.errno is not None:
        place = error.filename or hub_places().cache
        return LocalspecError(f"{place} cannot be written ({error.strerror}); correct that, and try again.")
    if isinstance(error, OSError) and "Consistency check" in str(error):
        return LocalspecError(f"{where} sent a file of {source} of another length than it announced; try again.")
    return LocalspecError(
        f"{where} did not answer about {source} as a Hugging Face server does ({_first_line(error)}); "
        "check HF_ENDPOINT, and whether a proxy or a log-in page of this network stands between."
    )


def _error_of_status(source: Source, error: Any, errors: Any) -> LocalspecError:
    """The error for an HTTP status."""
    status, where = error.response.status_code, server()
    if isinstance(error, errors.GatedRepoError):
        if status == 401:
            return NotAllowed(
                f"{source.repo} is gated: visit {page(source)} to accept its terms, then log in here with "
                "`hf auth login`."
            )
        return NotAllowed(
            f"{source.repo} is gated, and the account that is logged in here has no access: visit {page(source)} to "
            "ask for it, or log in as another with `hf auth login`."
        )
    if isinstance(error, errors.DisabledRepoError):
        return NotAllowed(f"{source.repo} was disabled by {where}; choose another model.")
    if isinstance(error, errors.RevisionNotFoundError):
        guess = nearest(source.revision, _revisions(source))
        return NotHere(
            f"{source.repo} has no revision {source.revision!r}{guess}; {page(source)}/tree/main lists them."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotHere(
            f"There is no model {source.repo!r} on {where}{nearest(source.repo, _cached_repositories())}, "
            "or it is private; check the spelling, or log in with `hf auth login`."
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return NotHere(f"{source} lacks a file that it listed a moment ago; try again.")
    if status == 401:
        return NotAllowed(f"{where} does not accept the token of this user; log in again with `hf auth login`.")
    if status == 403:
        return NotAllowed(
            f"{where} forbids access to {source.repo}; visit {page(source)}, and log in with `hf auth login` as "
            "somebody who has it."
        )
    if status == 404:
        return NotHere(f"There is no {source} on {where}; check the spelling.")
    if status == 429:
        return LocalspecError(f"{where} has had too many requests from here; wait a few minutes, and try again.")
    return LocalspecError(f"{where} answered {status} about {source}; try again later.")


def _revisions(source: Source) -> list[str]:
    """The branches and tags of a repository, for a hint; empty where they cannot be listed."""
    try:
        refs = client().HfApi(endpoint=hub_places().endpoint).list_repo_refs(source.repo)
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    except Exception:  # noqa: BLE001  # a hint must not cost the sentence
        return []


def _cached_repositories() -> list[str]:
    """The repositories in the cache, for a hint."""
    found = hub_places().cache.glob("models--*--*")
    return [path.name.removeprefix("models--").replace("--", "/", 1) for path in found]


def _no_such_name(error: BaseException | None) -> bool:
    """Whether what caused it is that a name has no address: a socket.gaierror, and sockets are for others."""
    while error is not None and type(error).__name__ != "gaierror":
        error = error.__cause__ or error.__context__
    return error is not None


def _first_line(error: Exception) -> str:
    """The first line of an error, or the name of its class; what the client takes a strange answer for says nothing."""
    if isinstance(error, json.JSONDecodeError):
        return "no JSON"
    if isinstance(error, (TypeError, AttributeError, LookupError, RecursionError)):
        return "its answer is not what a hub says"
    if lacking := re.search(r"missing the '([\w-]+)' header", str(error)):
        return f"its answer lacks the header {lacking[1]}"
    said = first_line(error)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST - 1]}…"
