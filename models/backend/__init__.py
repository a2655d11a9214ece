"""Arrays on the host or a GPU, their work memory, and BLAS threads.

Imports no other room.
"""
