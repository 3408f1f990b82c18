#include "functions.h"

namespace ls {
namespace {

// The tokens that each row of a forward sees, as one logical sequence (drawn in attention_kernels.h), and its position.
class Sequences {
  public:
    // `caches`: one for each row. Otherwise all rows are in `cache`, or, if that is `lent`, see only its committed tokens.
    // False: no memory.
    bool fill(Pool& pool, const ls_cache& cache, ls_cache* const* caches, const ls_request& request, bool lent);
    // The first logical index that a row sees through a window of this many positions, its own included; 0: sees everything.
    int visible_from(int row, int window) const;
    int length(int row) const { return prefix[row] + tail_count[row]; }

    // [rows]: the row sees slots [0, prefix) in order, then those of tails[row]
    int32_t *prefix, *tail_count, *positions;
    const int32_t** tails;

  private:
    int position(int row, int logical) const;
    const ls_cache& of(int row) const { return caches_ ? *caches_[row] : *cache_; }
    const ls_cache* cache_;
    ls_cache* const* caches_;
};


bool Sequences::fill(Pool& pool, const ls_cache& cache, ls_cache* const* caches, const ls_request& q, bool lent) {
    cache_ = &cache, caches_ = caches;
    const size_t rows = (size_t)q.rows;
    if (!pool.sequences.at_least(rows * (3 * sizeof(int32_t) + sizeof(int32_t*)) + 512)) return false;
    Arena arena(pool.sequences.data());
    tails = arena.take<const int32_t*>(rows);
    prefix = arena.take<int32_t>(rows), tail_count = arena.take<int32_t>(rows), positions = arena.take<int32_t>(rows);
    size_t all_tails = 0;
    for (int row = 0; row < q.rows; row++) {
        const int parent = caches ? -1 : q.parents ? q.parents[row] : row - 1, length = of(row).length, slot = length + (caches ? 0 : row);
        prefix[row] = parent < 0 ? length : prefix[parent];
        tail_count[row] = parent < 0 ? 0 : tail_count[parent];
        if (lent) prefix[row] = cache.length, tail_count[row] = 0;
        else if (tail_count[row] == 0 && prefix[row] == slot) prefix[row]++;
        else tail_count[row]++;
        all_tails += tail_count[row];
        positions[row] = q.positions ? q.positions[row] : parent < 0 ? length : positions[parent] + 1;
    }
    if (!pool.tails.at_least(all_tails * sizeof(int32_t))) return false;
    int32_t* tail = (int32_t*)pool.tails.data();
    for (int row = 0; row < q.rows; row++) {
        const int count = tail_count[row];
        tails[row] = tail;
        for (int i = 0; i + 1 < count; i++) tail[i] = tails[q.parents[row]][i];
        if (count) tail[count - 1] = cache.length + row;
        tail += count;
    }
    return true;
}

int Sequences::position(int row, int logical) const {
    const int slot = logical < prefix[row] ? logical : tails[row][logical - prefix[row]];
    const ls_cache& cache = of(row);
    return slot < cache.length ? cache.position()[slot] : positions[caches_ ? row : slot - cache.length];
}

int Sequences::visible_from(int row, int window) const {
    int from = 0, to = length(row) - 1;
    if (window == 0 || (int64_t)positions[row] - window < position(row, 0)) return 0;
    while (from < to) {  // positions never decrease along a path
        const int middle = from + (to - from) / 2;
        if (position(row, middle) > positions[row] - window) to = middle;
        else from = middle + 1;
    }
    return from;
}

constexpr size_t MOST_PARTIALS = (size_t)64 << 20;  // bytes; if they would take more, threads do not share chunks

class Forward {
  public:
    Forward(const ls_model& model, ls_cache& cache, ls_cache* const* caches, Pool& pool, const ls_request& request)
        : model_(model), c_(model.config), cache_(cache), caches_(caches), pool_(pool), q_(request), k_(kernels()), recurrent_(pool, model.config), experts_(pool, model.config) {}

