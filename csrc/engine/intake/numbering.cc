// name() computes a name and changes no number; use() changes the number. So a submission of three unnamed allreduces that are
// no group asks for the names with `ahead` 0, 1 and 2. If one of the allreduces is refused, the caller does not call use(), and
// the next submission gets the same numbers. An example on one set, with "a" for allreduce:
//
//    name(a, 0), name(a, 1)    allreduce.noname.0, allreduce.noname.1
//    use(a, 2)
//    name(a, 0)                allreduce.noname.2
//    joined()
//    name(a, 0)                allreduce.noname.1.0      all ranks have joined once; number 0
#include "engine/intake/numbering.h"

#include "engine/model/request.h"

namespace hvdlite::engine {

using base::OpKind;
using base::SetId;

std::string Numbering::name(SetId set, OpKind kind, std::uint64_t ahead) {
  const NextNumbers& counters = sets_[set.epoch];
  std::string name(base::name_of(kind));
  name += kUnnamed;
  if (counters.joins > 0) name += std::to_string(counters.joins) + ".";
  return name + std::to_string(counters.next[static_cast<std::size_t>(kind)] + ahead);
}

void Numbering::use(SetId set, OpKind kind, std::uint64_t count) {
  sets_[set.epoch].next[static_cast<std::size_t>(kind)] += count;
}

void Numbering::joined(SetId set) {
  const std::lock_guard lock(mutex_);
  NextNumbers& counters = sets_[set.epoch];
  counters.next = {};
  ++counters.joins;
}

void Numbering::forget(SetId set) {
  const std::lock_guard lock(mutex_);
  sets_.erase(set.epoch);
}

}  // namespace hvdlite::engine
