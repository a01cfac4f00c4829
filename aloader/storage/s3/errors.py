"""What went wrong with a bucket, said in one sentence: which object, where, and what to do about it.

Whoever made the request, the server's answer comes here as `Said`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from aloader.errors import (
    AccessDenied,
    BadRange,
    BrokenTransfer,
    CredentialsExpired,
    KeyNotFound,
    ObjectChanged,
    ServerFailed,
    StorageError,
    StoreNotFound,
    StoreUnreachable,
    Throttled,
)
from aloader.storage.base import Request
from aloader.storage.s3.signing import BadKeys
from aloader.storage.wire.answer import BrokenAnswer


class Described(Protocol):
    """A store, as far as sentences need it."""

    bucket: str

    @property
    def endpoint(self) -> str:
        """The server."""
        ...


class Asked(NamedTuple):
    """What was asked of whom: the words of the sentence."""

    verb: str  # "read", "write", "list"
    store: Described  # its repr names bucket, prefix and endpoint, and no secret
    key: str = ""

    @property
    def server(self) -> str:
        """Who was asked."""
        return self.store.endpoint

    def __str__(self) -> str:
        return f"cannot {self.verb} {f'{self.key!r} in ' if self.key else ''}{self.store!r}"


class Said(NamedTuple):
    """What the server said when it did not do what was asked: HTTP's status, and the parts of S3's error document."""

    status: int
    code: str = ""
    message: str = ""
    region: str = ""
    retry_after: float = 0.0


GIVE_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile, or pass access_key=… and secret_key=… "
    "(anonymous=True for a public bucket)"
)

#: The codes of refusals, and what each means for whoever reads it.
REFUSALS: Final = {
    "InvalidAccessKeyId": f"the server does not know the access key: {GIVE_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key: {GIVE_CREDENTIALS}",
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidToken": "the session token is not valid: renew the credentials, or leave session_token= out",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the server's: set it",
    "AccessDenied": "these credentials do not allow it (nor, maybe, to be told that the object is missing): "
    "check the bucket's policy",
}
REFUSALS_ALIKE: Final = {
    "403": "AccessDenied", "Forbidden": "AccessDenied", "TokenRefreshRequired": "ExpiredToken",
    "ExpiredTokenException": "ExpiredToken", "RequestExpired": "ExpiredToken",
}  # fmt: skip

#: Refusals that new credentials may help against. A key that the server does not know may have been there until now:
#: so ends a rotation by hand.
UNKNOWN_KEY: Final = "InvalidAccessKeyId"
EXPIRED: Final = {"ExpiredToken", "InvalidToken", UNKNOWN_KEY}

#: Where an object is not to be had before hours.
ARCHIVED: Final = "InvalidObjectState"

#: The codes by which servers say that the bucket lies in another region.
ELSEWHERE: Final = {"301", "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}

#: What asks for fewer requests: by code, or by status where there is no code.
THROTTLES: Final = {
    "SlowDown", "TooManyRequests", "RequestLimitExceeded", "ThrottlingException", "Throttling",
    "BandwidthLimitExceeded",
}  # fmt: skip
THROTTLING: Final = {429, 503, 509}

#: What may go well the next time, beside failures of the server's own (5xx): it waited too long for the request, or
#: takes no early data. S3 itself says the former with 400.
LATE: Final = {408, 425}
LATE_CODES: Final = {"RequestTimeout"}
NOT_IMPLEMENTED: Final = 501


@contextmanager
def explained(asked: Asked) -> Iterator[None]:
    """Failures of the client, the network and the server come out as a `StorageError`, with the original as cause."""
    from aiohttp import ClientError as BrokenBody
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except BadKeys as error:
        raise AccessDenied(f"{asked}: {error}", asked.key) from error
    except ClientError as error:
        raise answered(_said(error.response), asked) from error
    except (BotoCoreError, BrokenBody, TimeoutError) as error:
        raise _unanswered(error, asked) from error


def refused_at_once(caught_exception: Exception | None = None, **_: Any) -> None:
    """A hook in botocore's retries: an address where nothing answers will not answer in two seconds either.

    Raising is the only way to say no there: the first answer that is not None orders a retry.
    """
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

    if isinstance(caught_exception, EndpointConnectionError | ConnectTimeoutError):
        raise caught_exception


def answered(said: Said, asked: Asked) -> StorageError:
    """The error for an answer."""
    status, key = said.status, asked.key
    code = REFUSALS_ALIKE.get(said.code, said.code)
    if code == "NoSuchBucket":
        return StoreNotFound(
            f"{asked}: there is no bucket {asked.store.bucket!r} at {asked.server}: create it, or check its name",
            key,
            status=status,
        )
    if code == "NoSuchKey" or (status == 404 and key):
        return KeyNotFound(f"no object {key!r} in {asked.store!r}", key, status=status)
    if code in ELSEWHERE or status == 301:
        return StorageError(
            f"{asked}: the bucket is in another region: pass region={said.region or '…'!r}", key, status=status
        )
    if code == ARCHIVED:
        return StorageError(
            f"{asked}: the object is archived (S3 Glacier, Deep Archive): it has to be restored first [{code}]",
            key,
            status=status,
        )
    if code in REFUSALS or status in (401, 403):
        kind = CredentialsExpired if code in EXPIRED else AccessDenied
        why = REFUSALS.get(code, REFUSALS["AccessDenied"])
        return kind(f"{asked}: {why} [{said.code or status}]", key, status=status)
    if status == 412 or code == "PreconditionFailed":
        return ObjectChanged(f"{asked}: the object has been replaced since it was first read", key, status=status)
    if status == 416:
        return BadRange(f"{asked}: the range begins at or behind the end of the object", key, status=status)
    sentence = f"{asked}: the server answered {f'{status} {code}'.rstrip()}: {said.message}".rstrip(": ")
    if code in THROTTLES or status in THROTTLING:
        return Throttled(sentence, key, status=status, retry_after=said.retry_after)
    failed = (status >= 500 and status != NOT_IMPLEMENTED) or status in LATE or code in LATE_CODES
    return (ServerFailed if failed else StorageError)(sentence, key, status=status)


def unanswered(error: StorageError, asked: Asked, request: Request) -> StorageError:
    """What the connections say of a request, with the object's name."""
    sentence = f"{asked}: {error}"
    if isinstance(error, BrokenAnswer):
        skip = request.start - error.first  # a server may answer with the whole object, not with the range
        known = error.status == 200 or skip == 0  # what begins elsewhere must not be joined to anything
        return BrokenTransfer(
            sentence,
            asked.key,
            status=error.status,
            received=error.received[skip:] if known else b"",
            version=error.version,
            size=error.size,
            stalled=error.stalled,
        )
    return type(error)(sentence, asked.key)


