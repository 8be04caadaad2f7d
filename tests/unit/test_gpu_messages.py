"""Messages of GPU tensors: they go through host memory, in the order of their streams, and match messages of host memory."""

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import gpu_engines, run_gpu_ranks
from support.seeds import seeds
from support.thread_ranks import in_threads

from hvdlite.dtypes import code_of_name
from hvdlite.errors import HorovodInternalError, InvalidArgumentError, MismatchError, OperationTimeoutError
from hvdlite.requests import Kind, Request

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

SMALL, LARGE = 5, 30_000


def values(rank, count, salt=0):
    return ((np.arange(count) * 7 + rank * 3 + salt) % 101).astype(np.float32)


def post(rank, kind, array, peer, tag=0, name=""):
    """Starts a send or receive of an array on a GPU, or of one of NumPy's."""
    if isinstance(array, np.ndarray):
        request = {"dtype": int(code_of_name(array.dtype.name)), "shape": array.shape}
        pointer = array.ctypes.data
    else:
        request = rank.request(kind, name, array)
        pointer = array.ptr
    ends = {"input_ptr": pointer, "output_ptr": 0} if kind == Kind.SEND else {"input_ptr": 0, "output_ptr": pointer}
    return rank.engine.submit((Request(**{**request, "kind": kind, "name": name, "root": peer, "tag": tag, **ends}),), array)


def send(rank, array, peer, tag=0, name=""):
    return post(rank, Kind.SEND, array, peer, tag, name)


def recv(rank, array, peer, tag=0, name=""):
    return post(rank, Kind.RECV, array, peer, tag, name)


def room(rank, count):
    return rank.array(np.full(count, -1, np.float32))


@pytest.mark.parametrize("hosts", [None, [0, 1]], ids=["one host", "two hosts"])
@pytest.mark.parametrize("seed", seeds(range(3)))
def test_they_come_in_the_order_of_their_streams(fake_gpus, seed, hosts):  # noqa: F811
    """Tensors are written late, results are read at once, and other values overwrite what was sent."""
    fake_gpus.set(seed=seed, delay=300)

    def body(rank):
        other = 1 - rank.rank
        for turn, count in enumerate((SMALL, LARGE, 0, LARGE, SMALL)):
            mine, got, other_values = room(rank, count), room(rank, count), room(rank, count)
            source = rank.array(values(rank.rank, count, turn))
            rank.stream.busy(0.002)
            mine.copy(source)
            works = [recv(rank, got, other), send(rank, mine, other)]
            for work in reversed(works):
                rank.wait(work)
            mine.copy(other_values)
            np.testing.assert_array_equal(got.numpy(), values(other, count, turn))

    with gpu_engines(fake_gpus, 2, hosts=hosts) as ranks:
        in_threads(ranks, body, timeout=60)
        assert all(rank.counters()["staged_ops"] == 8 for rank in ranks)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_gpu_and_the_host_send_each_other(fake_gpus, count):  # noqa: F811
    def body(rank):
        if rank.rank == 0:
            rank.wait(send(rank, rank.array(values(0, count)), 1))
            rank.wait(recv(rank, got := room(rank, count), 1))
            np.testing.assert_array_equal(got.numpy(), values(1, count))
        else:
            recv(rank, got := np.empty(count, np.float32), 0).result()
            np.testing.assert_array_equal(got, values(0, count))
            send(rank, values(1, count), 0).result()

    run_gpu_ranks(fake_gpus, 2, body)


