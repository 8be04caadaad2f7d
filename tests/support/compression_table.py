"""The features that work with each compression: the cases of the table in docs/slow_links.md, and the program that writes it.

tests/adapters/torch/test_compression_table.py runs all cases. `cd tests && python -m support.compression_table` writes the
table.

All gradients are multiples of one matrix of ones and minus ones. The matrix has rank one and all elements have one magnitude,
so only bf16 loses precision, and each case must have the result that one process computes.
"""

from collections.abc import Callable
from typing import Any

from support.pages import DOCS, text_between, write_between

__all__ = ["COMPRESSIONS", "FEATURES", "PAGE", "REFUSALS", "lines_of_page", "table"]

PAGE = DOCS / "slow_links.md"
MARKS = ("<!-- begin: written by tests/support/compression_table.py -->", "<!-- end -->")
SHAPE = (40, 30)
STEPS = 4

COMPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "`bf16`": lambda hvd: hvd.Compression.bf16,
    "`int8`": lambda hvd: hvd.Compression.int8(between="ranks"),
    "`int4` with error feedback": lambda hvd: hvd.Compression.int4(between="ranks", error_feedback=True),
    "`powersgd`": lambda hvd: hvd.Compression.powersgd(rank=2, start_step=1),
}


class Training:
    """The training of one parameter on this rank, and its expected value.

    Args:
        hvd: the door for torch.
        compression: the optimizer's compression.
        options: further arguments of `DistributedOptimizer`.
    """

    def __init__(self, hvd: Any, compression: Any, **options: Any) -> None:
        import torch

        self.torch, self.hvd = torch, hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.param = torch.nn.Parameter(torch.zeros(SHAPE))
        signs = torch.randn(sum(SHAPE), generator=torch.Generator().manual_seed(3)).sign()
        self.matrix = signs[: SHAPE[0], None] * signs[None, SHAPE[0] :]
        self.expected = 0.0  # the parameter, as a multiple of the matrix
        self.tolerance = 0.01 if compression is hvd.Compression.bf16 else 1e-4
        plain = torch.optim.SGD([self.param], lr=0.5)
        self.optimizer = hvd.DistributedOptimizer(plain, compression=compression, **options)

    @staticmethod
    def factor(step: int, rank: int) -> float:
        """The factor of the matrix in a rank's gradient in a step."""
        return float(1 + step + 2 * rank)

    def backward(self, factor: float) -> None:
        """Makes a gradient that is the matrix times `factor`."""
        (factor * (self.param * self.matrix).sum()).backward()

    def step(self, gradient: float) -> None:
        """Makes the optimizer's step. Its expected gradient is the matrix times `gradient`."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.expected -= 0.5 * gradient

    def mean(self, step: int, ranks: Any = None) -> float:
        """The mean of the factors of these ranks; of all ranks by default."""
        ranks = range(self.size) if ranks is None else ranks
        return sum(self.factor(step, rank) for rank in ranks) / len(ranks)

    def check(self) -> None:
        """Compares the parameter with its expected value."""
        expected = self.expected * self.matrix
        self.torch.testing.assert_close(self.param.detach(), expected, rtol=self.tolerance, atol=self.tolerance)


def _accumulation(hvd: Any, compression: Any) -> None:
    training = Training(hvd, compression, backward_passes_per_step=2)
    for step in range(STEPS):
        training.backward(training.factor(step, training.rank))
        training.backward(1.0)
        training.step(training.mean(step) + 1.0)
    training.check()


def _grad_scaler(hvd: Any, compression: Any) -> None:
    training = Training(hvd, compression)
    scaler = training.torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    if hasattr(training.optimizer, "loss_scale"):
        training.optimizer.loss_scale = scaler
    for step in range(STEPS):
        lost = step == 1  # one rank's gradient is infinite, and all ranks leave the step out
        factor = float("inf") if lost and training.rank == 0 else training.factor(step, training.rank)
        scaler.scale(factor * (training.param * training.matrix).sum()).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
        training.expected -= 0.0 if lost else 0.5 * training.mean(step)
    training.check()


def _shard(hvd: Any, compression: Any) -> None:
    _plain(Training(hvd, compression, shard=True))


def _weight(hvd: Any, compression: Any) -> None:
    training = Training(hvd, compression)
    weights = [1.0 + rank for rank in range(training.size)]
    for step in range(STEPS):
        training.optimizer.weight = weights[training.rank]
        training.backward(training.factor(step, training.rank))
        training.step(sum(weight * training.factor(step, rank) for rank, weight in enumerate(weights)) / sum(weights))
    training.check()


def _process_set(hvd: Any, compression: Any, **options: Any) -> None:
    ranks = [0, hvd.size() - 1]
    process_set = hvd.add_process_set(ranks)
    try:
        if hvd.rank() in ranks:
            _plain(Training(hvd, compression, process_set=process_set, **options), ranks)
    finally:
        hvd.barrier()
        hvd.remove_process_set(process_set)


def _join(hvd: Any, compression: Any) -> None:
    training = Training(hvd, compression)
    for step in range(STEPS):
        if step < 1 or training.rank > 0:
            training.backward(training.factor(step, training.rank))
            others = range(0 if step < 1 else 1, training.size)
            training.step(training.mean(step, others) * len(others) / training.size)
    hvd.join()
    if training.rank > 0:
        training.check()


def _adasum(hvd: Any, compression: Any) -> None:
    """The Adasum of gradients in one direction is their mean."""
    _process_set(hvd, compression, op=hvd.Adasum)


def _sparse(hvd: Any, compression: Any, **options: Any) -> None:
    training = Training(hvd, compression, **options)
    rows = training.torch.arange(SHAPE[0])
    for step in range(STEPS):
        values = training.factor(step, training.rank) * training.matrix
        training.param.grad = None
        training.torch.nn.functional.embedding(rows, training.param, sparse=True).backward(values)
        training.step(training.mean(step))
    training.check()


def _sparse_as_dense(hvd: Any, compression: Any) -> None:
    _sparse(hvd, compression, sparse_as_dense=True)


def _plain(training: Training, ranks: Any = None) -> None:
    for step in range(STEPS):
        training.backward(training.factor(step, training.rank))
        training.step(training.mean(step, ranks))
    training.check()


FEATURES: dict[str, Callable[[Any, Any], None]] = {
    "`backward_passes_per_step`": _accumulation,
    "`GradScaler`": _grad_scaler,
    "`shard=True`": _shard,
    "`optimizer.weight`": _weight,
    "`process_set`": _process_set,
    "`hvd.join()`": _join,
    "`op=Adasum`": _adasum,
    "sparse gradients": _sparse,
    "`sparse_as_dense`": _sparse_as_dense,
}
# The error of each combination of compression and feature that is refused. All other combinations work.
REFUSALS: dict[tuple[str, str], str] = {
    (compression, feature): f"UnsupportedError: .*{what}.* cannot be coded, and compression is .*: leave the compression out"
    for compression in COMPRESSIONS
    if compression != "`bf16`"
    for feature, what in (("`op=Adasum`", "op=Adasum"), ("sparse gradients", r"without sparse_as_dense=True"))
}


def table() -> list[str]:
    """The lines of the table."""
    lines = [f"| | {' | '.join(COMPRESSIONS)} |", f"|---|{'---|' * len(COMPRESSIONS)}"]
    for feature in FEATURES:
        cells = ["refused" if (compression, feature) in REFUSALS else "works" for compression in COMPRESSIONS]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return lines


def lines_of_page() -> list[str]:
    """The lines of the table on the page."""
    return text_between(PAGE, MARKS).splitlines()


if __name__ == "__main__":
    write_between(PAGE, MARKS, "\n".join(table()))
