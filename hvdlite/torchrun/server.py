"""The PMIx server of the ranks of one node: ``python -m hvdlite.torchrun.server``.

The process with local rank 0 starts this server (`hvdlite.torchrun.join`). Each rank keeps a connection to the server for the
rank's whole life. The kernel closes the connection when the rank ends, even if the rank is killed. The server ends when all its
ranks have ended; before the job has started, it ends when one of the ranks has ended. SIGINT, SIGTERM and SIGHUP do not end it.
"""

import asyncio
import hmac
import itertools
import json
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from hvdlite.torchrun.nodes import LOST, Hub, Send, receive, send_on
from hvdlite.torchrun.pmix import PmixServer, Reply
from hvdlite.view_socket import is_trusted

_HANDSHAKE = 10.0  # the seconds within which a node must send the key


@dataclass(frozen=True)
class ServerArguments:
    """What a server gets from the process that starts it. `leader`, `listener` and `link` are numbers of inherited files.

    Attributes:
        library: the path of libpmix.
        namespace: the name of the job, which only the server of node 0 uses.
        size: the number of ranks of the job.
        local_size: the number of ranks on this node.
        nodes: the number of nodes.
        leader: the connection to the rank that has started the server.
        listener: the unix socket to which the other ranks of this node connect.
        link: on node 0 the socket to which the servers of other nodes connect; on other nodes the connection to node 0; None if
            there is only one node.
        key: on node 0 of several nodes the text that other nodes must send first; otherwise empty.
    """

    library: str
    namespace: str
    size: int
    local_size: int
    nodes: int
    leader: int
    listener: int
    link: int | None
    key: str


