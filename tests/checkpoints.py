"""Small directories in the Hugging Face layout, written with only the standard library."""

import json
import struct
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 512,
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """Return a file of zeros in float32."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def write_checkpoint(path: Path, config: object = CONFIG, shapes: dict[str, list[int]] | None = None) -> Path:
    """Write config.json, tokenizer.json and model.safetensors; 44 parameters by default."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(safetensors(shapes or {"a": [4, 10], "b": [4], "empty": [0]}))
    return path


def write_drafter(path: Path, model: Path, kind: str = "medusa") -> Path:
    """Write a directory that counts as a trained drafter of the model. Return its file of weights."""
    from localspec.weights.checkpoint import revision

    path.mkdir(parents=True)
    about = {"format": 1, "kind": kind, "options": {}, "target": {"name": "mine", "revision": revision(model)}}
    (path / "drafter.json").write_text(json.dumps(about))
    (file := path / "drafter.safetensors").write_bytes(safetensors({"w": [4]}))
    return file


def change_config(path: Path, **values: object) -> Path:
    """Change values in the config.json of a directory, and return the directory."""
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**content, **values}))
    return path
