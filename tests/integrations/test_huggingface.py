"""Models and checkpoints of transformers, and states of Accelerate: compressed, and loaded as if they were not."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gcodec
from gcodec.integrations import huggingface
from gcodec.integrations.accelerate import load_accelerator, save_accelerator
from gcodec.integrations.huggingface import (
    CompressCheckpoints,
    from_pretrained,
    restore_checkpoint,
    save_pretrained,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers gives advice by warnings


def new_model():
    """A tiny language model whose embedding and head are tied."""
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=500, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def same(one, other):
    """Whether two models have the same parameters."""
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "options", [{}, {"max_shard_size": "100KB"}, {"variant": "fp32"}], ids=["one file", "shards", "variant"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_come_back(tmp_path, options, dtype):
    model = new_model().to(dtype)
    save_pretrained(model, tmp_path, **options)
    assert not list(tmp_path.glob("*.safetensors")) and list(tmp_path.glob("model*.safetensors.gc"))
    variant = {name: options[name] for name in ("variant",) if name in options}
    for kind in (AutoModelForCausalLM, GPT2LMHeadModel):
        loaded = from_pretrained(kind, tmp_path, dtype=dtype, **variant)
        assert same(model, loaded)
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
    with pytest.raises(gcodec.InvalidArgument, match="push_to_hub"):
        save_pretrained(model, tmp_path, push_to_hub=True)


@pytest.mark.parametrize("sizes", [("50GB", "100KB"), ("100KB", "200KB"), ("100KB", "50GB")])
def test_a_model_that_is_saved_again_in_other_shards_is_the_one_that_is_loaded(tmp_path, sizes):
    """The archive of the whole model, of the save before, was loaded in place of the new shards."""
    old, new = new_model(), new_model()
    torch.nn.init.ones_(new.lm_head.weight)
    save_pretrained(old, tmp_path, variant="other")
    others = {path: path.read_bytes() for path in tmp_path.glob("model.other.*")}
    save_pretrained(old, tmp_path, max_shard_size=sizes[0])
    save_pretrained(new, tmp_path, max_shard_size=sizes[1])
    assert same(new, from_pretrained(AutoModelForCausalLM, tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.glob("model.other.*")} == others
    save_pretrained(new, tmp_path / "new", max_shard_size=sizes[1])
    assert {path.name for path in tmp_path.glob("model*.gc")} - {path.name for path in others} == {
        path.name for path in (tmp_path / "new").glob("model*.gc")
    }


def test_a_model_names_the_folder_it_was_loaded_from_and_may_lie_in_a_subfolder(tmp_path):
    """The temporary folder was named, which no longer is there; options of transformers' own were lost in it."""
    save_pretrained(new_model(), tmp_path / "first" / "sub")
    for folder, subfolder in ((tmp_path / "first" / "sub", ""), (tmp_path / "first", "sub")):
        loaded = from_pretrained(AutoModelForCausalLM, folder, subfolder=subfolder)
        assert same(new_model(), loaded)
        assert loaded.name_or_path == loaded.config.name_or_path == str(tmp_path / "first" / "sub")
    with pytest.raises(gcodec.InvalidArgument, match="organization/model: must be a folder on this machine"):
        from_pretrained(AutoModelForCausalLM, "organization/model")


@pytest.fixture
def in_place(monkeypatch):
    """Nothing is restored to a temporary folder."""

    def refuse(*args, **options):
        raise AssertionError("files are restored")

    monkeypatch.setattr(huggingface, "restored_folder", refuse)


