"""Good settings of a recipe, found by trying: the best by a development score, never by the test grid."""
