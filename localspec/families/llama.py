"""Llama, from which the other families differ.

A layer is attention and a gated MLP, each after an RMSNorm and added to its input. Positions are rotated in halves of a
head: channel i with channel i + head_dim / 2. In GGUF these two are neighbours, so rows of queries and keys are in
another order there; and the frequencies of Llama 3.1 stand in `rope_freqs.weight`. Mistral's files and those of most
models that are trained like Llama call themselves `llama` in GGUF.
"""

from localspec.families.family import PAIRS, Family, Gguf, Sampled

LLAMA = Family(
    model_type="llama",
    classes={"LlamaForCausalLM": "llama"},
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
    not_read=("sliding_window", "use_sliding_window", "layer_types"),
    gguf=Gguf("llama", changes=PAIRS),
    sampling=(
        Sampled("SmolLM2", "smollm-?2", 0.2, 0.9),  # card of SmolLM2-1.7B-Instruct
        Sampled("DeepSeek-R1", "deepseek-?r1", 0.6, 0.95),  # config of DeepSeek-R1-Distill-Qwen-1.5B; some are Qwens
        Sampled("Llama 3", r"llama-?3(?!\d|b\b)", 0.6, 0.9),  # config of Llama-3.2-3B-Instruct
    ),
    nearest={"Llama": "llama3.1-8b"},
)  # fmt: skip
