"""PyTorch: DistributedOptimizer in a stock loop against one process on the whole batch, and a mismatch."""

import torch
from checks import assert_close, assert_same_bits, mine, refused, samples

import hvdlite.torch as hvd


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


hvd.init()
torch.set_num_threads(1)
rank, size = hvd.rank(), hvd.size()

ones = torch.full((3, 2), float(rank + 1), requires_grad=True)
hvd.allreduce(ones, name="gradient", op=hvd.Sum).sum().backward()
assert (ones.grad == size).all()
halves = torch.full((5,), rank + 0.5, dtype=torch.bfloat16)
assert (hvd.allreduce(halves, name="mean") == size / 2).all()
assert hvd.allgather(torch.arange(rank + 1), name="rows").tolist() == [row for other in range(size) for row in range(other + 1)]

inputs, targets = samples()
model = network(seed=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
train(model, optimizer, torch.from_numpy(mine(inputs)), torch.from_numpy(mine(targets)))
reference = network(seed=0)
train(
    reference,
    torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9),
    torch.from_numpy(inputs),
    torch.from_numpy(targets),
)
trained = [parameter.detach().numpy() for parameter in model.parameters()]
assert_same_bits(trained, "weights after training")
assert_close(trained, [parameter.detach().numpy() for parameter in reference.parameters()], "weights of one process")

with refused(hvd.HorovodInternalError, "shape differs", "'other'", "rank 1"):
    hvd.allreduce(torch.ones(4 + rank), name="other")
