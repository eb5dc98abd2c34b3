"""Waits for a device: finds them on a CPU, where nothing has to be waited for."""

from torch.utils._python_dispatch import TorchDispatchMode


class NoWait(TorchDispatchMode):
    """Refuses the operators that would wait for a GPU."""

    refused = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        assert name not in self.refused, f"{name} waits for the device"
        return func(*args, **kwargs or {})
