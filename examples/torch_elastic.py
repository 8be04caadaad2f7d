"""Trains a network to read handwritten digits, and continues when ranks die. Kill some ranks while it trains.

    hvdlite run -n 4 --elastic python torch_elastic.py                      it prints the process ids; kill -9 one of them
    hvdlite run -n 4 --elastic python torch_elastic.py --kill 2:40 0:90     ranks kill themselves after these steps
    hvdlite run -n 2 --elastic python torch_elastic.py --checkpoint digits.pt

You should see that the other ranks continue within a fraction of a second, that no step is lost, and that the accuracy is that
of a run without deaths: the ranks that are left share each batch of 64 images. The program needs Open MPI 5 or newer, torch,
and scikit-learn (which contains the 1797 images of 8 x 8 pixels).
"""

import os
import signal
import time

import common
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdlite.torch as hvd


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=64, help="images in a batch of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument(
        "--step-seconds", type=float, default=0.05, help="least time of a step, so that you have time to kill ranks"
    )
    parser.add_argument("--kill", nargs="*", default=[], metavar="RANK:STEP", help="rank RANK kills itself after step STEP")
    parser.add_argument(
        "--checkpoint", default="", metavar="FILE", help="file that is saved every 20 steps, and from which training continues"
    )
    return parser.parse_args(argv)


def load_images():
    """Training and test set, the same on all ranks. An image has the shape 1 x 8 x 8."""
    return [TensorDataset(torch.tensor(images).unsqueeze(1), torch.tensor(labels)) for images, labels in common.digits()]


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    arguments = parse_arguments(argv)
    hvd.init()
    first_rank = hvd.rank()  # hvd.rank() changes when ranks with smaller numbers die
    deaths = {int(step) for rank, _, step in (each.partition(":") for each in arguments.kill) if int(rank) == first_rank}
    print(f"rank {first_rank} is process {os.getpid()}", flush=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train_set, test_set = load_images()
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = hvd.elastic.Job(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        batch_size=arguments.batch_size,
        checkpoint=arguments.checkpoint,
        save_every=20 if arguments.checkpoint else 0,
    )
    if job.position and hvd.rank() == 0:
        print(f"continuing after step {job.position}, from {arguments.checkpoint}")
    job.register_reset_callbacks(
        [lambda: print(f"rank {first_rank} is now rank {hvd.rank()} of {hvd.size()}, after step {job.position}", flush=True)]
    )

    for images, labels in job.batches(train_set, epochs=arguments.epochs):
        began = time.perf_counter()
        with job.step() as step:
            loss = nn.functional.cross_entropy(model(images), labels)
            if job.position in deaths:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if job.ends_epoch:
                scheduler.step()
        if not step.applied and hvd.rank() == 0:
            print(f"step {job.position + 1} is repeated with {hvd.size()} ranks")
        elif job.position % 22 == 0 and hvd.rank() == 0:
            print(f"step {job.position}, {hvd.size()} ranks: loss {loss:.3f} on this rank", flush=True)
        time.sleep(max(0.0, began + arguments.step_seconds - time.perf_counter()))

    with torch.no_grad():
        images, labels = test_set[:]
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%} after {job.position} steps, with {hvd.size()} ranks at the end")
    return accuracy


if __name__ == "__main__":
    main()