def states_of(model):
    """What a model is beside its weights, but for where it comes from."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    return type(model), model.training, config, model.generation_config.to_dict()


@pytest.mark.parametrize("shards", ["50GB", "100KB"])
@pytest.mark.parametrize("of_config", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [
    {}, {"dtype": torch.float16}, {"dtype": "auto"}, {"device_map": {"": "cpu"}}, {"output_attentions": True},
    {"attn_implementation": "eager", "variant": "small"}, {"output_loading_info": True},
], ids=str)  # fmt: skip
def test_a_model_is_the_one_that_is_loaded_from_plain_files(tmp_path, in_place, shards, of_config, options):
    model = new_model().to(of_config)
    model.config.dtype = of_config
    model.generation_config.max_new_tokens = 7
    saving = {"max_shard_size": shards, "variant": options.get("variant")}
    model.save_pretrained(tmp_path / "plain", **saving)
    save_pretrained(model, tmp_path / "gc", **saving)
    for kind in (AutoModelForCausalLM, GPT2LMHeadModel):
        expected = kind.from_pretrained(tmp_path / "plain", **options)
        found = from_pretrained(kind, tmp_path / "gc", **options)
        if "output_loading_info" in options:
            (expected, report), (found, found_report) = expected, found
            assert found_report == report
        assert states_of(found) == states_of(expected)
        assert found.dtype == expected.dtype
        assert same(found, expected)


def test_what_needs_files_is_restored_first(tmp_path):
    """A plain file that is newer, a shard without an archive, and options that speak of files."""
    old, new = new_model(), new_model()
    torch.nn.init.ones_(new.lm_head.weight)
    save_pretrained(old, tmp_path)
    assert same(old, from_pretrained(AutoModelForCausalLM, tmp_path, trust_remote_code=True))
    new.save_pretrained(tmp_path)
    assert same(new, from_pretrained(AutoModelForCausalLM, tmp_path))
    save_pretrained(new, tmp_path / "shards", max_shard_size="100KB")
    archive = sorted((tmp_path / "shards").glob("model-*.gc"))[0]
    gcodec.decompress_file(archive)
    archive.unlink()
    assert same(new, from_pretrained(AutoModelForCausalLM, tmp_path / "shards"))


def test_a_missing_tensor_is_reported_and_drawn_as_transformers_does(tmp_path, in_place):
    model = new_model()
    state = {name: value for name, value in model.state_dict().items() if "mlp" not in name and "lm_head" not in name}
    model.config.save_pretrained(tmp_path)
    gcodec.save_file(state, tmp_path / "model.safetensors.gc")
    loaded, report = from_pretrained(AutoModelForCausalLM, tmp_path, output_loading_info=True)
    assert all("mlp" in name for name in report["missing_keys"]) and report["missing_keys"]
    assert torch.equal(loaded.transformer.wte.weight, model.transformer.wte.weight)


class OwnConfig(GPT2Config):
    """A configuration that transformers does not know."""

    model_type = "own"


class OwnModel(GPT2LMHeadModel):
    """A model of it."""

    config_class = OwnConfig


def test_a_class_that_transformers_does_not_know_is_loaded_by_its_own_configuration(tmp_path, in_place):
    model = OwnModel(OwnConfig(vocab_size=500, n_positions=16, n_embd=64, n_layer=1, n_head=2))
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(OwnModel, tmp_path)
    assert type(loaded) is OwnModel and same(model, loaded)


def test_whatever_has_from_pretrained_is_given_restored_files(tmp_path):
    class Other:
        @staticmethod
        def from_pretrained(folder):
            return GPT2LMHeadModel.from_pretrained(folder)

    model = new_model()
    save_pretrained(model, tmp_path)
    for kind in (Other, Other()):
        assert same(model, from_pretrained(kind, tmp_path))


class Words(torch.utils.data.Dataset):
    """Random words."""

    def __len__(self):
        return 32

    def __getitem__(self, number):
        words = torch.randint(0, 500, (16,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": words, "labels": words}


def trainer_of(folder, callbacks, **options):
    """A Trainer that saves every three steps."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=9,
        save_steps=3,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        **options,
    )
    return Trainer(model=new_model(), args=arguments, train_dataset=Words(), eval_dataset=Words(), callbacks=callbacks)


def files_in(folder):
    return {path.name for path in folder.iterdir()}


def test_a_resumed_run_is_the_run_that_did_not_stop(tmp_path):
    whole = trainer_of(tmp_path / "a", [CompressCheckpoints()])
    whole.train()
    for step in (3, 6, 9):
        names = files_in(tmp_path / "a" / f"checkpoint-{step}")
        assert {"model.safetensors.gc", "optimizer.pt.gc"} <= names
        assert not {"model.safetensors", "optimizer.pt"} & names
    resumed = trainer_of(tmp_path / "a", [CompressCheckpoints()])
    resumed.train(resume_from_checkpoint=restore_checkpoint(tmp_path / "a" / "checkpoint-6"))
    assert same(whole.model, resumed.model)
    assert "model.safetensors" not in files_in(tmp_path / "a" / "checkpoint-6")  # compressed again
    assert restore_checkpoint(tmp_path / "a").endswith("checkpoint-9")


@pytest.mark.parametrize("name", ["checkpoints", "checkpoint-runs", "run"])
def test_the_last_checkpoint_is_restored_whatever_the_name_of_the_folder(tmp_path, monkeypatch, name):
    """A folder whose name began as a checkpoint's does was taken for one, and nothing in it was restored."""
    folder = tmp_path / name
    trainer_of(folder, [CompressCheckpoints()]).train()
    assert restore_checkpoint(folder) == str(folder / "checkpoint-9")
    assert {"model.safetensors", "optimizer.pt"} <= files_in(folder / "checkpoint-9")
    kept = (folder / "checkpoint-3").rename(folder / "best")
    monkeypatch.chdir(kept)
    assert restore_checkpoint(kept) == str(kept) and restore_checkpoint(".") == "."
    assert {"model.safetensors", "optimizer.pt"} <= files_in(kept)


