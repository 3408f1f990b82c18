"""Models that LM Studio and Ollama keep: found, named, and never those that cannot be a model."""

import json
from pathlib import Path

import pytest

from localspec.weights.packed_files import models_below, models_of_others, ollama_name

GGUF = b"GGUF" + bytes(60)


def ollama(folder: Path, name: str, digest: str, content: bytes = GGUF, kind: str = "model", **more: object) -> Path:
    """Write a model as Ollama keeps it; `name` is HOST/OWNER/NAME/TAG."""
    blob = folder / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layer = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", **more}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [{"mediaType": "x", "digest": "sha256:0"}, layer]}))
    return blob


def test_models_of_both_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".lmstudio" / "models" / "owner" / "repo"
    folder.mkdir(parents=True)
    for name in ("One-Q4_K_M.gguf", "mmproj-One.gguf", "Two-00001-of-00002.gguf", "Two-00002-of-00002.gguf", "x.txt"):
        (folder / name).write_bytes(GGUF)
    (folder / "Three-00001-of-00002.gguf").write_bytes(GGUF)  # its other part is missing
    own = ollama(tmp_path / ".ollama" / "models", "registry.ollama.ai/library/llama3.2/3b", "ab12")
    other = ollama(tmp_path / "moved", "hf.co/me/tiny/latest", "cd34")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "moved"))
    found = {one.name: (one.path, one.program, one.bytes) for one in models_of_others()}
    assert found == {
        "One-Q4_K_M": (folder / "One-Q4_K_M.gguf", "LM Studio", 64),
        "Two-00001-of-00002": (folder / "Two-00001-of-00002.gguf", "LM Studio", 128),
        "llama3.2:3b": (own, "Ollama", 64),
        "me/tiny:latest": (other, "Ollama", 64),
    }
    assert (ollama_name(own), ollama_name(other)) == ("llama3.2-3b", "me/tiny-latest")
    assert ollama_name(folder / "One-Q4_K_M.gguf") is None


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"{", b'{"layers": 3}', b'{"layers": [3, {}]}', b"\xff" * 9,
                 b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}]}'],
)  # fmt: skip
def test_a_manifest_that_names_no_model(tmp_path: Path, manifest: bytes) -> None:
    ollama(tmp_path, "h/library/good/latest", "ab")
    bad = tmp_path / "manifests" / "h" / "library" / "bad" / "latest"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(manifest)
    assert [one.name for one in models_below(tmp_path)] == ["good:latest"]


def test_a_blob_that_is_gone_or_no_model(tmp_path: Path) -> None:
    ollama(tmp_path, "h/library/gone/latest", "ab").unlink()
    ollama(tmp_path, "h/library/text/latest", "cd", b"text")
    ollama(tmp_path, "h/library/adapter/latest", "ef", kind="adapter")
    (tmp_path / "manifests" / "stray").write_text("{}")
    assert models_below(tmp_path) == [] == models_below(tmp_path / "nowhere")
