"""Process sets: subsets of the ranks that run collectives among themselves."""

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.requests import KIND_NAMES, Kind, Request, tensor_name
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Result

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """A set of ranks. It can be used once it is registered: through `hvdlite.init` or `add_process_set`.

    Args:
        ranks_or_comm: ranks in any order, or an mpi4py communicator of the members.

    Attributes:
        process_set_id: the engine's number for the set; None while the set is not registered.
        member_id: process_set_id if this process is a member, otherwise None.
        ranks: the members' ranks in the job, ascending; None for a set made from a communicator, until the set is registered.
        mpi_comm: the communicator from which the set was made, or None.

    Raises:
        InvalidArgumentError: `ranks_or_comm` is neither a list of ranks nor a communicator.
    """

    process_set_id: int | None = None
    member_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        self._place: int | None = None  # of this rank among the members
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self.ranks = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(
                "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
            ) from None

    def size(self) -> int | None:
        """The number of members; None while the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's place among the members; None while the set is not registered.

        Raises:
            InvalidArgumentError: this process is not a member.
        """
        if self.process_set_id is None:
            return None
        if self._place is None:
            raise InvalidArgumentError("Process is not part of provided process set.")
        return self._place

    def included(self) -> bool | None:
        """Is this process a member? None while the set is not registered."""
        return None if self.process_set_id is None else self._place is not None

    def require_member(self, kind: int) -> int:
        """The id of the set. `kind` is the kind of the operation, which error texts name.

        Raises:
            InvalidArgumentError: the set is not registered, or this process is not a member.
        """
        if self.process_set_id is None:
            raise InvalidArgumentError(
                f"{KIND_NAMES[kind].capitalize()}: Process set provided does not exist, or has not been registered. ({self}: "
                "pass it to hvdlite.init or hvdlite.add_process_set first)"
            )
        if self._place is None:
            raise InvalidArgumentError(
                f"{KIND_NAMES[kind].capitalize()}: Rank {RUNTIME.require_topology().rank} is not a member of the provided "
                f"process set. ({self}: call it on these ranks only; included() says whether this is one)"
            )
        return self.process_set_id

    def _bind(self, process_set_id: int, ranks: Iterable[int]) -> None:
        self.process_set_id = process_set_id
        self.ranks = list(ranks)
        own = RUNTIME.require_topology().rank
        self._place = self.ranks.index(own) if own in self.ranks else None
        self.member_id = None if self._place is None else process_set_id

    def _invalidate(self) -> None:
        self.process_set_id = self.member_id = None
        self._place = None

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__

    # An object that holds a set, such as a model with its layers, can be copied and pickled. A copy uses the same set. An
    # unpickled object uses the set that the unpickling process has registered for these ranks.

    def __deepcopy__(self, memo: Any) -> "ProcessSet":
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        return set_of_ranks, (self.ranks or [],)


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job: always set 0."""

    member_id = 0

    def __init__(self) -> None:
        super().__init__([])
        self.ranks = None

    def require_member(self, kind: int) -> int:
        """Returns 0. It need not check: `Runtime.require` raises an error if hvdlite is not initialised."""
        return 0

    def __reduce__(self) -> str:
        """Copies and pickles give the same object, because functions recognise the global set by its identity."""
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet()

_bound: list[ProcessSet] = []  # the sets with an id; removal and shutdown take it away


def set_of_ranks(ranks: Iterable[int]) -> ProcessSet:
    """The registered set of these ranks, given in any order; else the global set if it has these ranks; else a new set.

    A new set is not registered.
    """
    made = ProcessSet(ranks)
    return next((bound for bound in (*_bound, global_process_set) if bound.ranks == made.ranks), made)


def root_of(process_set: ProcessSet) -> int:
    """The root that error texts propose: the first rank of the process set, numbered in the whole job."""
    return process_set.ranks[0] if process_set.ranks else 0


def root_arguments(process_set: ProcessSet) -> str:
    """For error texts: the arguments of a broadcast from the first rank of a process set to its ranks."""
    return f"root_rank={root_of(process_set)}" + (", process_set=process_set" if process_set.process_set_id else "")


def counter_of_ranks(process_set: ProcessSet) -> str:
    """For error texts: the name of the object whose `size` and `rank` count the ranks of a process set."""
    return "process_set" if process_set.process_set_id else "hvd"


def process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Ids of the registered sets and the ranks of their members, the global set (0) included.

    Raises:
        NotInitializedError: hvdlite is not initialised.
    """
    engine = RUNTIME.require()
    return {number: list(engine.process_set_ranks(number)) for number in engine.process_set_ids()}


