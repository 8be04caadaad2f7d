"""Types and documentation of the native module (csrc/bindings/python): the C ABI of hvdlite.h with Python's ownership rules.

The native names have no docstrings at run time, so that each text exists once. (Over 400 lines, because a native module has one
stub file.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from hvdlite.backends.base import Plain
from hvdlite.errors import HvdliteError
from hvdlite.process_sets import ProcessSet

__version__: str

@final
class Fabric:
    """Joins ranks inside one process, for tests. Engines on one Fabric send their messages to each other in memory."""

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
        """The number of the GPU that holds the output, if the engine allocated the output; -1 for host memory."""
    def copy_to(self, pointer: int, stream: int) -> None:
        """Copies an output that the engine allocated on a GPU to other memory of the same GPU.

        Args:
            pointer: the address to copy to.
            stream: the CUDA stream in whose order the copy is made. `Work.wait` must have ordered it after the operation.
        """
    @property
    def data(self) -> memoryview:
        """An output that the engine allocated in host memory, as writable bytes. numpy.frombuffer makes an array of them.

        The memory is freed when nothing refers to it any more.
        """

class Work:
    """The operations in flight after one submission. A work keeps the memory of its operations.

    If the program drops a work whose operations are in flight, the engine keeps the work until they have ended. If an
    operation fails and the transport may still touch its memory, the memory is never freed.
    """

    _finish: Any  # keeps the memory; `hvdlite.handles.Handle` describes this and the following members
    _engine: Engine | None
    _on_gpu: Any
    _error: Any
    _grouped: bool
    @property
    def number(self) -> int:
        """The engine's number for this work; 0 before the submission."""
    @property
    def size(self) -> int:
        """The number of operations."""
    def poll(self) -> bool:
        """Have all operations ended, with or without a failure?"""
    def wait(self, limit: float = float("inf"), streams: Sequence[int] = ()) -> None:
        """Waits until all operations have ended. Meanwhile this thread makes the engine's passes, and Python handles signals.

        Args:
            limit: how many seconds to wait at most.
            streams: CUDA streams to order after the operations, if these are in GPU memory.

        Raises:
            TimeoutError: the time is over. The operations stay in flight, as after an exception of a signal handler.
        """
    def results(self) -> list[Any]:
        """A `Result` or the failure of each operation; None for a result that was dropped. Every call returns the same list.

        Raises:
            ValueError: the operations have not ended yet.
        """
    def result(self, limit: float = float("inf"), streams: Sequence[int] = ()) -> Result:
        """Waits as `wait` does, and returns the result of the only operation, or raises its failure.

        Raises:
            TimeoutError: the time is over. The operation stays in flight.
            ValueError: the work has several operations.
        """
    def _outputs(self, limit: float) -> Any:
        """Waits for operations whose tensors native code has described (`Engine.allreduce`), for at most `limit` seconds.

        Returns:
            The output, or a list with the outputs of a group. A later call returns the same. NotImplemented: native code has
            not described the tensors, or an operation failed.

        Raises:
            TimeoutError: the time is over. The operations stay in flight.
        """

