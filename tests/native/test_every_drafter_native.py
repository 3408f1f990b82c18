"""Tests of every drafter on the CPU engine."""

import pytest
from drafters import test_dflash
from drafters.test_every_drafter import *  # noqa: F403
from drafters.test_every_drafter import DRAFTERS
from each import each
from native.packings import PACKINGS, assert_plain_text
from tiny_models import FAMILIES, prompt_ids

PACKED = {
    "dflash": lambda model, path: test_dflash.made(model, path, **test_dflash.FORMS[1])[0],
    "eagle3": DRAFTERS["eagle3, 1"],
    "pard2": DRAFTERS["pard2"],
}


@pytest.mark.parametrize("kind", PACKED)
@each("packing", PACKINGS)
def test_the_text_is_plain_decodings_in_every_packing(tiny, tmp_path, monkeypatch, kind, packing):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    model = tiny(FAMILIES[0], packing)
    monkeypatch.setattr(model.target, "stop_tokens", frozenset())
    assert_plain_text(model.target, PACKED[kind](model, tmp_path), prompt_ids(12, seed=4))
