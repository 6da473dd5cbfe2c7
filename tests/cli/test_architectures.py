"""``mtlkit architectures``."""

from __future__ import annotations

import pytest

import mtlkit
from mtlkit.cli import main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code, capsys.readouterr()


def test_every_architecture_is_listed(capsys):
    code, output = run(capsys, "architectures")
    assert code == 0
    for name in mtlkit.list_architectures():
        assert name in output.out


@pytest.mark.parametrize("name", ["hard_sharing", "ple", "cgc", "segnet"])
def test_one_architecture_is_shown_with_its_options(capsys, name):
    from mtlkit.config.registry import architectures, option_defaults

    code, output = run(capsys, "architectures", name)
    assert code == 0
    for option in option_defaults(architectures.get(name)):
        assert option in output.out


def test_every_page_fits_80_columns_and_has_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    orders = [("architectures", name) for name in mtlkit.list_architectures()]
    for order in [*orders, *(("data", name) for name in ("table", "images", "multidigits", "celeba"))]:
        code, output = run(capsys, *order)
        assert code == 0, order
        page = output.out.partition("files: not found")[0]  # an address is not broken
        text = [line for line in page.splitlines() if ">>>" not in line and "... " not in line]
        assert max(map(len, text)) <= 80, order
        for mark in (":math:", ":mod:", ":class:", "``", "Args:"):
            assert mark not in output.out, order


def test_a_required_option_is_marked(capsys):
    _, output = run(capsys, "architectures", "hard_sharing")
    assert "(required)" in output.out


def test_a_wrong_name_gives_the_nearest_one_and_exit_code_2(capsys):
    code, output = run(capsys, "architectures", "hard_sharin")
    assert code == 2
    assert "did you mean 'hard_sharing'" in output.err
