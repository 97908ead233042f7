"""Parquet, manifests, MLflow: the only room that names paths. pandas, pyarrow and mlflow are imported when needed."""

from servebench.store.graded import AnswerLog, add_quality, discard_answers, read_quality
from servebench.store.hold import holding
from servebench.store.layout import RunFolder, StudyFolder, check_writable, create_study, find_studies, outputs_folder
from servebench.store.manifest import build_manifest, capture_machine, read_manifest, write_manifest
from servebench.store.plan import PlannedRun, read_plan, with_secrets, write_plan
from servebench.store.state import RunState, StudyState, read_run, read_study, write_run, write_study
from servebench.store.tables import (
    RecordWriter,
    add_points,
    add_telemetry,
    merged_count,
    points_frame,
    read_points,
    read_readings,
    read_records,
    read_requests,
    read_rows,
    read_telemetry,
    requests_frame,
    stored_counts,
    write_points,
)
from servebench.store.tracking import SyncReport, sync_study, tracking_uri
from servebench.util.redaction import redact, redact_text

__all__ = [
    "AnswerLog",
    "PlannedRun",
    "RecordWriter",
    "RunFolder",
    "RunState",
    "StudyFolder",
    "StudyState",
    "SyncReport",
    "add_points",
    "add_quality",
    "add_telemetry",
    "build_manifest",
    "capture_machine",
    "check_writable",
    "create_study",
    "discard_answers",
    "find_studies",
    "holding",
    "merged_count",
    "outputs_folder",
    "points_frame",
    "read_manifest",
    "read_plan",
    "read_points",
    "read_quality",
    "read_readings",
    "read_records",
    "read_requests",
    "read_rows",
    "read_run",
    "read_study",
    "read_telemetry",
    "redact",
    "redact_text",
    "requests_frame",
    "stored_counts",
    "sync_study",
    "tracking_uri",
    "with_secrets",
    "write_manifest",
    "write_plan",
    "write_points",
    "write_run",
    "write_study",
]
