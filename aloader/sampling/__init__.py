"""WHICH samples in which order. Pure: no asyncio, no processes, no clock."""

from aloader.sampling.samplers import DistributedSampler, ShuffledSampler

__all__ = ["DistributedSampler", "ShuffledSampler"]
