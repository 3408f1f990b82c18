#include "pool.h"

#include <sched.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace ls {
namespace {

constexpr double SPIN = 30e-6;    // seconds of spinning, as between two loops of a forward
constexpr double YIELD = 250e-6;  // of yielding the core to others, as between two forwards

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
uint64_t loop_of(uint64_t claims) { return claims >> 32; }
bool has_part(uint64_t claims) { return next_part(claims) < parts(claims); }

}  // namespace

double seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Pool::Pool() : process_(process()) { make_locks(); }

void Pool::make_locks() {
    pthread_mutex_init(&in_use, nullptr);
    pthread_mutex_init(&mutex_, nullptr);
    pthread_cond_init(&wake_, nullptr);
}

void Pool::claim() {
    const int here = process();
    int owner = process_.load(std::memory_order_acquire);
    while (owner != here) {
        if (owner == -here) {  // another thread of this process is taking it over
            sched_yield();
            owner = process_.load(std::memory_order_acquire);
        } else if (process_.compare_exchange_weak(owner, -here, std::memory_order_acq_rel)) {
            make_locks();
            new (&workspace) Memory(), new (&sequences) Memory(), new (&tails) Memory();  // the parent may have been changing them
            claims_ = 0, done_ = 0, asleep_ = 0, lent_ = false, items_ = 0;
            start(threads_);  // if the system has no more threads, the existing ones do all the work
            process_.store(owner = here, std::memory_order_release);
        }
    }
}

bool Pool::start(int threads) {
    threads_ = threads;
    for (started_ = 0; started_ < threads - 1; started_++) {
        Worker& w = workers_[started_];
        w = {this, started_ + 1, {}};
        if (pthread_create(&w.thread, nullptr, entry, &w)) return false;
    }
    return true;
}

Pool::~Pool() {
    if (process() != process_.load(std::memory_order_acquire)) return;  // the parent's threads belong to the parent
    {
        Lock lock(mutex_);
        stop_ = true;
        pthread_cond_broadcast(&wake_);
    }
    for (int i = 0; i < started_; i++) pthread_join(workers_[i].thread, nullptr);
    pthread_cond_destroy(&wake_);
    pthread_mutex_destroy(&mutex_);
    pthread_mutex_destroy(&in_use);
}

// Three fifths in equal shares, the rest in small parts.
void Pool::divide(int items, int grain) {
    if (items == items_ && grain == grain_) return;
    items_ = items, grain_ = grain, parts_ = 0, bounds_[0] = 0;
    const int share = (int)((int64_t)items * 3 / 5 / threads_) / grain * grain;
    for (int t = 0; t < threads_ && share > 0; t++, parts_++) bounds_[parts_ + 1] = bounds_[parts_] + share;
    const int small = larger(grain, ceil_div(items - bounds_[parts_], SMALL_PARTS * threads_));
    for (; bounds_[parts_] < items; parts_++) bounds_[parts_ + 1] = smaller(items, bounds_[parts_] + small);
}

// A successful claim belongs to the current loop, because a loop does not end before its last claimed part is done.
bool Pool::take_part(int thread) {
    if (lent(thread) || !has_part(claims_.load(std::memory_order_acquire))) return false;
    const uint64_t claims = claims_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_part(claims)) return false;
    const int part = next_part(claims);
    function_(work_, bounds_[part], bounds_[part + 1], thread);
    done_.fetch_add(1, std::memory_order_release);
    return true;
}

void Pool::run(Function function, const void* work) {
    function_ = function, work_ = work;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = loop_of(claims_.load(std::memory_order_relaxed)) + 1;
    claims_.store(loop << 32 | (uint64_t)parts_ << 16, std::memory_order_seq_cst);  // before `asleep_` is read
    if (asleep_.load(std::memory_order_seq_cst) > (lent(threads_ - 1) ? 1 : 0)) {  // a resting thread sleeps on
        Lock lock(mutex_);
        asleep_.store(0, std::memory_order_relaxed);
        pthread_cond_broadcast(&wake_);
    }
    while (take_part(0)) {}
    for (int spins = 0; done_.load(std::memory_order_acquire) < parts_; spins++) {
        if (spins < 4000) pause();
        else sched_yield();
    }
}

bool Pool::wait_for_a_loop_after(uint64_t seen, int thread) {
    auto came = [&] { return !lent(thread) && loop_of(claims_.load(std::memory_order_seq_cst)) != seen; };
    const double began = seconds();
    for (double waited = 0; waited < YIELD && !lent(thread); waited = seconds() - began) {
        if (came()) return true;
        if (waited > SPIN) sched_yield();
        for (int i = 0; i < 16; i++) pause();
    }
    for (Lock lock(mutex_);; pthread_cond_wait(&wake_, &mutex_)) {
        asleep_.fetch_add(1, std::memory_order_seq_cst);  // before the claims are read again; whoever wakes all threads resets the count
        if (stop_ || came()) return !stop_;
    }
}

void Pool::work(int thread) {
    FloatMode mode;
    uint64_t seen;
    do {
        seen = loop_of(claims_.load(std::memory_order_acquire));
        while (take_part(thread)) {}
    } while (wait_for_a_loop_after(seen, thread));
}

void* Pool::entry(void* worker) {
    Worker* w = (Worker*)worker;
    w->pool->work(w->number);
    return nullptr;
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
