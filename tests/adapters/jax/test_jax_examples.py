"""The example does what it says."""

import pytest
from mpi4py import MPI
from support.examples import load


def test_digits_learns_the_same_everywhere(hvd, capsys):
    pytest.importorskip("sklearn")
    accuracy = load("jax_digits").main(["--epochs", "2"])
    said = capsys.readouterr().out
    assert said.count(f"on {hvd.size()} rank(s)") == (2 if hvd.rank() == 0 else 0)
    assert accuracy > 0.8
    assert len(set(MPI.COMM_WORLD.allgather(accuracy))) == 1
