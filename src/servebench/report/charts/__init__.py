"""The charts of the report, the dashboard and the MLflow artifacts: Vega-Lite specs as data, and their pictures."""
