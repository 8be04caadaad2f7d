"""The collectives of `hvdlite.ops` for torch tensors, differentiable where Horovod's are.

The functions that wait and return a new tensor have gradients. In-place functions and ``_async`` functions have no gradients:
`hvdlite.ops` has these functions, and this file adds `sparse_allreduce_async`. Autograd does not see the changes that in-place
functions make. The gradients follow Horovod's convention:

- allreduce (except with Adasum) and alltoall: the gradient of the sum of all ranks' losses;
- allgather and broadcast: the gradient of that sum, divided by the number of ranks;
- reducescatter: the gradient of that sum, times the number of ranks.

The backward of a function is itself a collective: all ranks that have not joined must run it. Ranks that have joined count as
if their incoming gradients were zero. If the call had no name, all ranks must run its backward and their other collectives
without names in the same order. A Product can be differentiated only once. The backward of every other function can be
differentiated again (``create_graph=True``); the second derivative follows the convention of the collective that this backward
calls.

This file has over 400 lines, because every function has Horovod's full signature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvdlite import ops
from hvdlite.agreement import difference
from hvdlite.compression import Compression, is_none
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.partition import part_of
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import OP_NAMES, Average, Max, Min, Product, Sum, resolve_op
from hvdlite.runtime import RUNTIME
from hvdlite.torch.derivatives import needs_grad, only_once, require_values
from hvdlite.torch.sparse import join_rows, rows_of

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "sparse_allreduce_async",
]


@dataclass(frozen=True)
class _CallArguments:
    """The arguments of one call, which its backward needs again."""

    name: str | None
    process_set: ProcessSet
    grouped: bool = False
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    compression: Any = None
    weight: float | None = None

    def grad_name(self, part: str = "") -> str | None:
        """The name of a collective that the backward calls."""
        return None if self.name is None else f"{self.name}.grad{part}"


def _described(name: str | None) -> str:
    return "an unnamed tensor" if name is None else repr(name)


def _apply(function: type[torch.autograd.Function], call: _CallArguments, tensors: Sequence[torch.Tensor]) -> Any:
    require_values(*tensors)
    outputs = function.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return list(outputs) if call.grouped else outputs[0]


# --- allreduce ------------------------------------------------------------------------------------------------------------


class _Allreduce(torch.autograd.Function):
    """Average, Sum and Adasum. Backward is the same operation; only a weighted Average has another backward."""

    @staticmethod
    def forward(ctx: Any, call: _CallArguments, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        return tuple(_reduce(call, call.name, tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        if call.weight is None:
            return (None, *_reduce(call, call.grad_name(), grads))
        # The sum of the incoming gradients, times this rank's share of all weights. (The weights belong to the tensors of the
        # forward, and not to the incoming gradients.)
        totals = _reduce(replace(call, op=Sum, weight=None), call.grad_name(), grads)
        name = call.grad_name(".weights")
        weights = float(ops.allreduce(call.weight, name=name, op=Sum, process_set=call.process_set))
        share = call.weight / weights if weights > 0 else 0.0
        return (None, *(total * share for total in totals))


class _Select(torch.autograd.Function):
    """Min, Max and Product."""

    @staticmethod
    def forward(ctx: Any, call: _CallArguments, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = _reduce(call, call.name, tensors)
        ctx.call = call
        ctx.save_for_backward(*tensors, *outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        if call.prescale != 1.0 or call.postscale != 1.0:
            raise UnsupportedError(
                f"allreduce with op={OP_NAMES[call.op]} and scale factors has no gradient; multiply the tensor before the "
                "call, and the result after it"
            )
        saved = ctx.saved_tensors
        totals = _reduce_for(call, grads)
        inputs, outputs = saved[: len(grads)], saved[len(grads) :]
        with torch.no_grad():  # small changes of the inputs do not change the slopes of Min and Max
            slopes = _product_slopes(call, inputs) if call.op == Product else _choice_slopes(call, inputs, outputs)
        products = [total * slope for total, slope in zip(totals, slopes, strict=True)]
        if call.op != Product:
            return (None, *products)
        what = f"allreduce of {_described(call.name)} with op=Product"
        text = f"{what} can be differentiated once only; allgather the tensors and multiply them"
        return (None, *only_once(products, text))


def _reduce(call: _CallArguments, name: str | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    scales = (call.prescale, call.postscale, call.process_set)
    if call.grouped:
        return grouped_allreduce(tensors, None, name, call.compression, call.op, *scales, weight=call.weight)
    return [allreduce(tensors[0], None, name, call.compression, call.op, *scales, weight=call.weight)]


def _function_of(op: int) -> type[torch.autograd.Function]:
    return _Select if op in (Min, Max, Product) else _Allreduce


def _reduce_for(call: _CallArguments, tensors: Sequence[torch.Tensor], op: int = Sum, part: str = "") -> list[torch.Tensor]:
    """A reduction that the backward of a call makes, without the call's factors, compression and weight."""
    return _reduce(_CallArguments(None, call.process_set, call.grouped, op), call.grad_name(part), tensors)


