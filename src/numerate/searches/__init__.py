"""Hyperparameter search: the best settings of a recipe by a validation score, never by the test grid."""
