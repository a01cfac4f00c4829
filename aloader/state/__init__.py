"""Where a loader is in its data, and how it goes on there: passes, what is remembered of them, and states."""
