"""Constants that host and device code share, with the values of include/verbena/symm_abi.h."""
import enum


class Backend(enum.IntEnum):
    """The backend for which a kernel is compiled. A kernel compiled for DEFAULT reads the backend from the context at run time."""

    DEFAULT = 0
    NCCL = 1
    NVSHMEM = 2
    NCCLX = 3
    VERBENA = 4


class ContextType(enum.IntEnum):
    """The backend of a context (SymmContext::type)."""

    NCCL = 0
    NVSHMEM = 1
    NCCLX = 2
    VERBENA = 3

    @property
    def backend(self) -> Backend:
        return Backend[self.name]


class Status(enum.IntEnum):
    """The result of a primitive that may wait or fail (SymmStatus)."""

    DONE = 0
    TIMED_OUT = -1
    ABORTED = -2
    INVALID = -3
    UNREACHABLE = -4
    NETWORK_FAILED = -5
    REFUSED = -6


class FenceScope(enum.IntEnum):
    CTA = 0
    GPU = 1
    SYSTEM = 2


class SignalOperation(enum.IntEnum):
    SET = 0
    ADD = 1
    INCREMENT = 2


class SignalCompare(enum.IntEnum):
    EQ = 1
    NE = 2
    GT = 3
    GE = 4
    LT = 5
    LE = 6


class ReduceOperation(enum.IntEnum):
    SUM = 0


class DataType(enum.IntEnum):
    FLOAT32 = 0
