// The C functions. They check their arguments; nothing below them does.
#include "localspec.h"

#include <cstdarg>
#include <cstdio>

#include "functions.h"

using namespace ls;

struct ls_pool : Pool {};

namespace {

thread_local char sentence[512] = "";  // the error of this thread's last call

// The right to compute: while it exists, no other call uses the pool.
struct Call {
    Lock lock;
    FloatMode mode;
    explicit Call(Pool& pool) : lock((pool.claim(), pool.in_use)) {}
};

#define LS_CHECK(condition, ...) \
    if (!(condition)) return fail(LS_WRONG, __VA_ARGS__)
#define LS_TRY(call) \
    if (const int code = (call)) return code

int check_format(int out, int in, int format, int group) {
    LS_CHECK(out > 0 && in > 0 && out <= LARGEST_SIZE && in <= LARGEST_SIZE, "A matrix of %d x %d is not possible; sizes are 1 to %d.", out, in, LARGEST_SIZE);
    LS_CHECK(format == LS_FP32 || format == LS_BF16 || format == LS_INT8, "There is no format %d of weights; there are 0 (fp32) to 2 (int8).", format);
    if (is_dense(format)) { LS_CHECK(group == 0, "A dense matrix has no groups; give a group of 0 in place of %d.", group); }
    else LS_CHECK(group == 32 || group == 64 || group == 128, "A group of %d inputs is not possible; give 32, 64 or 128.", group);
    return LS_OK;
}

int check_blocks(int type, int out, int in) {
    const BlockLayout* layout = find_layout(type);
    LS_CHECK(layout, "Blocks of type %d cannot be computed as they are.", type);
    LS_CHECK(out > 0 && in > 0 && out <= LARGEST_SIZE && in <= LARGEST_SIZE, "A matrix of %d x %d is not possible; sizes are 1 to %d.", out, in, LARGEST_SIZE);
    LS_CHECK(in % layout->inputs == 0, "Rows of %d weights are not a whole number of blocks of %d.", in, layout->inputs);
    return LS_OK;
}

int check_data(const void* data, const char* name) {
    LS_CHECK(data, "%s has no weights.", name);
    LS_CHECK((uintptr_t)data % 64 == 0, "The weights of %s do not begin at a multiple of 64 bytes.", name);
    return LS_OK;
}

int check_stack(const ls_matrix& m, const char* name) {
    LS_CHECK(m.num_parts >= 1 && m.num_parts <= LS_MOST_PARTS, "%s cannot have %d parts; give 1 to %d.", name, m.num_parts, LS_MOST_PARTS);
    int64_t rows = 0;
    for (int i = 0; i < m.num_parts; rows += m.parts[i++].out) {
        LS_TRY(check_blocks(m.parts[i].type, m.parts[i].out, m.in));
        LS_TRY(check_data(m.parts[i].data, name));
    }
    LS_CHECK(rows == m.out, "The parts of %s have %lld rows together, and not %d.", name, (long long)rows, m.out);
    return LS_OK;
}

int check_matrix(const ls_matrix& m, const char* name) {
    if (m.format == LS_BLOCKS) return check_stack(m, name);
    LS_TRY(check_format(m.out, m.in, m.format, m.group));
    return check_data(m.data, name);
}

int check_size(const ls_matrix& m, const char* name, int out, int in) {
    LS_TRY(check_matrix(m, name));
    LS_CHECK(m.out == out && m.in == in, "%s is %d x %d, and the model's sizes ask for %d x %d.", name, m.out, m.in, out, in);
    return LS_OK;
}

int check_heads(const ls_model_config& c, int num_kv_heads, int head_dim, int rotary_dim) {
    LS_CHECK(num_kv_heads >= 1 && c.num_heads % num_kv_heads == 0, "%d heads cannot share %d key heads evenly.", c.num_heads, num_kv_heads);
    LS_CHECK(head_dim >= 1 && 2 * (c.num_heads + (int64_t)num_kv_heads) * head_dim <= LARGEST_SIZE, "%d heads of %d channels are not possible.", c.num_heads, head_dim);
    LS_CHECK(rotary_dim % 2 == 0 && rotary_dim <= head_dim, "rotary_dim = %d is not possible; it is even and at most head_dim = %d.", rotary_dim, head_dim);
    return LS_OK;
}

int check_sizes(const ls_model_config& c) {
    const struct { const char* name; int value, least; } sizes[] = {
        {"num_layers", c.num_layers, 0}, {"hidden_size", c.hidden_size, 1}, {"intermediate_size", c.intermediate_size, 1},
        {"num_heads", c.num_heads, 1}, {"num_kv_heads", c.num_kv_heads, 1}, {"head_dim", c.head_dim, 1},
        {"rotary_dim", c.rotary_dim, 0}, {"local_rotary_dim", c.local_rotary_dim, 0}, {"vocab_size", c.vocab_size, 0}};
    for (const auto& size : sizes)
        LS_CHECK(size.value >= size.least && size.value <= LARGEST_SIZE / 4, "%s = %d is not possible.", size.name, size.value);
    LS_TRY(check_heads(c, c.num_kv_heads, c.head_dim, c.rotary_dim));
    LS_CHECK(c.cache_format == LS_FP32 || c.cache_format == LS_FP16, "A cache cannot have format %d; give 0 (fp32) or 4 (fp16).", c.cache_format);
    LS_CHECK(c.rms_norm_eps >= 0 && c.rms_norm_eps < 1, "rms_norm_eps = %g is not possible.", (double)c.rms_norm_eps);
    const struct { const char* name; float value; } factors[] = {
        {"attention_scaling", c.attention_scaling}, {"local_scaling", c.local_scaling}, {"query_scalar", c.query_scalar}, {"embed_scale", c.embed_scale},
        {"residual_scale", c.residual_scale}, {"logit_scale", c.logit_scale}};
    for (const auto& factor : factors)
        LS_CHECK(factor.value > 0 && factor.value < 1e6f, "%s = %g is not possible.", factor.name, (double)factor.value);
    LS_CHECK(c.logit_cap >= 0 && c.logit_cap < 1e6f, "logit_cap = %g is not possible.", (double)c.logit_cap);
    LS_CHECK(c.norm_offset >= 0 && c.norm_offset <= 1, "norm_offset = %g is not possible.", (double)c.norm_offset);
    LS_CHECK(c.gate == LS_SILU || c.gate == LS_GELU || c.gate == LS_CLAMPED_SILU, "There is no gate %d; give 1 (SiLU), 2 (GELU) or 3 (clamped SiLU).", c.gate);
    LS_CHECK(c.gate != LS_CLAMPED_SILU || (c.gate_limit > 0 && c.gate_limit < 1e6f), "gate_limit = %g is not possible.", (double)c.gate_limit);
    if (c.experts.count) LS_TRY(check_experts(c.experts, c.hidden_size));
    LS_CHECK(!c.query_factors || (c.num_query_factors > 0 && c.query_period > 0), "There are %d query_factors, each for %d positions.", c.num_query_factors, c.query_period);
    LS_CHECK(c.rotary_dim == 0 || c.inv_freq, "A model with rotary positions needs inv_freq.");
    LS_CHECK(c.local_rotary_dim == 0 || c.local_inv_freq, "A model with rotary positions of local layers needs local_inv_freq.");
    LS_CHECK(c.num_layers == 0 || c.layers, "A model of %d layers needs them.", c.num_layers);
    LS_CHECK(c.gated == 0 || c.gated == 1, "gated = %d is not possible; give 0 or 1.", c.gated);
    if (c.delta.value_heads) LS_TRY(check_delta(c.delta));
    return LS_OK;
}

bool is_there(const ls_table& table) { return table.rows || table.matrix.out; }

int check_table(const ls_table& table, const char* name, int tokens, int columns) {
    if (!table.rows) return check_size(table.matrix, name, tokens, columns);
    LS_CHECK(table.format == LS_FP32 || table.format == LS_BF16, "%s cannot have format %d; give 0 (fp32) or 1 (bf16).", name, table.format);
    return LS_OK;
}

int check_embedding(const ls_model_config& c) {
    if (is_there(c.embed_tokens)) LS_TRY(check_table(c.embed_tokens, "embed_tokens", c.vocab_size, c.hidden_size));
    if (c.lm_head.out) LS_TRY(check_size(c.lm_head, "lm_head", smaller(c.lm_head.out, c.vocab_size), c.hidden_size));
    const ls_layer_inputs& given = c.layer_inputs;
    if (!given.width) return LS_OK;
    LS_CHECK(given.width > 0 && given.width <= MOST_LAYER_INPUTS && (int64_t)c.num_layers * given.width <= LARGEST_SIZE, "Layers cannot read %d channels of a token.", given.width);
    LS_CHECK(given.tokens >= c.vocab_size, "The table of what layers read has %d tokens, and the model knows %d.", given.tokens, c.vocab_size);
    LS_CHECK(is_there(given.table) && given.norm, "What layers read of tokens lacks its table, or its norm.");
    LS_TRY(check_table(given.table, "The table of what layers read", given.tokens, c.num_layers * given.width));
    return check_size(given.projection, "The projection of what layers read", c.num_layers * given.width, c.hidden_size);
}

int check_keys_from(const ls_model_config& c, int number) {
    const ls_layer l = with_sizes(c, c.layers[number]);
    LS_CHECK((l.keys_from < 0) == (c.layers[0].keys_from < 0), "Layer %d and layer 0 do not both read keys of another model.", number);
    LS_CHECK(l.keys_from >= 0 || (!l.delta && !c.layer_inputs.width), "Layer %d reads keys of another model, but also has a state or its own inputs.", number);
    if (l.keys_from < 0) return LS_OK;
    LS_CHECK(l.keys_from <= number, "Layer %d cannot read the keys of the layer %d before it.", number, l.keys_from);
    if (!l.keys_from) return LS_OK;
    const ls_layer other = with_sizes(c, c.layers[number - l.keys_from]);
    LS_CHECK(!l.delta && !other.delta && !other.keys_from && other.num_kv_heads == l.num_kv_heads && other.head_dim == l.head_dim, "Layer %d cannot read the keys of layer %d, which has others, or none of its own.", number, number - l.keys_from);
    return LS_OK;
}

int check_gate_up(const ls_matrix& m, const char* name, int size, int in) {
    LS_TRY(check_size(m, name, 2 * size, in));
    LS_CHECK(m.format != LS_BLOCKS || (m.num_parts == 2 && m.parts[0].out == size), "The parts of %s are not gate and up.", name);
    return LS_OK;
}

int check_layer(const ls_model_config& c, int number) {
    LS_TRY(check_keys_from(c, number));
    const ls_layer l = with_sizes(c, c.layers[number]);
    LS_TRY(check_heads(c, l.num_kv_heads, l.head_dim, l.local ? c.local_rotary_dim : c.rotary_dim));
    LS_CHECK(l.intermediate_size >= 1 && l.intermediate_size <= LARGEST_SIZE / 4, "intermediate_size = %d is not possible.", l.intermediate_size);
    const int keys = l.keys_from ? 0 : l.num_kv_heads, values = l.keys_are_values ? 0 : keys;
    char name[64];
    auto named = [&](const char* part) { return snprintf(name, sizeof name, "%s of layer %d", part, number), name; };
    const ls_delta_sizes& s = c.delta;
    LS_CHECK(!l.delta || s.value_heads, "Layer %d is recurrent, and the model does not say how large such layers are.", number);
    LS_CHECK(!l.delta || (l.delta->conv && l.delta->dt_bias && l.delta->a_log && l.delta->value_norm), "Recurrent layer %d lacks a part.", number);
    const int of_state = s.value_heads * s.value_dim, read = 2 * s.key_heads * s.key_dim + 2 * s.value_heads + 2 * of_state;
    const int heads = c.num_heads * (c.gated ? 2 : 1) + keys + values;
    LS_TRY(check_size(l.qkv_proj, named("qkv_proj"), l.delta ? read : heads * l.head_dim, c.hidden_size));
    LS_TRY(check_size(l.o_proj, named("o_proj"), c.hidden_size, l.delta ? of_state : c.num_heads * l.head_dim));
    if (!l.router.out || l.gate_up_proj.out) {
        LS_TRY(check_gate_up(l.gate_up_proj, named("gate_up_proj"), l.intermediate_size, c.hidden_size));
        LS_TRY(check_size(l.down_proj, named("down_proj"), c.hidden_size, l.intermediate_size));
    }
    if (l.router.out) {
        const ls_expert_sizes& e = c.experts;
        LS_CHECK(e.count, "Layer %d has experts, and the model does not say how large they are.", number);
        LS_TRY(check_size(l.router, named("router"), e.count, c.hidden_size));
        LS_TRY(check_gate_up(l.expert_gate_up, named("expert_gate_up"), e.count * e.size, c.hidden_size));
        LS_TRY(check_size(l.expert_down, named("expert_down"), e.count * c.hidden_size, e.size));
        LS_CHECK(l.expert_down.format != LS_BLOCKS || l.expert_down.num_parts == 1, "The experts of layer %d are in several parts.", number);
        LS_CHECK(l.gate_up_proj.out || (!l.shared_gate && !l.mlp_out_norm), "Layer %d has a part of an MLP in addition to its experts, but no MLP.", number);
        LS_CHECK(c.residual_scale == 1, "Layer %d has experts, and what layers give is scaled.", number);
    }
    if (const int width = c.layer_inputs.width) {
        LS_TRY(check_size(l.input_gate, named("input_gate"), width, c.hidden_size));
        LS_TRY(check_size(l.input_projection, named("input_projection"), c.hidden_size, width));
        LS_CHECK(l.input_norm && l.o_norm, "Layer %d lacks the norm of its inputs, or of its outputs.", number);
    }
    LS_CHECK(l.input_layernorm && l.post_attention_layernorm, "Layer %d lacks a norm.", number);
    LS_CHECK(!l.o_norm == !l.down_norm, "Layer %d has one of o_norm and down_norm; give both or none.", number);
    LS_CHECK(!l.local || c.rotary_dim == 0 || c.local_inv_freq, "Layer %d is local, and the model has no local_inv_freq.", number);
    LS_CHECK(l.keys_from || !l.q_norm == !l.k_norm, "Layer %d has one of q_norm and k_norm; give both or none.", number);
    LS_CHECK(l.sliding_window >= 0, "A window of %d positions is not possible; give 0 for none.", l.sliding_window);
    return LS_OK;
}

int check_config(const ls_model_config* config) {
    LS_CHECK(config, "No config was given.");
    LS_TRY(check_sizes(*config));
    LS_TRY(check_embedding(*config));
    for (int i = 0; i < config->num_layers; i++) LS_TRY(check_layer(*config, i));
    return LS_OK;
}

int check_rows(const ls_model_config& c, const ls_cache& cache, const ls_request& q) {
    for (int row = 0; row < q.rows; row++) {
        const int token = q.tokens ? q.tokens[row] : -1, parent = q.parents ? q.parents[row] : row - 1;
        LS_CHECK(token < c.vocab_size, "Row %d has token %d, and the model knows ids below %d.", row, token, c.vocab_size);
        LS_CHECK(token >= 0 || q.inputs, "Row %d has neither a token nor an input.", row);
        LS_CHECK(token >= 0 || !c.layer_inputs.width, "Row %d has an input in the place of a token, and layers of this model read what belongs to a token; give tokens.", row);
        LS_CHECK(token < 0 || is_there(c.embed_tokens), "Row %d has a token, and the model no embeddings; give inputs.", row);
        LS_CHECK(parent >= -1 && parent < row, "Row %d has parent %d; a parent is a row before it, or -1.", row, parent);
        LS_CHECK(!cache.chains || parent == row - 1, "Row %d has parent %d, but recurrent layers read only chains.", row, parent);
        if (!q.positions) continue;
        const int before = parent >= 0 ? q.positions[parent] : cache.length ? cache.position()[cache.length - 1] : 0;
        LS_CHECK(q.positions[row] >= before, "Row %d has position %d, below %d, the position of the row it follows.", row, q.positions[row], before);
    }
    return LS_OK;
}

int check_adapters(const ls_model_config& c, const ls_request& q) {
    for (int i = 0; q.adapters && i < 4 * c.num_layers; i++) {
        const ls_adapter& adapter = q.adapters[i];
        LS_CHECK(adapter.rank >= 0 && adapter.rank <= 65536, "An adapter of layer %d has rank %d.", i / 4, adapter.rank);
        LS_CHECK(adapter.rank == 0 || (adapter.a && adapter.b), "An adapter of layer %d lacks its matrices.", i / 4);
        LS_CHECK(adapter.rank == 0 || i % 4 < 2 || !c.layers[i / 4].router.out, "Layer %d has experts, which have no adapters.", i / 4);
    }
    return LS_OK;
}

int check_inner(const ls_model_config& c, const ls_request& q) {
    LS_CHECK(q.num_inner >= 0 && q.num_inner <= 1024, "States at %d places were asked for; give 0 to 1024.", q.num_inner);
    LS_CHECK(q.num_inner == 0 || (q.inner_at && q.inner && q.hidden), "States of inner layers need their places, room, and room for those after the norm.");
    LS_CHECK(q.num_inner == 0 || !q.layers, "States of inner layers are those of all layers together; leave out one of the two.");
    for (int i = 0; i < q.num_inner; i++)
        LS_CHECK(q.inner_at[i] >= 0 && q.inner_at[i] <= c.num_layers, "The model has no state %d; give a number from 0 to %d.", q.inner_at[i], c.num_layers);
    return LS_OK;
}

int check_lent(const ls_model& model, const ls_cache& cache, const ls_request& q) {
    LS_CHECK(!cache.chains && cache.length && cache.format == model.config.cache_format, "The cache lends no keys: it is empty, of another format, or has states.");
    LS_CHECK(q.positions && q.parents && !q.layers, "Rows that read keys of another model need positions, parents and all layers.");
    for (int row = 0; row < q.rows; row++) LS_CHECK(q.parents[row] == -1, "Row %d has a parent, but sees only the committed tokens.", row);
    for (int i = 0; i < model.config.num_layers; i++) {
        const ls_layer& l = model.layers[i];
        const int from = -1 - l.keys_from;
        LS_CHECK(from < cache.layers && cache.place(from).kv_heads == l.num_kv_heads && cache.place(from).padded_dim == padded_head(l.head_dim), "Layer %d cannot read the keys of layer %d, which are others.", i, from);
    }
    return LS_OK;
}

int check_request(const ls_model* model, const ls_cache* cache, const ls_pool* pool, const ls_request* request) {
    LS_CHECK(model && cache && pool && request, "A forward needs a model, a cache, a pool and a request.");
    const ls_model_config& c = model->config;
    const ls_request& q = *request;
    const bool lent = model->borrows();
    LS_CHECK(lent || cache->fits(*model), "The cache belongs to a model of another shape.");
    LS_CHECK(q.rows >= 1, "A forward of %d rows is not possible.", q.rows);
    if (lent) LS_TRY(check_lent(*model, *cache, q));
    LS_CHECK(lent || q.rows <= cache->slots - cache->length, "%d rows do not fit behind %d tokens in %d slots; reserve more.", q.rows, cache->length, cache->slots);
    LS_CHECK(!q.layers || (q.num_layers >= 0 && q.num_layers <= c.num_layers), "%d layers were asked for, and the model has %d.", q.num_layers, c.num_layers);
    LS_CHECK(!q.layers || !cache->chains, "Recurrent layers are computed all together; leave out which layers.");
    for (int i = 0; q.layers && i < q.num_layers; i++)
        LS_CHECK(q.layers[i] > (i ? q.layers[i - 1] : -1) && q.layers[i] < c.num_layers, "Layer %d is not in its place; layers ascend and are below %d.", q.layers[i], c.num_layers);
    for (int i = 0; q.layers && i < q.num_layers; i++) {
        int source = 0;
        const int keys_from = model->layers[q.layers[i]].keys_from;
        while (q.layers[source] < q.layers[i] - keys_from) source++;
        LS_CHECK(q.layers[source] == q.layers[i] - keys_from, "Layer %d reads the keys of layer %d, which was not asked for.", q.layers[i], q.layers[i] - keys_from);
    }
    LS_CHECK(!(q.logits || q.argmax) || c.lm_head.out, "The model has no lm_head, so it gives no logits; ask for hidden states.");
    LS_CHECK(q.logits_from >= 0 && q.logits_from <= q.rows, "Logits from row %d on were asked for, and there are %d rows.", q.logits_from, q.rows);
    LS_TRY(check_adapters(c, q));
    LS_TRY(check_inner(c, q));
    return check_rows(c, *cache, q);
}

}  // namespace

