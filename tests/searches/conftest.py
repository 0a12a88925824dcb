"""Failures on purpose."""

from failures import killed_at_every_moment, small_disk

__all__ = ["killed_at_every_moment", "small_disk"]