def retry_after(text: str) -> float:
    """Seconds, of the header `Retry-After`; 0 if it is missing or gives a date."""
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0


def _said(response: dict[str, Any]) -> Said:
    """What botocore has read from the answer."""
    said = response.get("Error", {})
    about = response.get("ResponseMetadata", {})
    headers = about.get("HTTPHeaders", {})
    return Said(
        int(about.get("HTTPStatusCode", 0)),
        str(said.get("Code", "")),
        str(said.get("Message", "")),
        said.get("Region") or headers.get("x-amz-bucket-region", ""),
        retry_after(headers.get("retry-after", "")),
    )


def _unanswered(error: Exception, asked: Asked) -> StorageError:
    from aiohttp import ClientError as BrokenBody
    from botocore import exceptions as boto

    match error:
        case boto.NoCredentialsError() | boto.PartialCredentialsError():
            return AccessDenied(f"{asked}: there are no credentials: {GIVE_CREDENTIALS}", asked.key)
        case boto.CredentialRetrievalError() | boto.MetadataRetrievalError():
            return ServerFailed(f"{asked}: whoever gives out the credentials has failed: {error}", asked.key)
        case boto.ConnectTimeoutError() | boto.EndpointConnectionError():
            why = "in time" if isinstance(error, boto.ConnectTimeoutError) else "there"
            return StoreUnreachable(
                f"{asked}: nothing answers {why} at {asked.server}: is the server up, and is endpoint_url= right?",
                asked.key,
            )
        case TimeoutError() | boto.ReadTimeoutError():
            return StoreUnreachable(
                f"{asked}: {asked.server} went silent: if it is slow, raise read_timeout=", asked.key
            )
        case boto.HTTPClientError() | boto.IncompleteReadError() | BrokenBody():
            return BrokenTransfer(f"{asked}: the connection broke: {error}", asked.key)
        case _:
            return StorageError(f"{asked}: {error}", asked.key)
