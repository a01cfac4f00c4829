"""aloader inside training frameworks. Each module needs its framework installed, and nothing else imports it."""
