"""Predicts the bytes that a model takes on a machine, only by arithmetic. Measured peaks later correct them."""

from localspec.families.architecture import TransformerConfig
from localspec.models.shape import Shape
from localspec.weights.packed_file import BLOCKS

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of a number
CHUNK = 512  # prompt tokens a forward: bounds the memory of prefill
NOISE_BYTES = 48  # for each token id while a GPU finds a pick: noise is computed in 64 bits
# Recordings (CUDA graphs) that a reply uses, and the assumed bytes that a driver holds for one, which nobody measured.
USUAL_RECORDINGS, RECORDING = 6, 12 * 2**20
PRODUCTS = 32 * 2**20  # bytes that cuBLAS reserves for recordings on the largest cards
STATIC_ROWS = (1, 2, 4, 8, 16, 32, 64)  # on a GPU a step is padded to the next of these numbers of rows
BUCKET = 256  # slots: caches grow by this many, and attention reads a multiple of it, so that shapes seldom change
# In the CPU engine: rows that pass a layer together, and the most bytes of partial results of attention.
ROWS, MOST_PARTS = 256, 64 * 2**20
# The most rows of a static shape of a model with recurrent layers, which repeats the operations of one row for each.
MOST_CHAINED = 16
STATES = 8  # states that a recurrent layer holds: the latest, and earlier ones to return to
RECENT = 256  # rows whose inputs a recurrent layer holds, to compute them again from an earlier state
PAGE = 4096  # bytes of a mapped file that are loaded when any of them is read
FOUR_BITS = 4.9  # average bits of a weight in int4 on a CPU, if the shapes of its matrices are not known
PROGRAM = 40 * 2**20  # bytes that a loaded model holds in addition to tensors and tokenizer: template, threads
NATIVE_PROGRAM, PACKING = 8 * 2**20, 24 * 2**20  # `PROGRAM` in the CPU engine; bytes that packing does not release
TOKEN = 830  # bytes for each token of a tokenizer's vocabulary, measured with vocabularies of 8 and 151 thousand
MOST_PARKED = 4 * 2**30  # bytes of parked texts: caches of other conversations, held to continue them


def packed(weights: int, rows: int, quantize: str, backend: str) -> int:
    """Return the bytes of packed matrices with `weights` weights and `rows` output channels, for a `Device.backend`."""
    if backend in ("native", "cpu"):  # int8 of our library: 64 weights share a scale in fp16
        return int(weights * FOUR_BITS / 8) if quantize == "int4" else weights + weights // 64 * 2
    if quantize == "int8":  # a scale for each channel
        return weights + rows * {"cuda": 4, "mps": 2}[backend]
    if quantize == "nf4":  # 64 weights share a scale of a byte, and 256 of those another one
        return weights // 2 + weights // 64 + weights // (64 * 256) * 4
    return weights // 2 + weights // 32 * 4  # int4: a scale and a zero for 32 weights


def weights(shape: Shape, dtype: str, quantize: str, backend: str, parameters: int | None = None) -> int:
    """Return the bytes of a model's weights. `parameters` is their exact number, if it is known."""
    item, parameters = ITEM[dtype], parameters or shape.parameters
    small = max(0, parameters - (shape.parameters - shape.small))  # norms, biases and routers
    if backend == "native" or (backend == "cpu" and quantize != "none"):  # tables, like embeddings, are never packed
        tables = shape.table + (0 if shape.tied else shape.embedding)
        if quantize == "none":
            return (shape.matrices + tables) * item + small * 4
        matrices = shape.four_bits if quantize == "int4" else packed(shape.matrices, 0, quantize, backend)
        dense = shape.embedding * 4 if shape.tied and backend == "cpu" else 0  # torch holds a tied head in fp32
        return matrices + tables * 2 + dense + small * 4
    if quantize == "none":
        return parameters * item
    if backend == "cuda":  # the head stays as it is
        matrices, rows, heads = shape.layers, shape.rows, 1 if shape.tied else 2
    else:
        matrices, rows, heads = shape.matrices, shape.rows + shape.vocab_size, 1
    return packed(matrices, rows, quantize, backend) + (heads * shape.embedding + shape.table + small) * item


