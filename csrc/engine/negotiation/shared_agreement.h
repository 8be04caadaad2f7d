// An Agreement in the window that the ranks of a host share: steps of a Ledger, each in one hold of its lock.
// Thread: the holder of the progress token. Owns: the ledger's object, and a share of the channel, whose end tells the next user of
// the region. Blocks: no; try_abandon may take some milliseconds. Throws: what Ledger throws.
#pragma once

#include <memory>

#include "collectives/shared_channel.h"
#include "engine/negotiation/agreement.h"
#include "engine/negotiation/ledger.h"

namespace hvdlite::engine {

class SharedAgreement final : public Agreement {
 public:
  // memory: of the channel's region, for a ledger. serial: as Ledger's.
  SharedAgreement(std::byte* memory, std::shared_ptr<collectives::SharedChannel> channel,
                  std::uint32_t serial);

  bool may_begin() override { return channel_->is_free(); }
  void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) override {
    ledger_.create(sequence, keys);
  }
  bool exists() const override { return ledger_.exists(); }
  std::uint64_t first_sequence() const override { return ledger_.first_sequence(); }

  bool has_news() const override { return ledger_.has_news(); }
  Entry front() const override { return ledger_.front(); }
  void pop() override { ledger_.pop(); }

  Step try_announce(std::span<Unit> units) override;
  Step try_close() override;
  Step try_abandon() override;
  bool is_open() const override { return ledger_.is_open(); }
  Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) override;
  Step try_keep(Upkeep& upkeep) override;

 private:
  // What `change` does to the ledger, with its lock. It gives false where the log has no room.
  template <typename Change>
  Step hold(Change change, bool up_to_date, int tries = Ledger::kTries);

  std::shared_ptr<collectives::SharedChannel> channel_;
  Ledger ledger_;
};

}  // namespace hvdlite::engine
