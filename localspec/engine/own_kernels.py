"""Whether our own kernels compute on a GPU: tried once for a card, its driver and these kernels, and kept."""

from localspec import __version__
from localspec.choosing.measure import LIBRARIES as LIBRARIES_COMPUTE
from localspec.choosing.measure import MeasurementCache
from localspec.engine.trials import Verdict, tried, verdict_quantity, with_driver
from localspec.machine.hardware import versions

OWN, LIBRARIES = "own", "libraries"
KERNELS = verdict_quantity("kernels", lambda found: found.outcome == (OWN if found.why is None else LIBRARIES))
_settled: dict[str, Verdict] = {}  # by device


def settle_kernels(device: str, cache: MeasurementCache) -> None:
    """Lets a GPU compute with our own kernels, where a trial finds them right; to be called before a model is loaded.

    Says once in a process where libraries compute in their place.
    """
    if not device.startswith("cuda") or device in _settled:
        return
    import torch

    from localspec.nn import own_kernels

    card = torch.device(device)

    def try_out() -> Verdict:
        try:
            why = own_kernels.tried(card)
        except MemoryError:
            return Verdict(LIBRARIES, "there is no memory to try them now", passing=True)
        return Verdict(OWN) if why is None else Verdict(LIBRARIES, why)

    if own_kernels.not_for(card) is None:
        found = tried(cache, KERNELS, _subject(device), "localspec's own kernels are right", LIBRARIES, try_out)
        own_kernels.settle(card, found.why)
        if found.why is not None:
            cache.reporter.notice(
                f"localspec's own kernels are not used on this GPU, and steps are slower for it: {found.why}."
            )
        _settled[device] = found
        cache.remember(LIBRARIES_COMPUTE, versions(device), found.outcome == LIBRARIES, silent=True)


def _subject(device: str) -> str:
    from localspec.nn.cuda_kernels import digest

    return with_driver(f"{digest()} · localspec {__version__} · {versions(device)}")