def test_the_best_checkpoint_is_loaded_at_the_end_and_old_ones_go(tmp_path):
    trainer = trainer_of(
        tmp_path,
        [CompressCheckpoints()],
        eval_strategy="steps",
        eval_steps=3,
        save_total_limit=2,
        load_best_model_at_end=True,
    )
    trainer.train()
    best = tmp_path / trainer.state.best_model_checkpoint
    folders = sorted(tmp_path.glob("checkpoint-*"))
    assert len(folders) == 2 and best in folders
    assert all("model.safetensors.gc" in files_in(folder) for folder in folders)
    assert same(trainer.model, from_pretrained(AutoModelForCausalLM, best))


def test_the_best_checkpoint_of_a_run_that_ended_is_loaded_at_the_end_of_the_one_that_goes_on(tmp_path):
    """The checkpoint was compressed when the first run ended; Trainer must not go on with the last weights instead."""
    options = {"eval_strategy": "steps", "eval_steps": 3, "load_best_model_at_end": True}
    trainer_of(tmp_path, [CompressCheckpoints()], **options).train()
    state_file = tmp_path / "checkpoint-9" / "trainer_state.json"
    state = json.loads(state_file.read_text())
    state.update(best_metric=0.0, best_model_checkpoint=str(tmp_path / "checkpoint-3"), best_global_step=3)
    state_file.write_text(json.dumps(state))
    later = trainer_of(tmp_path, [CompressCheckpoints()], **options)
    later.args.max_steps = 12
    later.train(resume_from_checkpoint=restore_checkpoint(tmp_path))
    assert later.state.global_step == 12
    assert same(later.model, from_pretrained(AutoModelForCausalLM, tmp_path / "checkpoint-3"))
    for step in (3, 6, 9, 12):
        assert not {"model.safetensors", "optimizer.pt"} & files_in(tmp_path / f"checkpoint-{step}")


def test_folders_without_a_checkpoint_and_damage_are_errors(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(gcodec.InvalidArgument):
            restore_checkpoint(folder)
    save_pretrained(new_model(), tmp_path)
    path = tmp_path / "model.safetensors.gc"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(gcodec.Corruption):
        from_pretrained(AutoModelForCausalLM, tmp_path)


def test_states_of_accelerate_are_loaded_as_they_were_saved(tmp_path):
    def steps(accelerator, model, optimizer, count):
        for number in range(count):
            words = Words()[number]["input_ids"][None]
            accelerator.backward(model(input_ids=words, labels=words).loss)
            optimizer.step()
            optimizer.zero_grad()

    accelerator = Accelerator(cpu=True)
    model = new_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    steps(accelerator, model, optimizer, 3)
    save_accelerator(accelerator, tmp_path / "state")
    saved = files_in(tmp_path / "state")
    assert {"model.safetensors.gc", "optimizer.bin.gc"} <= saved
    steps(accelerator, model, optimizer, 2)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    load_accelerator(accelerator, tmp_path / "state")
    assert files_in(tmp_path / "state") == saved
    steps(accelerator, model, optimizer, 2)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected, strict=True))


def test_a_state_is_compressed_in_the_folder_that_the_accelerator_names(tmp_path):
    naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=naming)
    model = accelerator.prepare(new_model())
    save_accelerator(accelerator, tmp_path / "state")
    folder = tmp_path / "checkpoints" / "checkpoint_0"
    assert "model.safetensors.gc" in files_in(folder) and "model.safetensors" not in files_in(folder)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    for named in (folder, None):
        torch.nn.init.zeros_(model.lm_head.weight)
        load_accelerator(accelerator, named)
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected, strict=True))


def test_an_accelerator_that_names_its_folders_needs_no_other(tmp_path):
    naming = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=naming)
    model = accelerator.prepare(new_model())
    with pytest.raises(gcodec.InvalidArgument, match=r"checkpoints: there is no checkpoint in this folder"):
        load_accelerator(accelerator)
    for number in range(11):
        torch.nn.init.constant_(model.lm_head.weight, number)
        save_accelerator(accelerator)
    torch.nn.init.zeros_(model.lm_head.weight)
    load_accelerator(accelerator)  # 10 comes after 9
    assert bool((model.lm_head.weight == 10).all())
    other = Accelerator(cpu=True)
    for act in (save_accelerator, load_accelerator):
        with pytest.raises(gcodec.InvalidArgument, match="folder must be given"):
            act(other)


def test_a_state_below_the_home_folder_is_saved_and_loaded(tmp_path, monkeypatch):
    """No folder called ~ appears."""
    monkeypatch.setenv("HOME", str(tmp_path))
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(new_model())
    save_accelerator(accelerator, "~/state")
    torch.nn.init.zeros_(model.lm_head.weight)
    load_accelerator(accelerator, "~/state")
    assert "model.safetensors.gc" in files_in(tmp_path / "state") and bool((model.lm_head.weight != 0).any())
