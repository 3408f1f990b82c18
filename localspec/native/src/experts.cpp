#include "functions.h"

namespace ls {
namespace {

constexpr int MOST_EXPERTS = 4096;  // also in families/family.py

// The matrix of one expert, in the stacked matrix of all. In blocks, gates and ups are two parts, each with all experts.
// In other formats the panels of an expert hold both its gates and its ups. Biases are stacked by expert.
ls_matrix of_expert(const ls_matrix& all, int expert, int experts) {
    ls_matrix m = all;
    m.out = all.out / experts;
    if (all.bias) m.bias = all.bias + (size_t)m.out * expert;
    if (all.format != LS_BLOCKS) {
        m.data = (const uint8_t*)all.data + panel_bytes(all) * (panels_of(all.out) / experts) * expert;
        return m;
    }
    for (int i = 0; i < all.num_parts; i++) {
        ls_blocks& part = m.parts[i];
        const size_t panels = block_panels(part.out) / experts * (size_t)expert;
        part.data = (const uint8_t*)part.data + block_panel_bytes(*find_layout(part.type), all.in) * panels;
        part.out /= experts;
    }
    return m;
}

// The prepared inputs from row number `row` on.
Inputs from_row(const Inputs& all, const ls_matrix& m, size_t row) {
    Inputs part = all;
    if (is_dense(m.format)) {
        part.floats += row * m.in;
        return part;
    }
    const bool blocks = m.format == LS_BLOCKS;
    const size_t group = blocks ? 32 : m.group, groups = blocks ? padded_inputs(m.in) / 32 : groups_of(m.in, m.group);
    part.values += row * groups * group, part.sums += row * groups;
    part.scales += row * (blocks ? groups : spans_of(m.format, m.in, m.group));
    if (blocks) part.half_sums += 2 * row * groups, part.scaled_sums += row * groups;
    return part;
}

struct Bytes {
    const uint8_t* first;
    size_t count;
};

int parts_of(const ls_matrix& m) { return m.format == LS_BLOCKS ? m.num_parts : 1; }
Bytes bytes_of(const ls_matrix& m, int part) {
    if (m.format != LS_BLOCKS) return {(const uint8_t*)m.data, panel_bytes(m) * panels_of(m.out)};
    const ls_blocks& blocks = m.parts[part];
    return {(const uint8_t*)blocks.data, block_panel_bytes(*find_layout(blocks.type), m.in) * block_panels(blocks.out)};
}

}  // namespace

void expect_few(const ls_layer& layer) {
    const ls_matrix* matrices[] = {&layer.expert_gate_up, &layer.expert_down};
    for (const ls_matrix* m : matrices)
        for (int part = 0; part < parts_of(*m); part++) expect_random(bytes_of(*m, part).first, bytes_of(*m, part).count);
}

int check_experts(const ls_expert_sizes& s, int hidden_size) {
    if (s.count < 1 || s.count > MOST_EXPERTS) return fail(LS_WRONG, "%d experts are not possible; give 1 to %d.", s.count, MOST_EXPERTS);
    if (s.used < 1 || s.used > s.count) return fail(LS_WRONG, "%d of %d experts for each row are not possible.", s.used, s.count);
    if (s.size < 1 || s.size % 16 || hidden_size % PANEL) return fail(LS_WRONG, "Experts of %d channels on states of %d are not possible; give multiples of 16 and of %d.", s.size, hidden_size, PANEL);
    if (s.count * larger((int64_t)2 * s.size, (int64_t)hidden_size) > LARGEST_SIZE) return fail(LS_WRONG, "%d experts of %d channels are too many.", s.count, s.size);
    return LS_OK;
}

void Experts::take(Arena& arena, const ls_layer* layers, int num_layers, int rows) {
    const ls_expert_sizes& s = c_.experts;
    const size_t pairs = (size_t)rows * s.used;
    InputRoom room;
    for (int i = 0; i < num_layers; i++) {
        if (!layers[i].router.out) continue;
        room.need(layers[i].expert_gate_up, (int)pairs), room.need(layers[i].expert_down, (int)pairs);
    }
    inputs_ = room.take(arena);
    logits_ = arena.take<float>((size_t)rows * s.count), weights_ = arena.take<float>(pairs);
    act_ = arena.take<float>(pairs * s.size), given_ = arena.take<float>(pairs * c_.hidden_size);
    chosen_ = arena.take<int32_t>(pairs), place_ = arena.take<int32_t>(pairs), row_ = arena.take<int32_t>(pairs);
    start_ = arena.take<int32_t>(s.count + 1), with_rows_ = arena.take<int32_t>(s.count);
    groups_ = arena.take<Group>(smaller(s.count, (int)pairs));
}

// Choose the experts with the largest logits, of equal ones the first. Weights are a softmax over the chosen ones if
// `normalised`, else over all experts, times the expert's `scale` [experts] if that is not NULL.
void Experts::choose(int row, const float* scale) {
    const ls_expert_sizes& s = c_.experts;
    float *logits = logits_ + (size_t)row * s.count, *weights = weights_ + (size_t)row * s.used;
    int32_t* chosen = chosen_ + (size_t)row * s.used;
    for (int i = 0; i < s.used; i++) {
        int best = -1;
        for (int expert = 0; expert < s.count; expert++) {
            bool taken = false;
            if (best >= 0 && !(logits[expert] > logits[best])) continue;
            for (int j = 0; j < i && !taken; j++) taken = chosen[j] == expert;
            if (!taken) best = expert;
        }
        chosen[i] = best;
    }
    const double most = logits[chosen[0]];
    double sum = 0;
    for (int i = 0; i < (s.normalised ? s.used : s.count); i++) sum += falling_exponential(logits[s.normalised ? chosen[i] : i] - most);
    for (int i = 0; i < s.used; i++) weights[i] = (float)(falling_exponential(logits[chosen[i]] - most) / sum) * (scale ? scale[chosen[i]] : 1.0f);
}

// Order the pairs by expert (a counting sort): fill `start_`, `with_rows_`, `place_` and `row_`.
void Experts::group(int rows) {
    const int experts = c_.experts.count, used = c_.experts.used;
    memset(start_, 0, sizeof(int32_t) * (experts + 1));
    for (int i = 0; i < rows * used; i++) start_[chosen_[i] + 1]++;
    num_groups_ = 0;
    for (int expert = 0; expert < experts; expert++) {
        if (start_[expert + 1]) with_rows_[num_groups_++] = expert;
        start_[expert + 1] += start_[expert];
    }
    for (int i = 0; i < rows * used; i++) {  // in the order of rows; moves `start_` to the end of each expert, undone below
        const int place = start_[chosen_[i]]++;
        place_[i] = place, row_[place] = i / used;
    }
    for (int expert = experts; expert > 0; expert--) start_[expert] = start_[expert - 1];
    start_[0] = 0;
}

// Request the chosen experts' parts of a matrix from the disk, those that follow each other at once.
void Experts::request(const ls_matrix& all) {
    for (int part = 0; part < parts_of(all); part++) {
        Bytes range{};
        for (int i = 0; i < num_groups_; i++) {
            const Bytes next = bytes_of(of_expert(all, with_rows_[i], c_.experts.count), part);
            const bool follows = range.first + range.count == next.first;
            if (!follows) read_soon(range.first, range.count);
            range = follows ? Bytes{range.first, range.count + next.count} : next;
        }
        read_soon(range.first, range.count);
    }
}

// Multiply the rows of each expert by its matrix in `all` -> y, a row for each pair. `preparing.rows` are the rows of
// `preparing.x` that the pairs read; if it is NULL, x has a row for each pair. With `same_row` there is only one row, so its
// inputs are prepared once for all experts.
void Experts::multiply_groups(const ls_matrix& all, Preparing preparing, bool same_row, Epilogue epilogue, float* y, int y_stride) {
    int units = 0, pairs = 0;
    const int32_t* rows = preparing.rows;
    for (int i = 0; i < num_groups_; i++) {
        const int expert = with_rows_[i], first = start_[expert], count = start_[expert + 1] - first;
        Group* group = new (groups_ + i) Group{of_expert(all, expert, c_.experts.count), Product{nullptr, RowBlocks(count), from_row(inputs_, all, same_row ? 0 : first), epilogue,
                                               y + (size_t)first * y_stride, y_stride, nullptr, nullptr, c_.gate_limit}, units};
        group->product.matrix = &group->matrix;
        units += units_of(group->matrix, epilogue), pairs += count;
    }
    const int spans = spans_of(all.format, all.in, all.group), last = same_row ? 1 : num_groups_;
    const auto prepare_spans = all.format == LS_BLOCKS ? k_.prepare_blocks : k_.prepare;
    const auto multiply_units = all.format == LS_BLOCKS ? k_.multiply_blocks : k_.multiply;
    auto prepare = [&](int from, int to, int) {
        for (int i = from; i < to; i++) {
            const int first = start_[with_rows_[i]];
            Preparing one{&groups_[i].matrix, groups_[i].product.blocks, preparing.x, preparing.stride, preparing.factors, preparing.norm, groups_[i].product.inputs, rows ? rows + first : nullptr};
            if (!rows) one.x += (size_t)first * one.stride;
            for (int block = 0; block < one.blocks.count; block++) prepare_spans(one, block, 0, spans);
        }
    };
    if ((int64_t)(same_row ? 1 : pairs) * all.in < 16384) prepare(0, last, 0);  // too little to share
    else pool_.share(last, prepare);
    // some microseconds of work, for an average number of rows of an expert
    const int grain = smaller(64, larger(1, (int)((32 << 10) / (unit_bytes(groups_[0].matrix) * larger(1, pairs / num_groups_ / 4)))));
    pool_.share(units, [&](int from, int to, int thread) {  // units may be of several groups: find the first by bisection
        int low = 0, high = num_groups_;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (groups_[middle].first_unit <= from ? low : high) = middle;
        }
        for (int unit = from; unit < to; low++) {
            const int end = low + 1 < num_groups_ ? smaller(to, groups_[low + 1].first_unit) : to;
            multiply_units(groups_[low].product, unit - groups_[low].first_unit, end - groups_[low].first_unit, thread);
            unit = end;
        }
    }, grain);
}

