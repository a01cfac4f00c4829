"""Answers that are not what they should be."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.errors import Corrupted
from aloader.storage import Request, Response, Verified
from aloader.storage.wrappers.digests import computer, parse, wrong_digest, wrong_length
from aloader.testing.simloop import simulate
from tests.storage.wrappers.fakes import Scripted, Step

DATA = b"the bytes of an object"
MD5 = hashlib.md5(DATA).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()


def flipped(request: Request, answer: Response) -> Response:
    return answer._replace(data=bytes([answer.data[0] ^ 1]) + answer.data[1:])


def short(request: Request, answer: Response) -> Response:
    return answer._replace(data=answer.data[:-1])


def digested(**digests: str) -> Step:
    return lambda request, answer: answer._replace(digests=digests)


def both(*steps: Any) -> Step:
    def changed(request: Request, answer: Response) -> Response:
        for step in steps:
            answer = step(request, answer)
        return answer

    return changed


def result(store: Verified, request: Request = Request("k")) -> Any:  # noqa: B008
    async def main() -> Any:
        async with store:
            return (await asyncio.gather(store.fetch(request), return_exceptions=True))[0]

    return simulate(main)


def test_a_wrong_length_is_fetched_again() -> None:
    inner = Scripted([short], k=DATA)
    assert result(Verified(inner)).data == DATA
    assert len(inner.requests) == 2


def test_what_comes_damaged_twice_is_an_error_that_says_what_came() -> None:
    error = result(Verified(Scripted([short] * 2, k=DATA)), Request("k", 4, 9))
    assert (type(error), error.key, error.attempts) == (Corrupted, "k", 2)
    assert str(error) == (
        "'k' in Scripted() came damaged, twice: 5 bytes were expected, of an object of 22, and 4 came"
    )
    error = result(Verified(Scripted([flipped] * 2, k=DATA), digests={"k": f"sha256:{SHA256}"}))
    assert f"its sha256 should be {SHA256} and is " in str(error)


def test_what_something_inside_found_damaged_is_fetched_again_too() -> None:
    inner = Scripted([Corrupted("a part is short", "k")], k=DATA)
    assert result(Verified(inner)).data == DATA


@pytest.mark.parametrize(
    ("check", "digests", "seen"),
    [
        ("length", {"md5": MD5}, False),
        ("etag", {"md5": MD5}, True),
        ("etag", {"crc32": f"{zlib.crc32(DATA):08x}"}, False),
        ("crc", {"crc32": f"{zlib.crc32(DATA):08x}"}, True),
        ("crc", {"md5": MD5}, False),
        ("all", {"sha256": SHA256}, True),
        ("all", {"md5": f"{MD5}-3"}, False),  # of an upload in three parts: no digest of the object
        ("all", {"blake3": "00"}, False),
        ("all", {}, False),
    ],
)
def test_what_is_compared_of_what_the_store_says(check: Any, digests: dict[str, str], seen: bool) -> None:
    inner = Scripted([both(flipped, digested(**digests)), digested(**digests)], k=DATA)
    answer = result(Verified(inner, check))
    assert (answer.data == DATA) is seen
    assert len(inner.requests) == 1 + seen


def test_ones_own_digests_are_compared_of_whole_objects_whatever_the_range_says() -> None:
    digests = {"k": f"SHA256:{SHA256}".replace("SHA", "sha"), "other": f"md5:{MD5.upper()}"}
    for request in (Request("k"), Request("k", 0, len(DATA)), Request("k", 0, 1000, most=1000)):
        inner = Scripted([flipped], k=DATA)
        assert result(Verified(inner, digests=digests), request).data == DATA
        assert len(inner.requests) == 2
    inner = Scripted([flipped], k=DATA)
    assert result(Verified(inner, digests=digests), Request("k", 0, 5)).data == b"uhe b"
    assert result(Verified(Scripted([flipped], k=DATA), digests={"other": digests["other"]})).data != DATA


@pytest.mark.asyncio
async def test_large_objects_are_compared_in_a_thread() -> None:
    data = bytes(2 << 20)
    inner = Scripted([flipped], k=data)
    async with Verified(inner, digests={"k": f"md5:{hashlib.md5(data).hexdigest()}"}) as store:
        assert await store.get("k") == data
    assert len(inner.requests) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.binary(min_size=1, max_size=50), st.integers(0, 49), st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 60), st.integers(-3, 3),
)  # fmt: skip
def test_a_length_is_wrong_exactly_if_bytes_are_missing_or_too_many(
    data: bytes, start: int, length: int | None, most: int | None, off: int
) -> None:
    start %= len(data)
    request = Request("k", start, None if length is None else start + length, most=most)
    right = data[start : request.end(len(data))]
    spoilt = right[:off] if off < 0 else right + bytes(off)
    whole = data[start : request._replace(most=None).end(len(data))]
    wrong = wrong_length(request, Response(spoilt, len(data)))
    assert bool(wrong) == (len(spoilt) not in {len(right), len(whole)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("md5", "900150983cd24fb0d6963f7d28e17f72"),
        ("crc32", "352441c2"),
        ("crc32c", "364b3fb7"),
        ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_digests_of_abc(name: str, value: str) -> None:
    compute = computer(name)
    if compute is None:
        assert name == "crc32c"  # it needs a package that may not be there; then it is left out
        assert wrong_digest(b"abc", [(name, "00000000")]) == ""
    else:
        assert compute(b"abc") == value


@pytest.mark.parametrize("wrong", ["", "md5", MD5, f"md5:{SHA256}", "md5:" + "g" * 32, "blake3:00"])
def test_what_is_no_digest_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"not a digest: .*md5:32 hexadecimal digits"):
        Verified(Scripted(), digests={"k": wrong})


def test_other_checks_are_refused_and_it_pickles() -> None:
    with pytest.raises(ValueError, match="check= is one of 'length', 'etag', 'crc', 'all': got 'md5'"):
        Verified(Scripted(), "md5")  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(Verified(Scripted(), "etag", {"k": f"md5:{MD5}"})))
    assert (copy.check, copy.digests, repr(copy)) == ("etag", {"k": parse(f"md5:{MD5}")}, "Verified(Scripted())")
