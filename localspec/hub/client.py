"""Prepares the Hugging Face client: it prints nothing, and its errors become sentences with an exit code."""

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from localspec.config import nearest
from localspec.environment import hub_places, network_variables, quiet_hub
from localspec.errors import DoesNotFit, LocalspecError, NotAllowed, NotHere, first_line
from localspec.hub.sources import Source
from localspec.text import one_line, shortened

LONGEST_WAIT = 60  # seconds that a server may ask us to wait
_LONGEST_ANSWER = 2**26  # bytes of an answer that is read as a whole
_LONGEST_REFUSAL = 2**20  # bytes of an answer that redirects or refuses
_LEAST_PIECE = 64  # bytes that any piece counts for at least, because it takes memory and time
_LONGEST = 200  # characters of another library's message
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@cache
def client() -> Any:
    """Import huggingface_hub, and return the module. The first import reads environment variables."""
    quiet_hub()
    import huggingface_hub

    huggingface_hub.logging.set_verbosity(100)  # we handle each of its warnings, or show a sentence of our own
    huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 2**20  # bytes; progress is reported once per piece
    huggingface_hub.set_client_factory(_session)
    return huggingface_hub


class _Wanted:
    """A flag for all requests: whether the current download is still wanted. `stopping_unless` sets it."""

    ask: Callable[[], bool] = staticmethod(lambda: True)


