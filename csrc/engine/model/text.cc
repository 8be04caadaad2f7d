// How a text names a dtype that the engine does not know. Request::layout is the code of a memory layout or, for such a dtype,
// a hash of the dtype's name (hvdlite/dtypes.py). Codes are below kFirstOther, and hashes are not. A hash cannot be turned back
// into a name, so format_dtype() computes the hash of each name in a list, and compares it with the layout.
#include "engine/model/text.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace hvdlite::engine {
namespace {

// Names of dtypes that the engine does not know. For a dtype that is not in this list, texts give the hash of its name.
constexpr const char* kOtherDTypes[] = {"float8_e4m3fn",
                                        "float8_e5m2",
                                        "float8_e8m0fnu",
                                        "float8_e4m3fnuz",
                                        "float8_e5m2fnuz",
                                        "float8_e4m3",
                                        "float8_e3m4",
                                        "float8_e4m3b11fnuz",
                                        "float6_e2m3fn",
                                        "float6_e3m2fn",
                                        "float4_e2m1fn",
                                        "float4_e2m1fn_x2",
                                        "int1",
                                        "int2",
                                        "int4",
                                        "uint1",
                                        "uint2",
                                        "uint4",
                                        "complex32",
                                        "float128",
                                        "datetime64[s]",
                                        "datetime64[us]",
                                        "datetime64[ns]"};
constexpr std::int32_t kFirstOther = 1 << 30;

// The hash FNV-1a, as hvdlite/dtypes.py computes it.
constexpr std::int32_t mark_of(std::string_view name) {
  std::uint32_t hash = 2166136261U;
  for (const char letter : name) hash = (hash ^ static_cast<std::uint8_t>(letter)) * 16777619U;
  return kFirstOther | static_cast<std::int32_t>(hash % kFirstOther);
}

}  // namespace

std::string on_one_line(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  }
  return text;
}

// Each turn of the loop writes one run of successive ranks: "3", "3, 4" or "3-5".
std::string format_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string format_shape(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string format_dtype(base::DType dtype, std::int32_t layout) {
  if (layout < kFirstOther) return std::string(base::name_of(dtype));
  for (const char* name : kOtherDTypes) {
    if (mark_of(name) == layout) return name;
  }
  return "dtype number " + std::to_string(layout) + " (of " + std::to_string(base::size_of(dtype)) +
         " bytes)";
}

void throw_shut_down() {
  throw base::Error(base::ErrorCode::kNotInitialized,
                    std::string(kShutDownHere) + "; call init() first");
}

}  // namespace hvdlite::engine
