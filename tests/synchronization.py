"""Counts what makes a host wait for its GPU, on a machine that has none.

A :class:`DeviceTensor` says that it is on another device, and keeps its numbers in an ordinary CPU tensor.
The device is torch's ``meta`` device: of all devices it alone goes through autograd without a driver.
:func:`count_synchronizations` runs every operation on those CPU tensors, and notes those after which a
GPU's host would wait (synchronizations) or which copy host memory to the device (uploads).

    network = to_device(network)
    with count_synchronizations() as counted:
        network(to_device(x)).sum().backward()
    assert counted.synchronizations == 0, counted

Work on device tensors inside the context, also what need not be counted: outside of it a new tensor
``torch.zeros(3, device=x.device)`` has no numbers.

Not modeled: autocast to half precision, GradScaler, fused optimizers, ``torch.compile``, process
groups, generators on the device, ``from torch import tensor``, and the copy of one Python number in
``x[0] = 1.0``.

``python -m tests.synchronization`` prints the table of all methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import mtlkit

__all__ = ["DEVICE", "Counted", "DeviceTensor", "count_synchronizations", "step_of", "to_device"]

DEVICE = torch.device("meta")
_PACKAGE = Path(mtlkit.__file__).parent
_TORCH = Path(torch.__file__).parent
_CPU = torch.device("cpu")

# The host reads the result, its shape, a check of the input or an error code.
_WAITING = frozenset(
    "_local_scalar_dense equal allclose nonzero masked_select bincount multinomial "
    "_unique _unique2 unique_dim unique_consecutive "
    "linalg_lstsq linalg_matrix_exp _linalg_check_errors".split()
)
# torch reads their error code and offers no variant that does not, as it has of inv, solve and cholesky.
_DECOMPOSING = frozenset("_linalg_eigh _linalg_eigvals linalg_eig _linalg_svd linalg_pinv".split())
_INDEXING = frozenset(["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"])
_TensorOrModule = TypeVar("_TensorOrModule", bound=Tensor | nn.Module)


@dataclass
class Counted:
    """Synchronizations and uploads so far, and the lines that caused them."""

    synchronizations: int = 0
    uploads: int = 0
    decompositions: int = 0
    """Eigenvalues and singular values: a GPU waits inside of torch, whoever calls them."""
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = (
            f"{self.synchronizations} synchronizations, {self.uploads} uploads, "
            f"{self.decompositions} decompositions"
        )
        return "\n  ".join([counts, *self.places])

    def synchronized(self, operation: str) -> None:
        """Note an operation that waits for the device."""
        self.synchronizations += 1
        self.places.append(f"synchronization ({operation}) at {_caller()}")

    def uploaded(self, operation: str) -> None:
        """Note a copy from the host to the device."""
        self.uploads += 1
        self.places.append(f"upload ({operation}) at {_caller()}")

    def decomposed(self, operation: str) -> None:
        """Note a decomposition of a matrix."""
        self.decompositions += 1
        self.places.append(f"decomposition ({operation}) at {_caller()}")


class DeviceTensor(Tensor):
    """A tensor whose ``device`` is :data:`DEVICE`; ``numbers`` holds its values."""

    numbers: Tensor
    is_number: bool
    """Whether it was made of one Python number, which a GPU is given as an argument of its kernel."""

    @staticmethod
    def __new__(cls, numbers: Tensor, is_number: bool = False) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        made.numbers, made.is_number = numbers, is_number
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    # What torch does for a GPU but not for subclasses or the meta device

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError("can't convert a device tensor to numpy; copy it to the host with .cpu()")
        return self.detach().cpu().numpy()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:
        options.setdefault("dtype", self.dtype)
        return torch.tensor(data, device=self.device, **options)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_index_to_device(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_index_to_device(index), value)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _execute(func, args, kwargs or {}, Counted())


@contextmanager
def count_synchronizations() -> Iterator[Counted]:
    """Count what happens to device tensors inside."""
    counted = Counted()
    with _Counting(counted), _creation_from_lists(), _autocast_of_any_device():
        yield counted


def to_device(given: _TensorOrModule) -> _TensorOrModule:
    """A tensor, or a module with its parameters and buffers, on the device.

    As by ``.to(device)``, a module is changed in place; its parameters are new, so make optimizers later.
    This upload is not counted.
    """
    with count_synchronizations():
        if isinstance(given, nn.Module):
            return given.to(DEVICE)
        moved: Any = given.detach().to(DEVICE).requires_grad_(given.requires_grad)
        return moved


def step_of(spec: str, steps: int = 3, absent: bool = False) -> Counted:
    """Train a small network on three tasks for ``steps`` steps, and count the last one.

    With ``absent``, the last step has no labels of the last task.
    """
    torch.manual_seed(0)
    backbone = to_device(nn.Sequential(nn.Linear(4, 6), nn.Tanh()))
    heads = to_device(nn.ModuleList(nn.Linear(6, 1) for _ in range(3)))
    method = to_device(mtlkit.create_method(spec, 3, feature_dim=6, shared=backbone))
    modules = nn.ModuleList([backbone, heads, method])
    optimizer = torch.optim.Adam(modules.parameters(), lr=0.01)
    for step in range(steps):
        inputs, targets = to_device(torch.randn(8, 4)), to_device(torch.randn(3, 8, 1))
        with count_synchronizations() as counted:
            views = method(backbone(inputs))
            losses: list[Tensor | None] = [
                nn.functional.mse_loss(head(view), target)
                for head, view, target in zip(heads, views, targets, strict=True)
            ]
            if absent and step == steps - 1:
                losses[-1] = None
            method.total(losses).backward()
            optimizer.step()
            optimizer.zero_grad()
    return counted


class _Counting(TorchDispatchMode):
    """Sees every operation, also those that create tensors."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _execute(func, args, kwargs or {}, self.counted)


