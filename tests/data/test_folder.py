"""Folders that appear complete or not at all; more of them is tested through `prepare`."""

import pytest

from data.folder import LOCK_FILE, building


@pytest.mark.parametrize("name", ["set", ".partial-set", f".partial-set/{LOCK_FILE}"])
def test_a_link_into_nowhere_is_refused_at_once(tmp_path, name):
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "gone" / "deeper")
    with (
        pytest.raises(ValueError, match=f"{link} is a link that leads nowhere: remove it, rm "),
        building(tmp_path / "set"),
    ):
        pass
    link.unlink()
    with building(tmp_path / "set") as temporary:
        (temporary / "done").touch()
    assert (tmp_path / "set" / "done").exists()
