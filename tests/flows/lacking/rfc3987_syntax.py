"""In the place of a package that users do not have: a tool of our checks brings it.

Prefect would import it with its grammars in each process: 0.7 s of about three.
"""

raise ImportError("not for flows")
