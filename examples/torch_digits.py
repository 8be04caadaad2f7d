"""Trains a small convolutional network to read handwritten digits, on as many processes as mpirun starts.

    python torch_digits.py                              one process
    mpirun -n 2 python torch_digits.py                  two processes: the same script, and each reads half of the images
    mpirun -n 2 python torch_digits.py --checkpoint digits.pt
    mpirun -n 2 python torch_digits.py --checkpoint digits.pt --resume --epochs 20

You should see one line for each epoch, with the loss and the accuracies over all ranks. The last lines have a test accuracy
above 97 %, and say that all ranks have the same weights, bit by bit. On a terminal a bar shows the progress of an epoch.

Every process ("rank") runs this whole file. Comments with HVD mark the seven places that hvdlite adds to an ordinary training
script. The program needs torch and scikit-learn (which contains the 1797 images of 8 x 8 pixels).
"""

import math
import os
import time

import common
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import hvdlite.torch as hvd


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=1, help="processes of each rank that load images")
    return common.parse_digits(parser, argv, "FILE")


def load_images():
    """Training and test set, the same on all ranks. An image has the shape 1 x 8 x 8."""
    return [TensorDataset(torch.tensor(images).unsqueeze(1), torch.tensor(labels)) for images, labels in common.digits()]


def make_network():
    """A network from images of 1 x 8 x 8 to ten scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def over_all_ranks(*sums):
    """Adds up numbers over all ranks."""
    # HVD 6: each rank has seen only its own images. The sums over the ranks give the metrics over all images.
    return hvd.allreduce(torch.tensor(sums, dtype=torch.float64), name="metrics", op=hvd.Sum).tolist()


def train_one_epoch(model, loader, optimizer, scheduler, device, progress):
    """Trains for one epoch. Returns the loss and the accuracy over the images of all ranks."""
    model.train()
    loss_sum, right, seen = 0.0, 0, 0
    for step, (images, labels) in enumerate(loader, start=1):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()  # now the gradients are averages over all ranks, so they can be clipped as usual
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        loss_sum += loss.item() * len(labels)
        right += (scores.argmax(1) == labels).sum().item()
        seen += len(labels)
        progress(step / len(loader), loss_sum / seen)
    loss_sum, right, seen = over_all_ranks(loss_sum, right, seen)
    return loss_sum / seen, right / seen


@torch.no_grad()
def evaluate(model, test_set, device):
    """The accuracy on the test images. Each rank tests a part of them."""
    model.eval()
    images, labels = test_set[hvd.rank() :: hvd.size()]  # each rank takes every n-th image
    right = (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    right, seen = over_all_ranks(right, len(labels))
    return right / seen


def warmup_then_cosine(steps_per_epoch, warmup_epochs, epochs):
    """The factor of the learning rate at each step: it rises from 1 / ranks to 1, and falls as a cosine."""
    warmup, total = max(1, round(warmup_epochs * steps_per_epoch)), max(1, epochs * steps_per_epoch)

    def factor(step):
        if step < warmup:
            return (1 + step * (hvd.size() - 1) / warmup) / hvd.size()
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))

    return factor


def save(path, **state):
    """Writes a new file, and replaces the old one when the new one is complete."""
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    arguments = parse_arguments(argv)

    # HVD 1: join the other ranks. rank() is the number of this process, size() is the number of processes.
    hvd.init()
    say = common.speaker(hvd.rank())
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())  # one GPU for each rank of this host
    say(f"{hvd.size()} rank(s), {arguments.batch_size} images each in a batch, {device.type}")

    train_set, test_set = load_images()
    # HVD 2: each rank gets its own part of the images, and another part in each epoch.
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed)
    loader = DataLoader(
        train_set,
        batch_size=arguments.batch_size,
        sampler=sampler,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
    )

    model = make_network().to(device)
    # HVD 3: n ranks together have a batch n times as large, for which the learning rate can be n times as large.
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr * hvd.size(), momentum=0.9, weight_decay=5e-4)
    factor = warmup_then_cosine(len(loader), arguments.warmup_epochs, arguments.epochs)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    # HVD 4: backward() now averages the gradients over the ranks.
    compression = getattr(hvd.Compression, arguments.compression)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)

    first_epoch = 0
    if arguments.resume and hvd.rank() == 0:
        saved = torch.load(arguments.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"]
    # HVD 5: all ranks start from the state of rank 0, which is new or loaded.
    first_epoch = hvd.broadcast_object(first_epoch, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler.last_epoch = first_epoch * len(loader)

    started = time.perf_counter()
    accuracy = evaluate(model, test_set, device)
    for epoch in range(first_epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        progress = common.progress_bar(hvd.rank(), f"epoch {epoch + 1}/{arguments.epochs}")
        loss, train_accuracy = train_one_epoch(model, loader, optimizer, scheduler, device, progress)
        accuracy = evaluate(model, test_set, device)
        say(f"epoch {epoch + 1}: loss {loss:.4f}, training {train_accuracy:.2%}, test {accuracy:.2%}")
        if arguments.checkpoint and hvd.rank() == 0:  # one rank writes, because all have the same weights
            save(arguments.checkpoint, epoch=epoch + 1, model=model.state_dict(), optimizer=optimizer.state_dict())
    say(f"test accuracy {accuracy:.2%} after {time.perf_counter() - started:.1f} s")

    # HVD 7: not needed for training. It shows that the ranks have the same weights.
    say(common.describe_weights((param.detach().cpu().numpy() for param in model.parameters()), hvd.allgather_object))
    return accuracy


if __name__ == "__main__":
    main()
