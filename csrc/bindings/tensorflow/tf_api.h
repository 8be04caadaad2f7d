// The functions of TensorFlow's C API that the ops use, declared here and looked up in the running process. So one build serves
// every version of TensorFlow, and needs none of its headers or libraries.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "status_code.h"

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace hvdlite::tensorflow {

inline constexpr const char* kLibrary = "libtensorflow_framework.so.2";

// TF_DataType and TF_Code (our StatusCode) are C enums; TF_Bool is an unsigned char.
using DataType = int;

struct StringView {
  const char* data;
  std::size_t size;
};

using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void*, TF_OpKernelContext*);
using ComputeAsyncFunction = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DeleteFunction = void (*)(void*);
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocator = void (*)(void* data, std::size_t bytes, void* argument);

// (result, name without TF_, parameters). Every version from 2.12 on has them.
#define HVDLITE_TF_FUNCTIONS(X)                                                                   \
  X(TF_Status*, NewStatus, ())                                                                    \
  X(void, DeleteStatus, (TF_Status*))                                                             \
  X(void, SetStatus, (TF_Status*, StatusCode, const char*))                                       \
  X(StatusCode, GetCode, (const TF_Status*))                                                      \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                               \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                     \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                    \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                   \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                      \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction)) \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                            \
  X(std::int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                    \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                          \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                   \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                    \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize,                                         \
    (TF_ShapeInferenceContext*, std::size_t))                                                     \
  X(void, ShapeInferenceContextGetInput,                                                          \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  X(void, ShapeInferenceContextSetOutput,                                                         \
    (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  X(void, ShapeInferenceContextWithRankAtLeast,                                                   \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, TF_ShapeHandle*, TF_Status*))      \
  X(void, ShapeInferenceContextSubshape,                                                          \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, std::int64_t, TF_ShapeHandle*,     \
     TF_Status*))                                                                                 \
  X(void, ShapeInferenceContextConcatenateShapes,                                                 \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))   \
  X(TF_KernelBuilder*, NewKernelBuilder,                                                          \
    (const char* op, const char* device, CreateFunction, ComputeFunction, DeleteFunction))        \
  X(void, KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                             \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                    \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                   \
  X(StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                         \
  X(void, OpKernelConstruction_GetAttrSize,                                                       \
    (TF_OpKernelConstruction*, const char*, std::int32_t* list_size, std::int32_t* total_size,    \
     TF_Status*))                                                                                 \
  X(void, OpKernelConstruction_GetAttrString,                                                     \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                      \
  X(void, OpKernelConstruction_GetAttrBool,                                                       \
    (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                          \
  X(void, OpKernelConstruction_GetAttrInt64,                                                      \
    (TF_OpKernelConstruction*, const char*, std::int64_t*, TF_Status*))                           \
  X(void, OpKernelConstruction_GetAttrType,                                                       \
    (TF_OpKernelConstruction*, const char*, DataType*, TF_Status*))                               \
  X(void, OpKernelConstruction_GetAttrTypeList,                                                   \
    (TF_OpKernelConstruction*, const char*, DataType*, int, TF_Status*))                          \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                          \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                    \
  X(TF_Tensor*, AllocateOutput,                                                                   \
    (TF_OpKernelContext*, int, DataType, const std::int64_t*, int, std::size_t, TF_Status*))      \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                     \
    (TF_OpKernelContext*, const int* candidates, int num_candidates, int output,                  \
     const std::int64_t* extents, int ndim, int* forwarded, TF_Status*))                          \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                             \
  X(TF_Tensor*, NewTensor,                                                                        \
    (DataType, const std::int64_t*, int, void*, std::size_t, Deallocator, void*))                 \
  X(void, DeleteTensor, (TF_Tensor*))                                                             \
  X(DataType, TensorType, (const TF_Tensor*))                                                     \
  X(int, NumDims, (const TF_Tensor*))                                                             \
  X(std::int64_t, Dim, (const TF_Tensor*, int))                                                   \
  X(void*, TensorData, (const TF_Tensor*))

// Null if this TensorFlow lacks the function. The asynchronous kernels came with 2.13.
#define HVDLITE_TF_OPTIONAL_FUNCTIONS(X)                                                        \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                   \
    (const char* op, const char* device, CreateFunction, ComputeAsyncFunction, DeleteFunction)) \
  X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                        \
  X(std::int64_t, GetIterId, (TF_OpKernelContext*))

struct Api {
#define HVDLITE_TF_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  HVDLITE_TF_FUNCTIONS(HVDLITE_TF_MEMBER)
  HVDLITE_TF_OPTIONAL_FUNCTIONS(HVDLITE_TF_MEMBER)
#undef HVDLITE_TF_MEMBER
  std::string problem;  // why there are no ops; empty if there are

  bool has_async_kernels() const {
    return NewAsyncKernelBuilder != nullptr && RunAsyncOpKernelDoneCallback != nullptr;
  }
};

// The functions of the TensorFlow that this process has loaded, looked up once.
const Api& api();

}  // namespace hvdlite::tensorflow
