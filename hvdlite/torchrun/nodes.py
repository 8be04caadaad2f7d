"""What the PMIx servers of a job's nodes send each other: a star, with the server of node 0 in the middle.

The `Hub` runs in the server of node 0. It knows no sockets: it gets messages, and sends messages to nodes.
"""

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

Send = Callable[[dict[str, Any], bytes], None]
"""A function that sends a message to a node, or to the hub: a header, which is a JSON object, and bytes."""

LOST = -61  # PMIX_ERR_LOST_CONNECTION: the status of a fence that lacks a node
_LENGTHS = struct.Struct(">IQ")  # of the header and of the bytes


def send_on(writer: asyncio.StreamWriter) -> Send:
    """A `Send` that writes to a connection. It never waits."""

    def send(header: dict[str, Any], data: bytes) -> None:
        text = json.dumps(header).encode()
        writer.write(_LENGTHS.pack(len(text), len(data)) + text + data)

    return send


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes] | None:
    """The next message of a connection; None at its end."""
    try:
        header, data = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        return json.loads(await reader.readexactly(header)), await reader.readexactly(data)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Hub:
    """Combines the messages of all nodes.

    A node sends three kinds of messages to the hub: ``nodes`` once, with the name of its host and its ranks; ``fence`` with the
    ranks that take part (none: all) and the node's bytes; and ``modex`` with the number of a rank of another node, to get that
    rank's bytes. The hub's answers have the same kinds. Before it answers ``modex``, the hub sends ``find`` to the rank's node,
    and this node answers with ``found``.

    Args:
        size: the number of ranks of the job.
        namespace: the name of the job.
    """

    def __init__(self, size: int, namespace: str) -> None:
        self._size, self._namespace = size, namespace
        self._sends: list[Send | None] = []  # by node; None: the node is lost
        self._described: dict[int, tuple[str, list[int]]] = {}
        self._node_of: dict[int, int] = {}  # by rank
        self._fences: dict[tuple[int, ...], dict[int, bytes]] = {}
        self._asked: dict[tuple[int, int], int] = {}  # the nodes that owe an answer, by the node that asks and its number

    def add(self, send: Send) -> int:
        """Adds a node. Returns its number for `take`."""
        self._sends.append(send)
        return len(self._sends) - 1

    def take(self, node: int, header: dict[str, Any], data: bytes) -> None:
        """Takes a message of a node."""
        kind = header["kind"]
        if kind == "nodes":
            self._described[node] = (header["host"], header["ranks"])
            if sum(len(ranks) for _, ranks in self._described.values()) == self._size:
                self._tell_nodes()
        elif kind == "fence":
            ranks = tuple(header["ranks"])
            self._fences.setdefault(ranks, {})[node] = data
            self._end_fence(ranks)
        elif kind == "modex":
            asked = self._node_of[header["rank"]]
            self._asked[node, header["number"]] = asked
            self._send(asked, {"kind": "find", "rank": header["rank"], "node": node, "number": header["number"]})
            if self._sends[asked] is None:
                self._answer(node, header["number"], LOST)
        elif kind == "found":
            self._answer(header["node"], header["number"], header["status"], data)

    def lose(self, node: int) -> None:
        """A node has ended: answers the fences and questions that wait for this node, with the status `LOST`."""
        self._sends[node] = None
        for ranks in tuple(self._fences):
            self._end_fence(ranks)
        for (asking, number), asked in tuple(self._asked.items()):
            if asked == node:
                self._answer(asking, number, LOST)

    def _answer(self, node: int, number: int, status: int, data: bytes = b"") -> None:
        del self._asked[node, number]
        self._send(node, {"kind": "modex", "number": number, "status": status}, data)

    def _send(self, node: int, header: dict[str, Any], data: bytes = b"") -> None:
        send = self._sends[node]
        if send is not None:
            send(header, data)

    def _tell_nodes(self) -> None:
        order = sorted(self._described, key=lambda node: min(self._described[node][1]))
        names: list[str] = []
        for node in order:
            host, copies = self._described[node][0], 0
            name = host
            while name in names:  # several torchruns on one host; MPI names files after the node
                copies += 1
                name = f"{host}-{copies}"
            names.append(name)
        self._node_of = {rank: node for node in order for rank in self._described[node][1]}
        nodes = [(name, sorted(self._described[node][1])) for name, node in zip(names, order, strict=True)]
        for index, node in enumerate(order):
            self._send(node, {"kind": "nodes", "namespace": self._namespace, "nodes": nodes, "index": index})

    def _end_fence(self, ranks: tuple[int, ...]) -> None:
        """Answers a fence if all nodes of its ranks have come to it, or if one of these nodes is lost."""
        members = sorted({self._node_of[rank] for rank in ranks or self._node_of})
        parts = self._fences[ranks]
        lost = any(self._sends[node] is None and node not in parts for node in members)
        if not lost and len(parts) < len(members):
            return
        del self._fences[ranks]
        header = {"kind": "fence", "ranks": list(ranks), "status": LOST if lost else 0}
        data = b"" if lost else b"".join(parts[node] for node in members)
        for node in parts:
            self._send(node, header, data)
