"""What an area's response is: what is read and checked, and the words, columns, maps and scores.

Imports no other sub-package of pipeline; may import geo and models.
"""
