"""PyTorch implementations of the operations: the oracle of faster ones, and what runs where none exists."""
