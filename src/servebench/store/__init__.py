"""Parquet, manifests, MLflow: the only room that names paths. pandas, pyarrow and mlflow are imported when needed."""
