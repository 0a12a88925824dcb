"""Many small models trained together as one stack (`torch.vmap`), with the same results as separately."""
