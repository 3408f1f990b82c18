// Threads that share a loop's items. The caller is one of them and need not wait for one that is asleep or busy elsewhere:
// items are claimed by whoever comes, and a loop ends when all its items are done.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "common.h"

namespace ls {

class Pool {
  public:
    explicit Pool(int threads);  // throws std::system_error where the system has no more threads
    ~Pool();
    int threads() const { return threads_; }

    // work(from, to, thread) for parts of [0, items); parts are large first and small at the end, so that a core which is
    // busy with something else holds nobody up for long.
    template <class Work> void share(int items, const Work& work) {
        if (items <= 0) return;
        if (threads_ == 1 || items == 1) return work(0, items, 0);
        run(items, [](const void* w, int from, int to, int thread) { (*(const Work*)w)(from, to, thread); }, &work);
    }

    std::mutex in_use;                  // one call at a time has the pool, and these, which are kept for the next:
    Memory workspace, sequences, tails;

  private:
    using Function = void (*)(const void* work, int from, int to, int thread);
    static constexpr int MOST_PARTS = 512;
    void run(int items, Function function, const void* work);
    void divide(int items);
    bool take_part(int thread);
    void worker(int thread);

    const int threads_;
    const int process_;  // a child that was forked has this object, but not its threads
    // The loop under way: parts [bounds_[i], bounds_[i + 1]), written before `claims_` says that there is one.
    Function function_ = nullptr;
    const void* work_ = nullptr;
    int items_ = 0, parts_ = 0, bounds_[MOST_PARTS + 1];
    alignas(64) std::atomic<uint64_t> claims_{0};  // number of the loop << 32 | its parts << 16 | the next part to claim
    alignas(64) std::atomic<int> done_{0};         // parts
    alignas(64) std::atomic<int> asleep_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stop_ = false;
    std::vector<std::thread> workers_;
};

// For the length of a call: floats round to the nearest and tiny ones are kept, whatever the caller's thread was set to.
class FloatMode {
  public:
    FloatMode();
    ~FloatMode();

  private:
    uint64_t before_;
};

}  // namespace ls
