"""Checks that every method or architecture must pass, for plugin authors. They need no pytest."""

from typing import TYPE_CHECKING

from mtlkit.config.extras import lazy_names

if TYPE_CHECKING:
    from mtlkit.testing.architectures import check_architecture
    from mtlkit.testing.methods import LAWS, check_method

__all__ = ["LAWS", "check_architecture", "check_method"]

__getattr__ = lazy_names(
    __name__,
    {
        "LAWS": "mtlkit.testing.methods",
        "check_architecture": "mtlkit.testing.architectures",
        "check_method": "mtlkit.testing.methods",
    },
)
