"""The durable job table: what was asked, by whom it is worked off, what came out, and what it costs."""