    int run() {
        if (!sequences_.fill(pool_, cache_, caches_, q_, model_.borrows())) return fail(LS_NO_MEMORY, "There is no memory for a tree of %d rows.", q_.rows);
        for (int row = 0; row < q_.rows; row++) chunks_ = larger(chunks_, ceil_div(sequences_.length(row), CHUNK));
        Arena measured(nullptr);
        allocate(measured);
        if (!pool_.workspace.at_least(measured.used())) return fail(LS_NO_MEMORY, "There is no memory for a forward of %d rows.", q_.rows);
        Arena arena(pool_.workspace.data());
        allocate(arena);
        if (cache_.chains && !cache_.states.begin(cache_.length, q_.rows, &reading_))
            return fail(LS_NO_MEMORY, "There is no memory for the states of recurrent layers.");
        for (int row = 0; caches_ && row < q_.rows; row++) {
            ls_cache& cache = *caches_[row];
            cache.rows = 1, cache.position()[cache.length] = sequences_.positions[row];
        }
        if (!caches_ && !model_.borrows()) {
            cache_.rows = q_.rows;
            memcpy(cache_.position() + cache_.length, sequences_.positions, sizeof(int32_t) * q_.rows);
        }
        for (first_ = 0; first_ < q_.rows; first_ += BATCH) {
            rows_ = smaller(BATCH, q_.rows - first_);
            batch();
        }
        return LS_OK;
    }

  private:
    int half() const { return c_.rotary_dim / 2; }
    int local_half() const { return c_.local_rotary_dim / 2; }
    bool stored_apart() const { return c_.num_layers && (model_.layers[0].o_norm || c_.residual_scale != 1 || c_.experts.count); }
    int layer_count() const { return q_.layers ? q_.num_layers : c_.num_layers; }
    const ls_adapter* adapters_of(int layer) const { return q_.adapters ? q_.adapters + (size_t)layer * 4 : nullptr; }

    void allocate(Arena& arena) {
        const size_t rows = smaller(BATCH, q_.rows), heads = (size_t)c_.num_heads;
        InputRoom inputs;
        int most_in = c_.hidden_size, most_out = 0, most_rank = 0, qkv = 0, head_dim = 0, inner = 0, mixed = 0;
        scratch_size_ = 0;
        bool with_mlp = false;  // whether a layer has an MLP in addition to its experts
        for (int i = 0; i < layer_count(); i++) {
            const int number = q_.layers ? q_.layers[i] : i;
            const ls_layer& layer = model_.layers[number];
            int adapter = 0;
            mixed = larger(mixed, layer.o_proj.in);
            const ls_matrix* matrices[] = {&layer.qkv_proj, &layer.o_proj, &layer.gate_up_proj, &layer.down_proj};
            if (layer.router.out) inputs.need(layer.router, (int)rows), with_mlp = with_mlp || layer.gate_up_proj.out;
            for (const ls_matrix* m : matrices) {
                if (!m->out) continue;
                inputs.need(*m, (int)rows);
                most_in = larger(most_in, m->in), most_out = larger(most_out, m->out);
                if (q_.adapters) most_rank = larger(most_rank, adapters_of(number)[adapter++].rank);
            }
            qkv = larger(qkv, layer.qkv_proj.out), head_dim = larger(head_dim, layer.head_dim), inner = larger(inner, layer.intermediate_size);
            const size_t scratch = attention_scratch(attending(number), q_.rows);
            scratch_size_ = scratch > scratch_size_ ? scratch : scratch_size_;
            if (!c_.layer_inputs.width) continue;
            inputs.need(layer.input_gate, (int)rows), inputs.need(layer.input_projection, (int)rows);
        }
        if (c_.layer_inputs.width) inputs.need(c_.layer_inputs.projection, (int)rows);
        if (c_.lm_head.out) inputs.need(c_.lm_head, (int)rows);
        x_ = arena.take<float>(rows * c_.hidden_size);
        qkv_ = arena.take<float>(rows * qkv);
        queries_ = arena.take<float>(rows * heads * padded_head(head_dim));
        mixed_ = arena.take<float>(rows * mixed);
        act_ = arena.take<float>(rows * inner);
        layer_inputs_ = arena.take<float>(rows * c_.num_layers * c_.layer_inputs.width);
        gated_ = arena.take<float>(rows * c_.layer_inputs.width);
        factors_ = arena.take<float>(rows);
        const size_t turned = rows * (half() + (c_.local_inv_freq ? local_half() : 0));  // the angles of local layers follow
        cos_ = arena.take<float>(turned), sin_ = arena.take<float>(turned);
        given_ = arena.take<float>(stored_apart() ? rows * c_.hidden_size : 0);
        beside_ = arena.take<float>(with_mlp ? rows * c_.hidden_size : 0);
        query_factors_ = c_.query_factors ? arena.take<float>(rows) : nullptr;
        visible_from_ = arena.take<int32_t>(rows);
        best_ = arena.take<Best>(rows * pool_.threads());
        inputs_ = inputs.take(arena);
        if (most_rank) {
            normed_ = arena.take<float>(rows * most_in);
            low_ = arena.take<float>(rows * most_rank);
            delta_ = arena.take<float>(rows * most_out);
        }
        const size_t partials = (size_t)chunks_ * rows * heads * state_floats(head_dim);
        split_ = !caches_ && pool_.threads() > 1 && chunks_ > 1 && partials * sizeof(float) <= MOST_PARTIALS;
        partials_ = arena.take<float>(split_ ? partials : 0);
        scratch_ = arena.take<float>(scratch_size_ * pool_.threads());
        if (cache_.chains) recurrent_.take(arena, cache_.states, (int)rows);
        if (c_.experts.count) experts_.take(arena, model_.layers, c_.num_layers, (int)rows);
    }

