"""Text to speech: what is spoken of a text, its sounds, and the networks that make sound of them."""
