"""The CHILD: what a worker process runs, from its first message to its exit; and the same work in this process."""
