"""Plans a pull: finds out from the server which files must be fetched, with their sizes and digests.

Models that localspec cannot run are refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.environment import hub_places
from localspec.errors import LocalspecError
from localspec.families.table import ARCHITECTURES, supported
from localspec.hub.cache import HEADS, TOKENIZER, cached, damage
from localspec.hub.cached_gguf import of_type, types_listed
from localspec.hub.client import client, localspec_errors, must_be_online, page, server
from localspec.hub.records import COMMIT, GGUF_NAME, NAME, ExpectedFile, is_valid
from localspec.hub.sources import Source
from localspec.outside_files import parse_json, read_bytes
from localspec.paths import free_disk
from localspec.published_heads import kind_of_heads, why_not_read
from localspec.text import LONGEST_LICENSE, one_line
from localspec.weights.checkpoint import HEAD_PREFIX, PICKLED_INDEX

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
PICKLED = "pytorch_model.bin"
_TEXT_FILES = re.compile(
    r"[\w.-]+\.json|[\w.-]+\.model|[\w.-]+\.jinja|merges\.txt|vocab\.txt"
    r"|(?i:(licen[cs]e|notice|copying)([_-][\w-]*)?(\.(txt|md|rst))?)|(?i:readme\.md)",
    re.ASCII,
)
_PICKLED = re.compile(r"[\w.-]+\.(bin|pt|pth|ckpt|pkl)", re.ASCII)
_LONGEST = 2**50  # bytes of a file; no real file is longer
_READ_FIRST = 2**25  # bytes of a config.json or index that is read for a plan, at most


@dataclass(frozen=True)
class Part:
    """The files to fetch from one revision of a repository.

    `heads` is the kind of drafter in the files, or empty for a model. If `whole`, the files are pickles that contain a
    model and its Medusa heads. If `texts_only`, the files are only a model's config and tokenizer, and the previous
    part has its weights. `here` are the names of the files that are in the cache already.
    """

    source: Source
    commit: str
    files: tuple[ExpectedFile, ...]
    here: frozenset[str]
    config: Mapping[str, Any]
    heads: str = ""
    whole: bool = False
    texts_only: bool = False
    license: str | None = None
    gated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> int:
        """The bytes of the weight files."""
        return sum(file.bytes for file in self.files if is_weights(file.name))


@dataclass(frozen=True)
class Plan:
    """All downloads of a pull. `disk_free` is the number of free bytes on the cache's disk."""

    parts: tuple[Part, ...]
    disk_free: int

    @property
    def bytes(self) -> int:
        return sum(file.bytes for part in self.parts for file in part.files)

    @property
    def cached_bytes(self) -> int:
        return sum(file.bytes for part in self.parts for file in part.files if file.name in part.here)

    @property
    def fetch_bytes(self) -> int:
        return self.bytes - self.cached_bytes

    @property
    def fits_on_disk(self) -> bool:
        return self.fetch_bytes <= self.disk_free


def is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".pt", ".bin", ".gguf"))


# -- the plan ----------------------------------------------------------------------------------------------------------


def plan(sources: Sequence[Source]) -> Plan:
    """Return the plan of a pull, from the server's lists of files. Only config.json and weight indices are fetched.

    Raises NotHere (no such repository, or offline), NotAllowed (gated), and LocalspecError for unsupported models or a
    failure of the server.
    """
    must_be_online(f"Fetching {sources[0] if sources else 'a model'}")
    parts = []
    for source in sources:
        with localspec_errors(source):
            parts.append(_part(source))
    return Plan(tuple(parts), free_disk_bytes())


def free_disk_bytes() -> int:
    """Return the bytes that are free on the cache's disk."""
    return free_disk(hub_places().cache)


