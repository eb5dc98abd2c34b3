"""GPT-2 and BERT are the published ones, built without a network or a file."""

import copy
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from checkpoints import save
from conftest import sampled
from holdfast import models
from holdfast.arena.replica import Replica, Trained, replica_layout
from holdfast.checkpoint.exports.export import export
from holdfast.checkpoint.exports.weights import load_into, load_weights
from holdfast.errors import JobError
from holdfast.job.load import load
from holdfast.job.models import BertSpec, Gpt2Spec
from holdfast.worker.checkpoints.header import hugging_face_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("spec", "context", "published"),
    [
        (Gpt2Spec(name="gpt2", vocabulary=50257), 1024, 124_439_808),
        (BertSpec(name="bert", vocabulary=30522), 512, 109_514_298),
    ],
    ids=["gpt2", "bert"],
)
def test_the_published_network_has_as_many_parameters(spec, context, published):
    pytest.importorskip("transformers")
    with torch.device("meta"):
        model = models.build_language_model(spec, context=context)
    assert sum(p.numel() for p in model.parameters()) == published


@pytest.mark.parametrize(("spec", "looks_ahead"), [(Gpt2Spec, False), (BertSpec, True)])
def test_a_decoder_sees_earlier_tokens_and_an_encoder_all(spec, looks_ahead):
    """By gradients: a masked position gets exactly zero, however a processor rounds the others."""
    pytest.importorskip("transformers")
    tiny = spec(name=spec.__name__.removesuffix("Spec").lower(), width=8, heads=2, layers=2)
    model = models.build_language_model(tiny, context=5).eval()
    embedded = []
    words = model.network.get_input_embeddings()
    words.register_forward_hook(lambda _module, _tokens, output: embedded.append(output))
    logits = model(torch.tensor([[0, 1, 2, 3, 250]]))
    (gradient,) = torch.autograd.grad(logits[0, :4].square().sum(), embedded)
    reached = gradient[0].abs().amax(dim=1) > 0
    assert reached.tolist() == [True, True, True, True, looks_ahead]


def without_transformers(code):
    hidden = "import sys; sys.modules['transformers'] = None\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("job", sampled(["gpt2", "bert"], 0))
def test_a_missing_library_is_named_with_the_command_that_installs_it(job):
    code = (
        "from holdfast.job.load import load\n"
        "from holdfast.tasks import reference\n"
        "from holdfast.errors import JobError\n"
        f"job = load('{job}')\n"
        "try: reference.load(job.task)(job).model()\n"
        "except JobError as error: print(error)\n"
    )
    said = without_transformers(code).stdout
    assert "pip install 'holdfast[transformers]'" in said
    assert len(said.splitlines()) == 1


def test_no_other_job_imports_the_library():
    code = (
        "from holdfast.job.load import load\n"
        "from holdfast.tasks import reference\n"
        "job = load('text').resolved()\n"
        "for needed in reference.imported_by(job.task, job.model): found = reference.load(needed)\n"
        "found(job).model()\n"
        "print(sys.modules['transformers'])\n"
    )
    assert without_transformers(code).stdout == "None\n"


@pytest.mark.parametrize("job", ["gpt2", "bert", "text"])
def test_heads_must_share_the_width(job):
    with pytest.raises(JobError, match=r"model\.\w+: width=30 must be a multiple of heads=4$"):
        load(job, ["model.width=30", "model.heads=4"])


def checkpoint_of(model, tmp_path):
    trained = Trained(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1),))
    layout = replica_layout(trained)
    replica = Replica(trained, layout, torch.empty(layout.size_bytes, dtype=torch.uint8))
    return save(
        tmp_path / "checkpoints", 7, replica.flat, layout,
        state_dicts=replica.state_dicts, hugging_face=hugging_face_model(replica),
    )  # fmt: skip


def test_an_exported_folder_opens_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    spec = Gpt2Spec(name="gpt2", width=8, heads=2, layers=2)
    model = models.build_language_model(spec, context=5).eval()
    saved = checkpoint_of(model, tmp_path)
    export(saved, tmp_path / "folder")
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    tokens = torch.tensor([[0, 1, 2, 3, 250]])
    assert torch.equal(opened(tokens).logits, model(tokens))
    assert opened.lm_head.weight is opened.transformer.wte.weight
    again = models.build_language_model(spec, context=5)
    assert load_into(again, load_weights(saved), saved) == []


ignores_warnings = pytest.mark.filterwarnings("ignore")  # peft calls what transformers deprecates


def peft_model(method="Lora", **keys):
    """A small GPT-2 and a model around it whose adapters have drawn weights."""
    peft = pytest.importorskip("peft")
    spec = Gpt2Spec(name="gpt2", width=8, heads=2, layers=2)
    plain = models.build_language_model(spec, context=9).network
    keys = {"r": 2, "fan_in_fan_out": True, "target_modules": ["c_attn"]} | keys
    given = {key: value for key, value in keys.items() if value is not None}
    settings = getattr(peft, f"{method}Config")(**given)
    network = peft.get_peft_model(copy.deepcopy(plain), settings)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    model = torch.nn.ModuleDict({"encoder": torch.nn.Linear(1, 1), "network": network})
    return plain, network, model


PROMPTS = {"r": None, "fan_in_fan_out": None, "target_modules": None, "task_type": "CAUSAL_LM"}
METHODS = [
    ("Lora", {}),
    ("Lora", {"bias": "all"}),
    ("Lora", {"use_dora": True}),
    ("Lora", {"modules_to_save": ["ln_f"]}),
    ("Lora", {"trainable_token_indices": [3, 250]}),
    ("IA3", {"r": None, "feedforward_modules": []}),
    ("PromptTuning", {**PROMPTS, "num_virtual_tokens": 3}),
]


@ignores_warnings
@pytest.mark.parametrize(("method", "keys"), METHODS)
def test_exported_adapters_are_those_that_peft_saves(tmp_path, method, keys):
    plain, network, model = peft_model(method, **keys)
    export(checkpoint_of(model, tmp_path), tmp_path / "ours")
    network.save_pretrained(tmp_path / "theirs")
    ours, theirs = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    peft = pytest.importorskip("peft")
    opened = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    tokens = torch.tensor([[0, 1, 2, 3, 250]])
    assert torch.equal(opened(tokens).logits, network.eval()(tokens).logits)


@ignores_warnings
def test_what_a_file_of_peft_cannot_hold_is_not_exported_as_one(tmp_path):
    _, network, model = peft_model()
    network.base_model.model.transformer.ln_f.bias.requires_grad_(True)
    with pytest.raises(JobError, match=r"ln_f.bias would not be as trained; name a file that ends"):
        export(checkpoint_of(model, tmp_path), tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()
