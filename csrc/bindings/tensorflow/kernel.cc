#include "kernel.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "status.h"

namespace hvdlite::tensorflow {
namespace {

// Left: TF_DataType, whose numbers are part of TensorFlow's file formats. Right: csrc/base/types.h.
constexpr DTypePair kDTypes[] = {
    {4, 0},    // uint8
    {6, 1},    // int8
    {17, 2},   // uint16
    {5, 3},    // int16
    {22, 4},   // uint32
    {3, 5},    // int32
    {23, 6},   // uint64
    {9, 7},    // int64
    {19, 8},   // float16 (half)
    {14, 9},   // bfloat16
    {1, 10},   // float32
    {2, 11},   // float64
    {10, 12},  // bool
    {8, 13},   // complex64
    {18, 14},  // complex128
};

DTypePair pair_of(DataType dtype) {
  for (const DTypePair& pair : kDTypes) {
    if (pair.tensorflow == dtype) return pair;
  }
  return {dtype, -1};  // the op's definition allows only the types above
}

const char* prefix_of(KernelKind kind) {
  constexpr const char* kPrefixes[] = {"allreduce.",     "allgather.", "broadcast.", "alltoall.",
                                       "reducescatter.", "barrier.",   "join"};
  return kPrefixes[static_cast<int>(kind)];
}

bool is_counter(std::string_view part) {
  return part.starts_with('_') && part.find_first_not_of("0123456789", 1) == part.npos;
}

// The place of the call of the function that contains the op, if TensorFlow has inlined the function, such as
// "StatefulPartitionedCall_1". A function that is called twice has the same op, with the same name, twice in flight. Components
// such as "_12" are left out: TensorFlow counts them through the process, and ranks need not agree on them.
std::string call_of(std::string_view node) {
  constexpr std::string_view kCall = "PartitionedCall";
  const std::size_t last = node.rfind(kCall);
  if (last == std::string_view::npos) return "";
  node = node.substr(0, node.find('/', last));
  std::string call;
  while (!node.empty()) {
    const std::size_t size = std::min(node.find('/'), node.size());
    const std::string_view part = node.substr(0, size);
    if (!is_counter(part)) call.append(call.empty() ? "" : "/").append(part);
    node.remove_prefix(std::min(size + 1, node.size()));
  }
  return call;
}

}  // namespace

class Kernel::Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}
  ~Attributes() {
    if (!status_.ok()) api().OpKernelConstruction_Failure(construction_, status_);
  }

  std::int64_t integer(const char* name) const {
    std::int64_t value = 0;
    if (status_.ok()) {
      api().OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_);
    }
    return value;
  }

  bool flag(const char* name) const {
    unsigned char value = 0;
    if (status_.ok()) api().OpKernelConstruction_GetAttrBool(construction_, name, &value, status_);
    return value != 0;
  }

  std::int32_t number(const char* name) const { return static_cast<std::int32_t>(integer(name)); }

  // TensorFlow's own float attributes have 32 bits, so a factor is passed as the bits of a double.
  double factor(const char* name) const { return std::bit_cast<double>(integer(name)); }

  std::string_view node_name() const {
    const StringView name = api().OpKernelConstruction_GetName(construction_);
    return {name.data, name.size};
  }

  std::string text(const char* name) const {
    std::string value;
    if (const int size = sizes(name).total; size > 0) {
      value.resize(static_cast<std::size_t>(size));
      api().OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                               status_);
    }
    return value;
  }

  DataType type(const char* name) const {
    DataType value = 0;
    if (status_.ok()) api().OpKernelConstruction_GetAttrType(construction_, name, &value, status_);
    return value;
  }

  std::vector<DataType> types(const char* name) const {
    std::vector<DataType> values;
    if (const int size = sizes(name).list; size > 0) {
      values.resize(static_cast<std::size_t>(size));
      api().OpKernelConstruction_GetAttrTypeList(construction_, name, values.data(), size, status_);
    }
    return values;
  }

 private:
  struct Sizes {
    std::int32_t list = 0, total = 0;
  };
  Sizes sizes(const char* name) const {
    Sizes found;
    if (status_.ok()) {
      api().OpKernelConstruction_GetAttrSize(construction_, name, &found.list, &found.total,
                                             status_);
    }
    return found;
  }

  TF_OpKernelConstruction* construction_;
  TfStatus status_;
};

