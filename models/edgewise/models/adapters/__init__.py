"""Low-rank adapters of a decoder (Hu et al. 2021: LoRA), as PEFT stores them (docs/adapters.md)."""
