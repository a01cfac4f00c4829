"""The notes that say what the operating system knows: permissions, descriptors, space."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from aloader import DataLoader
from aloader.channel.faults import pack_fault, unpack_fault
from aloader.channel.hints import hint


def denied(path: object, number: int = errno.EACCES) -> PermissionError:
    error = OSError(number, os.strerror(number), path)
    assert isinstance(error, PermissionError)
    return error


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_a_file_that_is_refused_is_told_with_its_owner_and_ours(tmp_path, number, kind):
    file = tmp_path / "secret"
    file.write_text("x")
    file.chmod(0o040)
    text = hint(denied(kind(str(file)), number))
    status = file.stat()
    assert f"runs as uid {os.geteuid()}" in text
    assert f"gid {os.getegid()}" in text
    assert f"{file} belongs to uid {status.st_uid}" in text
    assert "mode 0040" in text
    assert "umask" in text


def test_of_a_file_that_is_not_there_the_deepest_folder_is_told(tmp_path):
    (tmp_path / "a").mkdir(mode=0o555)
    text = hint(denied(str(tmp_path / "a" / "b" / "c")))
    assert f"no more than {tmp_path / 'a'}, which belongs to" in text
    assert "mode 0555" in text


def test_an_error_behind_another_is_found():
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise RuntimeError("could not read") from error
    except RuntimeError as error:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = hint(error)
    assert "ulimit -n" in text
    assert f"may have {soft} files" in text


def test_of_a_full_folder_the_free_bytes_are_told(tmp_path):
    text = hint(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "new")))
    assert f"{tmp_path} has " in text
    assert "bytes free" in text
    assert "/dev/shm has" in hint(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize(
    "error", [ValueError("x"), PermissionError("by a store"), FileNotFoundError(2, "no", "x"), denied(3), denied(None)]
)
def test_of_other_errors_nothing_is_said(error):
    assert hint(error) == ""


def test_hints_never_fail():
    assert hint(denied("with a \0 in it")) == ""


def test_the_note_of_a_fault_has_the_hint():
    error = unpack_fault(pack_fault(denied(os.sep), "worker 0", "sample 5"))
    lines = error.__notes__[0].splitlines()
    assert lines[1] == "sample 5"
    assert "runs as uid" in lines[2]


class Refused:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise denied("/")


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_says_who_it_is():
    with DataLoader(Refused(), num_workers=1) as loader, pytest.raises(PermissionError) as caught:
        next(iter(loader))
    assert f"runs as uid {os.geteuid()}" in "\n".join(caught.value.__notes__)
