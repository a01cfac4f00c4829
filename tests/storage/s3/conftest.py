from tests.servers import s3_server
from tests.storage.s3.environment import nobody

__all__ = ["nobody", "s3_server"]