def add_process_set(process_set: "ProcessSet | Sequence[int]") -> ProcessSet:
    """Registers a set while hvdlite is initialised. Collective over all ranks, members or not, with the same set on all.

    Several sets may have the same ranks: their operations are independent.

    Args:
        process_set: an unregistered `ProcessSet` of ranks, or the ranks.

    Returns:
        The set, with its id.

    Raises:
        InvalidArgumentError: the set has no rank, a rank is not in this job or is named twice, or this object is registered
            already. Only with the knob horovod_rules: the knob dynamic_process_sets is off, or another set has the same
            members.
        MismatchError: the ranks of the job asked for different sets, or some ranks wait in `join`.
        UnsupportedError: the set was made from a communicator.
    """
    RUNTIME.require()
    _require_dynamic("adding")
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.ranks is None or added.mpi_comm is not None:
        raise UnsupportedError(
            "Dynamically adding process sets defined by an MPI communicator is not implemented. Please build the process set "
            "via a list of ranks. (hvdlite.init registers those made from a communicator)"
        )
    _check_ranks(added.ranks)
    if added.process_set_id is not None or (RUNTIME.config.horovod_rules and _number_of(added.ranks) is not None):
        raise InvalidArgumentError(
            f"Attempted to add a duplicate process set: {added} (use the set that there is; hvdlite.ProcessSet(ranks) makes an "
            "object for a second one, which the knob HVDLITE_HOROVOD_RULES=0 allows)"
        )
    _register(added)
    return added


