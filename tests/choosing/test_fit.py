"""Bytes before anything is loaded, and M as the S3D paper computes it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from string import ascii_letters

import pytest
from each import each
from machines import BILLION, PHI, SEVEN
from s3d_tables import TABLES, Line

from localspec.choosing import fit
from localspec.choosing.fit import BUCKET, CHUNK, ITEM, STATIC_ROWS, packed, weights
from localspec.choosing.plans import cost_effectiveness
from localspec.families.family import MixtureSizes
from localspec.models.entries import PACKAGE
from localspec.models.shape import Shape
from localspec.weights.packed_file import Origin
from localspec.weights.recipe import Recipe, in_four_bits
from localspec.weights.source import PackingSource

MISPRINTED = (2, "S3D (Phi-3, fp16)")
LINES = [(table, name) for table, lines in TABLES.items() for name in lines]


def recomputed(table: int, name: str) -> tuple[list[float], list[float], float, float]:
    """(M of each task, those that are printed, the overall M, the one that is printed)."""
    *tasks, printed = TABLES[table][name]
    baseline: Line = next(iter(TABLES[table].values()))
    found = [
        cost_effectiveness(tokens, peak, plain, plain_peak)
        for (peak, tokens, _), (plain_peak, plain, _) in zip(tasks, baseline[:3], strict=True)
    ]
    return found, [column[2] for column in tasks], fmean(found), printed


@each("table, name", [line for line in LINES if line != MISPRINTED])
def test_every_m_of_the_s3d_paper_follows_from_its_speeds_and_memories(table: int, name: str) -> None:
    found, printed, mean, printed_mean = recomputed(table, name)
    assert found == pytest.approx(printed, abs=0.02)
    assert mean == pytest.approx(printed_mean, abs=0.02), "overall is the mean of the three columns"


TIED = Shape(2, 64, 192, 4, 2, 16, 1000, 512, tied=True)
APART = Shape(2, 64, 192, 4, 2, 16, 1000, 512)
NORMS = 5 * 64
DEMO = PACKAGE / "demo"


@each("dtype, item", [("fp32", 4), ("bf16", 2), ("fp16", 2)])
@each("kind", ["cpu", "cuda", "mps"])
def test_unpacked_weights_take_an_item_each(dtype: str, item: int, kind: str) -> None:
    assert weights(TIED, dtype, "none", kind) == TIED.parameters * item
    assert weights(TIED, dtype, "none", kind, 7_000_000) == 7_000_000 * item, "their true number, where it is known"


def test_packed_weights_take_half_or_all_of_a_byte_and_their_scales() -> None:
    assert packed(64 * 1024, 100, "int8", "native") == 64 * 1024 + 2048
    for shape in (BILLION, PHI, SEVEN):
        by_matrix = in_four_bits(shape.linears, shape.num_layers)
        assert packed(shape.matrices, 0, "int4", "native") == pytest.approx(by_matrix, rel=0.06)
    assert packed(64 * 1024, 100, "int8", "cuda") == 64 * 1024 + 400
    assert packed(64 * 1024, 100, "int8", "mps") == 64 * 1024 + 200
    assert packed(64 * 1024, 100, "nf4", "cuda") == 32 * 1024 + 1024 + 16
    assert packed(64 * 1024, 100, "int4", "mps") == 32 * 1024 + 2048 * 4


@each("dtype", ["fp32", "bf16"])
def test_on_a_cpu_the_head_is_packed_and_an_embedding_apart_from_it_is_not(dtype: str) -> None:
    """The separate embedding is in 16 bits, and norms are in fp32."""
    for shape, tables in ((TIED, 0), (APART, 1)):
        rest = tables * shape.embedding * 2 + NORMS * 4
        assert weights(shape, dtype, "int8", "native") == packed(shape.matrices, 0, "int8", "native") + rest
        four = 8 * (weights(shape, dtype, "int4", "native") - rest) / shape.matrices
        assert 4.5 < four < 8.25, "the head has more than four bits"


@each("dtype, item", [("fp32", 4), ("bf16", 2)])
def test_a_head_that_is_the_embedding_is_there_once(dtype: str, item: int) -> None:
    """With bf16 weights, norms are in fp32 as well."""
    for shape, tables in ((TIED, 0), (APART, 1)):
        assert weights(shape, dtype, "none", "native") == (shape.matrices + tables * shape.embedding) * item + NORMS * 4
    assert weights(TIED, "fp32", "none", "cpu") == weights(TIED, "fp32", "none", "native")


@each("packing", ["int8", "int4", "bf16", "fp32"])
def test_a_packed_file_holds_what_is_predicted(packing: str) -> None:
    """Exact to the byte if no matrix has to be padded."""
    source = PackingSource.open(DEMO)
    shape = Shape.of(source.config.content)
    assert shape is not None
    header = source.header(Origin("demo", ""), Recipe(packing))
    held = sum(section.bytes for section in header.tensors.values())
    dtype, quantize = (packing, "none") if packing in ITEM else ("bf16", packing)
    assert weights(shape, dtype, quantize, "native", source.checkpoint.parameters) == held


@each("packing", ["int8", "int4"])
def test_torch_trains_on_what_the_library_packed_and_makes_one_matrix_dense_at_a_time(packing: str) -> None:
    for shape in (TIED, APART):
        dense = 4 * shape.embedding if shape.tied else 0
        assert weights(shape, "fp32", packing, "cpu") == weights(shape, "bf16", packing, "native") + dense
        largest = max(shape.vocab_size, 2 * shape.intermediate_size) * shape.hidden_size
        assert fit.loading(shape, "fp32", packing, "cpu") == fit.unpacked(shape) == 4 * largest
        assert fit.loading(shape, "fp32", "none", "cpu") == 0


def test_on_a_gpu_the_head_stays_as_it_is() -> None:
    for shape, heads in ((TIED, 1), (APART, 2)):
        known = packed(2 * shape.layer, 2 * shape.rows, "nf4", "cuda")
        assert weights(shape, "bf16", "nf4", "cuda") == known + (heads * shape.embedding + NORMS) * 2


def test_biases_that_the_sizes_do_not_mention_are_never_packed() -> None:
    for quantize, kind, item in (
        ("int8", "native", 4), ("int4", "native", 4), ("none", "native", 4), ("nf4", "cuda", 2), ("int4", "mps", 2),
    ):  # fmt: skip
        plain = weights(TIED, "bf16", quantize, kind)
        assert weights(TIED, "bf16", quantize, kind, TIED.parameters + 1000) == plain + 1000 * item
        assert weights(TIED, "bf16", quantize, kind, 44) <= plain, "a damaged file makes no negative bytes"


def test_a_cache_grows_by_whole_buckets() -> None:
    token = TIED.cached(1, 1)
    for tokens, buckets in ((1, 1), (BUCKET, 1), (BUCKET + 1, 2), (4 * BUCKET, 4)):
        assert fit.cache(TIED, tokens, "bf16") == buckets * BUCKET * token * 2
        assert fit.cache(TIED, tokens, "fp32") == buckets * BUCKET * token * 4


HELD = """
import sys
import psutil
from pathlib import Path
from localspec.models.tokenizer import Tokenizer

