"""PowerSGD: ranks send two thin matrices, P and Q, for each gradient (`hvdlite.compression.PowerSGD` names the paper).

M is a matrix of n rows and m columns: this rank's gradient plus the error that earlier reductions have left on this rank. Step
2 below computes the error. A reduction has these steps:

1. P = M Q, and P is reduced over the ranks. Q comes from the previous reduction, with orthonormal columns; at first Q is
   random. Q is the same on all ranks.
2. The columns of P are made orthonormal. Then each rank computes its own Q = M^T P, and its error M - P Q^T. After that, Q is
   reduced over the ranks.
3. The reduced gradient is P Q^T.

The ranks' parameters stay equal bit by bit, whatever processors and BLAS the ranks have. The reduced P and Q have the same bits
on all ranks. All values that follow from the reduced P and Q alone (the orthonormal P and Q, and P Q^T) are computed with
elementwise sums, differences, products, quotients and square roots. Each such sum, difference, product, quotient or root is a
separate operation of torch. IEEE 754 defines the bits of the result of each operation, and the order of the operations depends
on the shapes only. Products with M concern one rank only, so any rounding of them is allowed.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import torch

from hvdlite.compression import BucketCodec, PowerSGD, describe_compression
from hvdlite.torch.coded_bucket import CodedGradient, are_finite

_PIECE = 1 << 17  # elements of a product that are computed together, so that they stay in a processor's caches
# If the subtraction of earlier columns leaves at most this fraction of a column's squared norm, what is left is rounding noise.
_NOISE = 2.0**-40


def _sum_of_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The scalar product of each row of `left` with the same row of `right`. Returns shape [rows, 1].

    Each step adds the second half of the products to the first half. So the length of the rows must be a power of two.
    """
    products = left * right
    while products.shape[1] > 1:
        half = products.shape[1] // 2
        products = products[:, :half] + products[:, half:]
    return products


def orthonormalize(matrices: Sequence[torch.Tensor]) -> None:
    """Makes the columns of each matrix orthonormal, in place, by the modified Gram-Schmidt process in float64.

    The same input gives the same bits on all machines. A column that depends linearly on earlier columns becomes zeros. If a
    matrix has an inf or a nan, the result has a nan.

    Args:
        matrices: float32 or float64, of any shapes [n, k].
    """
    alike: defaultdict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)
    for matrix in matrices:
        alike[1 << (matrix.shape[0] - 1).bit_length(), matrix.shape[1]].append(matrix)
    for (length, columns), members in alike.items():
        work = torch.zeros(columns, len(members), length, dtype=torch.float64, device="cpu")
        for place, matrix in enumerate(members):
            work[:, place, : matrix.shape[0]] = matrix.t()
        for number, column in enumerate(work):
            before = _sum_of_products(column, column)
            for earlier in work[:number]:
                column.sub_(earlier * _sum_of_products(earlier, column))
            square = _sum_of_products(column, column)
            column.div_(torch.where(square <= before * _NOISE, torch.inf, square.sqrt()))
        for place, matrix in enumerate(members):
            matrix.copy_(work[:, place, : matrix.shape[0]].t())


