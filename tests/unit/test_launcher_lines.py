"""What starts the ranks: which mpirun or srun, and its command line."""

import os
import re

import pytest

from hvdlite import config
from hvdlite.errors import InvalidArgumentError, SystemFailure
from hvdlite.launcher import command, functions, mpirun, plan
from hvdlite.launcher.command import Wishes, mpirun_line, srun_line
from hvdlite.launcher.hosts import Host
from hvdlite.launcher.mpirun import Loaded, Mpirun

FOUR = Mpirun("/opt/ompi4/bin/mpirun", "openmpi", (4, 1, 4))
FIVE = Mpirun("/opt/ompi5/bin/mpirun", "openmpi", (5, 0, 11))
HYDRA = Mpirun("/opt/mpich/bin/mpiexec", "mpich", (5, 0, 2))
INTEL = Mpirun("/opt/intel/bin/mpirun", "intel", (2021, 9))
TWO = (Host("a", 2), Host("b", 2))
ENVIRON = {"PATH": "/bin", "HVDLITE_CYCLE_TIME": "1", "HOME": "/root", "OMP_NUM_THREADS": "2", "BASH_FUNC_ml%%": "() { }"}


# --- command lines ------------------------------------------------------------------------------------------------------


def words(mpirun, **wishes):
    line = mpirun_line(mpirun, Wishes(**wishes))
    return line.shell(["python", "train.py", "a b"])


@pytest.mark.parametrize(
    ("program", "wishes", "expected"),
    [
        (FOUR, {"np": 4}, "/opt/ompi4/bin/mpirun -n 4 --bind-to none --map-by slot --oversubscribe python train.py 'a b'"),
        (
            FIVE,
            {"np": 4, "root": True},
            "/opt/ompi5/bin/mpirun --allow-run-as-root -n 4 --bind-to none --map-by slot --oversubscribe python train.py 'a b'",
        ),
        (
            FIVE,
            {"np": 4, "elastic": True},
            "/opt/ompi5/bin/mpirun -n 4 --bind-to none --map-by slot --oversubscribe --with-ft ulfm "
            "--mca coll '^han,adapt,hcoll,portals4' python train.py 'a b'",
        ),
        (
            FOUR,
            {
                "np": 4,
                "hosts": TWO,
                "environ": ENVIRON,
                "ssh_port": 2222,
                "interfaces": ("eth0", "eth1"),
                "tcp_streams": 4,
                "tcp_buffer_bytes": 65536,
            },
            "/opt/ompi4/bin/mpirun -n 4 --host a:2,b:2 --bind-to none --map-by slot --mca ess_base_forward_signals 28,23 "
            "--mca plm_rsh_args '-p 2222' "
            "--mca oob_tcp_if_include eth0,eth1 --mca btl_tcp_if_include eth0,eth1 "
            "--mca btl_tcp_links 4 --mca btl_tcp_sndbuf 65536 --mca btl_tcp_rcvbuf 65536 "
            "-x HVDLITE_CYCLE_TIME -x OMP_NUM_THREADS -x PATH python train.py 'a b'",
        ),
        (
            FIVE,
            {
                "np": 3,
                "hosts": TWO,
                "environ": ENVIRON,
                "ssh_port": 2222,
                "ssh_identity_file": "/k ey",
                "interfaces": ("eth0",),
                "names": ("MINE",),
                "variables": {"NCCL_DEBUG": "INFO WARN"},
            },
            "env 'NCCL_DEBUG=INFO WARN' /opt/ompi5/bin/mpirun -n 3 --host a:2,b:2 --bind-to none --map-by slot "
            "--prtemca ess_base_forward_signals 28,23 "
            """--prtemca plm_ssh_args '-p 2222 -i '"'"'/k ey'"'"'' --prtemca prte_if_include eth0 """
            "--mca btl_tcp_if_include eth0 -x HVDLITE_CYCLE_TIME -x MINE -x NCCL_DEBUG -x OMP_NUM_THREADS -x PATH "
            "python train.py 'a b'",
        ),
        (
            FIVE,
            {"np": 8, "allocated": TWO, "oversubscribe": True, "mpi_args": ("--bind-to", "core"), "environ": {}},
            "/opt/ompi5/bin/mpirun -n 8 --oversubscribe --prtemca ess_base_forward_signals 28,23 "
            "--bind-to core python train.py 'a b'",
        ),
        (HYDRA, {"np": 4, "root": True}, "/opt/mpich/bin/mpiexec -n 4 -bind-to none python train.py 'a b'"),
        (
            HYDRA,
            {"np": 4, "hosts": TWO, "environ": ENVIRON, "ssh_port": 2222, "interfaces": ("eth0",)},
            "env 'HYDRA_LAUNCHER_EXTRA_ARGS=-p 2222' /opt/mpich/bin/mpiexec -hosts a:2,b:2 -n 4 -bind-to none -iface eth0 "
            "-genvlist HVDLITE_CYCLE_TIME,OMP_NUM_THREADS,PATH python train.py 'a b'",
        ),
        (INTEL, {"np": 2}, "env I_MPI_PIN=off /opt/intel/bin/mpirun -n 2 python train.py 'a b'"),
    ],
)
def test_command_lines(program, wishes, expected):
    assert words(program, **wishes) == expected


