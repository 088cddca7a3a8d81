"""One service around the engines: what device and cloud have in common, from the store of models to the draining server."""