def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """``out = left @ right.t()``. The result has the same bits on all machines.

    Each element of `out` is a sum of k products, which are added in the order of the columns of `left`.

    Args:
        left: [n, k] with k of at least 1, float32 or float64.
        right: [m, k], of the same dtype.
        out: [n, m], contiguous, of the same dtype.
    """
    rows = max(1, _PIECE // max(1, out.shape[1]))
    factors = right.t().contiguous()
    room = torch.empty_like(out[:rows])
    for begin in range(0, out.shape[0], rows):
        piece, part = out[begin : begin + rows], left[begin : begin + rows]
        torch.mul(part[:, :1], factors[0], out=piece)
        for column in range(1, left.shape[1]):
            piece.add_(torch.mul(part[:, column : column + 1], factors[column], out=room[: piece.shape[0]]))


class _Matrix:
    """One approximated gradient (sent as P and Q) in one reduction. The gradient's state does not change before `keep`."""

    def __init__(self, gradient: CodedGradient, rank: int, loss_scale: float) -> None:
        self.gradient = gradient
        rows, columns = _extents(gradient.shape)
        dtype = torch.promote_types(gradient.dtype, torch.float32)  # the dtype of P, of Q and of the computation
        self.q: torch.Tensor = _refreshed(gradient.state, columns, rank, dtype)
        self._sum: torch.Tensor | None = None  # M; after `project` M - P Q^T; None if this rank has no gradient
        total = gradient.with_residual(loss_scale)
        if total is None:
            self.p = torch.zeros(rows, self.q.shape[1], dtype=dtype, device="cpu")
            return
        self._sum = total.to(dtype).view(rows, columns)
        self.p = self._sum @ self.q
        if not are_finite([self._sum]):
            self.p.fill_(torch.nan)  # BLAS may skip the zeros of Q, and with them an inf in M

    def project(self) -> None:
        """Computes this rank's Q and error from the orthonormal P."""
        if self._sum is None:
            self.q = torch.zeros_like(self.q)
        else:
            self.q = self._sum.t() @ self.p
            self._sum.addmm_(self.p, self.q.t(), alpha=-1)

    def decoded(self) -> torch.Tensor:
        """The reduced gradient.

        It takes the place of this rank's gradient in memory. If this rank has no gradient, or a gradient of a 16-bit dtype, the
        reduced gradient is in new memory.
        """
        gradient, (rows, columns) = self.gradient, _extents(self.gradient.shape)
        value = gradient.value
        if value is not None and value.dtype is self.p.dtype:
            out = value.view(rows, columns)
        else:
            out = torch.empty(rows, columns, dtype=self.p.dtype, device="cpu")
        multiply(self.p, self.q, out)
        return out.view(gradient.shape).to(gradient.dtype)

    def keep(self, loss_scale: float) -> None:
        """Stores Q and this rank's error in the gradient's state."""
        self.gradient.state["q"] = self.q
        if self._sum is not None:
            self.gradient.state["residual"] = self._sum if loss_scale == 1.0 else self._sum.div_(loss_scale)


def _extents(shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of rows and columns of a gradient as a matrix."""
    rows = shape[0] if shape else 1
    elements = torch.Size(shape).numel()
    return rows, elements // max(rows, 1)


def _refreshed(state: dict[str, Any], rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Q of the previous reduction, with random columns in place of zero columns.

    The random elements are multiples of 2^-23. They have the same bits on all ranks, because the seed, ``state["step"]``, is
    the same on all ranks.
    """
    q: torch.Tensor | None = state.get("q")
    if q is not None:
        q = q.to(dtype) if q.shape == (rows, columns) else None  # the model's dtype may have changed
    if q is not None and bool(q.any(0).all()):
        return q
    generator = torch.Generator("cpu").manual_seed(state.get("step", 0))
    random = torch.rand(columns, rows, generator=generator, dtype=torch.float32, device="cpu")
    fresh = (random * 2 - 1).t().to(dtype)
    return fresh.contiguous() if q is None else torch.where(q.any(0), q, fresh)


class PowerSGDCodec(BucketCodec):
    """Reduces a bucket by PowerSGD.

    The state of a gradient has ``step``, the number of the gradient's reductions. A reduction counts if at least one rank had
    the gradient, and the results for the whole bucket were finite. If the gradient is approximated, the state also has ``q``
    and ``residual``:

    ``q`` [m, k] has k orthonormal columns (k is `PowerSGD.rank`), so that the elements of P stay in the range of P's dtype.
    ``residual`` [n, m] is this rank's error, divided by the loss scale.
    """

    one_bucket = True

    def __init__(self, settings: PowerSGD) -> None:
        self._settings = settings

    def describe(self) -> str:
        """See `BucketCodec.describe`."""
        return describe_compression(self._settings)

    def _approximates(self, gradient: CodedGradient) -> bool:
        return gradient.state.get("step", 0) >= self._settings.start_step and self._settings.compresses(
            *_extents(gradient.shape)
        )

    def reduce(
        self, gradients: Sequence[CodedGradient], loss_scale: float
    ) -> Generator[Sequence[torch.Tensor], None, Sequence[torch.Tensor]]:
        """See `BucketCodec.reduce`. One round reduces all P, the last round all Q and the gradients that are sent whole."""
        matrices = {
            place: _Matrix(gradient, self._settings.rank, loss_scale)
            for place, gradient in enumerate(gradients)
            if self._approximates(gradient)
        }
        wholes = {place: gradient.whole() for place, gradient in enumerate(gradients) if place not in matrices}
        if matrices:
            p = [matrix.p for matrix in matrices.values()]
            yield p
            orthonormalize(p)
            for matrix in matrices.values():
                matrix.project()
        factors = [matrix.q for matrix in matrices.values()]
        yield [*factors, *wholes.values()]
        finite = are_finite([*(matrix.p for matrix in matrices.values()), *factors, *wholes.values()])
        results = {**wholes, **{place: matrix.decoded() for place, matrix in matrices.items()}}
        if finite:
            orthonormalize(factors)  # for the next step
        for place, gradient in enumerate(gradients):
            if finite and gradient.present:
                gradient.state["step"] = gradient.state.get("step", 0) + 1
                if place in matrices:
                    matrices[place].keep(loss_scale)
        return [results[place] for place in range(len(gradients))]
