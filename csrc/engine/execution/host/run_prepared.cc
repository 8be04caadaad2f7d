// parts_of() and run_prepared() compute the sizes from this rank's request alone. This is correct because a prepared operation
// is agreed only if all members have equal requests, with the same rows and splits. So the sender, which cuts its input with
// parts_of(), and the receivers compute the same sizes.
//
// What parts_of() counts, if each member needs only a part of each input (Preparation::kParts):
//
//    kind            a member needs of each input          cut by
//    allreduce       the elements that it reduces for all  allreduce_parts()
//    reducescatter   the rows of its result                Extents::rows
//    alltoall        the rows that are sent to it          Extents::sent
#include "engine/execution/host/run_prepared.h"

#include "engine/execution/extents.h"

namespace hvdlite::engine {

using base::OpKind;

namespace {

// The sizes of an allgather, alltoall or reducescatter for which all members have equal requests.
Extents extents_of(const RequestPtr& request, const ProcessSet& set) {
  const int members = set.size();
  return {{{{request, members}}, sizes_of_equal(*request, members)}, set.index, members};
}

}  // namespace

std::vector<std::size_t> parts_of(std::span<const Entry> unit, const ProcessSet& set) {
  const RequestPtr& request = unit.front().request;
  if (request->kind == OpKind::kAllreduce) {
    const std::size_t element = base::size_of(request->dtype);
    std::size_t count = 0;
    for (const Entry& entry : unit) count += static_cast<std::size_t>(entry.request->elements());
    std::vector<std::size_t> parts = collectives::allreduce_parts(count, set.size(), element);
    for (std::size_t& part : parts) part *= element;
    return parts;
  }
  const Extents extents = extents_of(request, set);
  return extents.bytes(request->kind == OpKind::kAlltoall ? extents.sent : extents.rows);
}

// The output may be this rank's input tensor, because all inputs were copied when the operation was prepared.
void run_prepared(const collectives::PreparedInputs& inputs, const SharingSet& set,
                  const Entry& entry, OutputCache& outputs, kernels::Isa isa) {
  HVD_CHECK(inputs.members() == set.size());
  const Request& request = *entry.request;
  if (request.kind == OpKind::kAllreduce) {
    collectives::allreduce_prepared(
        inputs, set.shared.hosts.get(),
        {entry.input, entry.output, static_cast<std::size_t>(request.elements())},
        reduction_of(request, set.size()), isa);
    return;
  }
  if (request.kind == OpKind::kBroadcast) {
    collectives::broadcast_prepared(inputs,
                                    {entry.output, request.bytes(), set.index_of(request.root)});
    return;
  }
  const Extents extents = extents_of(entry.request, set);
  void* const output = extents.place(entry, outputs);
  if (request.kind == OpKind::kAllgather) {
    collectives::allgatherv_prepared(inputs, {nullptr, output, extents.bytes(extents.rows)});
  } else if (request.kind == OpKind::kAlltoall) {
    collectives::alltoallv_prepared(
        inputs, set.index,
        {nullptr, output, extents.bytes(extents.sent), extents.bytes(extents.rows)});
  } else {
    HVD_CHECK(request.kind == OpKind::kReducescatter);
    collectives::reducescatter_prepared(
        inputs, set.index,
        {nullptr, output, extents.elements(extents.rows), reduction_of(request, set.size())}, isa);
  }
}

}  // namespace hvdlite::engine
