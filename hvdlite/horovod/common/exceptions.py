"""``horovod.common.exceptions``: what programs catch."""

from hvdlite.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt", "get_version_mismatch_message"]


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than Horovod was built for. hvdlite is built for none, so it never raises this.

    Attributes:
        name: of the framework.
        version: the one that is installed now.
        installed_version: the one that Horovod was built for.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of `HorovodVersionMismatchError`."""
    return f"{name} is installed with version {version}, but Horovod was built for version {installed_version}"
