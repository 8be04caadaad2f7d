// The state of another process of this machine, as the kernel reports it.
// Thread: any. Owns: nothing. Blocks: on a read of /proc. Throws: std::bad_alloc.
#pragma once

namespace hvdlite::base {

// The letter that /proc shows: R runs, S sleeps, T is stopped, t is stopped by a debugger, Z has ended. '\0' if there is no
// such process, or if the kernel does not say.
char state_of_process(int pid);

}  // namespace hvdlite::base
