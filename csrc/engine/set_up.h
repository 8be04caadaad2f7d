// The settings of an engine's parts, made from the transport and the knobs.
// Thread: the one that makes the engine. Owns: nothing. Blocks: no. Throws: std::bad_alloc; selection_of throws
// Error(InvalidArgument) for algorithms that check_selection refuses, and for a kernel_isa that this processor lacks.
#pragma once

#include "base/config.h"
#include "collectives/select.h"
#include "engine/membership/membership.h"
#include "engine/model/output_cache.h"
#include "engine/negotiation/negotiation.h"
#include "transport/transport.h"

namespace hvdlite::engine {

collectives::Selection selection_of(const base::Config& config, const base::WaitPolicy& waiting);
std::shared_ptr<OutputCache> make_output_cache(transport::Transport& transport,
                                               const base::Config& config);
Roster roster_of(const transport::Transport& transport);
Membership::Limits limits_of(const base::Config& config);
Regions regions_of(transport::Transport& transport);
Negotiation::Settings settings_of(const transport::Transport& transport,
                                  const base::Config& config);

}  // namespace hvdlite::engine
