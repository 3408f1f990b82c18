"""The source of a model: a repository on the Hugging Face hub, one revision of it, and one type of its GGUF files."""

import re
from dataclasses import dataclass

from localspec.errors import UsageMistake

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+)", re.IGNORECASE)
_IN_REPOSITORY = re.compile(r"([^/]+/[^/:@]+)/(tree|blob|resolve)/([^/]+)(?:/(.+))?")
_FILE_TYPE = re.compile(r".*?[-._]((?:UD-)?[A-Z]*\d[A-Z0-9_]*?)(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE)
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)*", re.ASCII)


@dataclass(frozen=True)
class Source:
    """The source of a model: a repository `org/repo`, and `revision`, which is a branch, a tag or a commit.

    `gguf` is a type of GGUF files, such as Q4_K_M, or empty.
    """

    repo: str
    revision: str = "main"
    gguf: str = ""

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Return the source that `org/repo[@revision][:TYPE]` names. Raises UsageMistake."""
        typed, text = text, _from_address(text)
        name, colon, gguf = text.partition(":")
        repo, at, revision = name.partition("@")
        # -- replaces / in the names of the cache's directories; the client refuses longer names.
        unsafe = ".." in text or "--" in repo or repo.endswith(".git") or len(repo) > 96 or len(revision) > 200
        unsafe = unsafe or bool(colon and not _TYPE.fullmatch(gguf))
        if not REPOSITORY.fullmatch(repo) or unsafe or (at and not _REVISION.fullmatch(revision)):
            raise UsageMistake(
                f"{typed!r} names no repository of the hub; write org/repo, org/repo@revision, or for GGUF files "
                "org/repo:TYPE."
            )
        return cls(repo, revision or "main", gguf.upper())

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{at}{f':{self.gguf}' if self.gguf else ''}"


def is_address(text: str) -> bool:
    """Return whether a text is a web address on the hub: hf.co/… or https://huggingface.co/…."""
    return _ADDRESS.fullmatch(text) is not None


def _from_address(text: str) -> str:
    """Return the `org/repo[@revision][:TYPE]` in a web address on the hub. Other texts are returned unchanged."""
    if (address := _ADDRESS.fullmatch(text.strip())) is None:
        return text
    path = re.split(r"[?#]", address[1])[0].strip("/")
    if (within := _IN_REPOSITORY.fullmatch(path)) is None:
        return path
    repo, _, revision, file = within.groups()
    kind = _FILE_TYPE.fullmatch(file or "")
    return f"{repo}{'' if revision == 'main' else f'@{revision}'}{f':{kind[1]}' if kind else ''}"
