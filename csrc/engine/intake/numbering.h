// Names for operations that callers do not name: "allreduce.noname.7" is the eighth unnamed allreduce on its process set. An
// unnamed group counts as one operation; the engine adds each member's place to the group's name ("allreduce.noname.7_1of2").
// Thread: any. The caller holds the lock from begin() until the engine has accepted the operations, and only then uses up
// their numbers: ranks must agree on the numbers, so a request that one rank refuses must not use up a number. A pass of the
// engine may call joined() and forget(), which take the lock, so a thread that holds the lock must not make a pass. The
// submission of sends and receives may make a pass (Engine::pass_at_once). So before the caller submits sends and receives, it
// uses up their numbers and releases the lock; this is possible because ranks do not compare the names of sends and receives.
// Owns: the next numbers. Blocks: on the lock, while another thread submits unnamed operations (for seconds, if that
// submission opens a GPU). Throws: std::bad_alloc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/types.h"

namespace hvdlite::engine {

class Numbering {
 public:
  [[nodiscard]] std::unique_lock<std::mutex> begin() { return std::unique_lock(mutex_); }
  // With the lock held: the name with the next free number plus `ahead`.
  std::string name(base::SetId set, base::OpKind kind, std::uint64_t ahead);
  // With the lock held: uses up the next `count` numbers.
  void use(base::SetId set, base::OpKind kind, std::uint64_t count);
  // Call it when all ranks of the set have joined. Before they joined, some ranks may have submitted more operations than
  // others. So the numbers of all kinds begin again at 0, and all later names also tell how often all ranks have joined
  // ("allreduce.noname.1.0").
  void joined(base::SetId set);
  // Call it when the set was removed.
  void forget(base::SetId set);

 private:
  struct NextNumbers {
    std::uint64_t joins = 0;
    std::array<std::uint64_t, base::kNumOpKinds> next{};
  };
  std::mutex mutex_;
  std::map<std::uint64_t, NextNumbers> sets_;  // by epoch, which belongs to one set only
};

}  // namespace hvdlite::engine