    void batch() {
        for (int r = 0; r < rows_; r++) {
            const int row = first_ + r;
            float* x = x_ + (size_t)r * c_.hidden_size;
            if (q_.tokens && q_.tokens[row] >= 0) embed(model_, q_.tokens[row], x);
            else memcpy(x, q_.inputs + (size_t)row * c_.hidden_size, sizeof(float) * c_.hidden_size);
            const size_t at = (size_t)r * half(), local = (size_t)rows_ * half() + (size_t)r * local_half();
            cos_sin(sequences_.positions[row], c_.inv_freq, half(), c_.attention_scaling, cos_ + at, sin_ + at);
            if (c_.local_inv_freq) cos_sin(sequences_.positions[row], c_.local_inv_freq, local_half(), c_.local_scaling, cos_ + local, sin_ + local);
            if (query_factors_) query_factors_[r] = c_.query_factors[smaller(sequences_.positions[row] / c_.query_period, c_.num_query_factors - 1)];
        }
        if (c_.layer_inputs.width) read_layer_inputs(model_, pool_, q_.tokens + first_, x_, rows_, inputs_, layer_inputs_);
        // Rows whose states are not requested need only keys and values of the last layer.
        const bool heads = q_.logits || q_.argmax;
        const int head_from = heads ? larger(0, smaller(rows_, q_.logits_from - first_)) : rows_;
        const int wanted = q_.hidden || q_.num_inner ? 0 : head_from;
        for (int i = 0; i < layer_count(); i++) {
            give_inner(i, x_);
            layer(q_.layers ? q_.layers[i] : i, i + 1 == layer_count() ? wanted : 0);
        }
        if (wanted == rows_) return;
        finish(wanted, head_from);
    }

    // Copy the batch's states [rows, hidden_size] to each place that requests the states of this number.
    void give_inner(int number, const float* x) {
        const size_t size = (size_t)c_.hidden_size;
        for (int place = 0; place < q_.num_inner; place++) {
            if (q_.inner_at[place] != number) continue;
            float* to = q_.inner + ((size_t)first_ * q_.num_inner + place) * size;
            for (int r = 0; r < rows_; r++) memcpy(to + (size_t)r * q_.num_inner * size, x + r * size, size * sizeof(float));
        }
    }