def test_a_local_host_list_passes_no_variables():
    assert "-x" not in words(FIVE, np=2, hosts=(Host("localhost", 2),), environ=ENVIRON)


@pytest.mark.parametrize("program", [FIVE, HYDRA], ids=["openmpi", "mpich"])
def test_what_to_look_after_if_no_rank_starts(program):
    assert "ssh HOST true" in mpirun_line(program, Wishes(np=4, hosts=TWO)).remedy
    assert mpirun_line(program, Wishes(np=4)).remedy == ""
    assert "--launcher mpirun" in srun_line("/usr/bin/srun", "pmix", Wishes(np=4), nodes=2, inside_step=False).remedy


def test_more_ranks_than_slots():
    with pytest.raises(InvalidArgumentError, match=r"-n 5 asks for more ranks than a:2,b:2 has slots \(4\).*--oversubscribe"):
        words(FIVE, np=5, hosts=TWO)
    assert "--oversubscribe" in words(FIVE, np=5, hosts=TWO, oversubscribe=True)


def test_hydra_takes_one_interface():
    with pytest.raises(InvalidArgumentError, match=r"--network-interfaces a,b: MPICH 5\.0\.2 takes one interface only"):
        words(HYDRA, np=2, interfaces=("a", "b"))


def test_hydra_has_no_streams_and_no_sizes_of_buffers():
    with pytest.raises(InvalidArgumentError, match=r"--tcp-streams 2: MPICH 5\.0\.2 has no such setting"):
        words(HYDRA, np=2, tcp_streams=2)
    with pytest.raises(InvalidArgumentError, match=r"--tcp-buffer-bytes 65536: MPICH 5\.0\.2 has no such setting"):
        words(HYDRA, np=2, tcp_buffer_bytes=65536)


def test_srun():
    line = srun_line("/usr/bin/srun", "pmix", Wishes(np=4, interfaces=("ib0",), tcp_streams=2, oversubscribe=True), 2, True)
    assert line.shell(["x"]) == (
        "env OMPI_MCA_btl_tcp_if_include=ib0 OMPI_MCA_btl_tcp_links=2 "
        "/usr/bin/srun --ntasks=4 --mpi=pmix --kill-on-bad-exit=1 --export=ALL --input=0 --overlap --overcommit x"
    )
    line = srun_line("srun", "pmi2", Wishes(np=1, mpi_args=("--cpu-bind=cores",)), 2, False)
    assert (
        line.shell(["x"])
        == "srun --ntasks=1 --nodes=1 --mpi=pmi2 --kill-on-bad-exit=1 --export=ALL --input=0 --cpu-bind=cores x"
    )
    assert "--nodelist=a,b --nodes=2" in srun_line("srun", "pmi2", Wishes(np=4, hosts=TWO), 4, False).shell(["x"])
    with pytest.raises(InvalidArgumentError, match=r"--ssh-port .* have no effect with srun"):
        srun_line("srun", "pmix", Wishes(np=1, ssh_port=22), 1, False)


