"""Least squares with more rows than one GPU holds: each rank has some of them, in the memory of its GPU, by CuPy.

    mpirun -n 2 python cupy_allreduce.py
    mpirun -n 4 python cupy_allreduce.py --rows 4000000
    mpirun -n 2 python cupy_allreduce.py --host            the same program on NumPy arrays, without a GPU

You should see where each rank computes, and at the end a largest error below 0.001 after a few iterations.

The method of conjugate gradients needs the matrix only for products, and a product over all rows is the sum of the ranks'
products: one allreduce of a vector in each iteration. The vector stays on the GPU.
"""

import common
import numpy as np

import hvdlite as hvd


def parse_arguments(argv=None):
    """The command line; --help shows it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="equations of each rank")
    parser.add_argument("--columns", type=int, default=64, help="unknowns")
    parser.add_argument("--iterations", type=int, default=30, help="of the method, at most")
    parser.add_argument("--noise", type=float, default=0.01, help="in the right-hand side")
    parser.add_argument("--host", action="store_true", help="use NumPy on the CPU")
    return parser.parse_args(argv)


def array_module(arguments):
    """CuPy with this rank's GPU as the current one, or NumPy; None and why if that is not possible."""
    if arguments.host:
        return np, "NumPy on the CPU"
    try:
        import cupy
    except ImportError as error:
        return None, f"no CuPy: {error}"
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no GPU: {error}"
    gpu = hvd.local_rank() % gpus  # one for each rank of this host
    cupy.cuda.Device(gpu).use()
    return cupy, f"GPU {gpu} ({cupy.cuda.runtime.getDeviceProperties(gpu)['name'].decode()})"


def solve(product, right, iterations):
    """The x for which product(x) is `right`, by conjugate gradients; and the iterations it took."""
    x = 0 * right
    residual = right.copy()
    direction = residual.copy()
    size = start = float(residual @ residual)
    for iteration in range(1, iterations + 1):
        image = product(direction)
        step = size / float(direction @ image)
        x += step * direction
        residual -= step * image
        before, size = size, float(residual @ residual)
        if size <= 1e-20 * start:
            return x, iteration
        direction = residual + (size / before) * direction
    return x, iterations


def main(argv=None):
    """Solves the problem, and returns how far the solution is from the one that the rows were made with; None without a GPU."""
    arguments = parse_arguments(argv)
    hvd.init()
    xp, where = array_module(arguments)
    missing = [text for text in hvd.allgather_object(None if xp else where) if text]
    if missing:
        if hvd.rank() == 0:
            print(f"this example needs CuPy and an NVIDIA GPU on each rank ({missing[0]}); --host runs it without them")
        return None
    print(f"rank {hvd.rank()} of {hvd.size()}: {arguments.rows} rows on {where}", flush=True)

    truth = xp.asarray(np.random.default_rng(0).standard_normal(arguments.columns))  # the same on all ranks
    chance = np.random.default_rng(1 + hvd.rank())  # other rows on each
    rows = xp.asarray(chance.standard_normal((arguments.rows, arguments.columns)))
    noise = xp.asarray(arguments.noise * chance.standard_normal(arguments.rows))
    right = hvd.allreduce(rows.T @ (rows @ truth + noise), op=hvd.Sum)

    def product(vector):
        """The sum over all rows, wherever they are."""
        return hvd.allreduce(rows.T @ (rows @ vector), op=hvd.Sum)

    x, iterations = solve(product, right, arguments.iterations)
    error = float(abs(x - truth).max())
    if hvd.rank() == 0:
        print(f"{hvd.size() * arguments.rows} rows, {iterations} iterations: largest error {error:.2e}")
    return error


if __name__ == "__main__":
    main()
