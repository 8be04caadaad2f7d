"""An example for each name of hvdlite.md. The reference shows it below the name; the tests run it on two ranks.

(Over 400 lines, because the module has more than 80 names.)
"""

import numpy as np

import hvdlite as hvd

hvd.init()

# --- start and end, ranks ---


def init():
    hvd.init()  # the first statement of a program that uses hvdlite; a second call does no harm
    assert hvd.is_initialized()


def shutdown():
    hvd.shutdown()  # leaves the job
    assert not hvd.is_initialized()
    hvd.init()  # all ranks may come back together


def is_initialized():
    if not hvd.is_initialized():
        hvd.init()
    assert hvd.is_initialized()


def run():
    """It starts a job of its own, so call it in a program that is not itself part of a job."""

    def train(rate):
        hvd.init()
        return rate * hvd.rank()

    assert hvd.run(train, args=(0.5,), np=2) == [0.0, 0.5]


def child_environment():
    import subprocess

    subprocess.run(["true"], env=hvd.child_environment(), check=True)  # a program that is not a rank
    assert "OMPI_COMM_WORLD_RANK" not in hvd.child_environment()


def rank():
    files = ["a.csv", "b.csv", "c.csv", "d.csv"]
    mine = files[hvd.rank() :: hvd.size()]  # on 2 ranks: rank 0 reads a and c, rank 1 reads b and d
    assert len(mine) == 4 // hvd.size()


def size():
    learning_rate = 0.1 * hvd.size()  # the usual rule: the rate grows with the number of ranks
    assert learning_rate >= 0.1


def local_rank():
    device = f"cuda:{hvd.local_rank()}"  # each rank of a host takes a GPU of its own
    assert device.startswith("cuda:")


def local_size():
    assert 0 <= hvd.local_rank() < hvd.local_size() <= hvd.size()


def cross_rank():
    print(f"rank {hvd.rank()} runs on node {hvd.cross_rank()} of {hvd.cross_size()}")


def cross_size():
    if hvd.cross_size() > 1 and hvd.rank() == 0:
        print("the job runs on several nodes")


def is_homogeneous():
    if hvd.is_homogeneous():  # the same number of ranks on each node
        assert hvd.size() == hvd.local_size() * hvd.cross_size()


# --- operators ---


def Average():
    mean = hvd.allreduce(np.array([0, 3]) * hvd.rank(), op=hvd.Average)
    assert mean.tolist() == [0, 1]  # 3 / 2 is truncated toward zero, because these are integers


def Sum():
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2


def Min():
    assert hvd.allreduce(np.array([5.0 - hvd.rank()]), op=hvd.Min)[0] == 5 - (hvd.size() - 1)


def Max():
    is_done = hvd.rank() == 0
    assert hvd.allreduce(np.array([is_done]), op=hvd.Max)[0]  # for bool: is it true on any rank?


def Product():
    assert hvd.allreduce(np.array([2.0]), op=hvd.Product)[0] == 2 ** hvd.size()


def Adasum():
    same = hvd.allreduce(np.array([1.0, 2.0]), op=hvd.Adasum)
    assert same.tolist() == [1.0, 2.0]  # parallel vectors are averaged
    orthogonal = np.eye(2)[hvd.rank()]
    assert hvd.allreduce(orthogonal, op=hvd.Adasum).tolist() == [1.0, 1.0]  # orthogonal ones are added


# --- collectives ---


def allreduce():
    x = np.array([2.0, 4.0]) * hvd.rank()  # rank 0 has [0, 0], rank 1 has [2, 4]
    assert hvd.allreduce(x).tolist() == [1.0, 2.0]  # the average is the default
    assert hvd.allreduce(x, op=hvd.Sum, name="total").tolist() == [2.0, 4.0]
    samples = 1 + 2 * hvd.rank()  # rank 0 has 1 sample, rank 1 has 3
    assert hvd.allreduce(x, weight=samples).tolist() == [1.5, 3.0]  # (1 * [0, 0] + 3 * [2, 4]) / 4


