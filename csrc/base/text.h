// Numbers, and ranks, as text.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
//
// The engine uses neither iostreams nor printf for fractions. Both look at the program's locale: under a German locale a trace
// would have "0,5" where JSON needs "0.5". And some compilers link a copy of the C++ library into hvdlite. Streams of this copy
// would use the facets of another copy, which Python has loaded before, and the process would end in a segmentation fault.
#pragma once

#include <string>

namespace hvdlite::base {

// The shortest text from which the same number can be read back: "0.1".
std::string to_text(double number);
// With `decimals` digits behind the point: "0.500".
std::string to_text(double number, int decimals);
// "rank 3 (host a, pid 17)"
std::string describe_rank(int rank, const std::string& host, int pid);

}  // namespace hvdlite::base
