"""However a program ends, its own last words are there, once, and nothing of ours comes after them."""

import pytest
from support.job import run_job, survivors_stay

PLAIN = ""
# torch's hook for exceptions takes what others print, ours too, and prints it itself when they have returned.
OURS = "import torch.distributed, hvdlite.torch.distributed; torch.distributed.init_process_group('hvdlite')"
GLOO = (
    "import torch.distributed; torch.distributed.init_process_group('gloo', init_method='file://' + sys.argv[1], "
    "rank=hvd.rank(), world_size=2)"
)
BESIDE = {"plain": PLAIN, "backend hvdlite": OURS, "gloo": GLOO}

PROGRAM = """
import os, sys, threading
import numpy as np
import hvdlite as hvd

hvd.init()
{beside}
hvd.allreduce(np.ones(2), name="before")
if hvd.rank() == 1:
    {end}
hvd.allreduce(np.ones(2), name="after")
"""


def job_that_ends(end, tmp_path, beside=PLAIN, mpirun_args=()):
    """In fresh processes, except beside torch."""
    text = PROGRAM.format(beside=beside, end=end)
    return run_job(text, 2, args=[str(tmp_path / "store")], mpirun_args=mpirun_args, fresh=not beside)


def without_prefix(text):
    """Without what torch puts before each line."""
    return text.replace("[rank1]: ", "")


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("end", ["raise ValueError('the real reason')", "raise KeyboardInterrupt('the real reason')"])
def test_an_exception_is_shown_once_and_last(end, beside, tmp_path):
    job = job_that_ends(end, tmp_path, BESIDE[beside])
    kind = end.split()[1].split("(")[0]
    said = without_prefix(job.stderr[1])
    assert said.endswith(f"{kind}: the real reason\n"), job.report()
    assert said.count("Traceback") == said.count("the real reason") - said.count("raise") == 1, job.report()
    assert f"raised {kind}: the real reason" in job.stderr[0], job.report()
    assert job.returncode != 0


# What runs a script and shows its exceptions itself, on stdout.
RUNNERS = {
    "pytest": "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', script]))",
    "IPython": "from IPython import start_ipython; sys.exit(start_ipython(['--colors=nocolor', '--no-confirm-exit', script]))",
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_exception_under_a_runner_of_scripts(runner, tmp_path):
    script = tmp_path / "test_script.py"
    script.write_text(PROGRAM.format(beside=PLAIN, end="raise ValueError('the real ' + 'reason')"))
    text = f"import os, sys; os.environ['IPYTHONDIR'] = os.path.dirname(script := {str(script)!r}); {RUNNERS[runner]}"
    job = run_job(text, 2)
    assert not job.timed_out, job.report()
    assert job.returncode != 0
    assert job.stdout[1].count("ValueError: the real reason") >= 1, job.report()
    assert "rank 1 (host" in job.stdout[0], job.report()


LIGHTNING = """
import lightning, torch
import hvdlite.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(2), name="before")

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        if hvd.rank() == 1:
            raise ValueError("the real " + "reason")
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return hvd.DistributedOptimizer(torch.optim.SGD(self.parameters(), 0.1), start_check="off")

data = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4)
options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, **options).fit(Model(), data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["plain", "backend hvdlite"])
def test_an_exception_in_a_step_of_lightning(beside):
    job = run_job(LIGHTNING.replace("hvd.init()", f"hvd.init(); {BESIDE[beside]}"), 2)
    assert not job.timed_out, job.report()
    said = without_prefix(job.stderr[1])
    assert said.endswith("ValueError: the real reason\n"), job.report()
    assert said.count("Traceback") == 1, job.report()
    assert "raised ValueError: the real reason" in job.stderr[0], job.report()
    assert job.returncode != 0


def test_a_non_daemon_thread_that_waits_keeps_no_rank_alive(tmp_path):
    job = job_that_ends(
        "threading.Thread(target=threading.Event().wait).start(); raise ValueError('the real reason')", tmp_path
    )
    assert not job.timed_out, job.report()
    assert job.stderr[1].endswith("ValueError: the real reason\n"), job.report()


def test_an_exception_while_the_disk_of_the_output_is_full(tmp_path):
    """The output in the buffer is lost; the other rank still learns why this one has ended."""
    end = "sys.stdout = open('/dev/full', 'w'); print('lost'); raise ValueError('the real reason')"
    job = job_that_ends(end, tmp_path)
    assert not job.timed_out, job.report()
    assert job.stderr[1].endswith("ValueError: the real reason\n"), job.report()
    assert "raised ValueError: the real reason" in job.stderr[0], job.report()


# A program's own stream, log handler or exception, with which the end of the rank has trouble.
TROUBLES = {
    "a stream without flush": (
        "sys.stdout = type('Tee', (), {'write': lambda self, text: None})(); raise ValueError('the reason')"
    ),
    "a handler whose flush raises": (
        "import logging; handler = logging.NullHandler(); handler.flush = lambda: 1 / 0; "
        "logging.getLogger().addHandler(handler); raise ValueError('the reason')"
    ),
    "an exception without a text": "raise type('ValueError', (Exception,), {'__str__': lambda self: 1 / 0})",
    "a text that is no UTF-8": "raise ValueError('the reason: ' + os.fsdecode(b'\\xff'))",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_other_rank_learns_the_cause_in_spite_of(trouble, tmp_path):
    job = job_that_ends(TROUBLES[trouble], tmp_path)
    assert not job.timed_out, job.report()
    text = {"an exception without a text": "<exception str() failed>", "a text that is no UTF-8": r"the reason: \udcff"}
    assert f"raised ValueError: {text.get(trouble, 'the reason')}" in job.stderr[0], job.report()
    assert job.returncode != 0


def test_sys_exit_with_a_text(tmp_path):
    job = job_that_ends("sys.exit('the real reason')", tmp_path)
    assert job.stderr[1].count("the real reason\n") == 1, job.report()
    assert job.returncode != 0
    assert "rank 1" in job.stderr[0], job.report()


def test_a_thread_that_raises_ends_itself_alone(tmp_path):
    job = job_that_ends(
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()", tmp_path, BESIDE["backend hvdlite"]
    )
    assert job.returncode == 0, job.report()
    assert job.stderr[1].count("ZeroDivisionError: division by zero") == 1, job.report()


def test_an_exception_at_exit(tmp_path):
    """Python shows it and ends well, and so does the job."""
    job = job_that_ends("import atexit; atexit.register(lambda: 1 / 0)", tmp_path)
    assert job.returncode == 0, job.report()
    assert job.stderr[1].count("ZeroDivisionError: division by zero") == 1, job.report()


def test_a_crash_under_faulthandler(tmp_path):
    job = job_that_ends("import faulthandler; faulthandler.enable(); os.abort()", tmp_path, mpirun_args=survivors_stay())
    assert job.stderr[1].count("Fatal Python error: Aborted") == 1, job.report()
    assert "rank 1" in job.stderr[0], job.report()


def test_an_exception_that_the_program_shows_itself_does_not_end_it(tmp_path):
    """It calls the hook, as some loggers do, and goes on."""
    end = "exec('try:\\n    1 / 0\\nexcept ZeroDivisionError:\\n    sys.excepthook(*sys.exc_info())')"
    job = job_that_ends(end, tmp_path, BESIDE["backend hvdlite"])
    assert job.returncode == 0, job.report()
    assert job.stderr[1].count("ZeroDivisionError: division by zero") == 1, job.report()
