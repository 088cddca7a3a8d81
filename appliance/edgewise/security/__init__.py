"""Who may call, and over what: API keys and TLS."""