int ls::fail(int code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return code;
}

int ls_abi(void) { return LS_ABI; }
const char* ls_error(void) { return sentence; }

int ls_isa_supported(int isa) { return isa_supported(isa); }
int ls_isa_in_use(void) { return isa_in_use(); }
int ls_isa_use(int isa) {
    LS_CHECK(isa_name(isa), "There is no instruction set number %d.", isa);
    LS_CHECK(isa_supported(isa), "This CPU, or this build, does not have the instruction set %s.", isa_name(isa));
    isa_use(isa);
    return LS_OK;
}

ls_pool* ls_pool_new(int threads) {
    if (threads < 1 || threads > Pool::MOST_THREADS)
        return fail(LS_WRONG, "A pool of %d threads is not possible; give 1 to %d.", threads, Pool::MOST_THREADS), nullptr;
    ls_pool* pool = make<ls_pool>();
    if (pool && pool->start(threads)) return pool;
    unmake(pool);
    return fail(LS_NO_MEMORY, "The system has no memory for %d threads.", threads), nullptr;
}
void ls_pool_free(ls_pool* pool) { unmake(pool); }

void ls_pool_lend(ls_pool* pool, int lent) { pool->lend(lent != 0); }

size_t ls_packed_bytes(int out, int in, int format, int group) {
    if (check_format(out, in, format, group)) return 0;
    return panel_bytes(format, in, group) * panels_of(out);
}

