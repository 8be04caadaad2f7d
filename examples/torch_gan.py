"""Trains with two optimizers in one loop: a generative adversarial network learns to draw points on a ring.

    mpirun -n 2 python torch_gan.py

You should see that the distance of the drawn points from the ring falls from about 0.7 to less than 0.2.

The discriminator learns to distinguish real points from drawn points, and the generator learns to draw points that the
discriminator takes for real (Goodfellow et al., NeurIPS 2014). Each network has its own optimizer, and both optimizers are
wrapped. The ranks have different points and noise. The generator's backward pass goes through the discriminator. The
discriminator's parameters are frozen during that pass, so they get no gradients, and none are reduced.
"""

import common
import torch
from torch import nn

import hvdlite.torch as hvd

NOISE = 4


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of training")
    parser.add_argument("--batch-size", type=int, default=64, help="points in a batch of each rank")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of both networks")
    parser.add_argument("--report-every", type=int, default=100, help="steps between reports")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, points and noise")
    return parser.parse_args(argv)


def network(inputs, outputs):
    """A small multilayer perceptron."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


def ring(count, generator):
    """Real points, near the circle of radius 2."""
    angle = 6.2832 * torch.rand(count, generator=generator)
    circle = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    return circle * (2 + 0.05 * torch.randn(count, 1, generator=generator))


def wrapped(model, name, lr):
    """An optimizer that averages gradients over the ranks. All ranks get the weights of rank 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.99))
    named = [(f"{name}.{parameter}", value) for parameter, value in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer


def main(argv=None):
    """Trains. Returns the mean distance of the drawn points from the ring over all ranks."""
    arguments = parse_arguments(argv)
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    chance = torch.Generator().manual_seed(arguments.seed + 1 + hvd.rank())  # differs by rank
    say = common.speaker(hvd.rank())

    generator, discriminator = network(NOISE, 2), network(2, 1)
    generator_optimizer = wrapped(generator, "generator", arguments.lr)
    discriminator_optimizer = wrapped(discriminator, "discriminator", arguments.lr)
    is_real = nn.functional.binary_cross_entropy_with_logits

    def draw():
        return generator(torch.randn(arguments.batch_size, NOISE, generator=chance))

    def distance():
        with torch.no_grad():
            off = (draw().norm(dim=1) - 2).abs().mean()
        return hvd.allreduce(off, name="distance").item()

    off = distance()
    for step in range(1, arguments.steps + 1):
        # The discriminator's step: the drawn points are data, and the generator gets no gradients.
        discriminator_optimizer.zero_grad()
        real, drawn = discriminator(ring(arguments.batch_size, chance)), discriminator(draw().detach())
        loss = is_real(real, torch.ones_like(real)) + is_real(drawn, torch.zeros_like(drawn))
        loss.backward()
        discriminator_optimizer.step()

        # The generator's step: the backward pass goes through the discriminator, which is frozen.
        discriminator.requires_grad_(False)
        generator_optimizer.zero_grad()
        drawn = discriminator(draw())
        is_real(drawn, torch.ones_like(drawn)).backward()
        generator_optimizer.step()
        discriminator.requires_grad_(True)

        if step % arguments.report_every == 0 or step == arguments.steps:
            off = distance()
            say(f"step {step}: drawn points are {off:.3f} away from the ring")
    return off


if __name__ == "__main__":
    main()
