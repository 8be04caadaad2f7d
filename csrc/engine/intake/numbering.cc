#include "engine/intake/numbering.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/error.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

using base::OpKind;
using base::SetId;

void Numbering::Name::append(std::string_view text) {
  HVD_CHECK(size_ + text.size() <= text_.size());
  std::ranges::copy(text, text_.begin() + size_);
  size_ += text.size();
}

void Numbering::Name::append(std::uint64_t number) {
  const auto [end, problem] =
      std::to_chars(text_.data() + size_, text_.data() + text_.size(), number);
  HVD_CHECK(problem == std::errc());
  size_ = static_cast<std::size_t>(end - text_.data());
}

Numbering::Name Numbering::name(SetId set, OpKind kind, std::uint64_t ahead) {
  const NextNumbers& counters = sets_[set.epoch];
  Name name;
  name.append(base::name_of(kind));
  name.append(kUnnamed);
  if (counters.joins > 0) {
    name.append(counters.joins);
    name.append(".");
  }
  name.append(counters.next[static_cast<std::size_t>(kind)] + ahead);
  return name;
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
