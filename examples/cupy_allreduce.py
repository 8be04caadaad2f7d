"""Solves a least-squares problem with more rows than fit on one GPU: each rank has some rows, in GPU memory with CuPy.

    mpirun -n 2 python cupy_allreduce.py
    mpirun -n 4 python cupy_allreduce.py --rows 4000000
    mpirun -n 2 python cupy_allreduce.py --host            the same program on NumPy arrays, without a GPU

You should see the device of each rank, and at the end a largest error below 0.001 after a few iterations.

The method of conjugate gradients (Hestenes and Stiefel, 1952) uses the matrix only in products. A product over all rows is the
sum of the ranks' products, so each iteration needs one allreduce of a vector. The vector stays on the GPU.
"""

import common
import numpy as np

import hvdlite as hvd


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="equations of each rank")
    parser.add_argument("--columns", type=int, default=64, help="unknowns")
    parser.add_argument("--iterations", type=int, default=30, help="largest number of iterations")
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of the noise in the right-hand side")
    parser.add_argument("--host", action="store_true", help="use NumPy on the CPU")
    return parser.parse_args(argv)


def array_module(arguments):
    """CuPy or NumPy, and a text about the device. CuPy uses this rank's GPU. If neither is possible: None and the reason."""
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
    gpu = hvd.local_rank() % gpus  # another GPU for each rank of this host
    cupy.cuda.Device(gpu).use()
    return cupy, f"GPU {gpu} ({cupy.cuda.runtime.getDeviceProperties(gpu)['name'].decode()})"


def solve(product, right, iterations):
    """Solves product(x) = right by conjugate gradients. Returns x and the number of iterations."""
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
    """Solves the problem. Returns the largest difference from the true solution; None without a GPU."""
    arguments = parse_arguments(argv)
    hvd.init()
    xp, where = array_module(arguments)
    missing = [text for text in hvd.allgather_object(None if xp else where) if text]
    if missing:
        if hvd.rank() == 0:
            print(f"this example needs CuPy and an NVIDIA GPU on each rank ({missing[0]}); use --host to run it without them")
        return None
    print(f"rank {hvd.rank()} of {hvd.size()}: {arguments.rows} rows on {where}", flush=True)

    truth = xp.asarray(np.random.default_rng(0).standard_normal(arguments.columns))  # the same on all ranks
    chance = np.random.default_rng(1 + hvd.rank())  # other rows on each rank
    rows = xp.asarray(chance.standard_normal((arguments.rows, arguments.columns)))
    noise = xp.asarray(arguments.noise * chance.standard_normal(arguments.rows))
    right = hvd.allreduce(rows.T @ (rows @ truth + noise), op=hvd.Sum)

    def product(vector):
        """The product over the rows of all ranks."""
        return hvd.allreduce(rows.T @ (rows @ vector), op=hvd.Sum)

    x, iterations = solve(product, right, arguments.iterations)
    error = float(abs(x - truth).max())
    if hvd.rank() == 0:
        print(f"{hvd.size() * arguments.rows} rows, {iterations} iterations: largest error {error:.2e}")
    return error


if __name__ == "__main__":
    main()
