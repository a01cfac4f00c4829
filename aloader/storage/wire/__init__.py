"""GET over HTTP/1.1, at little cost: for stores whose answers are taken apart by others. Nothing here knows of S3."""