def _choice_slopes(call: _CallArguments, values: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The derivatives of Min or Max: on the ranks that have the extreme value, 1 divided by the number of these ranks; else 0.

    With a compression, the values are compared as they are after compression and decompression.
    """
    coder = call.compression
    sent = values if is_none(coder) else [coder.decompress(*coder.compress(value)) for value in values]
    chosen = [(value == result).to(value.dtype) for value, result in zip(sent, results, strict=True)]
    return [mine / holders for mine, holders in zip(chosen, _reduce_for(call, chosen, part=".holders"), strict=True)]


def _product_slopes(call: _CallArguments, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The derivatives of Product: the product of the other ranks' values."""
    zeros = [(value == 0).to(torch.int32) for value in values]
    factors = [torch.where(value == 0, 1, value) for value in values]
    counts = _reduce_for(call, zeros, part=".zeros")
    products = _reduce_for(call, factors, Product, ".factors")
    return [
        torch.where(count > zero, 0, product / factor)
        for count, zero, product, factor in zip(counts, zeros, products, factors, strict=True)
    ]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> Any:
    """`hvdlite.allreduce` with a gradient.

    With Sum, and with Average without a weight, backward reduces the ranks' incoming gradients with the same op, scale factors
    and compression. With Min and Max the ranks with the extreme value get equal parts of the sum of the incoming gradients.
    With Product a rank gets that sum times the product of the other ranks' values. With a weighted mean a rank gets that sum
    times both scale factors and times the rank's share of all weights. In all these cases this is the true gradient of the sum
    of all ranks' losses. With Adasum, backward is an Adasum of the incoming gradients: this is Horovod's convention, and not a
    derivative.

    With scale factors, Min, Max and Product have no gradient: backward raises UnsupportedError.

    Args, returns and raises are those of `hvdlite.allreduce`.
    """
    if not needs_grad(tensor):
        scales = (prescale_factor, postscale_factor)
        return ops.allreduce(tensor, average, name, compression, op, *scales, process_set, weight=weight)
    op = resolve_op(op, average)
    call = _CallArguments(name, process_set, False, op, prescale_factor, postscale_factor, compression, weight)
    return _apply(_function_of(op), call, [tensor])


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> list[Any]:
    """`allreduce` of a list of tensors as one group. In backward the gradients of these tensors are one group, too.

    `name` is the name of the group. Returns a list of new tensors. The other arguments and the errors are those of
    `hvdlite.allreduce`.

    """
    scales = (prescale_factor, postscale_factor)
    if not needs_grad(*tensors):
        return ops.grouped_allreduce(tensors, average, name, compression, op, *scales, process_set, weight=weight)
    op = resolve_op(op, average)
    call = _CallArguments(name, process_set, True, op, *scales, compression, weight)
    outputs: list[Any] = _apply(_function_of(op), call, tensors)
    return outputs


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor | None]:
    """Starts the reduction of a sparse tensor: every rank gets and adds up all ranks' rows. Collective over `process_set`.

    Args:
        tensor: of layout torch.sparse_coo; shape, dtype and sparse dimensions the same on all ranks.
        name: see `hvdlite.ops`.
        op: Average or Sum.
        process_set: the ranks that take part.

    Returns:
        A function without arguments that waits and returns the coalesced result (a new tensor without gradient). A second call
        returns None. The function is no handle: `synchronize` and `poll` do not take it.

    Raises:
        InvalidArgumentError: the tensor is not sparse; or its dtype is torch.bool; or op is neither Average nor Sum.
        MismatchError, HorovodInternalError: (by the returned function) the ranks' tensors do not match, or a rank failed.

    """
    if tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError(f"sparse_allreduce_async takes tensors of layout torch.sparse_coo, not {tensor.layout}")
    if op not in (Average, Sum):
        raise InvalidArgumentError("sparse_allreduce_async reduces with op=Average or op=Sum")
    tensor = tensor.detach()
    indices, values = rows_of(tensor, tensor, tensor.dtype, tensor.sparse_dim())
    # The ranks compare the shapes. Otherwise rows of a larger tensor could be stored beyond the end of a smaller one, silently.
    shape = torch.tensor([[RUNTIME.require_topology().rank, *tensor.shape]], device=indices.device)
    handle = ops.grouped_allgather_async([indices, values, shape], name, process_set)
    divisor = (process_set.size() or 1) if op == Average else 1

    def finish() -> torch.Tensor | None:
        rows = handle.synchronize()
        if rows is None:
            return None
        all_indices, all_values, all_shapes = rows
        shapes = {rank: shape for rank, *shape in all_shapes.tolist()}
        if any(shape != list(tensor.shape) for shape in shapes.values()):
            differing = difference({rank: [("the shape", shape)] for rank, shape in shapes.items()})
            raise MismatchError(
                f"sparse_allreduce_async of {_described(name)} in process set {process_set.process_set_id}: {differing}; pass "
                "tensors of one shape on all ranks"
            )
        return join_rows(all_indices, all_values, tensor, divisor)

    return finish


