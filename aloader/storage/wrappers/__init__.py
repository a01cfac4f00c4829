"""Stores around stores, one idea each."""
