"""Collectives of libverbena_ops.so on tensors: all-reduce, all-gather, reduce-scatter, broadcast, all-to-all, quantised sums,
RMSNorm.

    with verbena.SymmetricContext.from_environment() as context, verbena.ops.Communicator(context) as tp:
        y = tp.all_reduce(x)
        verbena.ops.set_group("tp", tp)             # for code that is compiled: torch.ops.verbena.all_reduce(x, "tp")

PyTorch is loaded when it is first asked for."""
from verbena.ops.calls import Algorithm, Choice, DataType, Reduction
from verbena.ops.communicator import Communicator
from verbena.ops.fused import CODECS, Norm, Normed, Quantisation
from verbena.ops.torch_ops import get_group, register_torch_ops, set_group

__all__ = ["CODECS", "Algorithm", "Choice", "Communicator", "DataType", "Norm", "Normed", "Quantisation", "Reduction", "get_group",
           "register_torch_ops", "set_group"]