    void layer(int number, int from) {  // rows before `from` need only keys and values
        const ls_layer& w = model_.layers[number];
        const ls_adapter* adapters = adapters_of(number);
        linear(w.qkv_proj, adapters, 0, 0, x_, w.input_layernorm, Epilogue::store, qkv_, w.qkv_proj.out);
        if (w.delta) recurrent_.read(cache_.states, reading_, w, model_.recurrent_before(number), qkv_, first_, rows_, mixed_);
        else attention(number, from);
        if (from == rows_) return;
        add(w.o_proj, adapters, 1, from, mixed_, w.o_norm);
        if (w.router.out) mixture(w, from);
        else {
            linear(w.gate_up_proj, adapters, 2, from, x_, w.post_attention_layernorm, gate_of(c_.gate), act_, w.intermediate_size);
            add(w.down_proj, adapters, 3, from, act_, w.down_norm);
        }
        if (c_.layer_inputs.width || w.scalar) after_mlp(number, from);
    }

    // Add the output of a mixture of experts to rows [from, rows) of the states.
    void mixture(const ls_layer& w, int from) {
        const int hidden = c_.hidden_size, rows = rows_ - from;
        float *x = x_ + (size_t)from * hidden, *given = given_ + (size_t)from * hidden;
        const float* norm = w.post_attention_layernorm;
        root_mean_squares(x, rows, hidden);
        multiply(pool_, Linear{&w.router, rows, x, hidden, factors_, w.router_norm ? w.router_norm : norm, Epilogue::store, experts_.logits(), c_.experts.count, nullptr, nullptr}, inputs_);
        experts_.mix(w, rows, x, factors_, w.expert_norm ? w.expert_norm : norm, gate_of(c_.gate), given);
        if (w.gate_up_proj.out) beside_experts(w, rows, x);
        pool_.share(rows, [&](int row, int to, int) {
            for (; row < to; row++) {
                float *sum = given + (size_t)row * hidden, *state = x + (size_t)row * hidden;
                if (w.expert_out_norm) norm_in_place(sum, w.expert_out_norm);
                for (int i = 0; w.gate_up_proj.out && i < hidden; i++) sum[i] = sum[i] + beside_[(size_t)row * hidden + i];
                if (w.down_norm) norm_in_place(sum, w.down_norm);
                for (int i = 0; i < hidden; i++) state[i] = state[i] + sum[i];
            }
        }, 4);
    }

    // Write to beside_ the output of the MLP that a layer has in addition to its experts, times the shared gate, with its norm.
    void beside_experts(const ls_layer& w, int rows, const float* x) {
        const int hidden = c_.hidden_size;
        const float* norm = w.post_attention_layernorm;
        multiply(pool_, Linear{&w.gate_up_proj, rows, x, hidden, factors_, norm, gate_of(c_.gate), act_, w.intermediate_size, nullptr, nullptr}, inputs_);
        multiply(pool_, Linear{&w.down_proj, rows, act_, w.intermediate_size, nullptr, nullptr, Epilogue::store, beside_, hidden, nullptr, nullptr}, inputs_);
        for (int r = 0; r < rows; r++) {
            float* y = beside_ + (size_t)r * hidden;
            double gate = 0;
            for (int i = 0; w.shared_gate && i < hidden; i++) gate += (double)(x[(size_t)r * hidden + i] * factors_[r] * norm[i]) * w.shared_gate[i];
            if (w.shared_gate) k_.normalise(y, sigmoid(gate), nullptr, hidden, y);
            if (w.mlp_out_norm) norm_in_place(y, w.mlp_out_norm);
        }
    }

    void norm_in_place(float* x, const float* norm) { k_.normalise(x, k_.inverse_rms(x, c_.hidden_size, c_.rms_norm_eps), norm, c_.hidden_size, x); }
    static float sigmoid(double x) {
        const double part = falling_exponential(x > 0 ? -x : x);
        return (float)((x > 0 ? 1 : part) / (1 + part));
    }

    // Gemma 4, after the MLP: add the layer's projection of its inputs by token, and scale the states.
    void after_mlp(int number, int from) {
        const ls_layer& w = model_.layers[number];
        if (c_.layer_inputs.width) add_inputs(w, number, from);
        for (int r = from; w.scalar && r < rows_; r++) {
            float* x = x_ + (size_t)r * c_.hidden_size;
            k_.normalise(x, *w.scalar, nullptr, c_.hidden_size, x);
        }
    }

