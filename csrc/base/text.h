// Numbers, and ranks, as text.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
//
// The engine uses neither iostreams nor printf for fractions. Both look at the program's locale: under a German one a trace
// would have "0,5" where JSON needs "0.5". And where a compiler links the C++ library statically, the streams of one copy take
// the facets of another that Python loaded before, and the process ends in a segmentation fault.
#pragma once

#include <string>

namespace hvdlite::base {

// The shortest text from which the same number can be read back: "0.1".
std::string to_text(double number);
// With this many digits behind the point: "0.500".
std::string to_text(double number, int decimals);
// "rank 3 (host a, pid 17)"
std::string describe_rank(int rank, const std::string& host, int pid);

}  // namespace hvdlite::base
