"""Everything in research/ imports, its programs answer --help, and experiments continue after any end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT

# Run in one child process: it leaves no module and no path behind, and imports torch once.
TRY_ALL = """
import contextlib, importlib, io, pathlib, runpy, sys
research = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(research))
failed = []
for file in sorted(research.rglob("*.py")):
    name = ".".join(file.relative_to(research).with_suffix("").parts).removesuffix(".__init__")
    out = io.StringIO()
    try:
        if file.parent == research and "__main__" in file.read_text("utf-8"):
            sys.argv = [str(file), "--help"]
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                runpy.run_path(str(file), run_name="__main__")
            if not out.getvalue().startswith(f"usage: {file.name}"):
                failed.append(f"{name}: no help")
        else:
            importlib.import_module(name)
    except BaseException as error:
        failed.append(f"{name}: {error!r}")
print(" | ".join(failed), end="")
"""


# The first results, then a line that a kill cut off, then later runs: one that may add nothing, and one that may.
CONTINUE = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from experiment import OutOfTime, Results
file, made = pathlib.Path(sys.argv[2]), []
def make(name):
    return lambda: made.append(name) or {"name": name}
def late():
    raise OutOfTime
first = Results(file)
first.of("a", make("a")), first.of("b", make("b")), first.of("c", late)
with file.open("a") as cut:
    cut.write('{"key": "d", "va')
over = Results(file, minutes=1e-9)
print([over.of(key, make(key)) for key in "abcd"])
last = Results(file)
last.measuring = False
print(last.of("d", make("d")))
last.measuring = True
print(last.of("d", make("d")), made, len(file.read_text().splitlines()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
def test_results_of_an_experiment_continue_after_a_line_that_was_cut(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONTINUE, str(ROOT / "research"), str(tmp_path / "results.jsonl")]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert tried.stdout.splitlines() == [
        "[{'name': 'a'}, {'name': 'b'}, None, None]",
        "None",
        "{'name': 'd'} ['a', 'b', 'd'] 3",
    ], tried.stderr


# A training that ends in several ways; one of which a kill left the result and part of the checkpoint; one that was
# stopped; and one that still runs. A shell script stands for localspec.
STOPPED = """
import json, pathlib, shutil, sys
from types import SimpleNamespace
research, demo, out = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(research))
from experiment import OutOfTime, Results, Variant, trained
from localspec.errors import LocalspecError
from localspec.training.directory import Lock
options = SimpleNamespace(out=out, model="demo", data=[out / "text.jsonl"], distilled=None, steps=2)
file, variant = out / "results.jsonl", Variant("medusa")
directory = variant.directory(0, options)
def attempt(ends):
    script = out / "python"
    script.write_text(f"#!/bin/sh\\necho it ended >&2\\nexit {ends}\\n")
    script.chmod(0o755)
    sys.executable = str(script)
    try:
        found = trained(variant, 0, SimpleNamespace(options=options, results=Results(file)))
        print("parameters" in found, len(file.read_text().splitlines()))
    except (OutOfTime, LocalspecError) as error:
        print(type(error).__name__, error, file.exists())
for ends in (130, 2, 1):
    attempt(ends)
(directory / "checkpoint").mkdir(parents=True)
shutil.copytree(demo / "drafters" / "medusa", directory / "drafter")
state = directory / "checkpoint" / "state.json"
state.write_text(json.dumps({"asked": {"asked": {}, "options": {}}, "at_once": 1, "tensors": ""}))
attempt(3)
with Lock(directory) as lock:
    lock.take()
    attempt(0)
state.unlink()
attempt(4)
attempt(5)
"""


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
@pytest.mark.skipif(os.name == "nt", reason="it needs a shell")
def test_a_training_that_was_stopped_just_at_its_end_is_neither_refused_nor_made_again(tmp_path: Path) -> None:
    demo = ROOT / "localspec" / "demo"
    command = [sys.executable, "-c", STOPPED, str(ROOT / "research"), str(demo), str(tmp_path)]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = tried.stdout.splitlines()
    assert [*lines[:4], *lines[5:]] == [
        "OutOfTime  False",
        "LocalspecError it ended False",
        "LocalspecError it ended False",
        "LocalspecError it ended False",
        "True 1",
        "True 1",
    ], tried.stderr
    assert lines[4].startswith("UsageMistake Another training is running in") and lines[4].endswith("False")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
@pytest.mark.skipif(os.name == "nt", reason="some programs need a pseudo-terminal")
def test_every_module_imports_and_every_program_answers_help() -> None:
    command = [sys.executable, "-c", TRY_ALL, str(ROOT / "research")]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tried.returncode, tried.stdout) == (0, ""), tried.stderr


# A copy of a drafter in training, and the same drafter with fewer heads in int4, as it would ship.
COPIES = """
import json, pathlib, sys
from types import SimpleNamespace
research, model, out = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(research))
import numpy, ship_drafter, torch, train_growth
from safetensors.torch import save_file
from localspec.drafters.medusa import MedusaOptions
from localspec.drafters.tensors import StoredTensors
from localspec.models.drafter_cards import find_drafter, read_drafter
from localspec.models.registry import TargetCard
(model / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
save_file({"model.embed_tokens.weight": torch.arange(1000.0)}, model / "model.safetensors")
card = TargetCard("mine", model, None, "")
tensors = {"path.weight": torch.randn(3, 64, 128), "path.bias": torch.randn(3, 64)}
drafter = SimpleNamespace(
    kind="medusa", options=MedusaOptions(heads=3), tensors=lambda: tensors, train=lambda: print("trains again")
)
training = SimpleNamespace(measure=lambda: [[0.5], [0.25], [0.125]], state=SimpleNamespace(step=7))
train_growth.write_copy(SimpleNamespace(drafter=drafter, training=training), card, out / "copy")
copy = find_drafter(str(out / "copy"), card)
print(copy.kind, copy.target, copy.about["step"], bool(copy.revision and copy.weights))
about = out / "copy" / "drafter.json"
about.write_text(json.dumps(json.loads(about.read_text()) | {"acceptance": {"length": 2.0, "nodes": 8}}))
for heads in (2, 4):
    ship_drafter.write(out / "copy", out / f"{heads}", heads)
    small = read_drafter(out / f"{heads}")
    print(small.options["heads"], small.about["accuracy_by_depth"], small.generated)
    found, want = StoredTensors(small.path / "drafter.safetensors")["path.weight"], tensors["path.weight"].numpy()[:heads]
    print(found.shape, numpy.linalg.norm(found - want) < 0.15 * numpy.linalg.norm(want))
"""


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "research").is_dir(), reason="research/ is not here")
def test_a_copy_names_its_model_and_a_shipped_drafter_has_no_acceptance_from_before_it_was_packed(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    command = [sys.executable, "-c", COPIES, str(ROOT / "research"), str(model), str(tmp_path)]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in tried.stdout.splitlines() if " MB" not in line and not line.startswith("path.")]
    assert lines == [
        "trains again",
        "medusa mine 7 True",
        "2 [[0.5], [0.25]] None",
        "(2, 64, 128) True",
        "3 [[0.5], [0.25], [0.125]] None",
        "(3, 64, 128) True",
    ], tried.stderr
