"""The Messages API in Anthropic's form: /v1/messages."""
