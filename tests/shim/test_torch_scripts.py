"""Programs written for Horovod with PyTorch run unchanged."""

import re
import textwrap

import pytest
from shim_job import SCRIPTS, run
from support.installed import need
from support.job import launcher_has_ulfm

need("torch")


def test_digits(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("packaging")
    job = run(tmp_path, str(SCRIPTS / "pytorch_digits.py"), "--epochs", "8", "--fp16-allreduce", "--no-cuda")
    assert job.returncode == 0, job.report()
    assert job.stdout[1] == ""
    assert re.search(r"Train Epoch: 8 \[\d+/750\]\tLoss: 0\.\d+", job.stdout[0])
    accuracies = [float(text) for text in re.findall(r"Accuracy: ([\d.]+)%", job.stdout[0])]
    assert len(accuracies) == 8
    assert accuracies[-1] > 85, job.report()


def test_synthetic_benchmark(tmp_path):
    job = run(tmp_path, str(SCRIPTS / "pytorch_synthetic_benchmark.py"), "--no-cuda", "--num-iters", "2")
    assert job.returncode == 0, job.report()
    assert (job.stderr, job.stdout[1]) == ({0: "", 1: ""}, "")
    assert re.search(r"Number of CPUs: 2\n(?s:.*)Iter #1: (?s:.*)Total img/sec on 2 CPU\(s\): [\d.]+ \+-", job.stdout[0])


def test_a_script_resumes_from_its_checkpoint(tmp_path):
    script = str(SCRIPTS / "pytorch_resume.py")
    files = ["--checkpoint-format", str(tmp_path / "{epoch}.pth.tar")]
    job = run(tmp_path, script, "--epochs", "2", *files)
    assert job.returncode == 0, job.report()
    losses = [float(text) for text in re.findall(r"epoch \d loss ([\d.]+)", job.stdout[0])]
    job = run(tmp_path, script, "--epochs", "4", "--fp16-allreduce", *files)
    assert job.returncode == 0, job.report()
    later = re.findall(r"epoch (\d) loss ([\d.]+)", job.stdout[0])
    assert [epoch for epoch, _ in later] == ["3", "4"]
    assert losses[0] > losses[1] > float(later[0][1]) > float(later[1][1])


@pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
def test_an_elastic_script_goes_on_without_a_rank_that_dies(tmp_path):
    pytest.importorskip("sklearn")
    script = str(SCRIPTS / "pytorch_digits_elastic.py")
    job = run(tmp_path, script, "--fp16-allreduce", mpirun_args=("--with-ft", "ulfm"))
    assert job.returncode == 0, job.report()
    epochs = re.findall(r"Train Epoch: (\d) on (\d) ranks", job.stdout[0])
    assert epochs == [("1", "2"), ("2", "1"), ("3", "1"), ("4", "1")], job.report()
    assert float(re.findall(r"Accuracy: ([\d.]+)%", job.stdout[0])[0]) > 75, job.report()


def test_features_and_a_variable_without_effect(tmp_path):
    env = {"HOROVOD_GLOO_IFACE": "eth0", "HOROVOD_CYCLE_TIME": "0.5"}
    job = run(tmp_path, str(SCRIPTS / "pytorch_features.py"), env=env)
    assert job.returncode == 0, job.report()
    assert [job.stdout[rank] for rank in (0, 1)] == [f"rank {rank} has done all\n" for rank in (0, 1)]
    said = "these variables of Horovod have no effect here: HOROVOD_GLOO_IFACE (Gloo is not used)\n"
    assert (job.stderr[0].count(said), job.stderr[1].count(said)) == (1, 0), job.report()


def test_a_rank_that_raises(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent(
            """
            import sys
            import horovod.torch as hvd
            import torch
            hvd.init()
            if hvd.rank() == 1:
                raise ValueError(f"no data in {sys.argv[1]}")
            hvd.allreduce(torch.ones(3), name="x")
            """
        )
    )
    job = run(tmp_path, str(tmp_path / "script.py"), "here")
    assert job.returncode == 1, job.report()
    assert job.stderr[1].startswith(
        f'Traceback (most recent call last):\n  File "{tmp_path / "script.py"}", line 7, in <module>\n    raise ValueError('
    )
    assert "raised ValueError: no data in here" in job.stderr[0]
