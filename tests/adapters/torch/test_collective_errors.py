"""Wrong uses of the collectives: the class that Horovod's users catch, and a text that says what, who and how to go on."""

import pytest
import torch
from mpi4py import MPI
from torch.autograd import forward_ad

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
ODD = RANK == SIZE - 1
ONE = torch.ones(1)
COORDINATES = torch.sparse_coo_tensor([[0]], [1.0], (3,))

# Refused at the call, on the rank that made it: the call, the class beside HvdliteError, and what is said.
REFUSED = {
    "op and average": (lambda hvd: hvd.allreduce(ONE, average=True, op=hvd.Sum), ValueError, "op parameter supersedes average"),
    "no operator": (
        lambda hvd: hvd.allreduce(ONE, op="sum"),
        ValueError,
        "op='sum' is no reduce operator: pass hvdlite.Average",
    ),
    "dtype": (
        lambda hvd: hvd.allreduce(torch.ones(1).to(torch.float8_e5m2), name="x"),
        ValueError,
        "allreduce of 'x' in process set 0: a torch tensor of dtype float8_e5m2 cannot be sent: hvdlite knows .*; convert it",
    ),
    "bool average": (
        lambda hvd: hvd.grouped_allreduce([ONE > 0, ONE > 1], name="x"),
        NotImplementedError,
        r"allreduce of 'x_1of2' in process set 0: Average of bool is not supported: use Max \(any\)",
    ),
    "scaled bool": (
        lambda hvd: hvd.allreduce(ONE > 0, op=hvd.Max, name="x", prescale_factor=2.0),
        ValueError,
        "allreduce of 'x' in process set 0: bool cannot be scaled; cast it to a number first",
    ),
    "complex max": (
        lambda hvd: hvd.allreduce_(ONE.to(torch.complex64), op=hvd.Max, name="x"),
        NotImplementedError,
        "allreduce of 'x' in process set 0: Max of complex64 is not supported: complex numbers have Sum and Average only",
    ),
    "device": (
        lambda hvd: hvd.grouped_allreduce([ONE, ONE.to("meta")], name="x"),
        NotImplementedError,
        r"allreduce of 'x' in process set 0: this torch tensor is on meta, .*pass its .cpu\(\)",
    ),
    "sparse": (
        lambda hvd: hvd.allreduce(COORDINATES, name="x"),
        NotImplementedError,
        r"allreduce of 'x' in process set 0: a torch tensor of layout torch.sparse_coo cannot be sent .*to_dense",
    ),
    "dense as sparse": (lambda hvd: hvd.sparse_allreduce_async(ONE, "x", hvd.Sum), ValueError, "takes tensors of layout"),
    "sparse op": (lambda hvd: hvd.sparse_allreduce_async(COORDINATES, "x", hvd.Max), ValueError, "op=Average or op=Sum"),
    "adasum of integers": (
        lambda hvd: hvd.allreduce(ONE.int(), op=hvd.Adasum, name="x"),
        NotImplementedError,
        "allreduce of 'x' in process set 0: Adasum of int32 is not supported: cast it to float16",
    ),
    "scalar allgather": (
        lambda hvd: hvd.allgather(torch.tensor(1.0), name="x"),
        ValueError,
        r"allgather of 'x' in process set 0: .*does not support scalar inputs.*reshape it to \[1\]",
    ),
    "scalar allgather with gradient": (
        lambda hvd: hvd.allgather(torch.tensor(1.0, requires_grad=True), name="x"),
        ValueError,
        r"allgather of 'x' in process set 0: .*does not support scalar inputs.*reshape it to \[1\]",
    ),
    "scalar alltoall": (
        lambda hvd: hvd.alltoall(torch.tensor(1.0)),
        ValueError,
        "alltoall of an unnamed tensor .*scalar inputs",
    ),
    "scalar reducescatter": (
        lambda hvd: hvd.grouped_reducescatter([torch.tensor(1.0)], name="x"),
        ValueError,
        "reducescatter of 'x' in process set 0: Reducescatter does not support scalar inputs",
    ),
    "reducescatter op": (
        lambda hvd: hvd.reducescatter(torch.ones(SIZE), op=hvd.Min, name="x"),
        NotImplementedError,
        "reducescatter of 'x' in process set 0: Reducescatter currently only supports AVERAGE and SUM, not Min; use allreduce",
    ),
    "reducescatter op with gradient": (
        lambda hvd: hvd.reducescatter(torch.ones(SIZE, requires_grad=True), op=hvd.Min, name="x"),
        NotImplementedError,
        "reducescatter of 'x' in process set 0: Reducescatter currently only supports AVERAGE and SUM, not Min; use allreduce",
    ),
    "root": (
        lambda hvd: hvd.broadcast(ONE, SIZE, name="x"),
        ValueError,
        rf"broadcast of 'x' in process set 0: .* invalid root rank {SIZE} for provided process set \(ranks \[0, ",
    ),
    "2-d splits": (
        lambda hvd: hvd.alltoall(torch.ones(SIZE), torch.ones(1, SIZE, dtype=torch.int32), name="x"),
        ValueError,
        "alltoall of 'x' in process set 0: alltoall expects a 1D splits tensor",
    ),
    "fractional splits": (
        lambda hvd: hvd.alltoall(torch.ones(SIZE), torch.ones(SIZE), name="x"),
        ValueError,
        "alltoall of 'x' in process set 0: alltoall expects splits to be integers",
    ),
    "too many splits": (
        lambda hvd: hvd.alltoall(torch.ones(SIZE), [0] * (SIZE + 1), name="x"),
        ValueError,
        rf"set 0: Number of entries in splits does not equal number of workers. \({SIZE + 1} entries, {SIZE} ranks\)",
    ),
    "too large splits": (
        lambda hvd: hvd.alltoall(torch.ones(SIZE), [2] * SIZE, name="x"),
        ValueError,
        "in process set 0: Sum of splits entries is greater than the first dimension of tensor",
    ),
    "uneven rows": (
        lambda hvd: hvd.alltoall(torch.ones(SIZE + 1), name="x"),
        ValueError,
        "splits not provided, but first dimension of tensor is not an even multiple of the number of workers.*pass splits",
    ),
    "unregistered set": (
        lambda hvd: hvd.allgather(ONE, process_set=hvd.ProcessSet([0])),
        ValueError,
        "Allgather: Process set provided does not exist, or has not been registered.*add_process_set",
    ),
    "no set": (lambda hvd: hvd.barrier(process_set=0), ValueError, "process_set=0 is no ProcessSet"),
    "no handle": (lambda hvd: hvd.synchronize(17), ValueError, "17 is no handle"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_the_call(hvd, case):
    call, kind, said = REFUSED[case]
    if RANK == 0:  # the other ranks are not involved
        with pytest.raises(kind, match=said) as error:
            call(hvd)
        assert isinstance(error.value, RuntimeError), "what Horovod's errors are"
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="after").tolist() == [SIZE] * 2


COLLECTIVES = {
    "allreduce": lambda hvd, x: hvd.allreduce(x),
    "allreduce_": lambda hvd, x: hvd.allreduce_(x),
    "allreduce_async": lambda hvd, x: hvd.synchronize(hvd.allreduce_async(x)),
    "grouped_allreduce_": lambda hvd, x: hvd.grouped_allreduce_([x])[0],
    "allgather": lambda hvd, x: hvd.allgather(x),
    "grouped_allgather": lambda hvd, x: hvd.grouped_allgather([x])[0],
    "broadcast": lambda hvd, x: hvd.broadcast(x, 0),
    "broadcast_": lambda hvd, x: hvd.broadcast_(x, 0),
    "alltoall": lambda hvd, x: hvd.alltoall(x),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x),
    "SyncBatchNorm": lambda hvd, x: hvd.SyncBatchNorm(1)(x[:, None]),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_forward_mode_and_torch_func_make_of_tensors_is_refused(hvd, name, needs_grad):
    if needs_grad and name.endswith(("_", "async")):
        pytest.skip("takes no part in autograd")

    def call(x):
        return COLLECTIVES[name](hvd, x * 1 + value.sum() * 0)

    value = (torch.arange(12.0) + RANK).requires_grad_(needs_grad)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"a dual tensor .* Send primal and tangent"):
        call(forward_ad.make_dual(value.detach(), torch.ones(12)))
    with pytest.raises(NotImplementedError, match=r"inside of torch\.func\.vmap, jvp, grad .* Call it outside"):
        torch.func.vmap(call)(torch.ones(2, 12))
    with pytest.raises(NotImplementedError, match=r"inside of torch\.func|a dual tensor"):
        torch.func.jvp(call, (value.detach(),), (torch.ones(12),))
    with pytest.raises(NotImplementedError, match=r"inside of torch\.func"):
        torch.func.grad(lambda x: call(x).sum())(value.detach())
    with forward_ad.dual_level():  # without a tangent all is as usual
        assert len(call(value.detach())) >= 2


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "SyncBatchNorm"])
def test_a_tensor_without_memory_is_refused(hvd, name):
    freed = torch.ones(12)
    freed.untyped_storage().resize_(0)
    with pytest.raises(NotImplementedError, match="this torch tensor has no memory of its own"):
        COLLECTIVES[name](hvd, freed)
    with pytest.raises(NotImplementedError, match="this torch tensor has no memory of its own"):
        torch.func.functionalize(lambda x: COLLECTIVES[name](hvd, x))(torch.ones(12))


