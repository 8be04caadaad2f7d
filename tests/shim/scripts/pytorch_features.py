"""Pieces of Horovod programs: process sets, objects, handles, clipping in Horovod's own way, helpers, basics."""

import json
import os
import pathlib
import tempfile
import warnings

import horovod
import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.common.util import env, gpu_available, split_list
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.util.threads import in_thread
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import Sum, _basics, allreduce_async_, poll, synchronize
from horovod.torch.optimizer import DistributedOptimizer

first = ProcessSet([0])
hvd.init(process_sets=[first])
rank, size = hvd.rank(), hvd.size()
assert (size, hvd.local_size(), hvd.cross_size()) == (2, 2, 1)
assert hvd.mpi_enabled() and hvd.mpi_built() and not hvd.gloo_enabled()
assert _basics._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0]}
if first.included():
    alone = hvd.allreduce(torch.tensor([5.0]), name="alone", process_set=first)
    assert alone.item() == 5.0
try:
    hvd.add_process_set([1])
except ValueError as error:
    assert "HOROVOD_DYNAMIC_PROCESS_SETS=1" in str(error)
else:
    raise AssertionError("a process set was added without permission")

# handles
x = torch.arange(4.0) + rank
handle = allreduce_async_(x, name="x", op=Sum)
result = synchronize(handle)
assert result.tolist() == [1.0, 3.0, 5.0, 7.0] and x.tolist() == result.tolist()
handle = hvd.allreduce_async(torch.ones(2) * rank, average=True, name="y")
while not poll(handle):
    pass
assert synchronize(handle).tolist() == [0.5, 0.5]
grouped = hvd.grouped_allreduce([torch.tensor(1.0 + rank), torch.ones(3)], name="g", op=hvd.Sum)
assert grouped[0].item() == 3.0

# objects
settings = broadcast_object({"lr": 0.1, "rank": rank}, root_rank=1, name="settings")
assert settings["rank"] == 1
assert hvd.allgather_object(rank) == [0, 1]

# clipping as Horovod's documentation has it
torch.manual_seed(rank)
model = torch.nn.Linear(3, 1)
optimizer = DistributedOptimizer(
    torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters(), compression=Compression.none
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()
model(torch.randn(5, 3)).square().mean().backward()
optimizer.synchronize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.step()
assert ["without optimizer.skip_synchronize() context" in str(each.message) for each in caught] == [True]
assert {name: tuple(param.shape) for param, name in optimizer._parameter_names.items()} == {"weight": (1, 3), "bias": (1,)}
assert isinstance(optimizer, horovod.torch.optimizer._DistributedOptimizer)
# what Lightning 1.9 makes: a class beside the optimizer's first base
proxy = type("Proxy", (object,), {})()
proxy.__class__ = type("LightningAdam", (proxy.__class__, type(optimizer).__bases__[0]), {})
proxy.synchronize = optimizer.synchronize
weights = hvd.allgather(model.weight.detach(), name="w")
assert torch.equal(weights[0], weights[1])

# a mistake is a HorovodInternalError, as there, and the program goes on
try:
    hvd.allreduce(torch.ones(3 + rank), name="wrong")
except HorovodInternalError as error:
    assert "shape differs" in str(error)
else:
    raise AssertionError("shapes that differ went through")

with tempfile.TemporaryDirectory() as folder:
    hvd.start_timeline(f"{folder}/timeline.json", mark_cycles=True)
    hvd.allreduce(torch.full((3,), float(rank)), name="traced")
    hvd.stop_timeline()
    trace = pathlib.Path(folder) / ("timeline.rank1.json" if rank else "timeline.json")
    assert any("traced" in str(event["args"]) for event in json.loads(trace.read_text()))

# helpers
with env(SOME_SETTING="1"):
    assert os.environ["SOME_SETTING"] == "1"
assert get_env_rank_and_size() == (rank, size)
seen = []
in_thread(seen.append, (rank,)).join()
assert seen == [rank]
assert [int(part) for part in horovod.__version__.split(".")] == [0, 28, 1]
assert split_list([1, 2, 3], 2) == [[1, 2], [3]]
assert gpu_available("torch") == torch.cuda.is_available()

late = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
if rank == 0:
    hvd.join()
else:
    model(torch.ones(5, 3)).mean().backward()  # its first step, of which rank 0 has none
    late.step()
    assert hvd.allreduce(torch.tensor(4.0), name="tail", op=hvd.Sum).item() == 4.0
    for call in (lambda: hvd.allgather(torch.ones(2)), lambda: hvd.broadcast(torch.ones(2), 1)):
        try:
            call()
        except HorovodInternalError as error:
            assert "is not supported with Join at this time" in str(error)
        else:
            raise AssertionError("only allreduce goes on while ranks have joined")
    hvd.join()
hvd.barrier()
print(f"rank {rank} has done all")
hvd.shutdown()
