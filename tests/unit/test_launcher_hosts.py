"""Where ranks run: lists and files of hosts, Slurm's allocations, cores beside each rank."""

import os
from pathlib import Path

import pytest

from hvdlite.errors import InvalidArgumentError
from hvdlite.launcher import rank, slurm
from hvdlite.launcher.hosts import Host, format_hosts, is_local, parse_hostfile, parse_hosts, read_hostfile

# --- hosts --------------------------------------------------------------------------------------------------------------


def test_hosts_of_the_command_line():
    assert parse_hosts("a:2,b") == (Host("a", 2), Host("b", 1))
    assert parse_hosts(" a , a:3") == (Host("a", 4),)
    assert parse_hosts("[fe80::1]:2,10.0.0.1") == (Host("[fe80::1]", 2), Host("10.0.0.1", 1))
    assert format_hosts((Host("a", 2), Host("b", 2))) == "a:2,b:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:0", "'a:0' is not a host"),
        ("a:two", "'a:two' is not a host"),
        ("a b", "'a b' is not a host"),
        ("me@a:2", "names a user; write the user into ~/.ssh/config"),
        (",", "names no host"),
    ],
)
def test_hosts_that_cannot_be_read(text, said):
    with pytest.raises(InvalidArgumentError, match=said.replace("(", r"\(")) as caught:
        parse_hosts(text)
    assert f"-H {text}" in str(caught.value)


def test_host_files_of_both_families():
    text = """
    # Open MPI's form
    a slots=2 max_slots=4
    b slots = 3  # with a remark
    c:4
    d
    d
    """
    assert parse_hostfile(text) == (Host("a", 2), Host("b", 3), Host("c", 4), Host("d", 2))


def test_host_files_that_cannot_be_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb cores=2\n")
    with pytest.raises(InvalidArgumentError, match=r"hosts, line 2: 'b cores=2' has none of the forms `host`"):
        read_hostfile(str(file))
    with pytest.raises(InvalidArgumentError, match=r"absent cannot be read: .*No such file"):
        read_hostfile(str(tmp_path / "absent"))
    with pytest.raises(InvalidArgumentError, match="names no host"):
        parse_hostfile("# nothing\n")


def test_this_host_is_local():
    assert is_local("localhost")
    assert is_local(os.uname().nodename)
    assert not is_local("elsewhere.example")


# --- Slurm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("n[1-3],m", ["n1", "n2", "n3", "m"]),
        ("gpu[08-10,12],x7", ["gpu08", "gpu09", "gpu10", "gpu12", "x7"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a[1]-ib,b", ["a1-ib", "b"]),
    ],
)
def test_node_lists(text, names):
    assert slurm.expand_nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n1]", "n[1-3"])
def test_node_lists_that_cannot_be_read(text):
    with pytest.raises(InvalidArgumentError, match="is not a node list of Slurm"):
        slurm.expand_nodes(text)


def test_an_allocation():
    environ = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_TASKS_PER_NODE": "2(x2),1",
        "SLURM_NTASKS": "5",
        "SLURM_STEP_ID": "4294967291",  # the batch script
    }
    allocation = slurm.read_allocation(environ)
    assert allocation == slurm.Allocation("77", (Host("n1", 2), Host("n2", 2), Host("n3", 1)), 5, False)
    assert slurm.read_allocation({**environ, "SLURM_STEP_ID": "0"}).inside_step
    assert slurm.read_allocation({}) is None
    assert slurm.read_allocation({"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]"}).hosts == (Host("n1"), Host("n2"))
    with pytest.raises(InvalidArgumentError, match=r"SLURM_TASKS_PER_NODE='2\(x\)'"):
        slurm.read_allocation({**environ, "SLURM_TASKS_PER_NODE": "2(x)"})


OLD_LISTING = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix_v3\nsrun: pmix\n"
NEW_LISTING = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n"


@pytest.mark.parametrize("listing", [OLD_LISTING, NEW_LISTING])
def test_the_way_in_which_slurm_starts_an_mpi(listing):
    assert slurm.choose_plugin(listing, "openmpi") == "pmix"
    assert slurm.choose_plugin(listing, "mpich") == "pmi2"
    assert slurm.choose_plugin("\tnone\n\tpmix_v4\n\tpmix_v5\n", "openmpi") == "pmix_v5"
    assert slurm.choose_plugin("\tnone\n\tpmi2\n", "openmpi") is None


# --- beside each rank ---------------------------------------------------------------------------------------------------


def test_places_by_every_launchers_word():
    assert rank.rank_of({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}) == 3
    assert rank.rank_of({"PMI_RANK": "2"}) == 2
    assert rank.rank_of({}) == 0
    assert rank.local_place({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) == (1, 4)
    assert rank.local_place({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}) == (0, 2)
    assert rank.local_place({"SLURM_LOCALID": "1"}) == (0, 0)


def test_cores_are_dealt_out_by_neighbourhood(tmp_path):
    # Two sockets of two cores with two threads each; the kernel numbers the second threads last.
    for cpu in range(8):
        topology = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 2}\n")
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    found = rank.cores(range(8), str(tmp_path))
    assert found == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert rank.core_share(found, 0, 2) == {0, 4, 2, 6}
    assert rank.core_share(found, 1, 2) == {1, 5, 3, 7}
    assert rank.core_share(found, 0, 1) == set(range(8))
    assert rank.core_share(found, 0, 3) == set()  # one core each: none is better
    assert rank.cores([1, 3], str(tmp_path / "absent")) == [[1], [3]]


def test_the_program_beside_a_rank_needs_nothing_but_the_standard_library():
    text = Path(rank.__file__).read_text()
    assert "import hvdlite" not in text
    assert "from hvdlite" not in text
