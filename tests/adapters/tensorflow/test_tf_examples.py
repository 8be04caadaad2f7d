"""The example with a loop of TensorFlow's does what it says."""

import pytest
from mpi4py import MPI
from support.examples import load, shared

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")
pytest.importorskip("tensorboard")

RANKS = (2,)


def test_digits_saves_writes_for_tensorboard_resumes_and_learns(tmp_path, capsys):
    digits = load("tf2_digits")
    folder = shared(tmp_path)
    common = ["--checkpoint", str(folder)]
    digits.main(["--epochs", "1", "--logs", str(folder / "logs"), *common])
    said = capsys.readouterr().out
    accuracy = digits.main(["--epochs", "4", "--resume", "--compression", "fp16", *common])
    said += capsys.readouterr().out
    if MPI.COMM_WORLD.rank == 0:
        assert said.count("epoch 1: ") == said.count("epoch 2: ") == said.count("epoch 4: ") == 1
        assert said.count("weights on the 2 rank(s) are bit-identical") == 2
        assert {file.name for file in folder.glob("*.index")} == {"ckpt-3.index", "ckpt-4.index"}
        assert len(list((folder / "logs").iterdir())) == 1  # rank 0's
    else:
        assert not said
    assert accuracy >= 0.9
    assert len(set(MPI.COMM_WORLD.allgather(accuracy))) == 1


def test_wrong_arguments_are_explained(capsys, monkeypatch):
    digits = load("tf2_digits")
    with pytest.raises(SystemExit):
        digits.main(["--resume"])
    assert "--resume needs --checkpoint FOLDER" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        digits.main(["--logs", "logs"])
    assert "pip install tensorboard" in capsys.readouterr().err
