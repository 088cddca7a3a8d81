"""Files and batches that callers leave here, in SQLite and one folder. No HTTP."""
