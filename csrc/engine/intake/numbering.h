// Names for operations that callers do not name: "allreduce.noname.7" is the eighth unnamed allreduce on its process set.
// Thread: any, but whoever asks for names holds the lock from begin() until the engine has accepted what has the names, for
// ranks must agree on numbers: a request that one rank refuses may not count. Owns: the counters. Blocks: on the lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>

#include "base/types.h"

namespace hvdlite::engine {

class Numbering {
 public:
  [[nodiscard]] std::unique_lock<std::mutex> begin() { return std::unique_lock(mutex_); }
  // A name, which costs no allocation.
  class Name {
   public:
    operator std::string_view() const { return {text_.data(), size_}; }
    void append(std::string_view text);
    void append(std::uint64_t number);

   private:
    std::array<char, 96> text_;  // more than the longest kind and two numbers
    std::size_t size_ = 0;
  };
  // With the lock: the name with the number `ahead` of the next one that is free.
  Name name(base::SetId set, base::OpKind kind, std::uint64_t ahead);
  // With the lock: so many names are used up.
  void use(base::SetId set, base::OpKind kind, std::uint64_t count);
  // All ranks of the set have joined, after unequally many operations: they count anew, under other names.
  void joined(base::SetId set);
  void forget(base::SetId set);

 private:
  struct NextNumbers {
    std::uint64_t joins = 0;
    std::array<std::uint64_t, base::kNumOpKinds> next{};
  };
  std::mutex mutex_;
  std::map<std::uint64_t, NextNumbers> sets_;  // by epoch, which no two sets share
};

}  // namespace hvdlite::engine
