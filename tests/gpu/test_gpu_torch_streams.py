"""torch's streams and memory on a GPU: operations come in stream order, without the host waiting for the GPU.

A kernel in front of what writes the input, which takes a while, makes everything wrong that does not wait for it.
"""

import contextlib
import ctypes
import threading

import pytest
import torch
from kinds import TORCH
from support.limits import DEADLINE, eventually
from support.world import WORLD

if TORCH is None or TORCH.device.type != "cuda":
    pytest.skip("needs torch with a GPU", allow_module_level=True)

DEVICE = TORCH.device
RANK, SIZE = WORLD.rank, WORLD.size
COUNT = 1 << 20
TURNS = range(10)


def busy(millions):
    """Keeps the current stream busy for so many million cycles of the GPU, of which it has about 1800 in a second."""
    torch.cuda._sleep(1_000_000 * millions)


@contextlib.contextmanager
def held():
    """The GPU gets to nothing that the current stream is given within the block, which must not wait for any of it."""
    go_on = torch.zeros(1, dtype=torch.int32).pin_memory()
    late = threading.Timer(DEADLINE, go_on.fill_, [1])  # or who waits would wait for ever
    late.start()
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2  # until the word is 1 or more
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    try:
        assert wait(stream, ctypes.c_uint64(go_on.data_ptr()), ctypes.c_uint32(1), ctypes.c_uint(0)) == 0
        yield
        assert late.is_alive(), "somebody waited for the GPU"
    finally:
        late.cancel()
        go_on.fill_(1)
        torch.cuda.synchronize()  # before the word is freed


def summed(turn):
    return float(sum(100 * turn + rank + 1 for rank in range(SIZE)))


def mine(turn):
    return 100.0 * turn + RANK + 1


def assert_all(tensor, value):
    """Every element is this number."""
    assert tensor.is_cuda
    least, most = tensor.min().item(), tensor.max().item()
    assert least == most == value, f"{least} to {most} instead of {value}"


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("where", ["current", "side"])
def test_an_input_that_is_still_being_written(hvd, in_place, where):
    stream = torch.cuda.Stream() if where == "side" else torch.cuda.current_stream()
    call = hvd.allreduce_async_ if in_place else hvd.allreduce_async
    for turn in TURNS:
        tensor = torch.zeros(COUNT, device=DEVICE)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            busy(36)
            tensor.fill_(mine(turn))
            handle = call(tensor, op=hvd.Sum, name=f"written.{where}.{in_place}")
        # The result is asked for, and used, on the stream that is current here.
        result = hvd.synchronize(handle)
        assert_all(result, summed(turn))
        torch.cuda.current_stream().wait_stream(stream)


def test_a_result_used_on_another_stream(hvd):
    other = torch.cuda.Stream()
    for turn in TURNS:
        tensor = torch.zeros(COUNT, device=DEVICE)
        busy(36)
        tensor.fill_(mine(turn))
        handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="other")
        with torch.cuda.stream(other):
            result = hvd.synchronize(handle)
            copied = result + 1
        other.synchronize()
        assert_all(copied, summed(turn) + 1)


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "reducescatter", "broadcast"])
def test_other_collectives_wait_for_their_input(hvd, kind):
    root = SIZE - 1
    wanted = {
        "allgather": lambda turn: torch.tensor([100.0 * turn + rank + 1 for rank in range(SIZE)]),
        "alltoall": lambda turn: torch.tensor([100.0 * turn + rank + 1 for rank in range(SIZE)]),
        "reducescatter": lambda turn: torch.tensor([summed(turn)]),
        "broadcast": lambda turn: torch.tensor([100.0 * turn + root + 1] * SIZE),
    }[kind]
    options = {"broadcast": {"root_rank": root}, "reducescatter": {"op": hvd.Sum}}.get(kind, {})
    for turn in TURNS:
        rows = 1 if kind == "allgather" else SIZE
        tensor = torch.zeros(rows, COUNT // 8, device=DEVICE)
        busy(36)
        tensor.fill_(mine(turn))
        result = getattr(hvd, kind)(tensor, name=f"waits.{kind}", **options)
        assert torch.equal(result[:, 0].cpu(), wanted(turn))
        assert torch.equal(result[:, -1].cpu(), wanted(turn))


def test_nobody_waits_for_the_gpu(hvd, route):
    """Submitting and synchronizing return while a kernel in front of the input still runs."""
    if route != "nccl":
        pytest.skip("through host memory, synchronize() waits for the tensor to come there")
    tensors = [torch.ones(1000, device=DEVICE) for _ in range(3)]
    for _ in range(3):  # the first ones make communicators, buffers and kernels
        hvd.grouped_allreduce_([tensor.fill_(1.0) for tensor in tensors], op=hvd.Sum, name="hot")
        hvd.allreduce(tensors[0].fill_(1.0), op=hvd.Sum, name="hot.single")
    torch.cuda.synchronize()
    WORLD.Barrier()
    with held():
        for tensor in tensors:
            tensor.fill_(RANK + 1.0)
        single = hvd.allreduce(tensors[0], op=hvd.Sum, name="hot.single")
        group = hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="hot")
    for tensor in [single, *group]:
        assert_all(tensor, sum(range(1, SIZE + 1)))


