"""Checks of a demo model before it is shipped. Each check ends the program with one sentence if it fails."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from demo_data.passes import contents
from demo_tokens import Corpus

WEIGHTS_LIMIT = 32_000_000  # bytes of model.safetensors, because the demo is part of the wheel
WEIGHTS = "model.safetensors"
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def check_size(model_directory: Path) -> None:
    """Raise SystemExit if an exported file is missing, or if the weights take more than WEIGHTS_LIMIT bytes."""
    missing = [name for name in MODEL_FILES if not (model_directory / name).is_file()]
    if missing:
        raise SystemExit(f"{model_directory} lacks {', '.join(missing)}; let train_demo.py end first.")
    size = (model_directory / WEIGHTS).stat().st_size
    if size > WEIGHTS_LIMIT:
        raise SystemExit(f"The weights take {size / 1e6:.1f} MB, the limit is {WEIGHTS_LIMIT / 1e6:.0f} MB.")


def check_tokenizer(examples: list[dict[str, Any]], tokenizer: Any) -> tuple[int, int]:
    """Check the exported tokenizer, and return the number of chats and the number of texts that were compared.

    Raises SystemExit if it gives other token ids than in training, or if a decoded text differs from the original.
    """
    chats = [e for e in examples if "messages" in e]
    corpus = Corpus.encode(chats, tokenizer)
    for i, example in enumerate(chats):
        trained = corpus.ids[corpus.offsets[i] : corpus.offsets[i + 1]].tolist()
        rendered = tokenizer.apply_chat_template(example["messages"], tokenize=False)
        direct = tokenizer.apply_chat_template(example["messages"], return_dict=True)["input_ids"]
        if trained != tokenizer(rendered, add_special_tokens=False)["input_ids"] or trained != direct:
            raise SystemExit(f"The chat template gives other tokens than training saw: {rendered!r}")
    texts = [text for e in examples for text in contents(e)]
    for text in texts:
        back = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
        if back != text:
            raise SystemExit(f"The tokenizer does not give a text back: {text!r} became {back!r}.")
    return len(chats), len(texts)


def check_no_paths(contents: dict[str, bytes], places: Iterable[Path]) -> None:
    """Raise SystemExit if a file to be written contains the path of one of the directories `places`."""
    for name, content in contents.items():
        for place in places:
            if str(place.resolve()).encode() in content:
                raise SystemExit(f"{name} names the directory {place.resolve()} of this machine.")
