"""The constants of verbena.constants in a form that Triton kernels can use."""
import triton.language as tl

from verbena.constants import Backend, DataType, FenceScope, ReduceOperation, SignalCompare, SignalOperation, Status

BACKEND_DEFAULT = tl.constexpr(int(Backend.DEFAULT))
BACKEND_NCCL = tl.constexpr(int(Backend.NCCL))
BACKEND_NVSHMEM = tl.constexpr(int(Backend.NVSHMEM))
BACKEND_NCCLX = tl.constexpr(int(Backend.NCCLX))
BACKEND_VERBENA = tl.constexpr(int(Backend.VERBENA))

FENCE_SCOPE_CTA = tl.constexpr(int(FenceScope.CTA))
FENCE_SCOPE_GPU = tl.constexpr(int(FenceScope.GPU))
FENCE_SCOPE_SYSTEM = tl.constexpr(int(FenceScope.SYSTEM))

SIGNAL_OP_SET = tl.constexpr(int(SignalOperation.SET))
SIGNAL_OP_ADD = tl.constexpr(int(SignalOperation.ADD))
SIGNAL_OP_INCREMENT = tl.constexpr(int(SignalOperation.INCREMENT))

SIGNAL_CMP_EQ = tl.constexpr(int(SignalCompare.EQ))
SIGNAL_CMP_NE = tl.constexpr(int(SignalCompare.NE))
SIGNAL_CMP_GT = tl.constexpr(int(SignalCompare.GT))
SIGNAL_CMP_GE = tl.constexpr(int(SignalCompare.GE))
SIGNAL_CMP_LT = tl.constexpr(int(SignalCompare.LT))
SIGNAL_CMP_LE = tl.constexpr(int(SignalCompare.LE))

REDUCE_OP_SUM = tl.constexpr(int(ReduceOperation.SUM))
DTYPE_FLOAT32 = tl.constexpr(int(DataType.FLOAT32))

SYMM_DONE = tl.constexpr(int(Status.DONE))
SYMM_TIMED_OUT = tl.constexpr(int(Status.TIMED_OUT))
SYMM_ABORTED = tl.constexpr(int(Status.ABORTED))
SYMM_INVALID = tl.constexpr(int(Status.INVALID))
SYMM_UNREACHABLE = tl.constexpr(int(Status.UNREACHABLE))
SYMM_NETWORK_FAILED = tl.constexpr(int(Status.NETWORK_FAILED))
SYMM_REFUSED = tl.constexpr(int(Status.REFUSED))
