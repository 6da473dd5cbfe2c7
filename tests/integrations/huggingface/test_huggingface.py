"""Hugging Face's Trainer with a method: tiny random models, nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

if any(importlib.util.find_spec(name) is None for name in ("transformers", "peft")):
    pytest.skip("transformers and peft lie in .venv/examples; see the Makefile", allow_module_level=True)

import transformers

import mtlkit
from mtlkit.errors import MtlkitError, UsageError
from mtlkit.integrations.huggingface import MultiTaskCallback, MultiTaskTrainer, TaskCollator
from mtlkit.testing.processes import run_processes
from tests.integrations.huggingface import run_huggingface
from tests.integrations.huggingface.small_models import (
    TASKS,
    TwoHeads,
    arguments,
    causal_model,
    datasets,
    make_trainer,
    sentences,
    weights_of,
)
from tests.training.processes import environment

pytestmark = [
    # PEFT asks Transformers by an old name
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*parameter in the method.*:UserWarning"),
]


def same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


def by_hand(model, batches):
    """The mean over each task's own tokens in all batches, summed over the tasks."""
    sums, counts = torch.zeros(2), torch.zeros(2)
    for batch in batches:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        labels = batch["labels"][:, 1:]
        losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
        sums = sums.index_add(0, batch["task_ids"], losses.sum(dim=1))
        counts.index_add_(0, batch["task_ids"], (labels != -100).sum(dim=1).float())
    return sums / counts


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Logs


def test_each_task_is_in_the_logs_and_in_what_report_to_names(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(tmp_path / "board")
    try:
        trainer = make_trainer(
            causal_model(),
            tmp_path,
            "upgrad(wrt=parameters)",
            train_dataset=datasets(),
            report_to="tensorboard",
        )
    finally:
        del os.environ["TENSORBOARD_LOGGING_DIR"]
    trainer.train()
    keys = {f"{task}_{name}" for task in TASKS for name in ("loss", "grad_norm", "weight")}
    keys |= {"conflict", "lowest_cosine"}
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 4
    assert all(keys <= entry.keys() for entry in entries)
    (file,) = (tmp_path / "board").rglob("events*")
    board = EventAccumulator(str(file)).Reload()
    for key in keys:
        written = [event.value for event in board.Scalars(f"train/{key}")]
        assert written == pytest.approx([entry[key] for entry in entries], rel=1e-6)


@pytest.mark.parametrize("spec", ["sum", "uw", "famo", "recap", "go4align", "upgrad(wrt=parameters)"])
def test_the_logged_losses_are_those_of_the_step(tmp_path, spec):
    trainer = make_trainer(
        causal_model(),
        tmp_path,
        spec,
        train_dataset=datasets(),
        max_steps=1,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
    )
    batches = list(trainer.get_train_dataloader())[:2]
    with torch.no_grad():
        expected = by_hand(trainer.model, batches)
    trainer.train()
    entry = trainer.state.log_history[0]
    assert [entry[f"{task}_loss"] for task in TASKS] == pytest.approx(expected.tolist(), rel=1e-5)
    assert ("copy_weight" in entry) == (spec != "sum")


def test_the_callback_logs_a_model_that_calls_its_method_itself(tmp_path):
    class Total(TwoHeads):
        def forward(self, input_ids, kind, size):
            return {"loss": self.method.total(super().forward(input_ids, kind, size)["losses"])}

    model = Total("pcgrad")
    options = {"train_dataset": sentences(), "args": arguments(tmp_path, max_steps=6, logging_steps=3)}
    trainer = transformers.Trainer(model, **options)
    trainer.remove_callback(transformers.PrinterCallback)
    MultiTaskCallback(model.method).attach(trainer)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "kind_loss" in entry]
    assert [entry["step"] for entry in entries] == [3, 6]
    assert all(entry["size_grad_norm"] > 0 and 0 <= entry["conflict"] <= 1 for entry in entries)
    assert entries[0]["kind_loss"] + entries[0]["size_loss"] == pytest.approx(
        entries[0]["loss"], rel=1e-5
    )
    late = transformers.Trainer(model, callbacks=[MultiTaskCallback(model.method)], **options)
    with pytest.raises(UsageError, match="attach"):
        late.train()


# The step


