"""The parts of `hvdlite.torchrun` that need no process: what the nodes' servers tell each other, and the refusals."""

import asyncio
import ctypes

import pytest
from support.torchrun import variables

from hvdlite._native import LoadedMpi
from hvdlite.config import is_first_process, outside_of_jobs, rank_and_size_by_launcher, torchrun_place
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.torchrun import join, join_job, pmix
from hvdlite.torchrun.nodes import LOST, Hub
from hvdlite.torchrun.server import NodeServer, ServerArguments


class Nodes:
    """Three nodes, whose ranks are not in the order of the nodes' arrival. The first two are on one host."""

    RANKS = ((2, 3), (0, 1), (4,))
    HOSTS = ("a", "a", "b")

    def __init__(self):
        self.hub = Hub(5, "job")
        self.got = [[] for _ in self.RANKS]
        for node in range(3):
            self.hub.add(lambda header, data, node=node: self.got[node].append((header, data)))
        for node, (host, ranks) in enumerate(zip(self.HOSTS, self.RANKS, strict=True)):
            assert not any(self.got)
            self.hub.take(node, {"kind": "nodes", "host": host, "ranks": ranks}, b"")
        self.maps = [got.pop() for got in self.got]

    def fence(self, node, *ranks):
        self.hub.take(node, {"kind": "fence", "ranks": list(ranks)}, f"<{node}>".encode())


@pytest.fixture
def nodes():
    return Nodes()


def test_all_nodes_get_one_map_in_which_each_node_has_its_own_name(nodes):
    ordered = [("a", [0, 1]), ("a-1", [2, 3]), ("b", [4])]
    for (header, data), index in zip(nodes.maps, (1, 0, 2), strict=True):
        assert header == {"kind": "nodes", "namespace": "job", "nodes": ordered, "index": index}
        assert not data


def test_a_fence_ends_when_all_its_nodes_have_come(nodes):
    nodes.fence(0)
    nodes.fence(2, 0, 4)  # another fence, of two ranks
    nodes.fence(2)
    assert not any(nodes.got)
    nodes.fence(1, 0, 4)
    assert nodes.got == [[], *[[({"kind": "fence", "ranks": [0, 4], "status": 0}, b"<1><2>")]] * 2]
    nodes.fence(1)
    assert [got[-1] for got in nodes.got] == [({"kind": "fence", "ranks": [], "status": 0}, b"<0><1><2>")] * 3
    nodes.fence(0)  # the next one of all ranks
    assert len(nodes.got[0]) == 1


def test_the_loss_of_a_node_fails_the_fences_that_wait_for_it(nodes):
    nodes.fence(0, 0, 2)
    nodes.fence(1)
    nodes.hub.lose(2)
    assert nodes.got == [[], [({"kind": "fence", "ranks": [], "status": LOST}, b"")], []]
    nodes.fence(0)  # a later one fails at once
    assert nodes.got[0] == [({"kind": "fence", "ranks": [], "status": LOST}, b"")]
    nodes.fence(1, 0, 2)  # needs no rank of the lost node
    assert nodes.got[0][-1] == ({"kind": "fence", "ranks": [0, 2], "status": 0}, b"<0><1>")


def test_a_question_for_a_ranks_data_goes_to_its_node_and_the_answer_back(nodes):
    nodes.hub.take(1, {"kind": "modex", "rank": 4, "number": 9}, b"")
    [(question, _)] = nodes.got[2]
    assert (question["kind"], question["rank"]) == ("find", 4)
    nodes.hub.take(2, {**question, "kind": "found", "status": 0}, b"data")
    assert nodes.got[1] == [({"kind": "modex", "number": 9, "status": 0}, b"data")]
    nodes.hub.take(0, {"kind": "modex", "rank": 4, "number": 9}, b"")
    assert nodes.got[0] == []
    nodes.hub.lose(2)
    assert nodes.got[0] == [({"kind": "modex", "number": 9, "status": LOST}, b"")]
    nodes.hub.take(1, {"kind": "modex", "rank": 4, "number": 10}, b"")
    assert nodes.got[1][-1] == ({"kind": "modex", "number": 10, "status": LOST}, b"")