@final
class Arena:
    """One rank's part of memory that all members of a process set map. It has the buffer protocol, for writing as well."""

    @property
    def address(self) -> bytes:
        """The bytes that the other members need to map this part."""
    @property
    def id(self) -> int:
        """The number by which requests name the arena; 0 while the arena is not open."""
    @property
    def nbytes(self) -> int: ...
    def open(self, addresses: Sequence[bytes]) -> None:
        """Maps the parts of all members. The addresses have the order of the set's ranks."""
    def hide(self) -> None:
        """Makes it impossible for other processes to map this part. Call it after all members have called `open`."""
    def close(self) -> None:
        """Unmaps the parts of the other members. Later requests must not name the arena."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def stream_copy(to: int, source: int, nbytes: int) -> None:
    """Copies `nbytes` bytes from the address `source` to the address `to` with stores that bypass the caches."""

def digest(address: int, nbytes: int) -> int:
    """A digest of 64 bits of the content of memory (csrc/base/digest.h)."""

@final
class Engine:
    """One rank's engine. Every method releases the GIL while it waits."""

    @staticmethod
    def create_inproc(fabric: Fabric, rank: int, config: Mapping[str, Any]) -> Engine: ...
    @staticmethod
    def create_mpi(shim_path: str, comm_address: int, config: Mapping[str, Any], takes_comm: bool = False) -> Engine: ...
    def make_current(self) -> None:
        """Makes this the engine that the native kernels for TensorFlow and JAX use, until it shuts down."""
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
        """Submits requests, and returns the work that is in flight then. If one request is refused, none is submitted.

        A request is a tuple with the items of `hvdlite.requests.Request`; the last items may be missing. In the place of a
        pointer it may have a C-contiguous object with the buffer protocol, which the caller keeps until the operation has
        ended. The engine names a request without a name: it counts the unnamed requests of each kind on each process set, and
        the name has that number. If no request has a name or a group, and the group_size of each is the number of requests,
        the requests form a group.

        Args:
            requests: if there are none, nothing is submitted, and `work` may be used for a later submission.
            memory: an object that a new work keeps until the operations have ended.
            wake: True wakes the engine thread. False: the caller is about to wait, and its thread makes the engine's passes.
            work: the work to use; None for a new one. No signal handler runs between the submission and the moment when this
                work is in flight.
        """
    def prepare(self, requests: Sequence[tuple[Any, ...]]) -> int:
        """Checks allreduces that will be submitted together many times, and returns the id of the prepared group.

        The requests are tuples as for `submit`, but their pointers are ignored. If a request names an arena, its output pointer
        is the tensor's place there. A tensor that is submitted from another address is reduced without the arena.
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
        notice: bool = False,
    ) -> Work:
        """Submits a prepared group. Each result replaces its input.

        Args:
            group: the id from `prepare`.
            pointers: the address of the tensor of each request.
            absent: the numbers of the requests for which this rank has no value.
            wake: as for `submit`.
            streams: for GPU memory, the CUDA streams in whose order the memory is used again. The first is the stream of the
                submission: its earlier work makes the inputs.
            memory: as for `submit`.
            weight: the weight of this rank's values, if the requests are weighted.
            notice: does this rank give notice with its weight? See HVDLITE_FLAG_NOTICE of hvdlite.h.
        """
    def release_prepared(self, group: int) -> None: ...
    def wait_many(self, works: Sequence[Work], outcomes: list[int | HvdliteError], streams: Sequence[int] = ()) -> bool:
        """Waits for all operations of these works, as `Work.wait` does, and takes their outcomes. Returns True if none failed.

        It is for operations whose outputs the engine has not allocated. If it raises, all operations are still in flight and
        `outcomes` is unchanged: no signal handler runs between the end of the wait and the change of the list.

        Args:
            works: works of this engine.
            outcomes: a list, which gets an item for each operation: the number of its contributors, or its failure.
            streams: as for `Work.wait`.
        """
    @property
    def dropped_in_flight(self) -> int:
        """The number of operations whose work was dropped in flight.

        The engine keeps their memory until they have ended and another operation is submitted.
        """
    def connect(self, plain_of: Callable[[Any], Plain | None], work_type: type[Work] | None = None) -> None:
        """Enables the following methods up to `messages`.

        Args:
            plain_of: a function that returns the description of a type of tensors; None if native code cannot read them.
            work_type: the class of the works that these methods return. None: they only do blocking calls.
        """
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
        """Reduces a plain tensor, one that native code can read (`Plain`). The arguments are those of `hvdlite.allreduce`.

        Args:
            in_place: is the tensor also the output?
            blocking: False: the method returns without a wait.

        Returns:
            The output; if not `blocking`, the work in flight. The work is made without a call of its ``__init__``. It keeps
            both tensors until the operation has ended, and its ``_finish`` returns the output, after it has told the framework
            that the tensor was written to.

            None if anything about the call is unusual. Then nothing was submitted. Either an argument is wrong or has an
            uncommon type, or the engine cannot use the tensor's memory, which must be in host memory, dense in row-major order,
            aligned, writable, and of a known dtype.
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
        """Submits allreduces of the plain tensors in a list or tuple as one group.

        Returns the work in flight; None in the cases in which `allreduce` returns None.
        """
    def broadcast(
        self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet, in_place: bool, blocking: bool
    ) -> Any:
        """Broadcasts a plain tensor. Returns the same as `allreduce`."""
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
        """The output of an allgather or a reducescatter of a plain tensor; None where `allreduce` returns None."""
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
        """Sends a plain tensor to a rank, or receives it. Returns the tensor, or what else `allreduce` may return."""
    def messages(self, kinds: list[int], operations: Sequence[Any], process_set: ProcessSet) -> Any:
        """Submits several sends and receives together. Each is a tuple like `P2POp`.

        Returns the work in flight; None in the cases in which `allreduce` returns None.
        """
    def new_output(self, nbytes: int) -> memoryview:
        """Memory for a result, as writable bytes. The engine uses large blocks again after they are freed."""
    def new_gpu_output(self, gpu: int, stream: int, nbytes: int) -> GpuMemory:
        """Memory for a result on a GPU. Later work in this CUDA stream may use it."""
    def gpu_of_address(self, address: int) -> int:
        """The number of the GPU that owns the memory at an address; -1 for host memory."""
    def process_set_ids(self) -> list[int]: ...
    def process_set_ranks(self, process_set: int) -> list[int]: ...
    def create_arena(self, process_set: int, nbytes: int, kind: str = "memfd") -> Arena:
        """Makes this rank's part of an arena for a process set. Its bytes are zero."""
    def start_timeline(self, path: str, max_bytes: int, mark_cycles: bool = False) -> None:
        """From now on writes a trace of this rank's operations to a file, in Chrome's format."""
    def stop_timeline(self) -> None:
        """Ends the trace that `start_timeline` began, and completes its file."""
    def await_question(self) -> bool:
        """Waits until another rank asks where this rank's program is, and returns True. `answer_question` sends the answer.

        Returns False when the engine has shut down. Only one thread may call this.
        """
    def answer_question(self, text: str) -> None: ...
    def exempt_from_stalls(self, seconds: float) -> None:
        """For so many seconds the other ranks wait for this rank without a warning. 0 ends the exemption."""
    def publish_failure(self, cause: str) -> None: ...
    @property
    def failure_cause(self) -> str: ...
    def flight_record(self, ended: int = -1) -> str: ...
    def counters(self) -> dict[str, int]:
        """Totals since the engine was made; hvdlite_counters in hvdlite.h describes them."""
    def lateness(self) -> tuple[list[int], list[int]]:
        """Two lists with an item for each rank.

        The first counts the operations that this rank asked for last. The second has the nanoseconds for which the calling rank
        waited for those operations.
        """
    def pause(self) -> None:
        """Waits until agreed operations have ended. Until `resume`, by the same thread, no thread of the engine calls MPI."""
    def resume(self) -> None: ...
    def shutdown(self) -> None: ...

