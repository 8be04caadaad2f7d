// Kernels alone and simulated collectives: what the unit tests reach without a job.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string_view>

#include "binding.h"
#include "request.h"

namespace hvdlite::python {

using namespace nb::literals;

namespace {

using Address = std::uintptr_t;

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (int code = 0; const char* name = hvdlite_dtype_name(code); ++code) names.emplace_back(name);
  return names;
}

std::int64_t explore_ledger(nb::handle programs, int closings, int broken_rule) {
  std::vector<std::string> texts;
  for (nb::handle program : programs) texts.emplace_back(nb::str(program).c_str());
  std::vector<const char*> pointers;
  for (const std::string& program : texts) pointers.push_back(program.c_str());
  std::int64_t states = 0;
  check(hvdlite_explore_ledger(pointers.data(), static_cast<int>(pointers.size()), closings,
                               broken_rule, &states));
  return states;
}

std::vector<std::string> algorithms(int kind) {
  const char* joined = hvdlite_algorithms(kind);
  if (joined == nullptr) {
    throw nb::value_error(("no operation has the number " + std::to_string(kind)).c_str());
  }
  std::vector<std::string> names;
  const std::string_view all = joined;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find(',', begin), all.size());
    names.emplace_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

nb::tuple request_hashes(nb::handle request) {
  const Requests requests = Requests::of_tuple(request);
  std::uint64_t name = 0;
  std::uint64_t content = 0;
  check(hvdlite_request_hashes(requests.data(), &name, &content));
  return nb::make_tuple(name, content);
}

int accumulator_of(int dtype, int op) {
  int accumulator = 0;
  check(hvdlite_accumulator_of(dtype, op, &accumulator));
  return accumulator;
}

void test_kernel(int which, int isa, int dtype, int op, Address out, Address lhs, Address rhs,
                 std::size_t n, double factor, std::int64_t divisor) {
  check(hvdlite_test_kernel(which, isa, dtype, op, reinterpret_cast<void*>(out),
                            reinterpret_cast<const void*>(lhs), reinterpret_cast<const void*>(rhs),
                            n, factor, divisor));
}

void test_fold(int isa, int dtype, int op, const std::vector<Address>& outputs,
               const std::vector<Address>& inputs, std::size_t n, double prescale, double postscale,
               std::int64_t divisor) {
  std::vector<void*> to;
  std::vector<const void*> from;
  for (Address address : outputs) to.push_back(reinterpret_cast<void*>(address));
  for (Address address : inputs) from.push_back(reinterpret_cast<const void*>(address));
  check(hvdlite_test_fold(isa, dtype, op, to.data(), static_cast<int>(to.size()), from.data(),
                          static_cast<int>(from.size()), n, prescale, postscale, divisor));
}

std::vector<bool> try_stores(const std::vector<double>& ordinary,
                             const std::vector<double>& streaming,
                             const std::vector<std::uint64_t>& kinds) {
  if (streaming.size() != ordinary.size() || kinds.size() != ordinary.size()) {
    throw nb::value_error("try_stores needs both costs and a kind for each tile");
  }
  std::vector<std::uint8_t> streamed(ordinary.size());
  check(hvdlite_try_stores(ordinary.size(), ordinary.data(), streaming.data(), kinds.data(),
                           streamed.data()));
  return {streamed.begin(), streamed.end()};
}

// One collective, as hvdlite_simulated, with the memory its pointers point to.
struct SimulatedStep {
  int kind;
  std::string algorithm;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::int64_t> counts;
  int dtype;
  int op;
  double prescale;
  double postscale;
  std::int64_t divisor;
  int root;
  int parts;

