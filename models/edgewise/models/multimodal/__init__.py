"""Models whose prompts hold pictures, film or sound: what stands where in a prompt, and what computes its embeddings."""
