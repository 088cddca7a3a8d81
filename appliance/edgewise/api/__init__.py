"""The OpenAI-compatible REST API: requests to tasks, text chunks to answers."""