  SimulatedStep(int kind_, std::string algorithm_, const std::vector<Address>& inputs_,
                const std::vector<Address>& outputs_, std::vector<std::int64_t> counts_, int dtype_,
                int op_, double prescale_, double postscale_, std::int64_t divisor_, int root_,
                int parts_)
      : kind(kind_),
        algorithm(std::move(algorithm_)),
        counts(std::move(counts_)),
        dtype(dtype_),
        op(op_),
        prescale(prescale_),
        postscale(postscale_),
        divisor(divisor_),
        root(root_),
        parts(parts_) {
    inputs.reserve(inputs_.size());
    outputs.reserve(outputs_.size());
    for (Address address : inputs_) inputs.push_back(reinterpret_cast<const void*>(address));
    for (Address address : outputs_) outputs.push_back(reinterpret_cast<void*>(address));
  }
};

void simulate(int ranks, const std::vector<SimulatedStep>& steps, std::uint64_t seed, int isa,
              std::int64_t segment_bytes, std::int64_t tile_bytes, bool deterministic,
              const std::vector<int>& hosts) {
  if (!hosts.empty() && hosts.size() != static_cast<std::size_t>(ranks < 0 ? 0 : ranks)) {
    throw nb::value_error("simulate needs the number of a host for each rank, or none");
  }
  std::vector<hvdlite_simulated> given;
  given.reserve(steps.size());
  for (const SimulatedStep& step : steps) {
    const auto expected = static_cast<std::size_t>(ranks < 0 ? 0 : ranks) *
                          static_cast<std::size_t>(step.parts < 0 ? 0 : step.parts);
    if (step.inputs.size() != expected || step.outputs.size() != expected) {
      throw nb::value_error(
          "simulate needs one input and one output address for each part of each rank");
    }
    given.push_back({step.kind, step.algorithm.c_str(), step.dtype, step.op, step.prescale,
                     step.postscale, step.divisor, step.root, step.parts, step.counts.data(),
                     step.inputs.data(), step.outputs.data()});
  }
  int code = HVDLITE_OK;
  std::string message;
  {
    nb::gil_scoped_release release;
    code = hvdlite_simulate(ranks, hosts.empty() ? nullptr : hosts.data(), seed, isa, segment_bytes,
                            tile_bytes, deterministic ? 1 : 0, static_cast<int>(given.size()),
                            given.data());
    if (code != HVDLITE_OK) message = hvdlite_last_error();
  }
  if (code != HVDLITE_OK) raise_error(code, message);
}

}  // namespace

void register_testing(nb::module_& module) {
  module.def("dtype_names", &dtype_names,
             "Names of the dtype codes, in order (a test compares them with hvdlite.dtypes).");
  module.def("explore_ledger", &explore_ledger, "programs"_a, "closings"_a = 0,
             "broken_rule"_a = 0);
  module.def("request_hashes", &request_hashes, "request"_a,
             "The hashes of a request, a tuple of Engine.submit's arguments: of set and name, and "
             "of the content that ranks must agree on.");
  module.def("algorithms", &algorithms, "kind"_a);
  module.def("isa_supported", [](int isa) { return hvdlite_isa_supported(isa) != 0; }, "isa"_a);
  module.def("accumulator_of", &accumulator_of, "dtype"_a, "op"_a);
  module.def("test_kernel", &test_kernel, "which"_a, "isa"_a, "dtype"_a, "op"_a, "out"_a, "lhs"_a,
             "rhs"_a, "n"_a, "factor"_a = 1.0, "divisor"_a = 1);
  module.def("test_fold", &test_fold, "isa"_a, "dtype"_a, "op"_a, "outputs"_a, "inputs"_a, "n"_a,
             "prescale"_a = 1.0, "postscale"_a = 1.0, "divisor"_a = 1);
  module.def("try_stores", &try_stores, "ordinary"_a, "streaming"_a, "kinds"_a,
             "Which tiles would be streamed where handling them costs so many ns a byte.");
  nb::class_<SimulatedStep>(module, "SimulatedStep", "One collective for simulate().")
      .def_ro("algorithm", &SimulatedStep::algorithm)
      .def(nb::init<int, std::string, const std::vector<Address>&, const std::vector<Address>&,
                    std::vector<std::int64_t>, int, int, double, double, std::int64_t, int, int>(),
           "kind"_a, "algorithm"_a, "inputs"_a, "outputs"_a, "counts"_a, "dtype"_a = 10, "op"_a = 1,
           "prescale"_a = 1.0, "postscale"_a = 1.0, "divisor"_a = 1, "root"_a = 0, "parts"_a = 1);
  module.def(
      "simulate", &simulate, "ranks"_a, "steps"_a, "seed"_a = 0, "isa"_a = 0,
      "segment_bytes"_a = 262144, "tile_bytes"_a = 262144, "deterministic"_a = false,
      "hosts"_a = std::vector<int>{},
      "Steps the state machines of `ranks` ranks to completion in this thread, in an order drawn "
      "from seed; the collectives are started one after the other.");
}

}  // namespace hvdlite::python
