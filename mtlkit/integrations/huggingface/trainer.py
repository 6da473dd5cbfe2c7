"""A ``transformers.Trainer`` that merges the tasks' gradients, or weighs their losses, by a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from mtlkit.config.launching import warn_first
from mtlkit.config.registry import methods
from mtlkit.config.spec import SpecLike
from mtlkit.engine.sharded import is_sharded
from mtlkit.errors import SpecError, UsageError, unknown_name
from mtlkit.integrations.huggingface.data import (
    IGNORED,
    TASK_IDS,
    TaskCollator,
    TaskDataset,
    TaskSampler,
    label_counts,
)
from mtlkit.integrations.huggingface.logs import MultiTaskCallback
from mtlkit.method.create import create_method
from mtlkit.method.dropins import backward
from mtlkit.method.groups import Groups
from mtlkit.method.method import Method
from mtlkit.training.optimizers import param_groups

Losses: TypeAlias = Mapping[str, Tensor | None]
_FILE = "mtlkit_method.pt"


class MultiTaskTrainer(Trainer):  # type: ignore[misc]
    """Train a Hugging Face model on several tasks.

    The losses by task come from one of three places: the model's output, under ``losses``; data sets by
    task, with the model's own loss or, for a causal language model, the cross-entropy of the next token;
    or an overridden :meth:`compute_losses`.

    With data sets by task a task's loss is the mean over its own labels (tokens) in all processes and
    micro-batches of an optimizer step. With ``wrt=parameters`` there is one forward pass per task over
    its own samples; a method that only weighs the losses needs one pass for all. Gradients of parameters
    are merged once per optimizer step. Frozen parameters have none: with PEFT, the adapters are merged.

    The method's own parameters learn at half the learning rate. Its state is in every checkpoint, so a
    resumed run continues exactly. Evaluations report ``eval_<task>_loss``; training reports what
    :class:`MultiTaskCallback` lists.

    Args:
        args: arguments of ``transformers.Trainer``.
        method: a config string, whose random parts get ``args.seed`` unless it names one, or
            :class:`mtlkit.Method`; default: ``model.method``, which a model that forks its features
            must have.
        tasks: names of the tasks; default: those of the method, or of the data sets.
        mixing: how data sets by task are mixed; see :class:`TaskSampler`.
        kwargs: options of ``transformers.Trainer``. ``train_dataset`` and ``eval_dataset`` may be
            mappings from tasks to data sets.

    >>> from mtlkit.integrations.huggingface import MultiTaskTrainer
    >>> trainer = MultiTaskTrainer(
    ...     model, arguments, method="upgrad(wrt=parameters)", train_dataset={"code": code, "news": news}
    ... )  # doctest: +SKIP
    >>> trainer.train()  # doctest: +SKIP
    """

    train_dataset: Any
    eval_dataset: Any
    data_collator: Any

    def __init__(
        self,
        *args: Any,
        method: SpecLike | Method | None = None,
        tasks: Sequence[str] | None = None,
        mixing: str = "proportional",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise UsageError("each GPU needs its own process: start with torchrun or accelerate launch")
        if self.model_init is not None:
            raise SpecError(
                "model_init creates a new model in train(), but the method belongs to the parameters of "
                "one: pass the model itself, and for a search create a MultiTaskTrainer per trial"
            )
        self.mixing = mixing
        given = self.train_dataset if self.train_dataset is not None else self.eval_dataset
        by_task = list(given) if isinstance(given, Mapping) else None
        self.method = self._find_method(method, tasks or by_task)
        if isinstance(self.train_dataset, Mapping) or set(by_task or [""]) <= set(self.method.tasks):
            self._use_datasets_by_task()
        self._share_parameters()
        self.can_return_loss = True  # an evaluation has losses even if no label is called `labels`
        self._step_counts: Tensor | None = None
        self._evaluated: Tensor | None = None
        self.task_logs = MultiTaskCallback(self.method)
        self.task_logs.attach(self)
        self.add_callback(_Bookkeeping(self))

    def _find_method(self, given: SpecLike | Method | None, tasks: Sequence[str] | None) -> Method:
        method = getattr(self.model, "method", None) if given is None else given
        if method is None:
            raise SpecError(
                "there is no method: pass method='upgrad(wrt=parameters)' or another config string, or "
                "give the model one as model.method"
            )
        if not isinstance(method, Method):
            if tasks is None:
                raise SpecError("pass tasks=(...), the names of the tasks, or data sets by task")
            seeded: Any = methods.with_seed(method, self.args.seed)
            method = create_method(seeded, tuple(tasks))
        if any(part.second_pass for part in method.parts):
            raise SpecError(f"{method} needs a second pass, which transformers.Trainer does not make")
        return method.to(self.args.device)

    def _use_datasets_by_task(self) -> None:
        if isinstance(self.train_dataset, Mapping):
            self.train_dataset = TaskDataset(self.train_dataset, self.method.tasks)
        if isinstance(self.eval_dataset, Mapping):
            self.eval_dataset = self._by_task(self.eval_dataset)
        if not isinstance(self.data_collator, TaskCollator):
            name = getattr(self.data_collator, "__name__", "")
            pads = name != "default_data_collator"
            self.data_collator = TaskCollator(self.data_collator if pads else None)

    def _by_task(self, datasets: Mapping[str, Any]) -> dict[str, Any]:
        """Add the task's number to the samples of data sets that have the name of a task."""
        found, tasks = dict(datasets), self.method.tasks
        for name, dataset in datasets.items():
            if name in tasks and not isinstance(dataset, TaskDataset):
                found[name] = TaskDataset({name: dataset}, tasks)
        return found

    def _share_parameters(self) -> None:
        """Merge all parameters that are trained, in the same order on every process."""
        merging = self.method.merging
        if merging is None or not self.method.wrt_parameters or self.method.shared is not None:
            return
        own = {id(parameter) for parameter in self.method.parameters()}
        named = dict(self.model.named_parameters())
        named = {name: p for name, p in named.items() if p.requires_grad and id(p) not in own}
        by_group = Groups.of_names(named.items(), merging.groups).by_name
        self.method.set_shared([*named.values()] if merging.groups == "all" else by_group)

    # The losses

    def compute_losses(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False
    ) -> Any:
        """Return the losses by task, each a mean over the task's labels in this batch.

        Override it for losses that the model does not return. A task without labels may be absent or
        None.

        Args:
            model: the model.
            inputs: the batch, on the device.
            return_outputs: also return the model's output, or None, for the Trainer's metrics.
        """
        inputs = dict(inputs)
        if TASK_IDS in inputs:
            losses, outputs = self._losses_of_rows(model, inputs)
        else:
            outputs = model(**inputs)
            if not isinstance(outputs, Mapping) or "losses" not in outputs:
                raise UsageError(
                    f"the output of {type(self.model).__name__} has no 'losses' by task; add them, pass "
                    "data sets by task, or override compute_losses"
                )
            losses = outputs["losses"]
        return (losses, outputs) if return_outputs else losses

    def _losses_of_rows(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Losses, Any]:
        """Return losses and output for a batch whose rows belong to one task each."""
        rows, counts = self._label_counts(inputs)
        numbers = inputs.pop(TASK_IDS)
        if rows is None or counts is None:
            raise UsageError("the batch has task ids but no labels; override compute_losses")
        labeled = counts.tolist()
        present = {task: k for k, task in enumerate(self.method.tasks) if labeled[k]}
        if self._is_causal and not (model.training and self.method.wrt_parameters):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            sums = outputs["logits"].new_zeros(len(labeled), dtype=torch.float32)
            sums = sums.index_add(0, numbers, _next_token_losses(outputs["logits"], labels))
            return {task: sums[k] / labeled[k] for task, k in present.items()}, outputs
        losses, outputs = {}, None
        for task, k in present.items():
            outputs = model(**_rows_of(inputs, (numbers == k) & (rows > 0)))
            losses[task] = outputs["loss"]
        return losses, outputs if len(present) == 1 and rows.all() else None

    @property
    def _is_causal(self) -> bool:
        """Whether the model predicts the next token, so that its loss shifts the labels."""
        config = getattr(self.model, "config", None)
        shifts = getattr(self.model, "loss_type", None) == "ForCausalLM"
        return shifts and not getattr(config, "is_encoder_decoder", False)

    def _label_counts(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        return label_counts(batch, len(self.method.tasks), shifted=self._is_causal)

    def _own_losses(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Return the losses of a batch; their means over processes and micro-batches are the step's."""
        found = self.compute_losses(model, inputs)
        for name in found:
            if name not in self.method.tasks:
                raise unknown_name("task in the losses", str(name), self.method.tasks)
        losses = {task: found[task] for task in self.method.tasks if found.get(task) is not None}
        like = next(iter(losses.values()), None)
        if like is None:
            raise UsageError("the batch has no label of any task; remove such samples from the data set")
        present = torch.tensor([float(task in losses) for task in self.method.tasks])
        _, counts = self._label_counts(inputs)
        if counts is not None and self._step_counts is not None:
            factors = counts / self._step_counts * self.args.world_size * self._micro_batches
            known = enumerate(self.method.tasks)
            losses = {task: losses[task] * factors[k] for k, task in known if task in losses}
            present = (self._step_counts > 0).float()
        zero = like.detach().new_zeros(())
        values = torch.stack([losses.get(task, zero).detach() for task in self.method.tasks])
        self.task_logs.add_losses(values, present.to(values.device), 1 / self._micro_batches)
        return losses

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], None]:
        """Take the batches of an optimizer step, and count the labels of each task in all of them."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        self.method.zero_grad()  # the Trainer resets those of the model only
        counts = [self._label_counts(batch)[1] for batch in batches]
        known = [count.to(self.args.device) for count in counts if count is not None]
        total = torch.stack(known).sum(dim=0) if known else None
        self._step_counts = None if total is None else self.accelerator.reduce(total, "sum")
        return batches, None

    @property
    def _micro_batches(self) -> int:
        return int(self.current_gradient_accumulation_steps)

    # The step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the method's total in training, the sum of the losses in evaluation."""
        if not model.training:
            loss, outputs = self._evaluate_batch(model, inputs)
            return (loss, outputs) if return_outputs else loss
        if isinstance(model, DistributedDataParallel):
            total = _inside(model, inputs, lambda module: self._total(module, inputs))
        else:
            total = self._total(model, inputs)
        return (total, {}) if return_outputs else total

    def _total(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        # gradients of parameters are merged once per optimizer step, those of features in every batch
        merge = not self.method.wrt_parameters or bool(self.accelerator.sync_gradients)
        return self.method.total(self._own_losses(model, inputs), merge)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Run the forward and backward pass of a batch."""
        if self.method.wrt_parameters and not self.method.is_sum and is_sharded(model):
            loss = self._sharded_step(model, inputs)
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients and not self.method.processes.alone:
            known = {id(parameter) for parameter in model.parameters()}
            for parameter in self.method.parameters():
                if parameter.grad is not None and id(parameter) not in known:
                    parameter.grad = self.method.processes.mean(parameter.grad)
        return loss

    def _sharded_step(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Run one backward pass per task over a model that FSDP2 has sharded."""
        model.train()
        losses = self._own_losses(model, self._prepare_inputs(inputs))
        factor = torch.tensor(1 / self._micro_batches, device=self.args.device)
        scaler, merge = self.accelerator.scaler, bool(self.accelerator.sync_gradients)
        scaled = factor if scaler is None else scaler.scale(factor)
        backward(losses, self.method, model, merge=merge, gradient=scaled)
        return torch.stack([loss.detach() for loss in losses.values()]).sum() * factor

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the optimizer, with the method's own parameters at half the learning rate."""
        made_here = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        own = {id(parameter) for parameter in self.method.parameters()}
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if made_here and own:
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in own]
            for group in param_groups(self.method, lr=self.args.learning_rate):
                optimizer.add_param_group({k: v for k, v in group.items() if k != "name"})
        elif not own <= held:
            warn_first(
                f"the optimizer has no parameters of the method {self.method}, so these will not learn; "
                "create it with mtlkit.param_groups([model, method], lr=...)"
            )
        return optimizer

    # Data

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, TaskDataset):
            return super()._get_train_sampler(train_dataset)
        args = self.args
        size = self._train_batch_size * args.gradient_accumulation_steps * args.world_size
        seed = args.seed if args.data_seed is None else args.data_seed
        return TaskSampler(dataset, size, mixing=self.mixing, seed=seed)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if TASK_IDS not in self._signature_columns:
            self._signature_columns += [TASK_IDS]

    # Evaluation

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate every task; ``eval_dataset`` may be a mapping from tasks to data sets."""
        if isinstance(eval_dataset, Mapping) and isinstance(self.data_collator, TaskCollator):
            eval_dataset = self._by_task(eval_dataset)
        metrics: dict[str, float] = super().evaluate(eval_dataset, *args, **kwargs)
        return metrics

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Run the Trainer's loop, and add each task's loss to the metrics."""
        self._evaluated = None
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self._evaluated is None:
            return output
        sums, counts = self.accelerator.reduce(self._evaluated, "sum")
        losses = {
            task: float(total / count)
            for task, total, count in zip(self.method.tasks, sums, counts, strict=True)
            if count
        }
        output.metrics[f"{metric_key_prefix}_loss"] = sum(losses.values())
        for task, loss in losses.items():
            if len(losses) > 1 or not metric_key_prefix.endswith(f"_{task}"):
                output.metrics[f"{metric_key_prefix}_{task}_loss"] = loss
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Predict a batch; without labels the task ids are removed."""
        if "labels" not in inputs:
            inputs = {key: value for key, value in inputs.items() if key != TASK_IDS}
        return super().prediction_step(model, inputs, *args, **kwargs)

    def _evaluate_batch(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        inputs = self._without_repeats(inputs)
        losses, outputs = self.compute_losses(model, inputs, return_outputs=True)
        _, counts = self._label_counts(inputs)
        zero = torch.zeros((), device=self.args.device)
        given = [losses.get(task) for task in self.method.tasks]
        values = torch.stack([zero if loss is None else loss.float() for loss in given])
        if counts is None:
            size = float(len(next(v for v in inputs.values() if isinstance(v, Tensor))))
            counts = torch.tensor([0.0 if loss is None else size for loss in given])
        counts = counts.to(values.device)
        added = torch.stack([values * counts, counts]).double()
        self._evaluated = added if self._evaluated is None else self._evaluated + added
        if isinstance(outputs, Mapping):
            outputs = {key: value for key, value in outputs.items() if key != "losses"}
        return values.sum(), {} if outputs is None else outputs

    def _without_repeats(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Ignore the labels of rows that only pad the last batch to the number of processes."""
        state = self.accelerator.gradient_state
        if TASK_IDS not in inputs or not state.end_of_dataloader or state.remainder <= 0:
            return inputs
        labels = inputs["labels"].clone()
        labels[max(0, state.remainder - self.args.process_index * len(labels)) :] = IGNORED
        return {**inputs, "labels": labels}

    # Checkpoints

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint) / _FILE
        if file.exists():
            state = torch.load(file, map_location=self.args.device, weights_only=True)
            self.method.load_state_dict(state)
        else:
            warn_first(f"{resume_from_checkpoint} has no state of a method; {self.method} starts new")


