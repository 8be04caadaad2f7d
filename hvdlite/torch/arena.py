"""Places for gradients in an arena, which is memory that all ranks of a process set map.

Each large gradient that is reduced in place (its memory receives the result) has a place in the arena, at the same offset on
all ranks. If the gradient of a parameter is in its place on all ranks, it is reduced without a copy, because the ranks map each
other's parts. (Even then a copy is needed if the ranks' values of ``optimizer.weight`` differ, or with a codec between ranks.)
If the gradient lies elsewhere on some rank, the ranks' requests differ, so the ranks agree by messages to reduce the gradient
like any other tensor. So a program is free to assign any tensor to ``.grad`` between backward passes; at worst this makes the
reduction slower.

If ``.grad`` is None, autograd stores a new tensor. `ArenaPlace.move_in` copies this tensor once to the gradient's place, and
assigns the copy to ``.grad``. The gradient stays there as long as the program zeroes it in place. If the program sets ``.grad``
to None in every training step, an arena saves no time: there is a copy in every training step, and this copy moves about as
many bytes as the reduction in the arena saves (compare the costs in csrc/collectives/allreduce_push.cc and allreduce_shm.cc).

A user may keep a tensor that lies in a place. So a place gets a new tensor only when no tensor uses its memory any more.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from hvdlite._engine import stream_copy
from hvdlite.arenas import make_arena
from hvdlite.process_sets import ProcessSet
from hvdlite.runtime import RUNTIME
from hvdlite.torch.gpu import CPU
from hvdlite.torch.parameter_gradient import ParameterGradient, WireForm

if TYPE_CHECKING:
    from hvdlite._engine import Arena

SMALLEST = 64 * 1024  # bytes; the copy of a smaller gradient takes more time than it saves
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)  # missing in older versions
_ALIGNMENT = 64  # bytes; the gradients of two parameters share no cache line


class ArenaPlace:
    """The place of one parameter's gradient in an arena.

    Args:
        arena: the arena's id.
        memory: the bytes of the place.
        address: the address of the place in this process.
        gradient: the state of the parameter's gradient.
        streamed: does `move_in` copy with streaming stores, which bypass the caches?

    Attributes:
        arena, address: the arguments; the requests for the gradient contain both.
    """

    __slots__ = ("_dtype", "_memory", "_shape", "_streamed", "_strides", "_taken", "address", "arena")

    def __init__(self, arena: int, memory: memoryview, address: int, gradient: ParameterGradient, streamed: bool) -> None:
        self.arena = arena
        self.address = address
        self._memory = memory
        self._dtype = gradient.dtype
        self._shape = tuple(gradient.param.shape)
        self._strides = gradient.param.stride()
        self._streamed = streamed
        self._taken: weakref.ref[memoryview] | None = None  # what the tensors in this place keep alive

    def take(self) -> torch.Tensor | None:
        """A tensor in this place, with undefined values; None if a tensor lies there already."""
        if self._taken is not None and self._taken() is not None:
            return None
        piece = self._memory[:]  # the tensor keeps this memoryview alive, and so do all tensors that share its memory
        self._taken = weakref.ref(piece)
        # Not view(), because param.grad.detach_() refuses views.
        return torch.frombuffer(piece, dtype=self._dtype).as_strided_(self._shape, self._strides)

    def move_in(self, param: torch.Tensor) -> None:
        """Replaces autograd's gradient by a copy in this place.

        The gradient stays where it is if other code refers to it; if autograd records it (``create_graph=True``); if it is not
        a plain tensor with memory of its own and with the dtype, shape and strides of this place; if a tensor lies in this
        place already; or under compiled autograd.
        """
        if _is_compiling():
            return  # compiled autograd traces the hooks, but cannot trace this function
        if _references(param) > _UNSHARED:  # before this function adds a reference of its own
            return
        grad = param.grad
        if type(grad) is not torch.Tensor or grad.dtype is not self._dtype or grad.layout is not torch.strided:
            return
        if grad.shape != self._shape or grad.stride() != self._strides or grad.is_neg() or grad.requires_grad:
            return
        if grad.untyped_storage().nbytes() != grad.nbytes:
            return  # the gradient is a part of a larger tensor
        moved = self.take()
        if moved is None:
            return
        if self._streamed:
            stream_copy(self.address, grad.data_ptr(), grad.nbytes)
        else:
            moved.copy_(grad)
        param.grad = moved


def _references(param: torch.Tensor) -> int:
    grad = param.grad
    return sys.getrefcount(grad)


def _count_unshared() -> int:
    param = torch.zeros(1, device="cpu")
    param.grad = torch.zeros(1, device="cpu")
    return _references(param)


_UNSHARED = _count_unshared()  # what `_references` returns for a gradient to which only its parameter refers


def make_places(
    name: str, gradients: "Iterable[tuple[ParameterGradient, WireForm]]", process_set: ProcessSet
) -> "tuple[Arena | None, str]":
    """Gives a place to each gradient that has at least `SMALLEST` bytes, is in host memory, and is reduced in place.

    Gradients of frozen parameters get no place. Collective over `process_set`.

    Args:
        name: the unique name of the exchange in which the ranks make the arena.
        gradients: the parameters and their forms on the wire, in the same order on all ranks.
        process_set: the ranks that train together.

    Returns:
        The arena or None, and a text that says why there is no arena ("" if there is one). Close the arena when its places are
        no longer used.

    Raises:
        HorovodInternalError: a rank failed.

    """
    chosen = [(gradient, form.nbytes) for gradient, form in gradients if _gets_place(gradient.param, form)]
    begins = list(accumulate((-(-nbytes // _ALIGNMENT) * _ALIGNMENT for _, nbytes in chosen), initial=0))
    total = begins.pop()
    if not total:
        return None, f"no gradient of at least {SMALLEST} bytes is in host memory and reduced in place"
    if RUNTIME.config.allreduce_algorithm != "auto":
        return None, f"HVDLITE_ALLREDUCE_ALGORITHM={RUNTIME.config.allreduce_algorithm} cannot use an arena"
    arena, reason = make_arena(total, name, process_set)
    if arena is None:
        return None, reason
    memory = memoryview(arena)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    streamed = _should_stream(total, process_set)
    for (gradient, nbytes), begin in zip(chosen, begins, strict=True):
        gradient.place = ArenaPlace(arena.id, memory[begin : begin + nbytes], address + begin, gradient, streamed)
    return arena, ""


def _should_stream(nbytes: int, process_set: ProcessSet) -> bool:
    """Should copies to the places use streaming stores?

    Yes, if the parts of all ranks together have at least HVDLITE_STREAMING_BYTES, because the caches cannot keep that much from
    one training step to the next. But no, if torch has several threads for a copy, because `stream_copy` uses only one thread.
    """
    limit = RUNTIME.config.streaming_bytes
    return 0 < limit <= nbytes * (process_set.size() or 1) and torch.get_num_threads() == 1


def _gets_place(param: torch.Tensor, form: WireForm) -> bool:
    return form.dtype_in_place is not None and form.device == CPU and param.requires_grad and form.nbytes >= SMALLEST
