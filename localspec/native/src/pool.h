// Threads that share the items of a loop. The caller is one of them, and never waits for a thread that sleeps or is busy:
// any thread claims items, and a loop ends when all its items are done.
#pragma once
#include <pthread.h>

#include <atomic>

#include "common.h"

namespace ls {

class Lock {
  public:
    explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
    ~Lock() { pthread_mutex_unlock(&mutex_); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

class Pool {
  public:
    static constexpr int MOST_THREADS = 256;

    Pool();
    ~Pool();  // ends the threads
    bool start(int threads);  // false: the system has no more threads
    int threads() const { return threads_; }
    // The last thread rests from its next part on, until its core is given back.
    void lend(bool lent) { lent_.store(lent, std::memory_order_relaxed); }
    void claim();  // call before waiting for `in_use`: a forked child has this object, but neither its threads nor the
                   // threads that held its locks, so it starts over there

    // Call work(from, to, thread) for parts of [0, items). Parts are large first and small at the end, so that a busy core
    // delays the others only briefly. `grain`: the fewest items that are worth sharing.
    template <class Work> void share(int items, const Work& work, int grain = 1) {
        if (items <= 0) return;
        if (threads_ == 1 || items <= grain) return work(0, items, 0);
        divide(items, grain);
        run([](const void* w, int from, int to, int thread) { (*(const Work*)w)(from, to, thread); }, &work);
    }

    pthread_mutex_t in_use;             // one call at a time has the pool and the fields below, which the next call reuses:
    Memory workspace, sequences, tails;

  private:
    using Function = void (*)(const void* work, int from, int to, int thread);
    static constexpr int SMALL_PARTS = 6;  // for each thread
    struct Worker {
        Pool* pool;
        int number;
        pthread_t thread;
    };
    void make_locks();
    void divide(int items, int grain);
    void run(Function function, const void* work);
    bool take_part(int thread);
    void work(int thread);
    bool wait_for_a_loop_after(uint64_t seen, int thread);  // false: the pool is being destroyed
    bool lent(int thread) const { return thread > 0 && thread == threads_ - 1 && lent_.load(std::memory_order_relaxed); }
    static void* entry(void* worker);

    int threads_ = 1, started_ = 0;
    std::atomic<int> process_;  // the owner; negative while that process takes it over
    // The current loop: parts [bounds_[i], bounds_[i + 1]), written before `claims_` announces it.
    Function function_ = nullptr;
    const void* work_ = nullptr;
    int items_ = 0, grain_ = 0, parts_ = 0, bounds_[(SMALL_PARTS + 1) * MOST_THREADS + 2];
    alignas(64) std::atomic<uint64_t> claims_{0};  // number of the loop << 32 | its parts << 16 | the next part to claim
    alignas(64) std::atomic<int> done_{0};         // parts
    alignas(64) std::atomic<int> asleep_{0};
    alignas(64) std::atomic<bool> lent_{false};
    pthread_mutex_t mutex_;
    pthread_cond_t wake_;
    bool stop_ = false;
    Worker workers_[MOST_THREADS];
};

// During a call, floats round to nearest and subnormals are kept, whatever the thread's settings were.
class FloatMode {
  public:
    FloatMode();
    ~FloatMode();

  private:
    uint64_t before_;
};

double seconds();  // of a monotonic clock

}  // namespace ls
