"""Registries of methods and architectures, which third-party packages can extend.

A package registers by an entry point in the group ``mtlkit.weighting`` or ``mtlkit.architectures``.
Entry points are read when a name is first looked up, so ``import mtlkit`` runs no third-party code.
"""

import contextlib
import importlib
import inspect
import re
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from mtlkit.config.annotations import explain, fits, is_finite
from mtlkit.config.spec import Part, SpecLike, format_spec, is_word, parse_spec
from mtlkit.errors import SpecError, shorten, unknown_name

T = TypeVar("T", bound=Callable[..., Any])


class Registry(Generic[T]):
    """The known factories of one kind, with aliases and plugins.

    Case, hyphens and underscores of a name do not matter: ``CAGrad``, ``Nash-MTL``.

    Args:
        kind: what the factories make, for error messages.
        group: group of the entry points.
        builtin: module that registers mtlkit's own factories.
        spellings: other names in papers and libraries; accepted, but not listed.
    """

    def __init__(
        self, kind: str, group: str, builtin: str, spellings: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.spellings = {_fold(name): known for name, known in (spellings or {}).items()}
        self.group = group
        self._builtin = builtin
        self._factories: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._loaded = False

    def register(self, name: str, *, replace: bool = False) -> Callable[[T], T]:
        """Return a decorator that registers a class or factory as ``name``."""
        if not isinstance(name, str) or not is_word(name):
            raise SpecError(
                f"a {self.kind}'s name must be a word such as 'my_{self.kind}', not {name!r}"
            )

        def decorate(factory: T) -> T:
            old = self._factories.get(name)
            taken = old is not None and _origin(old) != _origin(factory)
            if not replace and (taken or name in self._aliases):
                known = _origin(old) if old is not None else f"alias of {self._aliases[name]!r}"
                raise SpecError(
                    f"{self.kind} {name!r} is already registered ({known}); "
                    "choose another name, or pass replace=True"
                )
            self._factories[name] = factory
            if inspect.isclass(factory) and "name" not in vars(factory):
                factory.name = name  # type: ignore[attr-defined]
            return factory

        return decorate

    @contextlib.contextmanager
    def temporary(self) -> Iterator[None]:
        """Undo, at the end of a ``with`` block, all registrations and aliases made inside it.

        >>> with methods.temporary():
        ...     methods.alias("plain", "sum")
        ...     "plain" in methods.names()
        True
        >>> "plain" in methods.names()
        False
        """
        self._load()  # built-in names and entry points stay
        kept = dict(self._factories), dict(self._aliases)
        try:
            yield
        finally:
            self._factories, self._aliases = kept

    def alias(self, name: str, spec: str) -> None:
        """Make ``name`` mean the parts of ``spec``."""
        self._aliases[name] = spec

    def aliases(self) -> Mapping[str, str]:
        """Return the aliases and the specs that they stand for."""
        self._load()
        return dict(self._aliases)

    def names(self) -> list[str]:
        """Return all names, including aliases and plugins, sorted."""
        self._load()
        return sorted({*self._factories, *self._aliases})

    def canonical(self, name: str) -> str:
        """Return the registered name that ``name`` spells; ``name`` if there is none, or several.

        >>> methods.canonical("Nash-MTL")
        'nash_mtl'
        """
        known, folded = self.names(), _fold(name)
        if name in known:
            return name
        found = [each for each in known if _fold(each) == folded]
        return found[0] if len(found) == 1 else self.spellings.get(folded, name)

    def get(self, name: str) -> T:
        """Return the factory of this name; an unknown name raises an error with the nearest names."""
        try:
            return self._factories[self.canonical(name)]
        except KeyError:
            raise unknown_name(self.kind, name, self.names()) from None

    def expand(self, spec: SpecLike) -> list[Part]:
        """Return the parts of ``spec``, with aliases replaced and their options given to the parts."""
        parts: list[Part] = []
        for given in parse_spec(spec):
            part = self.resolve(given)
            if part.name in self._aliases:
                expanded = parse_spec(self._aliases[part.name])
                parts += self.override(expanded, part.options, of=part.name)
            else:
                parts.append(part)
        return parts

    def resolve(self, part: Part) -> Part:
        """Return the part under its registered name."""
        return Part(self.canonical(part.name), part.options, part.arguments)

    def override(self, parts: list[Part], options: Mapping[str, Any], of: str) -> list[Part]:
        """Give each option to every part that takes it; an option that no part takes is an error."""
        parts = [self.resolve(part) for part in parts]
        accepted = [option_names(self.get(part.name)) for part in parts]
        for key in options:
            if not any(key in names for names in accepted):
                raise unknown_name(f"option of {of}", key, set().union(*accepted))
        return [
            Part(part.name, {**part.options, **{k: v for k, v in options.items() if k in names}})
            for part, names in zip(parts, accepted, strict=True)
        ]

    def with_seed(self, spec: SpecLike, seed: int) -> list[Part]:
        """Return the parts of ``spec``; random ones that name no seed get ``seed``."""
        parts = []
        for part in self.expand(spec):
            options = dict(part.options)
            if "seed" in option_names(self.get(part.name)):
                options.setdefault("seed", seed)
            if "inner" in options:  # another method's config string
                options["inner"] = format_spec(self.with_seed(options["inner"], seed))
            parts.append(Part(part.name, options, part.arguments))
        return parts

    def check(self, part: Part) -> T:
        """Return the factory of ``part`` after checking its options."""
        factory = self.get(part.name)
        check_names(factory, part.options, of=part.name)
        check_options(factory, part.options, of=part.name)
        if lacking := missing_options(factory, part.options):
            needed = ", ".join(f"{option}=..." for option in lacking)
            raise SpecError(f"{self.kind} {part.name} needs more options: {part.name}({needed})")
        return factory

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        importlib.import_module(self._builtin)
        for entry in entry_points(group=self.group):
            try:
                found = entry.load()
                if callable(found) and _origin(found) != _origin(self._factories.get(entry.name)):
                    self.register(entry.name)(found)
            except Exception as error:  # a broken plugin must not break mtlkit
                warnings.warn(
                    f"ignoring the plugin {entry.name!r} ({entry.value}), which cannot be loaded: "
                    f"{type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )


def _fold(name: str) -> str:
    """Return the name in lower case, without hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]", "", name).lower()


def _origin(factory: Any) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', factory)}"


@cache
def takes_feature_dim(factory: Callable[..., Any]) -> bool:
    """Return whether the factory takes ``feature_dim``."""
    return "feature_dim" in inspect.signature(factory).parameters


def check_names(factory: Callable[..., Any], options: Iterable[str], of: str) -> None:
    """Raise an error with the nearest names for an unknown option."""
    accepted = option_names(factory)
    for key in options:
        if key not in accepted:
            raise unknown_name(f"option of {of}", key, accepted)


def check_options(factory: Callable[..., Any], options: Mapping[str, Any], of: str = "") -> None:
    """Raise a SpecError for an option of another type or out of range; unknown options are ignored.

    ``of`` names the owner of the options in the error; by default, the registered name.
    """
    defaults, annotations = option_defaults(factory), option_types(factory)
    for key in options.keys() & defaults.keys():
        value, annotation = options[key], annotations.get(key, Any)
        if not is_finite(value) and not is_finite(defaults[key]):
            continue  # a factory with an infinite default accepts others
        if not fits(value, annotation):
            of = of or getattr(factory, "name", "") or factory.__name__
            wanted = explain(value, annotation)
            raise SpecError(f"{key} of {of} must be {wanted}, not {shorten(value)}")


@cache
def option_types(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of the options, where they can be resolved."""
    hints: dict[str, Any] = {}
    for current in reversed(inspect.getmro(factory)) if inspect.isclass(factory) else [factory]:
        function = vars(current).get("__init__") if inspect.isclass(current) else current
        if inspect.isfunction(function):
            # names that only a type checker imports cannot be resolved; they are not checked
            with contextlib.suppress(NameError, TypeError):
                hints |= typing.get_type_hints(function, include_extras=True)
    return hints


@cache
def option_names(factory: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the options; see :func:`option_defaults`."""
    return frozenset(option_defaults(factory))


@cache
def option_defaults(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the keyword-only options with their defaults, own options before inherited ones.

    Inherited options count if they are passed on with ``**``; ``hidden_options`` of a class hides some.
    """
    classes: list[Any] = [factory]
    if inspect.isclass(factory):
        classes = [c for c in inspect.getmro(factory) if "__init__" in vars(c)]
    defaults: dict[str, Any] = {}
    for current in classes:
        function = current.__init__ if inspect.isclass(current) else current
        parameters = inspect.signature(function).parameters.values()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY:
                defaults.setdefault(parameter.name, parameter.default)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    hidden = {"feature_dim", "method", *getattr(factory, "hidden_options", ())}
    return {name: default for name, default in defaults.items() if name not in hidden}


def missing_options(factory: Callable[..., Any], given: Collection[str]) -> list[str]:
    """Return the options without a default that are not given."""
    empty = inspect.Parameter.empty
    defaults = option_defaults(factory)
    return [name for name, value in defaults.items() if value is empty and name not in given]


methods: Registry[Any] = Registry(
    "method",
    "mtlkit.weighting",
    "mtlkit.weighting",
    {
        "EW": "sum",
        "equal_weighting": "sum",
        "linear_scalarization": "sum",
        "LS": "sum",
        "MGDA-UB": "mgda",  # all methods here work at the features
        "uncertainty": "uw",
        "uncertainty_weighting": "uw",
        "homoscedastic": "uw",
        "scale_invariant": "si",
        "gradient_vaccine": "gradvac",
        "gradient_surgery": "pcgrad",
    },
)
architectures: Registry[Any] = Registry(
    "architecture",
    "mtlkit.architectures",
    "mtlkit.architectures",
    {"HPS": "hard_sharing", "hard_parameter_sharing": "hard_sharing"},
)


def register_method(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Register a :class:`~mtlkit.GradientAggregator` subclass under ``name``.

    A name that is taken raises an error, unless ``replace`` is True.

    >>> import torch, mtlkit
    >>> with methods.temporary():
    ...     @register_method("first_only")
    ...     class FirstOnly(mtlkit.GradientAggregator):
    ...         def weigh(self, gram, state):
    ...             return torch.eye(len(gram))[0], state
    ...
    ...     mtlkit.create_method("first_only", tasks=2).combine(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 2.])
    """
    return methods.register(name, replace=replace)


def register_architecture(name: str, *, replace: bool = False) -> Callable[[T], T]:
    """Register an :class:`~mtlkit.architectures.Architecture` subclass under ``name``.

    A name that is taken raises an error, unless ``replace`` is True.

    >>> from mtlkit.architectures import SingleTask
    >>> with architectures.temporary():
    ...     network = register_architecture("my_network")(type("MyNetwork", (SingleTask,), {}))
    ...     "my_network" in list_architectures()
    True
    """
    return architectures.register(name, replace=replace)


def list_methods() -> list[str]:
    """List the names of all methods, including aliases and plugins, sorted.

    >>> [name for name in list_methods() if name.startswith("imtl")]
    ['imtl', 'imtl_g', 'imtl_l']
    """
    return methods.names()


def list_architectures() -> list[str]:
    """List the names of all architectures, including plugins, sorted.

    >>> "hard_sharing" in list_architectures()
    True
    """
    return architectures.names()
