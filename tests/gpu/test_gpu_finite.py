"""HVDLITE_CHECK_FINITE names the tensors whose results are not finite."""

import numpy as np
import pytest
from support.world import WORLD

RANKS = (2,)
MORE_RANKS = (1,)
STAND_INS = ("fakes",)
RANK, SIZE = WORLD.rank, WORLD.size
LINES_IN_INTERVAL = 8  # kLinesInInterval of csrc/engine/execution/gpu/device_lane.cc


@pytest.fixture(autouse=True)
def checked(hvd, monkeypatch):
    """So many lines come in ten seconds from one start of the engine: each test has its own."""
    monkeypatch.setenv("HVDLITE_CHECK_FINITE", "1")
    hvd.shutdown()
    hvd.init()


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.float32, np.inf), (np.float32, np.nan), (np.float16, np.nan), (np.float64, np.inf)]
)
def test_the_tensor_is_named(hvd, kind, capfd, dtype, value):
    label = f"{kind.name}.{np.dtype(dtype).name}.{value}"
    arrays = [np.arange(size, dtype=dtype) for size in (100, 4097, 33)]
    arrays[1][4000] = value if RANK == SIZE - 1 else 1.0
    for _ in range(2):
        results = kind.door.grouped_allreduce([kind.tensor(array) for array in arrays], op=kind.door.Sum, name=label)
        assert [bool(np.isfinite(kind.host(result)).all()) for result in results] == [True, False, True]
    hvd.barrier()
    said = capfd.readouterr().err
    assert f"{label}_2of3" in said, said
    assert "finite" in said, said
    assert f"{label}_1of3" not in said
    assert f"{label}_3of3" not in said


def test_nothing_is_said_of_finite_results(hvd, kind, capfd):
    for dtype in (np.float32, np.float16, np.int32):
        for size in (0, 1, 5000):
            kind.host(kind.door.allreduce(kind.tensor(np.ones(size, dtype)), op=kind.door.Sum, name=f"fine.{size}.{dtype}"))
    hvd.barrier()
    assert "finite" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["plain"], indirect=True)
def test_training_that_diverged_does_not_flood_the_log(hvd, kind, capfd):
    for step in range(3 * LINES_IN_INTERVAL):
        kind.host(kind.door.allreduce(kind.tensor(np.full(3, np.nan, np.float32)), op=kind.door.Sum, name=f"diverged.{step}"))
    hvd.barrier()
    said = capfd.readouterr().err
    assert said.count("infinite or NaN") == LINES_IN_INTERVAL, said
    assert "diverged.0" in said
