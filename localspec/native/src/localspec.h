/* The native CPU engine as C functions, which Python calls through ctypes (localspec/machine/library.py).

   A function that can fail returns LS_OK or another code, one that makes an object returns NULL, and ls_error() has the
   sentence. Arguments are checked. The caller must provide arrays as large as stated here, and keep weights longer than
   the model made of them. Sizes are in elements unless they say bytes. */
#ifndef LOCALSPEC_H
#define LOCALSPEC_H
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LS_API __declspec(dllexport)
#else
#define LS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_ABI = 13 };                                  /* changes with anything in this file */
enum { LS_OK = 0, LS_WRONG = 1, LS_NO_MEMORY = 2 };   /* codes */
enum { LS_FP32 = 0, LS_BF16 = 1, LS_INT8 = 2, LS_FP16 = 4, LS_BLOCKS = 5 }; /* formats; weights have no LS_FP16 */
enum { LS_C = 0, LS_NEON = 1, LS_AVX2 = 2, LS_AVX_VNNI = 3, LS_AVX512_VNNI = 4 }; /* instruction sets */
enum { LS_NO_ACTIVATION = 0, LS_SILU = 1, LS_GELU = 2 /* by tanh */, LS_CLAMPED_SILU = 3 /* only of a gate, see gate_limit */ };

LS_API int ls_abi(void);
LS_API const char* ls_error(void); /* the error of this thread's last call that failed */

/* ---- instruction sets: by default the best of this CPU. All of them compute the same bits. */
LS_API int ls_isa_supported(int isa);       /* 1: this CPU and this build have it */
LS_API int ls_isa_in_use(void);
LS_API int ls_isa_use(int isa);

/* ---- threads: the caller is one of them. One call at a time uses a pool; others wait. Idle threads use no CPU time. */
typedef struct ls_pool ls_pool;
LS_API ls_pool* ls_pool_new(int threads);
LS_API void ls_pool_free(ls_pool* pool);
LS_API void ls_pool_lend(ls_pool* pool, int lent); /* 1: one of several threads rests after its present piece of work, until a call with 0 */

/* ---- matrices: y = W x + bias, W [out, in] packed (layout.h), or a stack of parts in the blocks of a GGUF file */
enum { /* types of blocks, by ggml's numbers */
    LS_Q4_0 = 2, LS_Q4_1 = 3, LS_Q5_0 = 6, LS_Q5_1 = 7, LS_Q8_0 = 8, LS_Q2_K = 10, LS_Q3_K = 11, LS_Q4_K = 12, LS_Q5_K = 13,
    LS_Q6_K = 14, LS_IQ4_NL = 20, LS_IQ4_XS = 23, LS_MXFP4 = 39
};
typedef struct { /* some rows of a matrix, transposed in panels of 16 (layout.h) */
    const void* data;   /* ls_blocks_bytes of them, at a multiple of 64 bytes */
    int32_t type;
    int32_t out;        /* any number of rows */
} ls_blocks;

enum { LS_MOST_PARTS = 4 };
typedef struct {
    const void* data;   /* ls_packed_bytes of them, at a multiple of 64 bytes; NULL if there are parts */
    const float* bias;  /* [out] in the model's own order, or NULL */
    int32_t out, in;    /* any sizes; with blocks, `in` is a multiple of a block; out 0: there is no matrix */
    int32_t format;     /* LS_FP32, LS_BF16, LS_INT8 or LS_BLOCKS */
    int32_t group;      /* inputs that share a scale: 32, 64 or 128; 0 for dense formats and blocks */
    int32_t num_parts;  /* of LS_BLOCKS: 1 to LS_MOST_PARTS, whose rows follow each other */
    ls_blocks parts[LS_MOST_PARTS];
} ls_matrix;

LS_API size_t ls_packed_bytes(int out, int in, int format, int group); /* 0: not possible, see ls_error */

