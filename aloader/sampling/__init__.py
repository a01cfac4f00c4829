"""WHICH samples in which order. Pure: no asyncio, no processes, no clock."""