@final
class Job:
    """The processes of a communicator while there is no engine (csrc/job/job.h)."""

    def __init__(self, shim_path: str, comm_address: int, takes_comm: bool = False) -> None:
        """Begins the first exchange, which introduces the processes to each other. Collective, but does not wait."""
    def wait(self, seconds: float) -> bool:
        """Waits for at most `seconds`. Returns True when the exchange has ended: all processes have sent their values.

        Raises:
            PeerLostError: one of the processes has failed.
            OperationTimeoutError: a process has sent nothing for longer than the limits of `set_limits`.
        """
    def set_limits(self, patience: float, silence: float) -> None:
        """Sets limits in seconds; 0 for no limit.

        Args:
            patience: for processes that are stopped or silent; in a bounded exchange for all processes.
            silence: for the next heartbeat of another host.
        """
    def gather(self, mine: bytes, bounded: bool) -> None:
        """Begins an exchange, an allgather of `mine`. `wait` ends it."""
    def values(self, size: int) -> list[bytes]:
        """The values of the last exchange, by rank."""
    def tell(self, cause: str) -> None:
        """Tells the waiting processes why this process ends."""
    def kill_stopped(self) -> None:
        """Ends the processes of this host that are stopped."""
    def close(self) -> None:
        """Ends the checks of the other processes. Call it before MPI ends."""

class Deadline:
    """Logs a line after some seconds and ends this process with exit code 1, unless `cancel` comes first. It needs no GIL.

    Args:
        seconds: the time from now.
        rank: the rank of this process, for the log.
        size: the number of ranks, for the log.
        text: the line.
        ends: False: the line is a warning, and the process goes on.
    """

    def __init__(self, seconds: float, rank: int, size: int, text: str, ends: bool = True) -> None: ...
    def cancel(self) -> None:
        """The process may go on."""

def speak_at_sigterm(rank: int, size: int, has_shut_down: bool = False) -> None:
    """From now on this process prints its last operations before SIGTERM ends it, if the program does not handle SIGTERM.

    Args:
        rank: the rank of this process, for the log.
        size: the number of ranks of the job.
        has_shut_down: True: the program has no engine because it has called shutdown(). False: it is in init().
    """

def set_error_classes(classes: Mapping[int, type[BaseException]]) -> None:
    """Sets the exception class for each error code. `hvdlite.errors` calls it."""

def cuda_version(libraries: str) -> tuple[int, int]:
    """The newest CUDA version that the driver supports (13000 for 13.0), and the number of GPUs.

    Raises:
        UnsupportedError: there is no driver that works.
    """

def nccl_version(libraries: str) -> int:
    """NCCL's version code (22703 for 2.27.3).

    Raises:
        UnsupportedError: no NCCL could be opened.
    """

def config_fields() -> dict[str, Any]:
    """The engine's knobs with their native defaults. A test compares them with `hvdlite.config`."""

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
        """Is ``.grad`` unchanged since the user's reset?"""
    def move_in(self) -> None:
        """Moves a fresh gradient to its place in an arena, once."""
    def claim(self) -> None:
        """Counts ``.grad`` as this rank's own gradient, even if the user has put it there."""

