"""The examples do what they say."""

import sys

import pytest
import torch
from mpi4py import MPI
from support.examples import load, shared


@pytest.fixture
def folder(tmp_path):
    """Rank 0's folder, on all ranks."""
    return shared(tmp_path)


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


@pytest.fixture
def leave_no_sets(hvd):
    """Examples register process sets."""
    yield
    from hvdlite.process_sets import process_set_ids_and_ranks

    assert list(process_set_ids_and_ranks()) == [0]


def test_synthetic_benchmark(hvd, capsys):
    few = ["--num-warmup-batches", "1", "--num-batches-per-iter", "2", "--num-iters", "3", "--batch-size", "4"]
    total = load("torch_synthetic_benchmark").main([*few, "--model", "mlp", "--fp16-allreduce"])
    said = capsys.readouterr().out
    if hvd.rank() == 0:
        assert "Model: mlp, " in said
        assert said.count("img/sec per rank") == 3
        assert f"Total img/sec on {hvd.size()} rank(s): {total:.1f} +-" in said
        assert float(said.split("Img/sec per rank: ")[1].split()[0]) * hvd.size() == pytest.approx(total, rel=0.01)
    else:
        assert not said
    assert len(set(MPI.COMM_WORLD.allgather(total))) == 1


def test_imagenet_style_learns_and_resumes(hvd, folder, capsys):
    example = load("torch_imagenet_style")
    small = ["--train-images", "256", "--val-images", "48", "--batch-size", "8", "--base-lr", "0.03", "--warmup-epochs", "1"]
    small += ["--batches-per-allreduce", "2", "--checkpoint-format", str(folder / "checkpoint-{epoch}.pt")]
    example.main(["--epochs", "1", *small])
    said = capsys.readouterr().out
    right = example.main(["--epochs", "5", "--fp16-allreduce", *small])
    said += capsys.readouterr().out
    if hvd.rank() == 0:
        assert [f"checkpoint-{epoch}.pt" for epoch in range(1, 6)] == sorted(path.name for path in folder.iterdir())
        assert said.count("epoch 1: ") == said.count("epoch 2: ") == said.count("resumed after epoch 1") == 1
    else:
        assert not said
    assert right >= 0.6  # 0.125 at first
    assert len(set(MPI.COMM_WORLD.allgather(right))) == 1


def test_process_sets_find_the_better_rate(hvd, leave_no_sets, capsys):
    losses = load("torch_process_sets").main(["--steps", "60"])
    said = capsys.readouterr().out
    assert losses[0] < losses[1] - 0.05
    assert bool(said) == (hvd.rank() == 0)
    assert hvd.rank() > 0 or "all ranks take the model trained with lr 0.3" in said
    assert len(set(MPI.COMM_WORLD.allgather(str(losses)))) == 1


def test_gan_comes_near_the_ring(hvd, capsys):
    off = load("torch_gan").main(["--steps", "160", "--report-every", "80"])
    said = capsys.readouterr().out
    assert said.count("away from the ring") == (2 if hvd.rank() == 0 else 0)
    assert off < 1.0  # 1.9 at first
    assert len(set(MPI.COMM_WORLD.allgather(off))) == 1


@pytest.mark.parametrize("name", ["torch_synthetic_benchmark", "torch_imagenet_style", "torch_process_sets", "torch_gan"])
def test_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        load(name).main(["--help"])
    assert ended.value.code == 0
    assert "mpirun" in capsys.readouterr().out


def test_cupy_allreduce_on_the_host(hvd, capsys):
    example = load("cupy_allreduce")
    error = example.main(["--host", "--rows", "500", "--columns", "8"])
    said = capsys.readouterr().out
    assert error < 0.01
    assert f"rank {hvd.rank()} of {hvd.size()}: 500 rows on NumPy" in said
    assert (f"{500 * hvd.size()} rows, " in said) == (hvd.rank() == 0)


def test_cupy_allreduce_says_that_it_needs_a_gpu(hvd, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert load("cupy_allreduce").main([]) is None
    said = capsys.readouterr().out
    assert ("needs CuPy and an NVIDIA GPU on each rank (no CuPy: " in said) == (hvd.rank() == 0)


def test_numpy_allreduce(hvd, capsys):
    load("numpy_allreduce")
    said = capsys.readouterr().out
    mean = sum(10.0 * rank for rank in range(hvd.size())) / hvd.size()
    assert f"rank {hvd.rank()} of {hvd.size()}" in said
    assert f"average [{mean:.0f}." in said


def test_fsdp_trains_as_one_process(hvd, capsys):
    pytest.importorskip("torch.distributed.fsdp", reason="needs torch's fully_shard")
    small = ["--steps", "6", "--batch-size", "2", "--length", "16", "--width", "32", "--layers", "2", "--report-every", "3"]
    loss, alone = load("torch_fsdp").main([*small, "--compare"])
    said = capsys.readouterr().out
    if hvd.rank() == 0:
        assert abs(loss - alone) < 1e-4
        assert f"step 6: loss {loss:.4f} on {hvd.size()} rank(s), of one process {alone:.4f}" in said
        here, everything = (int(word.replace(",", "")) for word in said.split("; ")[1].split(" parameters")[0].split(" of "))
        assert here < everything
    else:
        assert alone is None
        assert not said
    assert len(set(MPI.COMM_WORLD.allgather(loss))) == 1


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_a_pipeline_trains_as_one_process(hvd, capsys, schedule):
    pytest.importorskip("torch.distributed.pipelining", reason="needs torch's pipelining")
    small = ["--steps", "6", "--batch-size", "8", "--microbatches", "4", "--length", "16", "--width", "32", "--layers", "3"]
    loss, alone = load("torch_pipeline").main([*small, "--report-every", "3", "--schedule", schedule, "--compare"])
    said = capsys.readouterr().out
    if hvd.rank() == hvd.size() - 1:
        assert loss < 4  # 4.1 at first
        assert abs(loss - alone) < 1e-4
        assert f"step 6: loss {loss:.4f} on {hvd.size()} rank(s), of one process {alone:.4f}" in said
        assert f"; {5 - 5 * (hvd.size() - 1) // hvd.size()} of 5 layers are on the last" in said
    else:
        assert loss is alone is None
        assert not said
