"""`localspec import FOLDER`, and models of other programs in `doctor`."""

import json
from pathlib import Path

import pytest
import tiny_models
from cli.test_import import SHAPE, measured  # noqa: F401
from command import called
from gguf_files import write_model
from golden import wording
from transformers import LlamaConfig
from weights.test_other_programs import ollama


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_models.write(path, LlamaConfig(**SHAPE), tiny_models.byte_tokenizer(), 0)


@pytest.mark.slow
def test_all_models_of_a_folder_are_imported_and_the_others_are_named(tmp_path: Path, directory: Path) -> None:
    folder = tmp_path / "files"
    (folder / "below").mkdir(parents=True)
    write_model(folder / "below" / "tiny.gguf", directory, "Q8_0")
    content = write_model(tmp_path / "x.gguf", directory, "F32").read_bytes()
    ollama(folder, "registry.ollama.ai/library/small/1b", "ab12", content)
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    result = called(tmp_path, "import", str(folder), "--json")
    assert result.returncode == 1 and wording("broken_left_out") in result.stderr
    assert {one["name"] for one in json.loads(result.stdout)} == {"small-1b", "tiny"}
    (folder / "broken.gguf").unlink()
    (folder / "lost.gguf").symlink_to(tmp_path / "nothing.gguf")
    (folder / "part-00002-of-00003.gguf").write_bytes(content)
    lacking = called(tmp_path, "import", str(folder))
    assert lacking.returncode == 1 and lacking.stdout.count("imported before") == 2
    assert wording("lost_gguf_left_out", tmp_path=tmp_path) in lacking.stderr
    assert wording("part_gguf_left_out") in lacking.stderr and lacking.stderr.count("\n") == 2
    (folder / "lost.gguf").unlink()
    (folder / "part-00002-of-00003.gguf").unlink()
    again = called(tmp_path, "import", str(folder))
    assert again.returncode == 0 and again.stdout.count("imported before") == 2
    assert called(tmp_path, "run", "Hi", "-m", "small-1b", "-n", "2").returncode == 0


def test_a_folder_without_models(tmp_path: Path) -> None:
    result = called(tmp_path, "import", str(tmp_path))
    assert result.returncode == 2 and wording("directory_without_gguf_files") in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_doctor_names_models_of_other_programs_until_they_are_imported(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".lmstudio" / "models" / "it's"
    place.mkdir(parents=True)
    file = write_model(place / "tiny.gguf", directory, "Q8_0")
    assert wording("lm_studio_has_tiny") in called(tmp_path, "doctor").stdout.replace("\n", " ")
    [found] = json.loads(called(tmp_path, "doctor", "--json").stdout)["found"]
    assert found == {"name": "tiny", "program": "LM Studio", "path": str(file), "bytes": file.stat().st_size}
    assert called(tmp_path, "import", str(file)).returncode == 0
    assert json.loads(called(tmp_path, "doctor", "--json").stdout)["found"] == []
