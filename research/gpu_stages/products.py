"""Compares kernels that multiply a few rows with the matrices of a 7B model: seconds, error and bits.

Several copies of each matrix take turns, because in a real forward no matrix is still in the GPU's cache.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from figures import figure, table

from gpu_stages.aims import failed
from gpu_stages.invented import LLAMA2, SHAPES, SMALL_SHAPES
from gpu_stages.record import Record, failure
from gpu_stages.request import Request
from gpu_stages.timing import captured_seconds_each, seconds_each
from localspec.models.shape import Shape
from localspec.nn.linear_bitsandbytes import BLOCK, LLMInt8Linear, NF4Linear

ROWS = (1, 2, 4, 8, 16, 32)
COMPARED = (2, 3, 4, 5, 8, 9, 16, 17, 32)  # rows, each of which is compared with a product of one row
READ = 256 * 2**20  # bytes of matrices that take turns: more than the cache of any card holds
GROUP = 128  # weights that share a scale in torch's int4
TILES = 8  # of its layout
WRONG = 0.3  # relative error from which a product counts as wrong
OURS = {"bf16": "dense bf16", "int8": "our int8", "nf4": "our NF4"}

Product = Callable[[torch.Tensor], torch.Tensor]
Build = Callable[[torch.Tensor], Product]  # from a weight in bf16 [out, in]


def dense(weight: torch.Tensor) -> Product:
    return lambda x: F.linear(x, weight)


def dense_fp16(weight: torch.Tensor) -> Product:
    half = weight.half()
    return lambda x: F.linear(x.half(), half)


def our_int8(weight: torch.Tensor) -> Product:
    return LLMInt8Linear(weight).compute


def our_nf4(weight: torch.Tensor) -> Product:
    return NF4Linear(weight).compute


def plain_nf4(weight: torch.Tensor) -> Product:
    """Return bitsandbytes' `gemm_4bit` with fp32 scales, which take more memory but need no second look-up."""
    packed, state = _bitsandbytes().quantize_4bit(weight, blocksize=BLOCK, compress_statistics=False, quant_type="nf4")
    return lambda x: torch.ops.bitsandbytes.gemm_4bit(x, packed, list(weight.shape), state.absmax, BLOCK, "nf4")


def one_row_nf4(weight: torch.Tensor) -> Product:
    """Return bitsandbytes' older kernel for one row."""
    packed, state = _bitsandbytes().quantize_4bit(weight, blocksize=BLOCK, compress_statistics=False, quant_type="nf4")
    return lambda x: torch.ops.bitsandbytes.gemv_4bit(x, packed, list(weight.shape), state.absmax, state.code, BLOCK)


def scaled_int8(weight: torch.Tensor) -> Product:
    """Return bitsandbytes' `int8_scaled_mm`, with inputs rounded as in localspec's int8."""
    operators = torch.ops.bitsandbytes
    _bitsandbytes()
    steps, scales, _ = operators.int8_vectorwise_quant(weight.half(), 0.0)

    def product(x: torch.Tensor) -> torch.Tensor:
        rows, of_rows, _ = operators.int8_vectorwise_quant(x.half(), 0.0)
        y: torch.Tensor = operators.int8_scaled_mm(rows, steps, of_rows, scales, None, x.dtype)
        return y

    return product


def weight_only_int8(weight: torch.Tensor) -> Product:
    """Return torch's `_weight_int8pack_mm`: the weights are in int8, and the inputs are not rounded."""
    scales = (weight.float().abs().amax(1) / 127).clamp_min(1e-12)
    steps = (weight.float() / scales[:, None]).round().to(torch.int8)
    scales = scales.to(weight.dtype)
    return lambda x: torch._weight_int8pack_mm(x, steps, scales)