def cache(shape: Shape, tokens: int, dtype: str) -> int:
    """Return the bytes of a cache for `tokens` tokens, draft nodes included: keys, values and recurrent states.

    The number of tokens is rounded up to a multiple of `BUCKET`. Layers with a window hold all tokens, too, so that a
    text can be continued from any of its tokens.
    """
    return shape.cached(-(-tokens // BUCKET) * BUCKET, ITEM[dtype]) + states(shape, dtype)


def states(shape: Shape, dtype: str) -> int:
    """Return the bytes of recurrent layers: STATES states in fp32, the inputs of the convolution before each state, and
    the layers' inputs for the last RECENT tokens."""
    if (sizes := shape.delta) is None:
        return 0
    rows = STATES * (sizes.taps - 1) * sizes.channels + RECENT * sizes.read
    return STATES * sizes.numbers * ITEM["fp32"] + sum(sizes.layers) * rows * ITEM[dtype]


def parking(left: int) -> int:
    """Return the bytes that parked texts may take: half of the `left` bytes that are free, up to MOST_PARKED.

    Parked texts are earlier prompts whose cache stays in memory. No prediction of memory includes them, since they are
    dropped when memory becomes scarce.
    """
    return min(max(0, left // 2), MOST_PARKED)


def tokenizer(shape: Shape, backend: str) -> int:
    """Return the bytes of a loaded tokenizer; 0 on CUDA, because the tokenizer is in main memory."""
    return 0 if backend == "cuda" else TOKEN * shape.vocab_size


def drafter_numbers(dtype: str, quantize: str, backend: str) -> tuple[float, int]:
    """Return (bytes per weight of a trained drafter's matrices, with their scales; bytes of any other number)."""
    if backend == "native":  # if the target is packed, a drafter's matrices are in int8 with a scale for 32 weights
        return (ITEM[dtype] if quantize == "none" else 1 + 2 / 32), 4
    if (backend, quantize, dtype) == ("cuda", "nf4", "bf16"):  # like the target's; cards without bf16 keep them dense
        return packed(2**14, 0, "nf4", backend) / 2**14, ITEM[dtype]
    return ITEM[dtype], ITEM[dtype]


def unread(shape: Shape, quantize: str, backend: str, tokens: int) -> int:
    """Return the bytes of the embedding and of the table of layer inputs that `tokens` tokens do not need in memory.

    They stay on the disk. Blocks of GGUF files are copied into memory, so for them the result is 0.
    """
    if backend != "native" or quantize in ("none", BLOCKS):
        return 0
    tables = (
        (0 if shape.tied else shape.embedding, shape.hidden_size),
        (shape.table, shape.num_layers * shape.layer_inputs[0]),
    )
    return sum(max(0, numbers * 2 - tokens * (-(-row * 2 // PAGE) * PAGE)) for numbers, row in tables)


def on_disk(quantize: str, backend: str, experts: int, over: int) -> int:
    """Return the bytes of experts that stay on the disk if a model needs `over` bytes more memory than it may take.

    `experts` are the bytes of all experts. At most half of them may stay on the disk, because reading more for each
    token would be too slow. A model that needs more does not fit. The result is 0 if the model fits. It is also 0 with
    dense weights or without the native engine, because no mapped file holds the experts then.
    """
    return min(over, experts // 2) if over > 0 and backend == "native" and quantize != "none" else 0


def program(quantize: str, backend: str) -> int:
    """Return the bytes that a loaded model holds in addition to its tensors and its tokenizer."""
    if backend == "native":
        return NATIVE_PROGRAM + (PACKING if quantize in ("none", BLOCKS) else 0)
    return PROGRAM


def workspace(shape: Shape, dtype: str, quantize: str, backend: str, tokens: int, nodes: int) -> int:
    """Return the most bytes that a forward needs while it runs, for a chunk of a prompt or for a tree's logits."""
    if backend == "native":
        states = CHUNK * shape.hidden_size * 4
        return _native_forward(shape, dtype, quantize, tokens) + max(states, (nodes + 1) * shape.vocab_size * 4)
    item = ITEM[dtype]
    layer_or_logits = max(CHUNK * _row(shape) * item, (nodes + 1) * shape.vocab_size * (item + 4))
    return layer_or_logits + (recordings(shape, dtype, quantize, nodes) if backend == "cuda" else 0)


def _row(shape: Shape) -> int:
    """Return how many numbers torch holds in memory for each row that passes through a layer."""
    widest = shape.widest
    numbers = widest.head_dim * (2 * shape.num_heads + 2 * widest.num_kv_heads)
    return numbers + 4 * shape.hidden_size + 4 * widest.intermediate_size + 2 * shape.num_layers * shape.layer_inputs[0]


def recordings(shape: Shape, dtype: str, quantize: str, nodes: int) -> int:
    """Return the bytes for recorded steps (CUDA graphs), and for choosing tokens on the GPU.

    Each recording, of 1, 2, 4 … rows, has separate memory for its results. The memory for everything else is shared.
    With NF4, reading a prompt also needs room for one dense matrix.
    """
    item, rows = ITEM[dtype], next((rows for rows in STATIC_ROWS if rows > nodes), STATIC_ROWS[-1])
    results = 2 * rows * (shape.vocab_size + shape.hidden_size) * item
    step = rows * (_row(shape) * item + shape.vocab_size * (item + 1))
    picks = shape.vocab_size * (NOISE_BYTES + 2 * rows * 4)
    dense = 2 * shape.hidden_size * shape.widest.intermediate_size * item if quantize == "nf4" else 0
    recurrent = 0
    if (sizes := shape.delta) is not None:  # states before and after a forward, and what recurrent layers read
        recurrent = 2 * sizes.numbers * ITEM["fp32"] + MOST_CHAINED * sum(sizes.layers) * sizes.read * item
    return results + step + picks + dense + recurrent + PRODUCTS + USUAL_RECORDINGS * RECORDING


def _native_forward(shape: Shape, dtype: str, quantize: str, tokens: int) -> int:
    """Return the bytes that the CPU engine holds for forwards: ROWS rows in a layer, and the partial results of
    attention."""
    most, sizes, heads = shape.widest, shape.delta, (2 if shape.gated else 1) * shape.num_heads
    qkv, padded = (heads + 2 * most.num_kv_heads) * most.head_dim, -(-most.head_dim // 16) * 16
    mixed, inner, window = shape.num_heads * most.head_dim, most.intermediate_size, 0
    if sizes is not None:  # the engine copies the rows before the convolution
        qkv, mixed, window = max(qkv, sizes.read + sizes.values), max(mixed, sizes.values), sizes.read
    floats = shape.hidden_size + qkv + shape.num_heads * padded + mixed + inner + most.head_dim + window
    floats += (shape.num_layers + 1) * shape.layer_inputs[0]
    if (experts := shape.experts) is not None:
        # For each row the sum of outputs, the output of an additional MLP, and the router's logits. For each pair of a
        # row and an expert: channels, output, and inputs, of which one in int8 with its part of scales and sums takes
        # at most half of a float.
        floats += (2 if experts.dense else 1) * shape.hidden_size + experts.count
        floats += experts.used * (experts.size + 3 * shape.hidden_size // 2)
    widest = max(shape.hidden_size, inner, mixed)
    inputs = widest * 4 if quantize == "none" else widest + widest // 32 * 4  # quantised, with scales or sums
    parts = -(-tokens // BUCKET) * ROWS * shape.num_heads * (padded + 16) * 4
    return ROWS * (floats * 4 + inputs) + (parts if parts <= MOST_PARTS else 0)


def loading(shape: Shape, dtype: str, quantize: str, backend: str) -> int:
    """Return the extra bytes that loading needs: for the largest matrix and its packed copy.

    With torch on a CPU they are the bytes of a dense matrix, into which torch unpacks each matrix before multiplying.
    """
    if quantize == "none" or backend == "native":  # the native engine packs once, piece by piece, and maps the file
        return 0
    if backend == "cpu":
        return unpacked(shape)
    if backend == "cuda":  # the head is not packed
        return 2 * shape.hidden_size * shape.widest.intermediate_size * (ITEM[dtype] + 1)
    return shape.embedding * ((0 if shape.tied else ITEM[dtype]) + 1)


def unpacked(shape: Shape | TransformerConfig) -> int:
    """Return the bytes of the largest matrix in fp32: torch unpacks one matrix at a time."""
    return 4 * shape.hidden_size * max(shape.vocab_size, 2 * shape.intermediate_size)