def test_a_task_counts_by_the_mean_over_its_own_tokens_in_the_whole_step(tmp_path):
    trainer = make_trainer(
        causal_model(),
        tmp_path,
        "sum",
        train_dataset=datasets(),
        max_steps=1,
        optim="sgd",
        learning_rate=0.5,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
    )
    batches = list(trainer.get_train_dataloader())[:2]
    reference = causal_model()
    by_hand(reference, batches).sum().backward()
    expected = {n: (p - 0.5 * p.grad).detach() for n, p in reference.named_parameters()}
    trainer.train()
    same(weights_of(trainer.model), expected, 1e-6)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("spec", ["sum", "upgrad(wrt=parameters)", "imtl_l+cagrad(wrt=parameters)"])
def test_micro_batches_are_merged_once_as_one_large_batch(tmp_path, spec, lora):
    found = []
    for size, number in ((8, 1), (2, 4)):
        trainer = make_trainer(
            causal_model(lora),
            tmp_path,
            spec,
            train_dataset=datasets(),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=number,
            optim="sgd",
            mixing="uniform",
        )
        trainer.train()
        if "imtl_l" not in spec:  # which weighs every micro-batch by itself
            found.append(weights_of(trainer.model))
        if "wrt" in spec:
            assert len([e for e in trainer.state.log_history if "conflict" in e]) == 4
    if found:
        same(found[1], found[0], 1e-5)


def test_one_forward_for_all_tasks_and_one_for_each_have_the_same_losses(tmp_path):
    trainers = {
        spec: make_trainer(causal_model(), tmp_path, spec, train_dataset=datasets())
        for spec in ("sum", "upgrad(wrt=parameters)")
    }
    batch = next(iter(trainers["sum"].get_train_dataloader()))
    assert {tuple(batch["task_ids"].unique().tolist())} == {(0, 1)}
    found = {}
    for spec, trainer in trainers.items():
        calls = []
        trainer.model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        losses = trainer.compute_losses(trainer.model.train(), batch)
        found[spec] = [losses[task].item() for task in TASKS], len(calls)
    assert found["sum"][0] == pytest.approx(found["upgrad(wrt=parameters)"][0], rel=1e-5)
    assert (found["sum"][1], found["upgrad(wrt=parameters)"][1]) == (1, 2)


def test_only_the_adapters_are_merged_and_trained(tmp_path):
    model = causal_model(lora=True)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    before = weights_of(model)
    trainer = make_trainer(model, tmp_path, "upgrad(wrt=parameters)", train_dataset=datasets())
    trainer.train()
    assert len(trainer.method.shared) == len(before)
    same({n: p for n, p in model.named_parameters() if n in frozen}, frozen)
    assert all(not torch.equal(p, before[n]) for n, p in weights_of(model).items())


def test_every_adapter_may_have_a_merge_of_its_own(tmp_path):
    model = causal_model(lora=True)
    spec = "upgrad(wrt=parameters, groups=layer)"
    trainer = make_trainer(model, tmp_path, spec, train_dataset=datasets(), max_steps=1)
    trainer.train()
    assert len(trainer.method.stats.groups) == len(
        weights_of(model)
    )  # 2 matrices of 2 adapters in 2 layers


def test_activation_checkpointing_changes_no_bit(tmp_path):
    found = []
    for checkpointing in (False, True):
        trainer = make_trainer(
            causal_model(lora=True),
            tmp_path,
            "upgrad(wrt=parameters)",
            train_dataset=datasets(),
            activation_checkpointing=checkpointing,
        )
        trainer.train()
        found.append(weights_of(trainer.model))
    same(found[1], found[0])


@pytest.mark.parametrize("spec", ["uw", "upgrad(wrt=parameters)"])
def test_bf16_takes_nearly_the_same_steps(tmp_path, spec):
    histories = []
    for bf16 in (False, True):
        trainer = make_trainer(
            causal_model(lora=True), tmp_path, spec, train_dataset=datasets(), bf16=bf16
        )
        trainer.train()
        assert all(p.dtype == torch.float32 for p in weights_of(trainer.model).values())
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert histories[0] != histories[1]
    assert histories[0] == pytest.approx(histories[1], rel=0.02)