def tiled_int4(weight: torch.Tensor) -> Product:
    """Return torch's `_weight_int4pack_mm`, with a scale and an offset for each `GROUP` weights."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((high - low) / 15).clamp_min(1e-6)
    steps = ((groups - low) / scales).round().clamp(0, 15).to(torch.uint8).view(rows, columns)
    # Levels count from eight, and the added number is the value of level eight.
    scales_and_values = torch.cat([scales, low + 8 * scales], -1).transpose(0, 1).contiguous().to(weight.dtype)
    if weight.device.type == "cpu":
        packed = torch._convert_weight_to_int4pack_for_cpu(steps.int(), TILES)
        return lambda x: torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales_and_values)
    packed = torch._convert_weight_to_int4pack((steps[:, ::2] << 4) | steps[:, 1::2], TILES)
    return lambda x: torch._weight_int4pack_mm(x, packed, GROUP, scales_and_values)


def integer_product(weight: torch.Tensor) -> Product:
    """Return torch's `_int_mm`, with inputs rounded by torch. It needs more than 16 rows, so fewer are padded."""
    scales = (weight.float().abs().amax(1) / 127).clamp_min(1e-12)
    steps = (weight.float() / scales[:, None]).round().to(torch.int8).t()

    def product(x: torch.Tensor) -> torch.Tensor:
        of_rows = (x.float().abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
        rows = F.pad((x.float() / of_rows).round().to(torch.int8), (0, 0, 0, max(0, 32 - len(x))))
        return (torch._int_mm(rows, steps)[: len(x)] * of_rows * scales).to(x.dtype)

    return product


def scaled_fp8(weight: torch.Tensor) -> Product:
    """Return torch's product in fp8 (`_scaled_mm`). Each channel and each row has a scale, and rows are padded to 16."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scales = (weight.float().abs().amax(1) / most).clamp_min(1e-12)
    packed = (weight.float() / scales[:, None]).to(torch.float8_e4m3fn).t()

    def product(x: torch.Tensor) -> torch.Tensor:
        filled = F.pad(x, (0, 0, 0, -len(x) % 16)).float()
        of_rows = (filled.abs().amax(1, keepdim=True) / most).clamp_min(1e-12)
        rows = (filled / of_rows).to(torch.float8_e4m3fn)
        return torch._scaled_mm(rows, packed, of_rows, scales[None], out_dtype=x.dtype)[: len(x)]

    return product


KERNELS: Mapping[str, tuple[Build, float]] = {  # and the bytes of a weight
    OURS["bf16"]: (dense, 2), "dense fp16": (dense_fp16, 2), OURS["int8"]: (our_int8, 1), OURS["nf4"]: (our_nf4, 0.52),
    "bitsandbytes gemm_4bit, plain scales": (plain_nf4, 0.57), "bitsandbytes gemv_4bit": (one_row_nf4, 0.57),
    "bitsandbytes int8_scaled_mm": (scaled_int8, 1), "torch _weight_int8pack_mm": (weight_only_int8, 1),
    "torch _weight_int4pack_mm": (tiled_int4, 0.53), "torch _int_mm": (integer_product, 1),
    "torch _scaled_mm in fp8": (scaled_fp8, 1),
}  # fmt: skip
MATRICES: Mapping[str, Callable[[Shape], tuple[int, int]]] = {
    "gate_up": lambda shape: (2 * shape.intermediate_size, shape.hidden_size),
    "down": lambda shape: (shape.hidden_size, shape.intermediate_size),
    "qkv": lambda shape: ((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, shape.hidden_size),
    "o": lambda shape: (shape.hidden_size, shape.num_heads * shape.head_dim),
}


def run(record: Record, request: Request) -> None:
    """Measure every kernel with the largest matrix, then with each other matrix."""
    shape = (SMALL_SHAPES if request.small else SHAPES)[LLAMA2]
    for matrix, sizes in list(MATRICES.items())[: 1 if request.small else None]:
        for kernel, (build, item) in KERNELS.items():
            read = 4 * 2**20 if request.small else READ
            record.measured(
                f"product {matrix}, {kernel}", lambda: product(build, item, sizes(shape), request.device, read)
            )


@torch.no_grad()
def product(build: Build, item: float, sizes: tuple[int, int], device: str, read: int) -> dict[str, Any]:
    """Measure a kernel with one matrix: μs by rows, eager and captured, the error, and rows with other bits."""
    torch.manual_seed(0)
    rows, columns = sizes
    weight = torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * 0.02
    copies = [build(weight) for _ in range(min(64, max(2, round(read / (item * rows * columns)))))]
    x = torch.randn(max(ROWS), columns, device=device, dtype=torch.bfloat16)
    exact, output = x.float() @ weight.float().t(), copies[0](x[:1])
    result: dict[str, Any] = {
        "error": float((output.float() - exact[:1]).norm() / exact[:1].norm()),
        "us": {},
        "captured": {},
    }
    for count in ROWS:
        try:
            works = [lambda copy=copy: copy(x[:count]) for copy in copies]
            result["us"][str(count)] = 1e6 * seconds_each(works, device)
        except RuntimeError as error:  # some accept only one row
            result["most"] = f"not for {count} rows: {str(error).strip().splitlines()[0][:120]}"
            return result
        graph = captured_seconds_each(works, device)
        result["captured"][str(count)] = 1e6 * graph if isinstance(graph, float) else graph
    result["differing"] = differing(copies[0], x)
    return result


def differing(product: Product, x: torch.Tensor) -> list[int]:
    """Return for which numbers of rows some row has other bits than when it is computed by itself."""
    alone = [product(x[row : row + 1])[0] for row in range(len(x))]
    return [
        count for count in COMPARED
        if not all(torch.equal(left, right) for left, right in zip(product(x[:count]), alone, strict=False))
    ]  # fmt: skip


def _bitsandbytes() -> Any:
    from localspec.nn.linear_bitsandbytes import _functional

    return _functional()


# -- the page ----------------------------------------------------------------------------------------------------------


def section(figures: Mapping[str, Any]) -> list[str]:
    results = {name.removeprefix("product "): result for name, result in figures.items() if name.startswith("product ")}
    good = {name: result for name, result in results.items() if not failure(result)}
    if not good:
        return failed(results)
    lines = []
    for name, result in good.items():
        cells = [cell(result, count) for count in ROWS]
        lines.append([name, *cells, figure(result["error"], "{:.3f}"), bits(result)])
    caption = (
        "In the next table a line is a kernel that multiplies rows by a matrix of Llama-2-7B: `gate_up`, the largest of a layer, "
        "or `down`. *Dense* kernels have unpacked weights, *our* kernels are localspec's, and the others are functions of bitsandbytes and torch.\n\n"
        "- The columns of rows have microseconds, recorded and in brackets eager. Less is better.\n"
        "- *Error* is the relative difference from the product with unpacked weights. Less is better.\n"
        "- *Bits of a row* says at which numbers of rows a row gets other bits than by itself. Tried were "
        f"{', '.join(map(str, COMPARED[:-1]))} and {COMPARED[-1]} rows."
    )
    return [
        caption,
        table(["matrix, kernel", *(f"{n} rows" if n > 1 else "1 row" for n in ROWS), "error", "bits of a row"], lines),
        *failed(results),
    ]


def cell(result: Mapping[str, Any], count: int) -> str:
    eager, graph = result["us"].get(str(count)), result["captured"].get(str(count))
    if eager is None:
        return ""
    return f"{graph:.1f} ({eager:.1f})" if isinstance(graph, float) else f"({eager:.1f})"


def bits(result: Mapping[str, Any]) -> str:
    if "differing" not in result:
        return str(result.get("most", ""))
    return f"differ at {', '.join(map(str, result['differing']))} rows" if result["differing"] else "always the same"


def seconds(result: Any, count: int) -> float | None:
    """Return the μs of a kernel for `count` rows, captured if possible; None if unknown or if its result is wrong."""
    if failure(result) or str(count) not in result["us"] or result["error"] > WRONG:
        return None
    graph = result["captured"].get(str(count))
    return float(graph if isinstance(graph, float) else result["us"][str(count)])


def beside_others(figures: Mapping[str, Any], count: int) -> float | None:
    """Return the time of the fastest other packed kernel ÷ the time of localspec's NF4, for `count` rows."""
    (matrix, *_), kernel = MATRICES, OURS["nf4"]
    known = {
        name: seconds(figures[title], count) for name in KERNELS if (title := f"product {matrix}, {name}") in figures
    }
    others = [
        time for name, time in known.items() if time and name not in OURS.values() and not name.startswith("dense")
    ]
    nf4 = known.get(kernel)
    return min(others) / nf4 if nf4 and others else None
