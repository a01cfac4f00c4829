"""What went wrong with a bucket, said in one sentence: which object, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from aloader.errors import AccessDenied, KeyNotFound, StorageError, StoreNotFound, StoreUnreachable


class Asked(NamedTuple):
    """What was asked of whom: the words of the sentence."""

    verb: str  # "read", "write", "list"
    store: object  # its repr names bucket, prefix and endpoint, and no secret
    bucket: str
    endpoint: str
    key: str = ""

    def __str__(self) -> str:
        return f"cannot {self.verb} {f'{self.key!r} in ' if self.key else ''}{self.store!r}"


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
REFUSALS_ALIKE: Final = {"403": "AccessDenied", "Forbidden": "AccessDenied", "TokenRefreshRequired": "ExpiredToken"}

#: The codes by which servers say that the bucket lies in another region.
ELSEWHERE: Final = {"301", "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


@contextmanager
def explained(asked: Asked) -> Iterator[None]:
    """Failures of the client, the network and the server come out as a `StorageError`, with the original as cause."""
    from aiohttp import ClientError as BrokenTransfer
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _answered(error.response, asked) from error
    except (BotoCoreError, BrokenTransfer, TimeoutError) as error:
        raise _unanswered(error, asked) from error


def refused_at_once(caught_exception: Exception | None = None, **_: Any) -> None:
    """A hook in botocore's retries: an address where nothing answers will not answer in two seconds either.

    Raising is the only way to say no there: the first answer that is not None orders a retry.
    """
    from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

    if isinstance(caught_exception, EndpointConnectionError | ConnectTimeoutError):
        raise caught_exception


def _answered(response: dict[str, Any], asked: Asked) -> StorageError:
    said = response.get("Error", {})
    code = str(said.get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "NoSuchBucket":
        return StoreNotFound(
            f"{asked}: there is no bucket {asked.bucket!r} at {asked.endpoint}: create it, or check its name",
            asked.key,
        )
    if code == "NoSuchKey" or (status == 404 and asked.key):
        return KeyNotFound(f"no object {asked.key!r} in {asked.store!r}", asked.key)
    if code in ELSEWHERE:
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        region = said.get("Region") or headers.get("x-amz-bucket-region")
        return StorageError(f"{asked}: the bucket is in another region: pass region={region or '…'!r}", asked.key)
    code = REFUSALS_ALIKE.get(code, code)
    if code in REFUSALS or status == 403:
        return AccessDenied(f"{asked}: {REFUSALS.get(code, REFUSALS['AccessDenied'])} [{code}]", asked.key)
    return StorageError(f"{asked}: the server answered {status} {code}: {said.get('Message', '')}", asked.key)


def _unanswered(error: Exception, asked: Asked) -> StorageError:
    from botocore import exceptions as boto

    match error:
        case boto.NoCredentialsError() | boto.PartialCredentialsError():
            return AccessDenied(f"{asked}: there are no credentials: {GIVE_CREDENTIALS}", asked.key)
        case boto.ConnectTimeoutError() | boto.EndpointConnectionError():
            why = "in time" if isinstance(error, boto.ConnectTimeoutError) else "there"
            return StoreUnreachable(
                f"{asked}: nothing answers {why} at {asked.endpoint}: is the server up, and is endpoint_url= right?",
                asked.key,
            )
        case TimeoutError() | boto.ReadTimeoutError():
            return StoreUnreachable(
                f"{asked}: {asked.endpoint} went silent: if it is slow, raise read_timeout=", asked.key
            )
        case _:
            return StorageError(f"{asked}: {error}", asked.key)
