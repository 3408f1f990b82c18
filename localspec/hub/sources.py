"""Where models come from: a repository of the Hugging Face hub, at one of its revisions."""

import re
from dataclasses import dataclass

from localspec.errors import UsageMistake

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)*", re.ASCII)


@dataclass(frozen=True)
class Source:
    """`org/repo`, and a branch, a tag or a commit of it."""

    repo: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> "Source":
        """The source that `org/repo[@revision]` names. Raises UsageMistake."""
        repo, at, revision = text.partition("@")
        # -- stands for / in the names of the cache's directories; the client refuses longer names.
        unsafe = ".." in text or "--" in repo or repo.endswith(".git") or len(repo) > 96 or len(revision) > 200
        if not _REPO.fullmatch(repo) or unsafe or (at and not _REVISION.fullmatch(revision)):
            raise UsageMistake(f"{text!r} names no repository of the hub; write org/repo, or org/repo@revision.")
        return cls(repo, revision or "main")

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"
