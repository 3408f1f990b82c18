"""Fixtures of the whole suite. Models are made once a session, and only those that a test asks for."""

import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tiny_models import Tiny


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny models gain nothing from threads; tests that need no torch do not pay for its import here."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "Tiny"]:
    """tiny(name): the model of that name in tiny_models.CONFIGS, on disk, as transformers reads it, and as we do."""
    import tiny_models

    tokenizer = tiny_models.byte_tokenizer()

    @cache
    def make(name: str) -> "Tiny":
        seed = tiny_models.SEEDS[name]
        shard = "20KB" if name == tiny_models.SHARDED else "1GB"
        path = tmp_path_factory.mktemp("model") / name
        return tiny_models.read(tiny_models.write(path, tiny_models.CONFIGS[name](), tokenizer, seed, shard))

    return make