/* Packs the panels [from_panel, to_panel) of a matrix: 32 output channels each, ceil(out / 32) in all. */
typedef struct {
    const void* weights;      /* [out, in], row-major */
    int32_t source;           /* LS_FP32, LS_BF16 or LS_FP16 */
    int32_t out, in, format, group;
    int32_t interleave;       /* 1: gate_up_proj, whose halves are interleaved by 16 channels */
    const float* importance;  /* [in]: weights of the squared errors when blocks are searched, or NULL */
} ls_packing;
LS_API int ls_pack(const ls_packing* packing, void* target, int from_panel, int to_panel); /* target: the whole matrix */
LS_API int ls_unpack(const ls_matrix* matrix, int interleave, float* weights);             /* -> [out, in] */

LS_API size_t ls_blocks_bytes(int type, int out, int in); /* 0: not possible, see ls_error */
/* Packs the panels [from_panel, to_panel) of a part: 16 rows each, ceil(out / 16) in all; several threads may do so. Fails for a
   scale or minimum that is NaN or inf. */
typedef struct {
    const void* rows;         /* of the whole part, as in the file */
    int64_t bytes;            /* of all rows */
    int32_t type, out, in;
    int32_t head_rows;        /* rows of a head, of which rows 2 i and 2 i + 1 become i and head_rows / 2 + i; 0: as they are */
} ls_blocks_packing;
LS_API int ls_blocks_pack(const ls_blocks_packing* packing, void* target, int from_panel, int to_panel); /* target: the whole part */

/* Rounds panels [from_panel, to_panel) of weights to blocks of a type: Q4_K, Q5_0, Q6_K or Q8_0. Of the packing,
   format, group and interleave have no effect. Fails for a weight that is NaN or inf. */
LS_API int ls_blocks_round(const ls_packing* packing, int type, void* target, int from_panel, int to_panel); /* target: the whole part */

/* The weights of some rows, in the order of the channels in memory -> [count, in] */
LS_API int ls_rows(const ls_matrix* matrix, int count, const int32_t* rows, float* weights);

/* y [rows, out] = activation(W x [rows, in] + bias); x is rounded to int8 if the weights are int8 or blocks */
LS_API int ls_linear(ls_pool* pool, const ls_matrix* matrix, int rows, const float* x, float* y, int activation);

/* ---- models */
typedef struct { /* y += scale * B (A x) */
    const float* a;      /* [rank, in] */
    const float* b;      /* [rank, out]: B transposed */
    int32_t rank;        /* 0: none */
    float scale;
} ls_adapter;

typedef struct {
    int32_t key_heads, value_heads, key_dim, value_dim; /* heads of keys, which value heads share evenly; channels of a head */
    int32_t taps;                /* rows that the convolution sums over, the row's own included */
    int32_t tiled;               /* 1: value head i reads key head i mod key_heads; 0: i / (value_heads / key_heads) */
} ls_delta_sizes;

typedef struct { /* of a layer with a recurrent state (Gated DeltaNet) instead of attention */
    const float* conv;           /* [channels, taps]: channels of queries, keys, values, in that order */
    const float *dt_bias, *a_log; /* [value_heads] */
    const float* value_norm;     /* [value_dim] */
} ls_delta;

