// hvdlite_testing, the Python module of the tests: single kernels, requests by themselves, the explorer, simulated collectives.
// It consists of the core's objects, since the library does not export its classes, and is no part of a wheel.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding.h"
#include "c_api/c_api.h"
#include "request.h"
#include "testing/explore.h"
#include "testing/kernels.h"
#include "testing/simulate.h"

namespace hvdlite::testing {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using Address = std::uintptr_t;

// Does work() and raises what it throws, as the class that is installed in hvdlite._engine.
template <typename Work>
void raising(Work work) {
  python::check(engine::guarded(work));
}

template <typename Pointer>
std::vector<Pointer> pointers(const std::vector<Address>& addresses) {
  std::vector<Pointer> result;
  result.reserve(addresses.size());
  for (const Address address : addresses) result.push_back(reinterpret_cast<Pointer>(address));
  return result;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (int code = 0; const char* name = hvdlite_dtype_name(code); ++code) names.emplace_back(name);
  return names;
}

nb::tuple request_hashes(nb::handle request) {
  const python::Requests requests(nb::make_tuple(request));
  engine::Request built;
  raising([&] {
    built = engine::view_of(*requests.data()).copy({requests.data()->process_set, 0});
    built.seal();
  });
  return nb::make_tuple(built.name_hash, built.content_hash);
}

SimulatedStep step_of(int kind, std::string algorithm, const std::vector<Address>& inputs,
                      const std::vector<Address>& outputs, std::vector<std::int64_t> counts,
                      int dtype, int op, double prescale, double postscale, std::int64_t divisor,
                      int root, int parts, int codec, int block) {
  return {kind,
          std::move(algorithm),
          pointers<const void*>(inputs),
          pointers<void*>(outputs),
          std::move(counts),
          dtype,
          op,
          prescale,
          postscale,
          divisor,
          root,
          parts,
          codec,
          block};
}

void simulate_steps(int ranks, std::vector<SimulatedStep> steps, std::uint64_t seed, int isa,
                    std::int64_t segment_bytes, std::int64_t tile_bytes, bool deterministic,
                    std::vector<int> hosts) {
  const Simulation run{
      ranks,           seed, isa, segment_bytes, tile_bytes, deterministic, std::move(hosts),
      std::move(steps)};
  int code = HVDLITE_OK;
  {
    nb::gil_scoped_release release;
    code = engine::guarded([&] { simulate(run); });
  }
  python::check(code);
}

void register_kernels(nb::module_& module) {
  module.def(
      "accumulator_of",
      [](int dtype, int op) {
        int accumulator = 0;
        raising([&] { accumulator = accumulator_of(dtype, op); });
        return accumulator;
      },
      "dtype"_a, "op"_a);
  module.def("isa_supported", &isa_supported, "isa"_a);
  module.def(
      "encoded_bytes",
      [](int kind, std::size_t n, int block) {
        std::size_t bytes = 0;
        raising([&] { bytes = encoded_bytes(kind, n, block); });
        return bytes;
      },
      "kind"_a, "n"_a, "block"_a);
  module.def(
      "test_codec",
      [](int which, int isa, int kind, Address out, Address in, std::size_t n, int block) {
        raising([&] {
          test_codec(which, isa, kind, reinterpret_cast<void*>(out),
                     reinterpret_cast<const void*>(in), n, block);
        });
      },
      "which"_a, "isa"_a, "kind"_a, "out"_a, "input"_a, "n"_a, "block"_a);
  module.def(
      "test_kernel",
      [](int which, int isa, int dtype, int op, Address out, Address lhs, Address rhs,
         std::size_t n, double factor, std::int64_t divisor) {
        raising([&] {
          test_kernel(which, isa, dtype, op, reinterpret_cast<void*>(out),
                      reinterpret_cast<const void*>(lhs), reinterpret_cast<const void*>(rhs), n,
                      factor, divisor);
        });
      },
      "which"_a, "isa"_a, "dtype"_a, "op"_a, "out"_a, "lhs"_a, "rhs"_a, "n"_a, "factor"_a = 1.0,
      "divisor"_a = 1);
  module.def(
      "test_fold",
      [](int isa, int dtype, int op, const std::vector<Address>& outputs,
         const std::vector<Address>& inputs, std::size_t n, double prescale, double postscale,
         std::int64_t divisor) {
        raising([&] {
          test_fold(isa, dtype, op, pointers<void*>(outputs), pointers<const void*>(inputs), n,
                    prescale, postscale, divisor);
        });
      },
      "isa"_a, "dtype"_a, "op"_a, "outputs"_a, "inputs"_a, "n"_a, "prescale"_a = 1.0,
      "postscale"_a = 1.0, "divisor"_a = 1);
  module.def(
      "try_stores",
      [](const std::vector<double>& ordinary, const std::vector<double>& streaming,
         const std::vector<std::uint64_t>& kinds) {
        std::vector<bool> streamed;
        raising([&] { streamed = try_stores(ordinary, streaming, kinds); });
        return streamed;
      },
      "ordinary"_a, "streaming"_a, "kinds"_a);
}

void register_simulation(nb::module_& module) {
  module.def(
      "algorithms",
      [](int kind) {
        std::vector<std::string> names;
        raising([&] { names = algorithms(kind); });
        return names;
      },
      "kind"_a);
  nb::class_<SimulatedStep>(module, "SimulatedStep", "One collective for simulate().")
      .def_ro("algorithm", &SimulatedStep::algorithm)
      .def(nb::new_(&step_of), "kind"_a, "algorithm"_a, "inputs"_a, "outputs"_a, "counts"_a,
           "dtype"_a = 10, "op"_a = 1, "prescale"_a = 1.0, "postscale"_a = 1.0, "divisor"_a = 1,
           "root"_a = 0, "parts"_a = 1, "codec"_a = 0, "block"_a = 0);
  module.def("simulate", &simulate_steps, "ranks"_a, "steps"_a, "seed"_a = 0, "isa"_a = 0,
             "segment_bytes"_a = 262144, "tile_bytes"_a = 262144, "deterministic"_a = false,
             "hosts"_a = std::vector<int>{});
}

}  // namespace
}  // namespace hvdlite::testing

NB_MODULE(hvdlite_testing, module) {
  using namespace hvdlite::testing;
  module.doc() = "What unit tests reach of the engine without a job.";
  module.def("dtype_names", &dtype_names, "Names of the dtype codes, in order.");
  module.def("request_hashes", &request_hashes, "request"_a,
             "The hashes of a request, a tuple as Engine.submit takes it: of set and name, and "
             "of the content that ranks must agree on.");
  module.def(
      "explore_ledger",
      [](const std::vector<std::string>& programs, int closings, int broken_rule) {
        std::int64_t states = 0;
        raising([&] { states = explore_ledger(programs, closings, broken_rule); });
        return states;
      },
      "programs"_a, "closings"_a = 0, "broken_rule"_a = 0);
  register_kernels(module);
  register_simulation(module);
}