Kernel::Kernel(const Form& form, bool on_gpu, TF_OpKernelConstruction* construction)
    : form_(form), on_gpu_(on_gpu) {
  const KernelKind kind = form.kind;
  const Attributes attributes(construction);
  parse_dtypes(attributes);
  parse_names(attributes);
  const bool reduces = kind == KernelKind::kAllreduce || kind == KernelKind::kReducescatter;
  hvdlite_request request{};
  request.kind = static_cast<std::int32_t>(kind);
  request.op = reduces ? attributes.number("reduce_op") : HVDLITE_SUM;
  request.prescale = reduces ? attributes.factor("prescale_bits") : 1.0;
  request.postscale = reduces ? attributes.factor("postscale_bits") : 1.0;
  if (kind == KernelKind::kAllreduce) {
    request.codec = attributes.number("codec");
    request.codec_between = attributes.number("codec_between");
    request.codec_block = attributes.number("codec_block");
  }
  request.root = kind == KernelKind::kBroadcast ? attributes.number("root_rank") : 0;
  request.process_set = attributes.number("process_set");
  request.device = HVDLITE_DEVICE_CPU;
  request.flags = form.weighted ? HVDLITE_FLAG_WEIGHTED : 0;
  has_splits_ = kind == KernelKind::kAlltoall && attributes.flag("has_splits");
  blocks_ = attributes.flag("blocking");
  const std::size_t count = dtypes_.size();
  for (std::size_t i = 0; i < count; ++i) {
    request.dtype = dtypes_[i].engine;
    request.name = is_named() ? names_[i].c_str() : nullptr;
    if (form.grouped) {
      request.group = is_named() ? names_.back().c_str() : nullptr;
      request.group_size = static_cast<std::int32_t>(count);
      request.group_index = static_cast<std::int32_t>(i);
    }
    requests_.push_back(request);
  }
}

void Kernel::parse_dtypes(const Attributes& attributes) {
  if (form_.kind == KernelKind::kBarrier || form_.kind == KernelKind::kJoin) {
    dtypes_.push_back(pair_of(4));  // a placeholder, as there is no tensor
  } else if (form_.grouped) {
    for (const DataType dtype : attributes.types("T")) dtypes_.push_back(pair_of(dtype));
  } else {
    dtypes_.push_back(pair_of(attributes.type("T")));
  }
}

// Makes the same keys of negotiation as hvdlite/requests.py, since another rank may use another door.
void Kernel::parse_names(const Attributes& attributes) {
  if (form_.kind == KernelKind::kJoin) {
    names_.emplace_back(prefix_of(form_.kind));
    return;
  }
  if (form_.kind == KernelKind::kBarrier) return;
  const std::string name = attributes.text("tensor_name");
  if (name.empty()) return;
  const std::string call = call_of(attributes.node_name());
  const std::string key = prefix_of(form_.kind) + name + (call.empty() ? "" : "@") + call;
  if (form_.grouped) {
    const std::string of = "of" + std::to_string(dtypes_.size());
    for (std::size_t i = 1; i <= dtypes_.size(); ++i) {
      names_.push_back(key + "_" + std::to_string(i) + of);
    }
  }
  names_.push_back(key);
}

std::vector<std::string> Kernel::names_in_iteration(std::int64_t iteration) const {
  std::vector<std::string> names = names_;
  for (std::string& name : names) name += "@" + std::to_string(iteration);
  return names;
}

}  // namespace hvdlite::tensorflow
