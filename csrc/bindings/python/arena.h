// A rank's part of an arena as a Python object. Tensors over its buffer keep it alive.
// Thread: with the GIL held. Owns: the part. Blocks: no. Throws: the classes of hvdlite.errors.
#pragma once

#include "binding.h"

namespace hvdlite::python {

class Arena {
 public:
  explicit Arena(hvdlite_arena* arena) : arena_(arena) {}
  ~Arena() { hvdlite_arena_destroy(arena_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  nb::bytes address() const;
  std::int64_t id() const { return hvdlite_arena_id(arena_); }
  void* data() const { return hvdlite_arena_data(arena_); }
  std::int64_t nbytes() const { return hvdlite_arena_bytes(arena_); }
  void open(nb::sequence addresses);
  void hide() { hvdlite_arena_hide(arena_); }
  void close() { hvdlite_arena_close(arena_); }

 private:
  hvdlite_arena* arena_;
};

}  // namespace hvdlite::python