def test_the_methods_parameters_learn_at_half_the_rate(tmp_path):
    for model, spec, data in (
        (causal_model(), "uw", datasets()),
        (TwoHeads("rotograd"), None, sentences()),
    ):
        trainer = make_trainer(model, tmp_path, spec, train_dataset=data)
        before = {n: p.clone() for n, p in trainer.method.named_parameters()}
        trainer.train()
        rates = {id(p): g["initial_lr"] for g in trainer.optimizer.param_groups for p in g["params"]}
        assert {rates[id(p)] for p in trainer.method.parameters()} == {0.005}
        own = {id(p) for p in trainer.method.parameters()}
        assert {rates[id(p)] for p in model.parameters() if id(p) not in own} == {0.01}
        assert all(not torch.equal(p, before[n]) for n, p in trainer.method.named_parameters())


def test_a_random_method_gets_the_seed_of_the_arguments_unless_it_names_one(tmp_path):
    found = [
        make_trainer(causal_model(), tmp_path, spec, train_dataset=datasets(), seed=5).method
        for spec in ("pcgrad(wrt=parameters)", "pcgrad(wrt=parameters, seed=2)")
    ]
    assert [method.parts[0].seed for method in found] == [5, 2]


def test_losses_may_come_from_an_overridden_function(tmp_path):
    class Doubled(MultiTaskTrainer):
        def compute_losses(self, model, inputs, return_outputs=False):
            losses = {"kind": 2 * model(**inputs)["losses"]["kind"], "size": None}
            return (losses, None) if return_outputs else losses

    trainer = Doubled(
        TwoHeads(),
        arguments(tmp_path, max_steps=1),
        method="sum",
        tasks=("kind", "size"),
        train_dataset=sentences(),
        eval_dataset=sentences(),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    entry = trainer.state.log_history[0]
    assert entry["kind_loss"] == pytest.approx(entry["loss"])
    assert "size_loss" not in entry
    assert trainer.evaluate().keys() >= {"eval_kind_loss"}


# Evaluation


def test_every_task_is_evaluated_by_the_mean_over_its_tokens(tmp_path):
    trainer = make_trainer(
        causal_model(),
        tmp_path,
        "sum",
        train_dataset=datasets(),
        eval_dataset=datasets(7, 5, seed=3),
        per_device_eval_batch_size=3,
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    logged = {k: v for entry in trainer.state.log_history for k, v in entry.items()}
    rows = [sample for dataset in trainer.eval_dataset.values() for sample in dataset]
    with torch.no_grad():
        expected = by_hand(trainer.model.eval(), [TaskCollator()(rows)])
    assert logged["eval_copy_loss"] == pytest.approx(expected[0].item(), rel=1e-5)
    assert logged["eval_count_loss"] == pytest.approx(expected[1].item(), rel=1e-5)


def test_a_model_with_two_heads_is_evaluated_with_metrics(tmp_path):
    data = sentences(20, seed=5)
    trainer = make_trainer(
        TwoHeads("rotograd"),
        tmp_path,
        train_dataset=sentences(),
        eval_dataset=data,
        label_names=["kind", "size"],
        compute_metrics=lambda p: {
            "accuracy": float((p.predictions.argmax(1) == p.label_ids[0]).mean())
        },
    )
    metrics = trainer.evaluate()
    with torch.no_grad():
        batch = {key: torch.stack([torch.as_tensor(s[key]) for s in data]) for key in data[0]}
        expected = trainer.model.eval()(**batch)["losses"]
    for task, loss in expected.items():
        assert metrics[f"eval_{task}_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert 0 <= metrics["eval_accuracy"] <= 1


def test_rows_without_labels_are_predicted(tmp_path):
    trainer = make_trainer(causal_model(), tmp_path, "sum", train_dataset=datasets())
    trainer.data_collator = TaskCollator(
        lambda samples: {"input_ids": torch.tensor([s["input_ids"][:3] for s in samples])}
    )
    found = trainer.predict(trainer.train_dataset)
    assert found.predictions.shape == (32, 3, 24)
    assert "test_loss" not in found.metrics


# Checkpoints


@pytest.mark.parametrize("kind", ["adapters", "fork"])
def test_a_resumed_run_continues_exactly(tmp_path, kind):
    def make(steps):
        options = {
            "save_strategy": "steps",
            "save_steps": 5,
            "max_steps": steps,
            "lr_scheduler_type": "constant",
        }
        if kind == "fork":
            return make_trainer(TwoHeads("dwa+rotograd"), tmp_path, train_dataset=sentences(), **options)
        spec = "uw+gradvac(wrt=parameters)"
        options |= {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
        return make_trainer(causal_model(lora=True), tmp_path, spec, train_dataset=datasets(), **options)

    whole = make(13)  # more than one epoch, and the checkpoint of step 5 is within one
    whole.train()
    resumed = make(13)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    same(weights_of(resumed.model), weights_of(whole.model))
    same(resumed.method.state_dict(), whole.method.state_dict())
    for ours, theirs in zip(resumed.state.log_history, whole.state.log_history, strict=True):
        keys = [key for key in theirs if "runtime" not in key and "per_second" not in key]
        assert {k: ours[k] for k in keys if "train_loss" not in k} == {
            k: theirs[k] for k in keys if "train_loss" not in k
        }


def test_a_checkpoint_without_a_method_is_taken_with_a_warning(tmp_path):
    trainer = make_trainer(
        causal_model(), tmp_path, "uw", train_dataset=datasets(), save_strategy="steps", save_steps=2
    )
    trainer.train()
    (tmp_path / "checkpoint-2" / "mtlkit_method.pt").unlink()
    again = make_trainer(causal_model(), tmp_path, "uw", train_dataset=datasets())
    with pytest.warns(UserWarning, match="no state of a method"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


# Processes


def test_two_processes_of_accelerate_launch_end_where_one_does(tmp_path):
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port())]
    ended = subprocess.run(
        [sys.executable, *launch, "-m", "tests.integrations.huggingface.run_huggingface", str(tmp_path)],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    for case in run_huggingface.CASES:
        alone = run_huggingface.train(case, tmp_path, world=1)
        first, second = (torch.load(tmp_path / f"{case}-{rank}.pt") for rank in (0, 1))
        same(first["weights"], second["weights"])
        same(first["weights"], alone["weights"], 2e-5)
        assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert first["evaluated"] == pytest.approx(alone["evaluated"], rel=1e-4)


def test_a_causal_model_that_fsdp_has_sharded_ends_where_one_process_does(tmp_path):
    alone = run_huggingface.train_sharded(0, 1, str(tmp_path))
    first, second = run_processes(run_huggingface.train_sharded, str(tmp_path))
    for found in (first, second):
        for part in ("loop", "trainer"):
            same(found[part], alone[part], 2e-5)
    assert not torch.equal(alone["loop"]["lm_head.weight"], alone["start"]["lm_head.weight"])


# Mistakes


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (TwoHeads, {}, "there is no method"),
        (TwoHeads, {"method": "sum"}, "tasks="),
        (TwoHeads, {"method": "famo(second_pass=True)", "tasks": TASKS}, "second pass"),
        (
            causal_model,
            {"method": "sum", "tasks": ("copy", "counts"), "train_dataset": datasets()},
            "counts",
        ),
    ],
)
def test_a_mistake_raises_an_error_that_says_what_to_do(tmp_path, model, options, said):
    with pytest.raises(MtlkitError, match=said):
        make_trainer(model(), tmp_path, **options)


def test_model_init_is_refused(tmp_path):
    with pytest.raises(MtlkitError, match="model_init"):
        MultiTaskTrainer(args=arguments(tmp_path), model_init=TwoHeads, method="sum", tasks=TASKS)


def test_losses_that_are_missing_or_of_unknown_tasks_are_refused(tmp_path):
    data = [{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in sentences()]
    trainer = make_trainer(causal_model(), tmp_path, "sum", tasks=TASKS, train_dataset=data)
    with pytest.raises(UsageError, match="compute_losses"):
        trainer.train()
    trainer = make_trainer(
        TwoHeads(), tmp_path, "sum", tasks=("kind", "sizes"), train_dataset=sentences()
    )
    with pytest.raises(MtlkitError, match="did you mean 'sizes'"):
        trainer.train()


def test_an_optimizer_without_the_methods_parameters_is_warned_of(tmp_path):
    model = causal_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = make_trainer(model, tmp_path, "uw", train_dataset=datasets(), optimizers=(optimizer, None))
    with pytest.warns(UserWarning, match="param_groups"):
        trainer.train()


def test_the_names_are_found_through_the_package():
    assert mtlkit.integrations.huggingface.MultiTaskTrainer is MultiTaskTrainer
