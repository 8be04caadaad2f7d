"""Programs written for Horovod with TensorFlow and Keras run unchanged."""

import re

import pytest
from shim_job import SCRIPTS, run
from support.installed import need
from support.job import launcher_has_ulfm

need("tensorflow", "sklearn")


def test_a_loop_with_the_tape(tmp_path):
    job = run(tmp_path, str(SCRIPTS / "tensorflow2_digits.py"), str(tmp_path))
    assert job.returncode == 0, job.report()
    losses = [float(text) for text in re.findall(r"Step #\d+\tLoss: ([\d.]+)", job.stdout[0])]
    assert len(losses) == 12
    assert losses[-1] < 0.5 < losses[0], job.report()
    assert (tmp_path / "checkpoint").exists()


def test_compile_and_fit(tmp_path):
    job = run(tmp_path, str(SCRIPTS / "tensorflow2_keras_digits.py"), str(tmp_path))
    assert job.returncode == 0, job.report()
    accuracies = [float(text) for text in re.findall(r"accuracy: ([\d.]+)", job.stdout[0])]
    assert len(accuracies) == 5
    assert accuracies[-1] > 0.85, job.report()
    assert "Epoch 3: finished gradual learning rate warmup to 0.002." in job.stdout[0]
    assert "accuracy" not in job.stdout[1]
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == [f"checkpoint-{epoch}.keras" for epoch in range(1, 6)]


def test_graphs_and_a_monitored_session(tmp_path):
    job = run(tmp_path, str(SCRIPTS / "tensorflow_digits_session.py"), "--checkpoint-dir", str(tmp_path / "checkpoints"))
    assert job.returncode == 0, job.report()
    ends = [re.findall(r"rank \d loss ([\d.]+) accuracy ([\d.]+) weights (\S+)", job.stdout[rank]) for rank in (0, 1)]
    (loss, accuracy, weights), (other_loss, _, other_weights) = ends[0][0], ends[1][0]
    assert weights == other_weights
    assert loss != other_loss, "the ranks see different images"
    assert float(loss) < 0.5, job.report()
    assert float(accuracy) > 0.85, job.report()


@pytest.mark.slow
def test_synthetic_benchmark(tmp_path):
    job = run(tmp_path, str(SCRIPTS / "tensorflow2_synthetic_benchmark.py"), "--no-cuda", "--fp16-allreduce")
    assert job.returncode == 0, job.report()
    assert job.stdout[1] == ""
    assert re.search(r"Number of CPUs: 2\n(?s:.*)Iter #2: (?s:.*)Total img/sec on 2 CPU\(s\): [\d.]+ \+-", job.stdout[0])


@pytest.mark.slow
def test_callbacks_checkpoints_and_resuming(tmp_path):
    script = str(SCRIPTS / "keras_digits_advanced.py")
    files = ["--checkpoint-format", str(tmp_path / "{epoch}.keras")]
    job = run(tmp_path, script, "--epochs", "3", *files)
    assert job.returncode == 0, job.report()
    assert re.findall(r"learning rate ([\d.]+)", job.stdout[0]) == ["0.0450", "0.0600", "0.0600"], job.report()
    assert re.search(r"Test accuracy: 0\.[89]", job.stdout[0]), job.report()
    assert job.stdout[1] == ""
    first = [float(text) for text in re.findall(r"val_loss: ([\d.]+)", job.stdout[0])]
    job = run(tmp_path, script, "--epochs", "6", "--fp16-allreduce", *files)
    assert job.returncode == 0, job.report()
    assert re.findall(r"Epoch (\d)/6", job.stdout[0]) == ["4", "5", "6"]
    assert re.findall(r"learning rate ([\d.]+)", job.stdout[0]) == ["0.0600", "0.0060", "0.0060"], job.report()
    later = [float(text) for text in re.findall(r"val_loss: ([\d.]+)", job.stdout[0])]
    assert first[0] > later[0] > 0.9 * later[-1]


@pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
def test_an_elastic_script_goes_on_without_a_rank_that_dies(tmp_path):
    pytest.importorskip("sklearn")
    job = run(tmp_path, str(SCRIPTS / "tensorflow2_digits_elastic.py"), mpirun_args=("--with-ft", "ulfm"))
    assert job.returncode == 0, job.report()
    steps = re.findall(r"Step #(\d+) on (\d) ranks\tLoss: ([\d.]+)", job.stdout[0])
    assert [step[:2] for step in steps] == [("20", "2"), ("119", "1")], job.report()
    assert float(steps[1][2]) < float(steps[0][2]), job.report()
