"""Encoders on ONNX Runtime: graphs made of a model's weights, candidates of each, and the one that was measured best."""
