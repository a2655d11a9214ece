"""Prefect wiring: flows call the stage functions of ``pipeline`` and do no work of their own."""
