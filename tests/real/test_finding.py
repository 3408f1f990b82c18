"""The models of these tests are found by what they hold."""

from pathlib import Path

import pytest
from real import finding
from real.finding import Published


def test_a_model_is_found_by_its_digest_and_not_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(finding.FOLDER, str(tmp_path))
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    monkeypatch.setitem(finding.MODELS, "abc", Published("abc", digest, 3))
    assert finding.find("abc") is None
    (tmp_path / "abc.gguf").write_bytes(b"abd")
    assert finding.find("abc") is None
    (tmp_path / "other.gguf").write_bytes(b"abc")
    assert finding.find("abc") == tmp_path / "other.gguf"
