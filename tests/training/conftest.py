"""Failures on purpose."""

from failures import failing_at_every_moment, killed_at_every_moment, small_disk, stop_at

__all__ = ["failing_at_every_moment", "killed_at_every_moment", "small_disk", "stop_at"]
