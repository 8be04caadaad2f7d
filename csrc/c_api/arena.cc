// The arenas of hvdlite.h over ArenaDraft.
#include <cstring>
#include <memory>
#include <vector>

#include "base/digest.h"
#include "c_api/c_api.h"
#include "engine/engine.h"
#include "engine/intake/arenas.h"
#include "kernels/stream.h"

using hvdlite::engine::alive;
using hvdlite::engine::ArenaDraft;
using hvdlite::engine::guarded;
using hvdlite::engine::require;

struct hvdlite_arena {
  std::unique_ptr<ArenaDraft> draft;
};

static_assert(sizeof(ArenaDraft::Address) <= HVDLITE_ARENA_ADDRESS_BYTES);

int hvdlite_arena_create(hvdlite_engine* engine, int32_t process_set, const char* kind,
                         int64_t bytes, hvdlite_arena** out) {
  return guarded([&] {
    require(kind != nullptr, "no kind of memory was given");
    require(bytes > 0, "an arena needs at least one byte, not " + std::to_string(bytes));
    *out = new hvdlite_arena{
        alive(engine).create_arena(process_set, kind, static_cast<std::size_t>(bytes))};
  });
}

void hvdlite_arena_address(const hvdlite_arena* arena, void* address) {
  std::memset(address, 0, HVDLITE_ARENA_ADDRESS_BYTES);
  std::memcpy(address, &arena->draft->address(), sizeof(ArenaDraft::Address));
}

int hvdlite_arena_open(hvdlite_arena* arena, const void* addresses, int32_t count) {
  return guarded([&] {
    require(arena != nullptr && (addresses != nullptr || count == 0), "no arena or no addresses");
    std::vector<ArenaDraft::Address> parsed(count > 0 ? static_cast<std::size_t>(count) : 0);
    for (std::size_t i = 0; i < parsed.size(); ++i) {
      std::memcpy(&parsed[i],
                  static_cast<const std::byte*>(addresses) + i * HVDLITE_ARENA_ADDRESS_BYTES,
                  sizeof(ArenaDraft::Address));
    }
    arena->draft->open(parsed);
  });
}

void hvdlite_arena_hide(hvdlite_arena* arena) { arena->draft->hide(); }
int64_t hvdlite_arena_id(const hvdlite_arena* arena) { return arena->draft->id(); }
void* hvdlite_arena_data(const hvdlite_arena* arena) { return arena->draft->data(); }
int64_t hvdlite_arena_bytes(const hvdlite_arena* arena) {
  return static_cast<int64_t>(arena->draft->bytes());
}
void hvdlite_arena_close(hvdlite_arena* arena) { arena->draft->close(); }
void hvdlite_arena_destroy(hvdlite_arena* arena) { delete arena; }

void hvdlite_stream_copy(void* to, const void* from, int64_t bytes) {
  hvdlite::kernels::stream_copy(to, from, static_cast<std::size_t>(bytes));
  hvdlite::kernels::end_streaming();
}

uint64_t hvdlite_digest(const void* memory, int64_t bytes) {
  return hvdlite::base::digest(memory, static_cast<std::size_t>(bytes));
}
