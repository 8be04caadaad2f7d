#include "engine/negotiation/shared_agreement.h"

#include <utility>

namespace hvdlite::engine {

namespace {

// Some milliseconds for the lock of a ledger that is closed for good: time enough for who holds it to get a processor.
constexpr int kTriesToAbandon = 20 * Ledger::kTries;

}  // namespace

SharedAgreement::SharedAgreement(std::byte* memory,
                                 std::shared_ptr<collectives::SharedChannel> channel,
                                 std::uint32_t serial)
    : channel_(std::move(channel)),
      ledger_(memory, Ledger::Capacity{}, channel_->size(), channel_->index(), serial) {}

template <typename Change>
Agreement::Step SharedAgreement::hold(Change change, bool up_to_date, int tries) {
  if (!ledger_.try_lock(tries)) return Step::kRefused;
  if (up_to_date && !ledger_.up_to_date()) {
    ledger_.unlock();
    return Step::kUnread;
  }
  const bool done = change();
  const bool appended = ledger_.appended();
  ledger_.unlock();
  if (!done) return Step::kRefused;
  return appended ? Step::kAppended : Step::kDone;
}

Agreement::Step SharedAgreement::try_announce(std::span<Unit> units) {
  const auto announce = [&] {
    if (!ledger_.has_room(static_cast<std::uint32_t>(units.size()))) return false;
    for (Unit& unit : units) {
      unit.by_message = ledger_.announce(unit.key, unit.content, unit.absent, unit.prepared) ==
                        Ledger::Answer::kByMessage;
    }
    return true;
  };
  return hold(announce, /*up_to_date=*/true);
}

Agreement::Step SharedAgreement::try_close() {
  const auto close = [&] {
    if (ledger_.has_room(1)) ledger_.close();
    return !ledger_.is_open();
  };
  return hold(close, /*up_to_date=*/true);
}

Agreement::Step SharedAgreement::try_abandon() {
  const auto close = [&] {
    if (ledger_.has_room(1)) ledger_.close();
    return !ledger_.is_open();
  };
  return hold(close, /*up_to_date=*/false, kTriesToAbandon);
}

Agreement::Step SharedAgreement::try_list(std::uint64_t number,
                                          std::span<const std::uint64_t> decided) {
  const auto append = [&] {
    if (!ledger_.has_room(1)) return false;
    ledger_.append_list(number, decided);
    return true;
  };
  return hold(append, /*up_to_date=*/false);
}

Agreement::Step SharedAgreement::try_keep(Upkeep& upkeep) {
  const auto keep = [&] {
    if (upkeep.close && ledger_.has_room(1)) {
      ledger_.close();
      upkeep.close = false;
      upkeep.divert.clear();
    }
    while (!upkeep.divert.empty() && ledger_.has_room(1)) {
      ledger_.divert(upkeep.divert.back());
      upkeep.divert.pop_back();
    }
    if (upkeep.reopen) ledger_.reopen(upkeep.counted);
    upkeep.reopen = false;
    return true;
  };
  return hold(keep, /*up_to_date=*/false);
}

}  // namespace hvdlite::engine
