"""Deferred work: requests that are kept until they can be answered, and answers that are kept until they are delivered."""