@pytest.mark.parametrize("hosts", [None, [0, 1]], ids=["one host", "two hosts"])
def test_a_tensor_that_is_late_is_not_overtaken(fake_gpus, hosts):  # noqa: F811
    """By a message of one tag and rank; one to another rank does not wait for it."""

    def body(rank):
        if rank.rank == 0:
            late, source, host = room(rank, LARGE), rank.array(values(0, LARGE)), values(0, LARGE, 1)
            with fake_gpus.held(rank.stream):
                late.copy(source)
                works = [send(rank, late, 1), send(rank, host, 1)]
                send(rank, values(0, LARGE, 2), 2).result()
                recv(rank, np.empty(1, np.float32), 2).result()
                assert not any(work.poll() for work in works)
            for work in works:
                rank.wait(work)
        else:
            for salt in (0, 1) if rank.rank == 1 else (2,):
                recv(rank, got := np.empty(LARGE, np.float32), 0).result()
                np.testing.assert_array_equal(got, values(0, LARGE, salt))
            if rank.rank == 2:
                send(rank, np.ones(1, np.float32), 0).result()

    with gpu_engines(fake_gpus, 3, hosts=hosts and [0, 1, 1]) as ranks:
        in_threads(ranks, body, timeout=60)


def test_to_oneself(fake_gpus):  # noqa: F811
    """From GPU to GPU, to the host, and from there; also between two GPUs of one rank."""

    def body(rank):
        mine, other = rank.array(values(0, LARGE)), rank.array(values(1, LARGE), device=1)
        got, host = room(rank, LARGE), np.empty(LARGE, np.float32)
        works = [recv(rank, got, 0), recv(rank, host, 0, tag=1), send(rank, mine, 0), send(rank, other, 0, tag=1)]
        for work in works:
            rank.wait(work)
        np.testing.assert_array_equal(got.numpy(), values(0, LARGE))
        np.testing.assert_array_equal(host, values(1, LARGE))
        works = [send(rank, values(2, SMALL), 0, tag=2), recv(rank, small := room(rank, SMALL), 0, tag=2)]
        for work in works:
            rank.wait(work)
        np.testing.assert_array_equal(small.numpy(), values(2, SMALL))

    run_gpu_ranks(fake_gpus, 1, body)


def test_what_does_not_fit_is_named_on_both_ranks(fake_gpus):  # noqa: F811
    def body(rank):
        array = room(rank, SMALL + rank.rank)
        with pytest.raises(MismatchError, match="rank 0 sent 'out', 5 elements of float32, but rank 1 receives 6 elements"):
            rank.wait((recv if rank.rank else send)(rank, array, 1 - rank.rank, name="in" if rank.rank else "out"))

    run_gpu_ranks(fake_gpus, 2, body)


def test_sends_towards_each_other_are_named(fake_gpus):  # noqa: F811
    """However small: what is on a GPU waits for its receive."""

    def body(rank):
        with pytest.raises(OperationTimeoutError, match=r"rank 0 waits for send of 'x' to rank 1 \(tag 0\)"):
            rank.wait(send(rank, room(rank, SMALL), 1 - rank.rank, name="x"))

    run_gpu_ranks(fake_gpus, 2, body, {"deadlock_timeout": 0.2})


def test_what_one_rank_alone_can_refuse(fake_gpus):  # noqa: F811
    def body(rank):
        request = rank.request(Kind.SEND, "x", rank.array(values(0, SMALL)))
        for wrong, text in (({"device": 77}, "there is no GPU 77"), ({"device": 1}, "not on GPU 1 but on GPU 0")):
            with pytest.raises(InvalidArgumentError, match=text):
                rank.engine.submit((Request(**{**request, "root": 0, **wrong}),))
        assert rank.counters()["submitted"] == 0

    run_gpu_ranks(fake_gpus, 1, body)


@pytest.mark.parametrize("fails", [1, 2], ids=["to the host", "from the host"])
def test_a_copy_that_fails_ends_all_that_waits(fake_gpus, fails):  # noqa: F811
    """On both ranks, with the operation whose copy it was."""

    def body(rank):
        def both():
            rank.wait((recv if rank.rank else send)(rank, arrays[rank.rank], 1 - rank.rank, name="x"))
            rank.host.barrier("never")

        with pytest.raises(HorovodInternalError, match="cuMemcpyAsync"):
            both()

    with gpu_engines(fake_gpus, 2) as ranks:
        arrays = [rank.array(values(0, LARGE)) for rank in ranks]
        fake_gpus.idle()
        fake_gpus.fail("cuMemcpyAsync", nth=fails, code=2)
        in_threads(ranks, body, timeout=60)
