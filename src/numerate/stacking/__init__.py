"""Many small models trained as one stack, each as if it were trained alone."""
