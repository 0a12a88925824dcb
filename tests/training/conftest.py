"""Failures on purpose."""

from failures import killed_at_every_moment, small_disk, stop_at

__all__ = ["killed_at_every_moment", "small_disk", "stop_at"]
