"""Tables of every format, and columns of counts, labels and ids in them.

May import geo.sources and the layers below it.
"""
