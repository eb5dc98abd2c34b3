"""`compile: true` compiles every kind of model."""

import pytest
import torch
from torch import nn

from holdfast.worker.devices import compile_module


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # the compiler's own
def test_a_class_of_torch_is_compiled_too():
    model = nn.Sequential(nn.Linear(2, 1))
    compile_module(model)
    stance = "fail_on_recompile"  # also the first time
    with torch.compiler.set_stance(stance), pytest.raises(RuntimeError, match=stance):
        model(torch.ones(1, 2))
