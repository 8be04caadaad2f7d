// Every collective is registered twice. The plain op is stateless: TensorFlow gives it no order, so all gradients of a step are
// in flight together. But TensorFlow may drop a stateless op whose result is unused. The other op, ...Stateful, is never
// dropped, and TensorFlow runs stateful ops in the order of the program. Barrier and join exist only as stateful ops.
//
// TensorFlow evaluates a stateless op with constant inputs (for example, the gradient of a linear loss) only once, while it
// optimises the graph. So stateless ops have another input, "anchor", which is never constant and is not read
// (hvdlite/tensorflow/making.py says where it comes from).
#include <string>

#include "call.h"
#include "op_definition.h"
#include "ops.h"
#include "shapes.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

#define HVDLITE_TF_DTYPES                                                                      \
  "{half, bfloat16, float, double, uint8, int8, uint16, int16, uint32, int32, uint64, int64, " \
  "bool, complex64, complex128}"
constexpr const char* kOne = "T: " HVDLITE_TF_DTYPES;
constexpr const char* kMany = "T: list(" HVDLITE_TF_DTYPES ") >= 1";

template <Kernel::Form kForm, ArgumentMemory kPlace>
void* create(TF_OpKernelConstruction* construction) {
  return new Kernel(kForm, kPlace == ArgumentMemory::kDevice, construction);
}

void compute(void* kernel, TF_OpKernelContext* context) {
  KernelCall::run(*static_cast<const Kernel*>(kernel), context);
}

void compute_async(void* kernel, TF_OpKernelContext* context,
                   TF_AsyncOpKernelDoneCallback* callback) {
  if (async_works() && !static_cast<const Kernel*>(kernel)->blocks()) {
    KernelCall::start(*static_cast<const Kernel*>(kernel), context, DoneCallback::take(callback));
  } else {
    compute(kernel, context);
    api().RunAsyncOpKernelDoneCallback(callback);
  }
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

template <Kernel::Form kForm>
void define(OpDefinition definition) {
  definition.attribute("tensor_name: string = ''").attribute("process_set: int = 0");
  definition.attribute("blocking: bool = false");
  const bool has_tensors = kForm.kind != HVDLITE_BARRIER && kForm.kind != HVDLITE_JOIN;
  definition.enroll({create<kForm, ArgumentMemory::kHost>, compute, compute_async, destroy,
                     has_tensors ? create<kForm, ArgumentMemory::kDevice> : nullptr});
}

template <Kernel::Form kForm>
void define_of_tensors(const std::string& name, bool stateful, ShapeFunction shapes,
                       std::initializer_list<const char*> attributes) {
  const std::string many = kForm.grouped ? "Grouped" : "", suffix = stateful ? "Stateful" : "";
  OpDefinition op("Hvdlite" + many + name + suffix, stateful, shapes);
  op.attribute(kForm.grouped ? kMany : kOne);
  op.input(kForm.grouped ? "tensors" : "tensor", "T");
  op.output(kForm.grouped ? "outputs" : "output", "T");
  if (kForm.weighted) op.input("weight", "double", ArgumentMemory::kHost);
  if (!stateful) op.input("anchor", "float");
  for (const char* attribute : attributes) op.attribute(attribute);
  define<kForm>(op);
}

// Defines the stateless and the stateful op, for one tensor and for many.
template <std::int32_t kKind, bool kWeighted = false>
void define_family(const std::string& name, std::initializer_list<const char*> attributes,
                   const ShapeFunctions& shapes_of) {
  for (const bool stateful : {false, true}) {
    const ShapeFunction shapes = stateful ? shapes_of.without_anchor : shapes_of.with_anchor;
    define_of_tensors<Kernel::Form{kKind, false, kWeighted}>(name, stateful, shapes, attributes);
    if (kKind == HVDLITE_BROADCAST) continue;  // Horovod groups no broadcasts
    define_of_tensors<Kernel::Form{kKind, true, kWeighted}>(name, stateful, shapes, attributes);
  }
}

void define_alltoall() {
  for (const bool stateful : {false, true}) {
    OpDefinition op(stateful ? "HvdliteAlltoallStateful" : "HvdliteAlltoall", stateful,
                    shapes_of_alltoall);
    op.attribute(kOne).attribute("Tsplits: {int32, int64}").attribute("has_splits: bool");
    op.input("tensor", "T").input("splits", "Tsplits", ArgumentMemory::kHost);
    if (!stateful) op.input("anchor", "float");
    op.output("output", "T").output("received_splits", "int32", ArgumentMemory::kHost);
    define<Kernel::Form{HVDLITE_ALLTOALL}>(op);
  }
}

}  // namespace

void register_collectives() {
  // The bits of the double 1.0.
  constexpr const char* kPrescale = "prescale_bits: int = 4607182418800017408";
  constexpr const char* kPostscale = "postscale_bits: int = 4607182418800017408";
  const auto reduction = {"reduce_op: int", kPrescale, kPostscale};
  const auto coded_reduction = {
      "reduce_op: int",      kPrescale, kPostscale, "codec: int = 0", "codec_between: int = 0",
      "codec_block: int = 0"};
  define_family<HVDLITE_ALLREDUCE>("Allreduce", coded_reduction, kLikeInputs);
  define_family<HVDLITE_ALLREDUCE, true>("WeightedAllreduce", coded_reduction,
                                         kLikeInputsButTheWeight);
  define_family<HVDLITE_REDUCESCATTER>("Reducescatter", reduction, kRows);
  define_family<HVDLITE_ALLGATHER>("Allgather", {}, kRows);
  define_family<HVDLITE_BROADCAST>("Broadcast", {"root_rank: int"}, kLikeInputs);
  define_alltoall();
  define<Kernel::Form{HVDLITE_BARRIER}>(OpDefinition("HvdliteBarrier", true, shapes_of_nothing));
  OpDefinition join("HvdliteJoin", true, shape_of_number);
  join.output("last_joined_rank", "int32");
  define<Kernel::Form{HVDLITE_JOIN}>(join);
}

}  // namespace hvdlite::tensorflow