int ls_pack(const ls_packing* packing, void* target, int from_panel, int to_panel) {
    LS_CHECK(packing && packing->weights && target, "Packing needs weights and a place for them.");
    const ls_packing& p = *packing;
    LS_TRY(check_format(p.out, p.in, p.format, p.group));
    LS_CHECK(p.source == LS_FP32 || p.source == LS_BF16 || p.source == LS_FP16, "Weights of format %d cannot be packed; give fp32, bf16 or fp16.", p.source);
    LS_CHECK(!p.interleave || p.out % 2 == 0, "%d channels have no two halves to interleave.", p.out);
    LS_CHECK(0 <= from_panel && from_panel <= to_panel && to_panel <= panels_of(p.out), "There are no panels %d to %d; there are %d.", from_panel, to_panel, panels_of(p.out));
    pack(p, (uint8_t*)target, from_panel, to_panel);
    return LS_OK;
}

int ls_unpack(const ls_matrix* matrix, int interleave, float* weights) {
    LS_CHECK(matrix && weights, "Unpacking needs a matrix and a place for its weights.");
    LS_TRY(check_matrix(*matrix, "The matrix"));
    LS_CHECK(matrix->format != LS_BLOCKS, "Blocks are read by rows.");
    LS_CHECK(!interleave || matrix->out % 2 == 0, "%d channels have no two halves to interleave.", matrix->out);
    unpack(*matrix, interleave, weights);
    return LS_OK;
}

