"""Damaged headers of a published model, whose vocabulary and template are large: each is a sentence or a model."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from gguf_alterations import Header
from gguf_fuzz import mutated, opened, write

COUNT = 30 if "WHOLE_MATRIX" in os.environ else 12


def test_a_damaged_header_of_smollm2_is_a_sentence_or_a_model(tmp_path: Path, published: Callable[[str], Path]) -> None:
    header, chance, found = Header(published("smollm2")), random.Random("smollm2 46"), []
    size = published("smollm2").stat().st_size
    for number in range(COUNT):
        write(tmp_path / "a.gguf", mutated(header, chance), b"", size + 2**20)
        began = time.process_time()
        found.append(opened(tmp_path / "a.gguf"))
        assert time.process_time() - began < 30, number
    assert COUNT / 6 < len([one for one in found if one is None]) < 5 * COUNT / 6, "both happen"
    assert len(set(found)) > COUNT / 6
