"""localspec bench --server URL: how fast servers are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localspec import config
from localspec.bench.prompts import Prompt
from localspec.cli.progress import Progress
from localspec.config import Settings
from localspec.errors import UsageMistake

if TYPE_CHECKING:
    from localspec.serving.server_engine import ServerEngine


def addresses(given: Sequence[str], settings: Settings) -> list[str]:
    """The servers to be measured: those of the flag, else that of the settings; none where models of this machine are.

    Raises UsageMistake for what is no address, or stands there twice.
    """
    found = [config.load(flags={"server": one}).elsewhere for one in given] or [settings.elsewhere]
    if len(found) > 1 and None in found:
        raise UsageMistake("--server off beside another --server contradicts it; leave one of them out.")
    urls = [one for one in found if one is not None]
    if twice := next((one for one in urls if urls.count(one) > 1), None):
        raise UsageMistake(f"--server {twice} stands there twice, and once is all it is measured; leave one out.")
    return urls


def measured(
    urls: Sequence[str], settings: Settings, prompts: Sequence[Prompt], max_tokens: int, repeat: int, progress: Progress
) -> dict[str, Any]:
    """The report. Raises what `measure` and `Server.open` do, NotHere for a model that a server does not have."""
    from localspec.serving.measuring import Asked, measure  # what opens connections

    try:
        engines = [_engine(url, settings, progress) for url in urls]
        return measure(engines, Asked(prompts, max_tokens, repeat), settings, progress.show)
    finally:
        progress.clear()


def _engine(url: str, settings: Settings, progress: Progress) -> "ServerEngine":
    from localspec.serving.server import Server
    from localspec.serving.server_engine import ServerEngine

    progress.show(f"asking {url}")
    server = Server.open(url)
    if server.overheard:
        progress.notice(server.overheard)
    insist = settings.origins.get("model", "").startswith("--")
    return ServerEngine(server, server.model(settings.model, insist=insist), progress.reporter)