def test_after_the_loss_of_the_hub_all_requests_fail():
    async def statuses():
        server = NodeServer(ServerArguments("", "job", 2, 1, 2, 0, 0, None, ""), "")
        server._namespace, server._post = "job", lambda *_: None
        found, reader = [], asyncio.StreamReader()

        async def ask():
            server._on_fence((), b"", lambda status, _: found.append(status))
            server._on_modex(1, lambda status, _: found.append(status))
            asked = server._loop.create_future()
            server._loop.call_soon_threadsafe(asked.set_result, None)
            await asked

        await ask()
        reader.feed_eof()
        await server._read_from_hub(reader)
        await ask()
        return found

    assert asyncio.run(statuses()) == [LOST] * 4


def test_another_pmix_is_refused_by_name(monkeypatch):
    class Library:
        class PMIx_Get_version:  # noqa: N801 - the function's name
            restype = None

            def __new__(cls):
                return b"OpenPMIx 6.1.0 (PMIx Standard: 5.1)"

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    with pytest.raises(UnsupportedError, match=r"knows libpmix 5, but /lib/libpmix.so.2 is OpenPMIx 6\.1\.0: .*mpirun"):
        pmix.PmixServer("/lib/libpmix.so.2", "/none", "node", None, None)


@pytest.mark.parametrize(
    ("family", "version"), [("mpich", "MPICH 5.0.2"), ("openmpi", "Open MPI v4.1.4"), ("openmpi", "Open MPI v5.0.11")]
)
def test_another_mpi_is_refused_by_name(monkeypatch, family, version):
    """The last one is new enough, but has no libpmix in this process."""
    monkeypatch.setattr(join, "import_mpi", lambda: None)
    monkeypatch.setattr(join._native, "loaded_mpi", lambda: LoadedMpi(family, version, "MPI.so"))
    monkeypatch.setattr(join, "_MAPS", __file__)
    monkeypatch.setattr(join.knobs, "torchrun_place", lambda: torchrun_place(variables(1, 3)))
    with pytest.raises(UnsupportedError, match=rf"3 processes .* loaded {version} \(MPI.so\).*`hvdlite run -n 3`"):
        join_job()


def test_the_place_that_torchrun_gives():
    place = torchrun_place(variables(5, 6, nodes=2, run="x", MASTER_ADDR="a", MASTER_PORT="7"))
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size, place.node, place.nodes) == (5, 6, 2, 3, 1, 2)
    assert (place.run, place.restart, place.master_address, place.master_port, place.has_store) == ("x", 0, "a", 7, True)


@pytest.mark.parametrize(
    ("changes", "is_torchruns"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, False),  # mpirun has started a torchrun for each rank
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, False),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, True),  # srun without PMIx
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"}, True),  # srun has started one torchrun for each node
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, True),
    ],
)
def test_the_variables_of_torchrun_beside_those_of_another_launcher(changes, is_torchruns):
    environ = variables(1, 2, **changes)
    assert (torchrun_place(environ) is not None) == is_torchruns
    assert rank_and_size_by_launcher(variables(1, 2)) == (1, 2)
    assert [is_first_process(variables(rank, 2, SLURM_PROCID="0")) for rank in (0, 1)] == [True, False]
    assert torchrun_place(outside_of_jobs(environ)) is None


@pytest.mark.parametrize(("name", "value"), [("LOCAL_RANK", ""), ("GROUP_WORLD_SIZE", "two")])
def test_a_variable_of_torchrun_that_is_wrong_is_named(name, value):
    with pytest.raises(InvalidArgumentError, match=rf"{name} is '{value}'"):
        torchrun_place(variables(1, 2, **{name: value}))
