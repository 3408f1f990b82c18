"""`localspec run` reports what is wrong with a model's directory in one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import change_config
from cli.run.run_command import refused
from each import each
from golden import wording

from localspec.models.tokenizer import Tokenizer, _failed
from localspec.paths import Paths
from localspec.store.store import Store


# A model's directory, and the damage to it -> exit code and words of the sentence.
def _config(**changes: object) -> Callable[[Path], object]:
    return lambda path: change_config(path, **changes)


def _text(name: str, content: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(content)


def _tensors(**changes: Callable[[Any], Any] | None) -> Callable[[Path], object]:
    """Return damage that replaces tensors in the file; None removes one."""

    def change(path: Path) -> None:
        import numpy as np
        from safetensors.numpy import load_file, save_file

        tensors = load_file(path / "model.safetensors")
        for name, make in changes.items():
            tensor = tensors.pop(name)
            if make is not None:
                tensors[name] = np.array(make(tensor))
        save_file(tensors, path / "model.safetensors")

    return change


def _smaller_vocabulary(path: Path) -> None:
    """Return damage that leaves fewer embeddings than the tokenizer has tokens."""
    cut = {EMBEDDING: lambda tensor: tensor[:200], "lm_head.weight": lambda tensor: tensor[:200]}
    _tensors(**cut)(path)
    _config(vocab_size=200, eos_token_id=1)(path)


def _cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


EMBEDDING, GATE, SIZE = "model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", 256 + 4 + 7  # `hello`


DAMAGE: dict[str, tuple[Callable[[Path], object], int, list[str]]] = {
    "no directory": (shutil.rmtree, 3, [wording("there_is_no_directory")]),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), 3, ["no weights"]),
    "no config": (lambda path: (path / "config.json").unlink(), 3, ["config.json"]),
    "pickle only": (lambda path: (path / "model.safetensors").rename(path / "model.bin"), 1, ["pickle", "model.bin"]),
    "architecture": (_config(architectures=["BertModel"]), 1, ["BertModel", "localspec supports Llama, "]),
    "broken config": (_text("config.json", "{"), 1, ["config.json"]),
    "list as config": (_text("config.json", "[]"), 1, ["config.json"]),
    "no model type": (_config(model_type=None), 1, ["config.json"]),
    "words for numbers": (_config(hidden_size="big"), 1, ["config.json"]),
    "no heads": (_config(num_attention_heads=0), 1, ["config.json"]),
    "no layers": (_config(num_hidden_layers=-1), 1, ["config.json"]),
    "more layers": (_config(num_hidden_layers=2), 1, ["model.layers.1."]),
    "activation": (_config(hidden_act="gelu"), 1, ["gelu"]),
    "positions": (_config(rope_scaling={"rope_type": "spiral"}), 1, ["spiral"]),
    "no context": (_config(max_position_embeddings=0), 1, ["config.json"]),
    "cut": (_cut, 1, ["model.safetensors", "cut short"]),
    "garbage": (_text("model.safetensors", "garbage " * 100), 1, ["model.safetensors"]),
    "empty": (_text("model.safetensors", ""), 1, ["model.safetensors"]),
    "rows": (_config(vocab_size=SIZE + 1), 1, ["embed_tokens", str(SIZE)]),
    "columns": (_tensors(**{GATE: lambda gate: gate[:, :-1]}), 1, [GATE]),
    "wider": (_config(intermediate_size=3), 1, ["mlp."]),
    "flat": (_tensors(**{EMBEDDING: lambda embedding: embedding.reshape(-1)}), 1, [EMBEDDING]),
    "norm": (_tensors(**{"model.norm.weight": lambda norm: norm[None]}), 1, ["model.norm.weight"]),
    "scalar": (_tensors(**{"model.norm.weight": lambda norm: norm[0]}), 1, ["model.norm.weight"]),
    "missing tensor": (_tensors(**{"model.norm.weight": None}), 1, ["model.norm.weight"]),
    "smaller vocabulary": (_smaller_vocabulary, 1, ["vocab"]),
    "no tokenizer": (lambda path: (path / "tokenizer.json").unlink(), 1, ["tokenizer"]),
    "broken tokenizer": (_text("tokenizer.json", "{"), 1, ["tokenizer"]),
    "odd tokenizer": (_text("tokenizer_config.json", "[]"), 1, ["tokenizer"]),
    "broken template": (_text("chat_template.jinja", "{% for %}"), 1, ["template"]),
    "refusing template": (_text("chat_template.jinja", "{{ raise_exception('no\\nway') }}"), 1, ["template"]),
    "broken generation": (_text("generation_config.json", "{"), 1, ["generation_config.json"]),
}  # fmt: skip


@pytest.mark.slow
@each("damage", DAMAGE)
def test_damaged_models(run, tmp_path, hello, damage):
    change, code, said = DAMAGE[damage]
    path = tmp_path / "model"
    shutil.copytree(hello.path, path)
    change(path)
    refused(run("-m", path, "hi"), code, *said)


@pytest.mark.slow
def test_a_tokenizer_that_panics_in_the_midst_of_a_reply_costs_nothing_that_was_said(run, home, long, monkeypatch):
    class PanicException(BaseException):  # like the library's exception, which cannot be imported
        pass

    def fails(self: Tokenizer, tokens: list[int], skip_special_tokens: bool = False) -> str:
        calls.append(tokens)
        if len(calls) == 12:
            raise _failed(self._path, PanicException("no end"))
        return str(self.backend.decode(tokens, skip_special_tokens=skip_special_tokens))

    calls: list[list[int]] = []
    monkeypatch.setattr(Tokenizer, "decode", fails)
    result = run("Hi", "-m", long.path)
    assert result.code == 1 and result.out.startswith("one two three")
    assert result.err.splitlines()[-1].startswith(wording("localspec_tokenizer_cannot_read", path=long.path))
    with Store.open(Paths(home).database, pytest.fail) as store:
        [info] = store.history.conversations()
        saved = store.history.read(info.id)
    assert saved is not None and saved.turns[0].reply == result.out.rstrip("\n") and saved.turns[0].reason is not None