int ls_linear(ls_pool* pool, const ls_matrix* matrix, int rows, const float* x, float* y, int activation) {
    LS_CHECK(pool && matrix && x && y, "A linear layer needs a pool, a matrix, inputs and a place for outputs.");
    LS_TRY(check_matrix(*matrix, "The matrix"));
    LS_CHECK(rows >= 0, "%d rows are not possible.", rows);
    LS_CHECK(activation == LS_NO_ACTIVATION || activation == LS_SILU || activation == LS_GELU, "There is no activation %d.", activation);
    Call call(*pool);
    const int together = smaller(rows, BATCH);
    InputRoom room;
    room.need(*matrix, together);
    Arena measured(nullptr);
    room.take(measured);
    if (!pool->workspace.at_least(measured.used())) return fail(LS_NO_MEMORY, "There is no memory for a linear layer of %d rows.", rows);
    Arena arena(pool->workspace.data());
    const Inputs inputs = room.take(arena);
    const Epilogue epilogue = activation == LS_SILU ? Epilogue::silu : activation == LS_GELU ? Epilogue::gelu : Epilogue::store;
    for (int first = 0; first < rows; first += BATCH)
        multiply(*pool, Linear{matrix, smaller(BATCH, rows - first), x + (size_t)first * matrix->in, matrix->in, nullptr, nullptr, epilogue,
                               y + (size_t)first * matrix->out, matrix->out, nullptr, nullptr}, inputs);
    return LS_OK;
}

