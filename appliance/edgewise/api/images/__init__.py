"""OpenAI's images API: pictures from words, and pictures from pictures."""
