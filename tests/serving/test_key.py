"""The file with the key: written completely or not at all, and readable only by its owner."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest
from golden import matching, wording

from localspec.errors import LocalspecError
from localspec.serving.guard import Guard, serving_key


@pytest.fixture(autouse=True)
def _none_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_SERVE_KEY", raising=False)


def test_a_full_disk_leaves_no_key_and_the_next_start_makes_one(tmp_path: Path, monkeypatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "data" / "serving.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(LocalspecError, match=f"{matching('cannot_be_kept')} .*No space left.*LOCALSPEC_SERVE_KEY"):
            serving_key(file)
    assert [*file.parent.iterdir()] == []
    key = serving_key(file)
    assert (file.read_text(), serving_key(file)) == (key, key) and [*file.parent.iterdir()] == [file]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_empty_key_file_is_made_again_but_another_text_stays(tmp_path: Path) -> None:
    file = tmp_path / "serving.key"
    file.write_text("\n")
    file.chmod(0o644)
    assert len(serving_key(file)) > 40 and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("mine")
    with pytest.raises(LocalspecError, match=matching("holds_no_key_delete_it")):
        serving_key(file)
    assert file.read_text() == "mine"


def test_a_key_that_others_could_read_is_made_private_with_one_notice(tmp_path: Path) -> None:
    file, told = tmp_path / "serving.key", list[str]()
    key = serving_key(file, told.append)
    assert told == []
    file.chmod(0o644)
    assert [serving_key(file, told.append) for _ in range(2)] == [key, key]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(told) == 1 and wording("others_could_read") in told[0] and "delete the file" in told[0]


@pytest.mark.parametrize("sent", [[], [(b"authorization", b"Bearer ")], [(b"authorization", b"Bearer None")]])
def test_without_a_key_nothing_but_the_socket_is_let_in(sent) -> None:
    statuses: list[int] = []

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message) -> None:
        statuses.append(message.get("status", 0))

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def ask(port: int | None) -> None:
        headers = [(b"host", b"localhost"), *sent]
        await Guard(app, None)({"type": "http", "server": ("a", port), "headers": headers}, receive, send)

    asyncio.run(ask(8000))
    assert statuses[0] == 401
    statuses.clear()
    asyncio.run(ask(None))
    assert statuses == [200]