typedef struct {
    ls_matrix qkv_proj, o_proj, gate_up_proj, down_proj;    /* gate_up_proj is packed with interleave, or has gate and up as parts */
    const float *input_layernorm, *post_attention_layernorm; /* [hidden_size]: before attention, and before the MLP */
    const float *q_norm, *k_norm;                            /* [head_dim], or NULL: none; no k_norm if keys are another layer's */
    const float *o_norm, *down_norm;                         /* [hidden_size], of the outputs of o_proj and down_proj; or NULL */
    int32_t sliding_window;                                  /* positions, the row's own included; 0: sees everything */
    int32_t local;                                           /* 1: rotated by local_inv_freq; zeros there rotate nothing */
    /* NULL: attention. Else qkv_proj outputs channels, how much each head changes and how much of its state stays
       [value_heads each], and gates of values; o_proj reads values. Such layers read only chains, and only with all layers
       of a model. */
    const ls_delta* delta;
    /* how layers differ; zeros and NULL if they do not */
    int32_t num_kv_heads, head_dim, intermediate_size;       /* 0: those of the model */
    /* n > 0: it reads keys and values of the layer n before it, and qkv_proj outputs only queries; 0: its own. -1 - n: those
       of layer n in another model's cache; all layers must do so. Their rows see that cache's committed tokens and not each
       other, and nothing is saved. */
    int32_t keys_from;
    int32_t keys_are_values; /* 1: qkv_proj outputs queries and keys; values are those keys before norm and rotation */
    const float* scalar;     /* [1]: the states after it are multiplied by this; or NULL */
    /* with layer_inputs: x += norm(input_projection (activation(input_gate x) * the layer's inputs)) after the MLP */
    ls_matrix input_gate, input_projection;                  /* [width, hidden_size], [hidden_size, width] */
    const float* input_norm;                                 /* [hidden_size] */
    /* with experts, router.out > 0: instead of the MLP, or in addition to it. Biases are stacked by expert. */
    ls_matrix router;                                        /* [experts, hidden_size] */
    ls_matrix expert_gate_up;                                /* [2 * experts * size, hidden_size]: gates of all, then ups of all */
    ls_matrix expert_down;                                   /* [experts * hidden_size, size] */
    const float* shared_gate;                                /* [hidden_size]: the MLP's output is multiplied by the sigmoid of
                                                                the product of this and the MLP's input; or NULL */
    const float *router_norm, *expert_norm;                  /* [hidden_size], of their inputs; NULL: post_attention_layernorm */
    const float *mlp_out_norm, *expert_out_norm;             /* [hidden_size], of the outputs of MLP and experts before their sum; or NULL */
    const float* expert_scale;                               /* [experts]: weights are multiplied by it; or NULL */
    const float* sinks;      /* [num_heads]: scores of a key without a value, which every row sees; or NULL */
} ls_layer;

typedef struct {
    int32_t count, used;     /* experts, and how many of them read each row; count 0: no experts */
    int32_t size;            /* channels of an expert, a multiple of 16; hidden_size is one of 32 */
    int32_t normalised;      /* 1: the weights of the chosen experts sum to 1; 0: those of all experts do */
    int32_t on_disk;         /* 1: their matrices are in a mapped file that does not fit into memory: chosen ones are read in advance */
} ls_expert_sizes;

typedef struct { /* rows that are read by a token's id */
    const void* rows;   /* [tokens, columns]; NULL: the rows of the matrix, which may also be the head */
    int32_t format;     /* of `rows`: LS_FP32 or LS_BF16 */
    ls_matrix matrix;   /* [tokens, columns]; out 0: there is no table */
} ls_table;

/* The inputs by token of each layer, in addition to its states (Gemma 4), `width` channels each: the token's row of the
   table, scaled, plus norm(projection of its embedding, scaled), divided by the root of 2 */
typedef struct {
    int32_t width;            /* 0: none */
    int32_t tokens;           /* rows of the table, at least vocab_size */
    float table_scale, projection_scale;
    ls_table table;           /* [tokens, num_layers * width] */
    ls_matrix projection;     /* [num_layers * width, hidden_size] */
    const float* norm;        /* [width] */
} ls_layer_inputs;

typedef struct {
    int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
    int32_t rotary_dim;          /* even, at most head_dim: the first channels of a head, which are rotated */
    int32_t vocab_size;          /* 0: it reads only inputs */
    int32_t cache_format;        /* LS_FP32 or LS_FP16 */
    float rms_norm_eps;
    float attention_scaling;     /* factor of cosines and sines (yarn, longrope), 1 without */
    float local_scaling;         /* the same of layers that are `local` */
    float query_scalar;          /* scores are divided by its root: usually head_dim */
    float embed_scale;           /* embeddings are multiplied by it: usually 1 */
    float norm_offset;           /* norms multiply by this plus their weight: usually 0 */
    float residual_scale;        /* outputs of attention and MLP are multiplied by it: usually 1 */
    float logit_scale;           /* states are multiplied by it before the head: usually 1 */
    int32_t gate;                /* LS_SILU, LS_GELU or LS_CLAMPED_SILU */
    ls_table embed_tokens;       /* [vocab_size, hidden_size] */
    ls_matrix lm_head;           /* out 0: none; it may have fewer rows than there are tokens */
    const float* norm;           /* [hidden_size]; NULL: no final norm */
    const float* inv_freq;       /* [rotary_dim / 2] */
    const float* local_inv_freq; /* [local_rotary_dim / 2], or NULL if no layer is `local` */
    const float* query_factors;  /* [num_query_factors]: factors of queries by position / query_period, the last one beyond; or NULL */
    int32_t num_query_factors, query_period;
    const ls_layer* layers;      /* [num_layers] */
    int32_t gated;               /* 1: each query in qkv_proj is followed by the gate of its head's output, through a sigmoid */
    ls_delta_sizes delta;        /* of its recurrent layers; value_heads 0: it has none */
    int32_t local_rotary_dim;    /* rotary_dim of layers that are `local` */
    int32_t value_norm;          /* 1: values are normed, without weights */
    float logit_cap;             /* a logit becomes logit_cap * tanh(logit / logit_cap); 0: logits are unchanged */
    ls_layer_inputs layer_inputs;
    int32_t interleaved;         /* 1: neighbouring channels are rotated together; 0: channel i and i + rotary_dim / 2 */
    ls_expert_sizes experts;
    float gate_limit;            /* of LS_CLAMPED_SILU: g = min(gate, limit), u = clamp(up, +-limit), g sigmoid(1.702 g) (u + 1) */
} ls_model_config;

