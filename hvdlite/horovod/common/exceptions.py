"""``horovod.common.exceptions``: the exceptions that programs catch."""

from hvdlite.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt", "get_version_mismatch_message"]


class HorovodVersionMismatchError(ImportError):
    """The installed version of a framework is not the version for which Horovod was built.

    hvdlite is built for no version of a framework, so it never raises this error.

    Attributes:
        name: name of the framework.
        version: the version of the framework that is installed now.
        installed_version: the version that was installed when Horovod was built.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of `HorovodVersionMismatchError`."""
    return f"{name} is installed with version {version}, but Horovod was built for version {installed_version}"
