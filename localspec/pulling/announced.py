"""Plans a pull without the network, from localspec's registry of models, for `localspec pull NAME --dry-run`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.choosing.cost import TRAINING_TOKENS, Rates, training_hours
from localspec.choosing.fetching import PullSet, fit, pull_set, saved_packing, to_make
from localspec.choosing.measure import MeasurementSource
from localspec.choosing.survey import form_bytes, original_bytes, suited_form
from localspec.events import Reporter
from localspec.hub.cache import find_snapshot
from localspec.hub.plan import free_disk_bytes
from localspec.hub.sources import Source
from localspec.machine.machine import Machine, this_machine
from localspec.models.drafter_kinds import kind_of
from localspec.models.entries import Form
from localspec.models.registry import TargetCard, cards, source_here
from localspec.pulling.gguf import Instead, is_packed, replaced, second_copy
from localspec.pulling.pull import AlreadyHere, PullOptions, already_here, measured


@dataclass(frozen=True)
class Download:
    """The registry's facts about a repository. `bytes` is the approximate size of the download; None if unknown."""

    source: Source
    publisher: str
    license: str | None
    gated: bool
    bytes: int | None
    here: bool


@dataclass(frozen=True)
class Announced:
    """The plan of a pull, made from the registry only. `forms` are other forms of the model, such as GGUF types.

    `memory` is a sentence about whether the model `fits` into memory, and `drafter` about the choice of a drafter.
    """

    downloads: tuple[Download, ...]
    forms: tuple[Form, ...]
    disk_free: int
    fits: bool | None
    memory: str
    drafter: str
    instead: Instead | None = None
    to_make: str | None = None  # a kind of drafter that its entry names, and that is not published
    hours: float | None = None  # of its training on `TRAINING_TOKENS`, estimated from the machine's rates
    imported: Path | None = None  # where the model is, if it came from none of these downloads

    @property
    def bytes(self) -> int | None:
        """The bytes of all downloads together; None if a size is unknown."""
        return _sum(self.downloads)

    @property
    def cached_bytes(self) -> int | None:
        return _sum([download for download in self.downloads if download.here])

    @property
    def fetch_bytes(self) -> int | None:
        return _sum([download for download in self.downloads if not download.here])

    @property
    def fits_on_disk(self) -> bool:
        return (self.fetch_bytes or 0) <= self.disk_free


def announced(card: TargetCard, options: PullOptions, reporter: Reporter) -> Announced | AlreadyHere:
    """Return what a pull of a registered model would fetch, according to the registry, without asking the hub.

    Raises UsageMistake for invalid options, as the pull itself does.
    """
    if nothing := already_here(card.name, options):
        return nothing
    reporter.progress("checking this machine")
    machine, entry = this_machine(), card.entry
    assert entry is not None
    with measured(card, options, reporter) as measurements:
        chosen = pull_set(card, options.drafter, machine, measurements, options.settings)
        if not chosen.sources:
            return AlreadyHere(f"drafter: {chosen.why}")
        downloads = [_download(source, card) for source in chosen.sources]
        fits, memory = _memory(card, downloads, options, machine, measurements, chosen)
        instead = None if options.original else _instead(card, options, machine, measurements)
    if instead:  # if the model came from this download, it is here
        form = instead.form
        here = source_here(entry) == form.source
        downloads[0] = Download(form.source, form.publisher, form.license, False, form_bytes(form, entry), here)
    forms = tuple(other for other in entry.forms if other.source != downloads[0].source)
    kind = to_make(card)
    hours = None
    if kind and entry.shape:  # estimated without torch; `training/estimate.py` measures the rate
        device = machine.as_torch_has_it().devices[0]
        # For S3D, gradients pass half of the target's layers.
        drawn = entry.shape.parameters / 2 if kind == "s3d" else kind_of(kind).parameters(entry.shape)
        product = Rates.of(device, device.dtypes[0], "none").computed
        hours = training_hours(TRAINING_TOKENS, entry.shape.parameters, 3 * drawn, product)
    imported = card.path if card.here and not downloads[0].here else None
    return Announced(
        tuple(downloads), forms, free_disk_bytes(), fits, memory, chosen.why, instead, kind, hours, imported
    )


def _instead(
    card: TargetCard, options: PullOptions, machine: Machine, measurements: MeasurementSource
) -> Instead | None:
    entry = card.entry
    if entry is None or entry.source is None or entry.shape is None or source_here(entry) == entry.source:
        return None
    packing = saved_packing(card.name, entry.license, entry.shape, options.settings, machine, measurements)
    packing = replaced(packing, options.packed_only, options.settings)
    form = suited_form(entry, packing, packed=is_packed(options.settings))
    whole = original_bytes(entry)
    if form is None or packing is None or (form_bytes(form, entry) or 0) >= (whole or 0):
        return None
    return Instead(form, entry.source, whole, packing)


def _download(source: Source, card: TargetCard) -> Download:
    assert card.entry is not None
    for entry in (card.entry, *(other.entry for other in cards().values() if other.entry)):
        if entry.source == source:
            return Download(
                source, entry.publisher, entry.license, entry.gated, original_bytes(entry), source_here(entry) == source
            )
    drafter = next(drafter for drafter in card.entry.drafters if drafter.source == source)
    here = find_snapshot(source) is not None
    return Download(source, drafter.publisher, drafter.license, False, drafter.download, here)


def _memory(
    card: TargetCard,
    downloads: Sequence[Download],
    options: PullOptions,
    machine: Machine,
    measurements: MeasurementSource,
    chosen: PullSet,
) -> tuple[bool | None, str]:
    """Return whether the model fits into memory, by the sizes in its registry entry, and a sentence about it."""
    entry = card.entry
    if entry is None or entry.source is None:
        return None, "not known for a drafter without its model"
    if entry.shape is None:
        return None, "it is unknown whether the model fits: localspec's registry does not say how large it is"
    named = options.drafter is not None
    drafter_bytes = (_sum(downloads[1:]) or 0) if named else 0
    weights = 2 * entry.shape.parameters
    fits, memory = fit(
        card.name,
        entry.shape,
        weights,
        machine,
        measurements,
        drafter_bytes,
        options.settings,
        chosen.recommendation,
        named,
    )
    copied = bool(entry.source.gguf) and entry.shape.experts is not None
    return fits, memory + second_copy(entry.bytes or 0, options.settings) if copied else memory


def _sum(downloads: Sequence[Download]) -> int | None:
    sizes = [download.bytes for download in downloads]
    return None if None in sizes else sum(size for size in sizes if size is not None)