def allreduce_():
    x = np.array([2.0, 4.0]) * hvd.rank()
    hvd.allreduce_(x)  # writes the result into x
    assert x.tolist() == [1.0, 2.0]


def allreduce_async():
    handle = hvd.allreduce_async(np.array([2.0]) * hvd.rank(), name="loss")
    # ... other work, while the data move ...
    assert handle.synchronize().tolist() == [1.0]


def allreduce_async_():
    x = np.array([2.0]) * hvd.rank()
    hvd.allreduce_async_(x, op=hvd.Sum).synchronize()
    assert x.tolist() == [2.0]


def grouped_allreduce():
    weights, bias = hvd.grouped_allreduce([np.ones((4, 3)) * hvd.rank(), np.ones(3) * hvd.rank()])
    assert weights.shape == (4, 3)
    assert bias.tolist() == [0.5, 0.5, 0.5]


def grouped_allreduce_():
    tensors = [np.ones((4, 3)) * hvd.rank(), np.ones(3) * hvd.rank()]
    hvd.grouped_allreduce_(tensors, op=hvd.Sum)  # writes the results into the tensors
    assert tensors[1].tolist() == [1.0, 1.0, 1.0]


def grouped_allreduce_async():
    handle = hvd.grouped_allreduce_async([np.ones(2) * hvd.rank(), np.ones(3)], op=hvd.Sum)
    first, second = handle.synchronize()
    assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [2.0, 2.0, 2.0])


def grouped_allreduce_async_():
    tensors = [np.ones(2) * hvd.rank(), np.ones(3)]
    hvd.grouped_allreduce_async_(tensors, op=hvd.Sum).synchronize()
    assert tensors[0].tolist() == [1.0, 1.0]


def allgather():
    rows = hvd.allgather(np.full((1 + hvd.rank(), 2), hvd.rank()))  # 1 row of rank 0, 2 rows of rank 1
    assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]


def allgather_async():
    handle = hvd.allgather_async(np.array([hvd.rank()]))
    assert handle.synchronize().tolist() == [0, 1]


def grouped_allgather():
    numbers, squares = hvd.grouped_allgather([np.array([hvd.rank()]), np.array([hvd.rank() ** 2 + 1])])
    assert (numbers.tolist(), squares.tolist()) == ([0, 1], [1, 2])


def grouped_allgather_async():
    handle = hvd.grouped_allgather_async([np.array([hvd.rank()]), np.ones((2, 3))])
    numbers, rows = handle.synchronize()
    assert (numbers.tolist(), rows.shape) == ([0, 1], (4, 3))


def broadcast():
    x = np.array([7.0, 8.0]) if hvd.rank() == 0 else np.zeros(2)  # the same shape and dtype on all ranks
    assert hvd.broadcast(x, root_rank=0).tolist() == [7.0, 8.0]


def broadcast_():
    x = np.array([7.0, 8.0]) * (1 - hvd.rank())
    hvd.broadcast_(x, root_rank=0)  # writes rank 0's values into x
    assert x.tolist() == [7.0, 8.0]


def broadcast_async():
    handle = hvd.broadcast_async(np.array([hvd.rank()]), root_rank=1)
    assert handle.synchronize().tolist() == [1]


def broadcast_async_():
    x = np.array([hvd.rank()])
    hvd.broadcast_async_(x, root_rank=1).synchronize()
    assert x.tolist() == [1]


def alltoall():
    rows = np.array([10, 11]) + 100 * hvd.rank()  # rank 0 has [10, 11], rank 1 has [110, 111]
    assert hvd.alltoall(rows).tolist() == [[10, 110], [11, 111]][hvd.rank()]  # one row to each rank, and one from each
    received, received_splits = hvd.alltoall(rows, splits=[0, 2])  # no row to rank 0, two rows to rank 1
    assert received.tolist() == [[], [10, 11, 110, 111]][hvd.rank()]
    assert received_splits.tolist() == [[0, 0], [2, 2]][hvd.rank()]


