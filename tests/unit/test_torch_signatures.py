"""The torch collectives take Horovod's arguments: names, positions and defaults."""

import inspect

import pytest

pytest.importorskip("torch")

import hvdlite.torch as hvd

ALLREDUCE = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=everyone"
COMPRESSED = (
    "average=None, name=None, compression=none, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=everyone"
)
GATHER = "name=None, process_set=everyone"
BROADCAST = "tensor, root_rank, name=None, process_set=everyone"
ALLTOALL = "tensor, splits=None, name=None, process_set=everyone"
SCATTER = "name=None, compression=none, op=Average, process_set=everyone, prescale_factor=1.0, postscale_factor=1.0"
SCATTER_ASYNC = "name=None, op=Average, process_set=everyone, prescale_factor=1.0, postscale_factor=1.0"

# As in Horovod 0.28.
SIGNATURES = {
    "allreduce": f"tensor, {COMPRESSED}",
    "allreduce_async": f"tensor, {ALLREDUCE}",
    "allreduce_": f"tensor, {ALLREDUCE}",
    "allreduce_async_": f"tensor, {ALLREDUCE}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_async": f"tensors, {ALLREDUCE}",
    "grouped_allreduce_": f"tensors, {ALLREDUCE}",
    "grouped_allreduce_async_": f"tensors, {ALLREDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set=everyone",
    "allgather": f"tensor, {GATHER}",
    "allgather_async": f"tensor, {GATHER}",
    "grouped_allgather": f"tensors, {GATHER}",
    "grouped_allgather_async": f"tensors, {GATHER}",
    "broadcast": BROADCAST,
    "broadcast_async": BROADCAST,
    "broadcast_": BROADCAST,
    "broadcast_async_": BROADCAST,
    "alltoall": ALLTOALL,
    "alltoall_async": ALLTOALL,
    "reducescatter": f"tensor, {SCATTER}",
    "reducescatter_async": f"tensor, {SCATTER_ASYNC}",
    "grouped_reducescatter": f"tensors, {SCATTER}",
    "grouped_reducescatter_async": f"tensors, {SCATTER_ASYNC}",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": "process_set=everyone",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    names = {"none": hvd.Compression.none, "everyone": hvd.global_process_set, "Average": hvd.Average}
    theirs = inspect.signature(eval(f"lambda {SIGNATURES[name]}: None", names)).parameters
    ours = inspect.signature(getattr(hvd, name)).parameters
    positional = [parameter for parameter in ours.values() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [parameter.name for parameter in positional] == list(theirs)
    for parameter in positional:
        default = parameter.default
        # The functions that the core has, too, say None for no compression.
        wanted = theirs[parameter.name].default
        assert default == wanted or (default is None and wanted is hvd.Compression.none), parameter.name


def test_operators_are_horovods_numbers():
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
