"""Adasum through the public functions: against a model in NumPy, on process sets, with torch tensors."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD

RANK, SIZE = WORLD.rank, WORLD.size
POSSIBLE = SIZE & (SIZE - 1) == 0


def values(rank, salt, shape):
    return np.random.default_rng([rank, salt]).standard_normal(shape) + 1.0


def adasum(tensors):
    while len(tensors) > 1:
        tensors = [pair(*tensors[place : place + 2]) for place in range(0, len(tensors), 2)]
    return tensors[0]


def pair(a, b):
    dot = (a * b).sum()
    return (1 - dot / (a * a).sum() / 2) * a + (1 - dot / (b * b).sum() / 2) * b


def same_everywhere(array):
    assert len(set(WORLD.allgather(np.asarray(array).tobytes()))) == 1


@pytest.mark.skipif(not POSSIBLE, reason="the number of ranks is no power of two")
def test_allreduce(hvd):
    for repeat in REPEATS:
        for shape in ((), (1,), (7, 3), (40000,)):
            everyone = [values(rank, repeat, shape) for rank in range(SIZE)]
            out = hvd.allreduce(everyone[RANK], name=f"a{shape}", op=hvd.Adasum)
            np.testing.assert_allclose(out, adasum(everyone), rtol=1e-11)
            same_everywhere(out)
            mine = np.array(everyone[RANK])
            assert hvd.allreduce_(mine, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=4.0) is mine
            np.testing.assert_allclose(mine, 2 * adasum(everyone), rtol=1e-11)


@pytest.mark.skipif(not POSSIBLE, reason="the number of ranks is no power of two")
def test_grouped_and_async(hvd):
    shapes = [(3,), (50, 7), (0, 2), (1,)]
    for repeat in REPEATS:
        everyone = [[values(rank, repeat + place, shape) for place, shape in enumerate(shapes)] for rank in range(SIZE)]
        wanted = [adasum([tensors[place] for tensors in everyone]) if place != 2 else np.empty((0, 2)) for place in range(4)]
        for name in ("g", None):
            for out, right in zip(hvd.grouped_allreduce(everyone[RANK], name=name, op=hvd.Adasum), wanted, strict=True):
                np.testing.assert_allclose(out, right, rtol=1e-11)
                same_everywhere(out)
        handles = [hvd.allreduce_async(tensor, name=f"h{place}", op=hvd.Adasum) for place, tensor in enumerate(everyone[RANK])]
        for handle, right in zip(handles, wanted, strict=True):
            np.testing.assert_allclose(handle.synchronize(), right, rtol=1e-11)


@pytest.mark.skipif(SIZE < 3, reason="the set is two of several ranks")
def test_on_a_process_set(hvd):
    """A set of two works whatever the number of ranks in the job."""
    hvd.shutdown()
    pair_of_ranks = hvd.ProcessSet([0, SIZE - 1])
    hvd.init(process_sets=[pair_of_ranks])
    if RANK in pair_of_ranks.ranks:
        for repeat in REPEATS:
            everyone = [values(rank, repeat, 9) for rank in pair_of_ranks.ranks]
            out = hvd.allreduce(everyone[pair_of_ranks.rank()], op=hvd.Adasum, process_set=pair_of_ranks)
            np.testing.assert_allclose(out, pair(*everyone), rtol=1e-11)
    hvd.shutdown()
    hvd.init()


@pytest.mark.skipif(not POSSIBLE or SIZE == 1, reason="the number of ranks is no power of two")
def test_a_joined_rank_changes_nothing(hvd):
    if RANK == SIZE - 1:
        hvd.join()
        return
    everyone = [values(rank, 5, 9) for rank in range(SIZE)]
    zero = np.zeros(9)
    out = hvd.allreduce(everyone[RANK], name="left", op=hvd.Adasum)
    left = everyone[0] if SIZE == 2 else pair(pair(*everyone[:2]), everyone[2])
    np.testing.assert_allclose(out, left + zero, rtol=1e-11)
    hvd.join()


@pytest.mark.skipif(not POSSIBLE, reason="the number of ranks is no power of two")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch(hvd, dtype):
    torch = pytest.importorskip("torch")
    everyone = [torch.from_numpy(values(rank, 3, (4, 5))).to(getattr(torch, dtype)) for rank in range(SIZE)]
    out = hvd.allreduce(everyone[RANK].t(), op=hvd.Adasum)
    assert out.dtype is everyone[0].dtype
    right = adasum([tensor.double().numpy() for tensor in everyone]).T
    np.testing.assert_allclose(
        out.double().numpy(), right, rtol={"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}.get(dtype, 1e-11)
    )


def test_what_is_refused(hvd):
    if not POSSIBLE:
        said = rf"allreduce of 'x' in process set 0: Running Adasum with non-power of 2 ranks .*has {SIZE} ranks.*set of 2"
        with pytest.raises(NotImplementedError, match=said):
            hvd.allreduce(np.ones(2), name="x", op=hvd.Adasum)
        return
    with pytest.raises(
        NotImplementedError, match=r"allreduce of 'x' in process set 0: Adasum of int64 is not supported: cast it"
    ):
        hvd.allreduce(np.ones(2, int), name="x", op=hvd.Adasum)
    with pytest.raises(
        NotImplementedError, match=r"reducescatter of 'x' in .*Reducescatter currently only supports AVERAGE and SUM"
    ):
        hvd.reducescatter(np.ones(SIZE), name="x", op=hvd.Adasum)
    if SIZE > 1:
        with pytest.raises(hvd.MismatchError, match=r"reduce op differs: Adasum on ranks? 0.*, Sum on rank"):
            hvd.allreduce(np.ones(2), name="x", op=hvd.Sum if RANK == SIZE - 1 else hvd.Adasum)