def test_a_derivative_in_batches_is_refused(hvd):
    value = (torch.ones(SIZE) + RANK).requires_grad_()
    with pytest.raises(NotImplementedError, match=r"vectorized jacobians and batched gradients"):
        torch.autograd.functional.jacobian(hvd.allreduce, value, vectorize=True)
    whole = torch.autograd.functional.jacobian(hvd.allreduce, value)
    assert torch.equal(whole, torch.eye(SIZE))


def rows(count):
    return torch.ones(count, 2)


# What the last rank of the set asks for differently: the call (of the set, and whether this rank is the odd one), and what is
# said with {others} and {odd} for the ranks.
DIFFERENT = {
    "dtype": (
        lambda hvd, s, odd: hvd.allreduce(ONE.double() if odd else ONE, name="t", process_set=s),
        "allreduce of 't' in process set {set}: dtype differs: float32 on {others}, float64 on {odd}; give them one dtype",
    ),
    "shape": (
        lambda hvd, s, odd: hvd.allreduce_(rows(3 + odd), name="t", process_set=s),
        "shape differs: [3, 2] on {others}, [4, 2] on {odd}; give them one shape",
    ),
    "op": (
        lambda hvd, s, odd: hvd.allreduce(ONE, op=hvd.Sum if odd else hvd.Max, name="t", process_set=s),
        "reduce op differs: Max on {others}, Sum on {odd}; pass the same op",
    ),
    "factors": (
        lambda hvd, s, odd: hvd.grouped_allreduce([ONE, ONE], name="t", prescale_factor=1 + odd, process_set=s),
        "allreduce of 't_1of2' in process set {set}: scaling differs: prescale 1, postscale 1 on {others}, prescale 2,",
    ),
    "root": (
        lambda hvd, s, odd: hvd.broadcast_(ONE.clone(), s.ranks[-1 if odd else 0], name="t", process_set=s),
        "broadcast of 't' in process set {set}: root rank differs: root {first} on {others}, root {last} on {odd}; pass",
    ),
    "dimensions of allgather": (
        lambda hvd, s, odd: hvd.allgather(rows(RANK).reshape(RANK, *[1] * odd, 2), name="t", process_set=s),
        "allgather of 't' in process set {set}: shape differs: [*, 2] on {others}, [*, 1, 2] on {odd}; give them",
    ),
    "columns of alltoall": (
        lambda hvd, s, odd: hvd.alltoall(torch.ones(s.size(), 2 + odd), name="t", process_set=s),
        "alltoall of 't' in process set {set}: shape differs: [*, 2] on {others}, [*, 3] on {odd}",
    ),
    "rows of reducescatter": (
        lambda hvd, s, odd: hvd.reducescatter(rows(3 + odd), name="t", process_set=s),
        "reducescatter of 't' in process set {set}: shape differs: [3, 2] on {others}, [4, 2] on {odd}",
    ),
    "op of reducescatter": (
        lambda hvd, s, odd: hvd.reducescatter(rows(3), op=hvd.Sum if odd else hvd.Average, name="t", process_set=s),
        "reduce op differs: Average on {others}, Sum on {odd}",
    ),
}


