"""Fixtures of other packages' tests: a store, a country, a database."""

from tests.flows.conftest import _free_port, country
from tests.flows.test_postgres import database
from tests.pipeline.conftest import s3

__all__ = ["_free_port", "country", "database", "s3"]
