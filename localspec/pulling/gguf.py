"""A GGUF file that was fetched becomes a packed model, which is all that is kept of it."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec.config import Settings
from localspec.engine import importing
from localspec.engine.importing import asked_packing
from localspec.environment import home, hub_places
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.hub.cache import differs, snapshot
from localspec.hub.plan import CONFIG, Part, Plan
from localspec.machine.machine import Machine
from localspec.models.packed_files import FILED, packed_files
from localspec.packed_file import Origin, PackedFile
from localspec.paths import Paths
from localspec.policy.prediction import packed
from localspec.pulling.packing import Packed, discard_fetched
from localspec.quantities import size

_EIGHT_BITS = frozenset(("Q8_0", "F16", "BF16", "F32"))  # types of at least as many bits
# Of a weight, about the most that files of a type so called have: parts of some are in types of more bits.
_BITS = {"32": 32, "16": 16, "8_K": 16, "8": 8.5, "6": 7.5, "5": 6.5, "4": 5.5}


def kept(part: Part, quantize: str, texts: Part | None = None) -> Packed | None:
    """What was made of exactly this commit before, with the same texts, in the packing that is asked for, if one is."""
    for one in packed_files(Paths(home())):
        origin = one.header.origin
        same = (origin.repo, origin.commit) == (str(part.source), part.commit)
        if same and quantize in ("auto", one.header.packing) and (texts is None or _holds(one, texts)):
            return Packed(part.source, one.path, one.path.stat().st_size)
    return None


def as_kept(part: Part, texts: Part, packing: str) -> tuple[Part, Part]:
    """Both parts, with nothing to fetch where that was made of them already."""
    if kept(part, packing, texts) is None:
        return part, texts
    every, beside = (frozenset(file.name for file in one.files) for one in (part, texts))
    return replace(part, here=every), replace(texts, here=beside)


def _holds(packed: PackedFile, texts: Part) -> bool:
    """Whether a packed file has these texts; its config.json may say otherwise whether there is a head."""
    try:
        return not any(differs(packed.text(file.name), file) for file in texts.files if file.name != CONFIG)
    except (KeyError, OSError, LocalspecError):
        return False


def check(part: Part, packed_only: bool, settings: Settings) -> None:
    """Looks at a plan of GGUF files.

    Raises UsageMistake for --packed-only, which is so in any case, LocalspecError for an architecture that the hub
    names and localspec does not compute, and what `asked_packing` raises.
    """
    from localspec.gguf.config import FAMILIES  # numpy

    if not part.source.gguf:
        return
    if packed_only:
        raise UsageMistake(f"--packed-only has no effect with {part.source}, which is always kept so; leave it out.")
    asked_packing(settings)
    named = part.config.get("architecture")
    if isinstance(named, str) and named not in FAMILIES:
        raise LocalspecError(
            f"{part.source} is of the architecture {named[:80]!r}, which localspec does not compute; it reads GGUF "
            f"files of {', '.join(FAMILIES)}."
        )


def memory(part: Part, settings: Settings, machine: Machine) -> tuple[bool | None, str]:
    """Whether a model fits into memory by the size and the type of its files, and a clause about it.

    The first is None where it may: what it needs beside its weights is known when the file is here.
    """
    others = ", ".join(device.name for device in machine.devices if device.type != "cpu")
    instead = f"; it serves the CPU alone, and {others} the model's own weights" if others else ""
    packing, needed = _packed(part, settings, machine)
    usable = machine.devices[-1].usable
    if needed > usable:
        return (
            False,
            f"{part.source} takes about {size(needed)} packed in {packing}, of {size(usable)} that may be taken",
        )
    return None, (
        f"about {size(needed)} packed in {packing}, of {size(usable)} that may be taken; more is known when the file "
        f"is here, which is packed then, and deleted{instead}"
    )


def with_room_to_pack(plan: Plan, settings: Settings, machine: Machine) -> Plan:
    """The plan with the bytes of the packed form, where one is made of its GGUF files beside them."""
    model = plan.parts[0]
    texts = next((part for part in plan.parts if part.beside), None)
    if not model.source.gguf or kept(model, settings.quantize, texts):
        return plan
    cache, paths = hub_places().cache, Paths(home())
    if _disk(cache) != _disk(paths.imports):
        return plan
    return replace(plan, packed_bytes=_packed(model, settings, machine)[1])


def _packed(part: Part, settings: Settings, machine: Machine) -> tuple[str, int]:
    """The packing that a model will be kept in, as far as can be told, and at least about how many bytes that is."""
    bits = next((most for digits, most in _BITS.items() if re.search(rf"(^|-)(Q|B?FP?){digits}", part.source.gguf)), 32)
    weights = int(part.weights * 8 / bits)
    asked, usable = asked_packing(settings), machine.devices[-1].usable
    sizes = {packing: packed(weights, 0, packing, "native") for packing in ([asked] if asked else FILED)}
    packing = next((one for one in sizes if sizes[one] <= usable), [*sizes][-1])
    return packing, sizes[packing]


def _disk(path: Path) -> int:
    """The number of the disk that a file at this path would lie on."""
    return next(parent for parent in (path, *path.parents) if parent.exists()).stat().st_dev


def pack_fetched(part: Part, settings: Settings, reporter: Reporter, texts: Part | None = None) -> Packed:
    """Packs the file of a part under the name of its source, and deletes what was fetched for it.

    `texts` are the model's own, which are taken in place of those in the file. What was there before stays; so does all
    that was fetched where it cannot be packed. Raises what `importing.pack_fetched` raises, and LocalspecError for a
    model that cannot be opened then, or of fewer bits than its own weights were replaced for.
    """
    from localspec.native.pack import read_texts
    from localspec.native.target import NativeTarget  # numpy

    source, path = str(part.source), snapshot(part.source, part.commit)
    file, origin = path / part.files[0].name, Origin(source, "", part.license, source, part.commit)
    try:
        own = read_texts(snapshot(texts.source, texts.commit)) if texts else None
        if texts:
            _check_types(file)
        done = importing.pack_fetched(file, settings, reporter, origin, own)
        NativeTarget.open(done.path, quantize=done.header.packing)  # nothing else will be left of it
    except LocalspecError as error:
        instead = f"; the weights themselves come with --original, from {texts.source}" if texts else ""
        why = str(error).rstrip(".").replace("fetch it again, or choose", "choose")  # it is what the hub has
        raise type(error)(f"{why}{instead}; what was fetched stays until `localspec rm {source}`: {file}.") from None
    for one in packed_files(Paths(home())):
        former = one.header.origin.commit != part.commit or (texts is not None and not _holds(one, texts))
        if one.header.origin.repo == source and former:
            with suppress(OSError):
                one.path.unlink(missing_ok=True)
    deleted = discard_fetched(part) + (discard_fetched(texts) if texts else 0)
    return Packed(part.source, done.path, done.path.stat().st_size, deleted)


def _check_types(file: Path) -> None:
    """Raises LocalspecError for a file whose matrices have fewer bits than its name says."""
    from localspec.gguf.model import GgufModel  # numpy

    if fewer := sorted({*GgufModel.open(file).types} - _EIGHT_BITS):
        raise LocalspecError(
            f"{file.name} holds weights in {', '.join(fewer)}, which are fewer bits than its name says"
        )
