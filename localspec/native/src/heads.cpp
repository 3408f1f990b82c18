#include "functions.h"

namespace ls {
namespace {

constexpr float EPS = 1.1920929e-7f;  // as in decoding/compute.py

class DraftHeads {
  public:
    DraftHeads(const ls_heads& heads, const ls_model& model, Pool& pool, int count)
        : h_(heads), model_(model), pool_(pool), size_(model.config.hidden_size), count_(count), tokens_(heads.tokens) {
        for (int i = 0; i < h_.layers * h_.heads; i++) room_.need(h_.blocks[i], 1);
        for (int i = 0; i < h_.heads; i++) {
            if (h_.path) room_.need(h_.path[i], 1);
            if (h_.vocabulary) room_.need(h_.vocabulary[i], 1);
            if (h_.down) room_.need(h_.down[i], 1), room_.need(h_.up[i], 1), rank_ = larger(rank_, h_.down[i].out);
        }
        if (!h_.vocabulary) room_.need(head(), count);
    }

    // If the arena has no memory, this only counts the bytes.
    void take(Arena& arena) {
        inputs_ = room_.take(arena);
        read_ = arena.take<float>(2 * size_);
        states_ = arena.take<float>((size_t)count_ * size_);
        added_ = arena.take<float>(size_);
        low_ = arena.take<float>(rank_);
        factors_ = arena.take<float>(count_);
        best_ = arena.take<Best>((size_t)count_ * pool_.threads());
    }

    void run(const float* state, int32_t root, float* logits) {
        if (h_.path) {
            const Kernels& k = kernels();
            embed(model_, root, read_ + size_);
            k.normalise(state, k.inverse_rms(state, size_, EPS), nullptr, size_, read_);
            k.normalise(read_ + size_, k.inverse_rms(read_ + size_, size_, EPS), nullptr, size_, read_ + size_);
        }
        for (int head = 0; head < count_; head++) run_blocks(head, state);
        if (!h_.vocabulary) {
            for (int i = 0; i < count_; i++) factors_[i] = h_.head ? 1 : model_.config.logit_scale;
            reset(best_, pool_.threads(), count_);
            multiply(pool_, Linear{&head(), count_, states_, size_, factors_, nullptr, Epilogue::head, logits, tokens_, nullptr, best_,
                                   h_.head ? h_.cap : model_.config.logit_cap}, inputs_);
        }
        for (int head = 0; head < count_; head++) {
            float* row = logits + (size_t)head * tokens_;
            const float* x = states_ + (size_t)head * size_;
            if (h_.vocabulary) apply(h_.vocabulary[head], x, Epilogue::store, row);
            if (!h_.down) continue;
            apply(h_.down[head], x, Epilogue::store, low_);
            apply(h_.up[head], low_, Epilogue::add, row);
        }
    }

  private:
    const ls_matrix& head() const { return h_.head ? *h_.head : model_.config.lm_head; }

    // Computes x of a head.
    void run_blocks(int head, const float* state) {
        float* x = states_ + (size_t)head * size_;
        if (h_.path) {
            apply(h_.blocks[head], read_, Epilogue::silu, x);
            apply(h_.path[head], read_, Epilogue::add, x);
        } else {
            memcpy(x, state, sizeof(float) * size_);
        }
        for (int layer = h_.path ? 1 : 0; layer < h_.layers; layer++) {
            apply(h_.blocks[layer * h_.heads + head], x, Epilogue::silu, added_);
            for (int i = 0; i < size_; i++) x[i] = x[i] + added_[i];
        }
    }

    void apply(const ls_matrix& matrix, const float* x, Epilogue epilogue, float* y) {
        multiply(pool_, Linear{&matrix, 1, x, matrix.in, nullptr, nullptr, epilogue, y, matrix.out, nullptr, nullptr}, inputs_);
    }

    const ls_heads& h_;
    const ls_model& model_;
    Pool& pool_;
    const int size_, count_, tokens_;
    int rank_ = 0;
    InputRoom room_;
    Inputs inputs_;
    float* read_;            // [2 * hidden_size]: z, the state and the embedding of the root, both normalised
    float *states_, *added_; // [count, hidden_size], x of each head; [hidden_size], what a block adds to one
    float *low_, *factors_;  // [rank], down x; [count], scales of states before a shared head
    Best* best_;
};

}  // namespace

int draft_heads(const ls_heads& heads, const ls_model& model, Pool& pool, const float* state, int32_t root, int count, float* logits) {
    DraftHeads draft(heads, model, pool, count);
    Arena measured(nullptr);
    draft.take(measured);
    if (!pool.workspace.at_least(measured.used())) return fail(LS_NO_MEMORY, "There is no memory for %d draft heads.", count);
    Arena arena(pool.workspace.data());
    draft.take(arena);
    draft.run(state, root, logits);
    return LS_OK;
}

}  // namespace ls
