"""`mammofed federation init`, and what it refuses before a certificate is made."""

from pathlib import Path

import pytest

from app.federation.provision import Federation, add_site, create
from mammofed.errors import BadSetting, CannotWrite


@pytest.mark.parametrize("host", ["bad host", "a..b", "-a", "fe80::1", "http://a", ""])
def test_a_host_that_cannot_be_one_is_refused_in_our_words(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"give a name as coordinator\.example\.org or an IPv4 address"):
        create(tmp_path / "federation", Federation("trial", host, sites=("hospital-1",)))
    assert not (tmp_path / "federation").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match=r"cannot write .*file/federation"):
        create(tmp_path / "file" / "federation", Federation("trial", "localhost", sites=("hospital-1",)))


def test_a_file_in_the_way_of_one_site_more_is_told_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    create(folder, Federation("trial", "localhost", sites=("hospital-1",)))
    (folder / "project.yml").unlink()
    (folder / "project.yml").mkdir()
    with pytest.raises(CannotWrite, match=r"cannot write .*federation: Is a directory"):
        add_site(folder, "hospital-2")
