"""Many runs: schedule, resume, recover, sync, summary."""
