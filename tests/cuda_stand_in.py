"""A process with a stand-in for the driver of a GPU, `cuda:3`, whose tensors are on the CPU.

    python cuda_stand_in.py own SIZE     allocate, write, say the descriptor; then wait to be killed
    python cuda_stand_in.py read FD SIZE  map the memory 20 times, and say its bytes
    python cuda_stand_in.py fail SIZE    have each call fail in turn, and say with what error

All end with what they still map of such memory.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from holdfast.arena.device import cuda

GPU = torch.device("cuda", 3)
STREAM = 7


def act_as_gpu():
    """Give torch what `CudaMemory` needs of a GPU."""
    stream = SimpleNamespace(cuda_stream=STREAM, synchronize=lambda: None)
    torch.cuda.current_stream = lambda _: stream
    torch.cuda.synchronize = lambda _: None
    torch.cuda.device = contextlib.nullcontext
    cuda.tensor_at = lambda _, address, size: torch.frombuffer(
        (ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8
    )


def left():
    """What this process has of such memory: mappings, and descriptors."""
    maps = Path("/proc/self/maps").read_text().count("/memfd:cuda-stand-in")
    links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    return maps, sum("/memfd:cuda-stand-in" in each for each in links)


def own(size):
    memory = cuda.CudaMemory(GPU, size)
    memory.bytes[:size] = torch.arange(size) % 251
    print(memory.fd, *left(), flush=True)
    sys.stdin.read()


def read(fd, size):
    found = torch.zeros(size - 5, dtype=torch.uint8)
    for _ in range(20):
        peer = cuda.CudaPeer(GPU, fd, size)
        peer.read(5, found)
        peer.close()
    os.close(fd)
    print(int((found != (torch.arange(size) % 251)[5:]).sum()), *left())


def fail(size):
    memory = cuda.CudaMemory(GPU, size)
    print(*left())
    owning = ["cuMemCreate", "cuMemExportToShareableHandle"]
    mapping = ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
    for call in owning + mapping:
        said(call, lambda: cuda.CudaMemory(GPU, size))
    for call in ["cuMemImportFromShareableHandle", *mapping]:
        said(call, lambda: cuda.CudaPeer(GPU, memory.fd, size))
    cuda.tensor_at = raises
    said("tensor_at", lambda: cuda.CudaMemory(GPU, size))


def said(call, take):
    """Say what `take` raises where a call fails, and what is left then."""
    os.environ["CUDA_STAND_IN_FAILS"] = call
    try:
        take()
    except OSError as error:
        print(error, *left(), sep=" | ")


def raises(*_):
    raise OSError("no tensor")


if __name__ == "__main__":
    act_as_gpu()
    {"own": own, "read": read, "fail": fail}[sys.argv[1]](*map(int, sys.argv[2:]))
