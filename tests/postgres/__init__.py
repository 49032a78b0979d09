"""PostgreSQL for the tests: a server of their own, and databases on it."""
