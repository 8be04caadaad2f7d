"""The functions of libpmix that a PMIx server needs, declared for ctypes.

PMIx is the protocol by which the ranks of Open MPI learn about their job, and exchange their addresses in ``MPI_Init``. The
daemons of mpirun are PMIx servers; `hvdlite.torchrun.server` is one for the ranks that torchrun has started. The PMIx Standard
4 describes the functions (https://pmix.github.io). PMIx's types are declared here, because wheels and most machines have no
headers of PMIx. The largest type, ``pmix_info_t``, is not declared, because only libpmix makes it (``PMIx_Info_list_*``).
"""

import ctypes
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_void_p
from typing import Any

from hvdlite.errors import UnsupportedError

SUCCESS = 0
_DONE_AT_ONCE = -157  # PMIX_OPERATION_SUCCEEDED: the call has done its work, and will make no callback
_NOT_SUPPORTED = -47  # PMIX_ERR_NOT_SUPPORTED
_WILDCARD = 0xFFFFFFFE  # PMIX_RANK_WILDCARD: all ranks of the job
_KNOWN = 5  # the major version with which the tests have run; others may have other types


class _Proc(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = (("nspace", c_char * 256), ("rank", c_uint32))


class _DataArray(ctypes.Structure):
    """``pmix_data_array_t``."""

    _fields_ = (("type", c_uint16), ("size", c_size_t), ("array", c_void_p))


class _ProcRank(c_uint32):
    """``pmix_rank_t``."""


# PMIx's number for each type of a value (PMIX_STRING is 3). c_void_p is the type of lists from `PmixServer._generated`.
_TYPES: dict[type, int] = {str: 3, c_uint16: 13, c_uint32: 14, _DataArray: 39, _ProcRank: 40, c_void_p: 49}

# `_Answer` is `pmix_modex_cbfunc_t`, the function of libpmix by which a server answers a request. When libpmix has used the
# answer, it calls a `_Released` of the server.
_Released = CFUNCTYPE(None, c_void_p)
_Answer = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p, _Released, c_void_p)
# The functions of the server that libpmix calls for a request. The last two arguments are the address of the function that
# takes the answer (for a fence or a modex, an `_Answer`), and a value to pass to that function.
_FenceCall = CFUNCTYPE(c_int, POINTER(_Proc), c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)
_ModexCall = CFUNCTYPE(c_int, POINTER(_Proc), c_void_p, c_size_t, c_void_p, c_void_p)
_ControlCall = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)
# The function of the server that gets a rank's data from libpmix.
_ModexFound = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p)


class _Module(ctypes.Structure):
    """``pmix_server_module_t``: the functions of this server that libpmix calls. Later versions have more at the end."""

    _fields_ = (
        *((name, c_void_p) for name in ("client_connected", "client_finalized", "abort")),
        ("fence_nb", _FenceCall),
        ("direct_modex", _ModexCall),
        *((f"unused_{index}", c_void_p) for index in range(5, 19)),
        ("job_control", _ControlCall),
        ("others", c_void_p * 64),
    )


Reply = Callable[[int, bytes], None]
"""A function that gives libpmix the status and the bytes of an answer. Any thread may call it, once."""


OnFence = Callable[[tuple[int, ...], bytes, Reply], None]
"""A function for the local ranks' part of a fence, at which ranks wait for each other and exchange bytes.

It gets the ranks that take part (none: all ranks of the job), the bytes of this node's ranks, and a `Reply`. The `Reply` must
get the bytes of all nodes, one after the other.
"""