@contextmanager
def stopping_unless(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Raise KeyboardInterrupt at the next request after `is_wanted` has returned False.

    Threads other than the main one need this, because signals do not reach them.
    """
    _Wanted.ask = staticmethod(is_wanted)
    try:
        yield
    finally:
        _Wanted.ask = staticmethod(lambda: True)


def _session() -> Any:
    """Return an HTTP client for huggingface_hub that checks each request and each response."""
    import httpx2
    from huggingface_hub import constants

    class Bounded(httpx2.SyncByteStream):
        """A stream that raises an error after too many bytes."""

        def __init__(self, stream: Any, limit: int) -> None:
            self._stream, self._limit = stream, limit

        def __iter__(self) -> Iterator[bytes]:
            read = 0
            for part in self._stream:
                read += max(len(part), _LEAST_PIECE)
                if read > self._limit:
                    raise LocalspecError(f"{server()} sends an endless answer; try again later.")
                yield part

        def close(self) -> None:
            self._stream.close()

    def bound(response: Any) -> None:
        """Limit the bytes that `response.read()` accepts. Downloads, which read in pieces, are not limited."""
        read_whole, limit = response.read, _LONGEST_ANSWER if response.is_success else _LONGEST_REFUSAL

        def read() -> Any:
            response.stream = Bounded(response.stream, limit)
            return read_whole()

        response.read = read

    try:
        return httpx2.Client(
            headers={"Accept-Encoding": "identity"},
            event_hooks={"request": [_check_request], "response": [_check_response, bound]},
            follow_redirects=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        )
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
        raise LocalspecError(_unusable_network_settings(error)) from None


def _check_request(request: Any) -> None:
    """Raise KeyboardInterrupt if the download is no longer wanted. Also raises the errors of `must_be_online`."""
    import httpx2
    from huggingface_hub import constants

    if not _Wanted.ask():
        raise KeyboardInterrupt
    must_be_online(str(request.url.host))
    if request.method == "HEAD":  # huggingface_hub waits six times longer when it asks again
        request.extensions["timeout"] = httpx2.Timeout(constants.HF_HUB_ETAG_TIMEOUT).as_dict()


def _check_response(response: Any) -> None:
    """Raise an error if a server asks for a long wait, compresses its answer, or sends unsafe headers."""
    headers = response.headers
    if response.status_code == 429 or response.status_code >= 500:
        waits = [headers.get("retry-after", "").strip(), *re.findall(r"\bt=(\d+)", headers.get("ratelimit", ""))]
        seconds = max((int(wait[:9]) for wait in waits if wait.isdecimal()), default=0)
        if seconds > LONGEST_WAIT:
            raise LocalspecError(f"{server()} asks you to wait {seconds} seconds; try again then.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        # A few bytes may expand to gigabytes, and the limits count received bytes.
        raise LocalspecError(
            f"{server()} sends compressed data, although localspec asked for uncompressed data; try again later."
        )
    # These headers become paths in the cache; a slash in one would lead outside.
    for name in ("etag", "x-linked-etag", "x-repo-commit") if "x-repo-commit" in headers else ():
        if not re.fullmatch(r'(W/)?"?[\w=+:-]*"?', headers.get(name, ""), re.ASCII):
            raise ValueError(f"{name} is {headers[name][:80]!r}")


def _unusable_network_settings(error: Exception) -> str:
    """Return a sentence with the environment variables for proxies and certificates; httpx2 refuses one of them."""
    shown = "; ".join(
        f"{name}={without_password(value)}"
        for name, value in network_variables("" if isinstance(error, OSError) else "_proxy").items()
    )
    why = "a SOCKS proxy needs the Python package socksio" if isinstance(error, ImportError) else _first_line(error)
    listed = f": {shown}" if shown else ""  # the system's settings may name a proxy, too
    return (
        f"The network settings of this machine cannot be used ({without_password(why)}){listed}; correct or remove "
        "them."
    )


def server() -> str:
    """Return the address of the Hugging Face server, without a password."""
    return without_password(hub_places().endpoint)


def without_password(address: str) -> str:
    """Return an address without its password, so that it can be displayed."""
    return re.sub(r"(//|^)[^/@\s]*@", r"\1", address)


def broke_off(item: str, why: str) -> str:
    return f"The connection to {server()} was lost while fetching {item} ({why}); try again."


def page(source: Source) -> str:
    """Return the web address of a repository's page at the hub."""
    return f"{server()}/{source.repo}"


def must_be_online(task: str, instead: str = "") -> None:
    """Raise NotHere if HF_HUB_OFFLINE forbids requests, and LocalspecError for an unusable address or token.

    `instead` is a sentence about what works without a network.
    """
    if hub_places().offline:
        message = f"{task} needs the network, and HF_HUB_OFFLINE forbids it; unset that, and try again. {instead}"
        raise NotHere(message.rstrip())
    if not re.match(r"https?://[^/\s]+", hub_places().endpoint):
        raise LocalspecError(
            f"HF_ENDPOINT is {server()!r}, but it must be a web address such as https://huggingface.co."
        )
    if re.search(r"[^!-~]", client().get_token() or ""):  # httpx2 would quote it in its error
        raise LocalspecError(
            "Your Hugging Face token has a character that no token may have; correct HF_TOKEN, or log in again with "
            "`hf auth login`."
        )


@contextmanager
def localspec_errors(source: Source, in_cache: Callable[[], str] = str) -> Iterator[None]:
    """Turn errors in the `with` block into LocalspecError. `in_cache` returns sentences about data that stay."""
    try:
        yield
    except Exception as error:  # the client and its libraries raise exceptions of many classes
        failure = error if isinstance(error, LocalspecError) else _error_of(source, error)
        raise type(failure)(one_line(f"{failure} {in_cache()}")) from error


def _error_of(source: Source, error: Exception) -> LocalspecError:
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _error_of(source, error.__cause__)  # the outer error hides why the client could not reach the network
    if isinstance(error, LocalspecError):
        return error
    where = server()
    if isinstance(error, errors.HfHubHTTPError):
        return _error_of_status(source, error, errors)
    if isinstance(error, httpx2.TooManyRedirects):
        return LocalspecError(f"{where} redirects requests for {source} in a loop; try again later.")
    if isinstance(error, httpx2.TimeoutException):
        return LocalspecError(f"{where} did not answer in time about {source}; try again later.")
    if isinstance(error, httpx2.ConnectError) and _no_such_name(error) and not network_variables("_proxy"):
        return LocalspecError(f"{where} cannot be found; check whether this machine is online, and try again.")
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        proxies = [f"{name}={without_password(value)}" for name, value in network_variables("_proxy").items()]
        check = f"check {' and '.join(proxies)}" if proxies else "check the network"
        return LocalspecError(f"{where} cannot be reached ({_first_line(error)}); {check} and try again.")
    if isinstance(error, httpx2.HTTPError) and not isinstance(error, httpx2.UnsupportedProtocol):
        return LocalspecError(broke_off(f"{source}", _first_line(error)))
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return DoesNotFit(
            f"A file of {source} is larger than this shell or the disk of {hub_places().cache} allows; raise the limit "
            "(`ulimit -f unlimited`), or set HF_HOME to another disk."
        )
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DoesNotFit(f"The disk of {hub_places().cache} is full; make room, and try again.")
    if isinstance(error, OSError) and error.errno is not None:
        place = error.filename or hub_places().cache
        return LocalspecError(f"{place} cannot be written ({error.strerror}); check its permissions, then try again.")
    if isinstance(error, OSError) and "Consistency check" in str(error):
        return LocalspecError(f"{where} sent a file of {source} with another length than announced; try again.")
    return LocalspecError(
        f"{where} does not answer requests about {source} like a Hugging Face server ({_first_line(error)}); "
        "check HF_ENDPOINT, and whether a proxy or a login page of your network answers instead."
    )


def _error_of_status(source: Source, error: Any, errors: Any) -> LocalspecError:
    status, where = error.response.status_code, server()
    if isinstance(error, errors.GatedRepoError):
        if status == 401:
            return NotAllowed(
                f"{source.repo} is gated: visit {page(source)} to accept its terms, then log in here with "
                "`hf auth login`."
            )
        return NotAllowed(
            f"{source.repo} is gated, and the account that is logged in here has no access: visit {page(source)} to "
            "request it, or log in to another account with `hf auth login`."
        )
    if isinstance(error, errors.DisabledRepoError):
        return NotAllowed(f"{source.repo} was disabled by {where}; choose another model.")
    if isinstance(error, errors.RevisionNotFoundError):
        guess = nearest(source.revision, _revisions(source))
        return NotHere(
            f"{source.repo} has no revision {source.revision!r}{guess}; {page(source)}/tree/main lists them."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        folders = hub_places().cache.glob("models--*--*")
        cached = [folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders]
        return NotHere(
            f"There is no model {source.repo!r} on {where}{nearest(source.repo, cached)}, "
            "or it is private; check the spelling, or log in with `hf auth login`."
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return NotHere(f"{source} lacks a file that it listed a moment ago; try again.")
    if status == 401:
        return NotAllowed(
            f"{where} does not accept your token; correct HF_TOKEN, or log in again with `hf auth login`."
        )
    if status == 403:
        return NotAllowed(
            f"{where} forbids access to {source.repo}; visit {page(source)}, and log in with `hf auth login` to an "
            "account that has access."
        )
    if status == 404:
        return NotHere(f"There is no {source} on {where}; check the spelling.")
    if status == 429:
        return LocalspecError(f"{where} received too many requests from you; wait a few minutes, and try again.")
    return LocalspecError(f"{where} answered {status} about {source}; try again later.")


def _revisions(source: Source) -> list[str]:
    """Return the branches and tags of a repository, for a hint; empty if they cannot be listed."""
    try:
        refs = client().HfApi(endpoint=hub_places().endpoint).list_repo_refs(source.repo)
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    except Exception:  # noqa: BLE001  # a hint must not cost the sentence
        return []


def _no_such_name(error: BaseException | None) -> bool:
    """Return whether the cause of an error is a host name without an address (socket.gaierror)."""
    while error is not None and type(error).__name__ != "gaierror":
        error = error.__cause__ or error.__context__
    return error is not None


def _first_line(error: Exception) -> str:
    """Return the first line of an error. If the error's text is empty, return the name of its class."""
    if isinstance(error, json.JSONDecodeError):
        return "no JSON"
    if isinstance(error, (TypeError, AttributeError, LookupError, RecursionError)):
        return "the answer has an unexpected form"
    if lacking := re.search(r"missing the '([\w-]+)' header", str(error)):
        return f"the answer lacks the header {lacking[1]}"
    return shortened(first_line(error), _LONGEST)
