// Texts that several messages to users share, and how ranks, shapes and dtypes are written there.
// Thread: pure functions, any. Owns: nothing. Blocks: no. Throws: std::bad_alloc, and what a function says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace hvdlite::engine {

// Users of Horovod search their logs for this text.
inline constexpr const char* kShutDown = "Horovod has been shut down";
inline constexpr const char* kShutDownHere = "this rank has shut down. Horovod has been shut down";
// Throws Error(NotInitialized), because this rank has shut down.
[[noreturn]] void throw_shut_down();

// Why a process set refuses requests while this rank removes it.
inline constexpr const char* kBeingRemoved =
    "this rank is removing the process set; submit all other operations on a process set before "
    "you call remove_process_set";

// Why an operation fails if its process set was removed after the submission.
inline constexpr const char* kRemovedSet =
    "the process set has been removed; add it again, and use the new process set";

// Why an operation or the engine fails if an allocation fails.
inline constexpr const char* kNoMemory =
    "the system gives this process no more memory; raise its limit (of the container, or ulimit "
    "-v), or move fewer elements at a time";

// Possible reasons why a host sends no heartbeat.
inline constexpr const char* kSilentHost =
    "the host is down, its link is cut, or its first rank is stopped";

// The text with a space in place of each control character: a line of a log or a record stays one line, whatever characters a
// name contains.
std::string on_one_line(std::string text);
// {0, 1, 2, 5} -> "ranks 0-2, 5"; {3} -> "rank 3".
std::string format_ranks(std::vector<int> ranks);
// {2, 3} -> "[2, 3]".
std::string format_shape(const std::vector<std::int64_t>& shape);
// "float32". layout: of the tensor, as in Request. If the layout stands for a dtype that the engine does not know, the text
// names that dtype, and not the parameter `dtype`, under which the engine moves the elements.
std::string format_dtype(base::DType dtype, std::int32_t layout);

}  // namespace hvdlite::engine
