#include "job/exchange.h"

#include <algorithm>

#include "base/error.h"

namespace hvdlite::job {

std::size_t Exchange::count_in(std::uint32_t round) const {
  const std::size_t distance = std::size_t{1} << round;
  return std::min(distance, static_cast<std::size_t>(size_) - distance);
}

Exchange::Sends Exchange::begin(Bytes mine) {
  HVD_CHECK(number_ == 0 || ended());
  ++number_;
  round_ = 0;
  values_.clear();
  values_.push_back(std::move(mine));
  Sends sends;
  if (size_ > 1) sends.push_back({below(1), {number_, 0, values_}});
  for (RoutedMessage& each : go_on()) sends.push_back(std::move(each));
  return sends;
}

Exchange::Sends Exchange::hear(int source, RoundMessage part) {
  HVD_CHECK(part.exchange >= number_ && part.round < 31 && (1 << part.round) < size_);
  HVD_CHECK(source == above(1 << part.round) && part.values.size() == count_in(part.round));
  HVD_CHECK(part.exchange > number_ || part.round >= round_);
  early_[{part.exchange, part.round}] = std::move(part.values);
  return go_on();
}

Exchange::Sends Exchange::go_on() {
  Sends sends;
  for (auto next = early_.find({number_, round_}); next != early_.end();
       next = early_.find({number_, round_})) {
    for (Bytes& value : next->second) values_.push_back(std::move(value));
    early_.erase(next);
    ++round_;
    if (ended()) break;
    const auto count = static_cast<std::ptrdiff_t>(count_in(round_));
    sends.push_back(
        {below(1 << round_), {number_, round_, {values_.begin(), values_.begin() + count}}});
  }
  return sends;
}

std::vector<Bytes> Exchange::values() const {
  HVD_CHECK(ended());
  std::vector<Bytes> by_rank(values_.size());
  for (std::size_t place = 0; place < values_.size(); ++place) {
    by_rank[static_cast<std::size_t>(above(static_cast<int>(place)))] = values_[place];
  }
  return by_rank;
}

}  // namespace hvdlite::job
