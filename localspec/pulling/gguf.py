"""Makes a fetched GGUF file usable as a model, whose weights are read directly from the file."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.choosing.fetching import LOSSLESS
from localspec.choosing.fit import packed
from localspec.choosing.survey import suited_form
from localspec.config import Settings
from localspec.engine.importing import import_gguf, named_packing
from localspec.environment import home, hub_places
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.families.family import positive
from localspec.families.table import OF_GGUF
from localspec.hub.cache import differs, snapshot
from localspec.hub.plan import CONFIG, Part, Plan, plan
from localspec.hub.records import packed_sources
from localspec.hub.sources import Source
from localspec.machine.machine import Machine
from localspec.models.entries import Entry, Form
from localspec.models.registry import source_here
from localspec.models.shape import Shape
from localspec.paths import Paths, disk_of, free_disk
from localspec.published_heads import why_not_in_gguf
from localspec.pulling.packing import Installed, Packed, discard_fetched
from localspec.quantities import distinct, size
from localspec.weights.checkpoint import inspect
from localspec.weights.packed_file import BLOCKS, Origin, PackedFile
from localspec.weights.packed_files import FILED, packed_files

_LEAST = 0.55  # least share of a mixture in memory: nine tenths are experts, of which half may stay on the disk
# Least bits per weight in memory of types without kernels: the bits of the types that they are rounded to.
_ROUNDED = {r"(^|-)B?F(P?16|P?32)": 8.5, r"(^|-)(IQ[123]|TQ)": 4.5}


def made_before(part: Part, texts: Part | None) -> PackedFile | None:
    """Return the packed file or registration that an earlier pull made from the same commit of the GGUF file `part`.

    Return None if there is none, or if its text files, except config.json, differ from those in `texts`.
    """
    earlier = packed_sources(Paths(home())).get(str(part.source))
    if earlier is None or earlier.header.origin.commit != part.commit:
        return None
    try:  # its config.json is not compared
        files = texts.files if texts else ()
        same = not any(differs(earlier.text(file.name), file) for file in files if file.name != CONFIG)
    except (KeyError, OSError, LocalspecError):
        return None
    return earlier if same else None


def marked_fetched(part: Part, texts: Part) -> Part:
    """Return `texts` (configuration and tokenizer files), marked as already fetched if the installed model has them."""
    installed = made_before(part, texts) is not None
    return replace(texts, here=frozenset(file.name for file in texts.files)) if installed else texts


def check(part: Part, packed_only: bool, settings: Settings) -> None:
    """Check whether a GGUF model can be pulled, before anything is fetched.

    Raises UsageMistake for --packed-only, LocalspecError for an unsupported architecture, and the errors of
    `named_packing`.
    """
    if not part.source.gguf:
        return
    if packed_only:
        raise UsageMistake(
            f"--packed-only has no effect with {part.source}, because GGUF files are always kept; leave "
            "--packed-only out."
        )
    named_packing(settings)
    name = part.config.get("architecture")
    if isinstance(name, str) and name not in OF_GGUF:
        if drafter := why_not_in_gguf(name):
            raise LocalspecError(f"{part.source} is {drafter}.")
        raise LocalspecError(
            f"{part.source} is of the architecture {name[:80]!r}, which localspec does not compute; it reads GGUF "
            f"files of {', '.join(OF_GGUF)}."
        )


def memory(part: Part, settings: Settings, machine: Machine, shape: Shape | None = None) -> tuple[bool | None, str]:
    """Return whether a GGUF model fits into memory, by the size and type of its files, and words about the memory.

    The first value is False if the weights do not fit. Otherwise it is None: how much more memory the model needs is
    known only when its file is here. `shape` comes from the model's entry.
    """
    others = ", ".join(device.name for device in machine.devices if device.type != "cpu")
    experts = has_experts(part.config.get("architecture"), shape)
    forms = "bf16" if experts else "bf16 or int8"
    instead = f"; on {others} it runs in {forms}" if others else ""
    bits = float(_bits(part.source.gguf))
    bits += 0 if bits > 8 else 0.5 if bits == 8 else 1.5  # an upper bound: some parts of a file have types of more bits
    weights = int(part.weights * 8 / bits)
    chosen, usable = named_packing(settings), machine.devices[-1].usable
    sizes = {packing: packed(weights, 0, packing, "native") for packing in ([chosen] if chosen else FILED)}
    if chosen is None:
        rounded = next((most for kind, most in _ROUNDED.items() if re.search(kind, part.source.gguf)), None)
        blocks = int(weights * rounded / 8) if rounded else part.weights
        sizes = {BLOCKS: blocks} if experts else {BLOCKS: blocks, **sizes}  # experts are packed again only on request
    share = _LEAST if experts else 1.0
    packing = next((key for key in sizes if share * sizes[key] <= usable), min(reversed(sizes), key=sizes.__getitem__))
    form = "" if packing == BLOCKS else f" packed in {packing}"
    if (least := share * sizes[packing]) > usable:
        shown, left = distinct(size, int(least), usable)
        return False, f"{part.source} needs about {shown} of memory{form}, but only {left} may be used"
    more = "the exact number is known once the file is here"
    if sizes[packing] > usable:
        more = "the rest of its experts stays on the disk, so it will be slower"
    copy = second_copy(part.weights, settings) if experts else ""
    return None, f"about {size(sizes[packing])}{form}, of the {size(usable)} that may be used; {more}{instead}{copy}"


def has_experts(architecture: object, shape: Shape | None) -> bool:
    """Return whether a GGUF model has experts, by its architecture or by the sizes in its registry entry."""
    family = OF_GGUF.get(architecture) if isinstance(architecture, str) else None
    always = family and family.gguf and family.gguf.keys.get("expert_count") is positive  # never 0: no dense models
    return bool(always or (shape and shape.experts))


def second_copy(weights: int, settings: Settings) -> str:
    """Return a note that a mixture of experts is copied to another file before its first reply on a CPU.

    The copy has about `weights` bytes. The note is empty if the settings name a packing.
    """
    if named_packing(settings):
        return ""
    where, cache = Paths(home()).packed, hub_places().cache
    one_disk = disk_of(where).stat().st_dev == disk_of(cache).stat().st_dev
    needed, free = (2 if one_disk else 1) * weights, free_disk(where)
    shown, left = distinct(size, weights, free)
    copied = f"; before its first reply on a CPU it is copied once to a file of about {shown} in {where}"
    if needed <= free:
        return copied
    if one_disk:
        return f"{copied}, but the disk of both files has only {left} free"
    return f"{copied}, but that disk has only {left} free"


def register(
    part: Part, settings: Settings, reporter: Reporter, texts: Part | None, earlier: PackedFile | None
) -> Iterator[Installed | Packed]:
    """Register a fetched GGUF file as a model under the name of its source. Pack it if the settings say so.

    `texts` are the original model's configuration and tokenizer files, if they were fetched to replace those in the
    GGUF file. `earlier` is the result of `made_before`. All fetched files stay if the registration fails. Raises the
    errors of `import_gguf`; given `texts`, also LocalspecError for weights of fewer bits than the file's name says.
    """
    from localspec.weights.checkpoint import read_texts  # numpy

    source, file = str(part.source), snapshot(part.source, part.commit) / part.files[0].name
    origin = Origin(source, earlier.header.origin.revision if earlier else "", part.license, source, part.commit)
    try:
        new_texts = read_texts(snapshot(texts.source, texts.commit)) if texts and not earlier else None
        if earlier and texts:
            new_texts = {name: earlier.text(name) for name in earlier.header.texts}
        if texts:
            from localspec.weights.gguf_model import GgufModel  # numpy

            bits = _bits(part.source.gguf)
            if fewer := sorted(kind for kind in {*GgufModel.open(file).types} if _bits(kind) < bits):
                raise LocalspecError(
                    f"{file.name} has weights in {', '.join(fewer)}, with fewer bits than its name says"
                )
        done = import_gguf(file, settings, reporter, origin, new_texts)
    except LocalspecError as error:
        instead = f"; --original fetches the original weights, from {texts.source}" if texts else ""
        why = str(error).rstrip(".").replace("fetch it again, or choose", "choose")  # it is the hub's own file
        raise type(error)(
            f"{why}{instead}. The fetched weights, {file}, stay on the disk until you run `localspec rm {source}`."
        ) from None
    if texts and not earlier:
        discard_fetched(texts)
    registered = packed_sources(Paths(home()))[source]
    _delete_former(registered, {registered.path, done.path}, reporter)
    yield Installed(part.source, file, inspect(registered.path).size_in_words)
    if done.packing != BLOCKS:
        yield Packed(part.source, done.path, done.bytes)


def _delete_former(registered: PackedFile, stay: set[Path], reporter: Reporter) -> None:
    """Delete all packed files of a source, except `stay`. Report an earlier version whose GGUF files are still here."""
    source, files = registered.header.origin.repo, {Path(name).resolve() for name in registered.header.origin.files}
    for old in packed_files(Paths(home())):
        if old.header.origin.repo == source and old.path not in stay:
            with suppress(OSError):
                old.path.unlink(missing_ok=True)
            others = [Path(name) for name in old.header.origin.files if Path(name).resolve() not in files]
            if old.header.registered and any(file.exists() for file in others):
                name = replace(Source.parse(source), revision=old.header.origin.commit)
                reporter.notice(f"The earlier version of {source} is still here; `localspec rm {name}` deletes it.")


def _bits(kind: str) -> int:
    """Return the bits per weight of a GGUF type such as Q4_K, without its scales."""
    digits = re.search(r"\d+", kind)
    return int(digits[0]) if digits else 32


@dataclass(frozen=True)
class Instead:
    """A smaller form of a model that is fetched instead of the publisher's weights, `original`.

    The original has `bytes` (None if unknown), and would be packed in `packing`.
    """

    form: Form
    original: Source
    bytes: int | None
    packing: str

    @property
    def why(self) -> str:
        """A sentence without its final period: why this form is good enough, and when the original is needed."""
        about = "" if self.bytes is None else f" ({size(self.bytes)})"
        kind = self.form.source.gguf
        near = f"{kind} has about as many bits and comes from the same publisher"
        if kind == "Q8_0":
            near = f"Q8_0 is about as accurate as {self.packing}, or better (finer scales, an embedding of 8 bits)"
        elif "qat" in self.form.source.repo.lower():
            near = f"{kind} is the form for which the publisher trained the model"
        return (
            f"{kind} instead of {self.original}{about}, which would be packed in {self.packing}; {near}. A GPU, "
            "other precisions, and training that changes the weights need the original, which --original fetches"
        )


def is_packed(settings: Settings) -> bool:
    """Return whether the settings name a packing or precision, so that a GGUF file cannot be used directly."""
    return (settings.quantize, settings.dtype) != ("auto", "auto")


def replaced(packing: str | None, packed_only: bool, settings: Settings) -> str | None:
    """Return the packing of the original weights, which a smaller form should match; None forbids smaller forms.

    With `packed_only` and a packing in the settings, return None, because the disk would otherwise have two files: that
    of the smaller form, and the packed one.
    """
    if not packed_only:
        return packing
    return None if is_packed(settings) else packing or LOSSLESS


def with_smaller_form(
    original_plan: Plan, entry: Entry, packing: str | None, settings: Settings, notice: Callable[[str], None]
) -> tuple[Plan, Instead | None]:
    """Return the plan with the smallest usable form of its model, or the unchanged plan if no usable form is smaller.

    Configuration and tokenizer still come from the original, because a GGUF file lacks the recommended sampling and has
    the tokenizer in another form. If the hub does not have the smaller form, a notice says so, and the original is
    fetched.
    """
    from localspec.weights.checkpoint import TOKENIZER_FILES  # the tokenizers library

    original, *others = original_plan.parts
    form = suited_form(entry, packing, packed=is_packed(settings))
    if form is None or packing is None or entry.source is None or original.heads or original.whole:
        return original_plan, None
    if source_here(entry) == entry.source:  # the original is here, and is updated
        return original_plan, None
    try:
        (smaller,) = plan((form.source,)).parts
        check(smaller, False, settings)
    except LocalspecError as error:
        notice(f"{error} Therefore {entry.source} is fetched instead, which is larger.")
        return original_plan, None
    names = {CONFIG, "generation_config.json", *TOKENIZER_FILES}
    texts = replace(original, files=tuple(file for file in original.files if file.name in names), texts_only=True)
    smaller_plan = replace(original_plan, parts=(smaller, marked_fetched(smaller, texts), *others))
    if smaller.gated:
        notice(f"{form.source} is gated now, so {entry.source} is fetched instead, which is larger.")
    if smaller.gated or smaller_plan.fetch_bytes >= original_plan.fetch_bytes:
        return original_plan, None
    return smaller_plan, Instead(form, entry.source, sum(file.bytes for file in original.files), packing)
