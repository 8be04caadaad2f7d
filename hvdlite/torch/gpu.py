"""Says which tensors the engine can use in place, and orders the CUDA streams that use the same memory.

The reducer relies on two facts about autograd. First, a hook on a parameter runs in the stream in which the parameter's
gradient was made, usually the stream of the forward pass. (Two gradients of one bucket may have different streams.) Second,
a thread has one current stream for each GPU. When a backward pass is over, autograd lets the current streams of the thread that
called ``backward()`` wait for the streams of all gradients, and runs its final callbacks in these current streams.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hvdlite.backends.torch import BACKEND

CPU = -1  # the engine's number for host memory
_IS_CUDA = getattr(torch.version, "hip", None) is None  # torch also calls AMD's GPUs cuda


def is_reachable(device: torch.device) -> bool:
    """Can the engine use the memory of this device?"""
    return device.type == "cpu" or (_IS_CUDA and device.type == "cuda")


def reachable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy in host memory if the engine cannot use the tensor's memory."""
    return tensor if is_reachable(tensor.device) else tensor.cpu()


def gpu_of(tensor: torch.Tensor) -> int:
    """The engine's number for the device of a tensor: the number of the NVIDIA GPU, or `CPU` for all other devices."""
    device = tensor.device
    if device.type != "cuda" or not _IS_CUDA:
        return CPU
    return torch.cuda.current_device() if device.index is None else device.index


current_stream: Callable[[int], int] = BACKEND.stream_of


def follow(gpu: int, streams: Iterable[int]) -> None:
    """Orders the current stream of a GPU after the present work of other streams of this GPU."""
    now = torch.cuda.current_stream(gpu)
    for stream in streams:
        if stream != int(now.cuda_stream):
            now.wait_stream(_stream_of(gpu, stream))


def _stream_of(gpu: int, handle: int) -> torch.cuda.Stream:
    if not handle:
        return torch.cuda.default_stream(gpu)
    return torch.cuda.ExternalStream(handle, device=gpu)  # type: ignore[no-untyped-call]


class StreamsOfBucket:
    """The CUDA streams in which the gradients of one bucket on a GPU are made."""

    __slots__ = ("_gpu", "_seen")

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._seen: set[int] = set()

    def see(self) -> None:
        """Remembers that a gradient of the bucket was made in the current stream."""
        self._seen.add(current_stream(self._gpu))

    def gather(self) -> tuple[int, ...]:
        """Returns the current stream, followed by the other streams in which gradients were made, and forgets all of them.

        Called at the launch of the bucket. Orders the current stream after the other streams. (At the end of a backward pass
        autograd has already done so, unless backward has raised.)
        """
        now = current_stream(self._gpu)
        others = self._seen - {now}
        self._seen.clear()
        if others:
            follow(self._gpu, others)
        return (now, *others)

    def after(self, streams: Sequence[int]) -> tuple[int, ...]:
        """The streams to order after an in-flight bucket: first the current stream, because it uses the results, and then the
        other `streams`, because later work in them may reuse the memory.
        """
        now = current_stream(self._gpu)
        return (now, *(stream for stream in streams if stream != now))


def events_of(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """An event in the current stream of each GPU that holds one of these tensors."""
    gpus = sorted({gpu_of(tensor) for tensor in tensors} - {CPU})
    return [torch.cuda.current_stream(gpu).record_event() for gpu in gpus]


def order_after(events: Iterable[Any]) -> None:
    """Orders the current stream of each event's GPU after the event."""
    for event in events:
        torch.cuda.current_stream(event.device).wait_event(event)