def alltoall_async():
    handle = hvd.alltoall_async(np.array([10, 11]) + 100 * hvd.rank())
    received, received_splits = handle.synchronize()
    assert received.tolist() == [[10, 110], [11, 111]][hvd.rank()]
    assert received_splits.tolist() == [1, 1]


def reducescatter():
    x = np.array([[1.0], [2.0], [3.0]])  # 3 rows for 2 ranks: the first rank gets one more
    mine = hvd.reducescatter(x, op=hvd.Sum)
    assert mine.tolist() == [[[2.0], [4.0]], [[6.0]]][hvd.rank()]


def reducescatter_async():
    handle = hvd.reducescatter_async(np.array([1.0, 2.0]), op=hvd.Sum)
    assert handle.synchronize().tolist() == [[2.0], [4.0]][hvd.rank()]


def grouped_reducescatter():
    first, second = hvd.grouped_reducescatter([np.ones((4, 3)), np.arange(2.0)], op=hvd.Sum)
    assert first.shape == (2, 3)
    assert second.tolist() == [[0.0], [2.0]][hvd.rank()]


def grouped_reducescatter_async():
    handle = hvd.grouped_reducescatter_async([np.ones((4, 3)), np.arange(2.0)])
    assert [part.shape for part in handle.synchronize()] == [(2, 3), (1,)]


def barrier():
    from pathlib import Path

    if hvd.rank() == 0:
        Path("vocabulary.txt").write_text("a b c")
    hvd.barrier()  # from here on rank 0 has written the file


def join():
    for _ in range(3 + hvd.rank()):  # rank 0 has 3 batches, rank 1 has 4
        hvd.allreduce(np.ones(2), name="gradient")
    last = hvd.join()  # rank 0 waits here, and adds zeros to rank 1's last allreduce
    assert last == 1


# --- handles ---


def poll():
    handle = hvd.allreduce_async(np.ones(2))
    if not hvd.poll(handle):
        pass  # it is still in flight: do other work
    handle.synchronize()
    assert hvd.poll(handle)


