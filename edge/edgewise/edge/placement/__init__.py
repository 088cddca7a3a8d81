"""Where each stage of a request runs: gates, predictions from measurements, and the choice among what is left."""