class _Bookkeeping(TrainerCallback):  # type: ignore[misc]
    """The work of a :class:`MultiTaskTrainer` between the steps."""

    def __init__(self, trainer: MultiTaskTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the sampler's epoch, also where Accelerate's wrappers hide it."""
        loader = kwargs["train_dataloader"]
        self.trainer.method.set_epoch_length(max(1, len(loader)))
        sampler: Any = loader
        while sampler is not None and not isinstance(sampler, TaskSampler):
            sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if sampler is not None:
            sampler.set_epoch(int(state.epoch or 0))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the method beside the model."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.should_save and folder.is_dir():
            torch.save(self.trainer.method.state_dict(), folder / _FILE)


def _inside(
    wrapped: DistributedDataParallel, inputs: Any, step: Callable[[nn.Module], Tensor]
) -> Tensor:
    """Call ``step(module)`` as the forward of a wrapped module.

    DDP finds the parameters in use from what its forward returns, which must be the total.
    """
    module: Any = wrapped.module
    before = vars(module).get("forward")

    def forward(given: Any) -> Tensor:
        restore()
        return step(module)

    def restore() -> None:
        vars(module).pop("forward", None)
        if before is not None:
            module.forward = before

    module.forward = forward
    try:
        total: Tensor = wrapped(inputs)
        return total
    finally:
        restore()


def _next_token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) sums of the cross-entropies of the next tokens."""
    following = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].to(logits.device)
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), following.reshape(-1), ignore_index=IGNORED, reduction="none"
    )
    return losses.view(following.shape).sum(dim=1)


def _rows_of(inputs: Mapping[str, Any], chosen: Tensor) -> dict[str, Any]:
    """Return some rows of a batch, without the right padding that none of them needs."""
    whole = {key: value for key, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    rows = {key: value[chosen] for key, value in whole.items() if len(value) == len(chosen)}
    mask = rows.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        width = int(mask.any(dim=0).nonzero().max()) + 1
        rows |= {key: value[:, :width] for key, value in rows.items() if value.shape == mask.shape}
    return {**inputs, **rows}