def _index_to_device(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_index_to_device, index))
    if isinstance(index, list | range | np.ndarray):
        return torch.tensor(index, device=DEVICE)
    return index


def _execute(func: Any, args: Any, kwargs: dict[str, Any], counted: Counted) -> Any:
    """Run an operation on the CPU tensors inside, and count it."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    _refuse_empty(tensors)
    wrappers = {id(t.numbers): t for t in tensors if isinstance(t, DeviceTensor)}
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if not wrappers and device != DEVICE:
        return func(*args, **kwargs)
    name = func.overloadpacket.__name__
    stays = True  # whether the result is on the device
    if name == "_to_copy":
        stays = device in (None, DEVICE)
        _count_copy(bool(wrappers), stays, counted)
    elif name == "copy_":
        stays, source = (isinstance(tensor, DeviceTensor) for tensor in args[:2])
        _count_copy(source, stays, counted)
    elif name in _INDEXING:
        _count_indexing(args, counted)
    else:
        _refuse_mixed(name, tensors)
        if _waits(func, args, kwargs):
            counted.synchronized(name)
        elif name in _DECOMPOSING:
            counted.decomposed(name)

    host_args, host_kwargs = tree_map_only(DeviceTensor, lambda tensor: tensor.numbers, (args, kwargs))
    if device is not None:
        host_kwargs["device"] = _CPU
    results = func(*host_args, **host_kwargs)
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the wrapper takes on the new shape too
            func(*args, **kwargs)
    if not stays:
        return results

    def wrap(result: Tensor) -> Tensor:
        known = wrappers.get(id(result))
        return DeviceTensor(result, name == "scalar_tensor") if known is None else known

    return tree_map_only(Tensor, wrap, results)


def _count_copy(from_device: bool, to_device: bool, counted: Counted) -> None:
    if from_device and not to_device:
        counted.synchronized("copy to the host")
    elif to_device and not from_device:
        counted.uploaded("copy to the device")


def _waits(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    name = func.overloadpacket.__name__
    if name == "repeat_interleave":  # without the sum of the repeats it is read
        return kwargs.get("output_size") is None
    if name.endswith("_ex"):
        return bool(_argument(func, args, kwargs, "check_errors"))
    return name in _WAITING


def _count_indexing(args: Any, counted: Counted) -> None:
    own, indices, *values = args
    if not isinstance(own, DeviceTensor):
        raise RuntimeError("a tensor on the CPU is indexed or filled with one on the device")
    for index in indices:
        if index is None:
            continue
        if not isinstance(index, DeviceTensor):
            counted.uploaded("index on the host")
        elif index.dtype in (torch.bool, torch.uint8):
            # torch fills in a single number without asking where the mask is true
            number = values and values[0].numel() == 1
            if not (number and (getattr(values[0], "is_number", False) or values[0].is_cpu)):
                counted.synchronized("boolean mask")


def _refuse_empty(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if tensor.is_meta and not isinstance(tensor, DeviceTensor):
            raise RuntimeError(
                "a device tensor without numbers: it was made outside of count_synchronizations(), or in "
                "a way that the counter does not know"
            )


def _refuse_mixed(name: str, tensors: list[Tensor]) -> None:
    """As on a GPU: of the host's tensors, only single numbers may meet the device's."""
    for tensor in tensors:
        if tensor.dim() and not isinstance(tensor, DeviceTensor) and not name.startswith("_foreach"):
            raise RuntimeError(
                f"{name} is given tensors of two devices, the device and the CPU {tuple(tensor.shape)}"
            )


def _argument(func: Any, args: Any, kwargs: dict[str, Any], name: str) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def _caller() -> str:
    """The innermost lines of mtlkit, inner one first; without any, the innermost outside of torch."""
    lines, others = [], []
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        where = f"{frame.f_lineno} ({frame.f_code.co_name})"
        if file.is_relative_to(_PACKAGE):
            lines.append(f"{file.relative_to(_PACKAGE.parent)}:{where}")
        elif not file.is_relative_to(_TORCH) and file != Path(__file__):
            others.append(f"{file.name}:{where}")
        frame = frame.f_back
    return " < ".join(lines[:4] or others[:1])


@contextmanager
def _creation_from_lists() -> Iterator[None]:
    """Create tensors from Python lists on the CPU and copy them, as torch does for a GPU.

    For the meta device torch drops the numbers before a dispatch mode sees them.
    """

    def on_host_first(create: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def created(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
            if isinstance(data, Tensor):
                return create(data, *args, device=device, **options)
            # torch reads device tensors inside of lists one by one
            data = tree_map_only(DeviceTensor, DeviceTensor.tolist, data)
            if device is None or torch.device(device) != DEVICE:
                return create(data, *args, device=device, **options)
            requires_grad = options.pop("requires_grad", False)
            return create(data, *args, **options).to(DEVICE).requires_grad_(requires_grad)

        return created

    names = ("tensor", "as_tensor", "asarray")
    replaced: dict[str, Any] = {name: on_host_first(getattr(torch, name)) for name in names}
    with mock.patch.multiple(torch, **replaced):
        yield


@contextmanager
def _autocast_of_any_device() -> Iterator[None]:
    """``torch.autocast(tensor.device.type, enabled=False)`` refuses the meta device."""
    original: Callable[..., None] = torch.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)

    with mock.patch.object(torch.autocast, "__init__", init):
        yield


if __name__ == "__main__":
    print(f"{'method':16} synchronizations  uploads  decompositions")
    for spec in mtlkit.list_methods():
        if spec == "torchjd":  # another library's code, which reads numbers as it likes
            continue
        found = step_of(spec)
        print(f"{spec:16} {found.synchronizations:16} {found.uploads:8} {found.decompositions:15}")
