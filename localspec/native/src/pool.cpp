#include "pool.h"

#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace ls {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto SPIN = std::chrono::microseconds(30);    // wholly awake, as between two loops of a forward
constexpr auto YIELD = std::chrono::microseconds(250);  // awake where nobody else wants the core, as between two forwards

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int process() {
#if defined(_WIN32)
    return 0;
#else
    return (int)getpid();
#endif
}

int next_part(uint64_t claims) { return (int)(claims & 0xffff); }
int parts(uint64_t claims) { return (int)(claims >> 16 & 0xffff); }
bool has_part(uint64_t claims) { return next_part(claims) < parts(claims); }

}  // namespace

Pool::Pool(int threads) : threads_(threads), process_(process()) {
    try {
        for (int t = 1; t < threads; t++) workers_.emplace_back([this, t] { worker(t); });
    } catch (...) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto& thread : workers_) thread.join();
        throw;
    }
}

Pool::~Pool() {
    if (process() != process_) {
        for (auto& thread : workers_) thread.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : workers_) thread.join();
}

// Three fifths in equal shares, the rest in small parts.
void Pool::divide(int items) {
    if (items == items_) return;
    items_ = items, parts_ = 0, bounds_[0] = 0;
    const int share = items * 3 / 5 / threads_;
    for (int t = 0; t < threads_ && share > 0 && parts_ < MOST_PARTS / 2; t++, parts_++) bounds_[parts_ + 1] = bounds_[parts_] + share;
    const int rest = items - bounds_[parts_];
    const int pieces = rest < 6 * threads_ ? rest : 6 * threads_;
    const int size = (rest + pieces - 1) / pieces > (rest + MOST_PARTS / 2 - 1) / (MOST_PARTS / 2) ? (rest + pieces - 1) / pieces
                                                                                                    : (rest + MOST_PARTS / 2 - 1) / (MOST_PARTS / 2);
    for (; bounds_[parts_] < items; parts_++) bounds_[parts_ + 1] = bounds_[parts_] + size < items ? bounds_[parts_] + size : items;
}

// A claim that succeeds belongs to the loop under way, because a loop does not end before its last claimed part is done.
bool Pool::take_part(int thread) {
    if (!has_part(claims_.load(std::memory_order_acquire))) return false;
    const uint64_t claims = claims_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_part(claims)) return false;
    const int part = next_part(claims);
    function_(work_, bounds_[part], bounds_[part + 1], thread);
    done_.fetch_add(1, std::memory_order_release);
    return true;
}

void Pool::run(int items, Function function, const void* work) {
    divide(items);
    function_ = function, work_ = work;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (claims_.load(std::memory_order_relaxed) >> 32) + 1;
    claims_.store(loop << 32 | (uint64_t)parts_ << 16, std::memory_order_seq_cst);  // before `asleep_` is read
    if (asleep_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        asleep_.store(0, std::memory_order_relaxed);
        wake_.notify_all();
    }
    while (take_part(0)) {}
    for (int spins = 0; done_.load(std::memory_order_acquire) < parts_; spins++) {
        if (spins < 4000) pause();
        else std::this_thread::yield();
    }
}

void Pool::worker(int thread) {
    FloatMode mode;
    for (;;) {
        const uint64_t seen = claims_.load(std::memory_order_acquire) >> 32;
        while (take_part(thread)) {}
        const auto began = Clock::now();
        auto waited = Clock::duration::zero();
        while (claims_.load(std::memory_order_acquire) >> 32 == seen && waited < YIELD) {
            if (waited < SPIN) for (int i = 0; i < 16; i++) pause();
            else std::this_thread::yield();
            waited = Clock::now() - began;
        }
        if (claims_.load(std::memory_order_acquire) >> 32 != seen) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1, std::memory_order_seq_cst);  // before the claims are read again
        wake_.wait(lock, [&] { return stop_ || claims_.load(std::memory_order_seq_cst) >> 32 != seen; });
        if (stop_) return;
    }
}

#if defined(__x86_64__)
FloatMode::FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatMode::~FloatMode() { _mm_setcsr((unsigned)before_); }
#elif defined(__aarch64__)
FloatMode::FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"((uint64_t)0));
}
FloatMode::~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
#else
FloatMode::FloatMode() : before_(0) {}
FloatMode::~FloatMode() {}
#endif

}  // namespace ls
