"""What a worker's code raised is raised in the parent: its type, its attributes, its traceback; and never worse."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader import errors
from aloader.channel.faults import FAULT_BYTES, pack_fault, unpack_fault

WHERE = "DataLoader worker process 0"


def caught(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as error:
        return error


def carried(exc: BaseException, note: str = "sample 7") -> Exception:
    return unpack_fault(pack_fault(caught(exc), WHERE, note))


class TwoArguments(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason


class KeywordOnly(Exception):
    def __init__(self, *, url: str) -> None:
        super().__init__(f"cannot open {url}")
        self.url = url


class Slotted(OSError):
    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        super().__init__(5, "gone", f"/x/{key}")
        self.key = key


class OwnReduction(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("a text that the constructor does not take")
        self.code = code

    def __reduce__(self) -> Any:
        return OwnReduction, (self.code,)


class BadReduction(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class InitRaises(Exception):
    def __init__(self, *args: object) -> None:
        if not args:
            raise SystemExit(9)
        super().__init__()


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("no str")

    def __repr__(self) -> str:
        raise KeyboardInterrupt("no repr")


class HostileDecoding(UnicodeDecodeError):
    def __init__(self, path: str) -> None:
        super().__init__("utf-8", b"\xff", 0, 1, "bad byte")
        self.path = path


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    a: int
    b: str


class CancelledToo(asyncio.CancelledError, Exception):
    pass


class Shouting(KeyError):
    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes please")


class TestTheOriginalSurvives:
    @pytest.mark.parametrize(
        "exc",
        [
            ValueError("x", 1),
            KeyError("k"),
            FileNotFoundError(2, "No such file", "/a/b"),
            OSError(5, "io", "/a", None, "/b"),
            PermissionError(13, "denied"),
            UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"),
            ImportError("nope", name="n", path="p"),
            SyntaxError("bad", ("f.py", 3, 4, "x = ", 3, 5)),
            AttributeError("no attribute", name="shape"),
            TwoArguments(503, "slow down"),
            KeywordOnly(url="s3://b/k"),
            Slotted("k"),
            OwnReduction(3),
            HostileDecoding("/p"),
            Frozen(1, "b"),
            errors.KeyNotFound("no object", key="a/b"),
            errors.WorkerLost("gone", worker=3, signal=9),
            subprocess.CalledProcessError(3, ["ls"], b"out", b"err"),
            TimeoutError(),
            ExceptionGroup("two", [TwoArguments(1, "a"), ExceptionGroup("in", [OSError(2, "x", "f")])]),
        ],
        ids=lambda exc: type(exc).__name__,
    )
    def test_type_arguments_attributes_and_text(self, exc: Exception) -> None:
        back = carried(exc)
        assert type(back) is type(exc)
        assert repr(back) == repr(exc)
        assert str(back) == str(exc)
        notes = {"__notes__": back.__notes__}
        assert back.__dict__ == exc.__dict__ | notes
        for name in ("errno", "filename", "filename2", "name", "path", "lineno", "end_offset", "object", "key"):
            assert getattr(back, name, None) == getattr(exc, name, None)

    def test_members_of_a_group_keep_theirs(self) -> None:
        back = carried(ExceptionGroup("two", [TwoArguments(1, "a"), BadReduction("b"), Hostile(threading.Lock())]))
        assert isinstance(back, ExceptionGroup)
        first, second, third = back.exceptions
        assert isinstance(first, TwoArguments)
        assert first.status == 1
        assert type(second) is BadReduction
        assert type(third) is Hostile

    def test_a_group_of_members_that_pickle_cannot_take_keeps_their_attributes(self) -> None:
        broken = ValueError("v")
        broken.lock = threading.Lock()  # type: ignore[attr-defined]
        back = carried(ExceptionGroup("g", [broken, TwoArguments(2, "b")]))
        assert isinstance(back, ExceptionGroup)
        assert "lock" in back.exceptions[0].lock  # type: ignore[attr-defined]
        assert vars(back.exceptions[1]) == {"status": 2, "reason": "b"}

    def test_notes_are_kept_and_ours_comes_last(self) -> None:
        exc = ValueError("x")
        exc.add_note("look at the third row")
        assert carried(exc).__notes__ == ["look at the third row", f"Caught ValueError in {WHERE}.\nsample 7"]
        assert exc.__notes__ == ["look at the third row"]

    def test_tensors_among_the_attributes(self) -> None:
        exc = ValueError("x")
        exc.batch = torch.arange(3)  # type: ignore[attr-defined]
        back: Any = carried(exc)
        assert torch.equal(back.batch, torch.arange(3))

    def test_a_local_class_comes_back_as_itself(self) -> None:
        class Local(Exception):
            pass

        assert type(carried(Local("x"))) is Local

    def test_what_an_attribute_was_missing_on_is_not_carried(self) -> None:
        """It is the dataset as a rule."""
        huge = type("Dataset", (), {})()
        huge.data = bytes(2 * FAULT_BYTES)
        try:
            _ = huge.nope
        except AttributeError as error:
            data = pack_fault(error, WHERE)
        assert len(data) < 10_000
        back = unpack_fault(data)
        assert type(back) is AttributeError
        assert back.name == "nope"


class TestPartsThatCannotBeCarried:
    def test_become_their_repr_and_the_others_stay(self) -> None:
        exc = TwoArguments(500, "x")
        exc.args = (threading.Lock(), "second")
        exc.handle = threading.Lock()  # type: ignore[attr-defined]
        back: Any = carried(exc)
        assert type(back) is TwoArguments
        assert back.status == 500
        assert back.args[0].startswith("<unlocked _thread.lock")
        assert back.args[1] == "second"
        assert back.handle.startswith("<unlocked _thread.lock")

    @pytest.mark.parametrize("exc", [BadReduction("x"), InitRaises("x")], ids=lambda exc: type(exc).__name__)
    def test_classes_that_resist_pickle(self, exc: Exception) -> None:
        assert type(carried(exc)) is type(exc)
        assert carried(exc).args == exc.args

    def test_a_hostile_one_is_readable_all_the_same(self) -> None:
        back = carried(Hostile(threading.Lock()))
        assert type(back) is Hostile
        cause = back.__cause__
        assert "Hostile" in str(cause)
        assert f"Caught Hostile in {WHERE}." in str(cause)

    def test_a_large_one_is_cut(self) -> None:
        exc = ValueError("x" * (3 * FAULT_BYTES))
        exc.batch = torch.zeros(FAULT_BYTES)  # type: ignore[attr-defined]
        data = pack_fault(exc, WHERE)
        assert len(data) < 2 * FAULT_BYTES
        assert type(unpack_fault(data)) is ValueError

    def test_lone_surrogates(self) -> None:
        back = carried(ValueError(os.fsdecode(b"/a\xff")))
        assert type(back) is ValueError
        assert "udcff" in str(back.__cause__)


class TestWhatIsNeverRaisedAgain:
    @pytest.mark.parametrize(
        "exc",
        [
            SystemExit(3),
            KeyboardInterrupt(),
            GeneratorExit(),
            asyncio.CancelledError(),
            StopIteration(4),
            CancelledToo(),
            StopAsyncIteration(),
            BaseExceptionGroup("b", [SystemExit(1)]),
        ],
        ids=lambda exc: type(exc).__name__,
    )
    def test_becomes_a_sample_error(self, exc: BaseException) -> None:
        back = carried(exc)
        assert type(back) is errors.SampleError
        assert f"Caught {type(exc).__name__} in {WHERE}." in str(back)
        assert isinstance(back.__cause__, errors.WorkerTraceback)

    def test_nor_what_cannot_be_imported_in_the_parent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "only_in_the_worker.py").write_text("class Strange(Exception): pass")
        monkeypatch.syspath_prepend(tmp_path)
        import only_in_the_worker  # type: ignore[import-not-found]

        data = pack_fault(caught(only_in_the_worker.Strange("x")), WHERE)
        monkeypatch.delitem(sys.modules, "only_in_the_worker")
        (tmp_path / "only_in_the_worker.py").unlink()
        back = unpack_fault(data)
        assert type(back) is errors.SampleError
        assert str(back) == f"Caught Strange in {WHERE}.\nStrange: x"


class TestTheTraceback:
    def test_is_the_cause_and_has_its_own_causes(self) -> None:
        try:
            try:
                raise OSError(5, "the disk")
            except OSError as error:
                raise TwoArguments(1, "the shard") from error
        except TwoArguments as error:
            back = unpack_fault(pack_fault(error, WHERE))
        cause = back.__cause__
        assert isinstance(cause, errors.WorkerTraceback)
        assert cause.text.startswith(f"Caught TwoArguments in {WHERE}.\nOriginal Traceback (most recent call last):")
        assert "the direct cause" in cause.text
        assert "OSError: [Errno 5] the disk" in cause.text
        assert __file__ in cause.text
        assert back.__notes__ == [f"Caught TwoArguments in {WHERE}."]

    @pytest.mark.parametrize("exc", [Frozen(1, "b"), Shouting("k")], ids=lambda exc: type(exc).__name__)
    def test_is_attached_to_classes_that_do_not_want_it(self, exc: Exception) -> None:
        back = carried(exc)
        assert type(back) is type(exc)
        assert WHERE in str(back.__cause__)

    def test_notes_that_are_no_list(self) -> None:
        exc = ValueError("x")
        exc.__notes__ = 3  # type: ignore[assignment]
        back = carried(exc)
        assert type(back) is ValueError
        assert WHERE in str(back.__cause__)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([ValueError, OSError, KeyError, BadReduction, RuntimeError, ImportError]),
    st.lists(values, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "status"]), values),
)
def test_any_arguments_and_attributes(kind: type[Exception], args: list[Any], attributes: dict[str, Any]) -> None:
    exc = kind(*args)
    exc.__dict__.update(attributes)
    back = carried(exc)
    assert type(back) is type(exc)
    assert repr(back.args) == repr(exc.args)
    del back.__notes__
    assert repr(vars(back)) == repr(vars(exc))
