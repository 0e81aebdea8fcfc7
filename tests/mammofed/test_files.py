"""Files are whole or absent, and a folder has one holder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mammofed.errors import BadSetting
from mammofed.files import clear_scratch, held, scratch_of, write_atomically

HOLDER = """
import sys
from pathlib import Path
from mammofed.files import held
with held(Path(sys.argv[1]), "study"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_parts_become_one_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    write_atomically(path, b"new ", memoryview(b"content"))
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_reach_the_disk_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    replace = Path.replace

    def noted(path: Path, to: Path) -> Path:
        steps.append("rename")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(Path(f"/proc/self/fd/{handle}").resolve()))
    monkeypatch.setattr(Path, "replace", noted)
    path = tmp_path / "a.bin"
    write_atomically(path, b"content")
    assert steps == [scratch_of(path), "rename", tmp_path]


def test_a_failed_write_leaves_the_old_file_and_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadSetting, match=r"cannot write .*a\.bin: No space left .*; free some space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_space_is_no_remedy_where_it_is_not_wanting(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="No such file or directory; name another place"):
        write_atomically(tmp_path / "none" / "a.bin", b"new")


def test_scratch_of_killed_processes_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.17.writing").write_bytes(b"half")
    (tmp_path / "a.bin").write_bytes(b"whole")
    clear_scratch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_folder_has_one_holder_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BadSetting, match=f"{folder} is in use by another study"), held(folder, "study"):
            pass
        holder.kill()
    with held(folder, "study"):
        pass


def test_an_error_inside_a_held_folder_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), held(tmp_path, "study"):
        (tmp_path / "none").read_bytes()
    with held(tmp_path, "study"):
        pass


def test_a_secret_is_its_owner_s_alone(tmp_path: Path) -> None:
    path, before = tmp_path / "secret", os.umask(0)
    try:
        write_atomically(path, b"first", mode=0o600)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