Tokenizer.open(Path(sys.argv[1]))  # what the first one imports is not the second one's
before = psutil.Process().memory_info().rss
tokenizer = Tokenizer.open(Path(sys.argv[2]))
print(tokenizer.backend.get_vocab_size(), psutil.Process().memory_info().rss - before)
"""


@pytest.mark.slow
def test_a_tokenizer_takes_what_is_predicted(tmp_path: Path) -> None:
    from tiny_models import byte_tokenizer
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = [*ascii_letters]
    for length in (2, 3):
        words += [word + letter for word in words if len(word) == length - 1 for letter in ascii_letters]
    words = words[:40_000]
    merges = [(word[:-1], word[-1]) for word in words if len(word) > 1]
    known = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    PreTrainedTokenizerFast(tokenizer_object=known).save_pretrained(tmp_path / "large")
    byte_tokenizer().save_pretrained(tmp_path / "small")
    result = subprocess.run(
        [sys.executable, "-c", HELD, tmp_path / "small", tmp_path / "large"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, held = map(int, result.stdout.split())
    assert count == len(words)
    assert held == pytest.approx(fit.tokenizer(replace(SEVEN, vocab_size=count), "cpu"), rel=0.3)


def test_a_workspace_holds_a_chunk_of_a_prompt_or_the_logits_of_a_tree() -> None:
    slim = Shape(1, 8, 8, 1, 1, 8, 100_000, 512)
    recorded = fit.recordings(slim, "bf16", "none", 15)
    assert fit.workspace(slim, "bf16", "none", "cuda", 999, 15) == 16 * 100_000 * 6 + recorded
    assert fit.workspace(slim, "bf16", "none", "mps", 999, 15) == 16 * 100_000 * 6, "nothing is recorded there"
    wide = Shape(1, 512, 1024, 8, 8, 64, 10, 512)
    layer = 64 * 32 + 4 * 512 + 4 * 1024
    assert fit.workspace(wide, "bf16", "none", "mps", 999, 15) == CHUNK * layer * 2
    assert fit.workspace(wide, "fp32", "none", "cpu", 999, 15) == CHUNK * layer * 4


@each("nodes, rows", [(0, 1), (1, 2), (3, 4), (4, 8), (15, 16), (16, 32), (63, 64), (200, 64)])
def test_recordings_hold_results_of_all_smaller_numbers_of_rows(nodes: int, rows: int) -> None:
    """1 + 2 + 4 + … rows of logits and states, and the temporary memory of one step with the most rows."""
    shape = Shape(1, 512, 1024, 8, 8, 64, 100_000, 512)
    found, one = (fit.recordings(shape, "bf16", "none", count) for count in (nodes, 0))
    results = sum(one for one in STATIC_ROWS if one <= rows) * (100_000 + 512) * 2
    step = rows * (100_000 * 3 + (64 * 32 + 4 * 512 + 4 * 1024) * 2)
    picks = 100_000 * (fit.NOISE_BYTES + 8 * rows)
    alone = fit.USUAL_RECORDINGS * fit.RECORDING + fit.PRODUCTS
    assert found == results + (100_000 + 512) * 2 + step + picks + alone, "results are counted as twice the most rows"
    assert (found > one) == (rows > 1)
    assert fit.recordings(shape, "bf16", "nf4", nodes) == found + 2 * 512 * 1024 * 2, "the largest matrix, dense"


def test_the_cpu_engine_keeps_what_256_rows_need_and_parts_of_attention_as_long_as_they_are_small() -> None:
    def kept(tokens: int, quantize: str = "int8") -> int:
        return fit.workspace(SEVEN, "bf16", quantize, "native", tokens, 0)

    floats = 4096 + 3 * 4096 + 2 * 4096 + 11008 + 128
    states = CHUNK * 4096 * 4
    part = 256 * 32 * (128 + 16) * 4
    assert kept(256) == 256 * (floats * 4 + 11008 + 11008 // 32 * 4) + part + states
    assert kept(257) - kept(256) == part and kept(256, "none") - kept(256) == 256 * (3 * 11008 - 11008 // 32 * 4)
    longest = fit.MOST_PARTS // part * 256
    assert kept(longest + 1) == kept(256) - part, "longer ones are not cut in parts"
    slim = Shape(1, 8, 8, 1, 1, 8, 100_000, 512)
    assert fit.workspace(slim, "bf16", "int8", "native", 256, 15) > 16 * 100_000 * 4, "the logits of a tree"


def test_of_a_mixture_each_pair_of_a_row_and_an_expert_has_an_input_an_activation_and_an_output() -> None:
    dense = fit.workspace(SEVEN, "bf16", "int8", "native", 256, 0)
    mixture = fit.workspace(replace(SEVEN, experts=MixtureSizes(64, 8, 512)), "bf16", "int8", "native", 256, 0)
    pairs = 256 * 8
    # Each pair: an output in fp32, an input in int8 with scales and sums, an activation. Each row: an output, logits.
    least = pairs * (4096 * (4 + 1 + 20 / 32) + 512 * 4) + 256 * (4096 + 64) * 4
    assert least < mixture - dense < 1.1 * least
    beside = fit.workspace(
        replace(SEVEN, experts=MixtureSizes(64, 8, 512, dense=True)), "bf16", "int8", "native", 256, 0
    )
    assert beside - mixture == 256 * 4096 * 4, "the output of the MLP"


def test_an_embedding_that_is_mapped_is_there_as_far_as_tokens_ask_for_it() -> None:
    table = SEVEN.embedding * 2
    assert fit.unread(SEVEN, "none", "native", 1) == fit.unread(SEVEN, "int8", "cuda", 1) == 0
    assert fit.unread(SEVEN, "int8", "native", 0) == table
    assert fit.unread(SEVEN, "int4", "native", 100) == table - 100 * 2 * 4096, "a row is two pages"
    assert fit.unread(SEVEN, "int8", "native", 10**6) == 0
    slim = replace(SEVEN, hidden_size=100)
    assert fit.unread(slim, "int8", "native", 7) == slim.embedding * 2 - 7 * 4096, "no less than a page"


def test_only_the_weights_are_held_while_a_cpu_packs_them() -> None:
    for shape in (TIED, APART):
        assert fit.loading(shape, "bf16", "int8", "native") == fit.loading(shape, "bf16", "int4", "native") == 0
        assert fit.loading(shape, "bf16", "none", "cuda") == 0 < fit.loading(shape, "bf16", "nf4", "cuda")
        assert fit.loading(shape, "bf16", "int4", "mps") > 0


def test_drafters_of_an_nf4_target_are_packed_in_nf4_with_our_own_kernels() -> None:
    assert fit.drafter_numbers("bf16", "nf4", "cuda") == (pytest.approx(0.5 + 1 / 64 + 1 / 4096), 2)
    assert fit.drafter_numbers("fp16", "nf4", "cuda") == (2, 2), "cards without bf16 have none"
    assert fit.drafter_numbers("bf16", "int8", "cuda") == fit.drafter_numbers("bf16", "none", "cuda")


def test_a_real_model_takes_what_is_known_of_it() -> None:
    assert weights(BILLION, "bf16", "none", "cuda") == 2_471_628_800, "the file of Llama-3.2-1B, without its header"
    assert weights(PHI, "bf16", "none", "cuda") == 7_642_159_104
    assert weights(SEVEN, "bf16", "nf4", "cuda") / 2**30 == pytest.approx(3.6, abs=0.1)
