"""A callback that adds a method to a LightningModule: ``Trainer(callbacks=[MultiTask(...)])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial, wraps
from typing import Any, TypeVar

from torch import nn

from mtlkit.config.registry import methods
from mtlkit.config.spec import SpecLike
from mtlkit.engine.features import flatten_features
from mtlkit.errors import MtlkitError, UsageError, unknown_name
from mtlkit.integrations.fitting import fitting_method

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MtlkitError(
        "mtlkit.integrations.lightning needs the package 'lightning'; install it with: "
        "pip install lightning"
    ) from error


_Module = TypeVar("_Module", bound=LightningModule)
_KEY = "mtlkit"


class MultiTask(Callback):
    """Merge the tasks' gradients where the backbone's output forks into the heads.

    The module needs one change: its ``training_step`` returns the losses by task, or a dict that has
    them under ``losses``. Before the optimizers are configured, the method becomes the module's
    ``mtlkit_method``: its parameters are among ``self.parameters()``, and its state is in the
    checkpoints. The heads read their views of the features in every forward pass, so rotations also
    apply in evaluation, with or without this callback. Load such a checkpoint with
    :meth:`load_from_checkpoint`.

    With manual optimization, use :meth:`attach` instead of the callback.

    Args:
        method: a config string such as ``"rotograd"``.
        backbone: name of the submodule whose output the heads read.
        heads: names of the heads' submodules by task, or a list of names that are also the tasks'.
        feature_dim: size of the rotated axis; default: the input size of the heads' first layers.
        options: options that replace those of the string.

    >>> from mtlkit.integrations.lightning import MultiTask
    >>> callback = MultiTask("rotograd", backbone="backbone", heads=["kind", "size"])
    >>> trainer = lightning.Trainer(callbacks=[callback])  # doctest: +SKIP
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
        methods.override(methods.expand(method), options, of=str(method))  # raises for wrong names
        self.spec, self.backbone, self.feature_dim, self.options = method, backbone, feature_dim, options
        self.heads = dict(heads) if isinstance(heads, Mapping) else {name: name for name in heads}

    def attach(self, module: nn.Module) -> None:
        """Add the method to the module, unless it has one.

        The Trainer does this. Call it yourself before ``fit`` if that starts the processes
        (``ddp_spawn``, notebooks), so that their results can be loaded in this process. For manual
        optimization, call it at the end of the module's ``__init__``; ``training_step`` then calls
        ``self.manual_backward(self.mtlkit_method.total(losses))``.
        """
        if isinstance(getattr(module, "mtlkit_method", None), nn.Module):
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
        if stage == "fit" and not pl_module.automatic_optimization:
            raise UsageError(
                f"{type(pl_module).__name__} optimizes manually, and the callback MultiTask needs "
                "Lightning's automatic optimization; leave the callback out, call "
                "MultiTask(...).attach(self) at the end of __init__, and in training_step "
                "self.manual_backward(self.mtlkit_method.total(losses))"
            )
        self.attach(pl_module)
        if stage == "fit":
            self.teardown(trainer, pl_module, stage)  # Lightning calls none after an exception
            pl_module.training_step = _returning_total(pl_module)  # type: ignore[method-assign]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the module's ``training_step``."""
        if stage == "fit" and hasattr(vars(pl_module).get("training_step"), "returns_total"):
            del pl_module.training_step

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save what :meth:`load_from_checkpoint` needs to attach the method."""
        checkpoint[_KEY] = {
            "method": str(pl_module.mtlkit_method),
            "backbone": self.backbone,
            "heads": self.heads,
            "feature_dim": self.feature_dim,
        }

    @classmethod
    def load_from_checkpoint(
        cls, module_class: type[_Module], checkpoint_path: Any, **options: Any
    ) -> _Module:
        """Load a module that was trained with this callback, its method included.

        ``Net.load_from_checkpoint`` does not know the method, and fails on its keys.

        Args:
            module_class: class of the module.
            checkpoint_path: checkpoint that the Trainer wrote.
            options: options of ``LightningModule.load_from_checkpoint``, such as ``map_location``, and
                arguments of the class.

        >>> net = MultiTask.load_from_checkpoint(Net, "best.ckpt")  # doctest: +SKIP
        """

        class Attaching(module_class):  # type: ignore[valid-type, misc]
            def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                if _KEY not in checkpoint:
                    raise UsageError(
                        f"{checkpoint_path} was not saved with the callback MultiTask; load it with "
                        f"{module_class.__name__}.load_from_checkpoint"
                    )
                cls(**checkpoint[_KEY]).attach(self)
                super().on_load_checkpoint(checkpoint)

        loaded: Any = Attaching.load_from_checkpoint(checkpoint_path, **options)
        loaded.__class__ = module_class
        module: _Module = loaded
        return module


class _Fork:
    """The features of the current forward pass, and the tasks' views of them."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.features: Any = None
        self.views: list[Any] = []

    def open(self, module: nn.Module, given: Any, features: Any) -> None:
        """Fork the output of the backbone."""
        self.features, self.views = features, self.method(features)

    def read(self, index: int, head: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the features by the view of the head's task."""
        if not given or not _same(given[0], self.features):
            raise UsageError(
                f"the head of task {self.method.tasks[index]!r} must get the backbone's very output as "
                "its first argument; name the module whose output the heads read, including what is "
                "done in between (pooling, flattening)"
            )
        return self.views[index], *given[1:]

    def __deepcopy__(self, memo: Any) -> _Fork:
        return _Fork(deepcopy(self.method, memo))

    def __reduce__(self) -> Any:
        return _Fork, (self.method,)


def _returning_total(module: LightningModule) -> Callable[..., Any]:
    """Return the module's ``training_step`` with the losses replaced by the method's total."""
    original: Any = module.training_step

    @wraps(original)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise UsageError(
                f"training_step returned {type(found).__name__}; with MultiTask it must return "
                "the losses by task, such as {'kind': ..., 'size': ...}, or {'losses': {...}, ...}"
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
