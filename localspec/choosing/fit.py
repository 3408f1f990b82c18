"""The bytes that a model takes on a machine before it is loaded. Pure arithmetic; a measured peak corrects it."""

from localspec.families.architecture import TransformerConfig
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS
from localspec.weights.recipe import in_four_bits

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number
CHUNK = 512  # prompt tokens a forward: bounds the memory of prefill
NOISE_BYTES = 48  # that finding a pick takes of each id of a row on a GPU, whose noise has 64 bits while it is made
# Recordings that a reply plays, and bytes that a driver is taken to keep of one: nobody has measured it.
USUAL_RECORDINGS, RECORDING = 6, 12 * 2**20
PRODUCTS = 32 * 2**20  # bytes that cuBLAS keeps for recordings, on the largest cards
STATIC_ROWS = (1, 2, 4, 8, 16, 32, 64)  # of a step on a GPU, whose rows are filled up to one of these
BUCKET = 256  # slots: caches grow by this many, and attention looks at a multiple of it, so that shapes seldom change
ROWS, MOST_PARTS = 256, 64 * 2**20  # of the CPU engine: rows that pass a layer together; bytes of parts of attention
MOST_CHAINED = 16  # rows of a static shape after states, which repeats the operations of one row for each
STATES = 8  # of a recurrent layer that are held: the latest, and earlier ones that can be gone back to
RECENT = 256  # rows of a recurrent layer that are held to be read again
PAGE = 4096  # bytes of a mapped file that come with any of them that is read
PROGRAM = 40 * 2**20  # bytes that a loaded model holds apart from tensors and tokenizer: template, threads
NATIVE_PROGRAM, PACKING = 8 * 2**20, 24 * 2**20  # the same of the CPU engine; what packing in memory leaves behind
TOKEN = 830  # bytes of each token that a tokenizer knows, as measured with 8 and 151 thousand of them
MOST_PARKED = 4 * 2**30  # bytes of parked texts


def packed(weights: int, rows: int, quantize: str, backend: str) -> int:
    """Return the bytes of packed matrices with `weights` and output channels (`rows`), of a `Device.backend`."""
    if backend in ("native", "cpu"):  # our library's: a scale in fp16 for 64 weights of int8
        return weights + weights // 64 * 2
    if quantize == "int8":  # a scale for each channel
        return weights + rows * {"cuda": 4, "mps": 2}[backend]
    if quantize == "nf4":  # 64 weights share a scale of a byte, and 256 of those another one
        return weights // 2 + weights // 64 + weights // (64 * 256) * 4
    return weights // 2 + weights // 32 * 4  # int4: a scale and a zero for 32 weights


def weights(shape: Shape, dtype: str, quantize: str, backend: str, parameters: int | None = None) -> int:
    """Return the bytes of a model's weights; `parameters` is their true number, where it is known."""
    item, parameters = ITEM[dtype], parameters or shape.parameters
    known = shape.parameters - (2 * shape.num_layers + 1) * shape.hidden_size
    small = max(0, parameters - known)  # norms and biases
    if backend == "native" or (backend == "cpu" and quantize != "none"):  # whose tables are never packed
        tables = shape.table + (0 if shape.tied else shape.embedding)
        if quantize == "none":
            return (shape.matrices + tables) * item + small * 4
        matrices = (
            in_four_bits(shape.linears, shape.num_layers)
            if quantize == "int4"
            else packed(shape.matrices, 0, quantize, backend)
        )
        dense = shape.embedding * 4 if shape.tied and backend == "cpu" else 0  # what torch makes of such a head
        return matrices + tables * 2 + dense + small * 4
    if quantize == "none":
        return parameters * item
    if backend == "cuda":  # the head stays as it is
        matrices, rows, heads = shape.layers, shape.rows, 1 if shape.tied else 2
    else:
        matrices, rows, heads = shape.matrices, shape.rows + shape.vocab_size, 1
    return packed(matrices, rows, quantize, backend) + (heads * shape.embedding + shape.table + small) * item


