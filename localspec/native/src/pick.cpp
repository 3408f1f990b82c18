#include "functions.h"

#include <algorithm>


namespace ls {
namespace {

constexpr int HEAP = 1024;         // top-k uses a heap up to this k
constexpr int PART = 128;          // logits that are compared at once
constexpr double MOST_NOISE = 38;  // more than -log(-log(1 - 2^-54))

// ---- noise: splitmix64 (Steele, Lea and Flood 2014)
constexpr uint64_t STEP = 0x9e3779b97f4a7c15, FIRST = 0xbf58476d1ce4e5b9, SECOND = 0x94d049bb133111eb;

uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * FIRST;
    z = (z ^ z >> 27) * SECOND;
    return z ^ z >> 31;
}

struct Noise {
    uint64_t key;
    Noise(uint64_t seed, int64_t position) : key(mixed(mixed(seed) + (uint64_t)position * STEP)) {}
    uint64_t bits(int32_t id) const { return mixed((uint64_t)(int64_t)id * STEP + key); }
    static double of(uint64_t bits) { return -logarithm(-logarithm(((double)(bits >> 11) + 0.5) * 1.1102230246251565e-16)); }
    // Never below the noise: -log(-log u) <= -log(1 - u), and the bits of a float grow no faster than its log2.
    static float bound(uint64_t bits) {
        const float below = (float)(int32_t)(~bits >> 40) * 5.9604644775390625e-8f;  // 1 - u, rounded down to 24 bits
        return 0.693148f * (127.0f - (float)bits_as<int32_t>(below) * 1.1920929e-7f) + 1e-4f;
    }
};

// The best score + noise so far. A logarithm is computed only for ids that could be the best.
struct Noisiest {
    const Noise noise;
    double best = -__builtin_inf();
    int32_t id = -1;
    void offer(float score, int32_t candidate) {
        if ((double)score + MOST_NOISE < best) return;
        const uint64_t bits = noise.bits(candidate);
        if ((double)score + (double)Noise::bound(bits) < best) return;
        const double sum = (double)score + Noise::of(bits);
        if (sum > best) best = sum, id = candidate;
    }
};

// ---- truncation
struct Scored {
    float score;  // logit / temperature
    int32_t id;
};
bool likelier(const Scored& a, const Scored& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); }

// The `count` likeliest in no order: a heap that begins with the least likely of them.
int likeliest(const float* logits, int vocab, float temperature, int count, Scored* heap) {
    int size = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (size == count && id % PART == 0 && !(kernels().maximum(logits + id, smaller(PART, vocab - id)) / temperature > heap[0].score)) {
            id += PART - 1;  // none of these is likelier
            continue;
        }
        const Scored now{logits[id] / temperature, id};
        if (size == count && !likelier(now, heap[0])) continue;
        if (size == count) std::pop_heap(heap, heap + size--, likelier);
        heap[size++] = now;
        std::push_heap(heap, heap + size, likelier);
    }
    return size;
}

// The lowest score among the `k` likeliest; ids with the same score as the k-th count, too.
float kth_score(const float* logits, int vocab, float temperature, int k, Memory& room) {
    if (k <= HEAP) {
        Scored heap[HEAP];
        likeliest(logits, vocab, temperature, k, heap);
        return heap[0].score;
    }
    if (!room.resize(vocab * sizeof(float))) return __builtin_nanf("");
    float* scores = (float*)room.data();
    for (int id = 0; id < vocab; id++) scores[id] = logits[id] / temperature;
    std::nth_element(scores, scores + k - 1, scores + vocab, [](float a, float b) { return a > b; });
    return scores[k - 1];
}

struct Survivors {
    Memory memory;
    Scored* of = nullptr;
    int count = 0;
    double total = 0;  // of all weights before top-p
    float largest;

    explicit Survivors(float largest_score) : largest(largest_score) {}
    double weight(const Scored& s) const { return falling_exponential((double)s.score - (double)largest); }

    bool fill(const float* logits, int vocab, float temperature, float least) {
        int size = 0;
        for (int id = 0; id < vocab; id++) size += logits[id] / temperature >= least;
        if (!memory.resize(size * sizeof(Scored))) return false;
        of = (Scored*)memory.data();
        for (int id = 0; id < vocab; id++)
            if (logits[id] / temperature >= least) of[count++] = {logits[id] / temperature, id};
        return true;
    }
    // The lowest score that can survive. Ids below it have together at most half of the chance that top-p leaves out, or are
    // below min-p. It is a little lower, because logarithms are rounded.
    float bound(const ls_sampling& s, int size) const {
        double least = s.top_p < 1 ? 0.5 * (1 - s.top_p) * total / size : s.min_p;
        return least > 0 ? largest + (float)logarithm(least) - 1e-3f : -__builtin_inff();
    }
    // The likeliest that together reach p, including the one that reaches it. They are sorted part by part until then.
    void keep_nucleus(double p) {
        double before = 0;
        int kept = 0;
        for (int part = 256; kept < count && before < p; part *= 4) {
            const int end = kept + part < count ? kept + part : count;
            if (end < count) std::nth_element(of + kept, of + end, of + count, likelier);
            std::sort(of + kept, of + end, likelier);
            while (kept < end && before < p) before += weight(of[kept++]) / total;
        }
        count = kept;
    }
    bool truncate(const float* logits, int vocab, const ls_sampling& s) {
        const float temperature = (float)s.temperature;
        if (s.top_k > 0 && s.top_k < vocab) {
            const float least = kth_score(logits, vocab, temperature, s.top_k, memory);
            if (least != least || !fill(logits, vocab, temperature, least)) return false;
            for (int i = 0; i < count; i++) total += weight(of[i]);
        } else {
            total = s.top_p < 1 ? kernels().exponential_sum(logits, temperature, largest, vocab) : 0;
            if (!fill(logits, vocab, temperature, bound(s, vocab))) return false;
        }
        if (s.top_p < 1) keep_nucleus(s.top_p);
        if (s.min_p > 0) count = (int)(std::remove_if(of, of + count, [&](const Scored& x) { return weight(x) < s.min_p; }) - of);
        return true;
    }
};

