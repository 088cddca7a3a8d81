"""Conversations in speech over a WebSocket, in the form of OpenAI's Realtime API: /v1/realtime."""
