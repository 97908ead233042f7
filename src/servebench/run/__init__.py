"""One run: engine, points, records, quality, manifest."""
