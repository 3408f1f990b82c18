"""What is timed, made once in a folder: the widened demo, and the same weights as llama.cpp's files."""

import ctypes
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import gguf_writer
import llama_cpp_model
from widen_demo import widen

from localspec.families.model_config import ModelConfig
from localspec.weights.checkpoint import inspect, read_config, revision

FACTORS = {"small": 8, "large": 16}  # 0.4 B and 1.4 B
CONTEXT = 32768  # the context that the widened demo claims


@dataclass(frozen=True)
class Model:
    """A directory in the Hugging Face layout, with its draft model in `draft`, and files of llama.cpp made of both."""

    path: Path
    work: Path
    threads: int
    flash: bool = True  # llama.cpp's flash attention

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def config(self) -> ModelConfig:
        return ModelConfig.of(read_config(self.path))

    @property
    def parameters(self) -> int:
        return inspect(self.path).parameters

    @property
    def draft(self) -> "Model":
        return replace(self, path=self.path / "draft")

    @cached_property
    def _stem(self) -> Path:
        folder = self.work / "gguf"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name}-{revision(self.path)[:8]}"

    def gguf(self, kind: str) -> Path:
        """Return the file of this kind; llama.cpp's own quantiser makes it where it is missing."""
        file = Path(f"{self._stem}-{kind}.gguf")
        if not file.exists():
            dense, partial = Path(f"{self._stem}-f16.gguf"), file.with_suffix(".partial")
            gguf_writer.write(dense, self.path, self.config, "f16")
            try:
                gguf_writer.quantise(dense, partial, kind, self.threads)
            finally:
                dense.unlink()
            partial.rename(file)
        return file

    def state(self, tokens: int) -> Path:
        """Return a file with llama.cpp's keys and values after `tokens` tokens: reading the tokens again takes minutes."""
        file = Path(f"{self._stem}-{tokens}-{'flash' if self.flash else 'plain'}.state")
        if not file.exists():
            peer = llama_cpp_model.Gguf(self.gguf("q4_0"), self.config.vocab_size, tokens, flash=self.flash)
            peer.set_threads(self.threads)
            peer.read(some_tokens(tokens, self.config.vocab_size))
            partial, ids = file.with_suffix(".partial"), (ctypes.c_int32 * 1)(0)
            llama_cpp_model.library().llama_state_seq_save_file(peer.context, str(partial).encode(), 0, ids, 1)
            peer.close()
            partial.rename(file)
        return file


def widened(name: str, work: Path, threads: int) -> Model:
    """Return the widened demo of this name, made where it is not there yet."""
    path = work / name
    if not path.exists():
        widen(path, FACTORS[name], CONTEXT)
    return Model(path, work, threads)


def some_tokens(count: int, vocabulary: int) -> list[int]:
    """Tokens that have no meaning."""
    return [(7 + 31 * place) % vocabulary for place in range(count)]