def process_set_among(ranks: Sequence[int]) -> ProcessSet:
    """The set of these ranks; registers it if needed. Collective over its members; other ranks do not call it.

    This function is for doors whose framework tells only the members about a new group (`hvdlite.torch.distributed`). So it
    works even if the knob horovod_rules forbids new process sets.

    Args:
        ranks: the members' ranks, ascending; this rank is one of them.

    Raises:
        InvalidArgumentError: a rank is not in this job.
    """
    members = list(ranks)
    _check_ranks(members)
    number = _number_of(members)
    if number is None:
        # The request has a name, because unnamed requests are numbered, and the other ranks do not count this operation.
        name = tensor_name(Kind.ADD_PROCESS_SET, f"among {members}")
        request = Request(Kind.ADD_PROCESS_SET, name, root=1, splits=members)
        number = _change(request).process_set
    # One object for each set: a program may make groups of the same ranks without end.
    bound = (*_bound, global_process_set)
    found = next((each for each in bound if each.process_set_id == number), None) or ProcessSet(members)
    _keep(found, number, members)
    return found


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a registered set. Collective over all ranks, members or not.

    Waits for the operations that this rank has submitted to the set; their handles stay valid. A set that is added
    later may get the id of the removed set; ids are reused in the order in which they were freed.

    Args:
        process_set: the set, the same on all ranks.

    Returns:
        True if the set was removed. False for the global set and for a set that is not registered, which stay unchanged.

    Raises:
        InvalidArgumentError: `process_set` is not a process set; or the knob horovod_rules is on, and the knob
            dynamic_process_sets is off.
        MismatchError: the ranks of the job named different sets, or some ranks wait in `join`. The set stays registered.
        OperationTimeoutError: an operation on the set waits for a rank that already waits in this call. The set stays
            registered.
    """
    RUNTIME.require()
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"remove_process_set({process_set!r}): pass the object that add_process_set returned")
    _require_dynamic("removing")
    removed = process_set.process_set_id
    if removed is None or process_set is global_process_set:
        return False
    RUNTIME.wait_for_doors()
    _change(Request(Kind.REMOVE_PROCESS_SET, None, root=removed))
    for bound in [bound for bound in _bound if bound.process_set_id == removed]:
        bound._invalidate()
        _bound.remove(bound)
    return True


def _require_dynamic(doing: str) -> None:
    if RUNTIME.config.horovod_rules and not RUNTIME.config.dynamic_process_sets:
        raise InvalidArgumentError(
            f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {doing} process sets after Horovod initialization. (or "
            'HVDLITE_DYNAMIC_PROCESS_SETS=1, or call hvdlite.init(process_sets="dynamic"))'
        )


def _check_ranks(ranks: list[int]) -> None:
    size = RUNTIME.require_topology().size
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < size for rank in ranks):
        raise InvalidArgumentError(f"a process set holds at least one rank of 0 to {size - 1}, each once, got {ranks}")


def _register(process_set: ProcessSet) -> None:
    """Collective over all ranks."""
    ranks = process_set.ranks or []
    result = _change(Request(Kind.ADD_PROCESS_SET, None, splits=ranks))
    _keep(process_set, result.process_set, ranks)


def _number_of(ranks: list[int]) -> int | None:
    """The id of the registered set with these members; the lowest if there are several."""
    return next((number for number, members in process_set_ids_and_ranks().items() if members == ranks), None)


def _keep(process_set: ProcessSet, number: int, ranks: list[int]) -> None:
    """Gives the set its id, until removal or shutdown takes it away."""
    process_set._bind(number, ranks)
    if process_set not in _bound and process_set is not global_process_set:
        _bound.append(process_set)


def _change(request: Request) -> "Result":
    """Adds or removes a set."""
    return RUNTIME.require().submit((request,), wake=False).result()


# --- at init and shutdown -------------------------------------------------------------------------------------------


def bind_global(comm: Any) -> None:
    """Gives the global set all ranks of the job, and the communicator that `hvdlite.init` got, if any."""
    global_process_set._bind(0, range(RUNTIME.require_topology().size))
    global_process_set.mpi_comm = comm if hasattr(comm, "Get_group") else None


def register_initial(comm: Any, listed: Sequence[ProcessSet]) -> None:
    """Binds the global set (see `bind_global`), and registers the listed sets. Collective over all ranks.

    An entry made from a communicator may stand for different sets on different ranks, for example after a Split. hvdlite
    registers all these sets, and each rank's object becomes the set of which that rank is a member.

    Raises:
        InvalidArgumentError: the lists differ between ranks or contain a duplicate. All ranks get the same text.
    """
    bind_global(comm)
    topology = RUNTIME.require_topology()
    everyone = RUNTIME.communicator.allgather([_members(entry) for entry in listed])
    if len({len(entries) for entries in everyone}) > 1:
        counts = ", ".join(f"{len(entries)} on rank {rank}" for rank, entries in enumerate(everyone))
        raise InvalidArgumentError(f"the number of process sets given to init differs: {counts}; pass the same on all ranks")
    seen = [list(range(topology.size))]
    for index, entry in enumerate(listed):
        proposals = [entries[index] for entries in everyone]
        for members in _distinct(index, entry, proposals):
            if RUNTIME.config.horovod_rules and members in seen:
                raise InvalidArgumentError(
                    "Horovod could not be initialized because process_sets entry number "
                    f"{index} is a duplicate: {ProcessSet(members)} (leave it out, or set HVDLITE_HOROVOD_RULES=0)"
                )
            _check_ranks(members)
            seen.append(members)
            _register(entry if members == proposals[topology.rank][1] else ProcessSet(members))


def _members(entry: ProcessSet) -> tuple[bool, list[int]]:
    """Was the entry made from a communicator? And its ranks as this rank sees them (empty on a non-member)."""
    if entry.mpi_comm is None:
        return False, entry.ranks or []
    if not entry.mpi_comm:  # MPI.COMM_NULL
        return True, []
    group = entry.mpi_comm.Get_group()
    entry.ranks = sorted(group.Translate_ranks(range(group.size), RUNTIME.communicator.Get_group()))
    return True, entry.ranks


def _distinct(index: int, entry: ProcessSet, proposals: list[tuple[bool, list[int]]]) -> list[list[int]]:
    """The different sets that one entry stands for, in the order of the lowest rank that proposed each."""
    sets: list[list[int]] = []
    for from_communicator, members in proposals:
        if (members or not from_communicator) and members not in sets:
            sets.append(members)
    if len(sets) != 1 and not all(from_communicator for from_communicator, _ in proposals):
        found = ", ".join(f"{members} on rank {rank}" for rank, (_, members) in enumerate(proposals))
        raise InvalidArgumentError(f"process_sets entry number {index} differs: {found}; pass the same set on all ranks")
    return sets


def bind_existing(listed: Sequence[ProcessSet]) -> None:
    """Gives ids to the sets that a second `hvdlite.init` gets; it registers nothing.

    Raises:
        InvalidArgumentError: no registered set has the members of one of these sets.
    """
    for entry in listed:
        _, ranks = _members(entry)
        number = _number_of(ranks)
        if number is None:
            raise InvalidArgumentError(
                f"hvdlite is initialized already and {entry} is not registered; call hvdlite.add_process_set with it"
            )
        _keep(entry, number, ranks)


def forget_all() -> None:
    """Takes the ids of all sets away. Called at shutdown."""
    for bound in [*_bound, global_process_set]:
        bound._invalidate()
    _bound.clear()
    global_process_set.ranks = None
    global_process_set.mpi_comm = None