def test_who_names_a_binding():
    for args in (["--bind-to", "core"], ["--map-by", "ppr:1:node"], ["-bind-to", "none"], ["--cpu-bind=cores"]):
        assert command.names_binding(args)
    assert not command.names_binding(["--mca", "btl", "^openib"])


# --- mpirun -------------------------------------------------------------------------------------------------------------

SAID = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs": ("openmpi", (5, 0, 11)),
    "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport": ("openmpi", (4, 1, 4)),
    "prterun (PMIx Reference RunTime Environment) 3.0\n": None,
    "HYDRA build details:\n    Version:                                 5.0.2\n": ("mpich", (5, 0, 2)),
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307": ("intel", (2021, 9)),
    "bash: no": None,
}


@pytest.mark.parametrize("said", SAID)
def test_what_an_mpirun_is(said):
    found = mpirun.identify("mpirun", said)
    assert (found and (found.family, found.version)) == SAID[said]


def test_the_mpirun_that_fits():
    other = Mpirun("/other/mpirun", "openmpi", (5, 0, 3))
    assert mpirun.choose(Loaded("openmpi", "Open MPI v5.0.11", "m"), [HYDRA, FOUR, other, FIVE]) is other
    assert mpirun.choose(Loaded("openmpi", "Open MPI v4.1.4", "m"), [HYDRA, FIVE, FOUR]) is FOUR
    assert mpirun.choose(Loaded("openmpi", "Open MPI v6.0.0", "m"), [HYDRA, FOUR]) is FOUR  # better than none; doctor warns
    assert mpirun.choose(Loaded("mpich", "Intel(R) MPI Library 2021.9", "m"), [HYDRA, INTEL]) is INTEL
    with pytest.raises(SystemFailure) as caught:
        mpirun.choose(Loaded("mpich", "MPICH 4.2", "m", ("/x/libmpi.so.12",)), [FIVE])
    for part in ("MPICH 4.2 (/x/libmpi.so.12)", "/opt/ompi5/bin/mpirun (Open MPI 5.0.11)", "pip install mpich", "--mpirun"):
        assert part in str(caught.value)


