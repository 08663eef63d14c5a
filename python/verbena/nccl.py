"""What the NCCL of this process offers; looked at by its symbols, since a version's text says nothing sure of NCCLX."""
import ctypes
import enum
import os

from verbena.native import BackendUnavailable

LIBRARY_NAME = "libnccl.so.2"
FIRST_WITH_DEVICE_API = (2, 28, 0)
DEVICE_API = ("ncclCommWindowRegister", "ncclDevCommCreate", "ncclMemAlloc")


class NcclxFeature(enum.IntFlag):
    """Of the host's: the device API is NCCL's."""

    NONE = 0
    SPARSE_ALL_REDUCE = 1
    COMM_DUMP = 2


_FEATURE_SYMBOLS = {NcclxFeature.SPARSE_ALL_REDUCE: "ncclAllReduceSparseBlock", NcclxFeature.COMM_DUMP: "ncclCommDump"}


class NcclLibrary:
    """The one that the process has loaded: a communicator is of no use to another. A path is loaded."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or LIBRARY_NAME
        try:
            self._library = ctypes.CDLL(self.path, mode=os.RTLD_NOW | (os.RTLD_NOLOAD if path is None else 0))
        except OSError as error:
            cause = "this process has no libnccl.so.2 loaded: its communicators' NCCL is linked into something else"
            raise BackendUnavailable(f"the backend nccl needs NCCL 2.28 or newer: {error if path else cause}") from None

    @property
    def version(self) -> tuple[int, int, int]:
        code = ctypes.c_int(0)
        if self._library.ncclGetVersion(ctypes.byref(code)) != 0:
            raise BackendUnavailable(f"{self.path}: ncclGetVersion failed")
        # As NCCL_VERSION of nccl.h counts since 2.9.
        return code.value // 10000, code.value // 100 % 100, code.value % 100

    @property
    def ncclx_features(self) -> NcclxFeature:
        found = NcclxFeature.NONE
        for feature, symbol in _FEATURE_SYMBOLS.items():
            if hasattr(self._library, symbol):
                found |= feature
        return found

    def check_device_api(self) -> None:
        version = self.version
        shown = ".".join(map(str, version))
        if version < FIRST_WITH_DEVICE_API:
            raise BackendUnavailable(f"the backend nccl needs NCCL 2.28 or newer: {self.path} is {shown}")
        missing = [name for name in DEVICE_API if not hasattr(self._library, name)]
        if missing:
            raise BackendUnavailable(f"the backend nccl: {self.path} ({shown}) has no {', '.join(missing)}")

    def check_ncclx(self) -> None:
        if not self.ncclx_features:
            wanted = " or ".join(_FEATURE_SYMBOLS.values())
            raise BackendUnavailable(f"NCCLx features require NCCL built with the IS_NCCLX flag: {self.path} has no "
                                     f"{wanted}")

