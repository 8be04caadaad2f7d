"""Measures the number of images a second that all ranks train on together. The images are random numbers in memory.

    mpirun -n 2 python torch_synthetic_benchmark.py
    mpirun -n 2 python torch_synthetic_benchmark.py --model wide --batch-size 64 --fp16-allreduce

You should see the rate of each measurement, and at the end the rate of all ranks together.

The program has the form of Horovod's benchmark with this name. Its models are small and defined in this file. For more
measurements, also of other libraries, use `python -m hvdlite.bench`.
"""

import timeit

import common
import torch
from torch import nn

import hvdlite.torch as hvd


def block(inputs, outputs, stride):
    """A convolution with batch normalization and ReLU."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def convnet(width, depth):
    """A network from images of 3 x 32 x 32 to 1000 scores. Each stage halves the image and doubles the channels."""
    layers = [block(3, width, 1)]
    for stage in range(depth):
        layers.append(block(width << stage, width << (stage + 1), 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << depth, 1000))


MODELS = {
    "small": lambda: convnet(16, 2),  # 0.1 million parameters
    "deep": lambda: convnet(16, 4),  # 0.7 million
    "wide": lambda: convnet(64, 3),  # 2.1 million
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1000)),  # 4.2 million
}


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="small", help="model to train")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch of each rank")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="batches before the first measurement")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="batches in one measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="number of measurements")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--no-cuda", action="store_true", help="train on the CPU even if there is a GPU")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in each rank")
    return parser.parse_args(argv)


def main(argv=None):
    """Measures. Returns the number of images a second of all ranks together."""
    arguments = parse_arguments(argv)
    hvd.init()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(hvd.rank())  # other images on each rank
    say = common.speaker(hvd.rank())

    device = torch.device("cpu")
    if torch.cuda.is_available() and not arguments.no_cuda:
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())  # one GPU for each rank of this host
    model = MODELS[arguments.model]().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(arguments.batch_size, 3, 32, 32, device=device)
    labels = torch.randint(1000, (arguments.batch_size,), device=device)

    def train_a_batch():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def train(batches):
        for _ in range(batches):
            train_a_batch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # wait until the GPU has done its work

    say(f"Model: {arguments.model}, {sum(param.numel() for param in model.parameters()):,} parameters")
    say(f"Batch size: {arguments.batch_size}")
    say(f"Number of ranks: {hvd.size()}, {device.type}")
    say("Running warmup...")
    train(arguments.num_warmup_batches)

    say("Running benchmark...")
    rates = []
    for iteration in range(arguments.num_iters):
        seconds = timeit.timeit(lambda: train(arguments.num_batches_per_iter), number=1)
        rates.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        say(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per rank")

    # The mean of all measurements of all ranks, and 1.96 standard deviations.
    rates = hvd.allgather(torch.tensor(rates, dtype=torch.float64), name="rates")
    mean, spread = rates.mean().item(), 1.96 * rates.std(correction=0).item()
    say(f"Img/sec per rank: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    return hvd.size() * mean


if __name__ == "__main__":
    main()
