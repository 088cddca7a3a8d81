"""How jobs come in and streams go out: checks, HTTP routes, blobs."""
