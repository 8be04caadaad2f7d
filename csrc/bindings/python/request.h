// Python's view of requests to the C ABI's.
// Thread: with the GIL held. Owns: the integers of shapes and splits; strings are borrowed from the Python objects.
// Blocks: no. Throws: TypeError, naming the argument.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "binding.h"

namespace hvdlite::python {

// The integers of any Python sequence, without a heap allocation for as many as tensors usually have dimensions.
class Int64List {
 public:
  explicit Int64List(nb::handle sequence);
  const std::int64_t* data() const { return heap_.empty() ? local_.data() : heap_.data(); }
  std::int32_t size() const { return size_; }

 private:
  static constexpr std::size_t kLocal = 8;
  std::array<std::int64_t, kLocal> local_;
  std::vector<std::int64_t> heap_;
  std::int32_t size_ = 0;
};

// Names for operations that the user does not name: a prefix and a number, which is used up when a request with that name has
// been accepted. Ranks must agree on numbers, so a request that one rank refuses may not count.
class Numbering {
 public:
  explicit Numbering(const char* prefix) : name_(prefix), prefix_size_(name_.size()) { write(); }
  // Valid until advance().
  const std::string& name() const { return name_; }
  void advance() {
    ++number_;
    write();
  }

 private:
  void write() {
    name_.resize(prefix_size_);
    name_ += std::to_string(number_);
  }

  std::string name_;
  std::size_t prefix_size_;
  std::uint64_t number_ = 0;
};

// Requests made of tuples of Engine.submit's arguments in order (without wake); trailing ones may be missing, the defaults
// are those of _engine.pyi. A pointer may also be an object with the buffer protocol, a name a Numbering. The tuples must
// outlive this.
class Requests {
 public:
  // A sequence of tuples.
  static Requests of_sequence(nb::handle sequence);
  // One tuple.
  static Requests of_tuple(nb::handle tuple);
  Requests(Requests&&) = default;
  const hvdlite_request* data() const { return natives_.data(); }
  std::size_t size() const { return natives_.size(); }
  // The engine has accepted them.
  void accepted() {
    if (numbering_ != nullptr) numbering_->advance();
  }

 private:
  Requests() = default;
  void add(nb::handle tuple);
  void set_pointers();

  std::vector<hvdlite_request> natives_;
  std::vector<std::int64_t> integers_;  // of the first shape, the first splits, the second shape...
  Numbering* numbering_ = nullptr;      // that named the one request there is
};

}  // namespace hvdlite::python