def cache(shape: Shape, tokens: int, dtype: str) -> int:
    """Return the bytes of keys and values of the tokens, tree included, in whole buckets, and of states."""
    return shape.cached(-(-tokens // BUCKET) * BUCKET, ITEM[dtype]) + states(shape, dtype)


def states(shape: Shape, dtype: str) -> int:
    """Return the bytes of the states of recurrent layers, in fp32, with rows before each, and of rows read lately."""
    if (sizes := shape.delta) is None:
        return 0
    rows = STATES * (sizes.taps - 1) * sizes.channels + RECENT * sizes.read
    return STATES * sizes.numbers * ITEM["fp32"] + sum(sizes.layers) * rows * ITEM[dtype]


def parking(left: int) -> int:
    """Return the bytes that parked texts may take of what a model with a full context leaves: half, up to a limit.

    No model is chosen by them: they take what is left, and go where it becomes less.
    """
    return min(max(0, left // 2), MOST_PARKED)


def tokenizer(shape: Shape, backend: str) -> int:
    """Return the bytes of the tokenizer while it is loaded: in main memory, so none of a GPU's."""
    return 0 if backend == "cuda" else TOKEN * shape.vocab_size


def drafter_numbers(dtype: str, quantize: str, backend: str) -> tuple[float, int]:
    """Return the bytes of a trained drafter's numbers: of a matrix's weight, scale included, and of others."""
    if backend == "native":  # which packs matrices of drafters in int8 by 32, where the target's are packed
        return (ITEM[dtype] if quantize == "none" else 1 + 2 / 32), 4
    if (backend, quantize, dtype) == ("cuda", "nf4", "bf16"):  # like the target's; cards without bf16 keep them dense
        return packed(2**14, 0, "nf4", backend) / 2**14, ITEM[dtype]
    return ITEM[dtype], ITEM[dtype]


def unread(shape: Shape, quantize: str, backend: str, tokens: int) -> int:
    """Return the bytes of weights that need not be in memory: of a mapped file those of tables that no token asks for.

    Blocks of GGUF are in memory of their own.
    """
    if backend != "native" or quantize in ("none", BLOCKS):
        return 0
    tables = (
        (0 if shape.tied else shape.embedding, shape.hidden_size),
        (shape.table, shape.num_layers * shape.layer_inputs[0]),
    )
    return sum(max(0, numbers * 2 - tokens * (-(-row * 2 // PAGE) * PAGE)) for numbers, row in tables)


def program(quantize: str, backend: str) -> int:
    """Return the bytes that a loaded model holds apart from its tensors and its tokenizer."""
    if backend == "native":
        return NATIVE_PROGRAM + (PACKING if quantize in ("none", BLOCKS) else 0)
    return PROGRAM


def workspace(shape: Shape, dtype: str, quantize: str, backend: str, tokens: int, nodes: int) -> int:
    """Return the most bytes that a forward holds for a moment: for a chunk of a prompt, or a tree's logits."""
    if backend == "native":
        states = CHUNK * shape.hidden_size * 4
        return _native_forward(shape, dtype, quantize, tokens) + max(states, (nodes + 1) * shape.vocab_size * 4)
    item = ITEM[dtype]
    held = max(CHUNK * _row(shape) * item, (nodes + 1) * shape.vocab_size * (item + 4))
    return held + (recordings(shape, dtype, quantize, nodes) if backend == "cuda" else 0)


def _row(shape: Shape) -> int:
    """Return the numbers that torch holds of a row that passes a layer."""
    widest = shape.widest
    numbers = widest.head_dim * (2 * shape.num_heads + 2 * widest.num_kv_heads)
    return numbers + 4 * shape.hidden_size + 4 * widest.intermediate_size + 2 * shape.num_layers * shape.layer_inputs[0]


def recordings(shape: Shape, dtype: str, quantize: str, nodes: int) -> int:
    """Return the bytes of recorded steps on a GPU, and of finding picks there.

    Results have memory of their own, by their rows: 1 + 2 + 4 + … of them; all else that a step holds has one place for
    all recordings. Of NF4 prompts make a matrix dense.
    """
    item, rows = ITEM[dtype], next((rows for rows in STATIC_ROWS if rows > nodes), STATIC_ROWS[-1])
    results = 2 * rows * (shape.vocab_size + shape.hidden_size) * item
    step = rows * (_row(shape) * item + shape.vocab_size * (item + 1))
    picks = shape.vocab_size * (NOISE_BYTES + 2 * rows * 4)
    dense = 2 * shape.hidden_size * shape.widest.intermediate_size * item if quantize == "nf4" else 0
    held = 0
    if (sizes := shape.delta) is not None:  # states before and after a forward, and what recurrent layers read
        held = 2 * sizes.numbers * ITEM["fp32"] + MOST_CHAINED * sum(sizes.layers) * sizes.read * item
    return results + step + picks + dense + held + PRODUCTS + USUAL_RECORDINGS * RECORDING


def _native_forward(shape: Shape, dtype: str, quantize: str, tokens: int) -> int:
    """Return the bytes that the CPU engine keeps for forwards: of rows that pass a layer, and of parts of attention."""
    most, sizes, heads = shape.widest, shape.delta, (2 if shape.gated else 1) * shape.num_heads
    qkv, padded = (heads + 2 * most.num_kv_heads) * most.head_dim, -(-most.head_dim // 16) * 16
    mixed, inner, window = shape.num_heads * most.head_dim, most.intermediate_size, 0
    if sizes is not None:  # of its rows before the convolution there is a copy
        qkv, mixed, window = max(qkv, sizes.read + sizes.values), max(mixed, sizes.values), sizes.read
    floats = shape.hidden_size + qkv + shape.num_heads * padded + mixed + inner + most.head_dim + window
    floats += (shape.num_layers + 1) * shape.layer_inputs[0]
    widest = max(shape.hidden_size, inner, mixed)
    inputs = widest * 4 if quantize == "none" else widest + widest // 32 * 4  # quantised, with scales or sums
    parts = -(-tokens // BUCKET) * ROWS * shape.num_heads * (padded + 16) * 4
    return ROWS * (floats * 4 + inputs) + (parts if parts <= MOST_PARTS else 0)


def loading(shape: Shape, dtype: str, quantize: str, backend: str) -> int:
    """Return the bytes added while the largest matrix is packed: the matrix and its packed copy.

    On a CPU torch makes each matrix dense while it multiplies by it.
    """
    if quantize == "none" or backend == "native":  # which packs once, piece by piece, and maps
        return 0
    if backend == "cpu":
        return unpacked(shape)
    if backend == "cuda":  # the head is not packed
        return 2 * shape.hidden_size * shape.widest.intermediate_size * (ITEM[dtype] + 1)
    return shape.embedding * ((0 if shape.tied else ITEM[dtype]) + 1)


def unpacked(shape: Shape | TransformerConfig) -> int:
    """Return the bytes of the largest matrix in fp32, of which a layer makes a packed one dense."""
    return 4 * shape.hidden_size * max(shape.vocab_size, 2 * shape.intermediate_size)