class NodeServer:
    """The server of one node. All methods run in the thread of its event loop, except `_on_fence` and `_on_modex`."""

    def __init__(self, arguments: ServerArguments, folder: str) -> None:
        self._given, self._folder = arguments, folder
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()  # of this server
        self._tasks: set[asyncio.Task[None]] = set()
        self._ranks: dict[int, tuple[int, asyncio.StreamWriter]] = {}  # ranks of this node and connections, by local rank
        self._complete = asyncio.Event()  # all ranks of this node have come
        self._linked = asyncio.Event()  # all nodes have come
        self._links: list[asyncio.StreamWriter] = []  # connections to other nodes
        self._post: Send  # sends to the hub
        self._namespace = ""  # empty: the job has not started
        self._pmix: PmixServer | None = None
        self._fences: dict[tuple[int, ...], Reply] = {}
        self._modexes: dict[int, Reply] = {}
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Starts the job, and returns when all ranks of this node have ended."""
        self._spawn(self._serve_rank(*await asyncio.open_unix_connection(sock=socket.socket(fileno=self._given.leader))))
        self._spawn(self._start())
        try:
            await self._end
        except Exception as error:
            self._tell_ranks({"error": f"{type(error).__name__}: {error}", "fatal": True})
            raise
        finally:
            if self._pmix is not None:
                self._pmix.close()

    async def _start(self) -> None:
        listening = socket.socket(fileno=self._given.listener)
        listener = await asyncio.start_unix_server(lambda *rank: self._spawn(self._serve_rank(*rank)), sock=listening)
        await self._link()
        await self._complete.wait()
        listener.close()
        self._post({"kind": "nodes", "host": socket.gethostname(), "ranks": [rank for rank, _ in self._ranks.values()]}, b"")

    def _begin(self, namespace: str, nodes: list[tuple[str, list[int]]], own: int) -> None:
        """Starts the job: lets the ranks of this node continue. `own` is the index of this node."""
        name, ranks = nodes[own]
        self._namespace = namespace
        self._pmix = PmixServer(self._given.library, self._folder, name, self._on_fence, self._on_modex)
        self._pmix.register(namespace, nodes, ranks)
        for rank, writer in self._ranks.values():
            _write(writer, {"variables": self._pmix.variables(namespace, rank)})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside the others. If it fails, this server fails."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                self._fail(error)

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(end)

    def _fail(self, error: BaseException) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    def _tell_ranks(self, message: dict[str, Any]) -> None:
        for _, writer in self._ranks.values():
            _write(writer, message)

    # --- the ranks of this node ---------------------------------------------------------------------------------------

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection of a rank."""
        line = await reader.readline() if is_trusted(writer.get_extra_info("socket")) else b""
        if not line.endswith(b"\n"):
            writer.close()
            return
        greeting = json.loads(line)
        local = greeting["local_rank"]
        if local in self._ranks:
            _write(writer, {"error": f"two processes of this node have LOCAL_RANK={local}", "fatal": True})
            writer.close()
            return
        self._ranks[local] = greeting["rank"], writer
        if len(self._ranks) == self._given.local_size:
            self._complete.set()
        await reader.read()  # returns when the rank has ended
        del self._ranks[local]
        if not self._namespace:
            self._tell_ranks({"error": f"the process with LOCAL_RANK={local} has ended", "fatal": False})
        if (not self._namespace or not self._ranks) and not self._end.done():
            self._end.set_result(None)

    # --- the other nodes ----------------------------------------------------------------------------------------------

    async def _link(self) -> None:
        """Connects this server with the hub."""
        if self._given.key or self._given.link is None:
            hub = Hub(self._given.size, self._given.namespace)
            own = hub.add(self._take)
            self._post = lambda header, data: hub.take(own, header, data)
            if self._given.link is not None:
                await self._accept_nodes(hub, socket.socket(fileno=self._given.link))
        else:
            reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=self._given.link))
            self._links.append(writer)
            self._post = send_on(writer)
            self._spawn(self._read_from_hub(reader))

    async def _accept_nodes(self, hub: Hub, listener: socket.socket) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                given = await asyncio.wait_for(reader.readline(), _HANDSHAKE)
            except (asyncio.TimeoutError, ValueError, ConnectionError):
                given = b""
            if not hmac.compare_digest(given, f"{self._given.key}\n".encode()) or self._linked.is_set():
                writer.close()
                return
            node = hub.add(send_on(writer))
            self._links.append(writer)
            if len(self._links) == self._given.nodes - 1:
                self._linked.set()
            while (message := await receive(reader)) is not None:
                hub.take(node, *message)
            hub.lose(node)
            self._check_started("a node")

        server = await asyncio.start_server(lambda *node: self._spawn(serve(*node)), sock=listener)
        await self._linked.wait()
        server.close()
        for writer in self._links:
            writer.write(b"+")  # the leader of that node waits for it

    async def _read_from_hub(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            self._take(*message)
        self._check_started("node 0")
        self._post = lambda header, _: self._take({**header, "status": LOST}, b"")
        for reply in (*self._fences.values(), *self._modexes.values()):
            reply(LOST, b"")

    def _check_started(self, ended: str) -> None:
        if not self._namespace:
            self._fail(ConnectionError(f"{ended} has ended before the job has started"))

    def _take(self, header: dict[str, Any], data: bytes) -> None:
        """Takes a message of the hub."""
        kind = header["kind"]
        if kind == "nodes":
            self._begin(header["namespace"], header["nodes"], header["index"])
        elif kind == "fence":
            self._fences.pop(tuple(header["ranks"]))(header["status"], data)
        elif kind == "modex":
            self._modexes.pop(header["number"])(header["status"], data)
        elif kind == "find":
            self._find(header)

    def _find(self, question: dict[str, Any]) -> None:
        def found(status: int, data: bytes) -> None:
            answer = {**question, "kind": "found", "status": status}
            self._loop.call_soon_threadsafe(self._post, answer, data)

        assert self._pmix is not None
        self._pmix.find_modex(self._namespace, question["rank"], found)

    # --- what PMIx asks, in its thread --------------------------------------------------------------------------------

    def _on_fence(self, ranks: tuple[int, ...], data: bytes, reply: Reply) -> None:
        def post() -> None:
            self._fences[ranks] = reply
            self._post({"kind": "fence", "ranks": ranks}, data)

        self._loop.call_soon_threadsafe(post)

    def _on_modex(self, rank: int, reply: Reply) -> None:
        def post() -> None:
            number = next(self._numbers)
            self._modexes[number] = reply
            self._post({"kind": "modex", "rank": rank, "number": number}, b"")

        self._loop.call_soon_threadsafe(post)


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


async def _main(arguments: ServerArguments) -> None:
    with tempfile.TemporaryDirectory(prefix="hvdlite-torchrun-", ignore_cleanup_errors=True) as folder:
        await NodeServer(arguments, folder).run()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(_main(ServerArguments(**json.load(sys.stdin))))
