"""What people look at. Reads results; makes none."""
