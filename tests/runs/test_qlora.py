"""Fine-tuning with QLoRA: the adapters do not depend on workers nor failures."""

import json

import pytest
import torch

from conftest import SMALL, events_of, killing, needs_library
from holdfast.errors import JobError
from holdfast.job.load import check
from holdfast.launch.fork_client import ForkServer
from holdfast.launch.spawn import WORKER, spawn
from holdfast.tasks import reference

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    needs_library("bitsandbytes", "peft"),
]

SIZES = {
    "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "feedforward": 128, "vocabulary": 512,
}  # fmt: skip
TEXT = "holdfast keeps a run going. " * 600


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A model with a tokenizer, as transformers and tokenizers write them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    from holdfast.job.models import MistralSpec
    from holdfast.models import mistral

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    spec = MistralSpec(name="mistral", **SIZES)
    MistralForCausalLM(mistral.config_of(spec)).bfloat16().save_pretrained(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def keys(model_folder, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)

    def made(**more):
        return {
            "task": "qlora",
            "data": {"name": "text", "path": str(tmp_path / "text.txt"), "length": 16},
            "model": {"name": "mistral", "path": str(model_folder), "cache": str(tmp_path / "c")},
            "optimizer": {"name": "adamw", "lr": 0.005},
            "precision": "bf16",
            "batch": 16,
            "shards": 2,
            "clip_norm": None,
            "schedule": {"name": "constant"},
            "epochs": 1,
            **more,
        }

    return made


def test_a_killed_worker_changes_no_adapter_and_perplexity_falls(train, tmp_path, keys):
    run_dir, saving = tmp_path / "run", keys(checkpoint={"every_steps": 5})
    job = check({**SMALL, **saving}, where="test")
    needed = reference.imported_by(job.task, job.model)
    with ForkServer(spawn(WORKER), needed) as forks:  # it has imported transformers
        alone = train(run_dir=tmp_path / "alone", on=forks, workers=1, **saving)
        watch = killing(run_dir, step=4, rank=1)
        result = train(run_dir=run_dir, on=forks, watch=watch, workers=2, **saving)
    assert events_of(run_dir, "worker-exited")
    assert len(list((tmp_path / "c").glob("mistral-*.lock"))) == 1  # built once
    assert result["weights_sha256"] == alone["weights_sha256"]
    assert result["metrics"]["perplexity"] < 0.9 * result["metrics"]["perplexity_before"]
    (manifest, *_) = sorted(run_dir.glob("checkpoints/step-*/manifest.json"))
    stored = json.loads(manifest.read_text())
    weights = result["weights"]
    assert stored["size_bytes"] == weights["replica_bytes"] < weights["base_bytes"]
    assert all("lora" in t["name"] or "inv_freq" in t["name"] for t in stored["tensors"])
    assert_reloaded(run_dir, tmp_path, keys()["model"]["path"])


def assert_reloaded(run_dir, tmp_path, folder):
    """The adapters that peft reads give the logits of those in the checkpoint."""
    import peft

    from holdfast.checkpoint.exports import export, weights
    from holdfast.checkpoint.find import find_checkpoint
    from holdfast.job.models import MistralSpec
    from holdfast.models import mistral

    spec = MistralSpec(name="mistral", path=folder)
    base = dict(mistral.tensors(spec, 0))
    ours = mistral.network(spec, base)
    trained = weights.read_checkpoint(find_checkpoint(run_dir, best=False), None)
    missing = ours.load_state_dict(trained, strict=False).unexpected_keys
    assert missing == []
    plain = mistral.network(spec, base).network.unload()
    export.export(find_checkpoint(run_dir, best=False), tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    x = torch.arange(16)[None]
    ours.eval(), theirs.eval()
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(input_ids=x).logits.float())


@pytest.mark.soak
def test_a_run_resumes_on_the_same_weights_only(train, tmp_path, keys, model_folder):
    reference = train(workers=2, **keys(epochs=2))
    run_dir = tmp_path / "run"
    train(run_dir=run_dir, workers=2, **keys())
    again = {"run_dir": run_dir, "resume": True, "workers": 2, "extend": True}
    other = tmp_path / "other"
    other.mkdir()
    for file in model_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    from safetensors.torch import load_file, save_file

    changed = load_file(other / "model.safetensors")
    changed["model.layers.0.mlp.up_proj.weight"] += 1
    save_file(changed, other / "model.safetensors")
    model = {"name": "mistral", "path": str(other)}
    with pytest.raises(JobError, match="was trained on the base mistral"):
        train(**again, **keys(epochs=2, model=model))
    assert train(**again, **keys(epochs=2))["weights_sha256"] == reference["weights_sha256"]


@pytest.mark.soak
def test_ddp_trains_adapters(train, keys):
    result = train(workers=2, sync="ddp", **keys())
    assert result["metrics"]["perplexity"] < result["metrics"]["perplexity_before"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "tokenizer.json: No such file or directory"),
        ("tokenizer.json", b"{", "tokenizer.json is no JSON"),
        ("tokenizer.json", b"{}", "is no tokenizer"),
    ],
    ids=["missing", "no JSON", "no tokenizer"],
)
def test_a_folder_without_a_tokenizer_is_refused(
    train, tmp_path, keys, model_folder, name, content, says
):
    other = tmp_path / "other"
    other.mkdir()
    for file in model_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / name).unlink()
    if content is not None:
        (other / name).write_bytes(content)
    with pytest.raises(JobError, match=says):
        train(workers=1, **keys(model={"name": "mistral", "path": str(other)}))
