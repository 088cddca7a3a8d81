"""Who may use the fleet: people with passwords or an OpenID provider, their logins, and tokens for programs."""
