#include "collectives/broadcast_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collectives/chunking.h"

namespace hvdlite::collectives {

BroadcastStream::BroadcastStream(Comm comm, const BroadcastArgs& args, const Tuning& tuning,
                                 const Branch& branch)
    : comm_(std::move(comm)),
      data_(static_cast<std::byte*>(args.data)),
      bytes_(args.bytes),
      segments_(pieces_in(args.bytes, std::max<std::size_t>(tuning.segment_bytes, 1))),
      parent_(branch.parent) {
  HVD_CHECK(args.root >= 0 && args.root < comm_.size());
  children_.reserve(branch.children.size());
  for (const int child : branch.children) children_.push_back({child, {}});
}

bool BroadcastStream::advance() {
  bool moved = true;
  while (moved) {
    moved = receive();
    for (Child& child : children_) moved = feed(child) || moved;
  }
  const auto served = [&](const Child& child) { return child.sends.done() == segments_; };
  return available() == segments_ && std::all_of(children_.begin(), children_.end(), served);
}

std::size_t BroadcastStream::available() const {
  return parent_ < 0 ? segments_ : receives_.done();
}

bool BroadcastStream::receive() {
  if (parent_ < 0) return false;
  while (receives_.posted() < segments_ && receives_.has_room()) {
    const Range range = part_of({0, bytes_}, segments_, receives_.posted());
    receives_.push(comm_.recv(parent_, 0, data_ + range.offset, range.count));
  }
  return receives_.drain(comm_);
}

bool BroadcastStream::feed(Child& child) {
  while (child.sends.posted() < available() && child.sends.has_room()) {
    const Range range = part_of({0, bytes_}, segments_, child.sends.posted());
    child.sends.push(comm_.send(child.rank, 0, data_ + range.offset, range.count));
  }
  return child.sends.drain(comm_);
}

}  // namespace hvdlite::collectives
