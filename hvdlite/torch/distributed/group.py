"""The methods that torch.distributed's functions call. They start the collectives and messages of hvdlite.

torch's collectives have no names: all ranks of a group call them in the same order. So each group numbers its collectives, and
the name that hvdlite negotiates contains the number and torch's name for the operation. If ranks call different operations, the
names differ, and deadlock detection says which rank waits for what. callbacks.py numbers the collectives that callbacks start.
A new group may have the name of a destroyed group. So each group also has a *generation*, its number among the groups of the
same ranks. The names of operations contain the generation, so the operations of the new group never match those of the
destroyed group. Messages from rank to rank have no numbers, because only two ranks know of them.

torch 2.13 has renamed some methods; these methods also have their old names here, for earlier versions. Over 400 lines, because
there is a method for each of torch's functions.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceCoalescedOptions, AllreduceOptions, ReduceOp, ReduceScatterOptions

from hvdlite import basics, ops, submission
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.handles import Handle
from hvdlite.point_to_point import irecv, isend
from hvdlite.process_sets import ProcessSet, global_process_set, process_set_among
from hvdlite.runtime import RUNTIME
from hvdlite.torch.distributed.callbacks import CallCounter, current_counter, origin, unnumbered
from hvdlite.torch.distributed.rendezvous import check_place
from hvdlite.torch.distributed.tensors import check_own_output, check_same_dtype, flat_of, split_into, target_for, writing
from hvdlite.torch.distributed.work import HvdliteWork
from hvdlite.torch.sparse import join_rows, rows_of

Tensor = torch.Tensor

_OPS = (
    (ReduceOp.SUM, ops.Sum),
    (ReduceOp.AVG, ops.Average),
    (ReduceOp.MIN, ops.Min),
    (ReduceOp.MAX, ops.Max),
    (ReduceOp.PRODUCT, ops.Product),
)
# Reductions that the engine does not have: each rank gathers all tensors and reduces them itself.
_BITWISE = ((ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or), (ReduceOp.BXOR, torch.bitwise_xor))


# For each list of ranks: how many groups of exactly these ranks were made since hvdlite.init(). All members of a group count
# the same number, because they make their groups in the same order.
_generations: Counter[tuple[int, ...]] = Counter()


def create_group(options: Any, backend_options: Any) -> "HvdliteProcessGroup":
    """Makes a group of all or some ranks. Collective over the members of the group; torch calls this function only on members.

    Args:
        options: torch's options, with the ranks and the name of the group.
        backend_options: the user's pg_options; must be None, because this backend has no options.

    Raises:
        InvalidArgumentError: `backend_options` is given, or torch's rank numbers differ from hvdlite's.
        UnsupportedError: the ranks of the group are not in ascending order.
    """
    if backend_options is not None:
        raise InvalidArgumentError(f"backend 'hvdlite' has no options: leave out pg_options={backend_options!r}")
    if not basics.is_initialized():
        basics.init()
    ranks = list(options.global_ranks_in_group)
    if ranks:
        if ranks != sorted(ranks):
            raise UnsupportedError(
                f"backend 'hvdlite' numbers the ranks of a group in ascending order, but got {ranks}: sort them"
            )
        check_place(ranks[options.group_rank], dist.get_world_size())
        process_set = process_set_among(ranks)
    else:
        check_place(options.group_rank, options.group_size)
        process_set = global_process_set
    if not _generations:
        RUNTIME.at_stop.append(_generations.clear)
    _generations[tuple(ranks)] += 1
    key = f"{options.group_id}.{_generations[tuple(ranks)]}"
    return HvdliteProcessGroup(process_set, options.group_rank, options.group_size, options.group_id, key, options.timeout)


# Any, because the overloads in torch's stubs differ between torch's versions.
_ProcessGroup: Any = dist.ProcessGroup


class HvdliteProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """A group of ranks. The functions of `torch.distributed` call its methods, which have similar names.

    Tensors are in host memory or on NVIDIA GPUs, contiguous or not. The methods for collectives and messages start an operation
    and return its `HvdliteWork`, whose `wait` raises the operation's error. If this rank can see without the other ranks that
    an argument is wrong, the call raises `InvalidArgumentError` (a ValueError) or `UnsupportedError` (a NotImplementedError).
    If outputs do not fit what the other ranks have sent, `wait` raises InvalidArgumentError.
    """

    def __init__(self, process_set: ProcessSet, rank: int, size: int, name: str, key: str, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._process_set = process_set
        self._name = name
        self._timeout = timeout
        self._key = key  # the group's name and generation
        self._program = CallCounter(key)
        self._end = ""  # how this rank has ended the group, in words

    # --- methods that torch requires of every group -----------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name of the backend."""
        return "hvdlite"

    name = getBackendName

    @property
    def group_name(self) -> str:
        """The name that torch gave the group, the same on all its ranks."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    set_timeout = _set_default_timeout

    def shutdown(self) -> None:
        """Makes the group refuse all later operations. Operations in flight go on, and hvdlite stays initialised."""
        self._end = self._end or "destroyed"

    def abort(self) -> None:
        """Like `shutdown`. Besides, threads of this rank that wait for an operation of the group get an `AbortedError`."""
        self._end = "aborted"

    def _is_aborted(self) -> bool:
        return self._end == "aborted"

    def __repr__(self) -> str:
        return f"<HvdliteProcessGroup {self._name!r}: rank {self.rank()} of {self.size()}, {self._process_set}>"

    # --- reductions -------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> HvdliteWork:
        """Reduces in place."""
        return self._allreduce("all_reduce", tensors, opts or AllreduceOptions())

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> HvdliteWork:
        """Reduces tensors in place, together."""
        return self._allreduce("all_reduce_coalesced", tensors, opts or AllreduceCoalescedOptions())

    def _allreduce(self, label: str, tensors: list[Tensor], opts: Any) -> HvdliteWork:
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors[0], opts)

        def start(name: str, op: int, factor: float) -> Handle:
            if len(tensors) == 1:
                return ops.allreduce_async_(tensors[0], None, name, op, factor, 1.0, self._process_set)
            return ops.grouped_allreduce_async_(tensors, None, name, op, factor, 1.0, self._process_set)

        return self._reduce(label, start, tensors, tensors, lambda whole: whole, None, opts)

    def _allreduce_sparse(self, tensor: Tensor, opts: Any) -> HvdliteWork:
        """Gathers all ranks' rows, and stores their sum or mean in the tensor."""
        op, factor = self._reduction("all_reduce", opts.reduceOp)
        if op not in (ops.Sum, ops.Average) or factor != 1.0:
            raise UnsupportedError("torch.distributed.all_reduce: a sparse tensor is reduced with SUM or AVG only")
        rows = rows_of(tensor.detach(), tensor, tensor.dtype, tensor.sparse_dim())
        divisor = self.size() if op == ops.Average else 1

        def finish(gathered: list[Tensor]) -> None:
            indices, values = gathered
            with writing([tensor]):
                tensor.copy_(join_rows(indices, values, tensor, divisor))

        return self._start(
            "all_reduce", lambda name: ops.grouped_allgather_async(rows, name, self._process_set), [tensor], finish, opts
        )

    def reduce(self, tensors: list[Tensor], opts: Any) -> HvdliteWork:
        """Reduces to the root, in place; the other ranks' tensors stay as they are."""
        (tensor,) = tensors
        is_root = opts.rootRank == self.rank()
        reduce = ops.allreduce_async_ if is_root else ops.allreduce_async

        def start(name: str, op: int, factor: float) -> Handle:
            return reduce(tensor, None, name, op, factor, 1.0, self._process_set)

        return self._reduce("reduce", start, tensors, tensors, (lambda whole: whole) if is_root else None, None, opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> HvdliteWork:
        """Reduces a list with one tensor for each rank. The tensors may differ in size. Each rank gets the reduced
        tensor at its own place in the list.
        """
        (output,), (parts,) = outputs, inputs
        opts = opts or ReduceScatterOptions()
        self._check_count("reduce_scatter", parts)
        check_own_output("reduce_scatter", parts[self.rank()], output)
        flat = flat_of(parts)
        if len({part.numel() for part in parts}) == 1:
            return self._reduce_rows("reduce_scatter", [output], [flat], opts)
        # hvdlite's reducescatter needs rows of the same size. So reduce all tensors, and take this rank's part.
        begin = sum(part.numel() for part in parts[: self.rank()])

        def own(reduced: Tensor) -> Tensor:
            return reduced.narrow(0, begin, output.numel())

        def start(name: str, op: int, factor: float) -> Handle:
            return ops.allreduce_async_(flat, None, name, op, factor, 1.0, self._process_set)

        def finish(reduced: Tensor) -> None:
            split_into("reduce_scatter", own(reduced), [output])

        return self._reduce("reduce_scatter", start, [flat], [output], own, finish, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> HvdliteWork:
        """Reduces a tensor, and cuts the result into equal parts: each rank gets the part at its own place."""
        return self._reduce_rows("reduce_scatter_tensor", [output], [input], opts or ReduceScatterOptions())

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> HvdliteWork:
        """`reduce_scatter_single` of several tensors, together."""
        return self._reduce_rows("reduce_scatter_tensor", outputs, inputs, opts or ReduceScatterOptions())

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_rows(self, label: str, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> HvdliteWork:
        rows = []
        for output, source in zip(outputs, inputs, strict=True):
            check_same_dtype(label, source, output)
            if source.numel() != output.numel() * self.size():
                raise InvalidArgumentError(
                    f"torch.distributed.{label}: the input has {source.numel()} elements, but {self.size()} ranks with outputs "
                    f"of {output.numel()} elements take {output.numel() * self.size()}"
                )
            rows.append(source.detach().reshape(self.size(), output.numel()))

        targets = [target_for(output, source, None) for output, source in zip(outputs, rows, strict=True)]

        def own(whole: Tensor) -> Tensor:
            return whole.reshape(self.size(), whole.numel() // self.size())[self.rank()]

        def start(name: str, op: int, factor: float) -> Handle:
            if op in (ops.Sum, ops.Average):  # hvdlite's reducescatter has no other operators
                return submission.reduce_scatter_group(rows, name, op, factor, 1.0, self._process_set, True, targets)
            return ops.grouped_allreduce_async(rows, None, name, op, factor, 1.0, self._process_set)

        def finish(results: list[Tensor]) -> None:
            for output, result in zip(outputs, results, strict=True):
                if result is not output:
                    split_into(label, own(result) if result.numel() > output.numel() else result, [output])

        return self._reduce(label, start, rows, outputs, own, finish, opts)

    # --- other collectives ------------------------------------------------------------------------------------------

    def broadcast(self, tensors: list[Tensor], opts: Any) -> HvdliteWork:
        """Gives all ranks the root's tensor, in place."""
        (tensor,) = tensors
        root = self._in_job(opts.rootRank)
        return self._start(
            "broadcast", lambda name: ops.broadcast_async_(tensor, root, name, self._process_set), tensors, None, opts
        )

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> HvdliteWork:
        """Gives all ranks every rank's tensor. The tensors may differ in size."""
        return self._allgather("all_gather", outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> HvdliteWork:
        """`allgather` of several tensors, together: ``outputs[rank][i]`` gets tensor ``i`` of that rank."""
        label = "all_gather_coalesced"
        self._check_count(label, outputs, "lists")
        for rank, parts in enumerate(outputs):
            if len(parts) != len(inputs):
                raise InvalidArgumentError(
                    f"torch.distributed.{label}: {len(parts)} outputs for what rank {rank} sends, but {len(inputs)} inputs; "
                    "give every rank's list one output for each input"
                )
        return self._allgather(label, [list(parts) for parts in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> HvdliteWork:
        """Gives all ranks every rank's tensor, one after the other in one output."""
        return self._allgather_rows([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> HvdliteWork:
        """`all_gather_single` of several tensors, together."""
        return self._allgather_rows(outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _allgather_rows(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> HvdliteWork:
        for output, source in zip(outputs, inputs, strict=True):
            check_same_dtype("all_gather_into_tensor", source, output)
            if output.numel() != source.numel() * self.size():
                raise InvalidArgumentError(
                    f"torch.distributed.all_gather_into_tensor: the output has {output.numel()} elements, but {self.size()} "
                    f"ranks send {source.numel()} each"
                )
        pairs = zip(outputs, inputs, strict=True)
        targets = [target_for(output, source, self.rank() * source.numel()) for output, source in pairs]
        return self._gather("all_gather_into_tensor", inputs, [[output] for output in outputs], targets, opts)

    def _allgather(self, label: str, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> HvdliteWork:
        for parts, source in zip(outputs, inputs, strict=True):
            self._check_count(label, parts)
            check_own_output(label, source, parts[self.rank()])
            for output in parts:
                check_same_dtype(label, source, output)
        return self._gather(label, inputs, outputs, None, opts)

    def _gather(
        self,
        label: str,
        inputs: list[Tensor],
        outputs: list[list[Tensor]],
        targets: Sequence[Tensor | None] | None,
        opts: Any,
    ) -> HvdliteWork:
        """Gathers all ranks' elements of each input into a list of outputs.

        `targets` has for each input the tensor in which the engine stores the gathered elements (see `target_for`), or None.
        """
        flat = [source.detach().reshape(-1) for source in inputs]

        def finish(results: list[Tensor]) -> None:
            for parts, result in zip(outputs, results, strict=True):
                if result is not parts[0]:
                    split_into(label, result, parts)

        return self._start(
            label,
            lambda name: submission.gather_group(flat, name, self._process_set, True, targets),
            [part for parts in outputs for part in parts],
            finish,
            opts,
        )

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> HvdliteWork:
        """Gives the root every rank's tensor. The tensors may differ in size."""
        (source,) = inputs
        parts = outputs[0] if opts.rootRank == self.rank() else []
        if opts.rootRank == self.rank():
            self._check_count("gather", parts)
        splits = [source.numel() if rank == opts.rootRank else 0 for rank in range(self.size())]
        return self._exchange("gather", source.detach().reshape(-1), splits, parts, opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> HvdliteWork:
        """Gives each rank one of the root's tensors. The tensors may differ in size."""
        parts = inputs[0] if opts.rootRank == self.rank() else []
        if opts.rootRank == self.rank():
            self._check_count("scatter", parts)
        splits = [part.numel() for part in parts] or [0] * self.size()
        flat = flat_of(parts) if parts else outputs[0].new_empty(0)
        return self._exchange("scatter", flat, splits, outputs, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> HvdliteWork:
        """Sends one tensor to each rank and receives one from each."""
        self._check_count("all_to_all", inputs)
        self._check_count("all_to_all", outputs)
        return self._exchange("all_to_all", flat_of(inputs), [part.numel() for part in inputs], outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> HvdliteWork:
        """Sends some rows to each rank and receives some from each. Without split sizes, tensors are cut into equal parts."""
        row = input[0].numel() if len(input) else 0
        splits = [rows * row for rows in self._rows("input", input, input_split_sizes)]
        parts = list(torch.split(output.detach(), self._rows("output", output, output_split_sizes)))
        return self._exchange("all_to_all_single", input.detach().reshape(-1), splits, parts, opts)

    alltoall_base = all_to_all_single

    def _rows(self, which: str, tensor: Tensor, sizes: Sequence[int] | None) -> list[int]:
        """How many rows of a tensor go to, or come from, each rank."""
        rows = list(sizes) if sizes else [len(tensor) // self.size()] * self.size()
        if len(rows) != self.size() or sum(rows) != len(tensor):
            raise InvalidArgumentError(
                f"torch.distributed.all_to_all_single: the {which} has {len(tensor)} rows, but the split sizes {rows} do not "
                f"divide them among {self.size()} ranks; pass one number of rows for each rank"
            )
        return rows

    def _exchange(self, label: str, flat: Tensor, splits: list[int], outputs: list[Tensor], opts: Any) -> HvdliteWork:
        """Sends each rank as many elements of `flat` as `splits` says, and stores the received elements in the outputs."""
        expected = [part.numel() for part in outputs]

        def finish(result: tuple[Tensor, Tensor]) -> None:
            received, sizes = result
            if len(expected) == self.size() and sizes.tolist() != expected:
                raise InvalidArgumentError(
                    f"torch.distributed.{label}: the ranks sent {sizes.tolist()} elements, but the outputs for them have "
                    f"{expected}"
                )
            split_into(label, received, outputs)

        return self._start(label, lambda name: ops.alltoall_async(flat, splits, name, self._process_set), outputs, finish, opts)

    def barrier(self, opts: Any = None) -> HvdliteWork:
        """Ends when all ranks have called it."""
        return self._start("barrier", lambda name: submission.barrier(self._process_set, name, False), [], None, opts)

    # --- point to point ---------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> HvdliteWork:
        """Sends a tensor to one rank of the group."""
        (tensor,) = tensors
        peer = self._in_job(rank)
        self._require_open(what := self._describe("send", f" to rank {peer} (tag {tag})"))
        handle = isend(tensor, peer, tag, None, self._process_set)
        return HvdliteWork(what, handle, tensors, None, self._timeout, self._is_aborted, unnumbered)

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> HvdliteWork:
        """Receives a tensor from one rank of the group."""
        return self._receive(tensors, self._in_job(rank), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> HvdliteWork:
        """Receives a tensor with this tag from any rank of the group."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int) -> HvdliteWork:
        (tensor,) = tensors
        whom = "any rank" if source is None else f"rank {source}"
        self._require_open(what := self._describe("recv", f" from {whom} (tag {tag})"))
        handle = irecv(tensor, source, tag, None, self._process_set)

        def finish(received: Any) -> None:
            rank = received.source if source is None else source
            work.source = (self._process_set.ranks or []).index(rank)

        work = HvdliteWork(what, handle, tensors, finish, self._timeout, self._is_aborted, unnumbered)
        return work

    # --- common to all ----------------------------------------------------------------------------------------------

    def _start(
        self,
        label: str,
        submit: Callable[[str], Handle],
        outputs: list[Tensor],
        finish: Callable[[Any], None] | None,
        opts: Any,
    ) -> HvdliteWork:
        """Submits an operation under the next name."""
        self._require_open(what := self._describe(label))
        counter = current_counter() or self._program
        with counter.lock:
            number = counter.next(self._key)
            handle = submit(f"torch.{self._key}.{number}.{label}")
            counter.use(self._key)
        timeout = getattr(opts, "timeout", None)
        # A timeout of -1 ms in torch's options means that the caller has given none.
        chosen = timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else self._timeout
        numbered = functools.partial(origin, group=self._key, path=number)
        return HvdliteWork(what, handle, outputs, finish, chosen, self._is_aborted, numbered)

    def _in_job(self, rank: int) -> int:
        """Converts a rank's number in the group to the rank's number in the whole job."""
        RUNTIME.require()
        return (self._process_set.ranks or [])[rank]

    def _describe(self, label: str, whom: str = "") -> str:
        return f"torch.distributed.{label}{whom} in group {self._name!r} (ranks {self._process_set.ranks})"

    def _require_open(self, what: str) -> None:
        if self._end:
            raise InvalidArgumentError(f"{what}: the group was {self._end}")

    def _reduce(
        self,
        label: str,
        start: Callable[[str, int, float], Handle],
        inputs: list[Tensor],
        outputs: list[Tensor],
        pick: Callable[[Tensor], Tensor] | None,
        finish: Callable[[Any], None] | None,
        opts: Any,
    ) -> HvdliteWork:
        """Reduces with the engine, by `start` and `finish`. If the operator is bitwise, gathers and combines all inputs.

        Args:
            label: torch's name for the operation.
            start: submits the reduction, with a name and the results of `_reduction`.
            inputs: the tensors to reduce.
            outputs: the tensors for this rank's results.
            pick: (for a bitwise operator) takes this rank's part of a flat result; None: this rank gets no part.
            finish: as for `HvdliteWork`.
            opts: torch's options.

        Raises:
            InvalidArgumentError: the operator is bitwise, and a tensor's elements are neither integers nor bools.
            UnsupportedError: as for `_reduction`.
        """
        combine = next((combine for theirs, combine in _BITWISE if opts.reduceOp == theirs), None)
        if combine is None:
            op, factor = self._reduction(label, opts.reduceOp)
            return self._start(label, lambda name: start(name, op, factor), outputs, finish, opts)
        for tensor in inputs:
            if tensor.is_floating_point() or tensor.is_complex():
                raise InvalidArgumentError(
                    f"torch.distributed.{label}: BAND, BOR and BXOR are for integers and bools, not {tensor.dtype}"
                )
        flat = [source.detach().reshape(1, -1) for source in inputs]

        def combined(gathered: list[Tensor]) -> None:
            if pick is None:
                return
            for rows, output in zip(gathered, outputs, strict=True):
                split_into(label, pick(functools.reduce(combine, rows)), [output])

        return self._start(
            label, lambda name: ops.grouped_allgather_async(flat, name, self._process_set), outputs, combined, opts
        )

    def _reduction(self, label: str, op: Any) -> tuple[int, float]:
        """Hvdlite's operator and prescale factor for an operator of torch."""
        for theirs, ours in _OPS:
            if op == theirs:
                return ours, 1.0
        factor = getattr(op, "factor", None) if op == ReduceOp.PREMUL_SUM else None
        if factor is not None:
            return ops.Sum, float(factor)
        raise UnsupportedError(f"torch.distributed.{label}: backend 'hvdlite' cannot reduce with {op}; use another operator")

    def _check_count(self, label: str, given: Sequence[Tensor | list[Tensor]], what: str = "tensors") -> None:
        if len(given) != self.size():
            raise InvalidArgumentError(
                f"torch.distributed.{label}: a list of {len(given)} {what} for {self.size()} ranks; pass one for each"
            )
