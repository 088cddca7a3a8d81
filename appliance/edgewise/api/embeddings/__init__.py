"""Vectors of texts and what is made of them: /v1/embeddings and /v1/rerank."""
