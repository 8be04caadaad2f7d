// FakeGpuAdd: adds a number to a tensor on the fake GPU, in TensorFlow's stream, after a pause. TensorFlow's builds without CUDA
// have no kernels that compute on a device, and results that come too early show only where work takes a while.
//
// And what a TensorFlow with CUDA tells its kernels, OpKernelContext::eigen_device<GpuDevice>(): one without CUDA has that function
// too, but no such device behind it.
// Thread: any. Owns: one op and its kernel. Blocks: no. Throws: nothing.
#include <dlfcn.h>

#include <atomic>

#include "bindings/tensorflow/status.h"
#include "bindings/tensorflow/tf_api.h"
#include "control.h"
#include "tensorflow/plugin.h"

extern "C" const char* fake_image();
extern "C" int fake_busy(hvdlite::device::cuda::Stream stream, double seconds);

namespace fake::tensorflow {
namespace {

using hvdlite::tensorflow::api;
using hvdlite::tensorflow::TfStatus;

// What eigen_device gives: the stream, or one of the lies below.
enum Lie { kNone, kOtherStream, kNoStream, kNoObject, kNoFunction };
std::atomic<int> lie = kNone;

const Stream* stream_of(TF_OpKernelContext* context) {
  static const auto get = reinterpret_cast<Stream* (*)(TF_OpKernelContext*, TF_Status*)>(
      dlsym(dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD), "TF_GetStream"));
  const TfStatus status;
  return get(context, status);
}

// Work of a stream that TensorFlow does not use.
const GpuDevice& of_other_stream(int gpu) {
  const OnGpu on(gpu);
  cuda::Stream made = nullptr;
  cuStreamCreateWithPriority(&made, cuda::kStreamNonBlocking, 0);
  return (new Stream(gpu, made))->device;  // never destroyed: it may still be in use
}

const GpuDevice& device_of(TF_OpKernelContext* context) {
  static const StreamInterface* const kUnmapped = reinterpret_cast<StreamInterface*>(8);
  static const void* const kNoFunctions[8] = {};
  static const void* const kNothing = kNoFunctions;
  static const GpuDevice no_object{kUnmapped, 0};
  static const GpuDevice no_function{reinterpret_cast<const StreamInterface*>(&kNothing), 0};
  static const Stream no_stream(0, nullptr);
  const Stream* stream = stream_of(context);
  switch (lie) {
    case kOtherStream:
      return of_other_stream(stream->gpu);
    case kNoStream:
      return no_stream.device;
    case kNoObject:
      return no_object;
    case kNoFunction:
      return no_function;
    default:
      return stream->device;
  }
}

struct Attributes {
  float summand = 0;
  float seconds = 0;
};

void* create(TF_OpKernelConstruction* construction) {
  using GetFloat = void (*)(TF_OpKernelConstruction*, const char*, float*, TF_Status*);
  static const auto get = reinterpret_cast<GetFloat>(
      dlsym(dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD),
            "TF_OpKernelConstruction_GetAttrFloat"));
  const TfStatus status;
  auto* attributes = new Attributes;
  get(construction, "summand", &attributes->summand, status);
  get(construction, "seconds", &attributes->seconds, status);
  return attributes;
}

cuda::Function add_kernel(int gpu) {
  static cuda::Function functions[64] = {};
  if (functions[gpu] == nullptr) {
    cuda::Module module = nullptr;
    cuModuleLoadData(&module, fake_image());
    cuModuleGetFunction(&functions[gpu], module, "fake_add");
  }
  return functions[gpu];
}

void compute(void* kernel, TF_OpKernelContext* context) {
  const auto& [summand, seconds] = *static_cast<const Attributes*>(kernel);
  const TfStatus status;
  TF_Tensor* input = nullptr;
  api().GetInput(context, 0, &input, status);
  std::int64_t extents[8] = {};
  const int ndim = api().NumDims(input);
  std::uint64_t count = 1;
  for (int axis = 0; axis < ndim; ++axis) {
    extents[axis] = api().Dim(input, axis);
    count *= static_cast<std::uint64_t>(extents[axis]);
  }
  const std::size_t bytes = count * sizeof(float);
  TF_Tensor* output =
      api().AllocateOutput(context, 0, api().TensorType(input), extents, ndim, bytes, status);
  const auto from = reinterpret_cast<cuda::Address>(api().TensorData(input));
  auto to = reinterpret_cast<cuda::Address>(api().TensorData(output));
  const Stream* stream = stream_of(context);
  const OnGpu on(stream->gpu);
  fake_busy(stream->handle, seconds);
  if (count > 0) {
    cuMemcpyAsync(to, from, bytes, stream->handle);
    float number = summand;
    void* parameters[] = {&to, &count, &number};
    const auto blocks = static_cast<unsigned>((count + 255) / 256);
    cuLaunchKernel(add_kernel(stream->gpu), blocks, 1, 1, 256, 1, 1, 0, stream->handle, parameters,
                   nullptr);
  }
  api().DeleteTensor(output);
  api().DeleteTensor(input);
}

void destroy(void* kernel) { delete static_cast<Attributes*>(kernel); }

void shape_of_input(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = api().NewShapeHandle();
  api().ShapeInferenceContextGetInput(context, 0, shape, status);
  api().ShapeInferenceContextSetOutput(context, 0, shape, status);
  api().DeleteShapeHandle(shape);
}

// As hvdlite_tensorflow.so does.
[[gnu::constructor]] void register_op() {
  if (!api().problem.empty()) return;
  TF_OpDefinitionBuilder* op = api().NewOpDefinitionBuilder("FakeGpuAdd");
  for (const char* attribute : {"summand: float", "seconds: float = 0.0"}) {
    api().OpDefinitionBuilderAddAttr(op, attribute);
  }
  api().OpDefinitionBuilderAddInput(op, "value: float");
  api().OpDefinitionBuilderAddOutput(op, "sum: float");
  api().OpDefinitionBuilderSetShapeInferenceFunction(op, shape_of_input);
  const TfStatus status;
  api().RegisterOpDefinition(op, status);
  api().RegisterKernelBuilder(
      "FakeGpuAdd", api().NewKernelBuilder("FakeGpuAdd", "GPU", create, compute, destroy), status);
}

}  // namespace
}  // namespace fake::tensorflow

FAKE_EXPORT void fake_tensorflow_lie(int lie) { fake::tensorflow::lie = lie; }

FAKE_EXPORT const fake::tensorflow::GpuDevice& fake_eigen_device(TF_OpKernelContext* context) {
  return fake::tensorflow::device_of(context);
}