    void add_inputs(const ls_layer& w, int number, int from) {
        const int width = c_.layer_inputs.width;
        linear(w.input_gate, nullptr, 0, from, x_, nullptr, c_.gate == LS_GELU ? Epilogue::gelu : Epilogue::silu, gated_, width);
        for (int r = from; r < rows_; r++) {
            const float* own = layer_inputs_ + ((size_t)r * c_.num_layers + number) * width;
            for (int i = 0; i < width; i++) gated_[(size_t)r * width + i] = gated_[(size_t)r * width + i] * own[i];
        }
        add(w.input_projection, nullptr, 0, from, gated_, w.input_norm);
    }

    // Add the output of a linear, after norm and scale if there are any, to rows [from, rows) of the states.
    void add(const ls_matrix& m, const ls_adapter* adapters, int which, int from, const float* x, const float* norm) {
        const int hidden = c_.hidden_size;
        if (!norm && c_.residual_scale == 1) return linear(m, adapters, which, from, x, nullptr, Epilogue::add, x_, hidden);
        linear(m, adapters, which, from, x, nullptr, Epilogue::store, given_, hidden);
        auto some = [&](int row, int to, int) {
            for (row += from, to += from; row < to; row++) {
                float *given = given_ + (size_t)row * hidden, *state = x_ + (size_t)row * hidden;
                if (norm) k_.normalise(given, k_.inverse_rms(given, hidden, c_.rms_norm_eps), norm, hidden, given);
                if (c_.residual_scale != 1) k_.normalise(given, c_.residual_scale, nullptr, hidden, given);
                for (int i = 0; i < hidden; i++) state[i] = state[i] + given[i];
            }
        };
        if ((int64_t)(rows_ - from) * hidden < 65536) some(0, rows_ - from, 0);
        else pool_.share(rows_ - from, some);
    }

    // Compute rows [from, rows) of y from those of x.
    void linear(const ls_matrix& m, const ls_adapter* adapters, int which, int from, const float* x, const float* norm,
                Epilogue epilogue, float* y, int y_stride) {
        const int rows = rows_ - from;
        x += (size_t)from * m.in, y += (size_t)from * y_stride;
        if (norm) root_mean_squares(x, rows, m.in);
        const float* delta = nullptr;
        if (adapters && adapters[which].rank > 0) {
            if (norm) {
                for (int r = 0; r < rows; r++) k_.normalise(x + (size_t)r * m.in, factors_[r], norm, m.in, normed_ + (size_t)r * m.in);
                x = normed_, norm = nullptr;
            }
            delta = adapted(adapters[which], m, rows, x);
        }
        multiply(pool_, Linear{&m, rows, x, m.in, norm ? factors_ : nullptr, norm, epilogue, y, y_stride, delta, nullptr}, inputs_);
    }

    void root_mean_squares(const float* x, int rows, int size) {
        auto some = [&](int from, int to, int) {
            for (int r = from; r < to; r++) factors_[r] = k_.inverse_rms(x + (size_t)r * size, size, c_.rms_norm_eps);
        };
        if ((int64_t)rows * size < 65536) some(0, rows, 0);
        else pool_.share(rows, some);
    }

    const float* adapted(const ls_adapter& adapter, const ls_matrix& m, int rows, const float* x) {
        const LowRank low_rank{&adapter, rows, m.in, m.out, x, low_, delta_};
        pool_.share(rows * adapter.rank, [&](int from, int to, int) { k_.shrink(low_rank, from, to); });
        pool_.share(ceil_div(m.out, 128), [&](int from, int to, int) { k_.expand(low_rank, 128 * from, smaller(m.out, 128 * to)); });
        return delta_;
    }

