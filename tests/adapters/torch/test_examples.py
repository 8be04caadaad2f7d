"""The examples do what they say."""

import importlib.util
from pathlib import Path

import pytest
import torch
from mpi4py import MPI

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    """Rank 0's folder, on all ranks."""
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))


def test_digits_saves_resumes_and_learns(hvd, folder, capsys):
    pytest.importorskip("sklearn")
    digits = load("torch_digits")
    file = folder / "digits.pt"
    common = ["--workers", "0", "--checkpoint", str(file)]
    digits.main(["--epochs", "1", *common])
    assert torch.load(file)["epoch"] == 1
    said = capsys.readouterr().out
    accuracy = digits.main(["--epochs", "8", "--resume", "--compression", "fp16", *common])
    said += capsys.readouterr().out
    if hvd.rank() == 0:
        assert torch.load(file)["epoch"] == 8
        assert said.count("epoch 1: ") == said.count("epoch 2: ") == said.count("epoch 8: ") == 1
        assert said.count(f"weights on the {hvd.size()} rank(s) are bit-identical") == 2
    else:
        assert not said
    assert accuracy >= 0.95
    assert len(set(MPI.COMM_WORLD.allgather(accuracy))) == 1


def test_digits_needs_a_file_to_resume_from(capsys):
    pytest.importorskip("sklearn")
    digits = load("torch_digits")
    with pytest.raises(SystemExit):
        digits.main(["--resume"])
    assert "--resume needs --checkpoint FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        digits.main(["--help"])
    assert "mpirun" in capsys.readouterr().out


def test_numpy_allreduce(hvd, capsys):
    load("numpy_allreduce")
    said = capsys.readouterr().out
    mean = sum(10.0 * rank for rank in range(hvd.size())) / hvd.size()
    assert f"rank {hvd.rank()} of {hvd.size()}" in said
    assert f"average [{mean:.0f}." in said
