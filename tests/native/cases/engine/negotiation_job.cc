#include "engine/negotiation_job.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "engine/model/hashing.h"

namespace hvdlite::engine::negotiation_test {

using base::OpKind;

namespace {

Negotiation::Settings settings_of(int rank, int ledger_copies) {
  return {.rank = rank,
          .fusion_threshold = 1 << 20,
          .cache_capacity = 8,
          .join_refuses_others = false,
          .agreement_is_barrier = true,
          .ledger_copies = static_cast<std::size_t>(ledger_copies)};
}

std::string text_of(const FusedOp& fused, const std::vector<Entry>& entries, int members) {
  std::string text;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    text += (i > 0 ? "+" : "") + std::string(entries[i].request ? "" : "-") +
            fused.parts[i].request->name;
  }
  for (std::size_t i = 0; i < fused.sizes.size(); ++i) {
    text += (i == 0 ? "(" : ",") + std::to_string(fused.sizes[i]);
  }
  if (!fused.sizes.empty()) text += ")";
  const int contributors = fused.parts.front().contributors;
  return contributors == members ? text : text + "/" + std::to_string(contributors);
}

}  // namespace

Request allreduce(const std::string& name, std::int64_t count, SetId set) {
  Request request;
  request.set = set;
  request.name = name;
  request.shape = {count};
  return request;
}

Request allgather(const std::string& name, std::int64_t rows) {
  Request request = allreduce(name, rows);
  request.kind = OpKind::kAllgather;
  return request;
}

// --- a rank -----------------------------------------------------------------------------------------------------------

Rank::Rank(Job& job, int number)
    : job_(job),
      number_(number),
      negotiation_(std::make_unique<Negotiation>(
          settings_of(number, job.ledger_copies()), static_cast<int>(job.hosts().size()),
          Regions(job.regions(), job.hosts(), number, job.regions() > 0), counters, *this)) {
  input_.fill(static_cast<std::byte>(number));
}

CompletionPtr Rank::ask(Request request) {
  request.seal();
  Entry entry;
  entry.request = std::make_shared<const Request>(std::move(request));
  entry.completion = std::make_shared<Completion>();
  entry.input = input_.data();
  const CompletionPtr completion = entry.completion;
  negotiation_->admit(entry);
  return completion;
}

CompletionPtr Rank::ask(const std::string& name, std::int64_t count, SetId set) {
  return ask(allreduce(name, count, set));
}

CompletionPtr Rank::ask_for(char letter, bool other) {
  const std::int64_t rows = other ? 5 : 4;
  if (letter == '+') return join();
  if (letter == '>') return add_set(all());
  if (letter == '<') return remove_set(1);
  if (letter == 'g') return ask(allgather("g", rows));
  const std::string name(1, letter);
  return letter == 'v' || letter == 'w' ? ask_group(name, {name, name + "2"}, rows)
                                        : ask(name, rows);
}

CompletionPtr Rank::ask_group(const std::string& group, const std::vector<std::string>& names,
                              std::int64_t count) {
  CompletionPtr completion;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Request request = allreduce(names[i], count);
    request.group = group;
    request.group_size = static_cast<std::int32_t>(names.size());
    request.group_index = static_cast<std::int32_t>(i);
    completion = ask(std::move(request));
  }
  return completion;
}

CompletionPtr Rank::join() {
  Request request = allreduce(kJoinName);
  request.kind = OpKind::kJoin;
  request.shape = {};
  return ask(std::move(request));
}

CompletionPtr Rank::add_set(const std::vector<std::int64_t>& members) {
  Request request = allreduce("add");
  request.kind = OpKind::kAddProcessSet;
  request.shape = {};
  request.splits = members;
  return ask(std::move(request));
}

