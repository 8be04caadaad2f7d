// The part of XLA's FFI (xla/ffi/api/c_api.h) that a handler needs, declared here so that one build serves every jaxlib.
// A structure may grow at its end from version to version; what is declared has been the same since jaxlib 0.4.31.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdlite::jax::ffi {

enum ExtensionType : int { kMetadata = 1 };
enum AttributeType : int { kString = 4 };
enum Stage : int { kExecute = 3 };
enum BufferType : int { kFloat32 = 11, kFloat64 = 12 };

struct Error;
struct Future;
struct Context;

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};

struct ApiVersion {
  std::size_t struct_size;
  Extension* extension;
  int major, minor;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion api_version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dimensions;
};

// The arguments, or the results, of a call; each value is a Buffer.
struct Values {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  void** values;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extension;
  std::int64_t size;
  int* types;
  ByteSpan** names;
  void** values;
};

struct ErrorCreate {
  std::size_t struct_size;
  Extension* extension;
  const char* message;
  int code;
};

struct FutureCreate {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
};

struct FutureSetAvailable {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
};

struct FutureSetError {
  std::size_t struct_size;
  Extension* extension;
  Future* future;
  Error* error;
};

struct Api {
  std::size_t struct_size;
  Extension* extension;
  ApiVersion version;
  const void* internal;
  Error* (*create_error)(ErrorCreate*);
  void* unused[10];  // up to here in every version
  void* thread_pool[2];
  Error* (*create_future)(FutureCreate*);
  Error* (*set_available)(FutureSetAvailable*);
  Error* (*set_error)(FutureSetError*);
};

struct CallFrame {
  std::size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  int stage;
  Values arguments;
  Values results;
  Attributes attributes;
  Future* future;  // where the API knows futures
};

}  // namespace hvdlite::jax::ffi
