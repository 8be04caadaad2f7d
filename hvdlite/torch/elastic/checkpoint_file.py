"""The file from which an `ElasticJob` continues. One rank on each of two hosts writes it, so hosts need not share a folder."""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from hvdlite.basics import cross_rank, local_rank, rank
from hvdlite.errors import SystemFailure
from hvdlite.objects import allgather_object, broadcast_object

_HOSTS = 2  # the number of hosts that have the file; if one of them is lost, the other one has it


class CheckpointFile:
    """The checkpoint of one job. One rank on each of two hosts writes it. If the hosts share the folder, both ranks replace
    the same file.

    Args:
        path: the path on each host; "": there is no file.
        save_every: the number of steps between two checkpoints.
        header: values, by name, that must be the same in the file and in this job.
    """

    def __init__(self, path: str, save_every: int, header: Mapping[str, Any]) -> None:
        self.path, self.save_every = path, save_every
        self._header = dict(header)

    def resume(self, load: Callable[[Mapping[str, Any]], None]) -> tuple[int, int, str]:
        """Loads the newest file of all hosts, on one rank of a host that has it. Collective over all ranks.

        Args:
            load: a function that gives the objects of the job their states. Its argument has the states by name.

        Returns:
            Three values, the same on all ranks: the number of steps that were applied before the file was written; the rank
            that has loaded the file; and what is wrong with a file or a folder, or "". If there is no file, the first two
            values are 0.
        """
        content, problem = self._read() if local_rank() == 0 else (None, "")
        position = -1 if content is None else int(content["position"])
        found = allgather_object((position, problem), name="hvdlite.elastic.files")
        newest = max(position for position, _ in found)
        source = [position for position, _ in found].index(newest)
        problem = next((problem for _, problem in found if problem), "")
        if content is not None and rank() == source and not problem:
            try:
                load(content["objects"])
            except Exception as error:  # a file of another program can cause any exception
                problem = self._misfit(error)
        return max(newest, 0), source, broadcast_object(problem, source, name="hvdlite.elastic.problem")

    def _read(self) -> tuple[dict[str, Any] | None, str]:
        """The content of this host's file, or None; and what is wrong, or ""."""
        if not self.path:
            return None, ""
        host, folder = socket.gethostname(), os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            return None, (
                f"the folder {folder} of the checkpoint does not exist on host {host} (rank {rank()}). The checkpoint is "
                "written on two hosts, and after a loss these may be other hosts: make the folder on every host"
            )
        if not os.path.exists(self.path):
            return None, ""
        try:
            # Each host opens its file. Later only the rank that loads the newest file reads the tensors.
            content: dict[str, Any] = torch.load(self.path, "cpu", mmap=True, weights_only=False)
            for name, value in self._header.items():
                if content[name] != value:
                    return None, (
                        f"the checkpoint {self.path} on host {host} is of a training with {name}={content[name]}, "
                        f"and this one has {name}={value}: some samples would be used twice and others never. Give the job "
                        f"{name}={content[name]}, or another checkpoint"
                    )
            int(content["position"])
        except Exception as error:
            return None, self._misfit(error)
        return content, ""

    def _misfit(self, error: Exception) -> str:
        host = socket.gethostname()
        return f"the checkpoint {self.path} on host {host} does not fit this job: {type(error).__name__}: {error}"

    def is_mine(self) -> bool:
        """Does this rank write the file? This may change when the ranks of the job change."""
        return bool(self.path) and local_rank() == 0 and cross_rank() < _HOSTS

    def write(self, position: int, states: Mapping[str, Any]) -> None:
        """Replaces this host's file atomically, so that a reader never sees a part of it. After an error the old file remains.

        Args:
            position: the number of applied steps.
            states: the states of the job's objects, by name.

        Raises:
            SystemFailure: the file cannot be written.
        """
        part = f"{self.path}.part{cross_rank()}"  # if the hosts share the folder, the two writers must not use one name
        try:
            with open(part, "wb") as file:
                torch.save({"position": position, **self._header, "objects": dict(states)}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
        except BaseException as error:
            with suppress(OSError):
                os.remove(part)
            # If a write fails, torch raises a RuntimeError, whose context is the OSError.
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            raise SystemFailure(
                f"the checkpoint {self.path} on host {socket.gethostname()} (rank {rank()}) was not written: {cause}. An "
                "earlier file remains; make room, and start the program again"
            ) from error
