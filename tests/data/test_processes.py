"""The samples that a loader process sends arrive unchanged."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import threading

import torch
from holdfast.data.loading.processes import LoaderProcesses

line = torch.arange(240.0)
TENSORS = [
    line, line[7:99], line.view(4, 60)[:, 3:50], line.view(2, 10, 12).permute(0, 2, 1),
    line.view(2, 3, 8, 5).contiguous(memory_format=torch.channels_last), line[:1].expand(5),
    torch.zeros(0), torch.zeros(3, 0)[1:], torch.tensor(5), torch.tensor(2.5)[None],
    line.bfloat16()[5:], line.half(), line > 7, line.to(torch.complex64), line.to(torch.uint8),
]

def read(key):
    return {"nested": (TENSORS[key], [key])}

readers = LoaderProcesses(read, 2, "tensors")
for key, collect in enumerate([readers.begin(key) for key in range(len(TENSORS))]):
    there, (here, _) = TENSORS[key], collect()["nested"]
    assert torch.equal(there, here) and there.dtype == here.dtype, key
    assert there.stride() == here.stride() and there.shape == here.shape, key
    assert there.data_ptr() % 64 == here.data_ptr() % 64 or not there.numel(), key
    assert here.untyped_storage().nbytes() <= 64 + there.numel() * 16, key
readers.close()
# The exit hook of concurrent.futures may write to a pipe that the thread of the pool closes.
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
print("done")
"""


def test_tensors_keep_their_values_strides_and_alignment():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
