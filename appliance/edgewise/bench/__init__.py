"""Load on any OpenAI-compatible server, measured from outside: arrivals, requests, statistics."""