typedef struct ls_model ls_model;
LS_API ls_model* ls_model_new(const ls_model_config* config); /* copies all but the weights */
LS_API void ls_model_free(ls_model* model);

/* ---- caches: keys and values of the committed tokens [0, length) and after them of the last forward's rows, zeros at
   first; and the states of recurrent layers */
typedef struct ls_cache ls_cache;
LS_API ls_cache* ls_cache_new(const ls_model* model, int slots); /* copies what it needs of the model */
LS_API ls_cache* ls_cache_copy(const ls_cache* from, int length, int slots); /* its first `length` tokens, or as many as `reachable` */
LS_API int ls_cache_reachable(const ls_cache* cache, int length); /* the length that `truncate` would leave */
LS_API void ls_cache_free(ls_cache* cache);
LS_API int ls_cache_reserve(ls_cache* cache, int slots); /* room for this many; LS_NO_MEMORY changes nothing */
LS_API int ls_cache_slots(const ls_cache* cache);        /* the present room, a multiple of 16 */
LS_API int ls_cache_length(const ls_cache* cache);
LS_API int64_t ls_cache_bytes(const ls_cache* cache);
LS_API int ls_cache_keep(ls_cache* cache, const int32_t* path, int count); /* rows after the committed ones, ascending */
/* With recurrent layers only the first rows can be kept, and a cache that is cut far back may keep less: see its length. */
LS_API int ls_cache_truncate(ls_cache* cache, int length);

/* ---- forwards */
typedef struct {
    int32_t rows;
    const int32_t* tokens;     /* [rows]; below 0: take the row of `inputs`; NULL: take all from `inputs` */
    const float* inputs;       /* [rows, hidden_size] instead of embeddings, or NULL */
    const int32_t* parents;    /* [rows], each below its row; -1: after the committed tokens; NULL: a chain */
    const int32_t* positions;  /* [rows], never below the parent's; NULL: length + depth */
    const int32_t* layers;     /* ascending; NULL: all */
    int32_t num_layers;        /* of `layers` */
    const ls_adapter* adapters; /* [num_layers of the model][4]: qkv, o, gate_up, down, the last two without experts; NULL: none */
    float* hidden;             /* -> [rows, hidden_size] after the final norm, or NULL */
    float* logits;             /* -> [rows - logits_from, vocab_size], or NULL */
    int32_t* argmax;           /* -> [rows - logits_from], the first of equal logits, -1 if one is NaN; or NULL */
    int32_t logits_from;
    const int32_t* inner_at;   /* [num_inner]: i stands for the states before layer i, num_layers for those after the final norm */
    int32_t num_inner;
    float* inner;              /* -> [rows, num_inner * hidden_size], in that order; only if all layers are computed */
} ls_request;

/* Any number of rows. Their keys and values follow the committed tokens until the next forward; ls_cache_keep keeps them. */
LS_API int ls_forward(const ls_model* model, ls_cache* cache, ls_pool* pool, const ls_request* request);
/* One row after the committed tokens of each cache, all at once: tokens [rows] -> hidden, logits, argmax, and nothing else.
   No cache may come twice or have recurrent layers. At most LS_MOST_TEXTS rows. */