    Attending attending(int number) const {
        const ls_layer& w = model_.layers[number];
        Attending a{};
        a.num_heads = c_.num_heads, a.num_kv_heads = w.num_kv_heads, a.head_dim = w.head_dim;
        a.rotary_dim = w.local ? c_.local_rotary_dim : c_.rotary_dim;
        a.cache_format = c_.cache_format, a.slots = cache_.slots, a.rms_norm_eps = c_.rms_norm_eps;
        a.rows = rows_, a.first_slot = cache_.length + first_, a.tree_slot = cache_.length;
        const size_t turned = w.local ? (size_t)rows_ * half() : 0;
        a.query_scalar = c_.query_scalar, a.factors = query_factors_, a.gated = c_.gated, a.sinks = w.sinks;
        a.own_keys = !w.keys_from, a.value_norm = c_.value_norm, a.interleaved = c_.interleaved;
        a.qkv_stride = w.qkv_proj.out, a.first_key = c_.num_heads * (1 + c_.gated);
        a.first_value = a.first_key + (w.keys_are_values ? 0 : w.num_kv_heads);
        a.qkv = qkv_, a.q_norm = w.q_norm, a.k_norm = w.k_norm, a.cos = cos_ + turned, a.sin = sin_ + turned;
        const int keys = w.keys_from < 0 ? -1 - w.keys_from : number;
        a.queries = queries_, a.keys = cache_.keys(keys), a.values = cache_.values(keys);
        a.prefix = sequences_.prefix + first_, a.tail_count = sequences_.tail_count + first_, a.tails = sequences_.tails + first_;
        a.visible_from = visible_from_, a.mixed = mixed_, a.partials = partials_, a.chunks = chunks_;
        return a;
    }

    // Each row in the cache of its text.
    void attention_each(int number) {
        const Attending all = attending(number);
        const int heads = all.num_kv_heads, half = all.rotary_dim / 2;
        pool_.share(heads * rows_, [&](int item, int to, int thread) {
            for (; item < to; item++) {
                const int r = item / heads, head = item % heads;
                ls_cache& cache = *caches_[r];
                Attending a = all;
                a.slots = cache.slots, a.rows = 1, a.first_slot = a.tree_slot = cache.length;
                a.keys = cache.keys(number), a.values = cache.values(number);
                a.qkv += (size_t)r * a.qkv_stride, a.cos += (size_t)r * half, a.sin += (size_t)r * half;
                a.queries += (size_t)r * a.num_heads * padded_head(a.head_dim), a.mixed += (size_t)r * a.num_heads * a.head_dim;
                a.prefix += r, a.tail_count += r, a.tails += r, a.visible_from += r;
                if (a.factors) a.factors += r;
                k_.place(a, head, 0, 1);
                k_.attend(a, head, 0, 1, -1, scratch_ + scratch_size_ * thread);
            }
        });
    }

    void attention(int number, int from) {
        const Attending a = attending(number);
        const int together = rows_together(a), blocks = ceil_div(rows_ - from, together), heads = a.num_kv_heads;
        for (int r = 0; r < rows_; r++) visible_from_[r] = sequences_.visible_from(first_ + r, model_.layers[number].sliding_window);
        if (caches_) return attention_each(number);
        const bool split = split_ && heads * blocks < 4 * pool_.threads();
        const bool at_once = !split && blocks == 1 && from == 0;  // the thread that uses a head's keys computes them
        if (!at_once) pool_.share(heads, [&](int head, int to, int) {
            for (; head < to; head++) k_.place(a, head, 0, rows_);
        });
        const int chunks = split ? chunks_ : 1;
        pool_.share(heads * blocks * chunks, [&](int item, int to, int thread) {
            for (; item < to; item++) {
                const int head = item / (blocks * chunks), block = item / chunks % blocks, row = from + block * together;
                if (at_once) k_.place(a, head, 0, rows_);
                k_.attend(a, head, row, smaller(row + together, rows_), split ? item % chunks : -1, scratch_ + scratch_size_ * thread);
            }
        });
        if (split) pool_.share(rows_ - from, [&](int row, int to, int thread) {
            for (; row < to; row++) k_.combine(a, from + row, scratch_ + scratch_size_ * thread);
        });
    }

