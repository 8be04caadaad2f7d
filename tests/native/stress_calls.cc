#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stress.h"

namespace stress {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "stress: %s (last error: %s)\n", what.c_str(), hvdlite_last_error());
  std::abort();
}

hvdlite_request request_for(Kind kind, const std::string& name, int process_set,
                            const int64_t& count, const void* input, void* output) {
  hvdlite_request request;
  std::memset(&request, 0, sizeof(request));
  request.kind = kind;
  request.dtype = kFloat32;
  request.op = kSum;
  request.process_set = process_set;
  request.device = HVDLITE_DEVICE_CPU;
  request.name = name.c_str();
  request.ndim = 1;
  request.shape = &count;
  request.input = input;
  request.output = output;
  request.prescale = request.postscale = 1.0;
  request.group = "";
  return request;
}

int64_t submit(hvdlite_engine* engine, const hvdlite_request& request) {
  hvdlite_submission what{};
  what.requests = &request;
  what.count = 1;
  what.wake = 1;
  return submit(engine, what);
}

int64_t submit(hvdlite_engine* engine, const hvdlite_submission& what) {
  int64_t work = 0;
  return hvdlite_submit(engine, &what, &work) == HVDLITE_OK ? work : -1;
}

int64_t submit(hvdlite_engine* engine, Kind kind, const std::string& name, int process_set,
               int64_t count, const void* input, void* output) {
  return submit(engine, request_for(kind, name, process_set, count, input, output));
}

int wait(hvdlite_engine* engine, int64_t work) {
  int done = 0;
  int code = HVDLITE_OK;
  while (done == 0 && code == HVDLITE_OK) code = hvdlite_wait(engine, &work, 1, 0.05, &done);
  return code;
}

hvdlite_result result_of(hvdlite_engine* engine, int64_t work) {
  hvdlite_result result;
  size_t count = 0;
  expect(hvdlite_results(engine, work, &result, 1, &count) == HVDLITE_OK && count == 1,
         "no result");
  return result;
}

}  // namespace stress
