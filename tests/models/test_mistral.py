"""Mistral over 4-bit weights: its parts are those of the libraries, and mistakes are named."""

import json

import pytest
import torch
import torch.nn.functional as F

from conftest import Library, needs_library
from holdfast.errors import JobError
from holdfast.job.models import MistralSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    needs_library("bitsandbytes", "peft", "transformers"),
]

mistral = Library("holdfast.models.mistral")

TINY = {
    "name": "mistral", "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "feedforward": 128,
    "vocabulary": 512,
}  # fmt: skip


def tiny(**keys):
    return MistralSpec(**{**TINY, **keys})


def network(spec, seed=0):
    torch.manual_seed(0)
    base = dict(mistral.tensors(spec, seed))
    return mistral.network(spec, base), base


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder as transformers writes it."""
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    MistralForCausalLM(mistral.config_of(tiny())).bfloat16().save_pretrained(path)
    return path


def test_the_adapters_of_the_published_shape_have_13_631_488_parameters():
    import peft
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    spec = MistralSpec(name="mistral")
    lora = spec.lora
    with torch.device("meta"):
        model = MistralForCausalLM(mistral.config_of(spec))
        targets = list(lora.targets)
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=lora.rank, target_modules=targets, task_type="CAUSAL_LM")
        )
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained == 13_631_488


def test_the_model_has_no_copy_of_the_base():
    model, base = network(tiny())
    places = {tensor.data_ptr() for tensor in base.values()}
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert frozen
    assert all(parameter.data_ptr() in places for parameter in frozen)
    for parameter in frozen:
        if state := getattr(parameter, "quant_state", None):
            assert {state.absmax.data_ptr(), state.code.data_ptr()} <= places


def test_weights_of_a_folder_are_quantized_as_transformers_does(folder):
    from transformers import BitsAndBytesConfig
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    theirs = MistralForCausalLM.from_pretrained(
        folder, quantization_config=settings, dtype=torch.bfloat16, device_map="cpu"
    )
    ours = dict(mistral.tensors(tiny(path=folder), 0))
    compared = 0
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter.data.flatten(), ours[name].flatten()), name
        if state := getattr(parameter, "quant_state", None):
            assert torch.equal(state.absmax, ours[f"{name}.absmax"])
            compared += 1
    assert compared == 14  # seven linear layers of two blocks


def test_random_weights_follow_from_the_seed():
    first, again, other = (dict(mistral.tensors(tiny(), seed)) for seed in (0, 0, 1))
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_an_evaluation_changes_no_bit_of_a_gradient():
    model, _ = network(tiny(lora={"dropout": 0.0}))
    assert {
        layer.support_avx512bf16_for_cpu
        for layer in model.modules()
        if hasattr(layer, "support_avx512bf16_for_cpu")
    } == {False}
    x = torch.randint(512, (4, 16), generator=torch.Generator().manual_seed(0))

    def gradients():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradients()
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(x)
    model.train()
    assert all(map(torch.equal, before, gradients()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "describes a 'llama', not a 'mistral' network"),
        ({"quantization_config": {}}, "the weights are quantized already"),
        ({"hidden_size": 128}, "has shape"),
    ],
    ids=["other type", "quantized", "other shape"],
)
def test_a_folder_that_does_not_fit_is_refused(folder, tmp_path, change, says):
    for file in folder.glob("*.safetensors"):
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(JobError, match=says):
        dict(mistral.tensors(MistralSpec(name="mistral", path=tmp_path), 0))


def test_what_is_missing_in_a_folder_is_named(folder, tmp_path):
    spec = MistralSpec(name="mistral", path=tmp_path)
    with pytest.raises(JobError, match=r"config.json: No such file or directory; set model.path"):
        mistral.base_key(spec, 0)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(JobError, match=r"config.json is no JSON"):
        mistral.base_key(spec, 0)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(JobError, match=r"has no .safetensors file"):
        mistral.base_key(spec, 0)
    with pytest.raises(JobError, match=r"model.layers=3, but .* says num_hidden_layers=2"):
        mistral.config_of(MistralSpec(name="mistral", path=folder, layers=3))