    // Final norm and head: states of rows from `wanted` on, logits of rows from `head_from` on.
    void finish(int wanted, int head_from) {
        const size_t size = (size_t)c_.hidden_size;
        float* x = x_ + wanted * size;
        const float* norm = c_.norm;
        if (norm) root_mean_squares(x, rows_ - wanted, c_.hidden_size);
        if (q_.hidden) {
            float* hidden = q_.hidden + first_ * size;
            for (int r = 0; r < rows_; r++) {
                if (norm) k_.normalise(x + r * size, factors_[r], norm, c_.hidden_size, hidden + r * size);
                else memcpy(hidden + r * size, x + r * size, size * sizeof(float));
            }
            x = hidden, norm = nullptr;
            give_inner(c_.num_layers, hidden);
        }
        const bool scaled = c_.logit_scale != 1;
        if (scaled && norm) {  // in the same two steps, whether or not states are requested
            for (int r = 0; r < rows_ - wanted; r++) k_.normalise(x + r * size, factors_[r], norm, c_.hidden_size, x + r * size);
            norm = nullptr;
        }
        for (int r = 0; scaled && r < rows_ - wanted; r++) factors_[r] = c_.logit_scale;
        const int rows = rows_ - head_from, at = first_ + head_from - q_.logits_from;
        if (rows <= 0) return;
        const Linear l{&c_.lm_head, rows, x + (head_from - wanted) * size, c_.hidden_size,
                       norm || scaled ? factors_ + (head_from - wanted) : nullptr, norm, Epilogue::head,
                       q_.logits ? q_.logits + (size_t)at * c_.lm_head.out : nullptr, c_.lm_head.out, nullptr, best_, c_.logit_cap};
        reset(best_, pool_.threads(), rows);
        multiply(pool_, l, inputs_);
        if (q_.argmax) settle(best_, pool_.threads(), rows, q_.argmax + at);
    }

    const ls_model& model_;
    const ls_model_config& c_;
    ls_cache& cache_;
    ls_cache* const* caches_;  // one for each row; NULL: all rows are in `cache_`
    Pool& pool_;
    const ls_request& q_;
    const Kernels& k_;
    Sequences sequences_;
    Delta recurrent_;
    Experts experts_;
    States::Reading reading_ = {};
    int first_ = 0, rows_ = 0;  // of the batch
    int chunks_ = 0;
    bool split_ = false;
    float *x_, *given_, *beside_, *qkv_, *queries_, *mixed_, *act_, *layer_inputs_, *gated_, *factors_, *cos_, *sin_, *query_factors_, *normed_, *low_, *delta_, *partials_, *scratch_;
    size_t scratch_size_;
    int32_t* visible_from_;
    Best* best_;
    Inputs inputs_;
};

}  // namespace

int forward(const ls_model& model, ls_cache& cache, Pool& pool, const ls_request& request) {
    return Forward(model, cache, nullptr, pool, request).run();
}

int forward_each(const ls_model& model, ls_cache* const* caches, Pool& pool, const ls_request& request) {
    return Forward(model, *caches[0], caches, pool, request).run();
}

int head(const ls_model& model, Pool& pool, int rows, const float* hidden, float* logits, int32_t* argmax) {
    const ls_model_config& c = model.config;
    InputRoom room;
    room.need(c.lm_head, smaller(rows, BATCH));
    for (int pass = 0; pass < 2; pass++) {
        Arena arena(pass ? pool.workspace.data() : nullptr);
        const Inputs inputs = room.take(arena);
        Best* best = arena.take<Best>((size_t)smaller(rows, BATCH) * pool.threads());
        float* factors = c.logit_scale != 1 ? arena.take<float>(smaller(rows, BATCH)) : nullptr;
        if (!pass && !pool.workspace.at_least(arena.used())) return fail(LS_NO_MEMORY, "There is no memory for the logits of %d rows.", rows);
        for (int first = 0; pass && first < rows; first += BATCH) {
            const int count = smaller(BATCH, rows - first);
            reset(best, pool.threads(), count);
            for (int r = 0; factors && r < count; r++) factors[r] = c.logit_scale;
            multiply(pool, Linear{&c.lm_head, count, hidden + (size_t)first * c.hidden_size, c.hidden_size, factors, nullptr, Epilogue::head,
                                  logits ? logits + (size_t)first * c.lm_head.out : nullptr, c.lm_head.out, nullptr, best, c.logit_cap}, inputs);
            if (argmax) settle(best, pool.threads(), count, argmax + first);
        }
    }
    return LS_OK;
}

}  // namespace ls