void Experts::mix(const ls_layer& layer, int rows, const float* x, const float* factors, const float* norm, Epilogue gate, float* y) {
    const ls_expert_sizes& s = c_.experts;
    const int hidden = c_.hidden_size;
    pool_.share(rows, [&](int row, int to, int) {
        for (; row < to; row++) choose(row, layer.expert_scale);
    }, 16);
    group(rows);
    if (s.on_disk) request(layer.expert_gate_up), request(layer.expert_down);  // together, since a disk reads many pieces at once
    multiply_groups(layer.expert_gate_up, Preparing{nullptr, RowBlocks(rows), x, hidden, factors, norm, inputs_, row_}, rows == 1, gate, act_, s.size);
    multiply_groups(layer.expert_down, Preparing{nullptr, RowBlocks(rows), act_, s.size, nullptr, nullptr, inputs_, nullptr}, false, Epilogue::store, given_, hidden);
    pool_.share(rows, [&](int row, int to, int) {  // always from the largest logit on, so that a sum has one order
        for (; row < to; row++) {
            float* sum = y + (size_t)row * hidden;
            for (int i = 0; i < s.used; i++) {
                const float weight = weights_[(size_t)row * s.used + i], *given = given_ + (size_t)place_[(size_t)row * s.used + i] * hidden;
                for (int j = 0; j < hidden; j++) sum[j] = i ? sum[j] + weight * given[j] : weight * given[j];
            }
        }
    }, 2);
}

}  // namespace ls
