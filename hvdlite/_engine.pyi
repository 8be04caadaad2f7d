"""Type stubs of the native module (csrc/bindings/python): the C ABI of hvdlite.h with Python's ownership rules.

Over 400 lines, because a native module has one stub file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from hvdlite.backends.base import Plain
from hvdlite.errors import HvdliteError
from hvdlite.process_sets import ProcessSet

__version__: str

@final
class Fabric:
    """In-process ranks for tests: engines made on one Fabric talk to each other inside this process."""

    def __init__(self, size: int, hosts: Sequence[int] | None = None) -> None: ...
    def kill(self, rank: int) -> None: ...

@final
class GpuMemory:
    """Memory on a GPU, which is freed when nothing refers to it any more."""

    @property
    def address(self) -> int: ...
    @property
    def device(self) -> int:
        """The GPU's number."""
    @property
    def nbytes(self) -> int: ...

@final
class Result:
    """The result of an ended operation."""

    @property
    def contributors(self) -> int: ...
    @property
    def last_joined_rank(self) -> int: ...
    @property
    def process_set(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def received_splits(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int:
        """Where the engine-allocated output is; -1: host memory."""
    def copy_to(self, pointer: int, stream: int) -> None:
        """Copies the engine-allocated output on a GPU to memory of another owner there.

        That is done in the order of a CUDA stream, which comes after the operation (`Engine.wait`).
        """
    @property
    def data(self) -> memoryview:
        """The engine-allocated output as writable bytes that free themselves (numpy.frombuffer makes an array of it)."""

class Work:
    """The operations in flight after one submission. It keeps their memory.

    If a work is dropped with operations in flight, the engine keeps it until they have ended. After a failure that leaves
    memory in use, its memory is kept for good.
    """

    _finish: Any  # the memory; `hvdlite.handles.Handle` says more of these
    _engine: Engine | None
    _on_gpu: Any
    _error: Any
    _grouped: bool
    @property
    def number(self) -> int:
        """The engine's number for it; 0 before the submission."""
    @property
    def size(self) -> int:
        """How many operations it has."""
    def poll(self) -> bool:
        """Have all operations ended, with or without a failure?"""
    def wait(self, limit: float = float("inf"), streams: Sequence[int] = ()) -> None:
        """Waits until they have, driving progress, and handles signals.

        After `limit` seconds TimeoutError leaves them in flight, as does any other exception. streams: CUDA streams whose later
        work comes after them, where they are in GPU memory.
        """
    def results(self) -> list[Any]:
        """How each operation ended, once all have: a Result or the failure. Always the same list.

        It has None for results that were dropped.
        """
    def result(self, limit: float = float("inf"), streams: Sequence[int] = ()) -> Result:
        """Waits for the only operation: its Result, or raises its failure."""
    def _outputs(self, limit: float) -> Any:
        """Waits for operations on plain tensors that the engine has described, for at most `limit` seconds.

        Returns:
            The output, or a list of a group's; the same if asked again. Or NotImplemented: the work is another one, or an
            operation failed.

        Raises:
            TimeoutError: the time is over; nothing has changed.
        """

@final
class Arena:
    """One rank's part of memory that all members of a process set map; a writable buffer of its bytes."""

    @property
    def address(self) -> bytes:
        """The address with which other members map this part; plain bytes."""
    @property
    def id(self) -> int:
        """The arena's number in requests; 0 while it is not open."""
    @property
    def nbytes(self) -> int: ...
    def open(self, addresses: Sequence[bytes]) -> None:
        """Maps all parts, whose addresses come in the order of the set's ranks."""
    def hide(self) -> None:
        """Called after all members have tried to open it: no other process can then."""
    def close(self) -> None:
        """Lets the others' parts go; requests may not name the arena any more."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def stream_copy(to: int, source: int, nbytes: int) -> None:
    """Copies memory, by address, past the caches."""

def digest(address: int, nbytes: int) -> int:
    """A 64-bit digest of the memory's content."""

@final
class Engine:
    """One rank's engine. Every method releases the GIL while it waits."""

    @staticmethod
    def create_inproc(fabric: Fabric, rank: int, config: Mapping[str, Any]) -> Engine: ...
    @staticmethod
    def create_mpi(shim_path: str, comm_address: int, config: Mapping[str, Any], takes_comm: bool = False) -> Engine: ...
    def make_current(self) -> None:
        """Gives this engine to the kernels of frameworks, until it shuts down."""
    @property
    def topology(self) -> tuple[int, int, int, int, int, int, bool]:
        """(rank, size, local_rank, local_size, cross_rank, cross_size, is_homogeneous)."""
    def submit(
        self,
        requests: Sequence[tuple[Any, ...]],
        memory: object = None,
        wake: bool = True,
        work: Work | None = None,
    ) -> Work:
        """Submits requests, all or nothing, and returns the work that is in flight then.

        Each is a tuple, as `hvdlite.requests.Request`, whose trailing items may be missing. A pointer may also be a
        C-contiguous object with the buffer protocol, which the caller keeps until the end. A request without a name is named
        by its number among the unnamed ones of its kind on its set, which is used up if the requests are accepted; unnamed
        requests without a group whose group_size is their number form one.

        Args:
            requests: if there are none, nothing is submitted, and the work may be given for a later submission.
            memory: what a new work keeps.
            wake: wake the engine thread, because no thread is about to wait.
            work: that is in flight then; without, a new one. No signal handler runs between the submission and this.
        """
    def prepare(self, requests: Sequence[tuple[Any, ...]]) -> int:
        """Checks allreduces that will be submitted together many times, and returns the group's id.

        They are tuples as for submit, whose pointers do not count, except that the output pointer of one that names an
        arena is its place there; what is submitted from elsewhere is reduced like any other tensor.
        """
    def submit_prepared(
        self,
        group: int,
        pointers: Sequence[int],
        absent: Sequence[int] = (),
        wake: bool = True,
        streams: Sequence[int] = (),
        memory: object = None,
        weight: float = 0.0,
    ) -> Work:
        """Submits a prepared group in place, with one pointer for each request.

        absent: numbers of the requests for which this rank has no value. streams: of GPU memory, those in whose order it is
        used again; the first is that of the submission. weight: of a group of weighted requests.
        """
    def release_prepared(self, group: int) -> None: ...
    def wait_many(self, works: Sequence[Work], outcomes: list[int | HvdliteError], streams: Sequence[int] = ()) -> bool:
        """Waits for all operations of these works, as Work.wait does, and takes their outcomes.

        Adds for each operation the number of its contributors, or its failure. Returns whether all went well. For operations
        without output of the engine's. No signal handler runs between the end and this: an exception leaves all in flight.
        """
    @property
    def dropped_in_flight(self) -> int:
        """The number of operations in flight whose work was dropped.

        The engine keeps their memory until they have ended and something else is submitted.
        """
    def connect(self, plain_of: Callable[[Any], Plain | None], work_type: type[Work] | None = None) -> None:
        """Enables the functions below: gives them the types' descriptions, and the type of works if any are to be started."""
    def allreduce(
        self,
        tensor: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        in_place: bool,
        blocking: bool,
    ) -> Any:
        """The output of an allreduce of a plain tensor, which is the tensor if in place; if not blocking, the work in flight.

        The work is made without its __init__. It keeps both tensors until the operation has ended; its `_finish` gives the
        output, after telling the framework of a tensor that was written to.

        None, and nothing was submitted, where anything about the call is unusual: an argument is wrong or of an uncommon type,
        or the engine cannot use the tensor's memory (it is not dense in row-major order, not aligned, not writable, not on the
        host, or of another dtype).
        """
    def allreduce_group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        in_place: bool,
        wake: bool,
    ) -> Any:
        """Submits those of a list or tuple as one group of this name, and returns the work in flight; or None."""
    def broadcast(
        self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool
    ) -> Any:
        """As allreduce."""
    def new_shape(
        self,
        kind: int,
        tensor: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Any:
        """The output of an allgather or a reducescatter; None as for allreduce."""
    def message(
        self,
        kind: int,
        tensor: Any,
        peer: int | None,
        tag: int | None,
        name: str | None,
        process_set: ProcessSet,
        blocking: bool,
    ) -> Any:
        """The tensor, once it has been sent to that rank or received from it, or the work in flight; None as for allreduce."""
    def messages(self, kinds: list[int], operations: Sequence[Any], process_set: ProcessSet) -> Any:
        """Posts messages together, each a tuple like `P2POp`: the work in flight; None as for allreduce."""
    def new_output(self, nbytes: int) -> memoryview:
        """Memory for a result, as writable bytes; large blocks are recycled when they are no longer used."""
    def new_gpu_output(self, gpu: int, stream: int, nbytes: int) -> GpuMemory:
        """Memory for a result on a GPU, usable in the order of a CUDA stream."""
    def gpu_of_address(self, address: int) -> int:
        """The GPU in whose memory an address lies; -1: host memory."""
    def process_set_ids(self) -> list[int]: ...
    def process_set_ranks(self, process_set: int) -> list[int]: ...
    def create_arena(self, process_set: int, nbytes: int, kind: str = "memfd") -> Arena:
        """This rank's part of an arena for a process set, all zeros."""
    def start_timeline(self, path: str, max_bytes: int, mark_cycles: bool = False) -> None:
        """Traces this rank's operations into a file in Chrome's format, from now on."""
    def stop_timeline(self) -> None:
        """Completes the file of start_timeline."""
    def await_question(self) -> bool:
        """Waits until another rank asks where this one is: True, and answer_question answers.

        False when the engine has shut down. For one thread.
        """
    def answer_question(self, text: str) -> None: ...
    def exempt_from_stalls(self, seconds: float) -> None:
        """For this time the other ranks wait for this one without a warning; 0: no longer."""
    def publish_failure(self, cause: str) -> None: ...
    @property
    def failure_cause(self) -> str: ...
    def flight_record(self, ended: int = -1) -> str: ...
    def counters(self) -> dict[str, int]:
        """Totals since the engine was made; hvdlite_counters in hvdlite.h describes them."""
    def lateness(self) -> tuple[list[int], list[int]]:
        """Of each rank: how many operations it was the last to ask for, and the nanoseconds that this one waited until then."""
    def shutdown(self) -> None: ...

@final
class Job:
    """The processes of a communicator where there is no engine."""

    def __init__(self, shim_path: str, comm_address: int, takes_comm: bool = False) -> None:
        """Collective over the communicator, but does not wait. Call `wait` until it returns True."""
    def wait(self, seconds: float) -> bool:
        """True once all have come.

        Raises:
            PeerLostError: one of them has failed.
            OperationTimeoutError: patience is at its end.
        """
    def set_limits(self, patience: float, silence: float) -> None:
        """In seconds; 0 for none."""
    def gather(self, mine: bytes, bounded: bool) -> None:
        """Begins an allgather, which `wait` ends."""
    def values(self, size: int) -> list[bytes]:
        """The values of the last gather, by rank."""
    def tell(self, cause: str) -> None:
        """Tells those that wait here why this process ends."""
    def kill_stopped(self) -> None:
        """Ends the processes of this host that are stopped."""
    def close(self) -> None:
        """Called before MPI ends: stops watching."""

def speak_at_sigterm(rank: int, size: int, has_shut_down: bool = False) -> None:
    """From now on SIGTERM makes this process print its last operations before it ends, if nothing else handles it.

    Args:
        rank: of this process, for the log.
        size: of the job.
        has_shut_down: the program has no engine because of that, and not because it is in init().
    """

def set_error_classes(classes: Mapping[int, type[BaseException]]) -> None:
    """Installs the exception class for each error code (hvdlite.errors does)."""

def cuda_version(libraries: str) -> tuple[int, int]:
    """The CUDA version that the driver knows (13000 for 13.0) and the number of GPUs; raises UnsupportedError."""

def nccl_version(libraries: str) -> int:
    """NCCL's version code (22703 for 2.27.3); raises UnsupportedError."""

def config_fields() -> dict[str, Any]:
    """The engine's knobs and their native defaults (a test compares them with hvdlite.config)."""

class GradientState:
    """The state of one parameter's gradient (hvdlite.torch.parameter_gradient.ParameterGradient)."""

    param: Any
    reduced_part: Any
    place: Any
    sparse_dim: int | None
    bucket: int
    stamp: int
    dirty: bool
    filled: bool
    fresh: bool
    def forget(self) -> None:
        """The user has reset the gradient."""
    def is_zero(self) -> bool:
        """Is .grad as the reset has left it?"""
    def move_in(self) -> None:
        """Offers the gradient its place, once."""
    def claim(self) -> None:
        """Counts .grad as this rank's own gradient, for any origin."""

class Passes:
    """The counts of one optimizer's backward passes."""

    passes_per_step: int
    suspended: int
    """How many no_sync() we are in."""
    @property
    def running(self) -> bool:
        """Do hooks of a pass run?"""
    @property
    def unsettled(self) -> bool:
        """Is something owed or in flight?"""
    @property
    def local_gradients(self) -> bool:
        """Were passes not reduced yet?"""
    @property
    def turn(self) -> int:
        """Reductions since the last step or reset."""
    def launched(self, bucket: int) -> None:
        """The bucket is launched in this pass."""
    def settled(self) -> None:
        """Nothing is in flight any more."""
    def forget_additions(self) -> None:
        """Gradients that were added after a launch are not reduced separately."""
    def begin_by_hand(self) -> None:
        """A pass begins without a backward."""
    def start_step(self) -> None:
        """Counts passes and reductions anew."""
    def reset(self) -> None:
        """The gradients were reset, also those that were not reduced."""

class PassDriver(Passes):
    """The work of the hooks of one optimizer's parameters; hvdlite.torch.reducer.Reducer has the methods that it calls."""

    def __init__(self, current_task: Callable[[], int], is_nested: Callable[[bool], bool]) -> None: ...
    @property
    def buckets(self) -> list[Any]:
        """Those of the plan; none without one."""
    lock: Any
    """Keeps hooks of several threads apart; None: they have one thread."""
    def task_ended(self, stamp: int) -> None:
        """The pass is over: backward() returns when this has."""
    def task_left(self, stamp: int) -> None:
        """A nested task is over; the task around it is current now."""
    def task_lost(self, stamp: int) -> None:
        """The task is gone without its callback: sends gradients that others may wait for, and does not wait itself."""
    def reduce(self, strict: bool) -> None:
        """Reduces all gradients of this rank that were not, and waits for those in flight."""
    def settle(self) -> None:
        """Does what the end of the last pass has left undone. Usually nothing."""
    def set_plan(self, made: list[Any]) -> None:
        """Counts gradients in these buckets (hvdlite.torch.in_flight.Bucket)."""
    def drop_plan(self) -> None:
        """There are no buckets any more."""

@final
class GradientHook:
    """A hook of one parameter, which autograd calls before or after it adds to the gradient."""

    def __init__(self, reducer: PassDriver, gradient: GradientState, after: bool) -> None: ...
    def fetch_ahead(self, objects: Sequence[object], /) -> None:
        """When the hook is called, it has the processor fetch these, which will be read soon. It keeps only addresses."""
    def __call__(self, tensor: Any, /) -> None: ...

@final
class Sent:
    """The sent members of a bucket: a sequence of hvdlite.torch.in_flight.Item."""

    @property
    def absent(self) -> list[int]:
        """The numbers of members without a gradient here."""
    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def to_store(self, first: int, outcomes: Sequence[Any]) -> list[int]:
        """The numbers of items, from the first on, that failed or whose results have to be copied to their gradients.

        The others are filled. outcomes: as `Engine.wait_many` gives them.
        """

@final
class Gatherer:
    """Finds the addresses of a bucket's gradients, or has torch make the memory to send for them."""

    def __init__(
        self,
        gradients: Sequence[Any],
        forms: Sequence[Any],
        type: type,
        plain: Plain | None,
        strided: Any,
        wire_of: Callable[[Any, Any, Any], tuple[Any, Any]],
    ) -> None:
        """plain: of tensors of this type; strided: torch's layout.

        wire_of(gradient, form, grad) gives memory to send in the place of a gradient, or of none, and what decoding needs.
        """
    def gather(self) -> Sent:
        """The members to send."""

def launch(
    engine: Engine,
    reducer: PassDriver,
    bucket: int,
    group: int,
    sent: Sent,
    wake: bool,
    streams: Sequence[int],
    weight: float,
    works: list[Work],
) -> None:
    """Submits a bucket's prepared group as `Engine.submit_prepared`.

    The work, which keeps what was sent, is added to the list, the gradients are dirty no longer, and the bucket is launched
    in the pass: all of that or, if this raises, nothing.
    """