bool truncates(const ls_sampling& s, int vocab) { return (s.top_k > 0 && s.top_k < vocab) || s.top_p < 1 || s.min_p > 0; }

int no_memory(int vocab) { return fail(LS_NO_MEMORY, "There is no memory for picking among %d tokens.", vocab); }

}  // namespace

int pick(const float* logits, int vocab, const ls_sampling& s, int64_t position, const int32_t* ids, int32_t* id) {
    const auto token = [&](int32_t i) { return ids ? ids[i] : i; };
    const float largest = kernels().maximum(logits, vocab);
    *id = -1;
    if (largest != largest || largest == -__builtin_inff()) return LS_OK;  // NaN, or nothing to pick
    if (s.temperature == 0) {
        for (int32_t i = vocab - 1; i >= 0; i--)
            if (logits[i] == largest) *id = token(i);
        return LS_OK;
    }
    const float temperature = (float)s.temperature;
    Noisiest noisiest{Noise(s.seed, position)};
    if (!truncates(s, vocab)) {
        for (int32_t i = 0; i < vocab; i++) noisiest.offer(logits[i] / temperature, token(i));
    } else {
        Survivors survivors(largest / temperature);
        if (!survivors.truncate(logits, vocab, s)) return no_memory(vocab);
        for (int i = 0; i < survivors.count; i++) noisiest.offer(survivors.of[i].score, token(survivors.of[i].id));
    }
    *id = noisiest.id;
    return LS_OK;
}

int probabilities(const float* logits, int vocab, const ls_sampling& s, double* p) {
    Survivors survivors(kernels().maximum(logits, vocab) / (float)s.temperature);
    if (!survivors.truncate(logits, vocab, s)) return no_memory(vocab);
    double total = 0;
    for (int i = 0; i < vocab; i++) p[i] = 0;
    for (int i = 0; i < survivors.count; i++) total += p[survivors.of[i].id] = survivors.weight(survivors.of[i]);
    for (int i = 0; i < survivors.count; i++) p[survivors.of[i].id] /= total;
    return LS_OK;
}

int top(const float* logits, int vocab, double temperature, int count, int32_t* tokens, float* chances, int32_t* found) {
    const float divisor = temperature > 0 ? (float)temperature : 1.0f, largest = kernels().maximum(logits, vocab) / divisor;
    *found = 0;
    if (!(largest - largest == 0)) return LS_OK;  // NaN or inf
    Memory memory;
    count = smaller(count, vocab);
    if (!memory.resize(sizeof(Scored) * count)) return no_memory(vocab);
    Scored* best = (Scored*)memory.data();
    *found = likeliest(logits, vocab, divisor, count, best);
    std::sort(best, best + count, likelier);
    const double total = kernels().exponential_sum(logits, divisor, largest, vocab);
    for (int i = 0; i < count; i++) {
        tokens[i] = best[i].id;
        chances[i] = (float)(falling_exponential((double)best[i].score - (double)largest) / total);
    }
    return LS_OK;
}

void add_noise(const ls_sampling& s, int64_t position, const int32_t* ids, int count, int32_t* tokens, float* chances, int32_t* found) {
    const Noise noise(s.seed, position);
    struct Noisy {
        double sum;
        int32_t token, rank;
    } all[HEAP];
    for (int i = 0; i < *found; i++) {
        const int32_t token = ids ? ids[tokens[i]] : tokens[i];
        const double chance = (double)chances[i];
        all[i] = {(chance > 1e-300 ? logarithm(chance) : -__builtin_inf()) + Noise::of(noise.bits(token)), token, i};
    }
    std::sort(all, all + *found, [](const Noisy& a, const Noisy& b) { return a.sum > b.sum || (a.sum == b.sum && a.rank < b.rank); });
    *found = smaller(*found, count);
    double total = 0;
    for (int i = 0; i < *found; i++) total += falling_exponential(all[i].sum - all[0].sum);
    for (int i = 0; i < *found; i++) tokens[i] = all[i].token, chances[i] = (float)(falling_exponential(all[i].sum - all[0].sum) / total);
}

}  // namespace ls
