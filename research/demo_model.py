"""The configurations of the demo model and of its draft model, their optimisers, and the export to files."""

import json
from pathlib import Path

import torch
from demo_tokens import BEGIN, CONTEXT, END, VOCABULARY
from transformers import GenerationConfig, Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

MATRIX_RATE, EMBEDDING_RATE = 4e-3, 3e-3
# Eight layers, so that self-speculation has a middle to skip; sizes in whole groups of the quantised kernels. Tokens a
# second on one of two shared cores: 8,192 entries and 640 wide 1,623; 4,096 and 640 1,832 (fp32: 1,127), 9 x 768 1,511.
SHAPES = {
    "small": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4},
    "large": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 9, "num_attention_heads": 6},
}


def demo_config(shape: str = "small") -> Phi3Config:
    """Return the demo model's configuration: 7.3 million parameters, or 18 million (`large`, for training on a GPU)."""
    return Phi3Config(
        vocab_size=VOCABULARY, **SHAPES[shape], num_key_value_heads=2, max_position_embeddings=CONTEXT,
        original_max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=0, eos_token_id=4,
        pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip


def draft_config(teacher: Phi3Config) -> Phi3Config:
    """Return the configuration of a draft model for this teacher, with about a million parameters."""
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Phi3Config(**teacher.to_diff_dict() | shape | {"num_key_value_heads": 1})


def draft_of(teacher: Phi3ForCausalLM) -> Phi3ForCausalLM:
    """Return a new draft model. Its embedding is initialised with the leading principal components of the teacher's."""
    model = Phi3ForCausalLM(draft_config(teacher.config))
    table = teacher.model.embed_tokens.weight.detach().float()
    width = model.config.hidden_size
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(table @ torch.linalg.svd(table, full_matrices=False).Vh[:width].T)
    return model


def muon_in_float32() -> None:
    """Make torch's Muon compute in fp32, not bfloat16. On CPUs without bf16 instructions, a step would take minutes."""

    def zeroth_power(
        grad: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
    ) -> torch.Tensor:
        tall = grad.shape[0] > grad.shape[1]
        matrix = grad.T if tall else grad
        matrix = matrix / matrix.norm().clamp(min=eps)
        a, b, c = coefficients
        for _ in range(steps):
            gram = matrix @ matrix.T
            matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
        return matrix.T if tall else matrix

    torch.optim._muon._zeropower_via_newtonschulz = zeroth_power  # type: ignore[assignment]


def optimizers(model: Phi3ForCausalLM) -> list[tuple[torch.optim.Optimizer, float]]:
    """Return the optimisers and their learning rates: Muon for the matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        (torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"), MATRIX_RATE),
        (torch.optim.AdamW(rest, lr=EMBEDDING_RATE, betas=(0.9, 0.95), weight_decay=0.0), EMBEDDING_RATE),
    ]


def export(model: Phi3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the model in the Hugging Face layout, as bf16 safetensors."""
    model.generation_config = GenerationConfig(
        bos_token_id=0,
        eos_token_id=tokenizer.convert_tokens_to_ids([END, BEGIN]),
        pad_token_id=0,
        do_sample=True,
        temperature=0.5,
        top_p=0.9,
        top_k=0,
    )
    model.to("cpu", torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    # A class name that every version of transformers knows, and nothing about where the tokenizer was loaded from.
    file = out / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(
        json.dumps(
            {k: v for k, v in settings.items() if k not in ("backend", "is_local", "local_files_only")}, indent=1
        )
    )