def test_the_mpirun_beside_the_library_comes_first(tmp_path, monkeypatch):
    programs = {}
    for place, version in (("own", "5.0.11"), ("path", "5.0.11"), ("lib", "5.0.11")):
        program = tmp_path / place / "bin" / "mpirun"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
        program.chmod(0o755)
        programs[place] = str(program)
    library = tmp_path / "lib" / "lib64" / "libmpi.so.40"
    monkeypatch.setattr(mpirun.sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    loaded = Loaded("openmpi", "Open MPI v5.0.11", "m", (str(library),))
    monkeypatch.setattr(mpirun, "ask_mpi4py", lambda: loaded)
    found = mpirun.find()
    assert (found.path, found.reason) == (programs["lib"], f"it belongs to the library that mpi4py loads, {library}")
    os.remove(programs["lib"])
    assert mpirun.find().path == programs["own"]
    os.remove(programs["own"])
    assert mpirun.find().path == programs["path"]
    with pytest.raises(SystemFailure, match="--mpirun /bin/true is not the mpirun"):
        mpirun.find("/bin/true")


def test_what_other_launchers_left_is_not_handed_on():
    left = "OMPI_MCA_orte_jobid OMPI_COMM_WORLD_RANK PMIX_RANK PMI_FD PRTE_LAUNCHED MPI_LOCALRANKID"
    left = dict.fromkeys(left.split(), "1")
    kept = "OMPI_MCA_orte_keep_fqdn_hostnames PATH OMPI_MCA_btl OMPI_ALLOW_RUN_AS_ROOT HVDLITE_CYCLE_TIME"
    kept = dict.fromkeys(kept.split(), "1")
    assert config.outside_of_jobs({**left, **kept}) == kept


# --- plans --------------------------------------------------------------------------------------------------------------


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    """An allocation of Slurm with an srun that starts the ranks here, one after another."""
    program(
        tmp_path,
        "srun",
        """
        [ "$1" = --mpi=list ] && { printf 'MPI plugin types are...\\n\\tpmi2\\n\\tpmix\\n'; exit; }
        echo "srun $*" >> $SRUN_LOG
        for word in "$@"; do case "$word" in
            --ntasks=*) n=${word#--ntasks=}; shift ;;
            --*) shift ;;
            *) break ;;
        esac; done
        rank=0; status=0
        while [ $rank -lt $n ]; do
            SLURM_PROCID=$rank "$@" || status=$?
            rank=$((rank + 1))
        done
        exit $status""",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS": "2"}


def test_in_an_allocation_srun_starts_the_ranks(allocation):
    chosen = plan.make(Wishes(environ=allocation), None)
    assert chosen.line.words[1:3] == ("--ntasks=2", "--mpi=pmix")
    assert (chosen.size, chosen.bind, chosen.remote) == (2, False, True)
    assert "allocation 5 of Slurm" in chosen.notes[0]


def test_in_an_allocation_mpirun_can_be_asked_for(allocation):
    chosen = plan.make(Wishes(environ=allocation), 4, launcher="mpirun")
    assert "--host" not in chosen.line.words  # mpirun knows
    assert "--oversubscribe" not in chosen.line.words
    assert chosen.size == 4


def test_an_srun_that_cannot_start_this_mpi(allocation, tmp_path, monkeypatch):
    monkeypatch.setattr(plan.mpi, "ask_mpi4py", lambda *args: Loaded("mpich", "MPICH 4.2", "m"))
    program(tmp_path, "srun", "printf 'MPI plugin types are...\\n\\tnone\\n'")
    with pytest.raises(SystemFailure, match=r"--launcher srun: srun has no plugin that starts MPICH 4\.2"):
        plan.make(Wishes(environ=allocation), 2, launcher="srun")
    monkeypatch.setattr(plan.mpi, "find", lambda path: HYDRA)
    chosen = plan.make(Wishes(environ=allocation), 2)
    assert chosen.line.words[0] == HYDRA.path
    assert "mpirun starts the ranks, and not srun" in chosen.notes[0]


def test_srun_without_an_allocation():
    with pytest.raises(InvalidArgumentError, match="this process is in no allocation of Slurm"):
        plan.make(Wishes(), 2, launcher="srun")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"fn": (0, 0.1)}, "got (0, 0.1) of type tuple: pass the function itself and its arguments"),
        ({"fn": print, "args": 0.1}, "args=0.1 is no tuple of the function's arguments; for one argument write args=(0.1,)"),
        ({"fn": print, "args": "data"}, "args='data' is no tuple of the function's arguments"),
        ({"fn": print, "kwargs": [0.1]}, "run(print): kwargs=[0.1] is no dict"),
    ],
)
def test_calls_that_no_rank_could_make(call, said):
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        functions.run(**call, np=2)


def test_how_many_ranks(tmp_path):
    with pytest.raises(InvalidArgumentError, match="give the number of ranks"):
        plan.make(Wishes(), None)
    with pytest.raises(InvalidArgumentError, match="-H and --hostfile"):
        plan.make(Wishes(), 2, "a", "b")
    for size in (0, -1, "2", 2.0, True):
        with pytest.raises(InvalidArgumentError, match=re.escape(f"must be a whole number above 0, got {size!r}")):
            plan.make(Wishes(), size)
    assert plan.make(Wishes(), None, "a:2,b:3").size == 5
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\n")
    chosen = plan.make(Wishes(environ={"PBS_NODEFILE": str(nodes)}), None)
    assert (chosen.size, chosen.remote) == (3, True)


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(InvalidArgumentError, match=r"hvdlite run starts ranks, but this process is itself one of 2"):
        plan.refuse_nested("hvdlite run")


@pytest.mark.parametrize("program", [FOUR, HYDRA, INTEL], ids=lambda program: program.title)
def test_an_mpi_that_ends_a_job_with_its_first_process_is_not_elastic(program):
    with pytest.raises(InvalidArgumentError, match=rf"--elastic .*: {program.title} ends the whole job"):
        mpirun_line(program, Wishes(np=4, elastic=True))


def test_srun_is_not_elastic():
    with pytest.raises(InvalidArgumentError, match=r"--elastic .*: srun ends the whole job .*--launcher mpirun"):
        srun_line("srun", "pmix", Wishes(np=4, elastic=True), 2, inside_step=False)
