"""State in, state out: how the memory of a part is declared, read, committed and saved.

A part declares its state with :meth:`Stateful.add_state` and is a pure function of it. It is given
the state of the tasks that are present and returns the new one. Absent tasks, steps that are not
finite, saving and restoring are taken care of here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from mtlkit.errors import UsageError

Per = Literal["task", "pair", "all", "coordinate"]


class State:
    """Values by name, as attributes: ``state.norms``. It never changes; see :meth:`replace`.

    Example:
        >>> state = State(norms=torch.ones(2))
        >>> state.replace(norms=state.norms * 3).norms
        tensor([3., 3.])
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        if name == "losses":
            raise UsageError(
                "this merge needs the losses: call backward() on method.total(losses), or "
                "method.combine(grads, losses)"
            )
        raise AttributeError(f"the state has no {name!r}")

    def is_finite(self) -> Tensor:
        """Return whether all values are finite; a state that is not must never be kept."""
        tensors = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()

    def replace(self, **values: Any) -> State:
        """The state with some values changed."""
        unknown = values.keys() - vars(self).keys()
        if unknown:
            raise UsageError(f"{', '.join(sorted(unknown))}: declare it in __init__ with add_state")
        return State(**{**vars(self), **values})


class Stateful(nn.Module):
    """A module with declared state over ``count`` tasks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._declared: dict[str, Per] = {}
        self._learned: list[str] = []
        self._constants: list[str] = []
        self._columns = _Columns()

    # What a part declares

    def add_state(
        self,
        name: str,
        start: float | Sequence[float] = 0.0,
        *,
        per: Per = "task",
        size: int | None = None,
    ) -> None:
        """Keep ``name`` between steps.

        Args:
            name: attribute, and key of the state dict.
            start: first value; its type (float, int, bool) is that of the state.
            per: one value per ``task``, per ``pair`` of tasks, or for ``all`` of them; or a row of N
                per task, with one entry per ``coordinate`` of the gradients, empty before a step.
            size: keep a row of this many values in place of one, such as the last losses of a task.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "task": (self._count,),
            "pair": (self._count,) * 2,
            "all": (),
        }
        if per == "coordinate":
            value = torch.zeros(self._count, 0, device=_real_device())
        else:
            exact = torch.tensor(start, device=_real_device())
            exact = exact.double() if exact.is_floating_point() else exact
            row = () if size is None else (size,)
            value = exact.expand((*shapes[per], *row)).clone()
        self.register_buffer(name, value)
        self._declared[name] = per

    def add_constant(self, name: str, values: Sequence[float]) -> None:
        """Keep one number per task that never changes; it is not saved."""
        constant = torch.tensor(values, dtype=torch.float64, device=_real_device())
        self.register_buffer(name, constant, persistent=False)
        self._declared[name] = "task"
        self._constants.append(name)

    def add_learned(self, name: str, start: float = 0.0) -> None:
        """Own one parameter per task, which the user's optimizer moves."""
        setattr(self, name, nn.Parameter(torch.full((self._count,), start)))
        self._declared[name] = "task"
        self._learned.append(name)

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """The parameters declared by :meth:`add_learned`."""
        return {name: getattr(self, name) for name in self._learned}

    # What a step does with it

    def read(self, present: tuple[int, ...], **extras: Any) -> State:
        """State of the present tasks, and ``extras``."""
        values: dict[str, Any] = {}
        for name, per in self._declared.items():
            value: Any = getattr(self, name)
            if name in self._learned and hasattr(value, "full_tensor"):  # sharded by FSDP
                value = value.full_tensor()
            few = per != "all" and len(present) < self._count
            values[name] = _select(value, per, present) if few else value
        return State(**values, **extras)

    @torch.no_grad()
    def commit(self, old: State, new: State, present: tuple[int, ...], finite: Tensor) -> None:
        """Keep the ``new`` state of the present tasks, if the step was finite."""
        for name, per in self._declared.items():
            value = getattr(new, name)
            if value is getattr(old, name) or name in self._learned or name in self._constants:
                continue
            buffer: Tensor = getattr(self, name)
            if per == "coordinate" and not buffer.shape[1]:
                buffer = value.new_zeros(self._count, value.shape[1])
                setattr(self, name, buffer)
            value = value.to(buffer.dtype)
            if per != "all" and len(present) < self._count:
                value = _insert(value, buffer, per, present)
            torch.where(finite, value, buffer, out=buffer)

    def fit_coordinates(self, state: State, grads: Tensor, tensors: Sequence[Tensor] = ()) -> State:
        """The state with what it has per ``coordinate`` as (P, N), as the gradients; zeros at first.

        Args:
            state: that of the present tasks.
            grads: (P, N) gradients.
            tensors: the tensors that they are gradients of, if known; the same ones in every step.
        """
        fitted: dict[str, Tensor] = {}
        for name in (name for name, per in self._declared.items() if per == "coordinate"):
            held = getattr(state, name)
            if held.shape[1] == 0:
                self._columns = _Columns()
            same = self._columns.matches(tensors)
            if held.shape[1] not in (0, grads.shape[1]) or not same:
                raise UsageError(
                    f"the gradients have {grads.shape[1]} entries, and {name!r} remembers "
                    f"{held.shape[1]}{'' if same else ', of other parameters'}: the merged parameters "
                    "have to be the same in every step; pass as `shared` those that every task reaches"
                )
            zeros = grads.new_zeros(()).expand_as(grads)  # takes no memory
            fitted[name] = held.to(grads.dtype) if held.shape[1] else zeros
        return state.replace(**fitted)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, per in self._declared.items():
            saved = state_dict.get(prefix + name)
            if per == "coordinate" and saved is not None:  # its length is that of the gradients
                setattr(self, name, torch.zeros_like(saved, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep state in its own type when a model is cast, and all else in float32 or better."""
        state = {id(getattr(self, name)) for name in self._declared if name not in self._learned}

        def careful(tensor: Tensor) -> Tensor:
            result: Tensor = fn(tensor)
            half = tensor.is_floating_point() and result.dtype in (torch.float16, torch.bfloat16)
            # the hooks compute with it in float64
            return tensor.to(result.device) if half or id(tensor) in state else result

        super()._apply(careful, recurse)  # type: ignore[no-untyped-call]
        return self


def _select(value: Tensor, per: Per, present: tuple[int, ...]) -> Tensor:
    """Return the part of a state that belongs to the present tasks."""
    index = _index(present, value.device)
    value = value.index_select(0, index)
    return value.index_select(1, index) if per == "pair" else value


def _insert(value: Tensor, state: Tensor, per: Per, present: tuple[int, ...]) -> Tensor:
    """The state with the values of the present tasks."""
    index = _index(present, state.device)
    if per == "pair":
        return state.index_put((index[:, None], index[None, :]), value)
    return state.index_copy(0, index, value)


class _Columns:
    """The tensors whose coordinates are remembered. They are not copied or saved with a method."""

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[Tensor]] = []

    def matches(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these are the tensors; those that are given first are."""
        if tensors and not self._tensors:
            self._tensors = [weakref.ref(tensor) for tensor in tensors]
        known = [reference() for reference in self._tensors]
        return not tensors or list(map(id, known)) == list(map(id, tensors))

    def __deepcopy__(self, memo: Any) -> _Columns:
        return _Columns()

    def __reduce__(self) -> Any:
        return _Columns, ()


def _real_device() -> torch.device:
    """The default device; the CPU in place of ``meta``, as nobody else would fill state in."""
    device: torch.device = torch.get_default_device()
    return torch.device("cpu") if device.type == "meta" else device


_indices: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}


def _index(present: tuple[int, ...], device: torch.device) -> Tensor:
    """The indices as a tensor, uploaded once."""
    if torch.compiler.is_compiling():
        return torch.tensor(present, device=device)
    key = (present, device)
    if key not in _indices:
        if len(_indices) > 4096:
            _indices.clear()
        _indices[key] = torch.tensor(present, device=device)
    return _indices[key]
