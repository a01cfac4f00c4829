"""What crosses the process border: memory (`arena`, `leases`), batches (`payload`), errors, messages, links."""