class Passes:
    """The counts of one optimizer's backward passes."""

    passes_per_step: int
    suspended: int
    """The number of no_sync() blocks around the running code."""
    @property
    def running(self) -> bool:
        """Do the hooks of a pass run?"""
    @property
    def unsettled(self) -> bool:
        """Is a launch still owed, or a bucket in flight?"""
    @property
    def local_gradients(self) -> bool:
        """Are there passes that were not reduced yet?"""
    @property
    def turn(self) -> int:
        """The number of reductions since the last step or reset."""
    def launched(self, bucket: int) -> None:
        """Notes that the bucket was launched in this pass."""
    def settled(self) -> None:
        """Notes that nothing is in flight any more."""
    def forget_additions(self) -> None:
        """Forgets that gradients were added to after their launch, so that no pass of their own sends them."""
    def begin_by_hand(self) -> None:
        """Begins a pass without a backward."""
    def start_step(self) -> None:
        """Begins to count passes and reductions from zero."""
    def reset(self) -> None:
        """Notes that all gradients were reset, including unreduced ones."""

class PassDriver(Passes):
    """Does what `Passes` decides for one optimizer's parameters. It calls methods of `hvdlite.torch.reducer.Reducer`."""

    def __init__(self, current_task: Callable[[], int], is_nested: Callable[[bool], bool]) -> None: ...
    @property
    def buckets(self) -> list[Any]:
        """The buckets of the plan; empty without a plan."""
    lock: Any
    """The lock that serializes hooks of several threads; None if all hooks run in one thread."""
    def task_ended(self, stamp: int) -> None:
        """Notes that the pass is over. backward() returns after this method has returned."""
    def task_left(self, stamp: int) -> None:
        """Notes that a nested task is over, and that the task around it is the current task again."""
    def task_lost(self, stamp: int) -> None:
        """Notes that a task has ended without its callback. Sends gradients that other ranks may wait for, without waiting."""
    def reduce(self, strict: bool) -> None:
        """Reduces all unreduced gradients of this rank, and waits for launched buckets."""
    def settle(self) -> None:
        """Does what the end of the last pass has left undone. Usually it has nothing to do."""
    def set_plan(self, made: list[Any]) -> None:
        """Sets the buckets of the plan (`hvdlite.torch.in_flight.Bucket`)."""
    def drop_plan(self) -> None:
        """Removes the plan and its buckets."""

@final
class GradientHook:
    """A hook of one parameter, which autograd calls before or after it adds to the gradient."""

    def __init__(self, reducer: PassDriver, gradient: GradientState, after: bool) -> None: ...
    def fetch_ahead(self, objects: Sequence[object], /) -> None:
        """From now on each call of the hook makes the processor fetch these objects into its caches.

        Code that runs soon after the hook reads them. The hook keeps only their addresses.
        """
    def __call__(self, tensor: Any, /) -> None: ...

@final
class Sent:
    """The sent members of a bucket: a sequence of hvdlite.torch.in_flight.Item."""

    @property
    def absent(self) -> list[int]:
        """The numbers of the members without a gradient on this rank."""
    def __len__(self) -> int: ...
    def __getitem__(self, place: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def to_store(self, first: int, outcomes: Sequence[Any]) -> list[int]:
        """The numbers of the items that failed, and of those whose results must be copied to their gradients.

        The other gradients have their results, and are marked as filled.

        Args:
            first: the number of the first item to look at.
            outcomes: the list from `Engine.wait_many`.
        """

@final
class Gatherer:
    """Finds the addresses of a bucket's gradients. Where a gradient cannot be sent as it is, torch makes the memory to send."""

    def __init__(
        self,
        gradients: Sequence[Any],
        forms: Sequence[Any],
        type: type,
        plain: Plain | None,
        strided: Any,
        wire_of: Callable[[Any, Any, Any], tuple[Any, Any]],
    ) -> None:
        """Makes the gatherer of one bucket.

        Args:
            gradients: the members of the bucket, in order.
            forms: the members' forms on the wire (`hvdlite.torch.parameter_gradient.WireForm`).
            type: the usual type of tensors.
            plain: the description of this type; None if native code cannot read its tensors.
            strided: torch's layout of dense tensors.
            wire_of: a function of gradient, form and ``.grad``. It returns memory to send for the gradient, which may be None,
                and the context for decoding.
        """
    def gather(self) -> Sent:
        """Collects what to send for all members."""

def launch(
    engine: Engine,
    reducer: PassDriver,
    bucket: int,
    group: int,
    sent: Sent,
    wake: bool,
    streams: Sequence[int],
    weight: float,
    notice: bool,
    works: list[Work],
) -> None:
    """Submits a bucket's prepared group, as `Engine.submit_prepared` does.

    It appends the work, which keeps the sent memory, to `works`. It marks the gradients as no longer dirty, and the bucket as
    launched in the pass. If it raises, it has changed nothing.
    """
