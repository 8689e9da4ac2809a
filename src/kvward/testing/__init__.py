"""What others need to test their parts against ours. Needs pytest.

`backends.BackendConformance` is what every backend of a store has to pass, `faults.FaultyBackend`
makes any backend slow or unreliable by plan, `clocks` are clocks that tests can move.
`two_tenants` is a pytest plugin that audits a stack from a test; pytest loads it by itself.
"""

import pytest

# Before it is imported, so that its assertions explain themselves in anybody's test run.
pytest.register_assert_rewrite("kvward.testing.backends")