def test_a_step_of_training_does_not_wait_for_the_gpu(hvd, route):
    if route != "nccl":
        pytest.skip("through host memory, step() waits for the gradients to come there")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    inputs = torch.randn(16, 64, device=DEVICE)
    for turn in range(4):
        torch.cuda.synchronize()
        WORLD.Barrier()
        with held() if turn == 3 else contextlib.nullcontext():  # the first ones make communicators, buffers and kernels
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("finish", [True, False], ids=["synchronized", "dropped"])
def test_memory_that_is_given_back_in_flight(hvd, finish):
    """The caching allocator hands freed memory on at once. Whoever gets it must not see, nor spoil, what is under way."""
    pending = []
    for turn in range(200):
        tensor = torch.full((COUNT // 16,), mine(turn % 10), device=DEVICE)
        if turn % 20 == 0:
            busy(9)
        handle = hvd.allreduce_async(tensor, op=hvd.Sum, name=f"given.back.{turn % 8}.{finish}")
        del tensor
        torch.full((COUNT // 16,), float("nan"), device=DEVICE)
        pending.append((turn % 10, handle))
        if len(pending) == 8:
            of, handle = pending.pop(0)
            result = hvd.synchronize(handle)
            if finish:
                assert_all(result, summed(of))
            del result
    for of, handle in pending:
        assert_all(hvd.synchronize(handle), summed(of))


def test_handles_that_nobody_waits_for(hvd):
    """They end all the same, their memory is given back, and later operations are right."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for turn in range(50):
        hvd.allreduce_async(torch.full((COUNT,), mine(turn), device=DEVICE), op=hvd.Sum, name=f"dropped.{turn}")
    assert_all(hvd.allreduce(torch.full((COUNT,), mine(3), device=DEVICE), op=hvd.Sum, name="kept"), summed(3))

    def given_back():
        hvd.allreduce(torch.ones(1, device=DEVICE), name="gives.back")
        left = WORLD.allgather(torch.cuda.memory_allocated() - before)  # on all ranks, which go on together
        return max(left) <= 8 * 4 * COUNT

    assert eventually(given_back)


def test_memory_does_not_grow(hvd):
    """Buffers and results are used again."""
    tensor = torch.ones(COUNT, device=DEVICE)

    def step():
        hvd.allreduce(tensor, name="steady")
        hvd.allgather(tensor[: COUNT // 4], name="steady.gather")
        hvd.grouped_allreduce_([tensor[:1000], tensor[2000:3000]], name="steady.group")

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info(DEVICE)[0]
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info(DEVICE)[0] >= free - (64 << 20) * SIZE


@contextlib.contextmanager
def capturing():
    """A graph that is being captured on a stream of its own."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()


def test_capture_into_a_graph_is_refused(hvd):
    tensor = torch.ones(100, device=DEVICE)
    hvd.allreduce(tensor, name="before.capture")
    with capturing():
        doubled = tensor * 2
        with pytest.raises(NotImplementedError, match=r"captur"):
            hvd.allreduce_async(doubled, name="captured")
    torch.cuda.synchronize()
    assert_all(hvd.allreduce(tensor, op=hvd.Sum, name="after.capture"), float(SIZE))


def test_a_graph_around_the_collectives(hvd):
    """Replaying what computes the input and what uses the result, with the collective between them."""
    source = torch.zeros(COUNT, device=DEVICE)
    made = torch.zeros(COUNT, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.copy_(source * 2 + 1)
    for turn in TURNS:
        source.fill_(mine(turn))
        busy(18)
        graph.replay()
        assert_all(hvd.allreduce(made, op=hvd.Sum, name="around"), 2 * summed(turn) + SIZE)
