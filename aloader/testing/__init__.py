"""Servers and fakes for tests: of aloader, and of programs that use it."""