enum { LS_MOST_TEXTS = 32 };
LS_API int ls_forward_each(const ls_model* model, ls_cache* const* caches, ls_pool* pool, const ls_request* request);
LS_API int ls_embed(const ls_model* model, int rows, const int32_t* tokens, float* x); /* -> [rows, hidden_size] */
/* hidden [rows, hidden_size] after the final norm -> logits [rows, lm_head.out], argmax [rows]; either may be NULL */
LS_API int ls_head(const ls_model* model, ls_pool* pool, int rows, const float* hidden, float* logits, int32_t* argmax);

/* ---- draft heads that read one row (Medusa, Cai et al. 2024, section 3.1), one head for each depth. A head starts with the
   state x, and each of its blocks computes x += silu(B x + b). With `path`, the first block computes x = A z + a + silu(B z + b)
   instead: z joins the state and the embedding of the root, each divided by the root of its mean square. The logits are
   W x + up (down x), where W is `head` or the head's matrix in `vocabulary`. */
typedef struct {
    const ls_matrix* blocks;      /* [layers][heads], B with biases b */
    const ls_matrix* path;        /* [heads], A with biases a; or NULL */
    const ls_matrix* vocabulary;  /* [heads]; NULL: they share `head` */
    const ls_matrix* head;        /* NULL: the model's lm_head, with its scale and cap */
    const ls_matrix *down, *up;   /* [heads]; or NULL */
    int32_t heads, layers, tokens; /* layers: blocks of a head; tokens: logits in a row */
    float cap;                    /* a logit y of `head` becomes cap * tanh(y / cap); 0: logits are unchanged */
} ls_heads;
/* -> logits [count, tokens] of the first `count` heads */
LS_API int ls_draft_heads(const ls_heads* heads, const ls_model* model, ls_pool* pool, const float* state, int32_t root, int count, float* logits);

/* ---- picking, as described in localspec/decoding/sampling.py; logits [vocab] */
typedef struct {
    double temperature;   /* 0: greedy */
    double top_p, min_p;  /* 1.0 and 0.0: off */
    uint64_t seed;
    int32_t top_k;        /* 0: off */
} ls_sampling;
/* -> *id: argmax(log p + Gumbel noise of (seed, position, id)), p after temperature, top-k, top-p, min-p; -1 if one is NaN.
   ids [vocab] are the tokens of the logits; NULL: token i has logit i */
LS_API int ls_pick(const float* logits, int vocab, const ls_sampling* sampling, int64_t position, const int32_t* ids, int32_t* id);
/* -> p [vocab]: the distribution that a token is sampled from, zero for tokens that truncation removes */
LS_API int ls_probabilities(const float* logits, int vocab, const ls_sampling* sampling, double* p);
/* The `count` likeliest, most likely first: -> tokens [count], chances [count] (softmax over all of logits / temperature;
   temperature 0 counts as 1), *found of them; none if a logit is NaN or inf. */
LS_API int ls_top(const float* logits, int vocab, double temperature, int count, int32_t* tokens, float* chances, int32_t* found);
/* Of the `among` likeliest, the `count` with the highest log p + noise; chances are the softmax of those sums.
   ids [vocab]: the tokens that the columns stand for, or NULL. tokens and chances have room for `among`. */
LS_API int ls_candidates(const float* logits, int vocab, const ls_sampling* sampling, int64_t position, const int32_t* ids,
                         int among, int count, int32_t* tokens, float* chances, int32_t* found);

/* ---- vocabularies: text has `count` different pieces in UTF-8, one after the other, of lengths [count] bytes. A piece is
   made by merging neighbours: always those that make the piece of the least cost, the first of equal ones. -> cuts [count]:
   the byte of a piece at which its last two parts, themselves pieces, meet; 0: it is one character, or more than two parts
   are left. The seed is a random number. */
LS_API int ls_piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts);

/* ---- the memory's limit: seconds that this many threads need to read `data` once; below 0: not possible, see ls_error */
LS_API double ls_read_seconds(const void* data, size_t bytes, int threads);

#ifdef __cplusplus
}
#endif
#endif
