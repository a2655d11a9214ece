"""What a map consists of: the list of products, draws of areas, and one pass over the tiles.

May import pipeline.store and what lies below it.
"""
