"""Models that answer in text and in speech: Qwen2.5-Omni (Xu et al. 2025), as three parts: Thinker, Talker, Code2Wav."""