# --- allgather ------------------------------------------------------------------------------------------------------------


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _CallArguments, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = tuple(_gather(call, call.name, tensors))
        ctx.call = call
        ctx.rows = [len(tensor) for tensor in tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        name = call.grad_name(".rows")
        place = call.process_set.rank() or 0
        # Each rank also sends its place, because the result has no row for a rank that has joined.
        rows = ops.allgather(torch.tensor([[place, *ctx.rows]], device="cpu"), name, call.process_set)
        if rows[:, 1:].sum(0).tolist() != [len(grad) for grad in grads]:
            raise MismatchError(
                f"allgather of {_described(call.name)}: a rank has joined between the call and its backward, so the gradients "
                "cannot be divided among the ranks; call join() after backward()"
            )
        starts = rows[rows[:, 0] < place, 1:].sum(0).tolist()
        averages = _reduce_for(call, grads, Average)
        parts = zip(averages, starts, ctx.rows, strict=True)
        return (None, *(average.narrow(0, start, count) for average, start, count in parts))


def _gather(call: _CallArguments, name: str | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if call.grouped:
        return grouped_allgather(tensors, name, call.process_set)
    return [allgather(tensors[0], name, call.process_set)]


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """`hvdlite.allgather` with a gradient.

    Backward gives each rank its rows of the *average* of the ranks' incoming gradients. This is Horovod's convention: the
    gradient of the sum of all ranks' losses, divided by the number of ranks.

    Args, returns and raises are those of `hvdlite.allgather`.
    """
    if not needs_grad(tensor):
        return ops.allgather(tensor, name, process_set)
    return _apply(_Allgather, _CallArguments(name, process_set), [tensor])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of a list of tensors as one group. In backward the gradients of these tensors are one group, too.

    `name` is the name of the group. Returns a list of new tensors. The other arguments and the errors are those of
    `hvdlite.allgather`.
    """
    if not needs_grad(*tensors):
        return ops.grouped_allgather(tensors, name, process_set)
    outputs: list[Any] = _apply(_Allgather, _CallArguments(name, process_set, grouped=True), tensors)
    return outputs


# --- broadcast ------------------------------------------------------------------------------------------------------------


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _CallArguments, root_rank: int, tensor: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.is_root = RUNTIME.require_topology().rank == root_rank
        output: torch.Tensor = ops.broadcast(tensor, root_rank, call.name, call.process_set)
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        (average,) = _reduce_for(call, [grad], Average)
        # The zeros of the other ranks are computed from the average. So if this backward is differentiated again, autograd runs
        # the allreduce's backward on the other ranks, too.
        return None, None, average if ctx.is_root else average.masked_fill(torch.ones_like(average, dtype=torch.bool), 0)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`hvdlite.broadcast` with a gradient.

    Backward gives the root the *average* of the ranks' incoming gradients, and the other ranks zeros. This is Horovod's
    convention: the gradient of the sum of all ranks' losses, divided by the number of ranks.

    Args, returns and raises are those of `hvdlite.broadcast`.
    """
    if not needs_grad(tensor):
        return ops.broadcast(tensor, root_rank, name, process_set)
    require_values(tensor)
    return _Broadcast.apply(_CallArguments(name, process_set), root_rank, tensor)  # type: ignore[no-untyped-call]


# --- alltoall -------------------------------------------------------------------------------------------------------------


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _CallArguments, splits: Any, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = ops.alltoall_async(tensor, splits, call.name, call.process_set).synchronize()
        ctx.call = call
        ctx.received = received.tolist()
        members = len(ctx.received)
        sent = [len(tensor) // members] * members if splits is None else [int(count) for count in splits]
        ctx.sent = [*sent, len(tensor) - sum(sent)]  # the last rows are not sent
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _received: Any) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        back, returned = alltoall(grad, ctx.received, call.grad_name(), call.process_set)
        return None, None, _with_zeros(back, [*returned.tolist(), 0], ctx.sent)


def _with_zeros(rows: torch.Tensor, present: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
    """Fills in zeros for missing rows: those of ranks that have joined, and the rows of an alltoall that were not sent.

    Args:
        rows: the parts that are present, one after the other. A part is the rows of one rank, or the rows that were not sent.
        present: the number of rows of each part in `rows`: 0, or the number in `counts`.
        counts: the number of rows of each part in the result.
    """
    if len(rows) == sum(counts):
        return rows
    parts = zip(torch.split(rows, list(present)), counts, strict=True)
    return torch.cat([part if len(part) == count else part.new_zeros(count, *part.shape[1:]) for part, count in parts])


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`hvdlite.alltoall` with a gradient.

    Each row of the incoming gradient belongs to a received row. Backward sends the gradient of a row to the rank from which the
    row came. This is the true gradient of the sum of all ranks' losses.

    Args, returns and raises are those of `hvdlite.alltoall`.
    """
    if not needs_grad(tensor):
        return ops.alltoall(tensor, splits, name, process_set)
    require_values(tensor)
    output, received = _Alltoall.apply(_CallArguments(name, process_set), splits, tensor)  # type: ignore[no-untyped-call]
    return output if splits is None else (output, received)


# --- reducescatter --------------------------------------------------------------------------------------------------------


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _CallArguments, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = (call.name, call.compression, call.op, call.process_set, call.prescale, call.postscale)
        if call.grouped:
            outputs = tuple(ops.grouped_reducescatter(tensors, *arguments))
        else:
            outputs = (ops.reducescatter(tensors[0], *arguments),)
        ctx.call = call
        ctx.rows = [len(tensor) for tensor in tensors]
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        call: _CallArguments = ctx.call
        factor = call.prescale * call.postscale * ((call.process_set.size() or 1) if call.op == Sum else 1)
        scaled = [grad * factor for grad in grads] if factor != 1.0 else list(grads)
        gathered = _gather(call, call.grad_name(), scaled)
        if [len(rows) for rows in gathered] == ctx.rows:
            return (None, *gathered)
        # Ranks that have joined sent no rows. Find out which ranks these are, and fill in zeros for them.
        members = call.process_set.size() or 1
        place = torch.tensor([call.process_set.rank() or 0], device="cpu")
        working = set(ops.allgather(place, call.grad_name(".working"), call.process_set).tolist())
        found = []
        for rows, count in zip(gathered, ctx.rows, strict=True):
            counts = [len(part_of(count, members, member)) for member in range(members)]
            present = [own if member in working else 0 for member, own in enumerate(counts)]
            found.append(_with_zeros(rows, present, counts))
        return (None, *found)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`hvdlite.reducescatter` with a gradient.

    Backward gathers the ranks' incoming gradients and multiplies them by both scale factors; with Sum also by the number of
    ranks. This is Horovod's convention: the gradient of the sum of all ranks' losses, times the number of ranks.

    Args, returns and raises are those of `hvdlite.reducescatter`.
    """
    scales = (prescale_factor, postscale_factor)
    if not needs_grad(tensor):
        return ops.reducescatter(tensor, name, compression, op, process_set, *scales)
    op = resolve_op(op, None)
    return _apply(_Reducescatter, _CallArguments(name, process_set, False, op, *scales, compression), [tensor])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of a list of tensors as one group. In backward the gradients of these tensors are one group, too.

    `name` is the name of the group. Returns a list of new tensors. The other arguments and the errors are those of
    `hvdlite.reducescatter`.
    """
    scales = (prescale_factor, postscale_factor)
    if not needs_grad(*tensors):
        return ops.grouped_reducescatter(tensors, name, compression, op, process_set, *scales)
    op = resolve_op(op, None)
    call = _CallArguments(name, process_set, True, op, *scales, compression)
    outputs: list[Any] = _apply(_Reducescatter, call, tensors)
    return outputs
