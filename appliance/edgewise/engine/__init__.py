"""The engine: scheduler -> runner -> kernels over a paged KV cache, in a process of its own.

It sees token ids and masks only; text, HTTP and MQTT are other packages' business. Importing this package, `engine.request`
and `engine.client` does not import torch: the service process stays small.
"""
