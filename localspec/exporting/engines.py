"""Which drafters other inference engines can read, what replaces those that they cannot, and how to start them.

This follows the sources of vLLM 0.33.0 and SGLang 0.5.23.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localspec.config import nearest
from localspec.errors import UsageMistake
from localspec.models.drafter_kinds import kind_of
from localspec.text import one_line

Form = Literal["medusa heads", "eagle3 head", "parallel draft model", "draft model"]

NGRAM = 4  # most tokens that an engine searches for in the text before
# vLLM takes a model for a drafter of another method if its path has one of these.
_MISREAD = ("eagle-", "eagle3", "dflash", "dspark")


@dataclass(frozen=True)
class OtherEngine:
    """Another inference engine, such as vLLM. `forms` are the forms of drafters that it reads, the best first."""

    name: str
    label: str
    forms: tuple[Form, ...]
    tokens: int  # of a draft by a draft model, which could be of any length


ENGINES = {
    "vllm": OtherEngine("vllm", "vLLM", ("medusa heads", "eagle3 head", "parallel draft model", "draft model"), 5),
    "sglang": OtherEngine("sglang", "SGLang", ("eagle3 head", "draft model"), 3),
}


def engine_named(name: str) -> OtherEngine:
    """Return the engine of this name. Raises UsageMistake for an engine to which localspec cannot export."""
    if name not in ENGINES:
        raise UsageMistake(f"There is no engine {name!r}{nearest(name, ENGINES)}; give one of {', '.join(ENGINES)}.")
    return ENGINES[name]


def command(
    engine: OtherEngine, form: Form, model: str, revision: str, drafter: Path, tokens: int, parallel: int
) -> list[str]:
    """Return the command that starts an engine with a model and its drafter, as a list of words.

    The model is named by its repository with a `revision`, or by its directory. `tokens` is the number of tokens per
    draft, and `parallel` the number of GPUs that work together.
    """
    of_revision = ["--revision", revision] if revision else []
    if engine.name == "sglang":
        words = ["python", "-m", "sglang.launch_server", "--model-path", model, *of_revision]
        algorithm = "EAGLE3" if form == "eagle3 head" else "STANDALONE"
        words += ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(drafter)]
        words += ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(tokens + 1)]  # including the one before them
        return words + (["--tp-size", str(parallel)] if parallel > 1 else [])
    method = {"medusa heads": "medusa", "eagle3 head": "eagle3"}.get(form, "draft_model")
    config: dict[str, Any] = {"method": method, "model": str(drafter), "num_speculative_tokens": tokens}
    if form == "parallel draft model":
        config["parallel_drafting"] = True
    words = ["vllm", "serve", model, *of_revision]
    if parallel > 1:
        words += ["--tensor-parallel-size", str(parallel)]
        config["draft_tensor_parallel_size"] = parallel  # vLLM refuses another value for a draft model
    return [*words, "--speculative-config", json.dumps(config)]


def check_path(engine: OtherEngine, path: Path, form: Form) -> None:
    """Raise UsageMistake if an engine would misread a drafter's path, or if a user could not type it.

    vLLM takes some words in a path for a kind of drafter. `form` is the drafter's form.
    """
    if one_line(str(path)) != str(path):
        raise UsageMistake(f"{path} has characters in its name that cannot be typed; give another --out.")
    misread = [word for word in _MISREAD if word in str(path).lower() and not form.startswith(word)]
    if engine.name == "vllm" and misread:
        raise UsageMistake(
            f"vLLM takes every path that contains '{misread[0]}' for a drafter of that name, and {path} contains "
            "it; give another --out."
        )


def check_heads(heads: int, kv_heads: int, tensor_parallel: int) -> None:
    """Raise UsageMistake if a model's attention heads cannot be divided evenly among this many GPUs.

    If there are more GPUs than key heads, each GPU gets a copy of a key head.
    """
    if heads % tensor_parallel or (kv_heads % tensor_parallel and tensor_parallel % kv_heads):
        raise UsageMistake(
            f"--tensor-parallel {tensor_parallel} cannot share {heads} attention heads and {kv_heads} key heads "
            "evenly; give a number that divides them."
        )


def no_counterpart(engine: OtherEngine, drafter: str) -> UsageMistake:
    """Return the error for a drafter that cannot be exported to an engine. Its message names the nearest substitute."""
    if drafter == "auto":
        return UsageMistake("auto does not name a drafter to export; name one.")
    if drafter.endswith("+phrases") or "+" in drafter:
        return UsageMistake(
            f"{engine.label} uses one drafter at a time, but '{drafter}' names several; name one of them."
        )
    kind = kind_of(drafter)
    if kind.name == "none":
        return UsageMistake("'none' means plain decoding, so there is no drafter to export; name a drafter.")
    if kind.name in ("phrases", "lookahead"):
        config = json.dumps({"method": "ngram", "num_speculative_tokens": engine.tokens, "prompt_lookup_max": NGRAM})
        flags = {
            "vllm": f"vllm serve MODEL --speculative-config '{config}'",
            "sglang": "python -m sglang.launch_server --model-path MODEL --speculative-algorithm NGRAM",
        }
        return UsageMistake(
            f"'{kind.name}' has no files that {engine.label} reads, because it finds phrases in the text itself; "
            f"the nearest substitute is {flags[engine.name]}"
        )
    if kind.takes == "published":
        where = "in the model's own files" if kind.name == "mtp" else "in the repository that it came from"
        ahead = kind.name in ("mtp", "assistant")  # both engines call Gemma's assistants MTP, too
        method = "mtp" if ahead else kind.name
        flags = {
            "vllm": f"--speculative-config with the method {method}",
            "sglang": f"--speculative-algorithm {'NEXTN' if ahead else kind.name.upper()}",
        }
        return UsageMistake(
            f"{engine.label} reads '{kind.name}' {where}, so there is nothing to write; serve it with "
            f"{flags[engine.name]}."
        )
    if kind.takes == "draft model":  # ouroboros
        nearest_one = f"only its small model, draft_model{drafter.removeprefix(kind.name)}"
    elif "medusa heads" in engine.forms and kind.name != "medusa":
        nearest_one = "heads, which `localspec train medusa` makes, or a small model, draft_model:MODEL"
    else:
        nearest_one = "a small model, draft_model:MODEL"
    return UsageMistake(
        f"{engine.label} has nothing that drafts like '{kind.name}' ({kind.label}); the nearest substitute is "
        f"{nearest_one}."
    )
