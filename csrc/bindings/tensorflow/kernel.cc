#include "kernel.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "status.h"

namespace hvdlite::tensorflow {
namespace {

// Left: TF_DataType, whose numbers are part of TensorFlow's file formats. Right: csrc/base/types.h.
constexpr struct {
  DataType tensorflow;
  std::int32_t engine;
} kDTypes[] = {
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

std::int32_t engine_dtype(DataType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.tensorflow == dtype) return pair.engine;
  }
  return -1;  // the op's definition allows only the types above
}

const char* prefix_of(std::int32_t kind) {
  constexpr const char* kPrefixes[] = {"allreduce.",     "allgather.", "broadcast.", "alltoall.",
                                       "reducescatter.", "barrier.",   "join"};
  return kPrefixes[kind];
}

bool is_counter(std::string_view part) {
  return part.starts_with('_') && part.find_first_not_of("0123456789", 1) == part.npos;
}

// If TensorFlow has inlined the function that contains the op: the path of the function's call in the graph, such as
// "StatefulPartitionedCall_1". If a function is called twice, the same op may be in flight twice, with the same tensor_name.
// Components of the path such as "_12" are left out: their numbers come from one counter of the process, and may differ between
// ranks.
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
  const std::int32_t kind = form.kind;
  const Attributes attributes(construction);
  const std::vector<std::int32_t> dtypes = parse_dtypes(attributes);
  const std::size_t count = dtypes.size();
  parse_names(attributes, count);
  const bool reduces = kind == HVDLITE_ALLREDUCE || kind == HVDLITE_REDUCESCATTER;
  hvdlite_request request{};
  request.kind = kind;
  request.op = reduces ? attributes.number("reduce_op") : HVDLITE_SUM;
  request.prescale = reduces ? attributes.factor("prescale_bits") : 1.0;
  request.postscale = reduces ? attributes.factor("postscale_bits") : 1.0;
  if (kind == HVDLITE_ALLREDUCE) {
    request.codec = attributes.number("codec");
    request.codec_between = attributes.number("codec_between");
    request.codec_block = attributes.number("codec_block");
  }
  request.root = kind == HVDLITE_BROADCAST ? attributes.number("root_rank") : 0;
  request.process_set = attributes.number("process_set");
  request.device = HVDLITE_DEVICE_CPU;
  request.flags = form.weighted ? HVDLITE_FLAG_WEIGHTED : 0;
  has_splits_ = kind == HVDLITE_ALLTOALL && attributes.flag("has_splits");
  blocks_ = attributes.flag("blocking");
  for (std::size_t i = 0; i < count; ++i) {
    request.dtype = dtypes[i];
    request.name = is_named() ? names_[i].c_str() : nullptr;
    if (form.grouped) {
      request.group = is_named() ? names_.back().c_str() : nullptr;
      request.group_size = static_cast<std::int32_t>(count);
      request.group_index = static_cast<std::int32_t>(i);
    }
    requests_.push_back(request);
  }
}

// The engine's dtype of each tensor.
std::vector<std::int32_t> Kernel::parse_dtypes(const Attributes& attributes) const {
  if (form_.kind == HVDLITE_BARRIER || form_.kind == HVDLITE_JOIN) return {0};  // no tensor
  std::vector<std::int32_t> dtypes;
  const auto types = form_.grouped ? attributes.types("T") : std::vector{attributes.type("T")};
  for (const DataType type : types) dtypes.push_back(engine_dtype(type));
  return dtypes;
}

// Makes the same keys of negotiation as hvdlite/requests.py, since another rank may use another door.
void Kernel::parse_names(const Attributes& attributes, std::size_t count) {
  if (form_.kind == HVDLITE_JOIN) {
    names_.emplace_back(prefix_of(form_.kind));
    return;
  }
  if (form_.kind == HVDLITE_BARRIER) return;
  const std::string name = attributes.text("tensor_name");
  if (name.empty()) return;
  const std::string call = call_of(attributes.node_name());
  const std::string key = prefix_of(form_.kind) + name + (call.empty() ? "" : "@") + call;
  if (form_.grouped) {
    const std::string of = "of" + std::to_string(count);
    for (std::size_t i = 1; i <= count; ++i) {
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
