"""Time one load in a separate process: from the end of imports to the first token of a short prompt.

    python -m benchmarks.load_child PROGRAM MODEL PACKING-OR-FILE THREADS flash|plain

It imports nothing that the program it times does not need, for its memory is measured too.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

PROMPT, ROOM, REPLY = 16, 1024, 64  # tokens; the reply only serves to measure memory
AT_ONCE = " read at once"

Next = Callable[[list[int], int], int]  # returns the likeliest token after these, which begin at this position
Prepare = Callable[[Path, str, int], Callable[[], Next]]  # imports, and returns the function that loads


def _ours(path: Path, packing: str, threads: int) -> Callable[[], Next]:
    from localspec.decoding.tree import DraftTree
    from localspec.native.target import NativeTarget
    from localspec.native.threads import Threads

    def load() -> Next:
        target = NativeTarget.open(path, packing=packing, context=ROOM, threads=Threads(threads), name=path.name)
        cache = target.cache(1)

        def after(tokens: list[int], place: int) -> int:
            picks = target.forward(DraftTree.chain(tokens), cache, last=True).logits.argmax()
            cache.keep(range(len(tokens)))
            return picks[-1]

        return after

    return load


def _llama_cpp(path: Path, argument: str, threads: int, flash: bool) -> Callable[[], Next]:
    import checkout  # noqa: F401
    import llama_cpp_model

    from localspec.weights.checkpoint import read_config

    vocabulary = read_config(path)["vocab_size"]
    llama_cpp_model.library()
    file, mapped = Path(argument.removesuffix(AT_ONCE)), not argument.endswith(AT_ONCE)

    def load() -> Next:
        gguf = llama_cpp_model.Gguf(file, vocabulary, ROOM, mapped=mapped, flash=flash)
        gguf.set_threads(threads)
        return lambda tokens, place: int(gguf.logits(tokens, place, last=True)[-1].argmax())

    return load


def _transformers(path: Path, argument: str, threads: int) -> Callable[[], Next]:
    import torch
    from transformers import AutoModelForCausalLM  # noqa: F401  # this, too, is an import

    from benchmarks.contenders import empty_cache, load_stock
    from benchmarks.workshop import Model

    def load() -> Next:
        model, cache = load_stock(Model(path, path, threads)), empty_cache()

        @torch.inference_mode()
        def after(tokens: list[int], place: int) -> int:
            logits = model(torch.tensor([tokens]), past_key_values=cache, logits_to_keep=1).logits
            return int(logits[0, -1].argmax())

        return after

    return load


def main(words: list[str]) -> None:
    """Print seconds to the first token, and the peak memory after a reply: all of it, and the part without a file."""
    kind, path, argument, threads = words[0], Path(words[1]), words[2], int(words[3])
    programs: dict[str, Prepare] = {
        "localspec": _ours,
        "llama.cpp": partial(_llama_cpp, flash=words[4] == "flash"),
        "transformers": _transformers,
    }
    load = programs[kind](path, argument, threads)
    tokens = [7 + 31 * place for place in range(PROMPT)]
    gc.collect()
    began = time.perf_counter()
    after = load()
    token = after(tokens, 0)
    seconds = time.perf_counter() - began
    for place in range(PROMPT, PROMPT + REPLY):
        token = after([token], place)
    print(json.dumps({"seconds": seconds, "peak": _status("VmHWM"), "own": _status("RssAnon")}))


def _status(name: str) -> int:
    """Bytes, as the kernel tells of this process: VmHWM at most, RssAnon those that no file backs now.

    getrusage would tell of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(sys.argv[1:])