size_t ls_blocks_bytes(int type, int out, int in) {
    if (check_blocks(type, out, in)) return 0;
    return block_panel_bytes(*find_layout(type), in) * block_panels(out);
}

int ls_blocks_pack(const ls_blocks_packing* packing, void* target, int from_panel, int to_panel) {
    LS_CHECK(packing && packing->rows && target, "Packing needs rows and a place for them.");
    const ls_blocks_packing& p = *packing;
    LS_TRY(check_blocks(p.type, p.out, p.in));
    const int64_t bytes = row_bytes(*find_layout(p.type), p.in) * p.out;
    LS_CHECK(p.bytes == bytes, "%d rows have %lld bytes, and not %lld.", p.out, (long long)bytes, (long long)p.bytes);
    LS_CHECK(p.head_rows >= 0 && p.head_rows % 2 == 0 && (!p.head_rows || p.out % p.head_rows == 0), "%d rows are not whole heads of %d rows in pairs.", p.out, p.head_rows);
    LS_CHECK(from_panel >= 0 && from_panel <= to_panel && to_panel <= block_panels(p.out), "There are no panels %d to %d; there are %d.", from_panel, to_panel, block_panels(p.out));
    const int bad = pack_blocks(p, (uint8_t*)target, from_panel, to_panel);
    LS_CHECK(bad < 0, "Row %d has a block whose scale is NaN or inf, which no text can come from.", bad);
    return LS_OK;
}

int ls_blocks_round(const ls_packing* packing, int type, void* target, int from_panel, int to_panel) {
    LS_CHECK(packing && packing->weights && target, "Packing needs weights and a place for them.");
    const ls_packing& p = *packing;
    LS_TRY(check_blocks(type, p.out, p.in));
    LS_CHECK(can_round_to(type), "Weights are not rounded to blocks of type %d.", type);
    LS_CHECK(p.source == LS_FP32 || p.source == LS_BF16 || p.source == LS_FP16, "Weights of format %d cannot be packed; give fp32, bf16 or fp16.", p.source);
    LS_CHECK(from_panel >= 0 && from_panel <= to_panel && to_panel <= block_panels(p.out), "There are no panels %d to %d; there are %d.", from_panel, to_panel, block_panels(p.out));
    FloatMode mode;
    const int bad = round_to_blocks(p, type, (uint8_t*)target, from_panel, to_panel);
    if (bad == NO_ROOM) return fail(LS_NO_MEMORY, "There is no memory to round rows of %d weights.", p.in);
    LS_CHECK(bad < 0, "Row %d has a weight that is NaN or inf, which no text can come from.", bad);
    return LS_OK;
}

int ls_rows(const ls_matrix* matrix, int count, const int32_t* rows, float* weights) {
    LS_CHECK(matrix && (count == 0 || (rows && weights)), "Reading rows needs a matrix, their numbers and a place for their weights.");
    LS_TRY(check_matrix(*matrix, "The matrix"));
    for (int i = 0; i < count; i++) LS_CHECK(rows[i] >= 0 && rows[i] < matrix->out, "There is no row %d; there are %d.", rows[i], matrix->out);
    FloatMode mode;
    for (int i = 0; i < count; i++) read_row(*matrix, rows[i], 0, matrix->in, weights + (size_t)matrix->in * i);
    return LS_OK;
}

