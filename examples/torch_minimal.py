"""Trains one small network on all ranks: mpirun -n 2 python examples/torch_minimal.py. The loss falls below 0.2."""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hvdlite.torch as hvd

hvd.init()

# All ranks make the same data. The sampler gives each rank a part of it.
x = torch.randn(4096, 20, generator=torch.Generator().manual_seed(0))
y = (x[:, :4].sum(1) > 0).long()
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # when it returns, every .grad is the average over all ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    loss = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss:.4f} on {hvd.size()} ranks")
