"""BLRT: trees of bags, boosted."""
