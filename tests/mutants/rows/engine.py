"""The engine: agreement, cache, ledger, groups and fusion, process sets, joins, stalls, failures."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "validate-first-rank",
        "the first rank's request is left out when requests are compared",
        "csrc/engine/negotiation/validate.cc",
        "  for (std::size_t i = 0; i < requests.size(); ++i) {\n    if (!requests[i]) continue;\n    std::string text",
        "  for (std::size_t i = 1; i < requests.size(); ++i) {\n    if (!requests[i]) continue;\n    std::string text",
        guards.MISMATCH,
    ),
    Mutant(
        "validate-place-for-rank",
        "a mismatch names places in the process set where it should name ranks",
        "csrc/engine/negotiation/validate.cc",
        "found->second.push_back(members[i]);",
        "found->second.push_back(static_cast<int>(i));",
        (*guards.MISMATCH, *guards.SETS),
    ),
    Mutant(
        "cache-name-is-enough",
        "the response cache takes a request for known by its name alone",
        "csrc/engine/negotiation/response_cache.cc",
        "if (!mine || !(*mine == request)) return std::nullopt;",
        "if (!mine) return std::nullopt;",
        guards.CACHE,
    ),
    Mutant(
        "cache-evicts-settled",
        "the line of a name that has just been decided may be given to another",
        "csrc/engine/negotiation/coordinator.cc",
        "if (tallies_.contains(victim) || settled_names_.contains(victim)) continue;",
        "if (tallies_.contains(victim)) continue;",
        guards.CACHE,
    ),
    Mutant(
        "ledger-absent",
        "a rank that announces nothing of its own is counted among those that contribute",
        "csrc/engine/negotiation/ledger.cc",
        "if (!absent) ++cell->contributors;",
        "++cell->contributors;",
        guards.LEDGER,
    ),
    Mutant(
        "riding-postscale",
        "an allreduce whose payload rides with its announcement is not scaled afterwards",
        "csrc/engine/negotiation/agreements.cc",
        "reduction.postscale, reduction.divisor);\n  entry.completion",
        "1.0, reduction.divisor);\n  entry.completion",
        guards.RIDING,
    ),
    Mutant(
        "stall-excuse-ignored",
        "the time for which a rank has excused itself counts as any other",
        "csrc/engine/membership/stall.cc",
        "answers ? std::min(still->age, answer->second->unexcused) : still->age",
        "still->age",
        guards.STALLS,
    ),
    Mutant(
        "stall-others-of-set",
        "a rank outside of the operation's process set is asked, too",
        "csrc/engine/membership/roster.cc",
        "for (const int member : members_of(request.set))",
        "for (int member = 0; member < size(); ++member)",
        guards.STALLS,
    ),
    Mutant(
        "heartbeat-away",
        "who did not run itself accuses the others of that time's silence",
        "csrc/engine/membership/heartbeat.cc",
        "    for (auto& [host, when] : heard_) when = now;",
        "",
        guards.HEARTBEAT,
    ),
)
