"""Trains a convolutional network as Horovod's example for ImageNet does, on images that the program makes.

    mpirun -n 2 python torch_imagenet_style.py
    mpirun -n 2 python torch_imagenet_style.py --checkpoint-format 'checkpoint-{epoch}.pt'    # run it again: it continues
    mpirun -n 2 python torch_imagenet_style.py --batches-per-allreduce 2 --fp16-allreduce

You should see one line for each epoch; the validation accuracy rises to above 90 %. On a terminal a bar shows the
progress of an epoch.

The program has the form of Horovod's pytorch_imagenet_resnet50.py: the learning rate is scaled by the number of ranks and
warmed up, gradients of several batches are accumulated, and rank 0 writes a checkpoint after each epoch, from which a new run
continues.
"""

import os

import common
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import hvdlite.torch as hvd

CLASSES = 8


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--train-images", type=int, default=2048, help="images to train on")
    parser.add_argument("--val-images", type=int, default=512, help="images to validate on")
    parser.add_argument("--batch-size", type=int, default=32, help="images in one forward pass of each rank")
    parser.add_argument(
        "--batches-per-allreduce",
        type=int,
        default=1,
        help="batches whose gradients a rank adds up before the ranks average them; it multiplies the batch size",
    )
    parser.add_argument("--val-batch-size", type=int, default=64, help="images in one validation batch of each rank")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the training images")
    parser.add_argument("--base-lr", type=float, default=0.0125, help="learning rate for one batch of one rank")
    parser.add_argument(
        "--warmup-epochs", type=float, default=2, help="epochs in which the learning rate rises to that for all ranks"
    )
    parser.add_argument("--momentum", type=float, default=0.9, help="SGD momentum")
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--checkpoint-format", metavar="FILE", help="name of the checkpoints, such as checkpoint-{epoch}.pt")
    parser.add_argument("--seed", type=int, default=42, help="seed of the initial weights and of the order of the images")
    arguments = parser.parse_args(argv)
    if arguments.checkpoint_format and arguments.checkpoint_format.format(epoch=1) == arguments.checkpoint_format:
        parser.error("--checkpoint-format needs {epoch}, by which a new run finds the last checkpoint")
    return arguments


class Stripes(Dataset):
    """Noisy stripes. The class of an image is the direction of its stripes. Each image is made when the loader asks for it."""

    def __init__(self, count, first):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        label = int(torch.randint(CLASSES, (1,), generator=generator))
        angle = torch.tensor(torch.pi * label / CLASSES)
        y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        phase = 6.28 * torch.rand(1, generator=generator)
        stripes = torch.sin(x * torch.cos(angle) + y * torch.sin(angle) + phase)
        return stripes[None] + 0.5 * torch.randn(3, 16, 16, generator=generator), label


class Metric:
    """The mean of a quantity over the batches of all ranks."""

    def __init__(self, name):
        self.name, self.sum, self.count = name, torch.tensor(0.0, dtype=torch.float64), 0

    def update(self, value, images):
        """Adds `value`, the mean over a batch of this rank with this number of images."""
        self.sum = self.sum + value.detach().double() * images
        self.count += images

    def over_all_ranks(self):
        """The mean over all images that all ranks have added. Collective."""
        both = torch.stack([self.sum, torch.full_like(self.sum, self.count)])
        total, count = hvd.allreduce(both, name=self.name, op=hvd.Sum).tolist()
        return total / count