@pytest.fixture(scope="module", params=["global", "a set"])
def process_set(hvd, request):
    """All ranks, and those without rank 0."""
    if request.param == "global":
        return hvd.global_process_set
    if SIZE < 3:
        pytest.skip("a set of two of several ranks")
    return hvd.add_process_set(range(1, SIZE))


def list_of(ranks):
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_ranks_disagree_about(hvd, process_set, case):
    call, said = DIFFERENT[case]
    text = ""
    if process_set.included():
        with pytest.raises(hvd.HorovodInternalError) as error:
            call(hvd, process_set, int(ODD))
        text = str(error.value)
        ranks = process_set.ranks
        names = {"others": list_of(ranks[:-1]), "odd": list_of(ranks[-1:]), "first": ranks[0], "last": ranks[-1]}
        assert said.format(set=process_set.process_set_id, **names) in text
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="t", process_set=process_set).tolist() == [len(ranks)] * 2
    assert len(set(WORLD.allgather(text)) - {""}) == 1, "one text on all ranks"


def test_outside_the_set(hvd, process_set):
    if process_set.included():
        return
    for name, call in {
        "Allreduce": lambda: hvd.allreduce(ONE, process_set=process_set),
        "Allgather": lambda: hvd.allgather(ONE, process_set=process_set),
        "Broadcast": lambda: hvd.broadcast(ONE, 1, process_set=process_set),
        "Alltoall": lambda: hvd.alltoall(ONE, process_set=process_set),
        "Reducescatter": lambda: hvd.reducescatter(ONE, process_set=process_set),
        "Barrier": lambda: hvd.barrier(process_set),
        "Join": lambda: hvd.join(process_set=process_set),
    }.items():
        with pytest.raises(ValueError, match=rf"{name}: Rank 0 is not a member of the provided process set.*ranks=\[1, 2\]"):
            call()