std::vector<std::int64_t> Rank::all() const {
  std::vector<std::int64_t> ranks(job_.hosts().size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

CompletionPtr Rank::remove_set(std::int32_t id) {
  Request request = allreduce("remove");
  request.kind = OpKind::kRemoveProcessSet;
  request.shape = {};
  request.root = id;
  return ask(std::move(request));
}

bool Rank::leave() {
  if (!negotiation_->close()) return false;
  negotiation_->leave({base::ErrorCode::kAborted, "this rank has left"});
  for (int rank = 0; rank < static_cast<int>(job_.hosts().size()); ++rank) {
    if (rank != number_) job_.wire(number_, rank).push_back(Goodbye{});
  }
  return true;
}

void Rank::send(int rank, const Message& message) {
  ++sent;
  job_.wire(number_, rank).push_back(decode(encode(message)));
}

void Rank::execute(SetId set, FusedOp fused, std::vector<Entry> entries) {
  did.push_back(text_of(fused, entries, negotiation_->find(set.id)->set().size()));
  finish(entries, {});
}

std::optional<InlinePayload> Rank::prepare(SetId, std::span<const Entry> unit) {
  if (!prepares) return std::nullopt;
  std::vector<std::byte> bytes;
  for (const Entry& entry : unit) {
    const auto* const input = static_cast<const std::byte*>(entry.input);
    bytes.insert(bytes.end(), input, input + entry.request->bytes());
  }
  auto packed = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return InlinePayload{*packed, parts, packed};
}

void Rank::execute_prepared(SetId, std::vector<Entry>& unit,
                            std::vector<std::vector<std::byte>> inputs) {
  payloads = std::move(inputs);
  std::string names;
  for (const Entry& entry : unit) names += (names.empty() ? "" : "+") + entry.request->name;
  did.push_back(names + "!");
  finish(unit, {});
}

void Rank::finish(std::span<const Entry> entries, const base::Status& status) {
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    EXPECT(!entry.completion->is_done());
    if (!status.ok()) failed[entry.request->name] = status.message;
    entry.completion->done.store(1);
  }
}

std::unique_ptr<Agreement> Rank::add_set(const ProcessSet& set, const Regions::Grant& regions) {
  sets.push_back(set.id);
  if (!regions.first || regions.second || !set.is_member()) return nullptr;
  return std::make_unique<PlainAgreement>(job_.table(set.id, set.size()), set.index,
                                          job_.departures(regions.first->number),
                                          regions.first->departures, trouble);
}

// --- the job ----------------------------------------------------------------------------------------------------------

Job::Job(std::vector<int> hosts, int regions, int ledger_copies)
    : hosts_(std::move(hosts)), regions_(regions), ledger_copies_(ledger_copies) {
  for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
}

std::shared_ptr<PlainTable> Job::table(SetId set, int members) {
  std::shared_ptr<PlainTable>& table = tables_[set];
  if (!table) table = std::make_shared<PlainTable>();
  table->members = members;
  return table;
}

Departures Job::departures(int region) {
  Departures& departures = departures_[region];
  if (!departures) departures = std::make_shared<std::uint64_t>(0);
  return departures;
}

std::vector<std::pair<int, int>> Job::busy() const {
  std::vector<std::pair<int, int>> found;
  for (const auto& [wire, messages] : wires_) {
    if (!messages.empty()) found.push_back(wire);
  }
  return found;
}

void Job::deliver(std::pair<int, int> wire) {
  Message message = std::move(wires_[wire].front());
  wires_[wire].pop_front();
  Rank& rank = (*this)[wire.second];
  if (rank.ended) return;
  std::visit(
      [&](auto& content) {
        using Content = std::decay_t<decltype(content)>;
        if constexpr (std::is_same_v<Content, Announcement> ||
                      std::is_same_v<Content, ResponseList> ||
                      std::is_same_v<Content, LedgerSteps>) {
          rank.negotiation().hear(wire.first, std::move(content));
        } else if constexpr (std::is_same_v<Content, Goodbye>) {
          rank.negotiation().catch_up();
          rank.negotiation().left(wire.first, {base::ErrorCode::kAborted,
                                               "rank " + std::to_string(wire.first) + " has left"});
          this->wire(wire.second, wire.first).push_back(GoodbyeSeen{});
        } else if constexpr (std::is_same_v<Content, GoodbyeSeen>) {
          rank.negotiation().fail_undecided(wire.first, {base::ErrorCode::kAborted, "left"});
        } else {
          EXPECT(false);
        }
      },
      message);
}

void Job::pass(int rank) {
  if (!(*this)[rank].ended) (*this)[rank].negotiation().advance();
}

void Job::run() {
  // Enough for all cases: each pass moves something, or is one of the last.
  for (int round = 0; round < 64; ++round) {
    for (int rank = 0; rank < size(); ++rank) pass(rank);
    for (const auto& wire : busy()) deliver(wire);
  }
}

void Job::verdict(int coordinator, const std::vector<std::string>& names) {
  (*this)[coordinator].negotiation().hear(0, Verdict{{0, 1}, names, "these wait for each other"});
}

std::uint64_t Job::digest() const {
  base::Hasher hasher;
  for (const auto& rank : ranks_) {
    hasher.add(rank->negotiation().digest());
    hasher.add_pair(rank->ended ? 1 : 0, rank->trouble.dies_in_step ? 1 : 0);
    for (const std::string& each : rank->did) hasher.add_text(each);
    for (const auto& [name, text] : rank->failed) hasher.add_text(name);
  }
  for (const auto& [set, table] : tables_) table->add_to(hasher);
  for (const auto& [wire, messages] : wires_) {
    if (!messages.empty()) hasher.add_pair(wire.first, wire.second);
    for (const Message& message : messages) add_message(hasher, message);
  }
  return hasher.value();
}

}  // namespace hvdlite::engine::negotiation_test