def make_network():
    """A network from images of 3 x 16 x 16 to a score for each class."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


def lr_factor(epoch, arguments):
    """The factor of the learning rate. It rises to the number of batches in a step, and falls by 10 twice later."""
    batches = hvd.size() * arguments.batches_per_allreduce
    if epoch < arguments.warmup_epochs:
        return 1.0 + epoch * (batches - 1) / arguments.warmup_epochs
    return batches * (1.0 if epoch < 0.6 * arguments.epochs else 0.1 if epoch < 0.85 * arguments.epochs else 0.01)


def accuracy(scores, labels):
    """The share of correct answers."""
    return (scores.argmax(1) == labels).double().mean()


def train(epoch, model, optimizer, loader, arguments, device, progress):
    """Trains for one epoch. Returns the loss and the accuracy over all ranks."""
    model.train()
    loss, right = Metric("train loss"), Metric("train accuracy")
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        for group in optimizer.param_groups:
            group["lr"] = arguments.base_lr * lr_factor(epoch + step / len(loader), arguments)
        optimizer.zero_grad()
        # A batch of the loader is several batches of the network. Their gradients add up, and the last backward averages them
        # over the ranks.
        parts = list(zip(images.split(arguments.batch_size), labels.split(arguments.batch_size), strict=True))
        for place, (part, truth) in enumerate(parts):
            scores = model(part)
            part_loss = nn.functional.cross_entropy(scores, truth)
            loss.update(part_loss, len(truth))
            right.update(accuracy(scores, truth), len(truth))
            share = part_loss * len(truth) / len(labels)
            if place + 1 < len(parts):
                with optimizer.no_sync():
                    share.backward()
            else:
                share.backward()
        optimizer.step()
        progress((step + 1) / len(loader), part_loss.item())
    return loss.over_all_ranks(), right.over_all_ranks()


@torch.no_grad()
def validate(model, loader, device):
    """Returns the loss and the accuracy over the validation images of all ranks."""
    model.eval()
    loss, right = Metric("val loss"), Metric("val accuracy")
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        scores = model(images)
        loss.update(nn.functional.cross_entropy(scores, labels), len(labels))
        right.update(accuracy(scores, labels), len(labels))
    return loss.over_all_ranks(), right.over_all_ranks()


def last_checkpoint(arguments):
    """The number of epochs of the newest checkpoint that rank 0 finds; 0 if there is none."""
    epochs = range(arguments.epochs, 0, -1) if arguments.checkpoint_format else ()
    found = next((epoch for epoch in epochs if os.path.exists(arguments.checkpoint_format.format(epoch=epoch))), 0)
    return hvd.broadcast_object(found, root_rank=0, name="resume_from_epoch")  # other ranks may not have access to the files


def save_checkpoint(epoch, model, optimizer, arguments):
    """Rank 0 writes the file. It gets its name only when it is complete."""
    if arguments.checkpoint_format and hvd.rank() == 0:
        path = arguments.checkpoint_format.format(epoch=epoch)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".part")
        os.replace(path + ".part", path)


def make_loader(dataset, batch_size, seed, shuffle):
    """A loader of this rank's part of the images, and its sampler."""
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle, seed=seed)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler), sampler


def main(argv=None):
    """Trains, and returns the validation accuracy."""
    arguments = parse_arguments(argv)
    hvd.init()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    say = common.speaker(hvd.rank())

    group_size = arguments.batch_size * arguments.batches_per_allreduce
    loader, sampler = make_loader(Stripes(arguments.train_images, 0), group_size, arguments.seed, shuffle=True)
    val_loader, _ = make_loader(Stripes(arguments.val_images, 10**9), arguments.val_batch_size, arguments.seed, shuffle=False)

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())  # one GPU for each rank of this host
    model = make_network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), arguments.base_lr, arguments.momentum, weight_decay=arguments.wd)
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)

    first = last_checkpoint(arguments)
    if first and hvd.rank() == 0:
        saved = torch.load(arguments.checkpoint_format.format(epoch=first), map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if first:
        say(f"resumed after epoch {first}")

    _, right = validate(model, val_loader, device)
    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)
        progress = common.progress_bar(hvd.rank(), f"epoch {epoch + 1}/{arguments.epochs}")
        loss, trained = train(epoch, model, optimizer, loader, arguments, device, progress)
        val_loss, right = validate(model, val_loader, device)
        say(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {trained:.2%}, validation {val_loss:.4f}, {right:.2%}")
        save_checkpoint(epoch + 1, model, optimizer, arguments)
    return right


if __name__ == "__main__":
    main()
