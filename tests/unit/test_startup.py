"""The checks of init that need no second process: communicators, launch mix-ups, agreement."""

import logging

import pytest

from hvdlite import startup
from hvdlite._version import __version__
from hvdlite.config import LauncherClaim, from_environment
from hvdlite.errors import ErrorCode, HvdliteError, InvalidArgumentError, SystemFailure


class Comm:
    """A communicator of given size."""

    def __init__(self, rank=1, size=4, members=None):
        self.rank, self.size, self.members = rank, size, members
        self.group = self

    def Incl(self, ranks):  # noqa: N802 - mpi4py's name
        return ranks

    def Create_group(self, ranks):  # noqa: N802 - mpi4py's name
        return Comm(ranks.index(self.rank), len(ranks), ranks)


class Mpi:
    """As much of mpi4py.MPI as the checks use."""

    Comm = Comm
    COMM_NULL = Comm()
    __file__ = "/site-packages/mpi4py/MPI.openmpi.so"

    def __init__(self, **world):
        self.COMM_WORLD = Comm(**world)

    def Get_library_version(self):  # noqa: N802 - mpi4py's name
        return "Open MPI v5.0.11, package\nsecond line"


def test_all_processes_by_default():
    mpi = Mpi()
    for comm in (None, [], ()):
        assert startup.choose_communicator(mpi, comm) is mpi.COMM_WORLD
    other = Comm()
    assert startup.choose_communicator(mpi, other) is other


def test_a_list_of_ranks_keeps_its_order():
    chosen = startup.choose_communicator(Mpi(), [3, 1])
    assert (chosen.members, chosen.rank) == ([3, 1], 1)


@pytest.mark.parametrize(
    ("comm", "said"),
    [
        (Mpi.COMM_NULL, "rank 1 of MPI_COMM_WORLD is not a member of the communicator"),
        ([0, 2], "rank 1 of MPI_COMM_WORLD is not in the list, so it has no part in this job"),
        ([0, 1, 1], "each rank of MPI_COMM_WORLD, 0 to 3, can be named once"),
        ([1, 4], "0 to 3"),
        ([1, "a"], "a list of ranks of MPI_COMM_WORLD or an mpi4py communicator"),
        (3, "an mpi4py communicator"),
    ],
    ids=["null", "non-member", "twice", "out of range", "text", "number"],
)
def test_wrong_communicators(comm, said):
    with pytest.raises(InvalidArgumentError, match=r"^init") as caught:
        startup.choose_communicator(Mpi(), comm)
    assert said in str(caught.value)


def test_a_launch_mix_up_names_both_sides_and_their_paths():
    claim = LauncherClaim("OMPI_COMM_WORLD_SIZE", 4, "Open MPI's mpirun")
    with pytest.raises(SystemFailure, match="4 processes") as caught:
        startup.check_launch(Mpi(size=1), claim)
    for said in ("OMPI_COMM_WORLD_SIZE=4", "Open MPI's mpirun", "Open MPI v5.0.11", Mpi.__file__, "mpirun on PATH"):
        assert said in str(caught.value)
    assert "srun" not in str(caught.value)


def test_a_launch_by_srun_without_its_plugin_names_it():
    with pytest.raises(SystemFailure, match=r"`hvdlite run`.*, or with `srun --mpi=pmix`, or set"):
        startup.check_launch(Mpi(size=1), LauncherClaim("SLURM_STEP_NUM_TASKS", 2, "Slurm's srun"))


@pytest.mark.parametrize(("claimed", "size"), [(None, 1), (1, 1), (4, 4), (4, 2)])
def test_launches_that_are_right(claimed, size):
    claim = None if claimed is None else LauncherClaim("X", claimed, "x")
    startup.check_launch(Mpi(size=size), claim)


class Everyone:
    """A communicator whose other rank says what the test wants."""

    def __init__(self, *others):
        self.others = others

    def allgather(self, mine):
        return [mine, *self.others]


FINE = (ErrorCode.INVALID_ARGUMENT, "")


def test_ranks_that_agree():
    config = from_environment({})
    startup.agree(Everyone((FINE, __version__, dict(config.values))), config, None)


@pytest.mark.parametrize(
    ("theirs", "problem", "said"),
    [
        (((ErrorCode.INVALID_ARGUMENT, "HVDLITE_X is bad"), __version__, {}), None, "on rank 1: HVDLITE_X is bad"),
        (((ErrorCode.SYSTEM, "same"), __version__, {}), SystemFailure("same"), "on ranks 0, 1: same"),
        ((FINE, "0.0.0", {}), None, f"versions of hvdlite differ: {__version__} on rank 0, but 0.0.0 on rank 1"),
    ],
)
def test_one_rank_that_cannot_start_stops_all(theirs, problem, said):
    with pytest.raises(HvdliteError, match="hvdlite could not be initialized") as caught:
        startup.agree(Everyone(theirs), from_environment({}), problem)
    assert caught.value.code == theirs[0][0]
    assert said in str(caught.value)


def test_knobs_that_differ_are_named():
    config = from_environment({})
    theirs = dict(from_environment({"HVDLITE_SEGMENT_BYTES": "1"}).values)
    with pytest.raises(InvalidArgumentError, match=r"segment_bytes .* is 262144 on rank 0, but 1 on rank 1; set it to one"):
        startup.agree(Everyone((FINE, __version__, theirs)), config, None)


def test_logging_level_and_time(capsys):
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        config = from_environment({"HVDLITE_LOG_LEVEL": "info", "HVDLITE_LOG_TIMESTAMPS": "0"})
        for _ in range(2):  # a second init adds no second handler
            logger = startup.configure_logging(config, 1, 3)
        logger.info("hello")
        logger.debug("hidden")
        assert capsys.readouterr().err == "hvdlite INFO [init rank 1/3] hello\n"
    finally:
        root.handlers = handlers
        logger.handlers.clear()
