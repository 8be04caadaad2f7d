"""The tests of examples/keras_digits.py, for whichever backend the test file has chosen."""

import keras
import pytest
from mpi4py import MPI
from support.examples import load, shared

pytest.importorskip("sklearn")


def test_digits_saves_resumes_and_learns(tmp_path, capsys):
    digits = load("keras_digits")
    folder = shared(tmp_path)
    common = ["--checkpoint", str(folder)]
    digits.main(["--epochs", "1", *common])
    said = capsys.readouterr().out
    accuracy = digits.main(["--epochs", "6", "--resume", "--compression", "fp16", *common])
    said += capsys.readouterr().out
    if MPI.COMM_WORLD.rank == 0:
        assert said.count(f"Keras on {keras.backend.backend()}") == 2
        assert said.count("epoch 1: ") == said.count("epoch 2: ") == said.count("epoch 6: ") == 1
        assert said.count("weights on the 2 rank(s) are bit-identical") == 2
        assert sorted(file.name for file in folder.iterdir()) == [f"epoch-00{epoch}.keras" for epoch in range(1, 7)]
    else:
        assert not said
    assert accuracy >= 0.95
    assert len(set(MPI.COMM_WORLD.allgather(accuracy))) == 1
