"""Makes two trainings in one job: each half of the ranks trains its own model, and all ranks compare the results.

    mpirun -n 4 python torch_process_sets.py

You should see the losses of both trainings, and that all ranks take the better model.

The program needs at least two ranks. A process set is some of the ranks. Collectives and DistributedOptimizer work on a set as
they do on all ranks. Different sets do not wait for each other. Here the even ranks train with one learning rate and the odd
ranks with another. The better model is kept.
"""

import common
import torch
from torch import nn

import hvdlite.torch as hvd


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of training")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in a batch of each rank")
    parser.add_argument("--lrs", type=float, nargs=2, default=(0.3, 0.003), help="learning rates of even and odd ranks")
    return parser.parse_args(argv)


def batch(step, size):
    """Points, and for each point whether it is inside a circle. They differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    points = 2 * torch.rand(size, 2, generator=generator) - 1
    return points, (points.square().sum(1) < 0.6).long()


def train(process_set, lr, arguments):
    """Trains on the ranks of one set. Returns the model, which is the same on all of them."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    root = process_set.ranks[0]  # root_rank is a rank of the whole job
    for name, param in sorted(model.state_dict().items()):
        hvd.broadcast_(param, root_rank=root, name=name, process_set=process_set)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=process_set)
    for step in range(arguments.steps):
        points, labels = batch(step, arguments.batch_size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), labels).backward()  # averaged over this set only
        optimizer.step()
    return model


def main(argv=None):
    """Makes both trainings. Returns the loss for each learning rate."""
    arguments = parse_arguments(argv)
    # "dynamic" allows to add sets later. Sets that are known now can be passed to init instead. All ranks add the same sets in
    # the same order.
    hvd.init(process_sets="dynamic")
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    say = common.speaker(hvd.rank())
    if hvd.size() < 2:
        raise SystemExit("this example needs at least two ranks: mpirun -n 2 python torch_process_sets.py")
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))

    mine = even if even.included() else odd
    lr = arguments.lrs[0 if mine is even else 1]
    say(f"ranks {even.ranks} train with lr {arguments.lrs[0]}, ranks {odd.ranks} with {arguments.lrs[1]}")
    model = train(mine, lr, arguments)

    # Each rank tests the model of its set on its own points, and each set averages the losses of its ranks.
    points, labels = batch(10**6, 2000)
    loss = nn.functional.cross_entropy(model(points), labels).detach()
    loss = hvd.allreduce(loss, name="loss", process_set=mine)
    losses = hvd.allgather_object(loss.item(), name="losses")[:2]  # ranks 0 and 1 are in different sets
    best = losses.index(min(losses))
    for name, param in sorted(model.state_dict().items()):
        hvd.broadcast_(param, root_rank=best, name=name)  # all ranks get the better model
    say(f"losses {losses[0]:.4f} and {losses[1]:.4f}: all ranks take the model trained with lr {arguments.lrs[best]}")
    hvd.remove_process_set(even)
    hvd.remove_process_set(odd)
    return losses


if __name__ == "__main__":
    main()