def synchronize():
    handle = hvd.allreduce_async(np.ones(2), op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [2.0, 2.0]


def Handle():
    handle = hvd.broadcast_async(np.array([hvd.rank()]), root_rank=1)
    assert isinstance(handle, hvd.Handle)
    result = handle.synchronize(timeout=60.0)  # seconds; TimeoutError if the operation has not ended by then
    assert handle.poll()
    assert result.tolist() == [1]


# --- objects, messages ---


def broadcast_object():
    settings = {"rate": 0.1, "layers": [64, 10]} if hvd.rank() == 0 else None
    settings = hvd.broadcast_object(settings, root_rank=0)
    assert settings["layers"] == [64, 10]


def allgather_object():
    assert hvd.allgather_object({"rank": hvd.rank()}) == [{"rank": 0}, {"rank": 1}]


def send():
    if hvd.rank() == 0:
        hvd.send(np.array([1.0, 2.0]), dst=1)
    else:
        assert hvd.recv(np.empty(2), src=0).tolist() == [1.0, 2.0]


def isend():
    other = 1 - hvd.rank()
    handle = hvd.isend(np.array([float(hvd.rank())]), dst=other)
    assert hvd.recv(np.empty(1), src=other).tolist() == [other]
    handle.synchronize()  # only now may the sent array be overwritten


def recv():
    if hvd.rank() == 0:
        hvd.send(np.array([3.0]), dst=1, tag=7)
    else:
        received = hvd.recv(np.empty(1), src=None, tag=None)  # from any rank, with any tag
        assert (received.tensor.tolist(), received.source, received.tag) == ([3.0], 0, 7)


def irecv():
    other = 1 - hvd.rank()
    into = np.empty(1)
    handle = hvd.irecv(into, src=other)
    hvd.send(np.array([float(hvd.rank())]), dst=other)
    handle.synchronize()
    assert into.tolist() == [other]


def batch():
    other, into = 1 - hvd.rank(), np.empty(1)
    outgoing = hvd.P2POp(hvd.isend, np.array([float(hvd.rank())]), other)
    incoming = hvd.P2POp(hvd.irecv, into, other)
    hvd.batch([outgoing, incoming]).synchronize()
    assert into.tolist() == [other]


def P2POp():
    if hvd.rank() == 0:
        operations = [hvd.P2POp(hvd.isend, np.full(2, i), peer=1, tag=i) for i in range(3)]
    else:
        operations = [hvd.P2POp(hvd.irecv, np.empty(2, int), peer=0, tag=i) for i in range(3)]
    hvd.batch(operations).synchronize()
    assert operations[2].tensor.tolist() == [2, 2]


def Received():
    if hvd.rank() == 0:
        received = hvd.recv(np.empty(1), src=None)  # from any rank
        assert isinstance(received, hvd.Received)
        assert received.source == 1
    else:
        hvd.send(np.ones(1), dst=0)


def send_object():
    if hvd.rank() == 0:
        hvd.send_object({"epoch": 3}, dst=1)
    else:
        assert hvd.recv_object(src=0) == {"epoch": 3}


def recv_object():
    if hvd.rank() == 0:
        message = hvd.recv_object()  # from any rank
        assert (message.source, message.tensor) == (1, "hello")
    else:
        hvd.send_object("hello", dst=0)


def send_object_list():
    if hvd.rank() == 0:
        hvd.send_object_list(["a", {"b": 1}], dst=1)
    else:
        objects = [None, None]
        hvd.recv_object_list(objects, src=0)
        assert objects == ["a", {"b": 1}]


def recv_object_list():
    if hvd.rank() == 1:
        hvd.send_object_list([1, 2], dst=0)
    else:
        objects = [None] * 2  # as long as the list that is sent
        assert hvd.recv_object_list(objects) == 1  # the sender
        assert objects == [1, 2]


# --- process sets ---


def ProcessSet():
    first = hvd.add_process_set(hvd.ProcessSet([0]))
    assert first.ranks == [0]
    if first.included():  # on rank 0
        assert (first.rank(), first.size()) == (0, 1)
        hvd.allreduce(np.ones(2), process_set=first)
    hvd.remove_process_set(first)


def ProcessSet_require_member():
    from hvdlite.requests import Kind

    everyone = hvd.global_process_set
    assert everyone.require_member(Kind.ALLREDUCE) == everyone.process_set_id == 0  # or InvalidArgumentError


def global_process_set():
    assert hvd.global_process_set.size() == hvd.size()
    hvd.barrier(process_set=hvd.global_process_set)  # as hvd.barrier()


def add_process_set():
    last = hvd.add_process_set([hvd.size() - 1])  # all ranks call it, members or not
    assert last.included() == (hvd.rank() == hvd.size() - 1)
    hvd.remove_process_set(last)


def remove_process_set():
    first = hvd.add_process_set([0])
    assert hvd.remove_process_set(first)  # all ranks call it
    assert first.process_set_id is None


# --- compression ---


def Compression():
    x = np.array([0.1, 70000.0], np.float32)
    exact = hvd.allreduce(x, compression=hvd.Compression.none)
    half = hvd.allreduce(x, compression=hvd.Compression.fp16)
    brain = hvd.allreduce(x, compression=hvd.Compression.bf16)
    assert exact.tolist() == x.tolist()
    assert abs(half[0] - x[0]) < 1e-4
    assert half[1] == np.inf  # 65504 is the largest number of float16
    assert abs(brain / x - 1).max() < 1 / 256  # float32's range, with 8 bits of precision
    assert exact.dtype == half.dtype == brain.dtype == np.float32  # results have the tensor's dtype


def Compression_int8():
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    coded = hvd.allreduce(x, compression=hvd.Compression.int8(block=64, between="ranks"))
    assert abs(coded - x).max() <= 2 / 254  # two codings, and the largest value of a block is at most 1


def Compression_int4():
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    coded = hvd.allreduce(x, compression=hvd.Compression.int4(block=64, between="ranks"))
    assert abs(coded - x).max() <= 2 / 14


def Compression_fp8():
    x = np.linspace(0.1, 1, 512, dtype=np.float32)
    coded = hvd.allreduce(x, compression=hvd.Compression.fp8(between="ranks"))
    assert abs(coded / x - 1).max() < 2 / 16


def Compression_powersgd():
    compression = hvd.Compression.powersgd(rank=4, start_step=1000)  # for hvdlite.torch.DistributedOptimizer
    assert compression.compresses(rows=512, columns=512)
    assert not compression.compresses(rows=1, columns=512)  # a vector is sent whole


def AutoCompression():
    from hvdlite.compression import AutoCompression

    x = np.linspace(-1, 1, 512, dtype=np.float32)
    mean = hvd.allreduce(x, compression=hvd.Compression.auto)  # on one host it is Compression.none
    assert mean.tobytes() == hvd.allreduce(x).tobytes()
    beside_computation = hvd.Compression.auto(step_time=0.03)  # seconds of a step without communication
    assert beside_computation == AutoCompression(step_time=0.03)


def Codec():
    from hvdlite.compression import Codec

    codec = Codec("int8", block=128, between="ranks")
    assert codec == hvd.Compression.int8(block=128, between="ranks")
    assert codec.fields["codec_block"] == 128


def Compressor():
    from hvdlite.compression import Compressor

    class Halved(Compressor):
        @staticmethod
        def compress(tensor):
            return tensor.astype(np.float16), tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tensor.astype(ctx)

    mean = hvd.allreduce(np.array([2.0]) * hvd.rank(), compression=Halved)
    assert (mean.tolist(), mean.dtype) == ([1.0], np.float64)


def PowerSGD():
    from hvdlite.compression import PowerSGD

    assert hvd.Compression.powersgd(rank=4) == PowerSGD(rank=4)
    assert PowerSGD(rank=4).compresses(rows=512, columns=512)


# --- statistics ---


def stats():
    before = hvd.stats()
    hvd.allreduce(np.ones(1000))
    cost = hvd.stats() - before
    assert (cost.operations, cost.bytes) == (1, 8000)


def gather_stats():
    everyone = hvd.gather_stats()
    assert [each.rank for each in everyone] == list(range(hvd.size()))


def mark_step():
    before = hvd.stats()
    for _ in range(3):
        hvd.allreduce(np.ones(10))
        hvd.mark_step()
    cost = hvd.stats() - before
    assert (cost.steps, cost.operations / cost.steps) == (3, 1)


def Stats():
    before = hvd.stats()
    hvd.allreduce(np.ones(100_000))
    cost = hvd.stats() - before  # a Stats of the time between the two
    print(f"{cost.bus_bandwidth / 1e9:.1f} GB/s, waited {cost.exposed_waiting_seconds:.3f} s for other ranks")
    print(f"rank {cost.slowest_rank} was the last to ask in {cost.slowest_share:.0%} of the operations")
    assert cost.as_dict()["bytes"] == 800_000


def start_timeline():
    hvd.start_timeline("trace.json")
    hvd.allreduce(np.ones(1000), name="traced")
    hvd.stop_timeline()  # `hvdlite timeline report trace.json` reads the files of all ranks


def stop_timeline():
    from pathlib import Path

    hvd.start_timeline("trace.json")
    hvd.stop_timeline()
    hvd.stop_timeline()  # does nothing, because no timeline is being written
    assert Path("trace.json" if hvd.rank() == 0 else f"trace.rank{hvd.rank()}.json").exists()


# --- checks ---


def check_consistency():
    weights = {"layer": np.ones((4, 3)), "step": 7}
    hvd.check_consistency(weights)  # equal on all ranks, so it returns
    try:
        hvd.check_consistency({"layer": np.ones(3) * hvd.rank()})
    except hvd.MismatchError as error:
        assert "layer" in str(error)  # the text names what differs, where, and the values


def stall_limit():
    if hvd.rank() == 0:
        with hvd.stall_limit(600.0):  # seconds
            pass  # evaluate a model, for example, while the other ranks wait below
    hvd.barrier()


# --- what this build can do ---


def mpi_threads_supported():
    print("mpi4py may be used in other threads:", hvd.mpi_threads_supported())


def mpi_enabled():
    assert hvd.mpi_enabled()


def mpi_built():
    assert hvd.mpi_built()


def gloo_enabled():
    assert not hvd.gloo_enabled()


def gloo_built():
    assert not hvd.gloo_built()


def nccl_built():
    version = hvd.nccl_built()
    print(f"NCCL {version}" if version else "no NCCL, or no GPU")


def ddl_built():
    assert not hvd.ddl_built()


def ccl_built():
    assert not hvd.ccl_built()


def cuda_built():
    print("tensors on GPUs can be reduced" if hvd.cuda_built() else "no GPU, or no driver")


def rocm_built():
    assert not hvd.rocm_built()


# --- memory of a GPU ---


def DeviceArray():
    """It needs a GPU. Where there is none, the tests run it on a fake one."""
    from numba import cuda

    mine = cuda.to_device(np.arange(3, dtype=np.float32) * hvd.rank())
    total = hvd.allreduce(mine, op=hvd.Sum)  # the memory of the result belongs to hvdlite
    assert isinstance(total, hvd.DeviceArray)
    assert (total.shape, total.dtype, total.nbytes) == ((3,), np.float32, 12)
    assert cuda.as_cuda_array(total).copy_to_host().tolist() == [0.0, 1.0, 2.0]


# --- errors ---


def HvdliteError():
    try:
        hvd.broadcast(np.ones(2), root_rank=99)
    except hvd.HvdliteError as error:  # any error of hvdlite
        assert error.code.name == "INVALID_ARGUMENT"


def HorovodInternalError():
    try:
        hvd.allreduce(np.ones(2 + hvd.rank()), name="gradient")
    except hvd.HorovodInternalError as error:  # the operation failed: here the ranks' shapes differ
        assert "gradient" in str(error)


def MismatchError():
    try:
        hvd.allreduce(np.ones(2 + hvd.rank()), name="gradient")
    except hvd.MismatchError as error:
        assert "shape differs" in str(error)
    hvd.barrier()  # hvdlite works on


def InvalidArgumentError():
    try:
        hvd.broadcast(np.ones(2), root_rank=99)
    except hvd.InvalidArgumentError as error:
        assert "root_rank" in str(error)


def UnsupportedError():
    try:
        hvd.allreduce(np.array([True]), op=hvd.Average)
    except hvd.UnsupportedError as error:
        print(error)  # the text says what to do instead


def NotInitializedError():
    hvd.shutdown()
    try:
        hvd.rank()
    except hvd.NotInitializedError:
        hvd.init()


def PeerLostError():
    try:
        hvd.allreduce(np.ones(2), name="gradient")
    except hvd.PeerLostError as error:  # a rank has died
        print(error)  # the text says which one, and why
        raise


def AbortedError():
    if hvd.rank() == 1:
        hvd.shutdown()  # leaves, although rank 0 needs it
    else:
        try:
            hvd.allreduce(np.ones(2), name="gradient")
        except hvd.AbortedError as error:
            assert "1" in str(error)
        hvd.shutdown()
    hvd.init()


def OperationTimeoutError():
    try:
        hvd.allreduce(np.ones(2), name="gradient")
    except hvd.OperationTimeoutError as error:  # another rank waits for something else
        print(error)  # the text lists which rank waits for what
        raise


def SystemFailure():
    try:
        hvd.init()
    except hvd.SystemFailure as error:  # for example, MPI cannot be loaded
        raise SystemExit(f"no training on this machine: {error}") from error


def InternalError():
    try:
        hvd.barrier()
    except hvd.InternalError as error:  # a bug of hvdlite
        print(error)  # please report this text
        raise
