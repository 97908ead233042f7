"""MLPerf Endpoints' definitions, steady-state window and rules, applied to stored runs; unofficial."""
