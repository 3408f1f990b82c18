"""Bytes, seconds and tokens a step, before anything is loaded; M, as the S3D paper computes it."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from string import ascii_letters

import pytest
from each import each
from machines import BILLION, PHI, SEVEN, apple, cpu, flat, gpu, machine
from s3d_tables import TABLES, Line

from localspec.engine.rates import HEADS
from localspec.machine.machine import Device
from localspec.models.entries import PACKAGE
from localspec.models.shape import Shape
from localspec.policy import prediction
from localspec.policy.cost_effectiveness import cost_effectiveness
from localspec.policy.prediction import (
    BUCKET,
    CHUNK,
    CONTEXT,
    ITEM,
    STATIC_ROWS,
    Acceptance,
    Estimate,
    Rates,
    estimated_rates,
    packed,
    reading,
    speed,
    weights,
)
from localspec.weights.packed_file import Origin
from localspec.weights.recipe import Recipe
from localspec.weights.source import Source

# -- M -------------------------------------------------------------------------------------------------------------------

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


# -- bytes ---------------------------------------------------------------------------------------------------------------

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
    assert packed(64 * 1024, 100, "int8", "cuda") == 64 * 1024 + 400
    assert packed(64 * 1024, 100, "int8", "mps") == 64 * 1024 + 200
    assert packed(64 * 1024, 100, "nf4", "cuda") == 32 * 1024 + 1024 + 16
    assert packed(64 * 1024, 100, "int4", "mps") == 32 * 1024 + 2048 * 4


@each("dtype", ["fp32", "bf16"])
def test_on_a_processor_the_head_is_packed_and_an_embedding_apart_from_it_is_not(dtype: str) -> None:
    """That one is in 16 bits, and norms are in fp32."""
    for shape, tables in ((TIED, 0), (APART, 1)):
        rest = tables * shape.embedding * 2 + NORMS * 4
        assert weights(shape, dtype, "int8", "native") == packed(shape.matrices, 0, "int8", "native") + rest
        four = 8 * (weights(shape, dtype, "int4", "native") - rest) / shape.matrices
        assert 4.5 < four < 8.25, "the head has more than four bits"


@each("dtype, item", [("fp32", 4), ("bf16", 2)])
def test_a_head_that_is_the_embedding_is_there_once(dtype: str, item: int) -> None:
    """And in bf16 the norms are in fp32 all the same."""
    for shape, tables in ((TIED, 0), (APART, 1)):
        assert weights(shape, dtype, "none", "native") == (shape.matrices + tables * shape.embedding) * item + NORMS * 4
    assert weights(TIED, "fp32", "none", "cpu") == weights(TIED, "fp32", "none", "native")


@each("packing", ["int8", "int4", "bf16", "fp32"])
def test_a_packed_file_holds_what_is_predicted(packing: str) -> None:
    """To the byte, where no matrix has to be padded."""
    source = Source.open(DEMO)
    shape = Shape.of(source.config.content)
    assert shape is not None
    header = source.header(Origin("demo", ""), packing, Recipe(packing))
    held = sum(section.bytes for section in header.tensors.values())
    dtype, quantize = (packing, "none") if packing in ITEM else ("bf16", packing)
    assert weights(shape, dtype, quantize, "native", source.checkpoint.parameters) == held


@each("packing", ["int8", "int4"])
def test_torch_trains_on_what_the_library_packed_and_makes_one_matrix_dense_at_a_time(packing: str) -> None:
    for shape in (TIED, APART):
        dense = 4 * shape.embedding if shape.tied else 0
        assert weights(shape, "fp32", packing, "cpu") == weights(shape, "bf16", packing, "native") + dense
        largest = max(shape.vocab_size, 2 * shape.intermediate_size) * shape.hidden_size
        assert prediction.loading(shape, "fp32", packing, "cpu") == prediction.unpacked(shape) == 4 * largest
        assert prediction.loading(shape, "fp32", "none", "cpu") == 0
    training = machine(cpu()).as_torch_has_it().devices[-1]
    for dense in ("fp32", "bf16"):
        assert estimated_rates(training, dense, packing) == estimated_rates(training, dense, "none")


def test_on_a_gpu_the_head_stays_as_it_is() -> None:
    for shape, heads in ((TIED, 1), (APART, 2)):
        known = packed(2 * shape.layer, 2 * shape.rows, "nf4", "cuda")
        assert weights(shape, "bf16", "nf4", "cuda") == known + (heads * shape.embedding + NORMS) * 2


def test_biases_that_the_sizes_do_not_tell_are_never_packed() -> None:
    for quantize, kind, item in (
        ("int8", "native", 4), ("int4", "native", 4), ("none", "native", 4), ("nf4", "cuda", 2), ("int4", "mps", 2),
    ):  # fmt: skip
        plain = weights(TIED, "bf16", quantize, kind)
        assert weights(TIED, "bf16", quantize, kind, TIED.parameters + 1000) == plain + 1000 * item
        assert weights(TIED, "bf16", quantize, kind, 44) <= plain, "a damaged file makes no negative bytes"


def test_a_cache_grows_by_whole_buckets() -> None:
    token = TIED.cached(1, 1)
    for tokens, buckets in ((1, 1), (BUCKET, 1), (BUCKET + 1, 2), (4 * BUCKET, 4)):
        assert prediction.cache(TIED, tokens, "bf16") == buckets * BUCKET * token * 2
        assert prediction.cache(TIED, tokens, "fp32") == buckets * BUCKET * token * 4


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
    assert held == pytest.approx(prediction.tokenizer(replace(SEVEN, vocab_size=count), "cpu"), rel=0.3)


def test_a_workspace_holds_a_chunk_of_a_prompt_or_the_logits_of_a_tree() -> None:
    slim = Shape(1, 8, 8, 1, 1, 8, 100_000, 512)
    recorded = prediction.recordings(slim, "bf16", "none", 15)
    assert prediction.workspace(slim, "bf16", "none", "cuda", 999, 15) == 16 * 100_000 * 6 + recorded
    assert prediction.workspace(slim, "bf16", "none", "mps", 999, 15) == 16 * 100_000 * 6, "nothing is recorded there"
    wide = Shape(1, 512, 1024, 8, 8, 64, 10, 512)
    layer = 64 * 32 + 4 * 512 + 4 * 1024
    assert prediction.workspace(wide, "bf16", "none", "mps", 999, 15) == CHUNK * layer * 2
    assert prediction.workspace(wide, "fp32", "none", "cpu", 999, 15) == CHUNK * layer * 4


@each("nodes, rows", [(0, 1), (1, 2), (3, 4), (4, 8), (15, 16), (16, 32), (63, 64), (200, 64)])
def test_recordings_hold_results_of_all_smaller_numbers_of_rows(nodes: int, rows: int) -> None:
    """1 + 2 + 4 + … rows of logits and states, and what one step of the most rows holds for a moment."""
    shape = Shape(1, 512, 1024, 8, 8, 64, 100_000, 512)
    found, one = (prediction.recordings(shape, "bf16", "none", count) for count in (nodes, 0))
    results = sum(one for one in STATIC_ROWS if one <= rows) * (100_000 + 512) * 2
    step = rows * (100_000 * 3 + (64 * 32 + 4 * 512 + 4 * 1024) * 2)
    picks = 100_000 * (prediction.NOISE_BYTES + 8 * rows)
    alone = prediction.USUAL_RECORDINGS * prediction.RECORDING + prediction.PRODUCTS
    assert found == results + (100_000 + 512) * 2 + step + picks + alone, "results are counted as twice the most rows"
    assert (found > one) == (rows > 1)
    assert prediction.recordings(shape, "bf16", "nf4", nodes) == found + 2 * 512 * 1024 * 2, "the largest matrix, dense"


def test_the_cpu_engine_keeps_what_256_rows_need_and_parts_of_attention_as_long_as_they_are_small() -> None:
    def kept(tokens: int, quantize: str = "int8") -> int:
        return prediction.workspace(SEVEN, "bf16", quantize, "native", tokens, 0)

    floats = 4096 + 3 * 4096 + 2 * 4096 + 11008 + 128
    states = CHUNK * 4096 * 4
    part = 256 * 32 * (128 + 16) * 4
    assert kept(256) == 256 * (floats * 4 + 11008 + 11008 // 32 * 4) + part + states
    assert kept(257) - kept(256) == part and kept(256, "none") - kept(256) == 256 * (3 * 11008 - 11008 // 32 * 4)
    longest = prediction.MOST_PARTS // part * 256
    assert kept(longest + 1) == kept(256) - part, "longer ones are not cut in parts"
    slim = Shape(1, 8, 8, 1, 1, 8, 100_000, 512)
    assert prediction.workspace(slim, "bf16", "int8", "native", 256, 15) > 16 * 100_000 * 4, "the logits of a tree"


def test_an_embedding_that_is_mapped_is_there_as_far_as_tokens_ask_for_it() -> None:
    table = SEVEN.embedding * 2
    assert prediction.unread(SEVEN, "none", "native", 1) == prediction.unread(SEVEN, "int8", "cuda", 1) == 0
    assert prediction.unread(SEVEN, "int8", "native", 0) == table
    assert prediction.unread(SEVEN, "int4", "native", 100) == table - 100 * 2 * 4096, "a row is two pages"
    assert prediction.unread(SEVEN, "int8", "native", 10**6) == 0
    slim = replace(SEVEN, hidden_size=100)
    assert prediction.unread(slim, "int8", "native", 7) == slim.embedding * 2 - 7 * 4096, "no less than a page"


def test_nothing_is_held_beside_the_weights_while_a_processor_packs_them() -> None:
    for shape in (TIED, APART):
        assert (
            prediction.loading(shape, "bf16", "int8", "native")
            == prediction.loading(shape, "bf16", "int4", "native")
            == 0
        )
        assert prediction.loading(shape, "bf16", "none", "cuda") == 0 < prediction.loading(shape, "bf16", "nf4", "cuda")
        assert prediction.loading(shape, "bf16", "int4", "mps") > 0


# -- seconds -------------------------------------------------------------------------------------------------------------

RATES = Rates((1, 8, 16), (1e-9, 2e-9, 4e-9), (1e-5, 1e-5, 3e-5))


def test_a_forward_reads_all_matrices_keys_and_values_and_goes_through_every_layer() -> None:
    """What more rows cost a layer is mostly attention: by its width, as of the model that it was measured with."""
    assert HEADS["num_attention_heads"] * HEADS["head_dim"] == prediction.ATTENTION
    for shape, part in ((APART, APART.num_heads * APART.head_dim / 2048), (replace(APART, num_heads=128), 1)):
        read = shape.matrices + shape.cached(100, 1)
        for rows, weight, layer in ((1, 1e-9, 1e-5), (8, 2e-9, 1e-5), (12, 3e-9, 2e-5), (24, 6e-9, 5e-5)):
            found = RATES.forward(shape, rows, 100)
            assert found == pytest.approx(read * weight + 2 * (1e-5 + (layer - 1e-5) * part))
            assert Estimate(shape, RATES).at(rows, 100) == found
    for rows, weight in ((1, 1e-9), (8, 2e-9), (12, 3e-9), (24, 6e-9)):
        assert RATES.product(1000, rows) == pytest.approx(1000 * weight)


@each(
    "damaged",
    [
        None,
        5,
        "abc",
        [],
        {},
        [[1], [1e-9]],
        [[], [], []],
        [[1, 2], [1e-9], [1e-5]],
        [[1], [1e-9, 1e-9], [1e-5]],
        [[1], [1e-9], []],
        [[2, 1], [1e-9, 1e-9], [1e-5, 1e-5]],
        [[1, 1], [1e-9, 1e-9], [1e-5, 1e-5]],
        [[1], [0], [1e-5]],
        [[1], [-1e-9], [1e-5]],
        [[1], [1e-9], [1]],
        [[1], [float("nan")], [1e-5]],
        [[1], ["x"], [1e-5]],
        [[float("inf")], [1e-9], [1e-5]],
        [[1], [None], [1e-5]],
    ],
)
def test_anything_else_is_no_rates(damaged: object) -> None:
    assert Rates.from_list(damaged) is None


FORMS = [
    (device, dtype, quantize)
    for device in (cpu(), gpu(), apple())
    for dtype in ("bf16", "fp32", "fp16")
    for quantize in ("none", "int8", {"cuda": "nf4"}.get(device.type, "int4"))
] + [(cpu(packings=(), bf16=False), dtype, "none") for dtype in ("fp32", "bf16")]  # torch, where the library is missing


@each("device, dtype, quantize", FORMS)
def test_every_form_has_an_estimate_before_anything_was_measured(device, dtype: str, quantize: str) -> None:
    rates = estimated_rates(device, dtype, quantize)
    assert Rates.from_list(rates.as_list()) == rates
    assert all(few <= many for few, many in pairwise(rates.weight)), "more rows never cost less"
    unknown = estimated_rates(type(device)(**{**vars(device), "bandwidth": None}), dtype, quantize)
    faster = estimated_rates(type(device)(**{**vars(device), "bandwidth": 10 * device.bandwidth}), dtype, quantize)
    assert unknown.weight[0] > 0
    if device.engine == "native":  # beside reading there is arithmetic
        assert rates.weight[0] / 10 < faster.weight[0] < rates.weight[0] / 4
        once, ten = (reading(replace(device, bandwidth=times * device.bandwidth), dtype, quantize) for times in (1, 10))
        assert ten == pytest.approx(once / 10)
    else:
        assert faster.weight[0] == pytest.approx(rates.weight[0] / 10)


def test_an_estimate_is_bytes_over_a_share_of_the_bandwidth() -> None:
    def share(device: Device, dtype: str, quantize: str, size: float) -> float:
        """Of the bandwidth, that bytes of this size a weight are read with."""
        native = device.engine == "native"
        second = reading(device, dtype, quantize) if native else estimated_rates(device, dtype, quantize).weight[0]
        return size / second / (device.bandwidth or 1)

    for device in (cpu(), gpu(), apple()):
        plain = share(device, "bf16", "none", 2)
        assert 0.5 < plain < 0.91
        assert share(device, "fp32", "none", 4) == pytest.approx(plain, rel=1e-3), "another item, the same share"
        for quantize, size in (("int8", 1.0), ("nf4" if device.type == "cuda" else "int4", 0.55)):
            assert 0.1 < share(device, "bf16", quantize, size) < plain, "to unpack takes time"
    bf16 = 1 / Estimate(SEVEN, estimated_rates(gpu(bandwidth=600e9), "bf16", "none")).at(1, CONTEXT)
    assert 30 < bf16 < 40, "a 7B in bf16 on a GPU of 600 GB/s"


def seconds(rows: int, quantize: str, dtype: str = "bf16", **device: object) -> float:
    where = replace(cpu(), **device)  # type: ignore[arg-type]
    return Estimate(SEVEN, estimated_rates(where, dtype, quantize)).at(rows, CONTEXT)


def test_on_a_processor_each_packing_is_faster_as_its_bytes_are_read() -> None:
    assert seconds(1, "none", "fp32") > 1.9 * seconds(1, "none") and seconds(1, "none") > 1.8 * seconds(1, "int8")
    assert seconds(1, "int8") > 1.5 * seconds(1, "int4")
    least = prediction.packed(SEVEN.matrices, 0, "int8", "native") / 20e9
    assert least < seconds(1, "int8") < 1.2 * least, "in int8 it reads at nearly the memory's speed"
    assert seconds(1, "int8", bandwidth=40e9) < 0.55 * seconds(1, "int8")


def test_rows_cost_a_processor_the_less_the_more_and_the_quicker_its_cores_are() -> None:
    def growth(quantize: str, **device: object) -> float:
        return seconds(8, quantize, **device) / seconds(1, quantize, **device)

    assert growth("int8") < 1.2, "while weights are read, a few rows are computed"
    for quantize in ("int8", "int4", "none"):
        assert growth(quantize, cores=1) > growth(quantize, cores=2) > growth(quantize, cores=16)
        assert growth(quantize, capability="c") > growth(quantize, capability="avx2") > growth(quantize)
        assert growth(quantize, bandwidth=80e9) > growth(quantize), "the faster the memory, the more they show"
    assert growth("int8", capability="avx2") > growth("int8", capability="avx_vnni") > growth("int8")
    assert growth("int4", cores=2) > growth("int8", cores=2), "there is less to read, and as much to compute"
    alone = {"cores": 1, "bandwidth": 80e9}
    assert seconds(64, "int8", **alone) > 6 * seconds(8, "int8", **alone), "many rows are arithmetic alone"
    assert growth("int8", capability="unheard of") == growth("int8", capability="avx2")


def test_torch_on_a_processor_is_slower() -> None:
    torch_alone = cpu(packings=(), bf16=False)

    def at(rows: int) -> float:
        return Estimate(SEVEN, estimated_rates(torch_alone, "fp32", "none")).at(rows, CONTEXT)

    assert at(1) > 1.4 * seconds(1, "none", "fp32") and at(8) > 2.3 * at(1)
    assert estimated_rates(torch_alone, "fp32", "none").layer[0] > 2 * estimated_rates(cpu(), "fp32", "none").layer[0]


def test_int8_on_a_gpu_is_slower_than_bf16_and_nf4_faster() -> None:
    """bitsandbytes, as in the paper: Phi-3 in 8 bit has about half the speed of fp16."""
    plain, eight, four = (
        Estimate(PHI, estimated_rates(gpu(), "bf16", quantize)).at(1, CONTEXT) for quantize in ("none", "int8", "nf4")
    )
    assert eight > 1.5 * plain and four < plain


def test_drafters_beside_nf4_are_packed_like_it_where_our_own_kernels_are() -> None:
    assert prediction.drafter_numbers("bf16", "nf4", "cuda") == (pytest.approx(0.5 + 1 / 64 + 1 / 4096), 2)
    assert prediction.drafter_numbers("fp16", "nf4", "cuda") == (2, 2), "cards without bf16 have none"
    assert prediction.drafter_numbers("bf16", "int8", "cuda") == prediction.drafter_numbers("bf16", "none", "cuda")


# -- tokens a step -------------------------------------------------------------------------------------------------------


def test_a_chain_reaches_each_depth_only_through_those_before_it() -> None:
    chain = Acceptance.chain([0.8, 0.5, 0.5], "x")
    assert chain.gains == pytest.approx((0.8, 0.4, 0.2)) and chain.origin == "x"
    assert [chain.length(nodes) for nodes in (0, 1, 2, 3, 9)] == pytest.approx([1, 1.8, 2.2, 2.4, 2.4])


@each("length, depth", [(1.73, 10), (2.32, 4), (3.99, 12), (1.0, 5), (5.9, 5)])
def test_an_acceptance_length_is_given_back(length: float, depth: int) -> None:
    found = Acceptance.of_length(length, depth, "x")
    assert found.length(depth) == pytest.approx(length, abs=1e-6) and len(found.gains) == depth
    chances = [later / before for before, later in pairwise(found.gains) if before]
    assert all(chance == pytest.approx(found.gains[0], abs=1e-9) for chance in chances), "the same at every depth"


def test_a_length_that_no_draft_of_that_depth_can_have_is_all_of_it() -> None:
    assert Acceptance.of_length(9.0, 5, "x").length(5) == pytest.approx(6.0, abs=1e-6)


def test_two_drafters_in_one_tree_add_up_and_the_best_nodes_come_first() -> None:
    both = Acceptance((0.8, 0.3), "one").beside(Acceptance((0.5, 0.4), "other"))
    assert both == Acceptance((0.8, 0.5, 0.4, 0.3), "one and other")


def test_a_draft_has_the_size_that_gives_the_most() -> None:
    chain = Acceptance.chain([0.5] * 8, "x")

    def most(slope: float, limit: int = 16, drafting: float = 0.0) -> tuple[float, int]:
        return speed(flat(0.1, slope), chain, lambda nodes: drafting, limit)

    assert most(0.0)[1] == 8 and most(0.0)[0] == pytest.approx(chain.length(8) / 0.1)
    assert most(0.0, limit=3) == pytest.approx((chain.length(3) / 0.1, 3))
    found, nodes = most(0.3)
    assert nodes == 1 and found == pytest.approx(1.5 / 0.13), "each node is a row"
    assert most(1.0) == pytest.approx((10.0, 0)), "a draft that does not pay is none at all"
    assert most(0.0, drafting=0.02)[0] == pytest.approx(chain.length(8) / 0.12)


def test_a_drafter_that_reads_weights_reads_them_for_a_draft_of_any_size() -> None:
    nothing = Acceptance.chain([0.0], "x")
    assert speed(flat(0.1), nothing, lambda nodes: 0.1, 16)[0] == pytest.approx(5.0), "half the speed, for nothing"


def test_speeds_are_compared_at_one_length_of_text() -> None:
    asked: list[tuple[int, int]] = []

    class ForwardCostModel:
        def at(self, rows: int, context: int) -> float:
            asked.append((rows, context))
            return 1.0

    speed(ForwardCostModel(), Acceptance((0.5,), "x"), lambda nodes: 0.0, 16)
    assert asked == [(1, CONTEXT), (2, CONTEXT)]


def test_a_real_model_takes_what_is_known_of_it() -> None:
    assert weights(BILLION, "bf16", "none", "cuda") == 2_471_628_800, "the file of Llama-3.2-1B, without its header"
    assert weights(PHI, "bf16", "none", "cuda") == 7_642_159_104
    assert weights(SEVEN, "bf16", "nf4", "cuda") / 2**30 == pytest.approx(3.6, abs=0.1)
