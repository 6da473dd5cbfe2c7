"""A callback that gives a LightningModule a method: ``Trainer(callbacks=[MultiTask(...)])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial, wraps
from typing import Any

from torch import nn

from mtlkit.config.registry import methods
from mtlkit.config.spec import SpecLike
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError, UsageError, unknown_name
from mtlkit.integrations.fitting import fitting_method
from mtlkit.method.aggregator import GradientAggregator

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MtlkitError(
        "mtlkit.integrations.lightning needs the package 'lightning'; install it with: "
        "pip install lightning"
    ) from error


class MultiTask(Callback):
    """Merge the tasks' gradients where the backbone's output forks into the heads.

    The module stays as it is, except that its ``training_step`` returns the losses by task, or a dict
    that holds them under ``losses``. Before the optimizers are configured, the method becomes the
    module's ``mtlkit_method``: its parameters are among ``self.parameters()``, and its state is in the
    checkpoints. The heads read their views of the features in every forward pass, so a module with
    rotations keeps them in evaluation, with or without this callback.

    Args:
        method: a config string such as ``"rotograd"``.
        backbone: name of the submodule whose output the heads read.
        heads: names of the heads; by task, or a list of names that are those of the tasks as well.
        feature_dim: size of the axis that is rotated; default that of the heads' first layers.
        options: options that replace those of the string.
    """

    def __init__(
        self,
        method: SpecLike,
        backbone: str,
        heads: Mapping[str, str] | Sequence[str],
        *,
        feature_dim: int | None = None,
        **options: Any,
    ) -> None:
        methods.override(methods.expand(method), options, of=str(method))  # wrong names are noticed here
        self.spec, self.backbone, self.feature_dim, self.options = method, backbone, feature_dim, options
        self.heads = dict(heads) if isinstance(heads, Mapping) else {name: name for name in heads}

    def attach(self, module: nn.Module) -> None:
        """Give the module its method, once.

        The Trainer does this. Call it yourself before ``fit`` where that starts the processes itself
        (``ddp_spawn``, notebooks), so that their results fit the module that stays behind.
        """
        if isinstance(getattr(module, "mtlkit_method", None), GradientAggregator):
            return
        heads = {task: _submodule(module, name) for task, name in self.heads.items()}
        backbone = _submodule(module, self.backbone)
        method = fitting_method(self.spec, heads, self.feature_dim, self.options)
        module.mtlkit_method = method
        fork = _Fork(method)
        backbone.register_forward_hook(fork.open)
        for index, head in enumerate(heads.values()):
            head.register_forward_pre_hook(partial(fork.read, index))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Attach the method, and let ``training_step`` return its total."""
        self.attach(pl_module)
        if stage == "fit":
            self.teardown(trainer, pl_module, stage)  # Lightning has none after an exception
            pl_module.training_step = _returning_total(pl_module)  # type: ignore[method-assign]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module its own ``training_step`` back."""
        if stage == "fit" and hasattr(vars(pl_module).get("training_step"), "returns_total"):
            del pl_module.training_step


class _Fork:
    """The features of the running forward pass, and the tasks' views of them."""

    def __init__(self, method: GradientAggregator) -> None:
        self.method = method
        self.features: Any = None
        self.views: list[Any] = []

    def open(self, module: nn.Module, given: Any, features: Any) -> None:
        """Fork what the backbone returned."""
        self.features, self.views = features, self.method(features)

    def read(self, index: int, head: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the head of a task is given in place of the features."""
        if not given or not _same(given[0], self.features):
            raise UsageError(
                f"the head of task {self.method.tasks[index]!r} was not given the very output of the "
                "backbone as its first argument; name the module whose output the heads read, with all "
                "that happens in between (pooling, flattening)"
            )
        return self.views[index], *given[1:]

    def __deepcopy__(self, memo: Any) -> _Fork:
        return _Fork(deepcopy(self.method, memo))

    def __reduce__(self) -> Any:
        return _Fork, (self.method,)


def _returning_total(module: LightningModule) -> Callable[..., Any]:
    """The module's ``training_step`` with the losses replaced by the method's total."""
    original: Any = module.training_step

    @wraps(original)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise UsageError(
                f"training_step returned {type(found).__name__}; with MultiTask it returns the losses "
                "by task, such as {'kind': ..., 'size': ...}, or {'losses': {...}, ...}"
            )
        losses = found.get("losses", found)
        extra = found if "losses" in found else {}
        values = {task: None if loss is None else loss.detach() for task, loss in losses.items()}
        method: Any = module.mtlkit_method
        return {**extra, "loss": method.total(losses), "losses": values}

    training_step.returns_total = True  # type: ignore[attr-defined]
    return training_step


def _same(given: Any, features: Any) -> bool:
    if given is features:
        return True
    if features is None:
        return False
    ours, theirs = flatten_features(given)[0], flatten_features(features)[0]
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def _submodule(module: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(module.named_modules())
    if name not in modules:
        raise unknown_name(f"submodule of {type(module).__name__}", name, filter(None, modules))
    return modules[name]
