"""Settings that all tests share."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
if "MTLKIT_LIBMTL" in os.environ:  # the folder of a package that is no dependency; see the Makefile
    sys.path.append(os.environ["MTLKIT_LIBMTL"])

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.knobs import DEVICE, DTYPE

settings.register_profile(
    "mtlkit",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("mtlkit")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    return


def pytest_report_header():
    """Say where the laws run; CONTRIBUTING.md names the environment variables."""
    return f"laws: {DEVICE}, {DTYPE}"


def pytest_terminal_summary(terminalreporter):
    """List the laws that methods have declared not to apply to them."""
    import mtlkit
    from mtlkit.config.registry import methods

    ran = any("properties" in str(r.nodeid) for r in terminalreporter.stats.get("passed", []))
    if not ran:
        return
    terminalreporter.section("laws that methods waive")
    for name in mtlkit.list_methods():
        if name in methods.aliases():
            continue
        for law, reason in getattr(methods.get(name), "waived_laws", {}).items():
            terminalreporter.write_line(f"{name}: {law}: {reason}")
