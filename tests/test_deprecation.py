import pytest

from mtlkit.deprecation import MtlkitDeprecationWarning, warn_deprecated


def old_name():
    warn_deprecated("mtlkit.old_name", "mtlkit.new_name", removed_in="0.4")


def test_the_warning_names_old_new_and_release_and_points_to_the_caller():
    with pytest.warns(
        MtlkitDeprecationWarning,
        match=r"old_name will be removed in mtlkit 0\.4; write mtlkit\.new_name",
    ) as seen:
        old_name()
    assert seen[0].filename == __file__
