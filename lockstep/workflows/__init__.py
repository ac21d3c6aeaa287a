"""How collecting and learning alternate, on one mesh."""
