"""Collectives of libverbena_ops.so on tensors: all-reduce, all-gather, reduce-scatter, broadcast, all-to-all, quantised sums,
RMSNorm.

    tp = verbena.ops.init(name="tp")                # the ranks of torch.distributed or of the launcher
    y = tp.all_reduce(x)
    y = torch.ops.verbena.all_reduce(x, "tp")       # the same operation, for code under torch.compile
    tp.free()                                       # collective

Importing this package does not import PyTorch. The first call that needs PyTorch imports it."""
from verbena.ops.calls import Algorithm, Choice, DataType, Reduction
from verbena.ops.communicator import Communicator
from verbena.ops.fused import CODECS, Norm, Normed, Quantisation
from verbena.ops.torch_ops import get_group, init, register_torch_ops, set_group

__all__ = ["CODECS", "Algorithm", "Choice", "Communicator", "DataType", "Norm", "Normed", "Quantisation", "Reduction", "get_group", "init",
           "register_torch_ops", "set_group"]