def test_root_outside_the_set(hvd, process_set):
    if process_set.process_set_id and process_set.included():
        with pytest.raises(ValueError, match=r"invalid root rank 0 for provided process set \(ranks \[1, 2\]\)"):
            hvd.broadcast(ONE, 0, process_set=process_set)


def test_a_name_in_flight(hvd):
    if RANK == 0:
        first = hvd.allreduce_async(ONE, op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match=r"allreduce of 'twice' in process set 0: .* still in flight .*different names"):
            hvd.allreduce_async(ONE, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(ONE, op=hvd.Sum, name="twice")
    assert hvd.synchronize(first).tolist() == [SIZE]
    assert hvd.synchronize(first) is None, "as Horovod's of a handle that was synchronised"


def test_a_joined_root(hvd):
    if RANK == 0:
        hvd.join()
        return
    said = r"broadcast of 'lost' in process set 0: the root, rank 0, has joined and has nothing to send; choose a root"
    with pytest.raises(hvd.HorovodInternalError, match=said):
        hvd.broadcast(ONE, 0, name="lost")
    hvd.join()


def test_after_shutdown(hvd):
    """Last in this file. Horovod's class is a RuntimeError here and a ValueError there."""
    handle = hvd.allreduce_async(ONE)
    hvd.synchronize(handle)
    hvd.shutdown()
    for call in (lambda: hvd.allreduce(ONE), lambda: hvd.join(), lambda: hvd.barrier(), lambda: hvd.allgather(ONE), hvd.rank):
        for kind in (ValueError, RuntimeError):
            with pytest.raises(kind, match=r"Horovod has not been initialized; use hvd.init\(\)"):
                call()
    hvd.init(process_sets="dynamic")
    assert hvd.allreduce(ONE, op=hvd.Sum).tolist() == [SIZE]
