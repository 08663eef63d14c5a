"""Converts PyTorch's streams to the integers that the libraries take."""
import sys
from typing import Any


def current_stream(device: Any = None) -> int:
    """Returns PyTorch's current stream. Returns 0, the default stream, if PyTorch is not loaded, has no CUDA, or has not used the
    GPU yet, because then no other stream can be current."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_stream(device).cuda_stream)


def stream_of(tensor: Any) -> int:
    """Returns the current stream of the tensor's GPU. Returns the default stream for tensors in host memory, which belong to
    emulated GPUs."""
    if not tensor.is_cuda:
        return 0
    # Calls the function that PyTorch's compiled graphs use, because this call takes a tenth of the time of torch.cuda.current_stream().
    find_raw = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_getCurrentRawStream", None)
    return current_stream(tensor.device) if find_raw is None else int(find_raw(tensor.get_device()))


def find_stream(stream: Any) -> int:
    """Returns a stream as an integer. `stream` is an integer, a torch.cuda.Stream, or None for the current stream."""
    return current_stream() if stream is None else int(getattr(stream, "cuda_stream", stream))