ls_model* ls_model_new(const ls_model_config* config) {
    if (check_config(config)) return nullptr;
    const ls_model_config& c = *config;
    ls_model* model = make<ls_model>();
    Arena measured(nullptr);
    const float *inv_freq = nullptr, *local_inv_freq = nullptr, *query_factors = nullptr, *norm = nullptr, *inputs_norm = nullptr;
    auto copy_all = [&](Arena& arena, bool now) {
        auto copied = [&](const float* from, int count) -> const float* {
            if (!from) return nullptr;
            float* to = arena.take<float>(count);
            if (now) memcpy(to, from, sizeof(float) * count);
            return to;
        };
        auto copied_norm = [&](const float* from, int count) {
            float* to = const_cast<float*>(copied(from, count));
            for (int i = 0; now && to && c.norm_offset > 0 && i < count; i++) to[i] = to[i] + c.norm_offset;
            return to;
        };
        model->layers = arena.take<ls_layer>(c.num_layers);
        inv_freq = copied(c.inv_freq, c.rotary_dim / 2), norm = copied_norm(c.norm, c.hidden_size);
        local_inv_freq = copied(c.local_inv_freq, c.local_rotary_dim / 2), query_factors = copied(c.query_factors, c.num_query_factors);
        inputs_norm = copied_norm(c.layer_inputs.norm, c.layer_inputs.width);
        for (int i = 0; i < c.num_layers; i++) {
            const ls_layer from = with_sizes(c, c.layers[i]);
            const float *input = copied_norm(from.input_layernorm, c.hidden_size), *post = copied_norm(from.post_attention_layernorm, c.hidden_size);
            const float *q = copied_norm(from.q_norm, from.head_dim), *k = copied_norm(from.k_norm, from.head_dim);
            const float *o = copied_norm(from.o_norm, c.hidden_size), *down = copied_norm(from.down_norm, c.hidden_size);
            const float *inputs = copied_norm(from.input_norm, c.hidden_size), *scalar = copied(from.scalar, 1), *sinks = copied(from.sinks, c.num_heads), *scale = copied(from.expert_scale, c.experts.count), *shared = copied(from.shared_gate, c.hidden_size);
            const float *router = copied_norm(from.router_norm, c.hidden_size), *expert = copied_norm(from.expert_norm, c.hidden_size);
            const float *mlp_out = copied_norm(from.mlp_out_norm, c.hidden_size), *expert_out = copied_norm(from.expert_out_norm, c.hidden_size);
            const ls_delta* delta = from.delta ? ls::copied(arena, *from.delta, c.delta, now) : nullptr;
            if (!now) continue;
            ls_layer& to = model->layers[i];
            to = from;
            to.input_norm = inputs, to.scalar = scalar, to.delta = delta, to.sinks = sinks, to.expert_scale = scale, to.shared_gate = shared;
            to.router_norm = router, to.expert_norm = expert, to.mlp_out_norm = mlp_out, to.expert_out_norm = expert_out;
            to.input_layernorm = input, to.post_attention_layernorm = post, to.q_norm = q, to.k_norm = k, to.o_norm = o, to.down_norm = down;
        }
    };
    if (model) copy_all(measured, false);
    if (!model || !model->memory.resize(measured.used())) {
        unmake(model);
        return fail(LS_NO_MEMORY, "There is no memory for a model of %d layers.", c.num_layers), nullptr;
    }
    Arena arena(model->memory.data());
    copy_all(arena, true);
    model->config = c;
    model->config.layers = model->layers, model->config.inv_freq = inv_freq, model->config.norm = norm;
    model->config.local_inv_freq = local_inv_freq, model->config.query_factors = query_factors, model->config.layer_inputs.norm = inputs_norm;
    for (int i = 0; c.experts.on_disk && i < c.num_layers; i++) {
        if (c.layers[i].router.out) ls::expect_few(c.layers[i]);
    }
    return model;
}
void ls_model_free(ls_model* model) { unmake(model); }

ls_cache* ls_cache_new(const ls_model* model, int slots) {
    if (!model) return fail(LS_WRONG, "A cache needs a model."), nullptr;
    if (model->borrows()) return fail(LS_WRONG, "A model that reads keys of another has no cache."), nullptr;
    if (slots < 0) return fail(LS_WRONG, "A cache of %d slots is not possible.", slots), nullptr;
    ls_cache* cache = make<ls_cache>();
    if (cache && cache->shape_for(*model) && cache->reserve(slots)) return cache;
    unmake(cache);
    return fail(LS_NO_MEMORY, "There is no memory for a cache of %d slots.", slots), nullptr;
}
ls_cache* ls_cache_copy(const ls_cache* from, int length, int slots) {
    if (!from) return fail(LS_WRONG, "No cache was given."), nullptr;
    if (length < 0 || length > from->length || slots < length)
        return fail(LS_WRONG, "Of a cache of %d tokens, %d cannot be copied to %d slots.", from->length, length, slots), nullptr;
    if (from->chains && !from->states.reaches(length)) return fail(LS_WRONG, "The states of the first %d tokens are not known.", length), nullptr;
    ls_cache* cache = make<ls_cache>();
    if (cache && cache->copy(*from, length, slots)) return cache;
    unmake(cache);
    return fail(LS_NO_MEMORY, "There is no memory for a cache of %d slots.", slots), nullptr;
}
int ls_cache_reachable(const ls_cache* cache, int length) {
    if (!cache) return 0;
    length = larger(smaller(length, cache->length), 0);
    while (cache->chains && !cache->states.reaches(length)) length = cache->states.reachable(length);
    return length;
}
void ls_cache_free(ls_cache* cache) { unmake(cache); }
int ls_cache_reserve(ls_cache* cache, int slots) {
    LS_CHECK(cache, "No cache was given.");
    LS_CHECK(slots >= 0, "A cache of %d slots is not possible.", slots);
    return cache->reserve(slots) ? LS_OK : fail(LS_NO_MEMORY, "There is no memory for a cache of %d slots.", slots);
}
int ls_cache_slots(const ls_cache* cache) { return cache ? cache->slots : 0; }
int ls_cache_length(const ls_cache* cache) { return cache ? cache->length : 0; }
int64_t ls_cache_bytes(const ls_cache* cache) { return cache ? (int64_t)(cache->cells.bytes() + cache->positions.bytes() + cache->states.bytes()) : 0; }