def _part(source: Source) -> Part:
    api = client().HfApi(endpoint=hub_places().endpoint)
    info = api.model_info(
        source.repo, revision=source.revision, files_metadata=True, timeout=client().constants.HF_HUB_ETAG_TIMEOUT
    )
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise ValueError("no commit")
    # Only files with a harmless name, next to config.json except for GGUF: no directories, nothing outside.
    files = {
        file.rfilename: ExpectedFile(
            file.rfilename, file.lfs.size if file.lfs else file.size, file.lfs.sha256 if file.lfs else file.blob_id
        )
        for file in info.siblings or ()
        if isinstance(file.rfilename, str) and (NAME.fullmatch(file.rfilename) or GGUF_NAME.fullmatch(file.rfilename))
    }
    known = {name: file for name, file in files.items() if "/" not in name}

    def read(name: str) -> dict[str, Any]:
        return _read(source, info.sha, known[name])

    if source.gguf:
        header = getattr(info, "gguf", None)
        config = {"architecture": header.get("architecture")} if isinstance(header, dict) else {}
        return _planned(source, info, config, of_type(source, list(files.values())))
    if not {WEIGHTS, INDEX, *HEADS, PICKLED_INDEX} & known.keys() and (
        listed := types_listed(source, list(files.values()))
    ):
        raise LocalspecError(listed)
    config = read(CONFIG) if CONFIG in known else {}
    heads = kind_of_heads(config) or ""
    weights = _weight_names(source, known, read, heads)
    heads = heads or ("medusa" if weights[0] in HEADS else "")
    whole = weights[0].endswith(".bin") and not heads
    notes = () if heads else _check_supported(source, config)
    if not heads and TOKENIZER not in known:
        raise LocalspecError(
            f"{source} has no tokenizer that localspec reads ({TOKENIZER}); choose a model that has one."
        )
    texts = (name for name in known if _TEXT_FILES.fullmatch(name) and not name.endswith(".index.json"))
    index = [PICKLED_INDEX if whole else INDEX] if weights[0] != WEIGHTS and not heads else []
    index += [INDEX] if heads and weights[0] not in (WEIGHTS, PICKLED, *HEADS) else []
    names = [*sorted(texts), *index, *weights]
    return _planned(source, info, config, [known[name] for name in names], heads=heads, whole=whole, notes=notes)


def _planned(source: Source, info: Any, config: Mapping[str, Any], files: Sequence[ExpectedFile], **more: Any) -> Part:
    """Return the download of `files`. Raises ValueError for an invalid file, LocalspecError for an impossible size."""
    if odd := next((file for file in files if not is_valid(file)), None):
        raise ValueError(f"the answer lacks a valid length or digest of {odd.name}")
    if endless := next((file for file in files if file.bytes > _LONGEST), None):
        raise LocalspecError(
            f"{server()} announces more than a million GiB for {endless.name} of {source}, which is impossible; "
            "choose another model, or try again."
        )
    here = frozenset(file.name for file in files if cached(source, info.sha, file))
    return Part(
        source, info.sha, tuple(files), here, config, license=_license(info), gated=bool(info.gated), **more
    )  # fmt: skip


def _weight_names(
    source: Source, known: Mapping[str, ExpectedFile], read: Callable[[str], Any], heads: str
) -> list[str]:
    """Return the names of a repository's weight files. Copies in other formats are left out."""
    if WEIGHTS in known:
        return [WEIGHTS]
    if INDEX in known:
        return sorted(set(_table(source, known, read, INDEX, ".safetensors").values()))
    for name in HEADS:
        if name in known:
            return [name]
    if PICKLED_INDEX in known:
        table = _table(source, known, read, PICKLED_INDEX, ".bin")
        if any(name.startswith(HEAD_PREFIX) for name in table):  # read as data, like separate heads
            return sorted(set(table.values()))
    if heads == "eagle3" and PICKLED in known:  # read as data, too
        return [PICKLED]
    if pickled := sorted(name for name in known if _PICKLED.fullmatch(name)):
        raise LocalspecError(
            f"{source} has its weights only as pickle ({pickled[0]}), which may run code when it is read; choose a "
            f"revision or a copy with safetensors, see {page(source)}."
        )
    raise LocalspecError(f"{source} has no weights that localspec reads; it needs {WEIGHTS}, or {INDEX} and its files.")


