// What the ranks of a host tell each other through their window: in every order of sending, looking and reading, through rings so small
// that they fill up and go over their end with each message.
#include "transport/host_mail.h"

#include <deque>
#include <memory>
#include <vector>

#include "base/error.h"
#include "harness.h"
#include "no_memory.h"

namespace hvdlite::transport::host_mail_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kSmallest = 64;

// So many bytes that only this message has.
Bytes make(int number, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(31 * static_cast<std::size_t>(number) + i);
  }
  return bytes;
}

struct Host {
  explicit Host(int ranks, std::size_t mail_bytes = kSmallest)
      : rung(static_cast<std::size_t>(ranks)) {
    shape.ranks = ranks;
    shape.regions = 1;
    shape.tile_bytes = 4096;
    shape.mail_bytes = mail_bytes;
    memory.resize(shape.bytes() + kPage);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    start = memory.data() + (kPage - address % kPage) % kPage;
    for (int rank = 0; rank < ranks; ++rank) {
      mails.push_back(std::make_unique<HostMail>(
          window(rank), [this](int other) { ++rung[static_cast<std::size_t>(other)]; }));
    }
  }
  HostWindow window(int rank) const {
    return {std::shared_ptr<std::byte>(std::shared_ptr<void>(), start), shape, rank};
  }
  HostMail& mail(int rank) const { return *mails[static_cast<std::size_t>(rank)]; }

  static constexpr std::size_t kPage = 4096;
  HostWindow::Layout shape;
  Bytes memory;
  std::byte* start = nullptr;
  std::vector<int> rung;  // how often, by rank
  std::vector<std::unique_ptr<HostMail>> mails;
};

// Rank 0 tells rank 1 what these steps say; whatever has left is rung for, and whoever waits for room is, too.
void run(const std::vector<int>& steps) {
  static constexpr std::size_t kSizes[] = {1, 16, 23, 100};
  Host host(2);
  std::deque<Bytes> on_the_way;
  int made = 0;
  const auto read = [&] {
    int from = -1;
    Bytes message;
    if (!host.mail(1).receive(&from, &message)) return false;
    EXPECT(from == 0 && !on_the_way.empty());
    EXPECT(message == on_the_way.front());
    on_the_way.pop_front();
    return true;
  };
  for (const int step : steps) {
    if (step < 4) {
      on_the_way.push_back(make(++made, kSizes[step]));
      host.mail(0).send(1, on_the_way.back());
    } else if (step == 4) {
      read();
    } else {
      static_cast<void>(host.mail(0).flushed());
    }
  }
  // Each does something only when it was rung for.
  std::vector<int> answered = {0, 0};
  while (answered != host.rung) {
    const int woken = answered[0] != host.rung[0] ? 0 : 1;
    answered[static_cast<std::size_t>(woken)] = host.rung[static_cast<std::size_t>(woken)];
    if (woken == 0) {
      static_cast<void>(host.mail(0).flushed());
    } else {
      while (read()) {
      }
    }
  }
  EXPECT(on_the_way.empty());
  EXPECT(host.mail(0).flushed());
}

TEST(in_every_order_all_arrives_whole_and_in_its_order) {
  constexpr int kChoices = 6, kSteps = 6;
  std::vector<int> steps(kSteps);
  for (std::size_t place = 0; place < steps.size();) {
    run(steps);
    for (place = 0; place < steps.size() && ++steps[place] == kChoices; ++place) steps[place] = 0;
  }
}

TEST(pieces_of_several_ranks_are_not_mixed_and_each_rank_gets_its_turn) {
  Host host(3);
  for (const int from : {0, 2}) {
    for (int number = 0; number < 3; ++number)
      host.mail(from).send(1, make(10 * from + number, 150));
  }
  std::vector<int> seen(3), order;
  int from = -1;
  for (Bytes message; order.size() < 6;) {
    if (!host.mail(1).receive(&from, &message)) {
      for (const int sender : {0, 2}) static_cast<void>(host.mail(sender).flushed());
      continue;
    }
    EXPECT(message == make(10 * from + seen[static_cast<std::size_t>(from)]++, 150));
    order.push_back(from);
  }
  EXPECT(order[0] != order[1]);
  EXPECT(host.mail(1).received_from(0) > 3 && host.mail(1).received_from(1) == 0);
}

TEST(what_finds_no_room_waits_and_nobody_waits_for_who_reads_no_more) {
  Host host(2);
  host.mail(0).send(1, make(1, 1000));
  host.mail(0).send(1, make(2, 1));
  EXPECT(!host.mail(0).flushed());
  const int before = host.rung[0];
  host.mail(1).close();
  EXPECT(host.rung[0] > before);
  EXPECT(host.mail(0).flushed());
  host.mail(0).send(1, make(3, 1000));
  EXPECT(host.mail(0).flushed());
}

// A message that finds no memory has not begun, so the next one is not taken for its end.
TEST(a_message_without_memory_leaves_no_part) {
  Host host(2);
  std::deque<Bytes> on_the_way;
  int from = -1, refused = 0;
  Bytes message;
  for (int number = 0; number < 100; ++number) {
    const Bytes made = make(number, 100);
    Bytes sent = made;
    native_test::refuse_allocation(1);
    try {
      host.mail(0).send(1, std::move(sent));
      on_the_way.push_back(made);
    } catch (const std::bad_alloc&) {
      ++refused;
    }
    native_test::refuse_allocation(0);
    while (!on_the_way.empty()) {
      static_cast<void>(host.mail(0).flushed());
      if (!host.mail(1).receive(&from, &message)) continue;
      EXPECT(message == on_the_way.front());
      on_the_way.pop_front();
    }
  }
  EXPECT(refused > 0);
}

// What a rank had put there before it died is read: nothing of it is half.
TEST(what_the_dead_have_left_is_read) {
  Host host(2);
  host.mail(0).send(1, make(1, 8));
  host.mail(0).send(1, make(2, 100));  // the end of it never leaves
  host.mails[0].reset();
  int from = -1;
  Bytes message;
  EXPECT(host.mail(1).receive(&from, &message) && message == make(1, 8));
  EXPECT(!host.mail(1).receive(&from, &message));
}

TEST(what_no_rank_leaves_is_refused) {
  for (const std::uint32_t bytes : {0U, 40U, 0xFFFFFFFFU}) {
    Host host(2);
    const MailRing ring = host.window(0).mail(0, 1);
    const MailRing::PieceHeader mark = {bytes, 1};
    ring.copy_in(0, std::as_bytes(std::span(&mark, 1)));
    ring.head->written = 24;
    int from = -1;
    Bytes message;
    bool refused = false;
    try {
      host.mail(1).receive(&from, &message);
    } catch (const base::Error& error) {
      refused = error.code() == base::ErrorCode::kInternal &&
                std::string(error.what()).starts_with("local rank 0 sent an impossible message: ");
    }
    EXPECT(refused);
  }
}

}  // namespace
}  // namespace hvdlite::transport::host_mail_test
