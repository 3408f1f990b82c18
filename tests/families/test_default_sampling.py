"""The default sampling of a model: from its file, its family, or localspec."""

import numpy as np
from each import each

from localspec.families.generation_config import DEFAULT, FILE, DefaultSampling, default_sampling
from localspec.weights.gguf_config import Metadata, generation_config

GREEDY = DefaultSampling()
UNKNOWN = DefaultSampling(0.7, 0.9, source=DEFAULT)
SMOLLM2 = DefaultSampling(0.2, 0.9, source="usual for SmolLM2")
THINKING = DefaultSampling(0.6, 0.95, 20, source="usual for Qwen3")
ANSWERING = DefaultSampling(0.7, 0.8, 20, source="usual for Qwen3")


@each(
    "said, found",
    [
        ({}, SMOLLM2),
        ({"do_sample": False}, GREEDY),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.5}, GREEDY),
        ({"temperature": 0}, GREEDY),
        ({"do_sample": True, "temperature": 0.0}, GREEDY),
        ({"do_sample": True}, DefaultSampling(1.0)),
        ({"temperature": 0.6}, DefaultSampling(0.6)),
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1}, DefaultSampling(0.6, 0.95, 20, 0.1)),
        ({"top_p": 0.5, "top_k": None}, DefaultSampling(0.2, 0.5, source=f"usual for SmolLM2; top-p from {FILE}")),
        ({"top_k": 9, "min_p": 0.1}, DefaultSampling(0.2, 0.9, 9, 0.1, f"usual for SmolLM2; top-k, min-p from {FILE}")),
        ({"do_sample": None, "temperature": None}, SMOLLM2),
    ],
)
def test_what_the_file_says_comes_before_what_is_known_of_its_family(said, found):
    assert default_sampling(said, "SmolLM2-135M-Instruct.Q4_1") == found
    assert (found.source == FILE) == ("SmolLM2" not in found.source)


@each(
    "name, think, found",
    [
        ("Smollm2 135M 8k Lc100K Mix1 Ep2", None, SMOLLM2),
        ("HuggingFaceTB/SmolLM2-360M-Instruct mine", None, SMOLLM2),
        (
            "Qwen2.5-Coder Qwen2.5 Coder 0.5B Instruct AWQ",
            None,
            DefaultSampling(0.7, 0.8, 20, source="usual for Qwen2.5"),
        ),
        ("Qwen3-0.6B", None, THINKING),
        ("Qwen3 0.6B", True, THINKING),
        ("qwen3_0.6b", False, ANSWERING),
        ("Qwen3base", None, THINKING),
        ("notqwen3-0.6b", None, UNKNOWN),
        ("my.qwen3", None, THINKING),
        ("CodeLlama-3-8B", None, UNKNOWN),
        ("1smollm2", None, UNKNOWN),
        ("Qwen3.Q4_K_M", None, THINKING),
        ("Qwen3-4B-Instruct-2507", None, ANSWERING),
        ("Qwen3.5-0.8B", None, UNKNOWN),
        ("Qwen-3B", None, UNKNOWN),
        ("qwen2-0.5b", None, UNKNOWN),
        ("Meta-Llama-3-8B-Instruct", None, DefaultSampling(0.6, 0.9, source="usual for Llama 3")),
        ("Llama-3.2-1B", None, DefaultSampling(0.6, 0.9, source="usual for Llama 3")),
        ("open_llama_3b", None, UNKNOWN),
        ("llama-30b", None, UNKNOWN),
        ("codellama-34b", None, UNKNOWN),
        ("gemma-3 Gemma 3 270m", None, DefaultSampling(1.0, 0.95, 64, source="usual for Gemma 3")),
        ("DeepSeek-R1-Distill-Qwen-1.5B", None, DefaultSampling(0.6, 0.95, source="usual for DeepSeek-R1")),
        ("my-model", None, UNKNOWN),
        ("", None, UNKNOWN),
    ],
)
def test_families_are_known_by_name(name, think, found):
    assert default_sampling({}, name, think) == found


def test_the_name_in_a_gguf_file_comes_before_that_of_the_file():
    metadata = {"general.basename": "smollm2", "general.name": "Smollm2 135M", "tokenizer.ggml.eos_token_id": 2}
    assert default_sampling(generation_config(Metadata(metadata)), "llama-3.2-copy") == SMOLLM2
    assert default_sampling(generation_config(Metadata({})), "llama-3.2-copy").source == "usual for Llama 3"


def test_what_a_gguf_file_says_of_sampling_counts():
    metadata = {"general.basename": "smollm2", "general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    assert default_sampling(generation_config(Metadata(metadata))) == DefaultSampling(0.6, 1.0, 20)


@each("value", [0.4, 0.95, 0.1, 0.05, 1 / 3, 0.123456789])
def test_numbers_of_gguf_files_are_their_shortest_decimals(value):
    single = float(np.float32(value))
    found = default_sampling({"temperature": single, "top_p": single, "min_p": single})
    assert found.temperature == found.top_p == found.min_p == float(str(np.float32(value)))
    assert np.float32(found.top_p) == np.float32(value)
    assert default_sampling({"temperature": 1.0, "top_p": value}).top_p == value, "a decimal of a JSON file is kept"


@each("value", [1e300, 0.5, 1.0])
def test_other_numbers_are_unchanged(value):
    assert default_sampling({"temperature": value}).temperature == value