class PmixServer:
    """The PMIx server of this process; there can be one in a process.

    Args:
        library: the path of libpmix.
        folder: a private folder for the files of PMIx and of the ranks' MPI.
        node: the name of this node, which is unique in the job.
        on_fence: libpmix calls it in a thread of its own. It must return at once.
        on_modex: libpmix calls it in the same way, with the number of a rank of another node, and a `Reply` for that rank's
            data, which a local rank needs.

    Raises:
        OSError: the library cannot be opened.
        UnsupportedError: the library has another major version than the tested one.
        RuntimeError: a function of PMIx has failed.
    """

    def __init__(
        self,
        library: str,
        folder: str,
        node: str,
        on_fence: OnFence,
        on_modex: Callable[[int, Reply], None],
    ) -> None:
        self._pmix = ctypes.CDLL(library)
        self._check_version(library)
        self._folder = folder
        self._on_fence, self._on_modex = on_fence, on_modex
        self._answers: dict[int, Any] = {}  # answers that libpmix has not released yet, and requests that it has not answered
        self._numbers = itertools.count(1)  # from 1, because ctypes gives 0 back as None
        self._module = _Module(
            fence_nb=_FenceCall(self._fence), direct_modex=_ModexCall(self._modex), job_control=_ControlCall(self._control)
        )
        self._released, self._found = _Released(self._release), _ModexFound(self._take_modex)
        given = {"pmix.srvr.tmpdir": folder, "pmix.sys.tmpdir": folder, "pmix.hname": node}
        infos = self._infos(given.items())
        self._call("PMIx_server_init", byref(self._module), c_void_p(infos.array), c_size_t(infos.size))

    def register(self, namespace: str, nodes: Sequence[tuple[str, Sequence[int]]], own: Sequence[int]) -> None:
        """Describes the job and its ranks to libpmix.

        Args:
            namespace: the name of the job, which is unique.
            nodes: for each node its name, and its ranks in ascending order.
            own: the ranks of this node, in ascending order.
        """
        size = c_uint32(sum(len(ranks) for _, ranks in nodes))
        maps = ";".join(",".join(map(str, ranks)) for _, ranks in nodes)
        described: list[tuple[str, Any]] = [
            ("pmix.nmap", self._generated("PMIx_generate_regex", ",".join(name for name, _ in nodes))),
            ("pmix.pmap", self._generated("PMIx_generate_ppn", maps)),
            *((key, size) for key in ("pmix.univ.size", "pmix.job.size", "pmix.max.size")),
            ("pmix.num.nodes", c_uint32(len(nodes))),
            ("pmix.job.napps", c_uint32(1)),
            ("pmix.jobid", namespace),
            ("pmix.local.size", c_uint32(len(own))),
            ("pmix.lpeers", ",".join(map(str, own))),
            ("pmix.lldr", _ProcRank(own[0])),
            ("pmix.tmpdir", self._folder),
            ("pmix.nsdir", self._folder),
        ]
        for node, (name, ranks) in enumerate(nodes):
            for local, rank in enumerate(ranks):
                described.append(("pmix.pdata", self._of_rank(rank, local, node, name)))
        infos, space = self._infos(described), namespace.encode()
        self._call("PMIx_server_register_nspace", space, len(own), c_void_p(infos.array), c_size_t(infos.size), None, None)

    def variables(self, namespace: str, rank: int) -> dict[str, str]:
        """Registers a rank of this node. Returns the variables by which its MPI finds this server.

        Args:
            namespace: the name of the job.
            rank: the rank; its process belongs to the user of this process.
        """
        proc = _Proc(namespace.encode(), rank)
        user, group = c_uint32(os.geteuid()), c_uint32(os.getegid())
        self._call("PMIx_server_register_client", byref(proc), user, group, None, None, None)
        lines = POINTER(c_char_p)()
        self._call("PMIx_server_setup_fork", byref(proc), byref(lines))
        found: dict[str, str] = {}
        while (line := lines[len(found)]) is not None:
            name, _, value = line.decode().partition("=")
            found[name] = value
        return found

    def find_modex(self, namespace: str, rank: int, reply: Reply) -> None:
        """Asks libpmix for the data of a rank of this node, for another node. `reply` gets the data when the rank has given the
        data to libpmix (``PMIx_Commit``).
        """
        proc = _Proc(namespace.encode(), rank)
        request = self._keep((proc, reply))
        self._call("PMIx_server_dmodex_request", byref(proc), self._found, c_void_p(request))

    def close(self) -> None:
        """Ends the server. It removes the files that the ranks' MPI has registered with it."""
        self._call("PMIx_server_finalize")

    # --- what libpmix calls, in its thread ----------------------------------------------------------------------------

    def _fence(self, procs: Any, count: int, _infos: int, _ninfos: int, data: int, size: int, answer: int, context: int) -> int:
        ranks = [procs[index].rank for index in range(count)]
        everyone = _WILDCARD in ranks
        given = ctypes.string_at(data, size) if data else b""
        self._on_fence(() if everyone else tuple(sorted(ranks)), given, self._reply(answer, context))
        return SUCCESS

    def _modex(self, proc: Any, _infos: int, _ninfos: int, answer: int, context: int) -> int:
        self._on_modex(proc[0].rank, self._reply(answer, context))
        return SUCCESS

    def _control(self, *_: Any) -> int:
        """Refuses all requests. But without this function, libpmix would not remove the files of the ranks' MPI."""
        return _NOT_SUPPORTED

    def _take_modex(self, status: int, data: int, size: int, request: int) -> None:
        _, reply = self._answers.pop(request)
        reply(status, ctypes.string_at(data, size) if data else b"")

    def _release(self, number: int) -> None:
        del self._answers[number]

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _reply(self, answer: int, context: int) -> Reply:
        call = _Answer(answer)

        def reply(status: int, data: bytes) -> None:
            buffer = ctypes.create_string_buffer(data, len(data))
            number = self._keep(buffer)
            call(status, ctypes.cast(buffer, c_void_p), len(data), context, self._released, number)

        return reply

    def _keep(self, value: Any) -> int:
        number = next(self._numbers)
        self._answers[number] = value
        return number

    def _of_rank(self, rank: int, local: int, node: int, name: str) -> _DataArray:
        return self._infos(
            [
                *((key, _ProcRank(rank)) for key in ("pmix.rank", "pmix.grank", "pmix.apprank")),
                *((key, c_uint16(local)) for key in ("pmix.lrank", "pmix.nrank")),
                ("pmix.nodeid", c_uint32(node)),
                ("pmix.hname", name),
                ("pmix.appnum", c_uint32(0)),
                ("pmix.pdir", self._folder),
            ]
        )

    def _infos(self, values: Iterable[tuple[str, Any]]) -> _DataArray:
        """An array of ``pmix_info_t``, which libpmix makes."""
        self._pmix.PMIx_Info_list_start.restype = c_void_p
        made = c_void_p(self._pmix.PMIx_Info_list_start())
        for key, value in values:
            address: Any = value.encode() if isinstance(value, str) else value
            if not isinstance(value, str | c_void_p):
                address = byref(value)
            self._call("PMIx_Info_list_add", made, key.encode(), address, c_uint16(_TYPES[type(value)]))
        array = _DataArray()
        self._call("PMIx_Info_list_convert", made, byref(array))
        self._pmix.PMIx_Info_list_release.restype = None
        self._pmix.PMIx_Info_list_release(made)
        return array

    def _generated(self, function: str, text: str) -> c_void_p:
        """A list of nodes or ranks in the short form that libpmix makes of it. This form can contain zero bytes."""
        made = c_void_p()
        self._call(function, text.encode(), byref(made))
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._pmix, function)(*arguments)
        if status not in (SUCCESS, _DONE_AT_ONCE):
            self._pmix.PMIx_Error_string.restype = c_char_p
            raise RuntimeError(f"{function} of PMIx fails: {self._pmix.PMIx_Error_string(c_int(status)).decode()} ({status})")

    def _check_version(self, library: str) -> None:
        self._pmix.PMIx_Get_version.restype = c_char_p
        text = self._pmix.PMIx_Get_version().decode()
        found = re.search(r"\d+", text)
        if found is None or int(found[0]) != _KNOWN:
            raise UnsupportedError(
                f"hvdlite knows libpmix {_KNOWN}, but {library} is {re.split('[(,]', text)[0].strip()}: start the ranks with "
                "mpirun or `hvdlite run` instead of torchrun"
            )
