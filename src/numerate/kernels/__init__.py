"""Functions of tensors: scans, relational attention, fused losses."""