int ls_cache_keep(ls_cache* cache, const int32_t* path, int count) {
    LS_CHECK(cache && (path || count == 0), "To keep rows, give a cache and their numbers.");
    const int rows = cache->slots - cache->length;  // also rows that no forward wrote: measurements keep such rows
    LS_CHECK(count >= 0 && count <= rows, "%d rows cannot be kept; there is room for %d.", count, rows);
    for (int i = 0; i < count; i++)
        LS_CHECK(path[i] > (i ? path[i - 1] : -1) && path[i] < rows, "Row %d cannot be kept here; rows ascend and are below %d.", path[i], rows);
    if (cache->chains) {
        LS_CHECK(count == 0 || path[count - 1] == count - 1, "Recurrent layers read only chains, of which the first rows can be kept.");
        const bool written = count <= cache->rows;
        LS_CHECK(!written || cache->states.reaches(cache->length + count), "Of %d rows that were read at once, the first %d cannot be kept separately.", cache->rows, count);
        if (!written) cache->states.assume(cache->length, cache->length + count);
    }
    for (int i = 0; i < count; i++) cache->move(cache->length + path[i], cache->length + i);  // in this order no row is overwritten before it moves
    cache->length += count, cache->rows = 0;
    return LS_OK;
}
int ls_cache_truncate(ls_cache* cache, int length) {
    LS_CHECK(cache, "No cache was given.");
    LS_CHECK(length >= 0 && length <= cache->length, "A cache of %d tokens cannot be cut to %d.", cache->length, length);
    cache->length = ls_cache_reachable(cache, length), cache->rows = 0;
    return LS_OK;
}

int ls_forward(const ls_model* model, ls_cache* cache, ls_pool* pool, const ls_request* request) {
    LS_TRY(check_request(model, cache, pool, request));
    Call call(*pool);
    return forward(*model, *cache, *pool, *request);
}

int ls_forward_each(const ls_model* model, ls_cache* const* caches, ls_pool* pool, const ls_request* request) {
    LS_CHECK(caches && request && pool && model, "A forward of several texts needs a model, caches, a pool and a request.");
    const ls_request& q = *request;
    LS_CHECK(q.rows >= 1 && q.rows <= LS_MOST_TEXTS, "%d texts are not possible at once; give 1 to %d.", q.rows, (int)LS_MOST_TEXTS);
    LS_CHECK(q.tokens && q.hidden && !q.parents && !q.positions && !q.layers && !q.adapters && !q.num_inner && !q.logits_from,
             "Of several texts at once tokens are read, and states and logits given, nothing else.");
    for (int row = 0; row < q.rows; row++) {
        LS_CHECK(caches[row] && caches[row]->fits(*model), "The cache of text %d belongs to a model of another shape.", row);
        LS_CHECK(!caches[row]->chains, "Recurrent layers read one text at a time.");
        LS_CHECK(caches[row]->length < caches[row]->slots, "The cache of text %d is full; reserve more.", row);
        for (int other = 0; other < row; other++) LS_CHECK(caches[other] != caches[row], "Texts %d and %d have the same cache.", other, row);
        ls_request one = q;
        one.rows = 1, one.tokens = q.tokens + row;
        LS_TRY(check_request(model, caches[row], pool, &one));
    }
    Call call(*pool);
    return forward_each(*model, caches, *pool, q);
}

int ls_embed(const ls_model* model, int rows, const int32_t* tokens, float* x) {
    LS_CHECK(model && (rows == 0 || (tokens && x)), "Embedding needs a model, tokens and a place for their embeddings.");
    LS_CHECK(is_there(model->config.embed_tokens), "The model has no embeddings.");
    for (int row = 0; row < rows; row++)
        LS_CHECK(tokens[row] >= 0 && tokens[row] < model->config.vocab_size, "Row %d has token %d, and the model knows ids below %d.", row, tokens[row], model->config.vocab_size);
    FloatMode mode;
    for (int row = 0; row < rows; row++) embed(*model, tokens[row], x + (size_t)row * model->config.hidden_size);
    return LS_OK;
}

int ls_head(const ls_model* model, ls_pool* pool, int rows, const float* hidden, float* logits, int32_t* argmax) {
    LS_CHECK(model && pool && (rows == 0 || hidden), "Logits need a model, a pool and hidden states.");
    LS_CHECK(rows >= 0, "%d rows are not possible.", rows);
    LS_CHECK(model->config.lm_head.out, "The model has no lm_head, so it gives no logits.");
    if (rows == 0) return LS_OK;
    Call call(*pool);
    return head(*model, *pool, rows, hidden, logits, argmax);
}

