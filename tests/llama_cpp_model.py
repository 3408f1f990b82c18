"""llama.cpp through the C functions of llama-cpp-python: several tokens at once, and no tokenizer."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 512  # tokens that it reads at once


@cache
def library() -> Any:
    """Return the library. It logs nothing from now on."""
    import llama_cpp

    llama_cpp.silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(llama_cpp.silence, None)
    llama_cpp.llama_backend_init()
    return llama_cpp


class Gguf:
    """A GGUF file, loaded, with one text in its cache."""

    def __init__(
        self,
        file: Path,
        vocabulary: int,
        room: int,
        *,
        on_gpu: bool = False,
        mapped: bool = False,
        flash: bool | None = None,
        wide_cache: bool = False,
    ) -> None:
        """`room` is the longest text in tokens; `flash` is flash attention, which is otherwise left to llama.cpp.

        Keys and values are in F16, or in F32 with a `wide_cache`. A file that is not `mapped` is read at once. Raise RuntimeError for a file that llama.cpp does not load.
        """
        self._library, self._vocabulary = library(), vocabulary
        model = self._library.llama_model_default_params()
        model.n_gpu_layers = 999 if on_gpu else 0
        if hasattr(model, "load_mode"):
            model.load_mode = self._library.LLAMA_LOAD_MODE_MMAP if mapped else self._library.LLAMA_LOAD_MODE_NONE
        else:  # older versions
            model.use_mmap = mapped
        self._model = self._library.llama_model_load_from_file(str(file).encode(), model)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {file}.")
        context = self._library.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = room, BATCH, BATCH
        if flash is not None:
            context.flash_attn_type = int(flash)
        if wide_cache:
            context.type_k = context.type_v = self._library.GGML_TYPE_F32
        self.context = self._library.llama_init_from_model(self._model, context)
        self._batch = self._library.llama_batch_init(BATCH, 0, 1)
        fields = ("token", "pos", "n_seq_id", "logits")
        self._token, self._place, self._texts, self._asked = (
            np.ctypeslib.as_array(getattr(self._batch, field), (BATCH,)) for field in fields
        )
        self._texts[:] = 1
        for row in range(BATCH):
            self._batch.seq_id[row][0] = 0

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from now on."""
        self._library.llama_set_n_threads(self.context, count, count)

    def logits(self, tokens: Sequence[int], start: int, last: bool = False) -> Any:
        """Return a numpy array [tokens, vocabulary] for up to 512 tokens from position `start` on; with `last` [1, …].

        The cache forgets everything from that position on.
        """
        count = len(tokens)
        self._library.llama_memory_seq_rm(self._library.llama_get_memory(self.context), 0, start, -1)
        self._batch.n_tokens = count
        self._token[:count], self._place[:count] = tokens, range(start, start + count)
        self._asked[:count] = not last
        self._asked[count - 1] = True
        if self._library.llama_decode(self.context, self._batch):
            raise RuntimeError("llama.cpp cannot compute a forward.")
        shape = (1 if last else count, self._vocabulary)
        return np.ctypeslib.as_array(self._library.llama_get_logits(self.context), shape)

    def read(self, tokens: Sequence[int]) -> Any:
        """Read a text from its beginning and return the logits [1, vocabulary] of its last token."""
        for start in range(0, len(tokens), BATCH):
            logits = self.logits(tokens[start : start + BATCH], start, last=True)
        return logits

    def close(self) -> None:
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self.context)
        self._library.llama_model_free(self._model)


def ids_of(file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids that llama.cpp gives to texts, with marks read as marks."""
    settings = library().llama_model_default_params()
    settings.vocab_only = True
    model = library().llama_model_load_from_file(str(file).encode(), settings)
    assert model
    vocabulary, found = library().llama_model_get_vocab(model), []
    for text in texts:
        content = text.encode()
        ids = (ctypes.c_int32 * (len(content) + 16))()
        count = library().llama_tokenize(vocabulary, content, len(content), ids, len(ids), True, True)
        found.append(ids[:count])
    library().llama_model_free(model)
    return found
