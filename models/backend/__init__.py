"""Arrays on the host or a GPU, their work memory, and BLAS threads.

Imports nothing of ours but models.core.
"""
