"""The command line: one module per subcommand, which parses, calls and prints; the work is done below."""
