// The part of NVRTC's binary interface that hvdlite calls. It is declared here so that the build needs no CUDA header. Plain
// declarations.
#pragma once

#include <cstddef>
#include <type_traits>

namespace hvdlite::device::nvrtc {

using Result = int;  // nvrtcResult
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidOption = 5;
inline constexpr Result kCompilation = 6;  // the program's log says what is wrong
using Program = struct _nvrtcProgram*;

#define HVDLITE_NVRTC_FUNCTIONS(X)                                                            \
  X(GetErrorString, "nvrtcGetErrorString", const char*(Result result))                        \
  X(Version, "nvrtcVersion", Result(int* major, int* minor))                                  \
  X(CreateProgram, "nvrtcCreateProgram",                                                      \
    Result(Program* program, const char* source, const char* name, int num_headers,           \
           const char* const* headers, const char* const* include_names))                     \
  X(DestroyProgram, "nvrtcDestroyProgram", Result(Program* program))                          \
  X(CompileProgram, "nvrtcCompileProgram",                                                    \
    Result(Program program, int num_options, const char* const* options))                     \
  X(GetProgramLogSize, "nvrtcGetProgramLogSize", Result(Program program, std::size_t* bytes)) \
  X(GetProgramLog, "nvrtcGetProgramLog", Result(Program program, char* log))                  \
  X(GetCUBINSize, "nvrtcGetCUBINSize", Result(Program program, std::size_t* bytes))           \
  X(GetCUBIN, "nvrtcGetCUBIN", Result(Program program, char* image))                          \
  X(GetPTXSize, "nvrtcGetPTXSize", Result(Program program, std::size_t* bytes))               \
  X(GetPTX, "nvrtcGetPTX", Result(Program program, char* text))

struct Functions {
#define HVDLITE_NVRTC_POINTER(name, symbol, type) std::add_pointer_t<type> name = nullptr;
  HVDLITE_NVRTC_FUNCTIONS(HVDLITE_NVRTC_POINTER)
#undef HVDLITE_NVRTC_POINTER
};

}  // namespace hvdlite::device::nvrtc
