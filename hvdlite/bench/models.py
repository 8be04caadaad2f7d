"""The networks that the benchmark trains, and the shapes of ResNet-50's parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Model:
    """A network and its data.

    Attributes:
        make: makes the network, with weights that depend on torch's seed.
        input_shape: the shape of one sample.
        classes: the number of classes.
        batch: the number of samples that one rank uses in a training step.
    """

    make: "Callable[[], torch.nn.Module]"
    input_shape: tuple[int, ...]
    classes: int
    batch: int


def _mlp25m() -> "torch.nn.Module":
    """25 million parameters in 8 tensors: as many bytes as ResNet-50, and little to compute."""
    from torch import nn

    widths = (1024, 3072, 3072, 3072, 1000)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _convnet() -> "torch.nn.Module":
    """A network with much to compute and few bytes."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def _linear200() -> "torch.nn.Module":
    """A network with 400 tiny gradients, which show the time for each tensor independent of its size."""
    from torch import nn

    return nn.Sequential(*(layer for _ in range(200) for layer in (nn.Linear(32, 32), nn.ReLU())))


MODELS: Mapping[str, Model] = {
    "mlp25m": Model(_mlp25m, (1024,), 1000, 16),
    "convnet": Model(_convnet, (3, 32, 32), 10, 64),
    "linear200": Model(_linear200, (32,), 32, 16),
}


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters, with 25,557,032 elements in all, in the order in which a backward pass makes
    their gradients.
    """
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, inputs, 1, 1))
            for shape in convolutions:
                shapes += [shape, (shape[0],), (shape[0],)]
            inputs = 4 * width
    shapes += [(1000, inputs), (1000,)]
    assert (len(shapes), sum(map(prod, shapes))) == (161, 25_557_032)
    return shapes[::-1]