int ls_draft_heads(const ls_heads* heads, const ls_model* model, ls_pool* pool, const float* state, int32_t root, int count, float* logits) {
    LS_CHECK(heads && model && pool && state && logits, "Draft heads need weights, a model, a pool, a state and a place for logits.");
    const ls_heads& h = *heads;
    const ls_model_config& c = model->config;
    LS_CHECK(h.heads >= 1 && h.layers >= 1 && h.blocks && count >= 1 && count <= h.heads, "%d of %d draft heads of %d blocks are not possible.", count, h.heads, h.layers);
    LS_CHECK(!h.down == !h.up, "A change of the draft heads' logits has two matrices.");
    for (int i = 0; i < h.layers * h.heads; i++)
        LS_TRY(check_size(h.blocks[i], "A block of a draft head", c.hidden_size, h.path && i < h.heads ? 2 * c.hidden_size : c.hidden_size));
    for (int i = 0; i < h.heads; i++) {
        if (h.path) LS_TRY(check_size(h.path[i], "The path of a draft head", c.hidden_size, 2 * c.hidden_size));
        if (h.vocabulary) LS_TRY(check_size(h.vocabulary[i], "The vocabulary matrix of a draft head", h.tokens, c.hidden_size));
        if (h.down) LS_TRY(check_size(h.down[i], "The first matrix of a draft head's change", h.down[i].out, c.hidden_size));
        if (h.down) LS_TRY(check_size(h.up[i], "The second matrix of a draft head's change", h.tokens, h.down[i].out));
    }
    const ls_matrix& shared = h.head ? *h.head : c.lm_head;
    if (!h.vocabulary) LS_TRY(check_size(shared, "The draft heads' vocabulary matrix", h.tokens, c.hidden_size));
    if (h.path) {
        LS_CHECK(is_there(c.embed_tokens), "The model has no embeddings.");
        LS_CHECK(root >= 0 && root < c.vocab_size, "The root is token %d, and the model knows ids below %d.", root, c.vocab_size);
    }
    Call call(*pool);
    return draft_heads(h, *model, *pool, state, root, count, logits);
}

namespace {
int check_sampling(const float* logits, int vocab, const ls_sampling* s, bool greedy) {
    LS_CHECK(logits && s, "Picking needs logits and settings.");
    LS_CHECK(vocab > 0, "Nothing can be picked among %d tokens.", vocab);
    LS_CHECK((s->temperature > 0 || (greedy && s->temperature == 0)) && s->temperature < 1e30, "A temperature of %g is not possible here.", s->temperature);
    LS_CHECK(s->top_k >= 0, "A top-k of %d is not possible; give 0 or more.", s->top_k);
    LS_CHECK(s->top_p > 0 && s->top_p <= 1, "A top-p of %g is not possible; give above 0 and at most 1.", s->top_p);
    LS_CHECK(s->min_p >= 0 && s->min_p <= 1, "A min-p of %g is not possible; give between 0 and 1.", s->min_p);
    return LS_OK;
}
}  // namespace

int ls_pick(const float* logits, int vocab, const ls_sampling* sampling, int64_t position, const int32_t* ids, int32_t* id) {
    LS_TRY(check_sampling(logits, vocab, sampling, true));
    LS_CHECK(id, "A pick needs a place.");
    FloatMode mode;
    return pick(logits, vocab, *sampling, position, ids, id);
}

int ls_probabilities(const float* logits, int vocab, const ls_sampling* sampling, double* p) {
    LS_TRY(check_sampling(logits, vocab, sampling, false));
    LS_CHECK(p, "Probabilities need a place.");
    FloatMode mode;
    return probabilities(logits, vocab, *sampling, p);
}

int ls_top(const float* logits, int vocab, double temperature, int count, int32_t* tokens, float* chances, int32_t* found) {
    LS_CHECK(logits && tokens && chances && found, "The likeliest tokens need logits and a place.");
    LS_CHECK(vocab > 0 && count >= 0, "%d tokens among %d are not possible.", count, vocab);
    LS_CHECK(temperature >= 0 && temperature < 1e30, "A temperature of %g is not possible.", temperature);
    FloatMode mode;
    return top(logits, vocab, temperature, count, tokens, chances, found);
}

int ls_candidates(const float* logits, int vocab, const ls_sampling* sampling, int64_t position, const int32_t* ids,
                  int among, int count, int32_t* tokens, float* chances, int32_t* found) {
    LS_TRY(check_sampling(logits, vocab, sampling, false));
    LS_CHECK(count >= 0 && among >= count && among <= 1024, "%d candidates among %d are not possible; at most 1024 are looked at.", count, among);
    LS_TRY(ls_top(logits, vocab, sampling->temperature, among, tokens, chances, found));
    FloatMode mode;
    add_noise(*sampling, position, ids, count, tokens, chances, found);
    return LS_OK;
}

int ls_piece_cuts(const char* text, const int32_t* lengths, const double* costs, int64_t count, uint64_t seed, int32_t* cuts) {
    LS_CHECK(text && lengths && costs && cuts, "Pieces need a text, lengths, costs and a place.");
    LS_CHECK(count >= 0 && count <= LARGEST_SIZE, "A vocabulary of %lld pieces is not possible.", (long long)count);
    for (int64_t i = 0; i < count; i++) LS_CHECK(lengths[i] > 0, "Piece %lld has %d bytes.", (long long)i, lengths[i]);
    return piece_cuts(text, lengths, costs, count, seed, cuts);
}

double ls_read_seconds(const void* data, size_t bytes, int threads) {
    ls_pool* pool = data || !bytes ? ls_pool_new(threads) : nullptr;
    if (!data && bytes) fail(LS_WRONG, "There is nothing to read.");
    if (!pool) return -1;
    const size_t piece = (size_t)1 << 18;
    std::atomic<uint64_t> sum{0};
    pool->share(threads, [](int, int, int) {});  // wakes the threads
    const double began = seconds();
    pool->share((int)((bytes + piece - 1) / piece), [&](int from, int to, int) {
        const size_t end = (size_t)to * piece;
        sum += kernels().read((const char*)data + piece * from, (end < bytes ? end : bytes) - piece * from);
    });
    const double took = seconds() - began;
    ls_pool_free(pool);
    return sum == 1 ? took + 1e-12 : took;  // uses the sum, so that the compiler cannot leave the reading out
}