def _table(
    source: Source, known: Mapping[str, ExpectedFile], read: Callable[[str], Any], index: str, suffix: str
) -> dict[str, str]:
    """Return which file has each tensor, from the weight_map of an index.

    Raises LocalspecError for an invalid index.
    """
    table = read(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise LocalspecError(f"{index} of {source} has no weight_map; choose another model.")
    for name in sorted({str(name) for name in table.values()}):
        if not name.endswith(suffix) or name not in known:
            kind = "safetensors file" if suffix == ".safetensors" else "file of weights"
            raise LocalspecError(
                f"{index} of {source} names {name[:100]!r}, which is not a {kind} in the same directory; choose "
                "another model."
            )
    return table


def _check_supported(source: Source, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes for the user about a model, by its config.json. Raises LocalspecError if localspec cannot run it."""
    if not config:
        raise LocalspecError(
            f"{source} has no config.json, so it is not a model in the Hugging Face layout; choose another."
        )
    if why := why_not_read(config):
        raise LocalspecError(f"{source} cannot be used: it is {why}.")
    names = config.get("architectures")
    architecture = str(names[0])[:80] if isinstance(names, list) and names else None
    own_code = isinstance(config.get("auto_map"), dict)
    if architecture not in ARCHITECTURES or config.get("model_type") != ARCHITECTURES[architecture]:
        problem = (
            f"{source} is of the architecture {architecture}" if architecture else f"{source} names no architecture"
        )
        code = " and comes with code (auto_map), which localspec never runs" if own_code else ""
        raise LocalspecError(f"{problem}{code}; {supported(architecture)}")
    if packed := config.get("quantization_config"):
        method = str(packed.get("quant_method", "unknown") if isinstance(packed, dict) else packed)[:80]
        raise LocalspecError(
            f"The weights of {source} are packed ({method}), which localspec does not read; choose the model's bf16 or "
            "fp16 weights."
        )
    # Many models of a supported architecture still name code that was needed before transformers supported them.
    return ("The model comes with code (auto_map), which is neither fetched nor run.",) if own_code else ()


def _read(source: Source, commit: str, file: ExpectedFile) -> dict[str, Any]:
    """Return the object in a small JSON file of a repository, from the cache or else from the server."""
    if not is_valid(file) or file.bytes > _READ_FIRST:
        raise ValueError(f"{file.name} has an impossible length")
    content = b""
    if (here := cached(source, commit, file)) and not damage(here, file):
        content = read_bytes(here)
    else:
        hub = client()
        url = hub.hf_hub_url(source.repo, file.name, revision=commit, endpoint=hub_places().endpoint)
        headers = hub.utils.build_hf_headers()
        with hub.get_session().stream(
            "GET", url, headers=headers, timeout=hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        ) as response:
            hub.utils.hf_raise_for_status(response)
            for piece in response.iter_bytes():
                content += piece
                if len(content) > file.bytes:
                    raise ValueError(f"{file.name} is longer than announced")
    try:
        value = parse_json(content)
        if isinstance(value, dict):
            return value
    except ValueError:
        pass
    raise LocalspecError(f"{file.name} of {source} is not a JSON object; choose another model, or try again.")


def _license(info: Any) -> str | None:
    """Return the license in a repository's model card, shortened."""
    names = [getattr(info.card_data, name, None) for name in ("license", "license_name")] if info.card_data else []
    chosen = (
        next((name for name in reversed(names) if name), None)
        if names and names[0] == "other"
        else next(iter(names), None)
    )
    if isinstance(chosen, list):
        chosen = ", ".join(map(str, chosen))
    return one_line(str(chosen))[:LONGEST_LICENSE] if chosen else None
